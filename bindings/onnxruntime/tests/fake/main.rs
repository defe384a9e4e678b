//! The operator in a fake ONNX Runtime: what a real one does not do, or does not show.

mod allocator;
mod runtime;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use allocator::{allocations, live_bytes};
use distcollective::{Communicator, Error, ErrorKind, Result};
use distcollective_onnxruntime::SessionCommunicator;
use runtime::{Context, Node, Runtime, Session, Value, domain_count, fail_after, live};

const TIMEOUT: Duration = Duration::from_secs(10);

/// Runs a function on ranks that are threads, each with the config entry of a session.
fn on_ranks<T: Send>(ranks: u32, body: impl Fn(&Communicator, Option<String>) -> T + Sync) -> Vec<T> {
    let run = |communicator: Communicator| -> Result<T> {
        let communicator = communicator.with_timeout(TIMEOUT);
        let for_sessions = SessionCommunicator::new(&communicator);
        Ok(body(&communicator, Some(for_sessions.value())))
    };
    Communicator::spawn(ranks, run).expect("ranks")
}

fn all_reduce(value: Option<String>, name: &'static str) -> Session {
    Session::new(&Runtime::CURRENT, value, &Node::new(name, "all_reduce")).expect("a session")
}

/// The result of a sum of bytes.
fn sum(session: &Session, byte: u8) -> std::result::Result<u8, String> {
    let mut context = Context::new(Value::bytes(&[byte]), 1);
    session.run(&mut context).map(|()| context.output.expect("an output").data[0])
}

#[test]
fn a_run_after_the_first_allocates_nothing() {
    on_ranks(2, |communicator, value| {
        let operations = ["all_reduce", "all_gather", "broadcast", "reduce", "all_to_all", "gather"];
        for operation in operations {
            let mut node = Node::new(operation, operation);
            node.integers = vec![("root", 1)];
            let session = Session::new(&Runtime::CURRENT, value.clone(), &node).expect("a session");
            for elements in [2, 4096] {
                let mut context = Context::new(Value::bytes(&vec![1; elements]), 2 * elements);
                session.run(&mut context).expect("a run");
                communicator.barrier().expect("a barrier");
                let before = allocations();
                for _ in 0..100 {
                    session.run(&mut context).expect("a run");
                }
                assert_eq!(allocations() - before, 0, "{operation} of {elements} bytes");
            }
        }
    });
}

#[test]
fn sessions_that_are_gone_leave_nothing_behind() {
    on_ranks(2, |_, value| {
        let use_sessions = || {
            for name in ["first", "second"] {
                assert_eq!(sum(&all_reduce(value.clone(), name), 2), Ok(4));
            }
        };
        // What is made once for a config entry stays.
        use_sessions();
        let (before, domains) = (live_bytes(), domain_count());
        for _ in 0..300 {
            use_sessions();
        }
        assert_eq!(domain_count(), domains);
        assert_eq!(domains, 1);
        assert!((live_bytes() - before).abs() < 300, "{} bytes", live_bytes() - before);
    });
}

#[test]
fn an_older_runtime_gets_a_status_that_says_so() {
    let error = Session::new(&Runtime::OLD, None, &Node::default()).map(drop);
    assert_eq!(error, Err("9: distcollective needs ONNX Runtime 1.17 or newer, and this is 1.16.3".to_owned()));
    assert_eq!(live(), 0);
}

#[test]
fn every_number_of_an_element_type_is_read() {
    on_ranks(1, |_, value| {
        let session = all_reduce(value, "node");
        let taken = [1, 2, 3, 6, 7, 9, 10, 16, 17, 19];
        for element_type in (-1..300).chain([i32::MIN, i32::MAX]) {
            let input = Value { element_type, dims: vec![1], data: vec![0; 8] };
            let result = session.run(&mut Context::new(input, 8));
            if taken.contains(&element_type) {
                assert_eq!(result, Ok(()), "{element_type}");
                continue;
            }
            let name = match element_type {
                4 => "uint16",
                5 => "int16",
                8 => "strings",
                11 => "float64",
                12 => "uint32",
                13 => "uint64",
                14 => "complex64",
                15 => "complex128",
                18 => "float8_e4m3fnuz",
                20 => "float8_e5m2fnuz",
                21 => "uint4",
                22 => "int4",
                23 => "float4_e2m1",
                24 => "uint2",
                25 => "int2",
                other => &format!("number {other} of ONNX's types"),
            };
            let begin = format!(
                "2: node \"node\" (DistCollective): the input's elements are {name}; the operator takes float32, float16,"
            );
            assert!(result.as_ref().is_err_and(|text| text.starts_with(&begin)), "{element_type}: {result:?}");
            assert_eq!(live(), 0);
        }
    });
}

/// The output of a node for one byte.
fn gathered(
    value: &Option<String>,
    node: &Node,
    byte: u8,
    output_bytes: usize,
) -> std::result::Result<Vec<u8>, String> {
    let mut context = Context::new(Value::bytes(&[byte]), output_bytes);
    Session::new(&Runtime::CURRENT, value.clone(), node)?.run(&mut context)?;
    Ok(context.output.expect("an output").data)
}

#[test]
fn attributes_are_read_leniently() {
    on_ranks(2, |communicator, value| {
        let rank = communicator.rank().0 as u8;
        let node = |integers: &[(&'static str, i64)], groups: Option<&[i64]>| Node {
            integers: integers.to_vec(),
            lists: groups.map(|groups| ("groups", groups.to_vec())).into_iter().collect(),
            ..Node::new("node", "All_Gather")
        };
        for (node, expected) in [
            // The oldest form has nothing but `reduce_op`, which does not count.
            (node(&[], None), vec![0, 1]),
            (node(&[("group_size", 0), ("root", 7)], Some(&[])), vec![0, 1]),
            (node(&[("group_size", 2), ("nb_rank", 2)], Some(&[])), vec![0, 1]),
            (node(&[("group_size", 2)], None), vec![0, 1]),
            (node(&[("group_size", 1)], None), vec![rank]),
            (node(&[("nb_rank", 1)], None), vec![rank]),
            (node(&[], Some(&[1, 0])), vec![1, 0]),
            (node(&[("group_size", 2), ("nb_rank", 2)], Some(&[1, 0])), vec![1, 0]),
            // Rank 0 does not take part.
            (node(&[], Some(&[1])), vec![rank]),
        ] {
            let output = gathered(&value, &node, rank, expected.len());
            assert_eq!(output, Ok(expected), "{:?} {:?}", node.integers, node.lists);
        }
        let mut reduce = Node::new("node", "reduce");
        reduce.integers = vec![("root", 1)];
        // The root's output is written, and the other is zero.
        assert_eq!(gathered(&value, &reduce, 2, 1), Ok(vec![4 * rank]));
    });
}

#[test]
fn the_identity_waits_for_no_rank() {
    on_ranks(2, |communicator, value| {
        if communicator.rank().0 == 0 {
            let node = Node { integers: vec![("nb_rank", 1)], ..Node::new("only here", "all_gather") };
            assert_eq!(gathered(&value, &node, 7, 1), Ok(vec![7]));
        }
        // Rank 1 has made no other call.
        communicator.barrier().expect("a barrier");
    });
}

#[test]
fn attributes_that_make_no_layer_are_errors_of_the_session() {
    on_ranks(1, |_, value| {
        let node = |operation, integers: &[_]| Node { integers: integers.to_vec(), ..Node::new("node", operation) };
        let of_text = |name, text| Node { texts: vec![(name, text)], ..Node::new("node", "all_reduce") };
        let groups = Node { lists: vec![("groups", vec![0])], ..node("all_gather", &[("group_size", 3)]) };
        let list = Node { lists: vec![("nb_rank", vec![1])], ..node("all_gather", &[]) };
        for (node, text) in [
            (of_text("reduce_op", "sum"), "the attribute collective_operation is missing"),
            (
                of_text("collective_operation", "all_reduce"),
                "the attribute reduce_op is missing, and all_reduce reduces",
            ),
            (node("all_munge", &[]), "\"all_munge\" is not a collective operation"),
            (node("all_gather", &[("nb_rank", 1 << 32)]), "nb_rank is 4294967296, which is no number of ranks"),
            (node("all_gather", &[("nb_rank", -1)]), "nb_rank is -1, which is no number of ranks"),
            (node("broadcast", &[]), "it has a root, and root is -1"),
            (groups, "group_size is 3, and groups [0] has 1 ranks"),
            (
                node("all_gather", &[("nb_rank", 1), ("group_size", 2)]),
                "nb_rank is 1, and group_size 2; both are the number of ranks. Polygraphy writes its options --nb-rank, \
                 whose default is 1, and --gpus: give it --nb-rank 2",
            ),
            (list, "the attribute nb_rank is a list of integers; it has to be an integer"),
        ] {
            let error = gathered(&value, &node, 1, 1).expect_err(text);
            assert!(error.starts_with("2: node \"node\" (DistCollective): ") && error.contains(text), "{error}");
        }
        let value = value.expect("a value");
        let (copy, number) = value.split_once('-').expect("two numbers");
        let other_copy = format!("{:x}-{number}", !u64::from_str_radix(copy, 16).expect("hexadecimal"));
        for (value, problem) in [
            ("x".to_owned(), "which is no communicator's session value"),
            (number.to_owned(), "which is no communicator's session value"),
            (other_copy, "which a communicator of another copy of the library has; register the library that made"),
        ] {
            let text = format!("distcollective.communicator is {value:?}, {problem}");
            let error = gathered(&Some(value), &Node::new("node", "all_reduce"), 1, 1).expect_err("another");
            assert!(error.contains(&text), "{error}");
        }
    });
}

#[test]
fn an_attribute_of_another_type_is_an_error_that_names_both() {
    type Add = fn(&mut Node, &'static str);
    let types: [(&str, Add); 6] = [
        ("a text", |node, name| node.texts.push((name, "0"))),
        ("an integer", |node, name| node.integers.push((name, 0))),
        ("a float", |node, name| node.floats.push((name, 0.0))),
        ("a list of integers", |node, name| node.lists.push((name, vec![0]))),
        ("a list of floats", |node, name| node.float_lists.push((name, vec![0.0]))),
        ("a list", |node, name| node.lists.push((name, vec![]))),
    ];
    on_ranks(1, |_, value| {
        for (name, expected) in [("reduce_op", "a text"), ("nb_rank", "an integer"), ("groups", "a list of integers")] {
            for (found, add) in types.iter().filter(|(found, _)| *found != expected) {
                let mut node = Node::new("node", "all_reduce");
                node.texts.retain(|(other, _)| *other != name);
                add(&mut node, name);
                let result = gathered(&value, &node, 1, 1);
                if (name, *found) == ("groups", "a list") {
                    // Empty: all ranks.
                    assert_eq!(result, Ok(vec![1]));
                    continue;
                }
                let error = result.expect_err(found);
                let text = format!("the attribute {name} is {found}; it has to be {expected}");
                assert!(error.starts_with("2: ") && error.ends_with(&text), "{error}");
            }
        }
    });
}

#[test]
fn a_session_value_is_that_of_its_communicator_while_it_lives() {
    let values = on_ranks(2, |communicator, value| {
        let group = communicator.split(Some(communicator.rank().0), 0).expect("a split").expect("a group");
        let for_sessions = SessionCommunicator::new(&group);
        let alone = all_reduce(Some(for_sessions.value()), "alone");
        assert_eq!((sum(&alone, 3), sum(&all_reduce(value.clone(), "both"), 3)), (Ok(3), Ok(6)));
        drop(for_sessions);
        assert_eq!(sum(&alone, 3), Ok(3));
        value.expect("a value")
    });
    assert_ne!(values[0], values[1]);
    for value in values {
        let error = Session::new(&Runtime::CURRENT, Some(value), &Node::new("node", "all_reduce")).map(drop);
        assert!(error.is_err_and(|text| text.contains("whose communicator is gone")));
    }
}

/// A node whose type is not that of the first run is bound again.
#[test]
fn a_node_may_get_another_type() {
    on_ranks(2, |_, value| {
        let session = all_reduce(value, "node");
        // uint8, int8, bool: the sum of trues is true.
        for (element_type, expected) in [(2, 2), (3, 2), (9, 1), (2, 2)] {
            let input = Value { element_type, ..Value::bytes(&[1]) };
            let mut context = Context::new(input, 1);
            session.run(&mut context).expect("a run");
            assert_eq!(context.output.expect("an output").data, [expected], "{element_type}");
        }
    });
}

/// Each call in turn fails, and the operator passes the message on.
#[test]
fn a_call_that_fails_is_an_error_and_everything_is_released() {
    on_ranks(1, |_, value| {
        let mut node = Node::new("node", "all_gather");
        node.integers = vec![("nb_rank", 1), ("group_size", 1)];
        node.lists = vec![("groups", vec![0])];
        let mut failures = 0;
        loop {
            let mut context = Context::new(Value::bytes(&[7]), 1);
            fail_after(failures);
            let session = Session::new(&Runtime::CURRENT, value.clone(), &node);
            let result = session.and_then(|session| session.run(&mut context));
            fail_after(usize::MAX);
            assert_eq!(live(), 0);
            let Err(text) = result else {
                assert_eq!(context.output.expect("an output").data, [7]);
                break;
            };
            assert!(text.starts_with("1: ") && text.contains("ONNX Runtime's "), "{text}");
            assert!(text.ends_with(" failed: out of luck"), "{text}");
            failures += 1;
        }
        // To register: 8. Of the node: its name and an attribute, 2 each; integers, 2; the list, 2.
        // To run: 8.
        assert_eq!(failures, 24);
    });
}

#[test]
fn a_node_without_input_or_output_and_too_many_dimensions_are_errors() {
    on_ranks(1, |_, value| {
        let session = all_reduce(value, "node");
        let mut context = Context { input: None, ..Context::new(Value::bytes(&[1]), 1) };
        assert_eq!(
            session.run(&mut context),
            Err("2: node \"node\" (DistCollective): the node has no input".to_owned())
        );
        let mut context = Context { output: None, ..Context::new(Value::bytes(&[1]), 1) };
        assert_eq!(
            session.run(&mut context),
            Err("2: node \"node\" (DistCollective): the node has no output".to_owned())
        );
        for (dims, text) in [
            (vec![1; 9], "the input has 9 dimensions; the operator takes 1 to 8"),
            (vec![i64::MAX, 2], "[9223372036854775807, 2] has more elements than memory can hold"),
            (vec![-1], "has more elements than memory can hold"),
        ] {
            let error =
                session.run(&mut Context::new(Value { dims, ..Value::bytes(&[1]) }, 1)).expect_err("dimensions");
            assert!(error.contains(text), "{error}");
        }
        assert_eq!((sum(&session, 3), live()), (Ok(3), 0));
    });
}

/// Each has its own functions, and so its own operator and domain.
#[test]
fn two_runtimes_of_one_process_do_not_mix() {
    on_ranks(1, |_, value| {
        let make = |runtime| Session::new(runtime, value.clone(), &Node::new("node", "all_reduce")).expect("a session");
        let (first, copy, second) = (make(&Runtime::CURRENT), make(&Runtime::COPY), make(&Runtime::CURRENT));
        assert_eq!(first.operator(), second.operator());
        assert_ne!(first.operator(), copy.operator());
        assert_eq!(domain_count(), 2);
    });
}

#[test]
fn sessions_run_one_after_the_other_on_any_threads() {
    let sums = on_ranks(2, |communicator, value| {
        let sessions = ["first", "second"].map(|name| all_reduce(value.clone(), name));
        let byte = communicator.rank().0 as u8 + 1;
        let on_another_thread = |session| std::thread::scope(|scope| scope.spawn(|| sum(session, byte)).join());
        (0..6).map(|run| on_another_thread(&sessions[run % 2]).expect("no panic")).collect::<Vec<_>>()
    });
    assert_eq!(sums, vec![vec![Ok(3); 6]; 2]);
}

/// The node of the same operation and length runs on the other rank.
#[test]
fn nodes_in_another_order_are_an_error_on_every_rank() {
    let errors = on_ranks(2, |communicator, value| {
        let mut sessions = ["first", "second"].map(|name| all_reduce(value.clone(), name));
        for session in &sessions {
            assert_eq!(sum(session, 1), Ok(2));
        }
        if communicator.rank().0 == 1 {
            sessions.reverse();
        }
        sum(&sessions[0], 1).expect_err("another node")
    });
    for (error, name) in errors.iter().zip(["first", "second"]) {
        let begin = format!("1: rank {{}}: layer \"{name}\" (all_reduce): ranks disagree on collective ");
        let begin = begin.replace("{}", if name == "first" { "0" } else { "1" });
        assert!(error.starts_with(&begin) && error.contains(" of context or layer "), "{error}");
    }
}

/// Rank 0 runs its second node while the first waits for rank 1, as a parallel session would.
#[test]
fn nodes_at_the_same_time_are_an_error_on_every_rank() {
    static IS_INSIDE: AtomicBool = AtomicBool::new(false);
    on_ranks(2, |communicator, value| {
        let text = "node \"second\" (DistCollective): two nodes run at once on one communicator";
        let [first, second] = ["first", "second"].map(|name| all_reduce(value.clone(), name));
        for session in [&first, &second] {
            assert_eq!(sum(session, 1), Ok(2));
        }
        let until = |is_done: &dyn Fn() -> bool| {
            let end = Instant::now() + TIMEOUT;
            while !is_done() {
                assert!(Instant::now() < end, "it takes too long");
                std::thread::yield_now();
            }
        };
        if communicator.rank().0 == 1 {
            until(&|| communicator.check().is_err());
            let error = sum(&first, 1).expect_err("the communicator has ended");
            assert!(error.contains(text), "{error}");
            return;
        }
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let mut context = Context::new(Value::bytes(&[1]), 1);
                context.at_output = || IS_INSIDE.store(true, Ordering::Release);
                first.run(&mut context)
            });
            until(&|| IS_INSIDE.load(Ordering::Acquire));
            let error = sum(&second, 1).expect_err("the first node runs");
            assert!(error.starts_with(&format!("2: {text}")), "{error}");
            let error = waiting.join().expect("no panic").expect_err("the communicator has ended");
            assert!(error.contains(text), "{error}");
        });
    });
}

/// Rank 1 refuses the first run and later ones. Both ranks go on to the next run.
#[test]
fn what_one_rank_refuses_is_an_error_on_the_other() {
    const FLOAT64: i32 = 11;
    on_ranks(2, |communicator, value| {
        let node = Node::new("node", "reduce_scatter");
        let session = Session::new(&Runtime::CURRENT, value, &node).expect("a session");
        for (run, refused) in [true, true, false, true, false, false, true, true, false].into_iter().enumerate() {
            let refuses = refused && communicator.rank().0 == 1;
            // Before the type is known, and after.
            let bytes = if refuses && run > 2 { vec![1; 3] } else { vec![run as u8; 2] };
            let input = match refuses && run <= 2 {
                true => Value { element_type: FLOAT64, ..Value::bytes(&bytes) },
                false => Value::bytes(&bytes),
            };
            let mut context = Context::new(input, 1);
            match (session.run(&mut context), refused) {
                (Ok(()), false) => assert_eq!(context.output.expect("an output").data, [2 * run as u8]),
                (Err(text), true) if refuses => assert!(!text.contains("refused"), "{text}"),
                (Err(text), true) => {
                    let reason = if run <= 2 { "the input's elements are float64" } else { "dimension 0 is 3" };
                    assert!(text.contains("rank 1 refused ") && text.contains(reason), "{text}");
                }
                (result, _) => panic!("run {run}: {result:?}"),
            }
        }
        communicator.barrier().expect("it works");
    });
}

/// Threads of each rank serve requests through one session, in any order. One rank fails some of
/// them before the node, in it, or after it.
#[test]
fn requests_are_answered_alike_on_every_rank() {
    const REQUESTS: u64 = 100;
    for threads in [1, 2, 4, 16] {
        let orders = on_ranks(2, |communicator, value| {
            let node = Node::new("node", "reduce_scatter");
            let session = Session::new(&Runtime::CURRENT, value, &node).expect("a session");
            let (next, order, rank) = (AtomicU64::new(0), Mutex::new(Vec::new()), u64::from(communicator.rank().0));
            let answer = |id: u64, fails: u64| {
                let own = || Err(Error::new(ErrorKind::Plugin, "the program's own"));
                let bytes = vec![id as u8; if fails == 2 { 3 } else { 2 }];
                let mut context = Context::new(Value::bytes(&bytes), 1);
                if fails == 1 {
                    return own();
                }
                session.run(&mut context).map_err(|text| Error::new(ErrorKind::System, text))?;
                if fails == 3 { own() } else { Ok(context.output.expect("an output").data[0]) }
            };
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| {
                        loop {
                            let id = next.fetch_add(1, Ordering::Relaxed);
                            if id >= REQUESTS {
                                break;
                            }
                            std::thread::sleep(Duration::from_micros((id * 7 + rank * 31) % 100));
                            let (failing, stage) = (id / 3 % 2, if id % 3 == 0 { 1 + id / 6 % 3 } else { 0 });
                            let result = communicator.request(id, || {
                                order.lock().expect("no panic").push(id);
                                answer(id, if rank == failing { stage } else { 0 })
                            });
                            match (result, stage) {
                                (Ok(sum), 0) => assert_eq!(sum, (2 * id) as u8),
                                (Err(error), 1..) => {
                                    let text = format!("rank {failing} left the request");
                                    assert!(rank == failing || error.to_string().contains(&text), "{id}: {error}");
                                }
                                (result, _) => panic!("request {id} on rank {rank}: {result:?}"),
                            }
                        }
                    });
                }
            });
            order.into_inner().expect("no panic")
        });
        assert!(orders[0].len() == REQUESTS as usize && orders[0] == orders[1], "{threads}: {orders:?}");
    }
}

//! Transport types of float32: where they are kept, what is refused, ranks that differ, the bound
//! of the error, and long tensors. The conformance suite has every operation and shape.

use distcollective::collective::Collective;
use distcollective::comm::RawOperands;
use distcollective::tensor::{MemorySpace, bf16, f16};
use distcollective::{
    CollectiveOperation, Communicator, DataType, DistCollective, DistCollectiveLayer, Engine, ErrorKind, Network, Rank,
    ReduceOperation, Result, WireType,
};

use crate::determinism::engine_of;
use crate::limits::children;
use crate::random::Random;
use crate::ranks::{DEADLINE, on_ranks, wait_all};

const SUM: ReduceOperation = ReduceOperation::Sum;

/// A float32 that is rounded once.
fn rounded(wire_type: WireType, x: f32) -> f32 {
    match wire_type {
        WireType::Float16 => f16::from_f32_const(x).to_f32_const(),
        WireType::Bfloat16 => bf16::from_f32_const(x).to_f32_const(),
        other => panic!("{other} is new"),
    }
}

fn error_of<T>(result: Result<T>, kind: ErrorKind) -> String {
    let error = result.map(drop).expect_err("a mistake");
    assert_eq!(error.kind(), kind, "{error}");
    error.to_string()
}

#[test]
fn eager_calls_that_have_none_are_refused() {
    on_ranks(2, |communicator| {
        let narrow = communicator.with_wire_type(WireType::Float16);
        assert_eq!((communicator.wire_type(), narrow.wire_type()), (None, Some(WireType::Float16)));
        let (x, mut y) = ([1f32; 2], [0f32; 2]);
        let moved = narrow.all_to_all(&x, &mut y);
        let text = error_of(moved, ErrorKind::InvalidArgument);
        let rule = "it has no transport type, and float16 is set; all_reduce, reduce, reduce_scatter, broadcast and \
                    all_gather have one";
        assert!(text.ends_with(rule), "{text}");
        let whole = narrow.all_reduce(&mut [1i32], SUM);
        let text = error_of(whole, ErrorKind::InvalidArgument);
        let rule = "the transport type is float16, and the tensor is int32; only float32 has a transport type";
        assert!(text.ends_with(rule), "{text}");
        let mut list = [[0f32; 2]; 2];
        let text = error_of(narrow.all_gather_list(&x, &mut list), ErrorKind::Unsupported);
        assert!(text.contains("the list form has no transport type, and float16 is set"), "{text}");
        let scattered = narrow.scatter_list(Some([[1f32; 2]; 2]).as_ref(), &mut y, 0);
        let text = error_of(scattered, ErrorKind::InvalidArgument);
        assert!(text.contains("it has no transport type, and float16 is set"), "{text}");
        // The handle still works, and what is not of the user's has no transport type.
        narrow.barrier().expect("every rank comes");
        let group = narrow.split(Some(0), 0).expect("every rank comes").expect("a color");
        assert_eq!(group.wire_type(), None);
        let mut all = [0i32; 2];
        narrow.with_wire_type(None).all_gather(&[1i32], &mut all).expect("no rule is broken");
        assert_eq!(all, [1, 1]);
    });
}

#[test]
fn networks_with_wrong_types_or_operations_are_not_built() -> Result<()> {
    let mut network = Network::new();
    let halves = network.add_input("halves", DataType::Float16, [4])?;
    let sum = || DistCollective::all_reduce(SUM).nb_rank(2).named("sum").wire_type(WireType::Bfloat16);
    let text = error_of(network.add(sum(), halves), ErrorKind::InvalidArgument);
    let rule = "the transport type is bfloat16, and the tensor is float16; only float32 has a transport type";
    assert_eq!(text, format!("layer \"sum\" (all_reduce): {rule}"));
    let x = network.add_input("x", DataType::Float32, [4])?;
    let exchange = DistCollective::all_to_all().nb_rank(2).named("exchange").wire_type(WireType::Float16);
    let text = error_of(network.add(exchange, x), ErrorKind::InvalidArgument);
    assert!(text.starts_with("layer \"exchange\" (all_to_all): it has no transport type"), "{text}");

    // A layer that changes after it was added.
    let mut network = Network::new();
    for (name, data_type) in [("x", DataType::Float32), ("halves", DataType::Float16)] {
        let input = network.add_input(name, data_type, [4])?;
        let output = network.add(DistCollective::all_gather().nb_rank(2).named(format!("gather {name}")), input)?;
        network.mark_output(output, &format!("gathered {name}"))?;
        let layer = network.layer_of_mut(output)?.as_dist_collective_mut()?;
        layer.set_wire_type(WireType::Float16);
        if name == "x" {
            layer.set_collective_operation(CollectiveOperation::AllToAll);
        }
    }
    let text = error_of(network.build(), ErrorKind::InvalidNetwork);
    for part in ["layer \"gather x\" (all_to_all): it has no transport type", "the tensor is float16"] {
        assert!(text.contains(part), "{text}");
    }
    Ok(())
}

#[test]
fn plans_and_layers_keep_it() -> Result<()> {
    for wire_type in [None, Some(WireType::Float16), Some(WireType::Bfloat16)] {
        let mut layer = DistCollective::all_gather().nb_rank(2).into_layer();
        assert_eq!(layer.wire_type(), None);
        layer.set_wire_type(wire_type);
        assert_eq!(DistCollectiveLayer::deserialize(&layer.serialize()?)?, layer);
        let engine = Engine::deserialize(&engine_of(layer)?.serialize()?)?;
        let inspection = engine.inspect();
        let name = wire_type.map(WireType::name);
        assert_eq!(inspection.to_json()["layers"][0]["collective"]["wire_type"], serde_json::json!(name));
        let shown = name.map_or_else(String::new, |name| format!(", sent as {name}"));
        assert!(inspection.to_string().contains(&format!("among 2 ranks{shown}: x -> ")), "{inspection}");
        assert!(inspection.to_dot().contains(&format!("among 2 ranks{shown}\"")), "{}", inspection.to_dot());
    }
    Ok(())
}

/// Input and output in the transport type, on GPUs; among one rank elements do not travel.
#[test]
fn inspect_shows_what_movement_needs() -> Result<()> {
    for (nb_rank, shown, bytes) in [(2, ", sent as float16", 16 + 12), (1, ": x -> ", 0)] {
        let layer = DistCollective::all_gather().nb_rank(nb_rank).wire_type(WireType::Float16);
        let mut network = Network::new();
        let x = network.add_input("x", DataType::Float32, [3])?;
        let y = network.add(layer, x)?;
        network.mark_output(y, "y")?;
        let inspection = network.build()?.inspect();
        assert!(inspection.to_string().contains(shown), "{inspection}");
        assert_eq!(inspection.to_json()["memory"]["step_scratch_bytes"], serde_json::json!(bytes), "{inspection}");
    }
    Ok(())
}

#[test]
fn names_and_numbers_are_read_back() {
    for wire_type in WireType::ALL {
        assert_eq!(wire_type.name().to_uppercase().parse::<WireType>().expect("a name"), wire_type);
        assert_eq!(WireType::from_number(wire_type.number()).expect("a number"), Some(wire_type));
        assert_eq!(wire_type.number(), wire_type.data_type().number());
    }
    assert_eq!(WireType::from_number(WireType::NONE_NUMBER).expect("a number"), None);
    let text = error_of("float32".parse::<WireType>(), ErrorKind::InvalidArgument);
    assert_eq!(text, "\"float32\" is not a transport type; they are float16, bfloat16");
    let text = error_of(WireType::from_number(2), ErrorKind::InvalidArgument);
    let rule = "2 is not the number of a transport type; they are 1 (float16), 7 (bfloat16), and 0 for none";
    assert_eq!(text, rule);
}

/// Where layers differ, every rank gets an error that names both sides, and the communicator still
/// works.
pub fn differences_of_layers_are_errors(communicator: &Communicator) -> Result<()> {
    let own = if communicator.rank() == Rank(0) { WireType::Float16 } else { WireType::Bfloat16 };
    let n = communicator.world_size();
    let layer = || DistCollective::all_gather().nb_rank(n).named("parts").wire_type(own);
    let mut context = engine_of(layer())?.create_execution_context()?;
    let set = context.set_communicator(communicator);
    let bound = layer().into_layer().bind(communicator, DataType::Float32);
    for text in [error_of(set, ErrorKind::Disagreement), error_of(bound, ErrorKind::Disagreement)] {
        assert!(text.contains("layer \"parts\" (all_gather)"), "{text}");
        let (_, sides) = text.split_once("rank 0 has all_gather of float32").unwrap_or_else(|| panic!("{text}"));
        let (first, others) = sides.split_once(';').unwrap_or_else(|| panic!("{text}"));
        for (side, wire_type) in [(first, WireType::Float16), (others, WireType::Bfloat16)] {
            assert!(side.contains(&format!("among {n} ranks sent as {wire_type}")), "{text}");
        }
    }
    communicator.barrier()
}

#[test]
fn layers_that_differ_disagree() {
    for result in on_ranks(2, |communicator| differences_of_layers_are_errors(&communicator)) {
        result.expect("the errors are as expected");
    }
}

#[test]
fn eager_calls_that_differ_disagree() {
    let errors = on_ranks(2, |communicator| {
        let wire_type = (communicator.rank() == Rank(0)).then_some(WireType::Float16);
        error_of(communicator.with_wire_type(wire_type).all_reduce(&mut [1f32], SUM), ErrorKind::Disagreement)
    });
    for text in errors {
        let call = "calls all_reduce(sum) of 1 float32";
        assert!(text.contains(&format!("rank 0 {call} sent as float16; rank 1 {call}")), "{text}");
        assert_eq!(text.matches("sent as").count(), 1, "{text}");
    }
}

/// The bound that `WireType` documents, with what it says of float16 and bfloat16.
#[test]
fn errors_are_within_the_bound() {
    for n in 2..=8 {
        on_ranks(n, move |communicator| {
            const COUNT: usize = 5000;
            // Every rank draws all inputs. Magnitudes go from subnormal float16 to large sums.
            let mut random = Random(u64::from(n));
            let mut draw = || {
                let x = f32::from_bits(random.next() as u32 & 0x807f_ffff | (97 + random.below(40) as u32) << 23);
                if random.below(50) == 0 { 0.0 } else { x }
            };
            let inputs: Vec<Vec<f32>> = (0..n).map(|_| (0..COUNT).map(|_| draw()).collect()).collect();
            for (wire_type, u, t) in [(WireType::Float16, -11, -25), (WireType::Bfloat16, -8, -134)] {
                let mut x = inputs[communicator.rank().index()].clone();
                communicator.with_wire_type(wire_type).all_reduce(&mut x, SUM).expect("no error");
                let mut moved = 0;
                for (i, got) in x.iter().enumerate() {
                    let operands = inputs.iter().map(|input| f64::from(input[i]));
                    let (exact, magnitudes) = operands.fold((0.0, 0.0), |(sum, all), x| (sum + x, all + x.abs()));
                    let n = f64::from(n);
                    let bound = (2f64.powi(u) + n * 2f64.powi(-23)) * magnitudes + n * 2f64.powi(t);
                    let difference = (f64::from(*got) - exact).abs();
                    assert!(difference <= bound, "{wire_type} among {n}: {difference:e} is more than {bound:e}");
                    moved += usize::from(difference > bound / 8.0);
                }
                assert!(moved > COUNT / 20, "the bound is far from {wire_type}'s errors: {moved}");
            }
        });
    }
}

#[test]
fn large_magnitudes_overflow_and_one_rank_rounds_nothing() {
    let results = on_ranks(2, |communicator| {
        let mut x = [65519.0f32, 65520.0, -1e30, 3.3895e38, 3.4e38];
        let root = Rank(1);
        let mut y = x;
        communicator.with_wire_type(WireType::Float16).broadcast(&mut x, root).expect("no error");
        communicator.with_wire_type(WireType::Bfloat16).broadcast(&mut y, root).expect("no error");
        (x, y)
    });
    let infinity = f32::INFINITY;
    for (x, y) in results {
        assert_eq!(x, [65504.0, infinity, -infinity, infinity, infinity]);
        assert_eq!(y[..2], [65536.0; 2]);
        assert_eq!(y[3..], [f32::from_bits(0x7f7f_0000), infinity]);
    }
    let x = on_ranks(1, |communicator| {
        let mut x = [0.1f32, 1e30, f32::from_bits(0xffc1_2345)];
        communicator.with_wire_type(WireType::Float16).all_reduce(&mut x, SUM).expect("no error");
        x.map(f32::to_bits)
    });
    assert_eq!(x, [[0.1f32.to_bits(), 1e30f32.to_bits(), 0xffc1_2345]]);
}

/// A length with which a rank needs more stages than it has.
const LONG: usize = 1_500_007;

/// Calls on long host tensors, where some ranks come late: what each rank gives itself too is
/// rounded once, and no stage is written again before it was read.
pub fn make_long_calls(communicator: &Communicator) {
    let (n, rank) = (communicator.world_size(), communicator.rank());
    let given = |from: u32, i: usize| {
        let bits = (i as u32).wrapping_mul(2_654_435_761) ^ from << 13;
        f32::from_bits(bits & 0x807f_ffff | 0x3f80_0000)
    };
    let pause = |turn: u32| {
        if (turn + rank.0).is_multiple_of(n) {
            std::thread::sleep(std::time::Duration::from_millis(3));
        }
    };
    for (turn, wire_type) in WireType::ALL.into_iter().enumerate() {
        let narrow = communicator.with_wire_type(wire_type);
        let from = |from: u32, i: usize| rounded(wire_type, given(from, i));
        let sum = |i: usize| (1..n).fold(from(0, i), |sum, rank| sum + from(rank, i));
        let own = || (0..LONG).map(|i| given(rank.0, i)).collect::<Vec<f32>>();
        let is = |got: &[f32], want: &dyn Fn(usize) -> f32, what: &str| {
            let at = got.iter().enumerate().position(|(i, x)| x.to_bits() != want(i).to_bits());
            assert_eq!(at, None, "{what} sent as {wire_type} on rank {rank}");
        };
        let root = turn as u32 % n;
        for late in 0..n {
            pause(late);
            let mut x = own();
            narrow.reduce(&mut x, SUM, root).expect("reduce");
            match rank.0 == root {
                true => is(&x, &sum, "reduce"),
                false => is(&x, &|i| given(rank.0, i), "what reduce leaves"),
            }
            pause(late + 1);
            let mut x = own();
            narrow.all_reduce(&mut x, SUM).expect("all_reduce");
            is(&x, &sum, "all_reduce");
        }
        let mut x = own();
        narrow.broadcast(&mut x, root).expect("broadcast");
        is(&x, &|i| from(root, i), "broadcast");

        let block = LONG / n as usize;
        let mut x = vec![0f32; block];
        narrow.reduce_scatter(&own()[..block * n as usize], &mut x, SUM).expect("reduce_scatter");
        is(&x, &|i| sum(rank.index() * block + i), "reduce_scatter");
        let mut all = vec![0f32; block * n as usize];
        narrow.all_gather(&own()[..block], &mut all).expect("all_gather");
        is(&all, &|i| from((i / block) as u32, i % block), "all_gather");
        if communicator.space() != MemorySpace::Host {
            continue;
        }
        // In place, where a rank's own block is rounded where it lies.
        let mut all = vec![0f32; block * n as usize];
        all[rank.index() * block..][..block].copy_from_slice(&own()[..block]);
        let output = all.as_mut_ptr().cast::<u8>();
        let operands = RawOperands::Pair { input: output.wrapping_add(rank.index() * block * 4), output };
        // SAFETY: both are in the vector, which only the call uses until it is done.
        let work = unsafe {
            let stream = distcollective::Stream::inline();
            narrow.enqueue(Collective::AllGather, DataType::Float32, block, operands, &stream)
        };
        work.expect("the rules").wait().expect("all_gather");
        is(&all, &|i| from((i / block) as u32, i % block), "all_gather in place");
    }
}

#[test]
fn long_tensors_between_threads() {
    on_ranks(3, |communicator| make_long_calls(&communicator));
}

#[test]
fn long_tensors_between_processes() {
    for processes in [&[1, 1][..], &[1, 1, 1], &[2, 1]] {
        let results = wait_all(children(&[], "long wire types", processes), DEADLINE);
        for (number, (success, text)) in results.into_iter().enumerate() {
            assert!(success, "process {number} of {processes:?}: {text}");
        }
    }
}

/// The root of a broadcast in place takes from no rank. It rounds its buffer when it knows that the
/// calls match.
#[test]
fn a_root_keeps_its_elements_if_the_calls_differ() {
    for len in [1, 3000, 300_000] {
        on_ranks(2, move |communicator| {
            let mut x = vec![0.1f32; len];
            let result = if communicator.rank() == Rank(0) {
                communicator.with_wire_type(WireType::Float16).broadcast(&mut x, Rank(0))
            } else {
                // The root has come long before.
                std::thread::sleep(std::time::Duration::from_millis(50));
                communicator.broadcast(&mut x, Rank(0))
            };
            error_of(result, ErrorKind::Disagreement);
            assert!(x.iter().all(|x| *x == 0.1), "{len} elements");
        });
    }
}

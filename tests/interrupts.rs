//! The interrupt hook ends every kind of wait, on the thread that waits.
//!
//! The process has one hook for all tests. It does what the thread that runs it has asked for with
//! [`hooked`]; on other threads it lets waits go on.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, Once};
use std::time::Duration;

use distcollective::collective::Collective;
use distcollective::comm::Operands;
use distcollective::interrupt::{clear_interrupt_hook, set_interrupt_hook};
use distcollective::log::{LogLevel, set_log_handler};
use distcollective::stream::WorkError;
use distcollective::{
    Buffer, Communicator, DataType, Environment, Error, ErrorKind, Rank, ReduceOperation, Result, Stream, Work,
};

/// The deadline of a test, and of what it waits for where a hook does not come.
const DEADLINE: Duration = Duration::from_secs(10);

const SUM: Collective<Rank> = Collective::AllReduce { reduce_op: ReduceOperation::Sum };

type Hook = Box<dyn FnMut() -> ControlFlow<()>>;

thread_local! {
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
}

/// The names of all threads that have run the hook.
static NAMES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// What the library has logged.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let hook = || {
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            NAMES.lock().expect("no panic").push(name);
            // Not borrowed while it runs, because it may come here again.
            let Some(mut hook) = HOOK.take() else { return ControlFlow::Continue(()) };
            let result = hook();
            HOOK.set(Some(hook));
            result
        };
        set_interrupt_hook(hook).expect("no hook before");
        let keep = |_, text: &str| LOG.lock().expect("no panic").push(text.to_owned());
        set_log_handler(LogLevel::Debug, keep).expect("no handler before");
    });
}

/// Makes calls on a thread of its own whose hook is `hook`, and gives what they return.
fn hooked<T: Send + 'static>(
    hook: impl FnMut() -> ControlFlow<()> + Send + 'static,
    calls: impl FnOnce() -> T + Send + 'static,
) -> T {
    install();
    within_the_deadline(move || {
        HOOK.set(Some(Box::new(hook)));
        calls()
    })
}

/// Runs `calls` on a thread, which has to end by the deadline.
fn within_the_deadline<T: Send + 'static>(calls: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, result) = channel();
    let thread = std::thread::spawn(move || sender.send(calls()).expect("the test listens"));
    let result = result.recv_timeout(DEADLINE);
    match result {
        Ok(result) => result,
        Err(_) if thread.is_finished() => std::panic::resume_unwind(thread.join().expect_err("it sent nothing")),
        Err(_) => panic!("it did not end within {DEADLINE:?}"),
    }
}

/// A hook that lets the wait go on once, and ends it the second time.
fn second_time() -> impl FnMut() -> ControlFlow<()> + Send + 'static {
    let mut count = 0;
    move || {
        count += 1;
        if count == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Two ranks, whose timeout is beyond the tests' deadline.
fn two_ranks() -> [Communicator; 2] {
    Communicator::builder().in_process(2).expect("ranks").try_into().expect("two")
}

fn operands() -> Operands {
    Operands::in_place(Buffer::from_slice(&[1i32], [1]).expect("a buffer"))
}

/// Enqueues a sum.
fn sum(communicator: &Communicator, stream: &Stream) -> Work<Operands> {
    communicator.collective_async(SUM, operands(), stream).expect("it fits")
}

fn first(operands: &Operands) -> i32 {
    operands.output.as_ref().expect("a buffer").as_slice::<i32>().expect("of the host")[0]
}

/// A collective call.
type Call = fn(&Communicator) -> Result<()>;

const CALLS: [(&str, Call); 6] = [
    ("barrier (collective 1)", Communicator::barrier),
    ("all_reduce(sum) of 1 float32 (collective 1)", |c| c.all_reduce(&mut [1f32], ReduceOperation::Sum)),
    ("split of 1 rank", |c| c.split(Some(0), 0).map(drop)),
    ("new_group", |c| c.new_group([0, 1]).map(drop)),
    ("allocate", |c| c.allocate(DataType::Int8, [5]).map(drop)),
    ("finalize (collective 1)", |c| c.clone().finalize()),
];

/// The communicator ends, also for the peer, which learns the reason.
#[test]
fn a_blocking_call_ends_the_communicator() {
    for (name, call) in CALLS {
        let [rank, peer] = two_ranks();
        let (error, again) = hooked(second_time(), move || (call(&rank).expect_err(name), rank.barrier()));
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
        let text = error.to_string();
        assert!(text.starts_with("rank 0: "), "{name}: {text}");
        let reason = "interrupted by the program while it waited for rank 1";
        // A split and an allocation are no collectives of the program.
        let counts = ["(collective 1)", "(before the first collective)"];
        assert!(counts.iter().any(|count| text.ends_with(&format!("{count}: {reason}"))), "{name}: {text}");
        assert_eq!(again.expect_err("it has ended").kind(), ErrorKind::Interrupted);
        let told = within_the_deadline(move || peer.barrier()).expect_err("rank 0 has ended it");
        assert_eq!(told.kind(), ErrorKind::Aborted);
        let text = told.to_string();
        assert!(text.starts_with("rank 1: rank 0 ended the communicator: ") && text.ends_with(reason), "{text}");
    }
}

/// Messages whose other rank does not come, with the text that the error has for each.
#[test]
fn a_blocking_message_ends_the_communicator() {
    type Call = fn(&Communicator) -> Result<()>;
    let calls: [(&str, Call); 3] = [
        ("recv: recv of 1 float32 from rank 1 with tag 3", |c| c.recv(&mut [0f32], 1, 3).map(drop)),
        ("recv: recv of 1 float32 from any rank with tag 0", |c| c.recv(&mut [0f32], None, 0).map(drop)),
        ("send: send of 5000 float32 to rank 1 with tag 0", |c| c.send(&[0f32; 5000], 1, 0)),
    ];
    for (name, call) in calls {
        let [rank, peer] = two_ranks();
        let error = hooked(second_time(), move || call(&rank).expect_err(name));
        assert_eq!(error.kind(), ErrorKind::Interrupted);
        assert_eq!(error.to_string(), format!("rank 0: {name}: interrupted by the program while it waited"));
        let told = within_the_deadline(move || peer.recv(&mut [0f32], 0, 0)).expect_err("rank 0 has ended it");
        assert_eq!(told.kind(), ErrorKind::Aborted);
    }
}

/// The message goes on; a later wait succeeds. The progress thread runs no hook.
#[test]
fn a_wait_for_a_message_gives_it_back() {
    let [rank, peer] = two_ranks();
    let work = hooked(second_time(), move || {
        let receiving = rank.irecv(vec![0i32], 1, 0).expect("right arguments");
        let WorkError::Interrupted(work) = receiving.wait().expect_err("the peer has not sent") else {
            panic!("the hook ends the wait")
        };
        rank.check().expect("it works");
        (work, rank)
    });
    let received = within_the_deadline(move || {
        peer.send(&[7i32], 0, 0).expect("there is room");
        work.0.wait().expect("a message").messages.remove(0)
    });
    assert_eq!(received.buffer.as_slice::<i32>().expect("of the host"), [7]);
}

/// One rank alone waits for no other, so only the step between two pieces looks at the hook.
#[test]
fn a_long_move_ends_between_its_pieces() {
    let communicator = Communicator::builder().in_process(1).expect("a rank").remove(0);
    let error = hooked(
        || ControlFlow::Break(()),
        move || {
            let (input, mut output) = (vec![1u8; 8 << 20], vec![0u8; 8 << 20]);
            let sum = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
            communicator.collective(sum, Some(&input), Some(&mut output))
        },
    );
    assert_eq!(
        error.expect_err("it is interrupted").to_string(),
        "rank 0: all_reduce(sum) of 8388608 uint8 (collective 1): interrupted by the program while it moved the elements"
    );
}

#[test]
fn a_call_that_waits_for_its_turn_ends() {
    let [rank, peer] = two_ranks();
    let stream = Stream::worker().expect("a thread");
    let (error, work) = hooked(second_time(), move || {
        let work = sum(&rank, &stream);
        (rank.barrier().expect_err("the sum has not ended"), work)
    });
    assert_eq!(error.to_string(), "rank 0: barrier: interrupted by the program while an earlier call of this rank ran");
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    let told = within_the_deadline(move || peer.barrier()).expect_err("rank 0 has ended it");
    assert!(told.to_string().ends_with(&error.to_string()), "{told}");
    let ended = within_the_deadline(move || work.wait()).expect_err("the communicator has ended");
    assert!(matches!(ended, WorkError::Failed(_)), "{ended}");
}

/// The work goes on; a later wait succeeds.
#[test]
fn a_wait_for_work_gives_it_back() {
    let [rank, peer] = two_ranks();
    let stream = Stream::worker().expect("a thread");
    let work = hooked(second_time(), move || {
        let interrupted = sum(&rank, &stream).wait().expect_err("the peer has not come");
        let text = "interrupted by the program while the work had not ended; the work goes on";
        assert_eq!(interrupted.to_string(), text);
        let WorkError::Interrupted(work) = interrupted else { panic!("{interrupted}") };
        // What was not waited for is dropped by `?`.
        let error = Error::from(WorkError::Interrupted(Box::new(sum(&rank, &stream))));
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Interrupted, text));
        rank.check().expect("it works");
        work
    });
    let sums = within_the_deadline(move || {
        let [first, second] = [(); 2].map(|()| sum(&peer, &Stream::inline()));
        (first.wait(), second.wait(), work.wait())
    });
    assert_eq!(first(&sums.0.expect("a sum")), 2);
    assert_eq!(first(&sums.1.expect("a sum")), 2);
    assert_eq!(first(&sums.2.expect("a sum")), 2);
}

#[test]
fn a_wait_with_a_timeout_gives_the_work_back() {
    let [rank, peer] = two_ranks();
    let stream = Stream::worker().expect("a thread");
    let work = sum(&rank, &stream);
    let work = work.wait_timeout(Duration::ZERO).expect_err("the peer has not come");
    let work = work.wait_timeout(Duration::from_millis(1)).expect_err("the peer has not come");
    // The hook ends it long before the timeout.
    let work = hooked(second_time(), move || work.wait_timeout(10 * DEADLINE).err()).expect("the peer has not come");
    let (sums, failed) = within_the_deadline(move || {
        sum(&peer, &Stream::inline()).wait().expect("a sum");
        let sums = work.wait_timeout(DEADLINE).expect("in time").expect("a sum");
        peer.abort("the test").expect("no fork");
        (sums, sum(&rank, &stream).wait_timeout(DEADLINE).expect("in time"))
    });
    assert_eq!(first(&sums), 2);
    assert_eq!(failed.expect_err("it was aborted").error.kind(), ErrorKind::Aborted);
}

#[test]
fn a_wait_for_a_stream_ends_and_its_work_goes_on() {
    let [rank, peer] = two_ranks();
    let stream = Stream::worker().expect("a thread");
    let work = sum(&rank, &stream);
    let waiting = stream.clone();
    let error = hooked(second_time(), move || waiting.synchronize()).expect_err("the peer has not come");
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    assert_eq!(error.to_string(), "interrupted by the program while the stream's work had not ended");
    within_the_deadline(move || {
        sum(&peer, &Stream::inline()).wait().expect("a sum");
        stream.synchronize().expect("it ends");
        assert_eq!(first(&work.wait().expect("a sum")), 2);
    });
}

/// A name that no other job on this machine has.
fn job(name: &str) -> String {
    static JOBS: AtomicUsize = AtomicUsize::new(0);
    format!("interrupts-{name}-{}-{}", std::process::id(), JOBS.fetch_add(1, Ordering::Relaxed))
}

fn connect(job: &str, rank: u32, world_size: u32) -> Result<Communicator> {
    Communicator::builder().job(job).world_size(world_size).rank(rank).connect()
}

#[test]
fn a_bootstrap_ends_while_ranks_are_missing() {
    for (rank, reason) in [
        (0, "interrupted by the program while rank 1 of 2 had not come"),
        (1, "interrupted by the program while rank 0 had not come"),
    ] {
        let job = job("missing");
        let error = {
            let job = job.clone();
            hooked(second_time(), move || connect(&job, rank, 2)).expect_err("the other rank does not come")
        };
        assert_eq!(error.kind(), ErrorKind::Interrupted);
        assert_eq!(error.to_string(), format!("job {job:?}: {reason}"));
    }
}

/// Ranks 0 and 1 have met, and rank 2 is missing. When one of the two is interrupted, the other one
/// fails at once.
#[test]
fn an_interrupted_bootstrap_ends_for_ranks_that_have_met() {
    for interrupted in [0, 1] {
        let job = job("met");
        let (sender, errors) = channel();
        install();
        for rank in [0, 1] {
            let (job, sender) = (job.clone(), sender.clone());
            std::thread::spawn(move || {
                let came = format!("job {job:?}: rank 1 came");
                if rank == interrupted {
                    let have_met = move || LOG.lock().expect("no panic").contains(&came);
                    let hook = move || if have_met() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
                    HOOK.set(Some(Box::new(hook)));
                }
                sender.send((rank, connect(&job, rank, 3))).expect("the test listens");
            });
        }
        drop(sender);
        let (other, text) = within_the_deadline(move || both(&errors, interrupted));
        assert_eq!(other, 1 - interrupted);
        let expected = match interrupted {
            0 => "rank 0 ended the bootstrap: interrupted by the program while rank 2 of 3 had not come",
            _ => "rank 1 ended the start of the job: interrupted by the program while not all ranks had come",
        };
        assert_eq!(text, format!("job {job:?}: {expected}"));
    }
}

/// The rank that was not interrupted, and the text of its error.
fn both(errors: &Receiver<(u32, Result<Communicator>)>, interrupted: u32) -> (u32, String) {
    let mut other = None;
    for (rank, result) in errors {
        let error = result.expect_err("rank 2 does not come");
        match rank == interrupted {
            true => assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}"),
            false => {
                assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
                other = Some((rank, error.to_string()));
            }
        }
    }
    other.expect("two ranks")
}

#[test]
fn an_environment_ends_its_initialization() {
    let environment = || Environment::builder().rank(1).world_size(2).host("127.0.0.3").port(1);
    let error = hooked(second_time(), move || environment().initialize()).expect_err("rank 0 does not come");
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    let text = error.to_string();
    assert!(text.starts_with("rank 1: job ") && text.ends_with("by the program while rank 0 had not come"), "{text}");
    assert!(!Environment::is_initialized());
}

/// The hook may query and abort. What would wait is refused.
#[test]
fn a_call_of_the_hook_does_not_wait() {
    let [rank, _peer] = two_ranks();
    let (sender, refused) = channel();
    let inside = rank.clone();
    let stream = Stream::worker().expect("a thread");
    let pending = Mutex::new(Some(sum(&rank, &stream)));
    let hook = move || {
        let inline = sum(&inside, &Stream::inline()).wait().map(drop).map_err(Error::from);
        let waited = pending.lock().expect("no panic").as_ref().map_or(Ok(()), Work::check_wait);
        let results = [
            inside.barrier(),
            inside.send(&[1i32], 1, 0),
            inside.irecv(vec![0i32], 1, 0).map(drop).map_err(Error::from),
            inside.split(None, 0).map(drop),
            inline,
            waited,
            stream.synchronize(),
            Communicator::builder().in_process(1).map(drop),
            connect("nothing", 0, 2).map(drop),
            Environment::builder().rank(0).world_size(2).initialize().map(drop),
            set_interrupt_hook(|| ControlFlow::Continue(())),
            clear_interrupt_hook(),
        ];
        sender.send((results, inside.check())).expect("the test listens");
        inside.abort("the hook has had enough").expect("no fork");
        ControlFlow::Continue(())
    };
    let error = hooked(hook, move || rank.barrier()).expect_err("it is aborted");
    assert_eq!(error.to_string(), "rank 0: rank 0 ended the communicator: the hook has had enough");
    let (results, check) = refused.recv().expect("the hook ran");
    check.expect("it has not ended");
    for (i, result) in results.into_iter().enumerate() {
        let error = result.expect_err("it would wait");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{i}: {error}");
        assert!(error.to_string().contains("the interrupt hook cannot "), "{i}: {error}");
    }
}

#[test]
fn a_panic_of_the_hook_ends_the_wait() {
    let [rank, _peer] = two_ranks();
    let error = hooked(|| panic!("on purpose"), move || rank.barrier()).expect_err("it is interrupted");
    assert_eq!(error.kind(), ErrorKind::Interrupted);
}

/// A thread of the library waits for as long as the hook of the thread beside it is run three
/// times. It runs none.
#[test]
fn threads_of_the_library_do_not_run_the_hook() {
    let [rank, peer] = two_ranks();
    let stream = Stream::worker().expect("a thread");
    let mut count = 0;
    let hook = move || {
        count += 1;
        if count == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    hooked(hook, move || sum(&rank, &stream).wait()).expect_err("the peer has not come");
    drop(peer);
    let names = NAMES.lock().expect("no panic");
    assert!(!names.is_empty() && !names.iter().any(|name| name.starts_with("dcl-")), "{names:?}");
}

//! How long a wait lasts: later work on the stream, captures, the end of the process.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use distcollective::collective::Collective;
use distcollective::comm::Operands;
use distcollective::network::{Plugin, PluginCall};
use distcollective::{
    Buffer, Communicator, DataType, DistCollective, Engine, Error, ErrorKind, Network, Rank, ReduceOperation, Result,
    Stream, Work,
};

use super::captures::{Driver, free_what_was_dropped};
use super::libraries::nccl_calls;
use super::{Child, TIMEOUT, communicators, cuda_stream, needs_test_libraries, on_gpus};
use crate::ranks::{DEADLINE, on_communicators};

/// A timeout that the work at hand may exceed.
const SHORT: Duration = Duration::from_millis(100);

/// Longer than an event may take that was recorded at a late question.
const LATE: Duration = Duration::from_millis(1500);

/// How long a thread that must not return is watched. If it returned later, the test would miss the
/// fault, and never fail without one.
const WATCHED: Duration = Duration::from_millis(300);

/// Plays a role in a child.
pub fn play(name: &str, ranks: u32) {
    match name {
        "late question" => {
            let was_asked = Arc::new(AtomicBool::new(false));
            on_gpus(ranks, move |communicator| late_question(&communicator, &was_asked));
        }
        "earlier work" => {
            let was_asked = Arc::new(AtomicBool::new(false));
            on_gpus(ranks, move |communicator| earlier_work(&communicator, &was_asked));
        }
        "capture" => capture(ranks),
        "exit" => on_gpus(ranks, |communicator| {
            drop(communicator);
            Ok(())
        }),
        _ => panic!("{name} is no role"),
    }
}

/// A sum of which no event is recorded before somebody asks.
fn sum(communicator: &Communicator, stream: &Stream) -> Result<Work<Operands>> {
    let buffer = Buffer::zeroed_in(communicator.space(), DataType::Float32, [4])?;
    // A release that comes later would record one.
    free_what_was_dropped(communicator);
    let sum = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
    Ok(communicator.collective_async(sum, Operands::in_place(buffer), stream)?)
}

/// A plugin that asks whether other work is done. It writes nothing.
struct Asking {
    about: Arc<Mutex<Option<Work<Operands>>>>,
    was_asked: Arc<AtomicBool>,
}

impl fmt::Debug for Asking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Asking")
    }
}

impl Plugin for Asking {
    fn type_name(&self) -> &str {
        "asking"
    }

    fn enqueue(&self, _call: &mut PluginCall<'_>) -> Result<()> {
        if let Some(work) = &*self.about.lock().expect("no panic") {
            assert!(!work.is_done(), "the event comes after the sum of this run, for which a rank is late");
            self.was_asked.store(true, Ordering::SeqCst);
        }
        Ok(())
    }

    fn runs_on_cuda(&self) -> bool {
        true
    }
}

/// A sum, and then the plugin.
fn sum_and_question(ranks: u32, plugin: Asking) -> Result<Engine> {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [4])?;
    let sum = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(ranks), x)?;
    let y = network.add_plugin("asking", plugin, &[sum])?;
    network.mark_output(y, "y")?;
    network.build()
}

/// Work with a short deadline is asked about while a later run is being enqueued, so its event
/// covers a part of that run, which may take longer.
fn late_question(communicator: &Communicator, was_asked: &Arc<AtomicBool>) -> Result<()> {
    let stream = cuda_stream(communicator)?;
    let about = Arc::new(Mutex::new(None));
    let plugin = Asking { about: Arc::clone(&about), was_asked: Arc::clone(was_asked) };
    let mut context = sum_and_question(communicator.world_size(), plugin)?.create_execution_context()?;
    context.set_communicator(communicator)?;
    let mut bindings = context.create_bindings();
    for name in ["x", "y"] {
        let buffer = Buffer::zeroed_in(communicator.space(), DataType::Float32, [4])?;
        if name == "x" { bindings.bind_input(name, buffer)? } else { bindings.bind_output(name, buffer)? }
    }
    let work = sum(&communicator.with_timeout(SHORT), &stream)?;
    if communicator.rank() != Rank(0) {
        work.wait()?;
        while !was_asked.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        std::thread::sleep(LATE);
        context.enqueue(bindings, &stream)?.wait()?;
        return Ok(());
    }
    *about.lock().expect("no panic") = Some(work);
    let run = context.enqueue(bindings, &stream)?;
    let work = about.lock().expect("no panic").take().expect("the work");
    work.wait()?;
    run.wait()?;
    Ok(())
}

/// Work that is done stays done while later work waits for a rank, although both were asked about.
fn earlier_work(communicator: &Communicator, was_asked: &AtomicBool) -> Result<()> {
    let stream = cuda_stream(communicator)?;
    let earlier = sum(communicator, &stream)?;
    while !earlier.is_done() {
        std::thread::yield_now();
    }
    if communicator.rank() == Rank(0) {
        let later = sum(communicator, &stream)?;
        assert!(!later.is_done(), "a rank has not come");
        assert!(earlier.is_done());
        was_asked.store(true, Ordering::SeqCst);
        later.wait()?;
    } else {
        while !was_asked.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        sum(communicator, &stream)?.wait()?;
    }
    earlier.wait()?;
    Ok(())
}

/// A rank waits in vain for work on a stream which is captured meanwhile. It gets its buffer back
/// when the work does not use it any more, which only the capture's end shows.
fn capture(ranks: u32) {
    let results = on_communicators(DEADLINE, communicators(ranks), |communicator| -> Result<Option<Error>> {
        if communicator.rank() != Rank(0) {
            while communicator.check().is_ok() {
                std::thread::yield_now();
            }
            return Ok(None);
        }
        let stream = cuda_stream(&communicator)?;
        let driver = Driver::on(&communicator);
        let work = sum(&communicator.with_timeout(SHORT), &stream)?;
        driver.begin_capture(&stream);
        let (sender, returned) = mpsc::channel();
        std::thread::spawn(move || sender.send(work.wait().map(drop)));
        let end = Instant::now() + TIMEOUT;
        while nccl_calls("ncclCommAbort") == 0 {
            assert!(Instant::now() < end, "the communicator is not aborted");
            std::thread::yield_now();
        }
        assert!(returned.recv_timeout(WATCHED).is_err(), "the buffer is handed back during the capture");
        driver.end_capture(&stream);
        let waited = returned.recv_timeout(TIMEOUT).expect("the wait ends");
        Ok(waited.err().map(Error::from))
    });
    let errors: Vec<_> = results.into_iter().filter_map(|result| result.expect("no other error")).collect();
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].kind(), ErrorKind::DeadlineExceeded, "{}", errors[0]);
}

#[test]
fn a_late_question_covers_the_deadline_of_what_is_being_enqueued() {
    if needs_test_libraries() {
        return;
    }
    Child::new("waits late question", 2).passes();
}

#[test]
fn work_that_is_done_stays_done() {
    if needs_test_libraries() {
        return;
    }
    Child::new("waits earlier work", 2).passes();
}

#[test]
fn a_buffer_is_not_handed_back_while_a_capture_hides_whether_it_is_used() {
    if needs_test_libraries() {
        return;
    }
    Child::new("waits capture", 2).passes();
}

/// The exit handler of the driver takes its time, so it would find the library's threads inside.
#[test]
fn the_process_ends_when_no_thread_is_inside_nccl() {
    if needs_test_libraries() {
        return;
    }
    let settings = [("FAKE_NCCL", "in_progress=ncclCommFinalize:300"), ("FAKE_CUDA_EXIT_MS", "1000")];
    Child::new("waits exit", 2).with(&settings).passes();
}

#[test]
fn the_process_ends_although_a_thread_does_not_come_out_of_nccl() {
    if needs_test_libraries() {
        return;
    }
    Child::new("waits exit", 2).with(&[("FAKE_NCCL", "stall=ncclCommFinalize:1:0")]).passes();
}

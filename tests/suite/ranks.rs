//! Ranks to test with. Every run of several ranks has a deadline.

use std::any::Any;
use std::io::{Read, Write};
use std::process::{Child, Command};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use distcollective::{Communicator, Result};

/// The deadline of a test with several ranks.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// A deadline, longer if `DCL_TEST_PATIENCE` says so.
pub fn patient(deadline: Duration) -> Duration {
    deadline * test_support::patience()
}

/// Brings each of some ranks the bytes of all, for `CommunicatorBuilder::connect_by`.
pub struct Exchange {
    barrier: Barrier,
    told: Mutex<Vec<Vec<u8>>>,
}

impl Exchange {
    pub fn new(ranks: usize) -> Self {
        Exchange { barrier: Barrier::new(ranks), told: Mutex::new(vec![Vec::new(); ranks]) }
    }

    pub fn bring(&self, rank: usize, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.told.lock().expect("no panic")[rank] = own.to_vec();
        self.barrier.wait();
        let all = self.told.lock().expect("no panic").clone();
        self.barrier.wait();
        Ok(all)
    }
}

/// Runs `body` on `n` ranks that are threads, and gives what each returns, in rank order.
///
/// # Panics
///
/// A rank panicked, or they did not all finish within the deadline.
pub fn on_ranks<T: Send + 'static>(n: u32, body: impl Fn(Communicator) -> T + Send + Sync + 'static) -> Vec<T> {
    on_ranks_within(DEADLINE, n, body)
}

/// [`on_ranks`] with another deadline.
pub fn on_ranks_within<T: Send + 'static>(
    deadline: Duration,
    n: u32,
    body: impl Fn(Communicator) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let communicators = Communicator::builder().in_process(n).expect("n is not zero");
    on_communicators(deadline, communicators, body)
}

/// [`on_ranks_within`] on communicators that are there.
pub fn on_communicators<T: Send + 'static>(
    deadline: Duration,
    communicators: Vec<Communicator>,
    body: impl Fn(Communicator) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let mut all = Vec::with_capacity(communicators.len());
    for result in run(deadline, communicators, Arc::new(move |communicator| Box::new(body(communicator)))) {
        all.push(*result.downcast().expect("what the body returns"));
    }
    all
}

/// What runs on each rank, of one type for all tests, so that threads are compiled once.
type Body = dyn Fn(Communicator) -> Box<dyn Any + Send> + Send + Sync;

fn run(deadline: Duration, communicators: Vec<Communicator>, body: Arc<Body>) -> Vec<Box<dyn Any + Send>> {
    let deadline = patient(deadline);
    let n = communicators.len();
    let (sender, results) = mpsc::channel();
    let threads: Vec<_> = communicators
        .into_iter()
        .enumerate()
        .map(|(index, communicator)| {
            let (sender, body) = (sender.clone(), body.clone());
            std::thread::spawn(move || {
                let result = body(communicator.with_timeout(deadline));
                let _ = sender.send((index, result));
            })
        })
        .collect();
    drop((sender, body));
    let end = Instant::now() + deadline;
    let mut all: Vec<_> = (0..n).map(|_| None).collect();
    loop {
        match results.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok((index, result)) => all[index] = Some(result),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                let late: Vec<usize> = (0..all.len()).filter(|&r| all[r].is_none()).collect();
                panic!("ranks {late:?} of {n} did not finish within {deadline:?}");
            }
        }
    }
    for thread in threads {
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
    all.into_iter().map(|result| result.expect("every thread sent its result")).collect()
}

/// Waits for children, all of which must end within the deadline, and gives what each wrote and
/// whether it succeeded.
pub fn wait_all(children: Vec<Child>, deadline: Duration) -> Vec<(bool, String)> {
    let deadline = patient(deadline);
    let end = Instant::now() + deadline;
    let readers: Vec<_> = children
        .into_iter()
        .map(|mut child| {
            let (mut stdout, mut stderr) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
            let errors = std::thread::spawn(move || {
                let mut text = String::new();
                stderr.read_to_string(&mut text).map(|_| text)
            });
            let output = std::thread::spawn(move || {
                let mut text = String::new();
                stdout.read_to_string(&mut text).map(|_| text)
            });
            (child, output, errors)
        })
        .collect();
    let mut results = Vec::new();
    let mut late = false;
    let mut stacks = String::new();
    for (mut child, output, errors) in readers {
        let status = loop {
            match child.try_wait().expect("a child") {
                Some(status) => break status,
                None if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
                None => {
                    late = true;
                    stacks += &stacks_of(child.id());
                    child.kill().expect("a child");
                }
            }
        };
        let text =
            |thread: std::thread::JoinHandle<std::io::Result<String>>| thread.join().expect("no panic").expect("text");
        results.push((status.success(), text(output) + &text(errors)));
    }
    assert!(!late, "children did not end within {deadline:?}: {results:#?}\n{stacks}");
    results
}

/// Where the threads and kernels of a process are, as the debugger `DCL_TEST_DEBUGGER` says, which
/// `tools/gpu-check` sets.
fn stacks_of(process: u32) -> String {
    let Some(debugger) = std::env::var_os("DCL_TEST_DEBUGGER") else { return String::new() };
    let questions = ["-ex", "info cuda kernels", "-ex", "thread apply all backtrace"];
    let output = Command::new(debugger).args(["-batch", "-nx", "-p", &process.to_string()]).args(questions).output();
    output.map_or_else(|error| error.to_string(), |output| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a program can start another one here, in a namespace of its own perhaps. In CI it has
/// to.
pub fn can_start(program: &[&str]) -> bool {
    let output = Command::new(program[0]).args(&program[1..]).arg("true").output();
    let reason = match output {
        Ok(output) if output.status.success() => return true,
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    assert!(std::env::var_os("DCL_REQUIRE_PEERS").is_none(), "{program:?} does not work here: {reason}");
    println!("skipped: {program:?} needs to be root, or is not installed: {reason}");
    false
}

/// What the library logs on this thread while `body` runs.
pub fn logged(body: impl FnOnce()) -> String {
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("one thread").write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
    tracing::subscriber::with_default(subscriber, body);
    let bytes = log.0.lock().expect("one thread").clone();
    String::from_utf8(bytes).expect("text")
}

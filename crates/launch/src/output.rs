//! Forwards what ranks write.

use std::any::Any;
use std::io::Result;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use distcollective::{Error as JobError, Rank};
use rustix::io::Errno;

use crate::events::{EventFlags, Events, OTHER, event_counter, wake};
use crate::lock;

/// Takes what ranks write to one stream. A thread of the job calls it.
///
/// If it returns an error or panics, the job gives no more text to its outputs and ends the ranks:
/// they get SIGTERM, and SIGKILL after 4 s. [`Job::run`](super::Job::run) then returns an error,
/// whose source is the output's.
pub trait RankOutput: Send {
    /// Takes text of a rank, in the order in which the rank wrote it.
    ///
    /// The text is one or more whole lines, each with its `\n` or `\r`. Text without a line's end
    /// is an unfinished line: the rank paused for 50 ms, or the line is longer than 64 KiB. The
    /// rest of that line follows.
    ///
    /// # Errors
    ///
    /// The text cannot be passed on, for instance because a disk is full.
    fn write(&mut self, rank: Rank, text: &[u8]) -> Result<()>;

    /// The rank and its children have closed the stream. It may end in an unfinished line.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    fn closed(&mut self, rank: Rank) -> Result<()> {
        let _ = rank;
        Ok(())
    }
}

/// An output that several runs of a job use.
pub(super) type SharedOutput = Arc<Mutex<dyn RankOutput>>;

/// The longest text that is held back until its line ends.
const LONGEST_LINE: usize = 64 << 10;

/// An unfinished line is passed on after this long.
const PAUSE: Duration = Duration::from_millis(50);

/// After all ranks have ended, the time without output after which a process that still holds a
/// pipe open is left alone.
const QUIET: Duration = Duration::from_secs(1);

/// What the forwarding threads and the job share.
pub(super) struct Progress {
    /// For each rank, how many of its pipes are open.
    open_pipes: Vec<AtomicUsize>,
    /// How many threads have not passed on all that the ranks themselves wrote.
    owing: AtomicUsize,
    /// How many threads have not ended.
    running: AtomicUsize,
    /// The first error of an output. After it no output gets anything.
    failure: OnceLock<JobError>,
    /// The job no longer waits for the threads.
    abandoned: AtomicBool,
    /// Wakes the job.
    news: Arc<OwnedFd>,
    /// Wakes the threads: all ranks have ended, or the job no longer waits.
    ranks_ended: OwnedFd,
}

/// The threads that forward the output of a job's ranks: one for each stream.
pub(super) struct Forwarding(Arc<Progress>);

impl Forwarding {
    /// `news` wakes the job when a thread gets further.
    pub(super) fn new(rank_count: u32, news: Arc<OwnedFd>) -> Result<Self> {
        let progress = Progress {
            open_pipes: (0..rank_count).map(|_| AtomicUsize::new(0)).collect(),
            owing: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            failure: OnceLock::new(),
            abandoned: AtomicBool::new(false),
            news,
            ranks_ended: event_counter()?,
        };
        Ok(Forwarding(Arc::new(progress)))
    }

    /// Starts a thread that gives one stream of all ranks to `output`.
    pub(super) fn start(&self, pipes: Vec<(Rank, OwnedFd)>, output: SharedOutput) -> Result<()> {
        for (rank, _) in &pipes {
            self.0.open_pipes[rank.index()].fetch_add(1, Ordering::Relaxed);
        }
        let events = Events::new()?;
        events.add_other(&self.0.ranks_ended)?;
        for (number, (_, fd)) in (0..).zip(&pipes) {
            events.add(number, fd, EventFlags::IN)?;
        }
        let pipe = |(rank, fd)| Pipe { rank, fd: Some(fd), text: Vec::new(), since: None, owed: 0 };
        let sink = Sink { output, progress: Arc::clone(&self.0) };
        let stream = OutputStream { events, open: pipes.len(), pipes: pipes.into_iter().map(pipe).collect(), sink };
        self.0.owing.fetch_add(1, Ordering::Relaxed);
        self.0.running.fetch_add(1, Ordering::Relaxed);
        std::thread::Builder::new().name("dcl-output".to_owned()).spawn(move || stream.run()).map(drop)
    }

    /// Whether every process has closed the rank's output.
    pub(super) fn has_closed(&self, rank: usize) -> bool {
        self.0.open_pipes[rank].load(Ordering::Acquire) == 0
    }

    /// Tells the threads that all ranks have ended.
    pub(super) fn ranks_have_ended(&self) {
        wake(&self.0.ranks_ended);
    }

    /// Whether all that the ranks wrote before they ended is passed on.
    pub(super) fn is_paid(&self) -> bool {
        self.0.owing.load(Ordering::Acquire) == 0
    }

    /// Whether all pipes are closed, or held open by quiet processes.
    pub(super) fn is_finished(&self) -> bool {
        self.0.running.load(Ordering::Acquire) == 0
    }

    /// The error of an output, if one has failed. What ranks write after it is lost.
    pub(super) fn failure(&self) -> Option<&JobError> {
        self.0.failure.get()
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        self.0.abandoned.store(true, Ordering::Release);
        self.ranks_have_ended();
    }
}

/// A rank's end of a stream.
struct Pipe {
    rank: Rank,
    /// `None` once it is closed.
    fd: Option<OwnedFd>,
    /// An unfinished line.
    text: Vec<u8>,
    /// When its last bytes came.
    since: Option<Instant>,
    /// The bytes that were in the pipe when all ranks had ended and have not been read yet.
    owed: u64,
}

/// The text of a panic.
fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// One stream of all ranks.
struct OutputStream {
    events: Events,
    pipes: Vec<Pipe>,
    open: usize,
    sink: Sink,
}

/// Where the text of one stream goes.
struct Sink {
    output: SharedOutput,
    progress: Arc<Progress>,
}

impl Sink {
    /// Gives the output text, or tells it of a closed stream, unless an output has failed.
    fn give(&self, give: impl FnOnce(&mut dyn RankOutput) -> Result<()>) {
        if self.progress.failure.get().is_some() {
            return;
        }
        // After a panic, this run does not use the output again. A later one may, as it was left.
        let failure = match catch_unwind(AssertUnwindSafe(|| give(&mut *lock(&self.output)))) {
            Ok(Ok(())) => return,
            Ok(Err(e)) => {
                error!(System, "the ranks were ended because what they write cannot be passed on: {e}").with_source(e)
            }
            Err(panic) => {
                error!(System, "the ranks were ended because a RankOutput panicked: {}", message_of(&*panic))
            }
        };
        self.progress.failure.get_or_init(|| failure);
        self.tell();
    }

    /// Wakes the job.
    fn tell(&self) {
        wake(&self.progress.news);
    }
}

impl OutputStream {
    fn run(mut self) {
        // An error of the kernel's queue would leave pipes unread: then they are closed, so that no
        // rank waits for a reader.
        let _ = self.forward();
        self.pipes.clear();
        self.sink.progress.running.fetch_sub(1, Ordering::Release);
        self.sink.tell();
    }

    fn forward(&mut self) -> Result<()> {
        let (mut ranks_ended, mut is_paid) = (false, false);
        while !(self.sink.progress.abandoned.load(Ordering::Acquire) || (self.open == 0 && is_paid)) {
            let timeout =
                if self.pipes.iter().any(|pipe| pipe.since.is_some()) { Some(PAUSE) } else { is_paid.then_some(QUIET) };
            match self.events.next(timeout)? {
                None if is_paid && timeout == Some(QUIET) => break,
                None => {}
                Some(OTHER) => {
                    ranks_ended = true;
                    self.pipes.iter_mut().for_each(Pipe::owe);
                }
                Some(number) => self.read(number as usize),
            }
            let now = Instant::now();
            for pipe in &mut self.pipes {
                if pipe.since.is_some_and(|since| now.duration_since(since) >= PAUSE) {
                    pipe.pass_on(&self.sink);
                }
            }
            if ranks_ended && !is_paid && self.pipes.iter().all(|pipe| pipe.owed == 0) {
                is_paid = true;
                self.pipes.iter_mut().for_each(|pipe| pipe.pass_on(&self.sink));
                self.sink.progress.owing.fetch_sub(1, Ordering::Release);
                self.sink.tell();
            }
        }
        Ok(())
    }

    /// Reads what one pipe has, and passes on whole lines.
    fn read(&mut self, number: usize) {
        let pipe = &mut self.pipes[number];
        let Some(fd) = &pipe.fd else { return };
        let mut bytes = [MaybeUninit::uninit(); 32 << 10];
        let read = match rustix::io::read(fd, &mut bytes) {
            Ok((read, _)) => read,
            Err(Errno::INTR) => return,
            Err(_) => &mut [],
        };
        if read.is_empty() {
            pipe.fd = None;
            pipe.owed = 0;
            pipe.pass_on(&self.sink);
            self.sink.give(|output| output.closed(pipe.rank));
            self.open -= 1;
            self.sink.progress.open_pipes[pipe.rank.index()].fetch_sub(1, Ordering::Release);
            // A rank that waits for this one may now wait in vain.
            self.sink.tell();
            return;
        }
        pipe.owed = pipe.owed.saturating_sub(read.len() as u64);
        let end = read.iter().rposition(|byte| matches!(byte, b'\n' | b'\r')).map_or(0, |last| last + 1);
        let (whole, rest) = read.split_at(end);
        if !whole.is_empty() {
            pipe.text.extend_from_slice(whole);
            pipe.pass_on(&self.sink);
        }
        pipe.text.extend_from_slice(rest);
        if pipe.text.len() >= LONGEST_LINE {
            pipe.pass_on(&self.sink);
        } else if !pipe.text.is_empty() {
            pipe.since = Some(Instant::now());
        }
    }
}

impl Pipe {
    /// Passes on what is held back.
    fn pass_on(&mut self, sink: &Sink) {
        self.since = None;
        if !self.text.is_empty() {
            sink.give(|output| output.write(self.rank, &self.text));
            self.text.clear();
        }
    }

    /// All ranks have ended. What the pipe has now is theirs.
    fn owe(&mut self) {
        self.owed = self.fd.as_ref().and_then(|fd| rustix::io::ioctl_fionread(fd).ok()).unwrap_or(0);
    }
}

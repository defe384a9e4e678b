//! The work of a stream, and when it is done. An event costs more than a small collective's share
//! of a call, so a stream is marked with one only when somebody asks.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use super::sys::{self, CUresult, CUstream, CUstreamCaptureStatus};

use super::driver::check;
use super::event::{Event, EventPool, TimedEvent, wait_until};
use super::{Device, gpu_wait, helper};
use crate::error::{Result, bail};
use crate::util::{interrupt, lock, moment_of, number_of};

/// How many values a stream keeps at least before it looks which of them it can drop.
const FEWEST_KEPT: usize = 8;

/// How long the GPU has at least to reach an event that was just recorded.
const REACH_TIME: Duration = Duration::from_secs(1);

/// What is known of a stream's work. The device has it too, since memory is freed after the work of
/// all streams.
pub(crate) struct StreamState {
    device: Arc<Device>,
    raw: CUstream,
    /// How many pieces of work were enqueued. A context's run is two.
    enqueued: AtomicU64,
    marks: Mutex<Marks>,
    /// The latest deadline of the work that was enqueued so far, or is being enqueued: its
    /// [`number_of`], or 0.
    deadline: AtomicU64,
    /// Events that are not in use.
    spare: EventPool,
    /// What enqueued work uses although its `Work` was dropped, each with its end.
    kept: Mutex<KeptValues>,
    /// Whether it is worth to look which of them are not needed any more.
    has_many: AtomicBool,
}

// SAFETY: CUDA allows any thread to use a stream, and the driver locks it in each call.
unsafe impl Send for StreamState {}
// SAFETY: as above.
unsafe impl Sync for StreamState {}

struct Marks {
    /// The latest event, and how many pieces of work come before it at least.
    last: Option<Mark>,
    count: u64,
    /// The driver's stream exists. From then on no thread uses it.
    is_open: bool,
}

/// An event, and until when the work before it may take.
#[derive(Clone)]
struct Mark {
    event: Event,
    deadline: Instant,
}

struct KeptValues {
    values: Vec<(Point, Box<dyn Any + Send>)>,
    /// From how many values on there are many.
    sweep_at: usize,
}

/// The moment at which a piece of work was enqueued. Its event is recorded at the first question,
/// unless an event is there already, and then covers what was enqueued until that question.
#[derive(Clone)]
pub(crate) struct Point {
    state: Arc<StreamState>,
    number: u64,
    mark: OnceLock<Mark>,
}

impl StreamState {
    pub(super) fn new(device: &Arc<Device>, raw: CUstream) -> Self {
        StreamState {
            device: Arc::clone(device),
            raw,
            enqueued: AtomicU64::new(0),
            deadline: AtomicU64::new(0),
            marks: Mutex::new(Marks { last: None, count: 0, is_open: true }),
            spare: EventPool::default(),
            kept: Mutex::new(KeptValues { values: Vec::new(), sweep_at: FEWEST_KEPT }),
            has_many: AtomicBool::new(false),
        }
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(super) fn raw(&self) -> CUstream {
        self.raw
    }

    /// Says that work follows which may take until `deadline`. An event that another thread records
    /// meanwhile may cover a part of it.
    pub(crate) fn expect(&self, deadline: Instant) {
        // The driver's lock of the stream makes it known to a thread that records an event after
        // the work.
        let deadline = number_of(deadline);
        if self.deadline.load(Ordering::Relaxed) < deadline {
            self.deadline.fetch_max(deadline, Ordering::Relaxed);
        }
    }

    /// The end of the work that the caller has just enqueued.
    pub(crate) fn point(self: &Arc<Self>) -> Point {
        let number = self.enqueued.fetch_add(1, Ordering::Release) + 1;
        Point { state: Arc::clone(self), number, mark: OnceLock::new() }
    }

    /// An event after everything that was enqueued so far. The caller knows that the stream exists.
    pub(super) fn record(&self) -> Result<Event> {
        // SAFETY: the stream exists.
        unsafe { Event::record(&self.device, self.raw, &self.spare) }
    }

    /// A moment after everything that was enqueued so far, with its time. The caller knows that the
    /// stream exists.
    pub(crate) fn record_time(&self) -> Result<TimedEvent> {
        // SAFETY: the stream exists.
        unsafe { TimedEvent::record(&self.device, self.raw) }
    }

    /// Whether the stream is being captured: enqueued work is recorded into a graph and does not
    /// run. The caller knows that the stream exists.
    pub(super) fn capture_status(&self) -> Result<CUstreamCaptureStatus> {
        let _current = self.device.enter()?;
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream exists; writes one value.
        let result = unsafe { sys::cuStreamIsCapturing(self.raw, &mut status) };
        if result == CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT {
            // The default stream cannot be used while another stream is captured.
            return Ok(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED);
        }
        check("cuStreamIsCapturing", result).map(|()| status)
    }

    fn is_captured(&self) -> Result<bool> {
        Ok(self.capture_status()? != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// [`record`](Self::record), unless the stream is captured: the event would be part of the
    /// capture.
    fn record_uncaptured(&self) -> Result<Option<Event>> {
        if self.is_captured()? {
            return Ok(None);
        }
        let event = self.record()?;
        // Another thread may have begun a capture before the event was recorded.
        Ok((!self.is_captured()?).then_some(event))
    }

    /// In a fork, no thread may be there that unlocks them.
    fn marks(&self) -> Result<MutexGuard<'_, Marks>> {
        self.device.check_process()?;
        Ok(lock(&self.marks))
    }

    /// Records an event, and says whether it has.
    fn mark(&self, marks: &mut Marks) -> Result<bool> {
        let count = self.enqueued.load(Ordering::Acquire);
        let Some(event) = self.record_uncaptured()? else { return Ok(false) };
        let soonest = Instant::now() + REACH_TIME;
        let deadline = moment_of(self.deadline.load(Ordering::Relaxed)).max(soonest);
        (marks.last, marks.count) = (Some(Mark { event, deadline }), count);
        Ok(true)
    }

    /// Records an event after everything that was enqueued so far; `None` while the stream is
    /// captured. The caller knows that the stream exists.
    pub(super) fn mark_now(&self) -> Result<Option<Event>> {
        let mut marks = self.marks()?;
        let is_marked = self.mark(&mut marks)?;
        Ok(marks.last.as_ref().filter(|_| is_marked).map(|mark| mark.event.clone()))
    }

    /// A mark after this many pieces of work; `None` as long as it cannot be recorded because the
    /// stream is captured.
    fn mark_after(&self, number: u64) -> Result<Option<Mark>> {
        let mut marks = self.marks()?;
        if marks.count < number {
            if !marks.is_open {
                bail!(System, "the stream was dropped while it was captured; the end of its earlier work is not known");
            }
            if !self.mark(&mut marks)? {
                return Ok(None);
            }
        }
        Ok(marks.last.clone())
    }

    /// Ends the use of the driver's stream, with an event after its work.
    pub(super) fn close(&self) {
        let mut marks = lock(&self.marks);
        if marks.count < self.enqueued.load(Ordering::Acquire)
            && let Err(error) = self.mark(&mut marks)
        {
            crate::util::log::event!(WARN, "{error}");
        }
        marks.is_open = false;
    }

    /// Whether the stream is closed and its work done.
    pub(super) fn is_over(&self) -> bool {
        let marks = lock(&self.marks);
        !marks.is_open && marks.last.as_ref().is_none_or(|mark| matches!(mark.event.is_done(), Ok(true)))
    }

    /// Waits for everything that was enqueued so far, because memory of it is freed or handed back.
    /// While the stream is captured this waits for the capture's end, unless all earlier work has
    /// an event. The end of the process ends the wait.
    pub(super) fn finish(&self, deadline: Instant) -> Result<()> {
        let _mask = interrupt::mask();
        let warning = |seconds| helper::warning("a capture of a stream", seconds);
        let mut wait = gpu_wait(deadline).warning(&warning);
        let last = loop {
            let (event, is_last) = self.latest()?;
            if is_last {
                break event;
            }
            helper::check_not_over()?;
            wait.pause().map_err(|stopped| {
                let late = "the stream was captured until the deadline";
                stopped.error("while a capture of a stream had not ended", late)
            })?;
        };
        last.map_or(Ok(()), |event| event.wait(deadline, helper::check_not_over))
    }

    /// Waits for everything that was enqueued so far. While the stream is captured, only for the
    /// work of which an event is there.
    pub(super) fn drain(&self, deadline: Instant) -> Result<()> {
        let (event, _) = self.latest()?;
        event.map_or(Ok(()), |event| event.wait(deadline, helper::check_not_over))
    }

    /// The latest event, and whether it is after everything that was enqueued so far. A stream that
    /// is captured gets no event.
    fn latest(&self) -> Result<(Option<Event>, bool)> {
        let mut marks = self.marks()?;
        let has_all = marks.count == self.enqueued.load(Ordering::Acquire);
        // Not every use of the stream is counted, so there is another event in any case. It does
        // not replace the last one: what is known to be done stays done.
        let rest = if has_all && marks.is_open { self.record_uncaptured()? } else { None };
        let is_last = !marks.is_open || has_all || self.mark(&mut marks)?;
        Ok((rest.or_else(|| marks.last.as_ref().map(|mark| mark.event.clone())), is_last))
    }

    /// Keeps a value that enqueued work uses, until the end of the work.
    pub(crate) fn keep(&self, until: Point, value: Box<dyn Any + Send>) {
        let mut kept = lock(&self.kept);
        kept.values.push((until, value));
        self.has_many.store(kept.values.len() >= kept.sweep_at, Ordering::Relaxed);
    }

    /// Takes all kept values.
    pub(super) fn take_kept(&self) -> Vec<(Point, Box<dyn Any + Send>)> {
        std::mem::take(&mut lock(&self.kept).values)
    }

    /// [`sweep`](Self::sweep) now and then, so that it costs an enqueueing call little.
    pub(crate) fn sweep_if_many(&self) {
        if self.has_many.load(Ordering::Relaxed) {
            self.sweep();
        }
    }

    /// Drops kept values whose work is done.
    pub(crate) fn sweep(&self) {
        let mut done = Vec::new();
        let mut kept = lock(&self.kept);
        // Work that was enqueued before one question has one event.
        let mut asked: Option<(Event, bool)> = None;
        let mut index = 0;
        while index < kept.values.len() {
            let event = match kept.values[index].0.event() {
                Ok(Some(event)) => event.clone(),
                // If the event cannot be had, the work may still run.
                Ok(None) | Err(_) => break,
            };
            let is_done = match &asked {
                Some((last, is_done)) if last.is_same(&event) => *is_done,
                _ => matches!(event.is_done(), Ok(true)),
            };
            asked = Some((event, is_done));
            if is_done {
                done.push(kept.values.swap_remove(index));
            } else {
                index += 1;
            }
        }
        kept.sweep_at = FEWEST_KEPT.max(2 * kept.values.len());
        self.has_many.store(false, Ordering::Relaxed);
        // A dropped value may take this stream's lock.
        drop(kept);
    }
}

impl Point {
    /// The event of its end; `None` as long as it cannot be recorded.
    pub(super) fn event(&self) -> Result<Option<&Event>> {
        Ok(self.mark()?.map(|mark| &mark.event))
    }

    fn mark(&self) -> Result<Option<&Mark>> {
        if let Some(mark) = self.mark.get() {
            return Ok(Some(mark));
        }
        let mark = self.state.mark_after(self.number)?;
        Ok(mark.map(|mark| self.mark.get_or_init(|| mark)))
    }

    /// Until when the work may take whose own deadline this is. The event may have been recorded
    /// late, and then covers later work, which may take longer.
    pub(crate) fn deadline(&self, own: Instant) -> Instant {
        // If the event cannot be had, the next question says so.
        let mark = self.mark().ok().flatten();
        mark.map_or(own, |mark| own.max(mark.deadline))
    }

    /// Whether the work is done. While the stream is captured, the answer to the first question is
    /// no.
    pub(crate) fn is_done(&self) -> Result<bool> {
        self.event()?.map_or(Ok(false), |event| event.is_done())
    }

    /// Waits until the work is done. An error of `alive`, which is called again and again, ends the
    /// wait.
    pub(crate) fn wait(&self, deadline: Instant, alive: impl FnMut() -> Result<()>) -> Result<()> {
        wait_until(|| self.is_done(), deadline, alive)
    }
}

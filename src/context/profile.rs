//! How long the layers of a run take.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::checks::Setup;
use super::profile_file::{self, ProfileFile};
use crate::cuda::{CudaStream, TimedEvent, call_out};
use crate::error::{Result, bail};
use crate::network::{LayerId, TensorId};
use crate::util::log::event;
use crate::util::wait::MeasuredWaits;
use crate::util::{monotonic, panic_message};

/// How long one layer took in one run on this rank; see
/// [`set_profiler`](super::ExecutionContext::set_profiler).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LayerTime<'a> {
    /// The name of the layer. Layers that NCCL runs as one group are one entry, with all names:
    /// `sum, max`. So is a run that launches a CUDA graph: `CUDA graph`.
    pub layer: &'a str,
    /// When the layer began, on the clock `CLOCK_MONOTONIC`. The processes of a machine share it.
    pub begin: Duration,
    /// From the begin to the end.
    pub duration: Duration,
    /// The part of the duration in which this rank waited for other ranks: until they came, or had
    /// read its buffers. In the rest it worked, and bytes came and went over the network. On GPUs
    /// it is absent: NCCL waits inside its kernels.
    pub waited: Option<Duration>,
    /// The bytes of the inputs that the layer reads on this rank.
    pub input_bytes: usize,
    /// The bytes of the outputs that the layer writes on this rank.
    pub output_bytes: usize,
}

/// What a context tells of its layers' times.
pub type Profiler = Arc<dyn Fn(&LayerTime<'_>) + Send + Sync>;

/// Whom a context tells.
#[derive(Clone, Default)]
pub(super) struct Profilers {
    pub(super) own: Option<Profiler>,
    pub(super) file: Option<&'static ProfileFile>,
}

/// The times of one run.
pub(super) struct RunProfile {
    waits: MeasuredWaits,
    spans: RefCell<Vec<Span>>,
    /// A moment of the stream, and when it was. CUDA tells only times between such moments.
    known: RefCell<Option<(Duration, TimedEvent)>>,
}

struct Span {
    /// None for a CUDA graph.
    layers: SmallVec<[LayerId; 1]>,
    time: SpanTime,
}

/// Where a span begins.
pub(super) enum SpanBegin {
    Host { begin: Duration, waited_before: Duration },
    Gpu(Result<TimedEvent>),
}

enum SpanTime {
    Host { begin: Duration, duration: Duration, waited: Duration },
    Gpu(Result<[TimedEvent; 2]>),
}

impl Profilers {
    /// Begins to measure a run on this thread, if somebody is told.
    pub(super) fn begin(&self) -> Option<RunProfile> {
        let is_told = self.own.is_some() || self.file.is_some();
        let begin =
            || RunProfile { waits: MeasuredWaits::begin(), spans: RefCell::default(), known: RefCell::default() };
        is_told.then(begin)
    }
}

impl RunProfile {
    /// Begins to measure layers, on the stream if they are enqueued there.
    pub(super) fn begin(&self, stream: Option<&Arc<CudaStream>>) -> SpanBegin {
        match stream {
            Some(stream) => SpanBegin::Gpu(stream.record_time()),
            None => SpanBegin::Host { begin: monotonic(), waited_before: self.waits.total() },
        }
    }

    /// Says that the layers have run.
    pub(super) fn end(&self, begin: SpanBegin, layers: &[LayerId], stream: Option<&Arc<CudaStream>>) {
        let time = match (begin, stream) {
            (SpanBegin::Gpu(begin), Some(stream)) => {
                SpanTime::Gpu(begin.and_then(|begin| Ok([begin, stream.record_time()?])))
            }
            (SpanBegin::Host { begin, waited_before }, None) => {
                let (duration, waited) = (monotonic().saturating_sub(begin), self.waits.total());
                SpanTime::Host { begin, duration, waited: waited.saturating_sub(waited_before) }
            }
            _ => return,
        };
        self.spans.borrow_mut().push(Span { layers: layers.into(), time });
    }

    /// Marks a moment of a stream that has nothing to do. Somebody has to wait for it.
    pub(super) fn mark(&self, stream: &CudaStream) {
        self.known.replace(stream.record_time().ok().map(|event| (monotonic(), event)));
    }

    /// Tells the times of a run that has ended. What cannot be told is logged: the run is right.
    pub(super) fn tell(self, setup: &Setup) {
        let Setup { binding, profilers, .. } = setup;
        let rank = binding.communicator.as_ref().map(|communicator| communicator.origin_rank().0);
        let told = call_out(|| catch_unwind(AssertUnwindSafe(|| self.tell_each(setup, rank))));
        let problem = match told {
            Ok(Ok(Ok(events))) => {
                if let Some(file) = profilers.file {
                    file.write(rank, &events);
                }
                return;
            }
            Ok(Ok(Err(error))) | Err(error) => error.to_string(),
            Ok(Err(panic)) => format!("the profiler panicked: {}", panic_message(panic.as_ref())),
        };
        let who = rank.map_or_else(String::new, |rank| format!("rank {rank}: "));
        event!(WARN, "{who}the profiler did not get the times of all layers: {problem}");
    }

    /// Tells the caller's profiler. Returns the events for the file.
    fn tell_each(&self, setup: &Setup, rank: Option<u32>) -> Result<String> {
        let Profilers { own, file } = &setup.profilers;
        let mut events = String::new();
        for Span { layers, time } in &*self.spans.borrow() {
            let (begin, duration, waited) = match time {
                SpanTime::Host { begin, duration, waited } => (*begin, *duration, Some(*waited)),
                SpanTime::Gpu(moments) => {
                    let [begin, end] = moments.as_ref().map_err(Clone::clone)?;
                    let known = self.known.borrow();
                    let begin_at = match &*known {
                        Some((at, event)) => at.saturating_sub(event.since(begin)?),
                        None => bail!(System, "no moment of the stream is known"),
                    };
                    (begin_at, end.since(begin)?, None)
                }
            };
            let ([input_bytes, output_bytes], layer) = (moved_bytes(setup, layers), &name(setup, layers));
            let time = LayerTime { layer, begin, duration, waited, input_bytes, output_bytes };
            if file.is_some() {
                profile_file::add_event(&mut events, rank, &time);
            }
            if let Some(own) = own {
                own(&time);
            }
        }
        Ok(events)
    }
}

fn name(setup: &Setup, layers: &[LayerId]) -> String {
    let all = &setup.binding.engine.network.layers;
    let names: Vec<&str> = layers.iter().map(|id| all[id.index()].name()).collect();
    if names.is_empty() { "CUDA graph".to_owned() } else { names.join(", ") }
}

/// The bytes that layers read and write on this rank.
fn moved_bytes(setup: &Setup, layers: &[LayerId]) -> [usize; 2] {
    let Setup { binding, shapes, .. } = setup;
    let byte_len = |tensor: &TensorId| {
        let data_type = binding.engine.analysis.types[tensor.index()];
        shapes.all[tensor.index()].byte_len(data_type)
    };
    let mut sums = [0, 0];
    for id in layers {
        let layer = &binding.engine.network.layers[id.index()];
        let has_part = match &shapes.calls[id.index()] {
            Some(call) => [binding.role(*id).reads_input(call), binding.role(*id).writes_output(call)],
            None => [true, true],
        };
        for ((sum, tensors), has_part) in sums.iter_mut().zip([&layer.inputs, &layer.outputs]).zip(has_part) {
            *sum += if has_part { tensors.iter().map(byte_len).sum() } else { 0 };
        }
    }
    sums
}

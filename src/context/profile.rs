//! How long the layers of a run take.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::checks::Setup;
use super::profile_file::ProfileFile;
use crate::cuda::{CudaStream, TimedEvent};
use crate::error::Result;
use crate::network::{LayerId, TensorId};
use crate::util::monotonic;
use crate::util::wait::MeasuredWaits;

/// How long one layer took in one run on this rank; see
/// [`set_profiler`](super::ExecutionContext::set_profiler).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LayerTime<'a> {
    /// The name of the layer. Layers that NCCL runs as one group are one entry, with all names:
    /// `all_reduce 1, all_gather 2`. So is a run that was recorded into a CUDA graph or replayed
    /// one: `CUDA graph`.
    pub layer: &'a str,
    /// When the layer began, on the clock `CLOCK_MONOTONIC`, which the processes of a machine share.
    pub begin: Duration,
    /// From the begin to the end.
    pub duration: Duration,
    /// The part of the duration in which this rank waited for other ranks. The rest is the rank's
    /// own work. On GPUs it is absent: NCCL waits inside its kernels.
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
    spans: RefCell<Vec<Span>>,
    waits: MeasuredWaits,
}

struct Span {
    /// None for a CUDA graph.
    layers: SmallVec<[LayerId; 1]>,
    begin: Moment,
    end: Moment,
}

/// Begin or end of a span.
enum Moment {
    /// When, and how long the thread had waited until then.
    Host(Duration, Duration),
    Gpu(TimedEvent),
}

impl Profilers {
    /// Begins to measure a run on this thread, if somebody is told.
    pub(super) fn begin(&self) -> Option<RunProfile> {
        let is_told = self.own.is_some() || self.file.is_some();
        is_told.then(|| RunProfile { spans: RefCell::default(), waits: MeasuredWaits::begin() })
    }
}

impl RunProfile {
    fn moment(&self, stream: Option<&Arc<CudaStream>>) -> Result<Moment> {
        Ok(match stream {
            Some(stream) => Moment::Gpu(stream.record_time()?),
            None => Moment::Host(monotonic(), self.waits.total()),
        })
    }

    /// Measures some layers, on the stream if they are enqueued there.
    pub(super) fn measure(
        &self,
        layers: &[LayerId],
        stream: Option<&Arc<CudaStream>>,
        run: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let begin = self.moment(stream)?;
        run()?;
        let end = self.moment(stream)?;
        self.spans.borrow_mut().push(Span { layers: layers.into(), begin, end });
        Ok(())
    }

    /// Measures a run as a whole if its layers are not: a CUDA graph.
    pub(super) fn measure_graph(&self, stream: &Arc<CudaStream>, run: impl FnOnce() -> Result<()>) -> Result<()> {
        let begin = self.moment(Some(stream))?;
        run()?;
        if self.spans.borrow().is_empty() {
            let end = self.moment(Some(stream))?;
            self.spans.borrow_mut().push(Span { layers: SmallVec::new(), begin, end });
        }
        Ok(())
    }

    /// Tells the times of a run that has ended.
    pub(super) fn tell(self, setup: &Setup) -> Result<()> {
        let now = monotonic();
        let spans = self.spans.into_inner();
        // CUDA tells only times between events. The last one was reached just now.
        let last = spans.iter().rev().find_map(|span| match &span.end {
            Moment::Gpu(event) => Some(event),
            Moment::Host(..) => None,
        });
        let times = spans.iter().map(|span| {
            let (begin, duration, waited) = match (&span.begin, &span.end, last) {
                (Moment::Gpu(begin), Moment::Gpu(end), Some(last)) => {
                    (now.saturating_sub(last.since(begin)?), end.since(begin)?, None)
                }
                (Moment::Host(begin, waited_before), Moment::Host(end, waited), _) => {
                    (*begin, end.saturating_sub(*begin), Some(waited.saturating_sub(*waited_before)))
                }
                _ => (now, Duration::ZERO, None),
            };
            let ([input_bytes, output_bytes], layer) = (moved_bytes(setup, &span.layers), name(setup, &span.layers));
            Ok((layer, begin, duration, waited, input_bytes, output_bytes))
        });
        let times = times.collect::<Result<Vec<_>>>()?;
        let times = times.iter().map(|(layer, begin, duration, waited, input_bytes, output_bytes)| LayerTime {
            layer,
            begin: *begin,
            duration: *duration,
            waited: *waited,
            input_bytes: *input_bytes,
            output_bytes: *output_bytes,
        });
        let Profilers { own, file } = &setup.profilers;
        if let Some(file) = file {
            let rank = setup.binding.communicator.as_ref().map_or(0, |communicator| communicator.origin_rank().0);
            file.write(rank, times.clone());
        }
        if let Some(own) = own {
            times.for_each(|time| own(&time));
        }
        Ok(())
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

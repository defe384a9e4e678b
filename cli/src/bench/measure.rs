//! The part of one rank: it runs each layer on all sizes, measures the time and checks the results.

use std::ops::Range;
use std::time::Instant;

use distcollective::collective::InPlace;
use distcollective::dist_collective::BoundLayer;
use distcollective::tensor::MemorySpace;
use distcollective::{
    Buffer, CollectiveOperation, Communicator, DataType, DistCollectiveLayer, ReduceOperation, Result, Root, Stream,
};

use super::report::{Format, Measured, Report, Row, Settings};
use super::values::Values;

/// A benchmark, the same on every rank.
pub struct Bench {
    pub layers: Vec<DistCollectiveLayer>,
    pub data_type: DataType,
    pub ranks: usize,
    /// The requested sizes in bytes, ascending.
    pub sizes: Vec<usize>,
    pub iterations: u32,
    pub warmup: u32,
    pub check: bool,
    pub symmetric: bool,
    pub format: Format,
    pub settings: Settings,
}

impl Bench {
    /// Runs the part of one rank, and returns the number of wrong elements on all ranks. Rank 0
    /// prints. Collective.
    pub fn run(&self, communicator: &Communicator) -> Result<u64> {
        let report = if communicator.rank().0 == 0 { Some(Report::begin(self.format, &self.settings)) } else { None };
        self.layers.iter().try_fold(0, |wrong, layer| Ok(wrong + self.run_layer(layer, communicator, report.as_ref())?))
    }

    /// The elements of a block for each size, without the sizes that have none.
    pub fn counts(&self, operation: CollectiveOperation) -> Vec<usize> {
        let bytes = self.blocks(operation) * self.data_type.byte_len();
        self.sizes.iter().map(|size| size / bytes).filter(|count| *count > 0).collect()
    }

    /// The number of blocks in the larger of input and output.
    fn blocks(&self, operation: CollectiveOperation) -> usize {
        match operation {
            CollectiveOperation::AllReduce | CollectiveOperation::Broadcast | CollectiveOperation::Reduce => 1,
            _ => self.ranks,
        }
    }

    fn run_layer(
        &self,
        layer: &DistCollectiveLayer,
        communicator: &Communicator,
        report: Option<&Report<'_>>,
    ) -> Result<u64> {
        let operation = layer.collective_operation();
        let (counts, blocks) = (self.counts(operation), self.blocks(operation));
        let rank = Rank {
            bench: self,
            communicator,
            bound: layer.bind(communicator, self.data_type)?,
            stream: match communicator.space() {
                MemorySpace::Cuda(ordinal) => Stream::cuda(ordinal)?,
                _ => Stream::inline(),
            },
            values: Values::new(layer, self.data_type, communicator.rank().index(), self.ranks),
        };
        let largest = counts.last().map_or(0, |count| count * blocks);
        let mut buffers = [self.buffer(communicator, largest)?, self.buffer(communicator, largest)?];
        if let Some(report) = report {
            report.operation(operation);
        }
        let mut wrong = 0;
        for count in counts {
            let (apart, in_place) = rank.places(operation, count)?;
            let mut measure = |places: Places| rank.measure(&mut buffers, &places);
            let row = Row {
                operation,
                reduce_op: layer.reduce_op(),
                root: layer.root().map(Root::number),
                data_type: self.data_type,
                ranks: self.ranks,
                size: count * blocks * self.data_type.byte_len(),
                count,
                out_of_place: measure(apart)?,
                in_place: in_place.map(measure).transpose()?,
            };
            wrong += row.wrong();
            if let Some(report) = report {
                report.row(&row);
            }
        }
        Ok(wrong)
    }

    fn buffer(&self, communicator: &Communicator, elements: usize) -> Result<Buffer> {
        let dims = [elements as i64];
        if self.symmetric {
            communicator.allocate(self.data_type, dims)
        } else {
            Buffer::zeroed_in(communicator.space(), self.data_type, dims)
        }
    }
}

/// The places of a rank's input and output. The output is in the second of two buffers.
struct Places {
    input_buffer: usize,
    /// In bytes.
    input: Range<usize>,
    output: Range<usize>,
    dims: [usize; 1],
}

/// Fills an output before the collective whose result is checked.
const UNWRITTEN: u8 = 0xa5;

/// One rank with one layer.
struct Rank<'a> {
    bench: &'a Bench,
    communicator: &'a Communicator,
    bound: BoundLayer,
    stream: Stream,
    values: Values,
}

impl Rank<'_> {
    /// The places for a call out of place, and in place if the operation has such a form. Blocks
    /// have `count` elements.
    fn places(&self, operation: CollectiveOperation, count: usize) -> Result<(Places, Option<Places>)> {
        let dims = match operation {
            CollectiveOperation::ReduceScatter | CollectiveOperation::AllToAll | CollectiveOperation::Scatter => {
                [count * self.bench.ranks]
            }
            _ => [count],
        };
        let outputs = self.bound.output_shape(&dims)?.element_count();
        let places = |input_buffer, input_offset: usize, output_offset: usize| {
            let bytes = |offset, elements| {
                let len = self.bench.data_type.byte_len();
                offset * len..(offset + elements) * len
            };
            let (input, output) = (bytes(input_offset, dims[0]), bytes(output_offset, outputs));
            Places { input_buffer, input, output, dims }
        };
        let in_place = match self.bound.in_place(&dims)? {
            InPlace::SameAddress | InPlace::Unused => Some(places(1, 0, 0)),
            InPlace::InputAt { element_offset } => Some(places(1, element_offset, 0)),
            InPlace::OutputAt { element_offset } => Some(places(1, 0, element_offset)),
            InPlace::Never => None,
        };
        Ok((places(0, 0, 0), in_place))
    }

    /// The time of a call, and the number of wrong elements after one more. Collective.
    fn measure(&self, buffers: &mut [Buffer; 2], places: &Places) -> Result<Measured> {
        self.prepare(buffers, places)?;
        self.calls(self.bench.warmup, buffers, places)?;
        self.communicator.barrier()?;
        let start = Instant::now();
        self.calls(self.bench.iterations, buffers, places)?;
        let mut nanoseconds = [start.elapsed().as_nanos() as i64];
        // The time of the slowest rank. The collective also keeps ranks from starting the next call
        // early.
        self.communicator.all_reduce(&mut nanoseconds, ReduceOperation::Max)?;
        let mut wrong = None;
        if self.bench.check {
            // In place, each iteration has reduced the result of the one before. So start again.
            self.prepare(buffers, places)?;
            self.calls(1, buffers, places)?;
            let mut sum = [self.wrong(buffers, places)? as i64];
            self.communicator.all_reduce(&mut sum, ReduceOperation::Sum)?;
            wrong = Some(sum[0].cast_unsigned());
        }
        Ok(Measured { nanoseconds: nanoseconds[0] as f64 / f64::from(self.bench.iterations), wrong })
    }

    fn prepare(&self, buffers: &mut [Buffer; 2], places: &Places) -> Result<()> {
        buffers[1].write(places.output.start, &vec![UNWRITTEN; places.output.len()])?;
        let mut input = vec![0; places.input.len()];
        self.values.fill(&mut input);
        buffers[places.input_buffer].write(places.input.start, &input)
    }

    /// Enqueues `count` calls and waits for them.
    fn calls(&self, count: u32, buffers: &mut [Buffer; 2], places: &Places) -> Result<()> {
        let input = buffers[places.input_buffer].as_mut_ptr().wrapping_add(places.input.start);
        let output = buffers[1].as_mut_ptr().wrapping_add(places.output.start);
        // On the host each call has finished when it returns.
        let mut under_way = Vec::with_capacity(count as usize);
        for _ in 0..count {
            // SAFETY: both ranges have the lengths of the layer's tensors, and `prepare` has
            // checked that they lie in the buffers. The buffers stay borrowed until the waits
            // below. If a wait fails, the calls after it have failed too and no longer use them.
            under_way.push(unsafe { self.bound.enqueue(input, output, &places.dims, &self.stream) }?);
        }
        under_way.into_iter().try_for_each(|work| work.wait().map(drop).map_err(Into::into))
    }

    fn wrong(&self, buffers: &[Buffer; 2], places: &Places) -> Result<usize> {
        if !self.bound.writes_output() {
            return Ok(0);
        }
        let mut output = vec![0; places.output.len()];
        buffers[1].read(places.output.start, &mut output)?;
        Ok(self.values.wrong(&output))
    }
}

//! The part of one rank: it runs each layer on all sizes, measures the time and checks the results.

use std::ops::Range;
use std::time::{Duration, Instant};

use distcollective::collective::InPlace;
use distcollective::dist_collective::BoundLayer;
use distcollective::tensor::MemorySpace;
use distcollective::{
    Buffer, CollectiveOperation, Communicator, DistCollectiveLayer, ReduceOperation, Result, Root, Stream,
};
use distcollective_launch::bind_thread;

use super::options::{Bench, Format};
use super::report::{Measured, Report, Row};
use super::values::Values;

/// How long a batch takes whose number of calls is not given.
pub const BATCH_TIME: Duration = Duration::from_millis(10);

/// How often the time of a number of calls is taken to choose that number: the shortest counts, as
/// the others may have waited for a processor.
const TRIALS: usize = 3;

impl Bench {
    /// Runs the part of one rank, and returns the number of wrong elements on all ranks. Rank 0
    /// prints. Collective.
    pub fn run(&self, communicator: &Communicator) -> Result<u64> {
        if let Some(sets) = &self.cpus {
            bind_thread(&sets[communicator.rank().index()])?;
        }
        // Nothing is printed if a rank cannot begin.
        communicator.barrier()?;
        let mut report = (communicator.rank().0 == 0).then(|| Report::begin(self));
        let mut wrong = 0;
        for layer in &self.layers {
            wrong += self.run_layer(layer, communicator, report.as_mut())?;
        }
        report.map_or(Ok(()), Report::end)?;
        Ok(wrong)
    }

    /// The elements of a block for each size, without the sizes that have none.
    pub fn counts(&self, operation: CollectiveOperation) -> Vec<usize> {
        let blocks = if self.sizes_per_rank { self.blocks_of_a_rank(operation) } else { self.blocks(operation) };
        let bytes = blocks * self.data_type.byte_len();
        self.sizes.iter().map(|size| size / bytes).filter(|count| *count > 0).collect()
    }

    /// The number of blocks in what a rank has to itself: its input, or for scatter its output.
    pub fn blocks_of_a_rank(&self, operation: CollectiveOperation) -> usize {
        match operation {
            CollectiveOperation::ReduceScatter | CollectiveOperation::AllToAll => self.ranks,
            _ => 1,
        }
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
        mut report: Option<&mut Report<'_>>,
    ) -> Result<u64> {
        let operation = layer.collective_operation();
        let (counts, blocks) = (self.counts(operation), self.blocks(operation));
        let rank = Rank {
            bench: self,
            layer,
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
        if let Some(report) = &mut report {
            report.operation(operation);
        }
        let mut wrong = 0;
        for count in counts {
            let mut measured = rank.measure(&mut buffers, &rank.places(operation, count)?)?.into_iter();
            let row = Row {
                operation,
                reduce_op: layer.reduce_op(),
                root: layer.root().map(Root::number),
                data_type: self.data_type,
                ranks: self.ranks,
                size: count * blocks * self.data_type.byte_len(),
                size_per_rank: count * self.blocks_of_a_rank(operation) * self.data_type.byte_len(),
                count,
                out_of_place: measured.next().expect("every operation has this form"),
                in_place: measured.next(),
            };
            wrong += row.wrong();
            if let Some(report) = &mut report {
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
    layer: &'a DistCollectiveLayer,
    communicator: &'a Communicator,
    bound: BoundLayer,
    stream: Stream,
    values: Values,
}

impl Rank<'_> {
    /// The places for a call out of place, and then in place if the operation has such a form.
    /// Blocks have `count` elements.
    fn places(&self, operation: CollectiveOperation, count: usize) -> Result<Vec<Places>> {
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
        // A point has no time in place.
        let in_place = in_place.filter(|_| !matches!(self.bench.format, Format::Points(_)));
        Ok(std::iter::once(places(0, 0, 0)).chain(in_place).collect())
    }

    /// The times of calls at each of these places, and the number of wrong elements after one more.
    /// The batches of the places alternate. Collective.
    fn measure(&self, buffers: &mut [Buffer; 2], all: &[Places]) -> Result<Vec<Measured>> {
        let mut input = vec![0; all[0].input.len()];
        self.values.fill(&mut input);
        let mut calls = Vec::with_capacity(all.len());
        for places in all {
            self.prepare(buffers, places, &input)?;
            self.calls(self.bench.timing.warmup, buffers, places)?;
            calls.push(self.calls_in_a_batch(buffers, places, &input)?);
        }
        let batches = self.bench.timing.batches as usize;
        let mut nanoseconds = Vec::with_capacity(batches * all.len());
        let mut paths = vec![None; all.len()];
        for _ in 0..batches {
            for ((places, calls), path) in all.iter().zip(&calls).zip(&mut paths) {
                nanoseconds.push(self.batch(*calls, buffers, places, &input)?.as_nanos() as i64);
                *path = self.communicator.latest_path();
            }
        }
        // The times of the slowest rank.
        self.communicator.all_reduce(&mut nanoseconds, ReduceOperation::Max)?;
        let measure = |(index, places)| {
            let calls: u32 = calls[index];
            let batches = nanoseconds.iter().skip(index).step_by(all.len());
            let mean = |nanoseconds: &i64| *nanoseconds as f64 / f64::from(calls);
            let wrong = self.wrong_after_a_call(buffers, places, &input)?;
            Ok(Measured::new(batches.map(mean).collect(), calls, paths[index], wrong))
        };
        all.iter().enumerate().map(measure).collect()
    }

    /// The number of calls in a batch, the same on every rank. Collective.
    fn calls_in_a_batch(&self, buffers: &mut [Buffer; 2], places: &Places, input: &[u8]) -> Result<u32> {
        if let Some(iterations) = self.bench.timing.iterations {
            return Ok(iterations);
        }
        let mut calls = 1;
        loop {
            let mut slowest = [0; TRIALS];
            for nanoseconds in &mut slowest {
                *nanoseconds = self.batch(calls, buffers, places, input)?.as_nanos() as i64;
            }
            self.communicator.all_reduce(&mut slowest, ReduceOperation::Max)?;
            let share =
                BATCH_TIME.as_nanos() as f64 / slowest.into_iter().min().map_or(1.0, |least| least.max(1) as f64);
            if share <= 2.0 {
                return Ok((f64::from(calls) * share).round().max(1.0) as u32);
            }
            // A first call may be slow; so the number grows step by step.
            calls *= 2;
        }
    }

    /// The time of so many calls on this rank. Collective.
    fn batch(&self, calls: u32, buffers: &mut [Buffer; 2], places: &Places, input: &[u8]) -> Result<Duration> {
        if !self.bench.timing.dirty {
            self.communicator.barrier()?;
            let start = Instant::now();
            self.calls(calls, buffers, places)?;
            return Ok(start.elapsed());
        }
        let mut time = Duration::ZERO;
        for _ in 0..calls {
            if self.reads_input() {
                buffers[places.input_buffer].write(places.input.start, input)?;
            }
            self.communicator.barrier()?;
            let start = Instant::now();
            self.calls(1, buffers, places)?;
            time += start.elapsed();
        }
        Ok(time)
    }

    /// Whether the operation reads this rank's input.
    fn reads_input(&self) -> bool {
        match self.layer.collective_operation() {
            CollectiveOperation::Broadcast | CollectiveOperation::Scatter => {
                self.layer.root().map(Root::number) == Some(self.communicator.rank().0)
            }
            _ => true,
        }
    }

    /// The number of wrong elements on all ranks after a call, if results are checked. Collective.
    fn wrong_after_a_call(&self, buffers: &mut [Buffer; 2], places: &Places, input: &[u8]) -> Result<Option<u64>> {
        if !self.bench.check {
            return Ok(None);
        }
        // In place, each call has reduced the result of the one before. So start again.
        self.prepare(buffers, places, input)?;
        self.calls(1, buffers, places)?;
        let mut sum = [self.wrong(buffers, places)? as i64];
        self.communicator.all_reduce(&mut sum, ReduceOperation::Sum)?;
        Ok(Some(sum[0].cast_unsigned()))
    }

    fn prepare(&self, buffers: &mut [Buffer; 2], places: &Places, input: &[u8]) -> Result<()> {
        buffers[1].write(places.output.start, &vec![UNWRITTEN; places.output.len()])?;
        buffers[places.input_buffer].write(places.input.start, input)
    }

    /// Enqueues `count` calls, each with its barrier if there is one, and waits for them.
    fn calls(&self, count: u32, buffers: &mut [Buffer; 2], places: &Places) -> Result<()> {
        let input = buffers[places.input_buffer].as_mut_ptr().wrapping_add(places.input.start);
        let output = buffers[1].as_mut_ptr().wrapping_add(places.output.start);
        let is_gpu = matches!(self.communicator.space(), MemorySpace::Cuda(_));
        let mut under_way = Vec::new();
        for _ in 0..count {
            // SAFETY: both ranges have the lengths of the layer's tensors, and `prepare` has
            // checked that they lie in the buffers. The buffers stay borrowed until the waits
            // below. If a wait fails, the calls after it have failed too and no longer use them.
            let work = unsafe { self.bound.enqueue(input, output, &places.dims, &self.stream) }?;
            // On the host the call has finished.
            match is_gpu && !self.bench.timing.barrier {
                true => under_way.push(work),
                false => drop(work.wait()?),
            }
            if self.bench.timing.barrier {
                self.communicator.barrier()?;
            }
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

//! Ranks that measure the all_reduce of float32. Each is a thread with a communicator of this
//! library and a bare one of NCCL.

use std::time::Instant;

use distcollective::comm::BackendKind;
use distcollective::context::{Bindings, ContextOptions};
use distcollective::tensor::MemorySpace;
use distcollective::{
    Buffer, Builder, Communicator, DataType, DistCollective, Error, ErrorKind, ExecutionContext, Network,
    ReduceOperation,
};
use serde_json::{Value, json};

use crate::cuda::{self, Stream};
use crate::measure::Way;
use crate::nccl::{BareCommunicator, Id};
use crate::{Options, Result, TIMEOUT, print};

/// The sizes of an all_reduce, in bytes.
const SIZES: [usize; 2] = [2 << 10, 1 << 20];

/// One rank, with a tensor of ones as input.
pub struct Rank<'a> {
    pub communicator: &'a Communicator,
    pub bare: &'a BareCommunicator,
    pub bare_stream: &'a Stream,
    pub stream: &'a distcollective::Stream,
    pub count: usize,
    input: Buffer,
    output: Buffer,
}

/// Runs `body` on every rank for every size, and prints the results. A rank that fails drops its
/// communicator, so that the others fail too.
pub fn on_ranks(options: &Options, body: impl Fn(&mut Rank<'_>, &Value) -> Result<Vec<Value>> + Sync) -> Result<()> {
    let communicators =
        Communicator::builder().backend(BackendKind::Nccl).timeout(TIMEOUT).in_process(options.ranks)?;
    let id = Id::new()?;
    Communicator::spawn_on(communicators, |communicator| {
        on_rank(communicator, id, &body).map_err(|error| Error::new(ErrorKind::System, error.to_string()))
    })?;
    Ok(())
}

fn on_rank(
    communicator: Communicator,
    id: Id,
    body: &impl Fn(&mut Rank<'_>, &Value) -> Result<Vec<Value>>,
) -> Result<()> {
    let MemorySpace::Cuda(ordinal) = communicator.space() else {
        return Err("the communicator is not on a GPU".into());
    };
    let cuda = cuda::current(ordinal)?;
    let (number, ranks) = (communicator.rank().0, communicator.world_size());
    let bare = BareCommunicator::new(id, number, ranks)?;
    let bare_stream = Stream::new(cuda)?;
    let stream = distcollective::Stream::cuda(ordinal)?;
    for bytes in SIZES {
        let count = bytes / size_of::<f32>();
        let mut input = Buffer::zeroed_in(communicator.space(), DataType::Float32, [count as i64])?;
        input.write(0, &1f32.to_le_bytes().repeat(count))?;
        let output = Buffer::zeroed_in(communicator.space(), DataType::Float32, [count as i64])?;
        let mut rank = Rank {
            communicator: &communicator,
            bare: &bare,
            bare_stream: &bare_stream,
            stream: &stream,
            count,
            input,
            output,
        };
        let place = json!({"ranks": ranks, "rank": number, "bytes": bytes});
        body(&mut rank, &place)?.into_iter().for_each(print);
    }
    bare.end()?;
    communicator.finalize()?;
    Ok(())
}

impl<'a> Rank<'a> {
    pub fn byte_len(&self) -> usize {
        self.count * size_of::<f32>()
    }

    pub fn input(&self) -> *const u8 {
        self.input.as_ptr()
    }

    pub fn output(&mut self) -> *mut u8 {
        self.output.as_mut_ptr()
    }

    /// Overwrites the output, runs the way once, and checks the output.
    pub fn check(&mut self, way: &mut Way<'_>) -> Result<()> {
        let mut bytes = vec![0xff; self.byte_len()];
        self.output.write(0, &bytes)?;
        self.communicator.barrier()?;
        (way.batch)(1)?;
        self.output.read(0, &mut bytes)?;
        let expected = self.communicator.world_size() as f32;
        if bytes.chunks(4).all(|element| element == expected.to_le_bytes()) {
            return Ok(());
        }
        Err(format!("{} gives something else than the sum", way.name).into())
    }

    /// Makes the bare call: NCCL's, or with one rank a copy, as this library does.
    ///
    /// # Safety
    ///
    /// `output` is this rank's output, and the caller waits for the call while the rank exists.
    pub unsafe fn call_bare(&self, output: *mut u8) -> Result<()> {
        // SAFETY: input and output both have `count` floats; the rest is the caller's promise.
        unsafe {
            match self.communicator.world_size() {
                1 => self.bare_stream.cuda.enqueue_copy(self.input(), output, self.byte_len(), self.bare_stream.raw),
                _ => self.call_nccl(output),
            }
        }
    }

    /// # Safety
    ///
    /// As [`call_bare`](Self::call_bare).
    pub unsafe fn call_nccl(&self, output: *mut u8) -> Result<()> {
        // SAFETY: input and output are as long; the rest is the caller's promise.
        unsafe { self.bare.sum(self.input(), output, self.count, self.bare_stream.raw) }
    }

    pub fn name_of_bare_call(&self) -> &'static str {
        if self.communicator.world_size() == 1 { "cuMemcpyDtoDAsync" } else { "ncclAllReduce" }
    }

    /// A context with one all_reduce, and bindings for a batch of runs, all with the same
    /// addresses.
    pub fn context(&mut self, options: ContextOptions, runs: usize) -> Result<(ExecutionContext, Vec<Bindings>)> {
        let mut network = Network::new();
        let x = network.add_input("x", DataType::Float32, [self.count as i64])?;
        let ranks = self.communicator.world_size();
        let y = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(ranks).named("sum"), x)?;
        network.mark_output(y, "y")?;
        let mut context = Builder::new().build(&network)?.create_execution_context_with(options)?;
        context.set_communicator(self.communicator)?;
        let addresses = [("x", self.input().cast_mut()), ("y", self.output())];
        let mut all = Vec::with_capacity(runs);
        for _ in 0..runs {
            let mut bindings = context.create_bindings();
            for (name, address) in addresses {
                // SAFETY: the buffers have this length, and the callers wait for all runs while the
                // rank exists. Runs write the same values, one after the other in the stream.
                unsafe { bindings.bind_address(name, address, self.byte_len())? };
            }
            all.push(bindings);
        }
        Ok((context, all))
    }
}

/// A way of enqueueing by a context. Each run takes bindings, and returns them when it is waited
/// for.
pub fn by_context<'a>(
    name: &'static str,
    mut context: ExecutionContext,
    mut bindings: Vec<Bindings>,
    stream: &'a distcollective::Stream,
) -> Way<'a> {
    let mut works = Vec::with_capacity(bindings.len());
    Way::ours(name, move |len| {
        let begin = Instant::now();
        for _ in 0..len {
            let bindings = bindings.pop().ok_or("a batch is longer than was said")?;
            works.push(context.enqueue(bindings, stream).map_err(|failed| failed.error)?);
        }
        let elapsed = begin.elapsed();
        for work in works.drain(..) {
            bindings.push(work.wait().map_err(|failed| failed.error)?);
        }
        Ok(elapsed)
    })
}

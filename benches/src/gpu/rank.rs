//! Ranks that measure collectives. Each has a communicator of this library and a bare one of NCCL.

use distcollective::collective::Collective;
use distcollective::comm::BackendKind;
use distcollective::context::{Bindings, ContextOptions};
use distcollective::dist_collective::DistCollectiveLayer;
use distcollective::tensor::MemorySpace;
use distcollective::{Buffer, Communicator, DataType, Environment, Error, ErrorKind, ExecutionContext, Network, Rank};

use super::cuda::{self, Stream};
use super::measure::Way;
use super::nccl::{BareCommunicator, Id};
use super::{Options, TIMEOUT};
use crate::Result;

/// What a rank calls with.
pub struct Caller {
    /// Whether NCCL computes nothing.
    pub is_no_op: bool,
    pub communicator: Communicator,
    pub stream: distcollective::Stream,
    pub bare: BareCommunicator,
    pub bare_stream: Stream,
}

/// Runs `body` on every rank: on threads of this process, or, if a launcher started this process,
/// as the rank that it is. A rank that fails drops its communicator, so that the others fail too.
pub fn on_ranks(options: &Options, body: impl Fn(&Caller) -> Result<()> + Sync) -> Result<()> {
    if options.is_launched {
        let environment = Environment::builder().backend(BackendKind::Nccl).timeout(TIMEOUT).initialize()?;
        return on_rank(options, environment.communicator().clone(), &body);
    }
    Communicator::builder().backend(BackendKind::Nccl).timeout(TIMEOUT).spawn(options.ranks, |communicator| {
        on_rank(options, communicator, &body).map_err(|error| Error::new(ErrorKind::System, error.to_string()))
    })?;
    Ok(())
}

fn on_rank(options: &Options, communicator: Communicator, body: &impl Fn(&Caller) -> Result<()>) -> Result<()> {
    let MemorySpace::Cuda(ordinal) = communicator.space() else {
        return Err("the communicator is not on a GPU".into());
    };
    let cuda = cuda::current(ordinal)?;
    let rank = communicator.rank();
    let mut id = if rank == ROOT { Id::new()? } else { Id([0; 128]) };
    communicator.broadcast(&mut id.0, ROOT)?;
    let bare = BareCommunicator::new(id, rank.0, communicator.world_size())?;
    let stream = distcollective::Stream::cuda(ordinal)?;
    let caller = Caller { is_no_op: options.is_no_op, communicator, stream, bare, bare_stream: Stream::new(cuda)? };
    body(&caller)?;
    // Destroying a communicator holds back the launches of the other ranks of this process, so none
    // may follow.
    caller.communicator.finalize()?;
    caller.bare.end()
}

/// The root of every collective that has one.
pub const ROOT: Rank = Rank(0);

/// A collective of float32 with its buffers. Every element of a rank's input is the rank's number
/// plus 1.
pub struct Case<'a> {
    caller: &'a Caller,
    pub collective: Collective<Rank>,
    /// NCCL's count.
    pub block: usize,
    input: Buffer,
    output: Buffer,
}

impl<'a> Case<'a> {
    /// The larger one of input and output has about `byte_len` bytes.
    pub fn new(caller: &'a Caller, collective: Collective<Rank>, byte_len: usize) -> Result<Self> {
        let (operation, n) = (collective.operation(), caller.communicator.world_size() as usize);
        let blocks = [operation.input_blocks(n), operation.output_blocks(n)];
        let block = (byte_len / size_of::<f32>() / blocks[0].max(blocks[1])).max(1);
        let zeroed = |blocks: usize| {
            Buffer::zeroed_in(caller.communicator.space(), DataType::Float32, [(block * blocks) as i64])
        };
        let [mut input, output] = [zeroed(blocks[0])?, zeroed(blocks[1])?];
        let own = caller.communicator.rank().0 as f32 + 1.0;
        input.write(0, &own.to_le_bytes().repeat(block * blocks[0]))?;
        Ok(Case { caller, collective, block, input, output })
    }

    pub fn input_elements(&self) -> usize {
        self.input.byte_len() / size_of::<f32>()
    }

    pub fn input(&self) -> *const u8 {
        self.input.as_ptr()
    }

    pub fn output(&mut self) -> *mut u8 {
        self.output.as_mut_ptr()
    }

    /// Overwrites the output, runs the way once, and checks the output.
    pub fn check(&mut self, way: &mut Way<'_>) -> Result<()> {
        let mut bytes = vec![0xff; self.output.byte_len()];
        self.output.write(0, &bytes)?;
        self.caller.communicator.barrier()?;
        (way.batch)(1)?;
        self.output.read(0, &mut bytes)?;
        let written = |(at, element): (usize, &[u8])| element == self.expected(at / self.block).to_le_bytes();
        if self.caller.is_no_op || !self.is_written() || bytes.chunks(size_of::<f32>()).enumerate().all(written) {
            return Ok(());
        }
        Err(format!("{} of {} gives something else", self.collective.operation(), way.name).into())
    }

    fn is_written(&self) -> bool {
        let goes_to_root = matches!(self.collective, Collective::Reduce { .. } | Collective::Gather { .. });
        !goes_to_root || self.caller.communicator.rank() == ROOT
    }

    /// The elements of a block of the output.
    fn expected(&self, block: usize) -> f32 {
        let (operation, n) = (self.collective.operation(), self.caller.communicator.world_size() as usize);
        match (operation.reduces(), operation.output_blocks(n)) {
            (true, _) => (n * (n + 1) / 2) as f32,
            // The root's.
            (false, 1) => 1.0,
            (false, _) => block as f32 + 1.0,
        }
    }

    /// Enqueues the bare call: NCCL's, or with one rank a copy, as this library does.
    ///
    /// # Safety
    ///
    /// The caller waits for the call while the case exists.
    pub unsafe fn call_bare(&self, output: *mut u8) -> Result<()> {
        let stream = &self.caller.bare_stream;
        // SAFETY: input and output are as long as the collective needs; with one rank both have the
        // same length. The rest is the caller's promise.
        unsafe {
            match self.caller.communicator.world_size() {
                1 => stream.cuda.enqueue_copy(self.input(), output, self.input.byte_len(), stream.raw),
                _ => self.call_nccl(output),
            }
        }
    }

    /// Enqueues NCCL's call.
    ///
    /// # Safety
    ///
    /// As [`call_bare`](Self::call_bare).
    pub unsafe fn call_nccl(&self, output: *mut u8) -> Result<()> {
        let stream = self.caller.bare_stream.raw;
        // SAFETY: input and output are as long as the collective needs; the rest is the caller's
        // promise.
        unsafe { self.caller.bare.call(self.collective, self.input(), output, self.block, stream) }
    }

    pub fn layer(&self) -> Result<DistCollectiveLayer> {
        let root = self.collective.root().map_or(-1, |root| root.0.into());
        let reduce_op = self.collective.reduce_op();
        let mut layer = DistCollectiveLayer::new(self.collective.operation(), reduce_op, root, &[])?;
        layer.set_nb_rank(self.caller.communicator.world_size())?;
        Ok(layer)
    }

    /// A context with the collective as its layer, and bindings for a batch of runs, all with the
    /// same addresses.
    pub fn context(&mut self, options: ContextOptions, runs: usize) -> Result<(ExecutionContext, Vec<Bindings>)> {
        let mut network = Network::new();
        let x = network.add_input("x", DataType::Float32, [self.input_elements() as i64])?;
        let y = network.add(self.layer()?, x)?;
        network.mark_output(y, "y")?;
        let mut context = network.build()?.create_execution_context_with(options)?;
        context.set_communicator(&self.caller.communicator)?;
        let sides = [
            ("x", self.input.as_ptr().cast_mut(), self.input.byte_len()),
            ("y", self.output.as_mut_ptr(), self.output.byte_len()),
        ];
        let mut all = Vec::with_capacity(runs);
        for _ in 0..runs {
            let mut bindings = context.create_bindings();
            for (name, address, byte_len) in sides {
                // SAFETY: the buffers have these lengths, and the callers wait for all runs while
                // the case exists. Runs write the same values, one after the other in the stream.
                unsafe { bindings.bind_address(name, address, byte_len)? };
            }
            all.push(bindings);
        }
        Ok((context, all))
    }
}

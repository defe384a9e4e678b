//! What a backend does for a communicator.

use std::sync::Arc;
use std::time::Instant;

use super::nccl::NcclBackend;
use super::signature::{Purpose, Signature};
use crate::collective::{Call, Collective, ReduceOperation};
use crate::cuda::CudaStream;
use crate::data_type::DataType;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{Address, Buffer, MemorySpace};
use crate::rank::Rank;
use crate::stream::Watch;

/// The most calls that a backend is given as one group, and so the most collectives of one step of a plan.
pub(crate) const MAX_GROUPED_CALLS: usize = 8;

/// One rank's end of a communicator. Everything that comes here has passed the rules; a backend moves and reduces.
///
/// Calls that take a deadline are collective: every rank makes the same ones in the same order. The
/// communicator makes one of them at a time (see `issue_order`). They return by the deadline.
/// After an error the backend is dead: each further call returns that error at once, and no peer touches this rank's memory.
pub(crate) trait Backend: Watch {
    /// This rank's number.
    fn rank(&self) -> Rank;

    /// The number of ranks.
    fn world_size(&self) -> u32;

    /// A rank's number in the communicator from which this one, perhaps over several steps, was split. Errors speak of these
    /// numbers, so that a rank has one name everywhere.
    fn origin(&self, rank: Rank) -> Rank;

    /// The memory that buffers are in by default, and have to be in where a call does not wait.
    fn space(&self) -> MemorySpace {
        MemorySpace::Host
    }

    /// The NCCL backend, where it is that.
    fn as_nccl(&self) -> Option<&NcclBackend> {
        None
    }

    /// Runs one collective over all ranks of this communicator, whose numbers are the group ranks of the call; with a CUDA stream
    /// it is only enqueued.
    ///
    /// # Safety
    ///
    /// Until it returns, or what is enqueued is done, the buffers that the call uses on this rank are valid for the lengths that the call says,
    /// aligned, disjoint but for the in-place rules, and used by nobody else.
    unsafe fn run(&self, request: &Request<'_>) -> Result<()>;

    /// Makes a communicator of the ranks that give the same color, in the order of their keys and then of their ranks; a
    /// rank without a color gets none.
    fn split(&self, color: Option<u32>, key: i32, deadline: Instant) -> Result<Option<Box<dyn Backend>>>;

    /// Memory of `byte_len` zeros that the communicator owns, as a tensor of bytes. Every rank asks for the same length.
    fn allocate(&self, byte_len: usize, deadline: Instant) -> Result<Buffer>;

    /// [`allocate`](Self::allocate) for the operands of an engine's collectives, which lie at the same places on every rank; perhaps
    /// for collectives in CUDA graphs.
    fn allocate_region(&self, byte_len: usize, _for_graphs: bool, deadline: Instant) -> Result<Buffer> {
        self.allocate(byte_len, deadline)
    }

    /// The error of a dead communicator, or of one with a dead peer.
    fn check_peers(&self) -> Result<()> {
        self.check()
    }

    /// Whether this is the process that the rank is in, and not one that was forked from it.
    fn check_process(&self) -> Result<()>;

    /// Makes every rank's call, now and later, return an error with this reason. Not collective.
    fn abort(&self, kind: ErrorKind, reason: &str);
}

/// One rank's part in one collective.
pub(crate) struct Request<'a> {
    pub(crate) signature: Signature,
    /// What errors are about: `layer "grad_sync" (all_reduce)`.
    pub(crate) label: Option<&'a str>,
    pub(crate) input: Address,
    pub(crate) output: Address,
    pub(crate) deadline: Instant,
    /// Where the call is enqueued; without one it is done when it returns.
    pub(crate) stream: Option<&'a Arc<CudaStream>>,
}

impl Request<'_> {
    /// A collective without elements: only the agreement of the ranks is left of it.
    pub(crate) fn barrier(purpose: Purpose, deadline: Instant) -> Self {
        let collective = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
        let call = Call { collective, data_type: DataType::Uint8, block_elements: 0 };
        Request {
            signature: Signature { purpose, call },
            label: None,
            input: Address::host(std::ptr::null()),
            output: Address::host(std::ptr::null()),
            deadline,
            stream: None,
        }
    }

    /// Says in an error which layer it is about.
    pub(crate) fn label(&self, error: Error) -> Error {
        match self.label {
            Some(label) => error.about(|| label.to_owned()),
            None => error,
        }
    }
}

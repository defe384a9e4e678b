//! A backend for tests, as small as the contract allows: one thread that stands for every rank.
//! Each peer gives what this rank gives.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::backend::{Backend, Checked, MAX_GROUPED_CALLS, Request};
use super::split::SplitGroup;
use super::{BackendKind, Communicator};
use crate::collective::{Call, Collective, Purpose};
use crate::data_type::DataType;
use crate::error::{Error, ErrorKind, Result, bail};
use crate::memory::{Address, Buffer};
use crate::rank::Rank;
use crate::shape::Shape;
use crate::stream::Watch;
use crate::util::lock;

const WORLD_SIZE: usize = 2;

/// The collectives that the communicator asked of a loopback backend, and of those split from it.
#[derive(Clone, Default)]
pub(crate) struct Calls(Arc<Mutex<Vec<String>>>);

impl Calls {
    /// What was asked since this was called last.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.0))
    }
}

/// Rank 0 of two.
pub(crate) fn communicator() -> (Communicator, Calls) {
    let calls = Calls::default();
    let backend = Loopback { calls: calls.clone(), ended: Arc::default() };
    (Communicator::new(Arc::new(backend), Duration::from_secs(10)), calls)
}

struct Loopback {
    calls: Calls,
    ended: Arc<OnceLock<Error>>,
}

impl Watch for Loopback {
    fn check(&self) -> Result<()> {
        self.ended.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    fn fail(&self, error: Error) -> Error {
        self.ended.get_or_init(|| error).clone()
    }
}

impl Backend for Loopback {
    fn kind(&self) -> BackendKind {
        BackendKind::Host
    }

    fn rank(&self) -> Rank {
        Rank(0)
    }

    fn world_size(&self) -> u32 {
        WORLD_SIZE as u32
    }

    fn origin(&self, rank: Rank) -> Rank {
        rank
    }

    unsafe fn run(&self, calls: &[Checked<'_>]) -> Result<()> {
        let may_come = calls.len() == 1 || calls.iter().all(|call| self.can_group(&call.request.call, WORLD_SIZE));
        assert!(may_come && calls.len() <= MAX_GROUPED_CALLS, "a group of calls that cannot be grouped");
        // SAFETY: the caller's promise.
        calls.iter().try_for_each(|call| unsafe { self.run_request(call.request) })
    }

    fn can_group(&self, call: &Call, rank_count: usize) -> bool {
        rank_count == WORLD_SIZE && call.block_elements > 0
    }

    fn monitored_barrier(&self, deadline: Instant) -> Result<()> {
        // SAFETY: without elements no buffer is used.
        unsafe { self.run_request(&Request::barrier(Purpose::MONITORED_BARRIER, deadline)) }
    }

    fn split(&self, group: Option<&SplitGroup>, _deadline: Instant) -> Result<Option<Box<dyn Backend>>> {
        let Some(group) = group else { return Ok(None) };
        if group.members.len() != WORLD_SIZE {
            bail!(Unsupported, "every rank does what this one does");
        }
        Ok(Some(Box::new(Loopback { calls: self.calls.clone(), ended: Arc::clone(&self.ended) })))
    }

    fn allocate(&self, byte_len: usize, _deadline: Instant) -> Result<Buffer> {
        Buffer::with_shape(DataType::Uint8, Shape::new(&[byte_len])?)
    }

    fn abort(&self, kind: ErrorKind, reason: &str) {
        self.ended.get_or_init(|| Error::new(kind, reason));
    }
}

impl Loopback {
    /// # Safety
    ///
    /// As [`Backend::run`].
    unsafe fn run_request(&self, request: &Request<'_>) -> Result<()> {
        self.check()?;
        let Request { call, input: Address { pointer: input, .. }, output: Address { pointer: output, .. }, .. } =
            request;
        let len = call.block_bytes();
        assert_eq!(input.is_null(), len == 0, "rank 0 reads the input of what is called here");
        assert_eq!(output.is_null(), len == 0, "rank 0 writes the output of what is called here");
        lock(&self.calls.0).push(call.to_string());
        match call.collective {
            _ if len == 0 => {}
            Collective::AllReduce { .. } if call.data_type == DataType::Float32 => {
                for i in 0..call.block_elements {
                    // SAFETY: the caller's promise: both sides hold that many aligned elements.
                    unsafe { *output.cast::<f32>().add(i) = WORLD_SIZE as f32 * *input.cast::<f32>().add(i) };
                }
            }
            // SAFETY: the caller's promise: the output holds a block for each rank, or there is a
            // list of them. In place, this rank's block is the input itself.
            Collective::AllGather => unsafe {
                match request.blocks {
                    Some(blocks) => blocks.iter().for_each(|block| block.pointer.copy_from(*input, len)),
                    None => (0..WORLD_SIZE).for_each(|rank| output.add(rank * len).copy_from(*input, len)),
                }
            },
            // This rank is the root, and its buffer has the result.
            Collective::Broadcast { .. } if input == output => {}
            _ => return Err(self.fail(Error::new(ErrorKind::Unsupported, format!("{call} is not looped back")))),
        }
        Ok(())
    }
}

//! A backend for tests, as small as the contract allows: one thread that stands for every rank.
//! Each peer gives what this rank gives.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::backend::{Backend, CallGroup, Request};
use super::split::SplitGroup;
use super::{BackendKind, Communicator};
use crate::collective::{Call, Collective};
use crate::cuda::CudaStream;
use crate::data_type::DataType;
use crate::error::{Error, ErrorKind, Result, bail};
use crate::memory::{Address, Buffer};
use crate::rank::Rank;
use crate::shape::Shape;
use crate::stream::Watch;
use crate::util::lock;

const WORLD_SIZE: usize = 2;

/// What the communicator asked of a loopback backend, and of those split from it.
#[derive(Clone, Default)]
pub(crate) struct Calls(Arc<Mutex<Vec<String>>>);

impl Calls {
    /// What was asked since this was called last.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.0))
    }

    fn add(&self, call: impl Into<String>) {
        lock(&self.0).push(call.into());
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

    fn check_device(&self) -> Result<()> {
        self.calls.add("check_device");
        Ok(())
    }

    fn prepare(&self, call: &Call) -> Result<usize> {
        self.calls.add(format!("prepare {call}"));
        Ok(0)
    }

    unsafe fn run(&self, request: &Request<'_>) -> Result<()> {
        self.check()?;
        let call = &request.signature.call;
        let len = call.block_bytes();
        let (input, output) = (request.input.pointer, request.output.pointer);
        assert_eq!(input.is_null(), len == 0, "rank 0 reads the input of what is called here");
        assert_eq!(output.is_null(), len == 0, "rank 0 writes the output of what is called here");
        self.calls.add(format!("run {}", request.signature));
        match call.collective {
            _ if len == 0 => {}
            Collective::AllReduce { .. } if call.data_type == DataType::Float32 => {
                for i in 0..call.block_elements {
                    // SAFETY: the caller's promise: both sides hold that many aligned elements.
                    unsafe { *output.cast::<f32>().add(i) = WORLD_SIZE as f32 * *input.cast::<f32>().add(i) };
                }
            }
            // SAFETY: the caller's promise: the output holds a block for each rank. In place, this
            // rank's block is the input itself.
            Collective::AllGather => unsafe {
                (0..WORLD_SIZE).for_each(|rank| output.add(rank * len).copy_from(input, len));
            },
            // This rank is the root, and its buffer has the result.
            Collective::Broadcast { .. } if input == output => {}
            _ => return Err(self.fail(Error::new(ErrorKind::Unsupported, format!("{call} is not looped back")))),
        }
        Ok(())
    }

    unsafe fn run_list(&self, request: &Request<'_>, blocks: &[Address]) -> Result<()> {
        self.check()?;
        let call = &request.signature.call;
        self.calls.add(format!("run_list {call}"));
        match call.collective {
            Collective::AllGather => {
                // SAFETY: the caller's promise: each block is as long as the input, and apart from
                // it.
                let copy =
                    |block: &Address| unsafe { block.pointer.copy_from(request.input.pointer, call.block_bytes()) };
                blocks.iter().for_each(copy);
                Ok(())
            }
            _ => Err(self.fail(Error::new(ErrorKind::Unsupported, format!("{call} is not looped back")))),
        }
    }

    fn can_group(&self, call: &Call, rank_count: usize) -> bool {
        rank_count == WORLD_SIZE && call.block_elements > 0
    }

    unsafe fn run_group(&self, group: &CallGroup<'_>) -> Result<()> {
        self.calls.add(format!("run_group of {}", group.calls().count()));
        // SAFETY: the caller's promise.
        group.calls().try_for_each(|call| unsafe { call.backend.run(&call.request) })
    }

    fn drain(&self, _stream: Option<&Arc<CudaStream>>) {
        self.calls.add("drain");
    }

    fn split(&self, group: Option<&SplitGroup>, _deadline: Instant) -> Result<Option<Box<dyn Backend>>> {
        self.calls.add(format!("split {:?}", group.map(|group| &group.members)));
        let Some(group) = group else { return Ok(None) };
        if group.members.len() != WORLD_SIZE {
            bail!(Unsupported, "every rank does what this one does");
        }
        Ok(Some(Box::new(Loopback { calls: self.calls.clone(), ended: Arc::clone(&self.ended) })))
    }

    fn allocate(&self, byte_len: usize, _deadline: Instant) -> Result<Buffer> {
        self.calls.add(format!("allocate {byte_len}"));
        Buffer::with_shape(DataType::Uint8, Shape::new(&[byte_len])?)
    }

    fn allocate_region(&self, byte_len: usize, for_graphs: bool, deadline: Instant) -> Result<Buffer> {
        self.calls.add(format!("allocate_region for graphs: {for_graphs}"));
        self.allocate(byte_len, deadline)
    }

    fn abort(&self, kind: ErrorKind, reason: &str) {
        self.calls.add("abort");
        self.ended.get_or_init(|| Error::new(kind, reason));
    }
}

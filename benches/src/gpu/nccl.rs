//! The calls of NCCL that a program without this library would make: on a communicator that blocks,
//! which is NCCL's default. A communicator that does not block makes and joins a thread for each
//! collective, so it would hide what the library costs.

use std::ptr;

use distcollective::collective::Collective;
use distcollective::{CollectiveOperation, Rank};

use super::cuda::{Handle, functions};
use crate::Result;

functions! {
    /// NCCL.
    Nccl, "libnccl.so.2":
    unique_id = "ncclGetUniqueId" (*mut Id);
    init = "ncclCommInitRank" (*mut Handle, i32, Id, i32);
    all_reduce = "ncclAllReduce" (*const u8, *mut u8, usize, i32, i32, Handle, Handle);
    all_gather = "ncclAllGather" (*const u8, *mut u8, usize, i32, Handle, Handle);
    broadcast = "ncclBroadcast" (*const u8, *mut u8, usize, i32, i32, Handle, Handle);
    reduce = "ncclReduce" (*const u8, *mut u8, usize, i32, i32, i32, Handle, Handle);
    reduce_scatter = "ncclReduceScatter" (*const u8, *mut u8, usize, i32, i32, Handle, Handle);
    finalize = "ncclCommFinalize" (Handle);
    destroy = "ncclCommDestroy" (Handle);
}

functions! {
    /// The collectives that NCCL has from 2.28.3 on.
    Newer, "libnccl.so.2":
    all_to_all = "ncclAlltoAll" (*const u8, *mut u8, usize, i32, Handle, Handle);
    gather = "ncclGather" (*const u8, *mut u8, usize, i32, i32, Handle, Handle);
    scatter = "ncclScatter" (*const u8, *mut u8, usize, i32, i32, Handle, Handle);
}

const FLOAT32: i32 = 7;
const SUM: i32 = 0;

/// `ncclUniqueId`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Id(pub [u8; 128]);

impl Id {
    pub fn new() -> Result<Self> {
        let mut id = Id([0; 128]);
        // SAFETY: writes one id.
        check("ncclGetUniqueId", unsafe { (Nccl::get()?.unique_id)(&mut id) })?;
        Ok(id)
    }
}

fn check(what: &str, status: i32) -> Result<()> {
    if status == 0 { Ok(()) } else { Err(format!("{what} gives {status}").into()) }
}

/// A communicator that blocks.
pub struct BareCommunicator {
    nccl: &'static Nccl,
    raw: Handle,
}

impl BareCommunicator {
    /// Connects to the other ranks, on the current GPU. Collective. It has no deadline: the program
    /// that runs the benchmark has one.
    pub fn new(id: Id, rank: u32, ranks: u32) -> Result<Self> {
        let nccl = Nccl::get()?;
        let mut raw = ptr::null_mut();
        // SAFETY: writes one handle.
        check("ncclCommInitRank", unsafe { (nccl.init)(&mut raw, ranks as i32, id, rank as i32) })?;
        Ok(BareCommunicator { nccl, raw })
    }

    /// Whether this NCCL has a function for the collective.
    pub fn has(operation: CollectiveOperation) -> bool {
        let is_newer = matches!(
            operation,
            CollectiveOperation::AllToAll | CollectiveOperation::Gather | CollectiveOperation::Scatter
        );
        !is_newer || Newer::get().is_ok()
    }

    /// Enqueues a collective of float32; reductions are sums. `count` is NCCL's count.
    ///
    /// # Safety
    ///
    /// Both addresses are valid for the floats that the collective reads and writes, on this rank's
    /// GPU, until the call has finished.
    pub unsafe fn call(
        &self,
        collective: Collective<Rank>,
        from: *const u8,
        to: *mut u8,
        count: usize,
        stream: Handle,
    ) -> Result<()> {
        let (nccl, raw, root) = (self.nccl, self.raw, collective.root().map_or(0, |root| root.0 as i32));
        let operation = collective.operation();
        // SAFETY: the caller's promise.
        let status = unsafe {
            match operation {
                CollectiveOperation::AllReduce => (nccl.all_reduce)(from, to, count, FLOAT32, SUM, raw, stream),
                CollectiveOperation::AllGather => (nccl.all_gather)(from, to, count, FLOAT32, raw, stream),
                CollectiveOperation::Broadcast => (nccl.broadcast)(from, to, count, FLOAT32, root, raw, stream),
                CollectiveOperation::Reduce => (nccl.reduce)(from, to, count, FLOAT32, SUM, root, raw, stream),
                CollectiveOperation::ReduceScatter => (nccl.reduce_scatter)(from, to, count, FLOAT32, SUM, raw, stream),
                CollectiveOperation::AllToAll => (Newer::get()?.all_to_all)(from, to, count, FLOAT32, raw, stream),
                CollectiveOperation::Gather => (Newer::get()?.gather)(from, to, count, FLOAT32, root, raw, stream),
                CollectiveOperation::Scatter => (Newer::get()?.scatter)(from, to, count, FLOAT32, root, raw, stream),
                _ => return Err(format!("{operation} is not one of NCCL's calls").into()),
            }
        };
        check(operation.name(), status)
    }

    /// Finalizes and destroys the communicator. Collective.
    pub fn end(self) -> Result<()> {
        // SAFETY: `self` is the only handle, and the calls are its last use.
        unsafe {
            check("ncclCommFinalize", (self.nccl.finalize)(self.raw))?;
            check("ncclCommDestroy", (self.nccl.destroy)(self.raw))
        }
    }
}

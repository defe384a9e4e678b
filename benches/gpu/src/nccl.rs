//! The calls of NCCL that a program without this library would make.

use std::ptr;
use std::sync::OnceLock;
use std::time::Instant;

use crate::cuda::{Handle, functions};
use crate::{Result, TIMEOUT};

functions! {
    /// NCCL.
    Nccl, "libnccl.so.2":
    unique_id = "ncclGetUniqueId" (*mut Id);
    init = "ncclCommInitRankConfig" (*mut Handle, i32, Id, i32, *mut Config);
    state = "ncclCommGetAsyncError" (Handle, *mut i32);
    all_reduce = "ncclAllReduce" (*const u8, *mut u8, usize, i32, i32, Handle, Handle);
    finalize = "ncclCommFinalize" (Handle);
    destroy = "ncclCommDestroy" (Handle);
}

const SUCCESS: i32 = 0;
const IN_PROGRESS: i32 = 7;
const FLOAT32: i32 = 7;
const SUM: i32 = 0;
const UNDEFINED: i32 = i32::MIN;

/// `ncclUniqueId`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Id([u8; 128]);

/// `ncclConfig_t` of NCCL 2.19, which every newer version accepts.
#[repr(C)]
pub struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: i32,
    cga_cluster_size: i32,
    min_ctas: i32,
    max_ctas: i32,
    net_name: *const i8,
    split_share: i32,
    /// A field that the next version has in the padding of this one.
    padding: i32,
}

fn nccl() -> Result<&'static Nccl> {
    static NCCL: OnceLock<Nccl> = OnceLock::new();
    if NCCL.get().is_none() {
        let nccl = Nccl::load()?;
        NCCL.get_or_init(|| nccl);
    }
    Ok(NCCL.get().ok_or("no NCCL")?)
}

impl Id {
    pub fn new() -> Result<Self> {
        let mut id = Id([0; 128]);
        // SAFETY: writes one id.
        check("ncclGetUniqueId", unsafe { (nccl()?.unique_id)(&mut id) })?;
        Ok(id)
    }
}

fn check(what: &str, status: i32) -> Result<()> {
    if status == SUCCESS { Ok(()) } else { Err(format!("{what} gives {status}").into()) }
}

/// A communicator as this library makes its own: its calls do not block.
pub struct BareCommunicator {
    nccl: &'static Nccl,
    raw: Handle,
}

impl BareCommunicator {
    /// Connects to the other ranks, on the current GPU. Collective.
    pub fn new(id: Id, rank: u32, ranks: u32) -> Result<Self> {
        let nccl = nccl()?;
        let mut config = Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: 21900,
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: ptr::null(),
            split_share: UNDEFINED,
            padding: UNDEFINED,
        };
        let mut raw = ptr::null_mut();
        // SAFETY: writes one handle; the configuration is good during the call.
        let status = unsafe { (nccl.init)(&mut raw, ranks as i32, id, rank as i32, &mut config) };
        let communicator = BareCommunicator { nccl, raw };
        communicator.settle("ncclCommInitRankConfig", status)?;
        Ok(communicator)
    }

    /// Waits until a nonblocking call is no longer in progress, before which NCCL accepts no other
    /// call.
    fn settle(&self, what: &str, mut status: i32) -> Result<()> {
        if status == SUCCESS {
            return Ok(());
        }
        let end = Instant::now() + TIMEOUT;
        while status == IN_PROGRESS && Instant::now() < end {
            let mut state = SUCCESS;
            // SAFETY: the communicator is there; writes one number.
            check("ncclCommGetAsyncError", unsafe { (self.nccl.state)(self.raw, &mut state) })?;
            status = state;
        }
        check(what, status)
    }

    /// Enqueues the sum of float32.
    ///
    /// # Safety
    ///
    /// Both addresses are valid for `count` floats on this rank's GPU until the call has finished.
    pub unsafe fn sum(&self, from: *const u8, to: *mut u8, count: usize, stream: Handle) -> Result<()> {
        // SAFETY: the caller's promise.
        let status = unsafe { (self.nccl.all_reduce)(from, to, count, FLOAT32, SUM, self.raw, stream) };
        self.settle("ncclAllReduce", status)
    }

    /// Finalizes and destroys the communicator. Collective.
    pub fn end(self) -> Result<()> {
        // SAFETY: `self` is the only handle, and the calls are its last use.
        unsafe {
            self.settle("ncclCommFinalize", (self.nccl.finalize)(self.raw))?;
            check("ncclCommDestroy", (self.nccl.destroy)(self.raw))
        }
    }
}

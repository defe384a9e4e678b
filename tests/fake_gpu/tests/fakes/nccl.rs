//! The fake NCCL, as a program sees it, and ranks to try it with.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::cuda::{self, Handle, NO_HANDLE, library, ok, use_device};

#[derive(Clone, Copy)]
#[repr(C)]
pub struct UniqueId(pub [u8; 128]);

/// NCCL 2.30's configuration.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Config {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub blocking: c_int,
    pub cga_cluster_size: c_int,
    pub min_ctas: c_int,
    pub max_ctas: c_int,
    pub net_name: usize,
    pub split_share: c_int,
    pub traffic_class: c_int,
    pub comm_name: usize,
    pub rest: [c_int; 10],
}

impl Config {
    pub fn new(blocking: bool) -> Self {
        const UNSET: c_int = c_int::MIN;
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: 23007,
            blocking: blocking.into(),
            cga_cluster_size: UNSET,
            min_ctas: UNSET,
            max_ctas: UNSET,
            net_name: 0,
            split_share: UNSET,
            traffic_class: UNSET,
            comm_name: 0,
            rest: [UNSET; 10],
        }
    }
}

library!(Nccl, "libnccl.so.2", {
    version = "ncclGetVersion"(*mut c_int) -> c_int;
    unique_id = "ncclGetUniqueId"(*mut UniqueId) -> c_int;
    init = "ncclCommInitRankConfig"(*mut Handle, c_int, UniqueId, c_int, *mut Config) -> c_int;
    init_plain = "ncclCommInitRank"(*mut Handle, c_int, UniqueId, c_int) -> c_int;
    async_error = "ncclCommGetAsyncError"(Handle, *mut c_int) -> c_int;
    last_error = "ncclGetLastError"(Handle) -> *const c_char;
    finalize = "ncclCommFinalize"(Handle) -> c_int;
    destroy = "ncclCommDestroy"(Handle) -> c_int;
    abort = "ncclCommAbort"(Handle) -> c_int;
    split = "ncclCommSplit"(Handle, c_int, c_int, *mut Handle, *mut Config) -> c_int;
    count = "ncclCommCount"(Handle, *mut c_int) -> c_int;
    user_rank = "ncclCommUserRank"(Handle, *mut c_int) -> c_int;
    device = "ncclCommCuDevice"(Handle, *mut c_int) -> c_int;
    all_reduce = "ncclAllReduce"(u64, u64, usize, c_int, c_int, Handle, Handle) -> c_int;
    all_gather = "ncclAllGather"(u64, u64, usize, c_int, Handle, Handle) -> c_int;
    broadcast = "ncclBroadcast"(u64, u64, usize, c_int, c_int, Handle, Handle) -> c_int;
    reduce = "ncclReduce"(u64, u64, usize, c_int, c_int, c_int, Handle, Handle) -> c_int;
    reduce_scatter = "ncclReduceScatter"(u64, u64, usize, c_int, c_int, Handle, Handle) -> c_int;
    send = "ncclSend"(u64, usize, c_int, c_int, Handle, Handle) -> c_int;
    receive = "ncclRecv"(u64, usize, c_int, c_int, Handle, Handle) -> c_int;
    group_start = "ncclGroupStart"() -> c_int;
    group_end = "ncclGroupEnd"() -> c_int;
});

// What only the stand-in has.
library!(Reports, "libnccl.so.2", {
    live_count = "fake_nccl_live"(*const c_char) -> usize;
    call_count = "fake_nccl_calls"(*const c_char) -> u64;
    violation_count = "fake_nccl_violations"() -> usize;
    violation_text = "fake_nccl_violation"(usize) -> *const c_char;
    log_text = "fake_nccl_log"() -> *const c_char;
});

// What only the current variant has.
library!(Newer, "libnccl.so.2", {
    all_to_all = "ncclAlltoAll"(u64, u64, usize, c_int, Handle, Handle) -> c_int;
    gather = "ncclGather"(u64, u64, usize, c_int, c_int, Handle, Handle) -> c_int;
    scatter = "ncclScatter"(u64, u64, usize, c_int, c_int, Handle, Handle) -> c_int;
    memory_allocate = "ncclMemAlloc"(*mut u64, usize) -> c_int;
    memory_free = "ncclMemFree"(u64) -> c_int;
    window_register = "ncclCommWindowRegister"(Handle, u64, usize, *mut Handle, c_int) -> c_int;
    window_deregister = "ncclCommWindowDeregister"(Handle, Handle) -> c_int;
    revoke = "ncclCommRevoke"(Handle, c_int) -> c_int;
});

pub const UNHANDLED_CUDA_ERROR: c_int = 1;
pub const SYSTEM_ERROR: c_int = 2;
pub const INTERNAL_ERROR: c_int = 3;
pub const INVALID_ARGUMENT: c_int = 4;
pub const INVALID_USAGE: c_int = 5;
pub const REMOTE_ERROR: c_int = 6;
pub const IN_PROGRESS: c_int = 7;

pub const INT8: c_int = 0;
pub const UINT8: c_int = 1;
pub const INT32: c_int = 2;
pub const UINT32: c_int = 3;
pub const INT64: c_int = 4;
pub const UINT64: c_int = 5;
pub const FLOAT16: c_int = 6;
pub const FLOAT32: c_int = 7;
pub const FLOAT64: c_int = 8;
pub const BFLOAT16: c_int = 9;
pub const FLOAT8_E4M3: c_int = 10;
pub const FLOAT8_E5M2: c_int = 11;

pub const SUM: c_int = 0;
pub const PROD: c_int = 1;
pub const MAX: c_int = 2;
pub const MIN: c_int = 3;
pub const AVG: c_int = 4;

pub fn nccl() -> &'static Nccl {
    static NCCL: OnceLock<Nccl> = OnceLock::new();
    NCCL.get_or_init(Nccl::load)
}

pub fn newer() -> &'static Newer {
    static NEWER: OnceLock<Newer> = OnceLock::new();
    NEWER.get_or_init(Newer::load)
}

pub fn reports() -> &'static Reports {
    static REPORTS: OnceLock<Reports> = OnceLock::new();
    REPORTS.get_or_init(Reports::load)
}

/// Whether this is NCCL's own host code, which reports nothing.
pub fn is_nccl() -> bool {
    std::env::var_os(fake_gpu::NCCL).is_some()
}

fn text(pointer: *const c_char) -> String {
    // SAFETY: the library gives texts that stay until the next call.
    unsafe { CStr::from_ptr(pointer) }.to_str().expect("plain text").to_string()
}

pub fn violations() -> Vec<String> {
    let count = if is_nccl() { 0 } else { (reports().violation_count)() };
    (0..count).map(|i| text((reports().violation_text)(i))).collect()
}

#[track_caller]
pub fn no_violations() {
    assert_eq!(violations(), [""; 0]);
}

pub fn log() -> String {
    if is_nccl() { String::new() } else { text((reports().log_text)()) }
}

pub fn last_error() -> String {
    text((nccl().last_error)(NO_HANDLE))
}

pub fn live(kind: &CStr) -> usize {
    if is_nccl() { 0 } else { (reports().live_count)(kind.as_ptr()) }
}

pub fn unique_id() -> UniqueId {
    let mut id = UniqueId([0; 128]);
    ok((nccl().unique_id)(&mut id));
    id
}

pub fn async_error(communicator: Handle) -> c_int {
    let mut error = -1;
    ok((nccl().async_error)(communicator, &mut error));
    error
}

/// The result of a call, after it is no longer in progress. Split and window registration return
/// success while they are in progress.
pub fn finished(communicator: Handle, mut result: c_int) -> c_int {
    if result == 0 {
        result = async_error(communicator);
    }
    while result == IN_PROGRESS {
        std::thread::sleep(Duration::from_micros(100));
        result = async_error(communicator);
    }
    result
}

/// One rank: a thread with a device, a stream and a communicator.
pub struct Rank {
    pub rank: c_int,
    pub size: c_int,
    pub communicator: Handle,
    pub stream: Handle,
}

impl Rank {
    pub fn new(size: c_int, id: UniqueId, rank: c_int, blocking: bool) -> Self {
        use_device(rank);
        let mut communicator = NO_HANDLE;
        let result = (nccl().init)(&mut communicator, size, id, rank, &mut Config::new(blocking));
        assert_eq!(result, if blocking { 0 } else { IN_PROGRESS });
        ok(finished(communicator, result));
        Rank { rank, size, communicator, stream: cuda::stream() }
    }

    /// Waits for the call, and for the stream.
    #[track_caller]
    pub fn done(&self, result: c_int) {
        ok(finished(self.communicator, result));
        cuda::synchronize(self.stream);
    }

    /// Waits for the call.
    #[track_caller]
    pub fn called(&self, result: c_int) {
        ok(finished(self.communicator, result));
    }

    pub fn all_reduce(&self, at: u64, count: usize) -> c_int {
        (nccl().all_reduce)(at, at, count, FLOAT32, SUM, self.communicator, self.stream)
    }

    pub fn end(&self) {
        ok(finished(self.communicator, (nccl().finalize)(self.communicator)));
        ok((nccl().destroy)(self.communicator));
    }

    pub fn abort(&self) {
        ok((nccl().abort)(self.communicator));
    }
}

/// Runs ranks, each on a thread, and gives what they return.
pub fn on_ranks<T: Send + 'static>(
    size: c_int,
    blocking: bool,
    body: impl Fn(&Rank) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let (body, id) = (Arc::new(body), unique_id());
    let threads: Vec<_> = (0..size)
        .map(|rank| {
            let body = body.clone();
            std::thread::spawn(move || body(&Rank::new(size, id, rank, blocking)))
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().expect("no panic on a rank")).collect()
}

/// Elements that show their rank and index.
pub fn pattern(rank: c_int, count: usize) -> Vec<i32> {
    (0..count as i32).map(|i| 1000 * (rank + 1) + i).collect()
}

//! The link over UCX, loaded at its first use: Debian's `libucx0`, or the PyPI package
//! `libucx-cu12`. Which networks it takes, UCX decides, and its variables `UCX_TLS` and
//! `UCX_NET_DEVICES` say.

mod sys;

use std::collections::VecDeque;
use std::ffi::{CStr, c_void};
use std::os::fd::BorrowedFd;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI8, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use sys::{ucp_ep_h, ucp_request_param_t, ucs_status_t};

use super::{ComingMessage, Link, LinkMessage, Tag, take_whole};
use crate::comm::backend_kind::BackendKind;
use crate::comm::rank_lock::try_enter;
use crate::error::{Result, bail, error};
use crate::rank::Rank;
use crate::util::bytes::Bytes;
use crate::util::descriptors::make_room_for_processes;
use crate::util::fork::ProcessGuard;
use crate::util::{lock, signal_handlers};

/// How long a rank that leaves waits until its last messages are on their way.
const FLUSH_TIME: Duration = Duration::from_secs(1);

/// The most steps of UCX's between two looks at anything else.
const MOST_STEPS: usize = 64;

/// About how many files a link opens, apart from its connections.
const FILES: usize = 8;

/// Loads UCX, and leaves the program's signal handlers as they are.
fn load() -> Result<&'static str> {
    let missing = |tried: &str| {
        error!(
            Unsupported,
            "UCX is not to be found; tried {tried}. It is in the package libucx0, and in the PyPI package libucx-cu12, \
             whose lib folder then has to be in LD_LIBRARY_PATH"
        )
    };
    signal_handlers::keep(|| sys::load(&["libucp.so.0"], missing))
}

/// The version of UCX, which is loaded once: (1, 13).
pub(crate) fn version() -> Result<(i32, i32)> {
    static FILE: OnceLock<Result<&'static str>> = OnceLock::new();
    let file = FILE.get_or_init(load).clone()?;
    if let Some(name) = sys::lacking().first() {
        bail!(Unsupported, "{file} has no {name}; it is older than UCX 1.11");
    }
    let [mut major, mut minor, mut release] = [0; 3];
    // SAFETY: writes three numbers.
    unsafe { sys::ucp_get_version(&mut major, &mut minor, &mut release) };
    Ok((major as i32, minor as i32))
}

fn check(what: &str, status: ucs_status_t) -> Result<()> {
    if status == ucs_status_t::UCS_OK {
        return Ok(());
    }
    // SAFETY: it gives null, or a text that stays.
    let text = unsafe { sys::ucs_status_string(status).as_ref().map(|first| CStr::from_ptr(first)) };
    bail!(System, "{what}: {} ({})", text.unwrap_or_default().to_string_lossy(), status.0)
}

const PLAIN: ucp_request_param_t = ucp_request_param_t { op_attr_mask: 0, flags: 0, unused: [0; 15] };

/// UCX's objects, of which one thread at a time makes calls.
struct UcxWorker {
    context: sys::ucp_context_h,
    worker: sys::ucp_worker_h,
    /// For each rank of the job.
    endpoints: Vec<ucp_ep_h>,
    sends: Vec<(UcxRequest, Bytes)>,
    receives: VecDeque<ComingMessage<UcxRequest>>,
}

// SAFETY: UCX allows any thread to make calls, one at a time (UCS_THREAD_MODE_SERIALIZED).
unsafe impl Send for UcxWorker {}

/// A request of UCX's that has not ended.
struct UcxRequest(*mut c_void);

impl UcxRequest {
    /// How it has ended, if it has. Then it is freed.
    fn end(&self) -> Option<ucs_status_t> {
        // SAFETY: the request lives until it is freed here.
        let status = unsafe { sys::ucp_request_check_status(self.0) };
        if status == ucs_status_t::UCS_INPROGRESS {
            return None;
        }
        // SAFETY: as above; the caller drops it now.
        unsafe { sys::ucp_request_free(self.0) };
        Some(status)
    }
}

/// The link of one process.
pub(crate) struct UcxLink {
    own: Rank,
    worker: Mutex<UcxWorker>,
    descriptor: i32,
    unsent: AtomicUsize,
    /// For each rank of the job, the status with which its connection has ended, or 0. UCX has the
    /// addresses of these.
    ended: Box<[AtomicI8]>,
    process: ProcessGuard,
}

impl UcxLink {
    /// A link without connections, and the address at which the other processes reach it.
    pub(in crate::comm) fn new(own: Rank, world_size: u32) -> Result<(Self, Vec<u8>)> {
        version()?;
        make_room_for_processes(FILES + world_size as usize);
        let (mut context, mut worker, mut config) = (null_mut(), null_mut(), null_mut());
        let params = sys::ucp_params_t {
            field_mask: sys::UCP_PARAM_FIELD_FEATURES,
            features: sys::UCP_FEATURE_TAG | sys::UCP_FEATURE_WAKEUP,
            unused: [0; 30],
        };
        let worker_params = sys::ucp_worker_params_t {
            field_mask: sys::UCP_WORKER_PARAM_FIELD_THREAD_MODE,
            thread_mode: sys::UCS_THREAD_MODE_SERIALIZED,
            unused: [0; 62],
        };
        // SAFETY: UCX writes a handle to each pointer, and reads the fields that the masks name.
        unsafe {
            check("ucp_config_read", sys::ucp_config_read(null(), null(), &mut config))?;
            let made = sys::ucp_init_version(1, 11, &params, config, &mut context);
            sys::ucp_config_release(config);
            check("ucp_init", made)?;
            let made = sys::ucp_worker_create(context, &worker_params, &mut worker);
            check("ucp_worker_create", made).inspect_err(|_| sys::ucp_cleanup(context))?;
        }
        let worker = UcxWorker { context, worker, endpoints: Vec::new(), sends: Vec::new(), receives: VecDeque::new() };
        let mut link = UcxLink {
            own,
            descriptor: -1,
            unsent: AtomicUsize::new(0),
            ended: (0..world_size).map(|_| AtomicI8::new(0)).collect(),
            process: ProcessGuard::current(),
            worker: Mutex::new(worker),
        };
        let worker = lock(&link.worker).worker;
        let (mut address, mut len) = (null_mut(), 0);
        // SAFETY: UCX gives `len` bytes, which are copied before they are released.
        let address = unsafe {
            check("ucp_worker_get_efd", sys::ucp_worker_get_efd(worker, &mut link.descriptor))?;
            check("ucp_worker_get_address", sys::ucp_worker_get_address(worker, &mut address, &mut len))?;
            let copy = std::slice::from_raw_parts(address.cast::<u8>(), len).to_vec();
            sys::ucp_worker_release_address(worker, address);
            copy
        };
        Ok((link, address))
    }

    /// Makes the connections with the other ranks of the job, which have these addresses. UCX
    /// connects at the first message.
    pub(in crate::comm) fn connect(&self, addresses: &[Vec<u8>]) -> Result<()> {
        let mut locked = lock(&self.worker);
        for (address, ended) in addresses.iter().zip(&self.ended) {
            let mut endpoint = null_mut();
            if locked.endpoints.len() != self.own.index() {
                // UCX reads as much as the address says.
                let address = Bytes::copy_of(address);
                let params = sys::ucp_ep_params_t {
                    field_mask: sys::UCP_EP_PARAM_FIELD_REMOTE_ADDRESS
                        | sys::UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE
                        | sys::UCP_EP_PARAM_FIELD_ERR_HANDLER,
                    address: address.as_ptr().cast(),
                    err_mode: sys::UCP_ERR_HANDLING_MODE_PEER,
                    err_handler: on_end,
                    err_handler_arg: (&raw const *ended).cast_mut().cast(),
                    unused: [0; 27],
                };
                // SAFETY: the address is one that a worker gave. The argument of the handler lives
                // longer than the endpoint.
                let made = unsafe { sys::ucp_ep_create(locked.worker, &params, &mut endpoint) };
                let rank = locked.endpoints.len();
                if made == ucs_status_t::UCS_ERR_UNREACHABLE {
                    bail!(
                        System,
                        "UCX has no network between this rank's machine and rank {rank}'s, or that rank has failed: \
                         `ucx_info -d` lists what UCX has on each machine; UCX_NET_DEVICES and UCX_TLS choose among them"
                    );
                }
                check(&format!("no connection with rank {rank}: ucp_ep_create"), made)?;
            }
            locked.endpoints.push(endpoint);
        }
        Ok(())
    }

    /// Waits until a request has ended, or the deadline has come.
    fn wait_for(&self, request: sys::ucs_status_ptr_t, deadline: Instant) {
        let Ok(request) = request.pending() else { return };
        let request = UcxRequest(request);
        while Instant::now() < deadline {
            let locked = lock(&self.worker);
            // SAFETY: no other thread makes a call.
            let has_moved = unsafe { sys::ucp_worker_progress(locked.worker) }.0 != 0;
            if request.end().is_some() {
                return;
            }
            drop(locked);
            if !has_moved {
                std::thread::yield_now();
            }
        }
    }

    /// Notes that a rank's messages do not come any more.
    fn end_connection(&self, rank: Rank, status: ucs_status_t) {
        let _ended_before =
            self.ended[rank.index()].compare_exchange(0, status.0, Ordering::Release, Ordering::Relaxed);
    }

    /// Looks which receives have ended. A message that did not come whole is dropped: its sender's
    /// connection has ended.
    fn end_receives(&self, receives: &mut VecDeque<ComingMessage<UcxRequest>>) {
        receives.retain_mut(|receive| {
            let Some(status) = receive.rest.as_ref().and_then(UcxRequest::end) else { return true };
            receive.rest = None;
            if status != ucs_status_t::UCS_OK {
                self.end_connection(receive.arrival.from, status);
            }
            status == ucs_status_t::UCS_OK
        });
    }

    /// Frees the sends that have ended.
    fn reap(&self, worker: &mut UcxWorker) {
        worker.sends.retain(|(request, bytes)| {
            let has_ended = request.end().is_some();
            if has_ended {
                self.unsent.fetch_sub(bytes.len(), Ordering::Relaxed);
            }
            !has_ended
        });
    }
}

/// UCX calls it when a connection has failed.
///
/// # Safety
///
/// `argument` is that of the endpoint.
unsafe extern "C" fn on_end(argument: *mut c_void, _endpoint: ucp_ep_h, status: ucs_status_t) {
    // SAFETY: the caller's promise: it is one of `UcxLink::ended`.
    unsafe { &*argument.cast::<AtomicI8>() }.store(status.0, Ordering::Release);
}

impl Link for UcxLink {
    fn kind(&self) -> BackendKind {
        BackendKind::Ucx
    }

    fn send(&self, to: Rank, tag: Tag, bytes: Bytes) -> Result<()> {
        let mut locked = lock(&self.worker);
        if self.has_died(to) {
            bail!(PeerLost, "rank {to} died");
        }
        let endpoint = locked.endpoints[to.index()];
        // SAFETY: the bytes live in `sends` until the request has ended.
        let request = unsafe {
            sys::ucp_tag_send_nbx(endpoint, bytes.as_ptr().cast(), bytes.len(), tag.to_word(self.own), &PLAIN)
        };
        match request.pending() {
            Ok(request) => {
                self.unsent.fetch_add(bytes.len(), Ordering::Relaxed);
                locked.sends.push((UcxRequest(request), bytes));
            }
            Err(ucs_status_t::UCS_OK) => {}
            Err(status) => {
                self.end_connection(to, status);
                bail!(PeerLost, "rank {to} died")
            }
        }
        Ok(())
    }

    fn progress(&self, arrivals: &mut Vec<LinkMessage>) -> Result<bool> {
        let Some(mut locked) = try_enter(&self.worker) else { return Ok(false) };
        let worker = &mut *locked;
        // SAFETY: no other thread makes a call.
        let steps = (0..MOST_STEPS).take_while(|_| unsafe { sys::ucp_worker_progress(worker.worker) }.0 != 0).count();
        self.reap(worker);
        loop {
            let mut info = sys::ucp_tag_recv_info_t::default();
            // SAFETY: as above; the message is received next.
            let message = unsafe { sys::ucp_tag_probe_nb(worker.worker, 0, 0, 1, &mut info) };
            if message.is_null() {
                break;
            }
            let Some((from, tag)) = Tag::from_word(info.sender_tag).filter(|(from, _)| from.index() < self.ended.len())
            else {
                bail!(System, "a message has tag {:x}", info.sender_tag)
            };
            let mut bytes = Bytes::of_peers_len(info.length)?;
            let to = bytes.as_mut_ptr().cast();
            // SAFETY: the bytes live in `receives` until the request has ended.
            let request = unsafe { sys::ucp_tag_msg_recv_nbx(worker.worker, to, info.length, message, &PLAIN) };
            let rest = match request.pending() {
                Ok(request) => Some(UcxRequest(request)),
                Err(ucs_status_t::UCS_OK) => None,
                Err(status) => {
                    self.end_connection(from, status);
                    continue;
                }
            };
            worker.receives.push_back(ComingMessage { arrival: LinkMessage { from, tag, bytes }, rest });
        }
        self.end_receives(&mut worker.receives);
        take_whole(&mut worker.receives, arrivals);
        Ok(steps > 0 || !arrivals.is_empty())
    }

    fn unsent(&self) -> usize {
        self.unsent.load(Ordering::Relaxed)
    }

    fn has_died(&self, rank: Rank) -> bool {
        self.ended[rank.index()].load(Ordering::Acquire) != 0
    }

    fn flush(&self) {
        let deadline = Instant::now() + FLUSH_TIME;
        loop {
            let mut locked = lock(&self.worker);
            // SAFETY: no other thread makes a call.
            unsafe { sys::ucp_worker_progress(locked.worker) };
            self.reap(&mut locked);
            if locked.sends.is_empty() {
                break;
            }
            drop(locked);
            if Instant::now() >= deadline {
                return;
            }
            std::thread::yield_now();
        }
        // SAFETY: as above.
        let request = unsafe { sys::ucp_worker_flush_nbx(lock(&self.worker).worker, &PLAIN) };
        self.wait_for(request, deadline);
    }

    fn to_sleep_on(&self) -> Option<BorrowedFd<'_>> {
        let locked: MutexGuard<'_, UcxWorker> = lock(&self.worker);
        // SAFETY: no other thread makes a call. UCX keeps the descriptor until the worker ends.
        unsafe {
            let armed = sys::ucp_worker_arm(locked.worker);
            (armed != ucs_status_t::UCS_ERR_BUSY).then(|| BorrowedFd::borrow_raw(self.descriptor))
        }
    }
}

impl Drop for UcxLink {
    fn drop(&mut self) {
        if self.process.is_current() {
            // What has come and was not wanted, so that UCX does not warn of it.
            let _unwanted = self.progress(&mut Vec::new());
        }
        let worker = self.worker.get_mut().unwrap_or_else(PoisonError::into_inner);
        // What UCX may still read or write is leaked. In a fork, UCX belongs to the other process.
        std::mem::forget(std::mem::take(&mut worker.receives));
        std::mem::forget(std::mem::take(&mut worker.sends));
        if !self.process.is_current() {
            return;
        }
        let mut locked = lock(&self.worker);
        let endpoints = std::mem::take(&mut locked.endpoints);
        let (worker, context) = (locked.worker, locked.context);
        drop(locked);
        let force = ucp_request_param_t {
            op_attr_mask: sys::UCP_OP_ATTR_FIELD_FLAGS,
            flags: sys::UCP_EP_CLOSE_FLAG_FORCE,
            ..PLAIN
        };
        let endpoints = endpoints.into_iter().filter(|endpoint| !endpoint.is_null());
        // SAFETY: no other thread has the link.
        let closing: Vec<_> = endpoints.map(|endpoint| unsafe { sys::ucp_ep_close_nbx(endpoint, &force) }).collect();
        let deadline = Instant::now() + FLUSH_TIME / 10;
        closing.into_iter().for_each(|request| self.wait_for(request, deadline));
        // SAFETY: as above; nothing uses the worker after this.
        unsafe {
            sys::ucp_worker_destroy(worker);
            sys::ucp_cleanup(context);
        }
    }
}

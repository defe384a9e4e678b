//! The part of UCX's API (`ucp/api/ucp.h`, from 1.11 on) that the link calls, with its names and
//! types. Structures end with room for the fields of newer versions, which their masks switch off.
#![expect(non_camel_case_types, reason = "the names are UCX's")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

use crate::cuda::library::{Unloaded, functions, handles};

handles! {
    ucp_context_h = ucp_context;
    ucp_worker_h = ucp_worker;
    ucp_ep_h = ucp_ep;
    ucp_config_h = ucp_config;
    ucp_address_h = ucp_address;
    ucp_tag_message_h = ucp_recv_desc;
}

/// `UCS_OK`, `UCS_INPROGRESS`, or a negative number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct ucs_status_t(pub(super) i8);

impl ucs_status_t {
    pub(super) const UCS_OK: Self = ucs_status_t(0);
    pub(super) const UCS_INPROGRESS: Self = ucs_status_t(1);
    pub(super) const UCS_ERR_UNREACHABLE: Self = ucs_status_t(-6);
    pub(super) const UCS_ERR_NOT_IMPLEMENTED: Self = ucs_status_t(-8);
    pub(super) const UCS_ERR_BUSY: Self = ucs_status_t(-15);
}

/// A request; null for one that has ended, and the highest hundred addresses for errors.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct ucs_status_ptr_t(pub(super) *mut c_void);

impl ucs_status_ptr_t {
    /// The request that goes on, or how it has ended.
    pub(super) fn pending(self) -> Result<*mut c_void, ucs_status_t> {
        match self.0.addr().wrapping_neg() {
            0 => Err(ucs_status_t::UCS_OK),
            error @ 1..=100 => Err(ucs_status_t(-(error as i8))),
            _ => Ok(self.0),
        }
    }
}

impl Unloaded for ucs_status_t {
    const UNLOADED: Self = ucs_status_t::UCS_ERR_NOT_IMPLEMENTED;
}

impl Unloaded for ucs_status_ptr_t {
    const UNLOADED: Self = ucs_status_ptr_t(null_mut());
}

impl Unloaded for () {
    const UNLOADED: Self = ();
}

/// How much `ucp_worker_progress` has moved.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Moved(pub(super) c_uint);

impl Unloaded for Moved {
    const UNLOADED: Self = Moved(0);
}

impl Unloaded for ucp_tag_message_h {
    const UNLOADED: Self = null_mut();
}

pub(super) const UCP_PARAM_FIELD_FEATURES: u64 = 1;
pub(super) const UCP_FEATURE_TAG: u64 = 1;
pub(super) const UCP_FEATURE_WAKEUP: u64 = 1 << 4;
pub(super) const UCP_WORKER_PARAM_FIELD_THREAD_MODE: u64 = 1;
pub(super) const UCS_THREAD_MODE_SERIALIZED: c_int = 1;
pub(super) const UCP_EP_PARAM_FIELD_REMOTE_ADDRESS: u64 = 1;
pub(super) const UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE: u64 = 1 << 1;
pub(super) const UCP_EP_PARAM_FIELD_ERR_HANDLER: u64 = 1 << 2;
pub(super) const UCP_ERR_HANDLING_MODE_PEER: c_int = 1;
pub(super) const UCP_OP_ATTR_FIELD_FLAGS: u32 = 1 << 4;
pub(super) const UCP_EP_CLOSE_FLAG_FORCE: u32 = 1;

/// The fields that the link sets, as in the structures below, and room for the others.
#[repr(C)]
pub(super) struct ucp_params_t {
    pub(super) field_mask: u64,
    pub(super) features: u64,
    pub(super) unused: [u64; 30],
}

#[repr(C)]
pub(super) struct ucp_worker_params_t {
    pub(super) field_mask: u64,
    pub(super) thread_mode: c_int,
    pub(super) unused: [u64; 62],
}

pub(super) type ucp_err_handler_cb_t = unsafe extern "C" fn(*mut c_void, ucp_ep_h, ucs_status_t);

#[repr(C)]
pub(super) struct ucp_ep_params_t {
    pub(super) field_mask: u64,
    pub(super) address: *const c_void,
    pub(super) err_mode: c_int,
    pub(super) err_handler: ucp_err_handler_cb_t,
    pub(super) err_handler_arg: *mut c_void,
    pub(super) unused: [u64; 27],
}

#[repr(C)]
pub(super) struct ucp_request_param_t {
    pub(super) op_attr_mask: u32,
    pub(super) flags: u32,
    pub(super) unused: [u64; 15],
}

#[derive(Default)]
#[repr(C)]
pub(super) struct ucp_tag_recv_info_t {
    pub(super) sender_tag: u64,
    pub(super) length: usize,
}

functions! {
    fn ucs_status_string(status: ucs_status_t) -> *const c_char;
    fn ucp_get_version(major: *mut c_uint, minor: *mut c_uint, release: *mut c_uint) -> ();
    fn ucp_config_read(prefix: *const c_char, file: *const c_char, config: *mut ucp_config_h) -> ucs_status_t;
    fn ucp_config_release(config: ucp_config_h) -> ();
    fn ucp_init_version(
        major: c_uint,
        minor: c_uint,
        params: *const ucp_params_t,
        config: ucp_config_h,
        context: *mut ucp_context_h
    ) -> ucs_status_t;
    fn ucp_cleanup(context: ucp_context_h) -> ();
    fn ucp_worker_create(
        context: ucp_context_h,
        params: *const ucp_worker_params_t,
        worker: *mut ucp_worker_h
    ) -> ucs_status_t;
    fn ucp_worker_destroy(worker: ucp_worker_h) -> ();
    fn ucp_worker_get_address(worker: ucp_worker_h, address: *mut ucp_address_h, len: *mut usize) -> ucs_status_t;
    fn ucp_worker_release_address(worker: ucp_worker_h, address: ucp_address_h) -> ();
    fn ucp_worker_get_efd(worker: ucp_worker_h, descriptor: *mut c_int) -> ucs_status_t;
    fn ucp_worker_arm(worker: ucp_worker_h) -> ucs_status_t;
    fn ucp_worker_progress(worker: ucp_worker_h) -> Moved;
    fn ucp_worker_flush_nbx(worker: ucp_worker_h, param: *const ucp_request_param_t) -> ucs_status_ptr_t;
    fn ucp_ep_create(worker: ucp_worker_h, params: *const ucp_ep_params_t, ep: *mut ucp_ep_h) -> ucs_status_t;
    fn ucp_ep_close_nbx(ep: ucp_ep_h, param: *const ucp_request_param_t) -> ucs_status_ptr_t;
    fn ucp_tag_send_nbx(
        ep: ucp_ep_h,
        buffer: *const c_void,
        count: usize,
        tag: u64,
        param: *const ucp_request_param_t
    ) -> ucs_status_ptr_t;
    fn ucp_tag_probe_nb(
        worker: ucp_worker_h,
        tag: u64,
        mask: u64,
        remove: c_int,
        info: *mut ucp_tag_recv_info_t
    ) -> ucp_tag_message_h;
    fn ucp_tag_msg_recv_nbx(
        worker: ucp_worker_h,
        buffer: *mut c_void,
        count: usize,
        message: ucp_tag_message_h,
        param: *const ucp_request_param_t
    ) -> ucs_status_ptr_t;
    fn ucp_request_check_status(request: *mut c_void) -> ucs_status_t;
    fn ucp_request_free(request: *mut c_void) -> ();
}

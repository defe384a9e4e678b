//! How a thread's calls of the driver act on captures of other threads.

use super::sys::{self, CUstreamCaptureMode};

use super::driver::check;
use crate::error::Result;

/// Allows this thread what a capture in GLOBAL mode, which is PyTorch's default, forbids to all
/// threads of the process: to query events, to allocate and to free memory, to load kernels. In any
/// other mode of the thread such a call is an error and invalidates that capture.
pub(super) struct Relaxed(CUstreamCaptureMode);

impl Relaxed {
    pub(super) fn begin() -> Result<Self> {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: exchanges the thread's mode with the variable's.
        check("cuThreadExchangeStreamCaptureMode", unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) })?;
        Ok(Relaxed(mode))
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: restores the mode that `begin` has replaced.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut self.0) };
    }
}

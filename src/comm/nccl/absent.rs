//! What stands for this folder in a build without the feature `nccl`: all that the rest of the
//! crate uses of NCCL. What would make a communicator or an id is an error; see `cuda/absent.rs`.

mod id;

use std::convert::Infallible;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Instant;

pub use id::NcclId;

use super::backend::Backend;
use crate::cuda::{Device, absent};
use crate::error::Result;
use crate::rank::Rank;

pub(crate) fn check_gpus(_world_size: u32) -> Result<u32> {
    absent()
}

pub(crate) fn check_all(_world_size: u32) -> Result<u32> {
    absent()
}

pub(crate) fn can_share_gpus() -> Result<bool> {
    absent()
}

pub(crate) fn in_process(_world_size: u32, _deadline: Instant) -> Result<Vec<Arc<dyn Backend>>> {
    absent()
}

pub(crate) fn connect(
    _id: &NcclId,
    _rank: Rank,
    _world_size: u32,
    _ordinal: u32,
    _control: Option<Arc<dyn Backend>>,
    _deadline: Instant,
) -> Result<Arc<dyn Backend>> {
    absent()
}

pub(crate) unsafe fn borrow(_communicator: *mut c_void, _deadline: Instant) -> Result<Arc<dyn Backend>> {
    absent()
}

pub(crate) fn runs_layers(_device: &Device) -> bool {
    false
}

pub(crate) fn reduces_float8(_device: &Device) -> bool {
    false
}

pub(crate) fn library() -> Result<&'static Library> {
    absent()
}

pub(crate) struct Library {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    none: Infallible,
}

impl Library {
    pub(crate) fn has_all_to_all(&self) -> bool {
        match self.none {}
    }

    pub(crate) fn has_windows(&self) -> bool {
        match self.none {}
    }

    fn unique_id(&self) -> Result<[u8; NcclId::BYTE_LEN]> {
        match self.none {}
    }
}

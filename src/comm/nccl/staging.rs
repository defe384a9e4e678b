//! Memory on the GPU for tensors that are in host memory, and their copies.

use std::sync::Arc;

use crate::cuda::{Device, DeviceMemory, Transfer};
use crate::error::Result;

/// Memory for one input and one output, and what copies to and from it. Each is made at the first
/// use.
#[derive(Default)]
pub(super) struct Staging {
    pub(super) input: StagingMemory,
    pub(super) output: StagingMemory,
    transfer: Option<Transfer>,
}

/// Memory that grows if a call needs more.
#[derive(Default)]
pub(super) struct StagingMemory(Option<DeviceMemory>);

impl Staging {
    pub(super) fn transfer(&mut self, device: &Arc<Device>) -> Result<&mut Transfer> {
        match &mut self.transfer {
            Some(transfer) => Ok(transfer),
            none => Ok(none.insert(Transfer::new(device)?)),
        }
    }
}

impl StagingMemory {
    pub(super) fn at_least(&mut self, byte_len: usize, device: &Arc<Device>) -> Result<*mut u8> {
        if let Some(memory) = self.0.as_ref().filter(|memory| memory.byte_len() >= byte_len) {
            return Ok(memory.address());
        }
        // No call is in progress, so the smaller memory can be freed first.
        self.0 = None;
        Ok(self.0.insert(DeviceMemory::new(device, byte_len)?).address())
    }
}

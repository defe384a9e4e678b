//! Memory on the GPU for tensors that are in host memory.

use std::sync::Arc;

use crate::cuda::{Device, DeviceMemory};
use crate::error::Result;

/// Memory for one input and one output; it grows if a call needs more.
#[derive(Default)]
pub(super) struct Staging {
    input: Option<DeviceMemory>,
    output: Option<DeviceMemory>,
}

impl Staging {
    /// Memory for an input.
    pub(super) fn input(&mut self, device: &Arc<Device>, byte_len: usize) -> Result<*mut u8> {
        at_least(&mut self.input, device, byte_len)
    }

    /// Memory for an output.
    pub(super) fn output(&mut self, device: &Arc<Device>, byte_len: usize) -> Result<*mut u8> {
        at_least(&mut self.output, device, byte_len)
    }
}

fn at_least(memory: &mut Option<DeviceMemory>, device: &Arc<Device>, byte_len: usize) -> Result<*mut u8> {
    if let Some(memory) = memory.as_ref().filter(|memory| memory.byte_len() >= byte_len) {
        return Ok(memory.address());
    }
    // No call is in progress, so the smaller memory can be freed first.
    *memory = None;
    Ok(memory.insert(DeviceMemory::new(device, byte_len)?).address())
}

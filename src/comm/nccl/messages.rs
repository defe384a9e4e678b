//! Messages from one rank to another: NCCL's sends and receives, several in one group.

use std::sync::Arc;
use std::time::Instant;

use super::calls::{in_group, nccl_type};
use super::sys::*;
use super::{NcclBackend, RankState};
use crate::comm::message::{Delivery, Direction, MessageRequest};
use crate::cuda::CudaStream;
use crate::error::{Error, ErrorKind, Result, bail};
use crate::memory::MemorySpace;
use crate::rank::GroupRank;
use crate::stream::Watch;

/// Checks what NCCL asks of a message.
pub(super) fn check(message: &MessageRequest) -> Result<()> {
    if message.tag != 0 {
        bail!(Unsupported, "tag {}: NCCL has no tags, so the tag of a message is 0", message.tag);
    }
    if message.direction == Direction::Receive(None) {
        bail!(Unsupported, "NCCL does not receive from any rank; name the source");
    }
    Ok(())
}

impl NcclBackend {
    /// Runs one message on this communicator's own stream until it is done. A tensor in host memory
    /// is copied to the GPU or back.
    ///
    /// # Safety
    ///
    /// As [`Backend::run_message`](crate::comm::backend::Backend::run_message).
    pub(super) unsafe fn complete_message(
        &self,
        state: &mut RankState,
        message: &MessageRequest,
        deadline: Instant,
    ) -> Result<Delivery> {
        let (device, stream, byte_len) = (self.device(), &self.stream, message.byte_len());
        let alive = &mut || self.check();
        let is_staged = byte_len > 0 && message.address.space == MemorySpace::Host;
        let is_send = matches!(message.direction, Direction::Send(_));
        let mut on_gpu = *message;
        // SAFETY: the caller's promise; the staging is as long as was asked for, and the rank lock
        // keeps other calls from it.
        unsafe {
            if is_staged {
                on_gpu.address.pointer = state.staging.input.at_least(byte_len, device)?;
            }
            if is_staged && is_send {
                let from = message.address.pointer;
                state.staging.transfer(device)?.upload(
                    from,
                    on_gpu.address.pointer,
                    byte_len,
                    stream,
                    deadline,
                    alive,
                )?;
            }
            self.launch_messages(state, &[on_gpu], stream, deadline)?;
            if is_staged && !is_send {
                let to = message.address.pointer;
                state.staging.transfer(device)?.download(
                    on_gpu.address.pointer,
                    to,
                    byte_len,
                    stream,
                    deadline,
                    alive,
                )?;
            }
        }
        stream.synchronize(deadline, alive)?;
        self.check_result()?;
        Ok(self.delivery(message))
    }

    /// Enqueues messages in one group.
    ///
    /// # Safety
    ///
    /// Until the work is done, the buffers are valid on the GPU for the elements of their messages,
    /// and used by nothing else.
    pub(super) unsafe fn launch_messages(
        &self,
        state: &mut RankState,
        messages: &[MessageRequest],
        stream: &Arc<CudaStream>,
        deadline: Instant,
    ) -> Result<()> {
        if let Some(control) = &self.control {
            messages.iter().for_each(|message| control.note_message(message));
        }
        // A group that is in no capture may invalidate one.
        if !stream.is_capturing()? {
            self.connect_opposite(state, messages, deadline)?;
        }
        let cuda_stream = stream.as_ptr().cast();
        self.handle.call("ncclGroupEnd", deadline, &|| self.domain.check(), |raw| {
            let filled = messages.iter().filter(|message| message.element_count > 0);
            // SAFETY: the caller's promise.
            unsafe {
                in_group(filled, |message| {
                    let carried = message.element_count * message.data_type.carrier_count(None);
                    let (data_type, count) = nccl_type(message.data_type.carrier(None), carried);
                    let address = message.address.pointer.cast();
                    self.handle.windows.pool.note_call([message.address.pointer.addr()]);
                    Ok(match message.direction {
                        Direction::Send(to) => ncclSend(address, count, data_type, to.0 as i32, raw, cuda_stream),
                        Direction::Receive(Some(from)) => {
                            ncclRecv(address, count, data_type, from.0 as i32, raw, cuda_stream)
                        }
                        Direction::Receive(None) => ncclInvalidArgument,
                    })
                })
            }
        })
    }

    /// Before the first messages with the opposite rank, sends nothing to it and receives nothing
    /// from it, in a group by itself.
    ///
    /// NCCL connects two ranks in their first group with messages between them. Each way is an
    /// exchange by itself, but for the rank that is as far before this one as behind it: with that
    /// one it exchanges what the group has, and takes what comes for the answer. So if one rank
    /// only sends, and the other one also receives, or only sends too, both fail or wait for ever
    /// (ncclTransportP2pSetup in `transport.cc` of NCCL 2.30.7). But programs order their first
    /// messages as they like.
    fn connect_opposite(&self, state: &mut RankState, messages: &[MessageRequest], deadline: Instant) -> Result<()> {
        let n = self.origins.len() as u32;
        let opposite = GroupRank((self.rank.0 + n / 2) % n);
        let is_with = |message: &MessageRequest| {
            let ends = [Direction::Send(opposite), Direction::Receive(Some(opposite))];
            message.element_count > 0 && ends.contains(&message.direction)
        };
        // What else is done on a borrowed communicator is not known.
        let is_known = !n.is_multiple_of(2) || state.is_opposite_connected || !self.handle.is_own;
        if is_known || !messages.iter().any(is_with) {
            return Ok(());
        }
        let (nothing, stream) = (self.stand_in.address().cast(), self.stream.as_ptr().cast());
        self.handle.call("ncclGroupEnd", deadline, &|| self.domain.check(), |raw| {
            let peer = opposite.0 as i32;
            // SAFETY: no elements are moved, and this thread has the communicator.
            unsafe {
                in_group([true, false], |is_send| {
                    Ok(match is_send {
                        true => ncclSend(nothing, 0, ncclInt8, peer, raw, stream),
                        false => ncclRecv(nothing, 0, ncclInt8, peer, raw, stream),
                    })
                })
            }
        })?;
        state.is_opposite_connected = true;
        Ok(())
    }

    /// What a message brings: NCCL compares no lengths, so all of its elements.
    pub(super) fn delivery(&self, message: &MessageRequest) -> Delivery {
        let source = match message.direction {
            Direction::Receive(Some(from)) => from,
            _ => self.rank,
        };
        Delivery { source, element_count: message.element_count }
    }

    /// The error of messages, which ends the communicator: peers may be in them already.
    pub(super) fn fail_messages(&self, error: Error, messages: &[MessageRequest]) -> Error {
        let error = match (self.domain.ended(), messages) {
            // It names both sides.
            _ if error.kind() == ErrorKind::Disagreement => error,
            (None, [message]) => {
                let what = message.with_ranks(|rank| self.origins[rank.index()]);
                Error::new(error.kind(), format!("{what}: {error}"))
            }
            (None, _) => Error::new(error.kind(), format!("{} messages: {error}", messages.len())),
            _ => error,
        };
        self.fail(error)
    }
}

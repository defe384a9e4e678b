//! Messages from one rank to another: `dcl_send` to `dcl_batch_isend_irecv`.

use dcl::Rank;
use dcl::comm::{RawMessage, Received, Source};

use super::arguments::{ConstVoidPointer, InPointer, OutPointer, SizedStruct, VoidPointer, data_type, index, unsigned};
use super::communicator::CCommunicator;
use super::handle::Handle;
use super::status::{CallError, Result, Status, call};
use super::stream::{AnyWork, CWork};

/// A `src` that stands for any rank.
const ANY_SOURCE: i32 = -1;

/// `dcl_message_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CMessage {
    struct_size: usize,
    buffer: VoidPointer,
    count: usize,
    data_type: i32,
    is_send: i32,
    peer: i32,
    tag: i32,
}

const _: () = assert!(size_of::<CMessage>() == CMessage::FIRST_BYTE_LEN);

// SAFETY: the fields are numbers and pointers; the size comes first.
unsafe impl SizedStruct for CMessage {
    const FIRST_BYTE_LEN: usize = 40;
    const INITIAL: Self = CMessage {
        struct_size: size_of::<Self>(),
        buffer: VoidPointer::NULL,
        count: 0,
        data_type: 0,
        is_send: 0,
        peer: 0,
        tag: 0,
    };
}

impl CMessage {
    fn send(buffer: ConstVoidPointer, count: usize, data_type: i32, dst: i32, tag: i32) -> Self {
        CMessage { buffer: buffer.as_void(), count, data_type, is_send: 1, peer: dst, tag, ..CMessage::INITIAL }
    }

    fn receive(buffer: VoidPointer, count: usize, data_type: i32, src: i32, tag: i32) -> Self {
        CMessage { buffer, count, data_type, is_send: 0, peer: src, tag, ..CMessage::INITIAL }
    }

    fn to_raw(self) -> Result<RawMessage> {
        let CMessage { buffer, count: element_count, is_send, peer, .. } = self;
        let (dst, src) = match (is_send != 0, peer) {
            (true, _) => (Some(Rank(unsigned("dst", peer)?)), Source::Any),
            (false, ANY_SOURCE) => (None, Source::Any),
            (false, _) => (None, Source::Rank(Rank(unsigned("src", peer)?))),
        };
        let (data_type, tag) = (data_type(self.data_type)?, unsigned("tag", self.tag)?);
        Ok(RawMessage { address: buffer.address().cast(), data_type: data_type.into(), element_count, dst, src, tag })
    }

    /// Sends or receives the message.
    fn execute(self, communicator: Handle<CCommunicator>) -> Result<Received> {
        let (communicator, message) = (communicator.get()?, self.to_raw()?);
        // SAFETY: the header requires memory that is long enough, and that the caller leaves alone
        // during the call.
        Ok(unsafe { communicator.communicator.execute_message(&message)? })
    }

    /// Begins to send or receive the message.
    fn begin(self, communicator: Handle<CCommunicator>, work: OutPointer<Handle<CWork>>) -> Result<()> {
        let (communicator, message, output) = (communicator.get()?, self.to_raw()?, work.check("work")?);
        // SAFETY: the header requires memory that is long enough, and that the caller leaves alone
        // until the work is done.
        let work = unsafe { communicator.communicator.enqueue_messages(&[message], None)? };
        output.set(CWork::handle(AnyWork::Messages(work)));
        Ok(())
    }
}

#[unsafe(no_mangle)]
extern "C" fn dcl_message_init(message: OutPointer<CMessage>, struct_size: usize) -> Status {
    call(|| message.initialize("message", struct_size))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_send(
    communicator: Handle<CCommunicator>,
    buffer: ConstVoidPointer,
    count: usize,
    data_type: i32,
    dst: i32,
    tag: i32,
) -> Status {
    call(|| CMessage::send(buffer, count, data_type, dst, tag).execute(communicator).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_recv(
    communicator: Handle<CCommunicator>,
    buffer: VoidPointer,
    count: usize,
    data_type: i32,
    src: i32,
    tag: i32,
    source: OutPointer<i32>,
    received_count: OutPointer<usize>,
) -> Status {
    call(|| {
        let message = CMessage::receive(buffer, count, data_type, src, tag);
        write(message.execute(communicator)?, source, received_count);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_isend(
    communicator: Handle<CCommunicator>,
    buffer: ConstVoidPointer,
    count: usize,
    data_type: i32,
    dst: i32,
    tag: i32,
    work: OutPointer<Handle<CWork>>,
) -> Status {
    call(|| CMessage::send(buffer, count, data_type, dst, tag).begin(communicator, work))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_irecv(
    communicator: Handle<CCommunicator>,
    buffer: VoidPointer,
    count: usize,
    data_type: i32,
    src: i32,
    tag: i32,
    work: OutPointer<Handle<CWork>>,
) -> Status {
    call(|| CMessage::receive(buffer, count, data_type, src, tag).begin(communicator, work))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_batch_isend_irecv(
    communicator: Handle<CCommunicator>,
    messages: InPointer<CMessage>,
    nb_messages: i32,
    work: OutPointer<Handle<CWork>>,
) -> Status {
    call(|| {
        let (communicator, output) = (communicator.get()?, work.check("work")?);
        let messages = messages.structures("messages", nb_messages)?;
        let messages = messages.into_iter().map(CMessage::to_raw).collect::<Result<Vec<_>>>()?;
        // SAFETY: as in `CMessage::begin`.
        let work = unsafe { communicator.communicator.enqueue_messages(&messages, None)? };
        output.set(CWork::handle(AnyWork::Messages(work)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_work_get_received(
    work: Handle<CWork>,
    index: i32,
    source: OutPointer<i32>,
    received_count: OutPointer<usize>,
) -> Status {
    call(|| {
        let work = work.get()?;
        let received = work.received()?;
        let Some(received) = received[self::index("message", index, received.len())?] else {
            return Err(CallError::invalid_argument(format!("message {index} is a send, which receives nothing")));
        };
        write(received, source, received_count);
        Ok(())
    })
}

fn write(received: Received, source: OutPointer<i32>, received_count: OutPointer<usize>) {
    if let Some(source) = source.optional() {
        source.set(received.source.0.cast_signed());
    }
    if let Some(received_count) = received_count.optional() {
        received_count.set(received.element_count);
    }
}

//! Messages that go on by themselves, one or several at once: torch.distributed's isend, irecv and
//! batch_isend_irecv.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::messages::{Received, Source};
use crate::comm::Communicator;
use crate::comm::message::{Delivery, Direction, MessageRequest, OnEnd};
use crate::cuda::CudaStream;
use crate::error::{Error, Result, error};
use crate::memory::{Buffer, RawTensor, TensorView, TensorViewMut};
use crate::moved_type::TransferType;
use crate::rank::Rank;
use crate::stream::{EnqueueError, Stream, Task, Watch, Work, WorkEnd};
use crate::util::{interrupt, lock};

/// A message with its buffer, for [`Communicator::batch_isend_irecv`].
#[derive(Debug)]
pub struct Message {
    /// What is sent, or what is received into.
    pub buffer: Buffer,
    /// The receiver of a send.
    dst: Option<Rank>,
    src: Source,
    tag: u32,
}

impl Message {
    /// A message to rank `dst`.
    pub fn send(buffer: impl Into<Buffer>, dst: impl Into<Rank>, tag: u32) -> Self {
        Message { buffer: buffer.into(), dst: Some(dst.into()), src: Source::Any, tag }
    }

    /// A message from a rank, or from any: `None`.
    pub fn recv(buffer: impl Into<Buffer>, src: impl Into<Source>, tag: u32) -> Self {
        Message { buffer: buffer.into(), dst: None, src: src.into(), tag }
    }

    fn raw(&mut self) -> RawTensor {
        match self.dst {
            Some(_) => *TensorView::from(&self.buffer).raw(),
            None => *TensorViewMut::from(&mut self.buffer).raw(),
        }
    }
}

/// A message on a raw address.
///
/// ```
/// use distcollective::comm::{RawMessage, Source};
/// use distcollective::{Communicator, DataType, Rank};
///
/// Communicator::spawn(2, |communicator| {
///     let (rank, mut x) = (communicator.rank().0, [1.0f32, 2.0]);
///     let message = RawMessage {
///         address: x.as_mut_ptr().cast(),
///         data_type: DataType::Float32.into(),
///         element_count: 2,
///         dst: (rank == 0).then_some(Rank(1)),
///         src: Source::Any,
///         tag: 0,
///     };
///     // SAFETY: the array has two elements and outlives the calls.
///     unsafe {
///         communicator.execute_message(&message)?;
///         communicator.enqueue_messages(&[message], None)?.wait()?;
///     }
///     Ok(())
/// })?;
/// # Ok::<(), distcollective::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RawMessage {
    /// The first element, in the memory of the communicator.
    pub address: *mut u8,
    /// The type of the elements.
    pub data_type: TransferType,
    /// How many elements are sent, or at most received.
    pub element_count: usize,
    /// The receiver; `None` for a receive.
    pub dst: Option<Rank>,
    /// The sender; a send ignores it.
    pub src: Source,
    /// From 0 to [`MAX_TAG`](crate::comm::MAX_TAG).
    pub tag: u32,
}

/// Messages that have begun together. On raw addresses they own nothing.
#[derive(Debug)]
pub struct Messages {
    /// The messages, in the order in which they were given.
    pub messages: Vec<Message>,
    call: Option<MessageCall>,
    received: Vec<Option<Received>>,
}

impl Messages {
    /// What each message has received; `None` for a send, and for one that has not ended well.
    pub fn received(&self) -> &[Option<Received>] {
        &self.received
    }
}

/// What the messages have to do.
#[derive(Debug)]
struct MessageCall {
    communicator: Communicator,
    /// The call, as errors name it.
    name: &'static str,
    requests: Vec<MessageRequest>,
    deadline: Instant,
}

impl Communicator {
    /// Begins to send `buffer`, which the work owns and hands back, to rank `dst`. The message goes
    /// on while the program does something else, and independently of all others.
    ///
    /// ```
    /// use distcollective::Communicator;
    ///
    /// Communicator::spawn(2, |communicator| {
    ///     let rank = communicator.rank().0;
    ///     let other = 1 - rank;
    ///     let sending = communicator.isend(vec![rank as f32; 100_000], other, 0)?;
    ///     let receiving = communicator.irecv(vec![0.0f32; 100_000], other, 0)?;
    ///     // Compute something else here.
    ///     let received = receiving.wait()?;
    ///     assert_eq!(received.messages[0].buffer.as_slice::<f32>()?[0], other as f32);
    ///     assert_eq!(received.received()[0].unwrap().element_count, 100_000);
    ///     sending.wait()?;
    ///     Ok(())
    /// })?;
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    ///
    /// Errors come with the buffer: those of arguments from this call, all others from
    /// [`Work::wait`].
    #[doc = include_str!("message_errors.md")]
    pub fn isend(
        &self,
        buffer: impl Into<Buffer>,
        dst: impl Into<Rank>,
        tag: u32,
    ) -> Result<Work<Messages>, EnqueueError<Vec<Message>>> {
        self.batch_isend_irecv(vec![Message::send(buffer, dst, tag)])
    }

    /// Begins to receive a message into `buffer`, which the work owns and hands back.
    ///
    /// # Errors
    ///
    /// Those of [`isend`](Self::isend).
    pub fn irecv(
        &self,
        buffer: impl Into<Buffer>,
        src: impl Into<Source>,
        tag: u32,
    ) -> Result<Work<Messages>, EnqueueError<Vec<Message>>> {
        self.batch_isend_irecv(vec![Message::recv(buffer, src, tag)])
    }

    /// Begins several messages, with one [`Work`] for all. Ranks that exchange messages, however
    /// long, do not wait for each other if each gives its sends and receives to one such call.
    ///
    /// ```
    /// use distcollective::Communicator;
    /// use distcollective::comm::Message;
    ///
    /// Communicator::spawn(3, |communicator| {
    ///     let (rank, n) = (communicator.rank().0, communicator.world_size());
    ///     let messages = vec![
    ///         Message::send(vec![rank as i32; 100_000], (rank + 1) % n, 0),
    ///         Message::recv(vec![0i32; 100_000], (rank + n - 1) % n, 0),
    ///     ];
    ///     let messages = communicator.batch_isend_irecv(messages)?.wait()?.messages;
    ///     assert_eq!(messages[1].buffer.as_slice::<i32>()?[0], ((rank + n - 1) % n) as i32);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`isend`](Self::isend). If an argument of one message is wrong, none has begun.
    pub fn batch_isend_irecv(&self, mut messages: Vec<Message>) -> Result<Work<Messages>, EnqueueError<Vec<Message>>> {
        let requests = messages.iter_mut().map(|message| {
            let raw = message.raw();
            self.message(message.dst, message.src, message.tag, raw)
        });
        let requests = requests.collect();
        self.begin(call_name(messages.iter().map(|message| message.dst)), messages, requests, None)
    }

    /// [`batch_isend_irecv`](Self::batch_isend_irecv) on raw addresses, in the memory of the
    /// communicator ([`space`](Self::space)). On GPUs the messages are enqueued on `stream`, a CUDA
    /// stream; without one, on a stream of the communicator's.
    ///
    /// # Safety
    ///
    /// Until the work is done, and for ever if it is leaked before, each address is valid for the
    /// elements of its message, and no other code uses what is received into or writes what is
    /// sent.
    ///
    /// # Errors
    ///
    /// Those of [`isend`](Self::isend). `InvalidBuffer`: an address is null or not aligned to the
    /// element; the elements are more than memory can hold. `InvalidArgument`, `Unsupported`: the
    /// stream is not one of this communicator's GPU.
    pub unsafe fn enqueue_messages(&self, messages: &[RawMessage], stream: Option<&Stream>) -> Result<Work<Messages>> {
        let name = call_name(messages.iter().map(|message| message.dst));
        let requests = match self.check_stream(stream.and_then(Stream::as_cuda)) {
            Ok(()) => messages.iter().map(|message| self.request_of_raw(message)).collect(),
            Err(error) => Err(error),
        };
        Ok(self.begin(name, Vec::new(), requests, stream)?)
    }

    /// [`send`](Self::send) or [`recv`](Self::recv) on a raw address, in the memory of the
    /// communicator ([`space`](Self::space)). A send gives this rank and the number of its
    /// elements.
    ///
    /// # Safety
    ///
    /// During the call the address is valid for the elements of the message, and no other code uses
    /// what is received into or writes what is sent.
    ///
    /// # Errors
    ///
    /// Those of [`enqueue_messages`](Self::enqueue_messages), all from this call.
    pub unsafe fn execute_message(&self, message: &RawMessage) -> Result<Received> {
        let name = if message.dst.is_some() { "send" } else { "recv" };
        // SAFETY: the caller's promise.
        unsafe { self.run_message(name, self.request_of_raw(message)) }
    }

    fn request_of_raw(&self, message: &RawMessage) -> Result<MessageRequest> {
        let RawMessage { address, data_type, element_count, dst, src, tag } = *message;
        let byte_len = element_count.checked_mul(data_type.byte_len());
        if byte_len.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            return Err(error!(InvalidBuffer, "{element_count} {data_type} are more than memory can hold"));
        }
        if element_count > 0
            && (address.is_null() || !address.addr().is_multiple_of(data_type.carrier(None).byte_len()))
        {
            return Err(error!(InvalidBuffer, "address {address:?} is null or not aligned to {data_type}"));
        }
        let carried = element_count * data_type.carrier_count(None);
        let raw = RawTensor::flat(self.space(), address, data_type.carrier(None), carried);
        Ok(MessageRequest { data_type, element_count, ..self.message(dst, src, tag, raw)? })
    }

    /// Begins messages whose buffers `messages` owns, unless they are on raw addresses.
    fn begin(
        &self,
        name: &'static str,
        messages: Vec<Message>,
        requests: Result<Vec<MessageRequest>>,
        stream: Option<&Stream>,
    ) -> Result<Work<Messages>, EnqueueError<Vec<Message>>> {
        let check = |requests: &Vec<MessageRequest>| {
            requests.iter().try_for_each(|request| self.check_message_space(request, false))?;
            self.check_process()?;
            interrupt::check_may_wait()
        };
        let requests = match requests.and_then(|requests| check(&requests).map(|()| requests)) {
            Ok(requests) => requests,
            Err(error) => return Err(EnqueueError::new(self.about(&name, error), messages)),
        };
        let (deadline, received) = (self.deadline(), vec![None; requests.len()]);
        let begin = |call| Messages { messages, call: Some(call), received };
        let call = |requests| MessageCall { communicator: self.clone(), name, requests, deadline };
        Ok(match self.backend.default_stream() {
            Some(own) => {
                let own = Stream::of_cuda(own);
                let stream = stream.filter(|stream| stream.as_cuda().is_some()).unwrap_or(&own);
                self.submit(begin(call(requests)), stream)
            }
            None => self.start_messages(begin(call(Vec::new())), requests, deadline),
        })
    }

    /// Begins messages that the backend moves along by itself.
    fn start_messages(&self, messages: Messages, requests: Vec<MessageRequest>, deadline: Instant) -> Work<Messages> {
        let received = vec![None; requests.len()];
        let left = requests.len();
        let (work, end) = Work::detached(messages);
        let running = Arc::new(Mutex::new(RunningMessages { end: Some(end), received, left, error: None }));
        let with_end = |(index, request): (usize, MessageRequest)| {
            let running = Arc::clone(&running);
            let on_end: OnEnd = Box::new(move |result| RunningMessages::end_one(&running, index, &request, result));
            (request, on_end)
        };
        let requests = requests.into_iter().enumerate().map(with_end).collect();
        // SAFETY: the work owns the buffers, or `enqueue_messages`' caller has promised this.
        if let Err(error) = unsafe { self.backend.start_messages(requests, deadline) } {
            lock(&running).error = Some(error);
        }
        RunningMessages::end_if_all_have(&running);
        work
    }
}

/// The name of a call in errors. It has an item for each message: the receiver if it is a send.
fn call_name(mut receivers: impl ExactSizeIterator<Item = Option<Rank>>) -> &'static str {
    match (receivers.len(), receivers.next().flatten()) {
        (1, Some(_)) => "isend",
        (1, None) => "irecv",
        _ => "batch_isend_irecv",
    }
}

/// Messages on their way, which end one after the other.
struct RunningMessages {
    /// `None` after the end.
    end: Option<WorkEnd<Messages>>,
    received: Vec<Option<Received>>,
    /// How many have not ended.
    left: usize,
    error: Option<Error>,
}

impl RunningMessages {
    fn end_one(running: &Mutex<Self>, index: usize, request: &MessageRequest, result: Result<Delivery>) {
        let mut state = lock(running);
        state.left -= 1;
        match result {
            Ok(delivery) => state.received[index] = received(request, delivery),
            Err(error) => drop(state.error.get_or_insert(error)),
        }
        drop(state);
        Self::end_if_all_have(running);
    }

    /// Ends the work when all messages have ended, or none has begun.
    fn end_if_all_have(running: &Mutex<Self>) {
        let mut state = lock(running);
        let has_begun = state.left < state.received.len();
        if state.left > 0 && (has_begun || state.error.is_none()) {
            return;
        }
        let (end, received, error) = (state.end.take(), std::mem::take(&mut state.received), state.error.take());
        // The end may drop what the work owns, and with it the last handle of the communicator.
        drop(state);
        if let Some(end) = end {
            end.end(|messages| {
                messages.received = received;
                error.map_or(Ok(()), Err)
            });
        }
    }
}

/// What a message has received; `None` for a send.
fn received(request: &MessageRequest, delivery: Delivery) -> Option<Received> {
    matches!(request.direction, Direction::Receive(_)).then(|| Received::of(delivery))
}

/// On a CUDA stream the messages are one group of NCCL's. A detached work runs nothing.
impl Task for Messages {
    fn run(&mut self, stream: Option<&Arc<CudaStream>>) -> Result<()> {
        let Some(MessageCall { communicator, requests, deadline, .. }) = &self.call else { return Ok(()) };
        communicator.check_process()?;
        // SAFETY: the work owns the buffers, or `enqueue_messages`' caller has promised this.
        let ended = unsafe { communicator.backend.enqueue_messages(requests, stream, *deadline)? };
        self.received = requests.iter().zip(ended).map(|(request, delivery)| received(request, delivery)).collect();
        Ok(())
    }

    fn label(&self, error: Error) -> Error {
        match &self.call {
            Some(call) => call.communicator.about(&call.name, error),
            None => error,
        }
    }

    fn finish(&mut self) {
        self.call = None;
    }

    fn watch(&self) -> Option<(Arc<dyn Watch>, Instant)> {
        self.call.as_ref().map(|call| (call.communicator.watch(), call.deadline))
    }
}

//! Collectives called directly, in the manner of torch.distributed.

use std::sync::Arc;
use std::time::Instant;

use super::{Communicator, Purpose, Request, Signature};
use crate::collective::{Call, Collective, CollectiveOperation, ReduceOperation, check_buffers, check_type};
use crate::cuda::CudaStream;
use crate::data_type::DataType;
use crate::error::{Error, Result, error};
use crate::issue_order::{Extent, IssueOrder};
use crate::memory::{Address, Buffer, RawTensor, TensorView, TensorViewMut};
use crate::rank::{GroupRank, Rank};
use crate::stream::{Failed, Stream, Task, Watch, Work};
use crate::util::text::count_of;

/// The collectives. Lengths are in elements; `n` is the number of ranks. A buffer of any shape will do, 0-d too: only its
/// length counts. All of them block, and all follow the contract above; beyond it each is in error when a buffer's type or
/// length does not fit, before anything moves.
impl Communicator {
    /// Replaces `buffer` on every rank by the reduction over all ranks.
    ///
    /// # Errors
    ///
    /// See the contract of [`Communicator`].
    pub fn all_reduce<'a>(&self, buffer: impl Into<TensorViewMut<'a>>, reduce_op: ReduceOperation) -> Result<()> {
        self.in_place(Collective::AllReduce { reduce_op }, buffer.into())
    }

    /// Gives every rank all inputs, one after the other: `output` is `n` times as long as `input`.
    ///
    /// # Errors
    ///
    /// See the contract of [`Communicator`].
    pub fn all_gather<'a, 'b>(
        &self,
        input: impl Into<TensorView<'a>>,
        output: impl Into<TensorViewMut<'b>>,
    ) -> Result<()> {
        self.collective(Collective::AllGather, Some(input.into()), Some(output.into()))
    }

    /// Replaces `buffer` on every rank by the root's.
    ///
    /// # Errors
    ///
    /// A root that is not a rank; and see the contract of [`Communicator`].
    pub fn broadcast<'a>(&self, buffer: impl Into<TensorViewMut<'a>>, root: impl Into<Rank>) -> Result<()> {
        self.in_place(Collective::Broadcast { root: root.into() }, buffer.into())
    }

    /// Replaces `buffer` on the root by the reduction over all ranks; the others' stay as they are.
    ///
    /// # Errors
    ///
    /// A root that is not a rank; and see the contract of [`Communicator`].
    pub fn reduce<'a>(
        &self,
        buffer: impl Into<TensorViewMut<'a>>,
        reduce_op: ReduceOperation,
        root: impl Into<Rank>,
    ) -> Result<()> {
        self.in_place(Collective::Reduce { reduce_op, root: root.into() }, buffer.into())
    }

    /// Gives every rank its block of the reduction over all ranks: `input` is `n` times as long as `output`.
    ///
    /// # Errors
    ///
    /// See the contract of [`Communicator`].
    pub fn reduce_scatter<'a, 'b>(
        &self,
        input: impl Into<TensorView<'a>>,
        output: impl Into<TensorViewMut<'b>>,
        reduce_op: ReduceOperation,
    ) -> Result<()> {
        self.collective(Collective::ReduceScatter { reduce_op }, Some(input.into()), Some(output.into()))
    }

    /// Gives every rank its block of each input: both have the same length, a multiple of `n`.
    ///
    /// # Errors
    ///
    /// See the contract of [`Communicator`].
    pub fn all_to_all<'a, 'b>(
        &self,
        input: impl Into<TensorView<'a>>,
        output: impl Into<TensorViewMut<'b>>,
    ) -> Result<()> {
        self.collective(Collective::AllToAll, Some(input.into()), Some(output.into()))
    }

    /// Gives the root all inputs, one after the other: its `output` is `n` times as long as `input`; the others need none.
    ///
    /// # Errors
    ///
    /// A root that is not a rank; and see the contract of [`Communicator`].
    pub fn gather<'a>(
        &self,
        input: impl Into<TensorView<'a>>,
        output: Option<TensorViewMut<'_>>,
        root: impl Into<Rank>,
    ) -> Result<()> {
        self.collective(Collective::Gather { root: root.into() }, Some(input.into()), output)
    }

    /// Gives every rank its block of the root's input, which is `n` times as long as `output`; the others need none.
    ///
    /// # Errors
    ///
    /// A root that is not a rank; and see the contract of [`Communicator`].
    pub fn scatter<'a>(
        &self,
        input: Option<TensorView<'_>>,
        output: impl Into<TensorViewMut<'a>>,
        root: impl Into<Rank>,
    ) -> Result<()> {
        self.collective(Collective::Scatter { root: root.into() }, input, Some(output.into()))
    }

    /// Any of the eight, with input and output apart. A buffer that this rank does not use may be absent; one that is given
    /// all the same must fit.
    ///
    /// # Errors
    ///
    /// A root that is not a rank; and see the contract of [`Communicator`].
    pub fn collective(
        &self,
        collective: Collective<Rank>,
        input: Option<TensorView<'_>>,
        output: Option<TensorViewMut<'_>>,
    ) -> Result<()> {
        let input = input.map(|view| view.raw());
        let output = output.map(|mut view| view.raw());
        let side = |raw: Option<RawTensor>| raw.map(|raw| (raw.data_type, raw.element_count()));
        let call = self.call(collective, side(input), side(output))?;
        let sides = [input, output].map(|raw| raw.as_ref().map_or(self.nowhere(), RawTensor::located));
        // SAFETY: `call` has compared the lengths of the buffers, which are borrowed.
        unsafe { self.run_in_turn(&call, sides) }
    }

    /// The address of a buffer that there is not.
    fn nowhere(&self) -> Address {
        Address { pointer: std::ptr::null_mut(), space: self.space() }
    }

    /// [`collective`](Self::collective) on a stream, with buffers that the work owns and hands back.
    ///
    /// ```
    /// use distcollective::{Buffer, Collective, Communicator, Operands, ReduceOperation, Stream};
    ///
    /// let communicator = Communicator::in_process(1)?.remove(0);
    /// let stream = Stream::worker()?;
    /// let operands = Operands::in_place(Buffer::from_slice(&[1.0f32, 2.0], [2])?);
    /// let collective = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
    /// let work = communicator.collective_async(collective, operands, &stream)?;
    /// let operands = work.wait()?;
    /// assert_eq!(operands.output.unwrap().as_slice::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`collective`](Self::collective), with the buffers: for wrong arguments from here, for everything else from
    /// [`Work::wait`].
    pub fn collective_async(
        &self,
        collective: Collective<Rank>,
        mut operands: Operands,
        stream: &Stream,
    ) -> Result<Work<Operands>, Failed<Operands>> {
        let side = |buffer: &Option<Buffer>| buffer.as_ref().map(|b| (b.data_type(), b.shape().element_count()));
        let output = side(&operands.output);
        let input = side(&operands.input).or(if is_in_place(&collective) { output } else { None });
        match self.call(collective, input, output) {
            Ok(call) => {
                operands.task = Some((self.clone(), call, self.deadline()));
                Ok(stream.submit(operands, None))
            }
            Err(error) => Err(Failed::new(error, operands)),
        }
    }

    /// Any of the eight on raw addresses, on a stream: for engines that have their own memory. They are in the memory of the
    /// communicator, [`space`](Self::space). An address that this rank does not use may be null. `block_elements` is NCCL's count: what
    /// a rank gives to all_gather and gather, gets from reduce_scatter and scatter, sends each rank in all_to_all, and the whole buffer
    /// in all_reduce, broadcast and reduce. Collective.
    ///
    /// # Safety
    ///
    /// Until the work is done, and for ever if it is leaked before, the buffers are as long as the operation and the count say, as far
    /// as this rank uses them, and nobody else uses that memory.
    ///
    /// # Errors
    ///
    /// A root that is not a rank; the average of bool; more elements than memory can hold; misaligned, overlapping or null
    /// addresses; from [`Work::wait`], see the contract of [`Communicator`].
    pub unsafe fn enqueue(
        &self,
        collective: Collective<Rank>,
        data_type: DataType,
        block_elements: usize,
        input: *const u8,
        output: *mut u8,
        stream: &Stream,
    ) -> Result<Work<RawCollective>> {
        let n = self.world_size() as usize;
        let longest = block_elements.checked_mul(n).and_then(|elements| elements.checked_mul(data_type.byte_len()));
        if longest.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            let elements = count_of(block_elements, "element");
            let error = error!(InvalidBuffer, "{elements} for each of {n} ranks are more than memory can hold");
            return Err(error.on_rank(self.origin_rank()).about(|| collective.operation().to_string()));
        }
        // What the operation does not name by its block has n of them.
        let side = |is_block: bool| Some((data_type, if is_block { block_elements } else { block_elements * n }));
        let (input_is_block, output_is_block) = match collective.operation() {
            CollectiveOperation::AllGather | CollectiveOperation::Gather => (true, false),
            CollectiveOperation::ReduceScatter | CollectiveOperation::Scatter => (false, true),
            CollectiveOperation::AllToAll => (false, false),
            _ => (true, true),
        };
        let call = self.call(collective, side(input_is_block), side(output_is_block))?;
        check_buffers(&call, GroupRank(self.rank().0), n, input.addr(), output.addr())
            .map_err(|e| e.on_rank(self.origin_rank()).about(|| call.to_string()))?;
        let space = self.space();
        let sides = [input.cast_mut(), output].map(|pointer| Address { pointer, space });
        let task = RawCollective { communicator: self.clone(), call, sides, deadline: self.deadline() };
        Ok(stream.submit(task, None))
    }

    fn in_place(&self, collective: Collective<Rank>, mut buffer: TensorViewMut<'_>) -> Result<()> {
        let raw = buffer.raw();
        let side = Some((raw.data_type, raw.element_count()));
        let call = self.call(collective, side, side)?;
        // SAFETY: `call` has compared the lengths of the buffer, which is borrowed.
        unsafe { self.run_in_turn(&call, [raw.located(); 2]) }
    }

    /// Runs a call on this thread, when the calls that this rank made before have ended.
    ///
    /// # Safety
    ///
    /// As [`run_call`](Self::run_call).
    unsafe fn run_in_turn(&self, call: &Call, sides: [Address; 2]) -> Result<()> {
        let deadline = self.deadline();
        // SAFETY: the caller's promise.
        let run = || unsafe { self.run_call(call, sides, deadline, None) };
        self.in_turn(Extent::Communicator, &call.collective.operation(), deadline, run)
            .map_err(|error| error.on_rank(self.origin_rank()))
    }

    /// The call for buffers of these types and lengths.
    fn call(
        &self,
        collective: Collective<Rank>,
        input: Option<(DataType, usize)>,
        output: Option<(DataType, usize)>,
    ) -> Result<Call> {
        let n = self.world_size() as usize;
        let operation = collective.operation();
        let about = |error: Error| error.on_rank(self.origin_rank()).about(|| operation.to_string());
        let fail = |text: String| Err(about(Error::new(crate::ErrorKind::InvalidBuffer, text)));
        if let Some(root) = collective.root().filter(|root| root.0 >= self.world_size()) {
            return Err(about(error!(InvalidArgument, "root {root} is not one of {}", count_of(n, "rank"))));
        }
        let local =
            Collective::from_parts(operation, collective.reduce_op(), collective.root().map(|r| GroupRank(r.0)));
        let Some(local) = local else { return fail("the collective lacks an attribute".to_owned()) };
        let Some((data_type, _)) = input.or(output) else { return fail("there is no buffer".to_owned()) };
        check_type(collective.reduce_op(), data_type).map_err(about)?;
        // The block is one whole side, but for all_to_all; then both sides are held against it.
        let len = |side: Option<(DataType, usize)>| side.map(|(_, len)| len);
        let block_elements = match operation {
            CollectiveOperation::ReduceScatter | CollectiveOperation::Scatter => {
                len(output).or(len(input).map(|len| len / n))
            }
            CollectiveOperation::AllGather | CollectiveOperation::Gather => {
                len(input).or(len(output).map(|len| len / n))
            }
            CollectiveOperation::AllToAll => {
                if let Some(len) = len(input).filter(|len| !len.is_multiple_of(n)) {
                    let (elements, ranks) = (count_of(len, "element"), count_of(n, "rank"));
                    return fail(format!("the input has {elements}, which is not a multiple of {ranks}"));
                }
                len(input).or(len(output)).map(|len| len / n)
            }
            _ => len(input).or(len(output)),
        };
        let block_elements = block_elements.unwrap_or(0);
        let call = Call { collective: local, data_type, block_elements };
        let rank = GroupRank(self.rank().0);
        let sides = [
            ("input", input, call.input_bytes(n), call.reads_input(rank)),
            ("output", output, call.output_bytes(n), call.writes_output(rank)),
        ];
        for (name, side, bytes, used) in sides {
            match side {
                None if used => return fail(format!("this rank needs an {name}")),
                Some((other, _)) if other != data_type => {
                    return fail(format!("the input is {data_type} and the output {other}"));
                }
                Some((_, len)) if len * data_type.byte_len() != bytes => {
                    let wanted = bytes / data_type.byte_len();
                    return fail(format!(
                        "the {name} has {}; with {} it must have {wanted}",
                        count_of(len, "element"),
                        count_of(n, "rank")
                    ));
                }
                _ => {}
            }
        }
        Ok(call)
    }

    /// # Safety
    ///
    /// The buffers that the call uses on this rank are valid for the lengths that it says, and used by nobody else.
    unsafe fn run_call(
        &self,
        call: &Call,
        [input, output]: [Address; 2],
        deadline: Instant,
        stream: Option<&Arc<CudaStream>>,
    ) -> Result<()> {
        let signature = Signature { purpose: Purpose::Collective, call: *call };
        // SAFETY: the caller's promise.
        unsafe { self.run(&Request { signature, label: None, input, output, deadline, stream }) }
            .map_err(|e| e.on_rank(self.origin_rank()))
    }
}

/// Whether the operation is done in place with one buffer for both sides.
fn is_in_place<R>(collective: &Collective<R>) -> bool {
    matches!(collective, Collective::AllReduce { .. } | Collective::Broadcast { .. } | Collective::Reduce { .. })
}

/// A collective on raw addresses.
#[derive(Debug)]
pub struct RawCollective {
    communicator: Communicator,
    call: Call,
    sides: [Address; 2],
    deadline: Instant,
}

// SAFETY: whoever made it promised that the addresses are good until the work is done, on whichever thread.
unsafe impl Send for RawCollective {}
// SAFETY: a shared reference gives no way to the addresses.
unsafe impl Sync for RawCollective {}

impl Task for RawCollective {
    fn order(&self) -> Option<(Arc<IssueOrder>, Extent)> {
        Some(self.communicator.order(Extent::Communicator))
    }

    fn run(&mut self, stream: Option<&Arc<CudaStream>>) -> Result<()> {
        // SAFETY: the promise of `enqueue`.
        unsafe { self.communicator.run_call(&self.call, self.sides, self.deadline, stream) }
    }

    fn label(&self, error: Error) -> Error {
        error.on_rank(self.communicator.origin_rank()).about(|| self.call.collective.operation().to_string())
    }

    fn watch(&self) -> Option<(Arc<dyn Watch>, Instant)> {
        Some((self.communicator.watch(), self.deadline))
    }
}

/// The buffers of an asynchronous collective.
#[derive(Debug, Default)]
pub struct Operands {
    /// What is read; absent on a rank whose input is not read, and in place.
    pub input: Option<Buffer>,
    /// What is written; absent on a rank whose output is not written.
    pub output: Option<Buffer>,
    task: Option<(Communicator, Call, Instant)>,
}

impl Operands {
    /// Buffers apart.
    pub fn new(input: impl Into<Option<Buffer>>, output: impl Into<Option<Buffer>>) -> Self {
        Operands { input: input.into(), output: output.into(), task: None }
    }

    /// One buffer for both sides of all_reduce, broadcast or reduce.
    pub fn in_place(buffer: Buffer) -> Self {
        Operands::new(None, buffer)
    }
}

impl Task for Operands {
    fn order(&self) -> Option<(Arc<IssueOrder>, Extent)> {
        self.task.as_ref().map(|(communicator, ..)| communicator.order(Extent::Communicator))
    }

    fn run(&mut self, stream: Option<&Arc<CudaStream>>) -> Result<()> {
        let Some((communicator, call, deadline)) = &self.task else { return Ok(()) };
        let output = self.output.as_mut().map(|buffer| TensorViewMut::from(buffer).raw().located());
        let input = match &self.input {
            Some(buffer) => Some(TensorView::from(buffer).raw().located()),
            None if is_in_place(&call.collective) => output,
            None => None,
        };
        let sides = [input, output].map(|side| side.unwrap_or(communicator.nowhere()));
        // SAFETY: `call` has compared the lengths of the buffers, which this task owns.
        unsafe { communicator.run_call(call, sides, *deadline, stream) }
    }

    fn label(&self, error: Error) -> Error {
        match &self.task {
            Some((communicator, call, _)) => {
                error.on_rank(communicator.origin_rank()).about(|| call.collective.operation().to_string())
            }
            None => error,
        }
    }

    fn finish(&mut self) {
        self.task = None;
    }

    fn watch(&self) -> Option<(Arc<dyn Watch>, Instant)> {
        self.task.as_ref().map(|(communicator, _, deadline)| (communicator.watch(), *deadline))
    }
}

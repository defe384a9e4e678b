//! Calls on a stream, with buffers that the work owns until the caller waits for it.

use std::sync::Arc;
use std::time::Instant;

use crate::collective::{Collective, ReduceOperation};
use crate::comm::{Communicator, RawCollective};
use crate::cuda::CudaStream;
use crate::error::{Error, Result};
use crate::memory::{Buffer, TensorView, TensorViewMut};
use crate::rank::Rank;
use crate::stream::{EnqueueError, Stream, Task, Watch, Work};

/// The buffers of an asynchronous collective.
#[derive(Debug, Default)]
pub struct Operands {
    /// What is read. Absent in place, and on a rank whose input is not read.
    pub input: Option<Buffer>,
    /// What is written. Absent on a rank whose output is not written.
    pub output: Option<Buffer>,
    /// The tensors of a list form, in rank order: what is read in scatter, and written in gather
    /// and all_gather. Empty on a rank that has no list, and absent in all other calls.
    pub list: Option<Vec<Buffer>>,
    /// The call on these buffers, until it is done.
    task: RawCollective,
}

impl Operands {
    /// One buffer for input and another for output.
    pub fn new(input: impl Into<Option<Buffer>>, output: impl Into<Option<Buffer>>) -> Self {
        Operands { input: input.into(), output: output.into(), list: None, task: RawCollective::default() }
    }

    /// One buffer, and a list with one for each rank, for the list form of scatter (which has no
    /// input beside it), gather and all_gather (which have no output).
    pub fn with_list(input: impl Into<Option<Buffer>>, output: impl Into<Option<Buffer>>, list: Vec<Buffer>) -> Self {
        Operands { list: Some(list), ..Operands::new(input, output) }
    }

    /// One buffer for both input and output of all_reduce, broadcast or reduce.
    pub fn in_place(buffer: Buffer) -> Self {
        Operands::new(None, buffer)
    }
}

/// What an asynchronous call gives: the work, or an error with the buffers.
pub type AsyncResult<T = Operands> = Result<Work<T>, EnqueueError<T>>;

/// # Asynchronous collectives
///
/// These calls return at once. The work owns the buffers, and [`Work::wait`] hands them back, or
/// `.await` in an `async` function. It runs on the communicator's own
/// [`stream`](Communicator::stream); [`collective_async`](Self::collective_async) takes another
/// one. On GPUs the tensors may be in host memory too, and what a program has enqueued on a tensor
/// on CUDA streams of its own has to be done before the call.
///
/// ```
/// use distcollective::{Communicator, ReduceOperation};
///
/// let results = Communicator::spawn(2, |communicator| {
///     let loss = vec![communicator.rank().0 as f32, 1.0];
///     let work = communicator.all_reduce_async(loss, ReduceOperation::Sum)?;
///     // Compute something else here.
///     let operands = work.wait()?;
///     Ok(operands.output.unwrap().as_slice::<f32>()?.to_vec())
/// })?;
/// assert_eq!(results, [[1.0, 2.0], [1.0, 2.0]]);
/// # Ok::<(), distcollective::Error>(())
/// ```
///
/// Lengths, and what each call does, are those of the blocking call of the same name. All are
/// collective and follow the contract of [`Communicator`]; calls on the own stream and blocking
/// ones run in the order in which the rank makes them. Errors of arguments come from the call, with
/// the buffers; so does the error that the operating system gives no thread for the stream. All
/// others come from [`Work::wait`].
impl Communicator {
    /// [`all_reduce`](Self::all_reduce) of a buffer that the work owns.
    #[doc = include_str!("errors.md")]
    pub fn all_reduce_async(&self, buffer: impl Into<Buffer>, reduce_op: ReduceOperation) -> AsyncResult {
        self.start(Collective::AllReduce { reduce_op }, Operands::in_place(buffer.into()))
    }

    /// [`all_gather`](Self::all_gather) of buffers that the work owns.
    #[doc = include_str!("errors.md")]
    pub fn all_gather_async(&self, input: impl Into<Buffer>, output: impl Into<Buffer>) -> AsyncResult {
        self.start(Collective::AllGather, Operands::new(input.into(), output.into()))
    }

    /// [`broadcast`](Self::broadcast) of a buffer that the work owns.
    #[doc = include_str!("errors.md")]
    pub fn broadcast_async(&self, buffer: impl Into<Buffer>, root: impl Into<Rank>) -> AsyncResult {
        self.start(Collective::Broadcast { root: root.into() }, Operands::in_place(buffer.into()))
    }

    /// [`reduce`](Self::reduce) of a buffer that the work owns.
    #[doc = include_str!("errors.md")]
    pub fn reduce_async(
        &self,
        buffer: impl Into<Buffer>,
        reduce_op: ReduceOperation,
        root: impl Into<Rank>,
    ) -> AsyncResult {
        self.start(Collective::Reduce { reduce_op, root: root.into() }, Operands::in_place(buffer.into()))
    }

    /// [`reduce_scatter`](Self::reduce_scatter) of buffers that the work owns.
    #[doc = include_str!("errors.md")]
    pub fn reduce_scatter_async(
        &self,
        input: impl Into<Buffer>,
        output: impl Into<Buffer>,
        reduce_op: ReduceOperation,
    ) -> AsyncResult {
        self.start(Collective::ReduceScatter { reduce_op }, Operands::new(input.into(), output.into()))
    }

    /// [`all_to_all`](Self::all_to_all) of buffers that the work owns.
    #[doc = include_str!("errors.md")]
    pub fn all_to_all_async(&self, input: impl Into<Buffer>, output: impl Into<Buffer>) -> AsyncResult {
        self.start(Collective::AllToAll, Operands::new(input.into(), output.into()))
    }

    /// [`gather`](Self::gather) of buffers that the work owns. Ranks other than the root may give
    /// `None` for the output.
    #[doc = include_str!("errors.md")]
    pub fn gather_async(
        &self,
        input: impl Into<Buffer>,
        output: impl Into<Option<Buffer>>,
        root: impl Into<Rank>,
    ) -> AsyncResult {
        self.start(Collective::Gather { root: root.into() }, Operands::new(input.into(), output))
    }

    /// [`scatter`](Self::scatter) of buffers that the work owns. Ranks other than the root may give
    /// `None` for the input.
    #[doc = include_str!("errors.md")]
    pub fn scatter_async(
        &self,
        input: impl Into<Option<Buffer>>,
        output: impl Into<Buffer>,
        root: impl Into<Rank>,
    ) -> AsyncResult {
        self.start(Collective::Scatter { root: root.into() }, Operands::new(input, output.into()))
    }

    /// [`barrier`](Self::barrier) without waiting: the work ends when every rank has come to it.
    ///
    /// # Errors
    ///
    /// The operating system gives no thread. All others come from [`Work::wait`].
    pub fn barrier_async(&self) -> Result<Work<RawCollective>> {
        self.enqueue_barrier(&self.stream()?)
    }

    /// Enqueues a collective on the communicator's own stream.
    pub(super) fn start(&self, collective: Collective<Rank>, operands: Operands) -> AsyncResult {
        match self.stream() {
            Ok(stream) => self.collective_async(collective, operands, &stream),
            Err(error) => Err(EnqueueError::new(error, operands)),
        }
    }

    /// [`collective`](Self::collective) on a stream, with buffers that the work owns and hands
    /// back.
    ///
    /// ```
    /// use distcollective::collective::Collective;
    /// use distcollective::comm::Operands;
    /// use distcollective::{Communicator, ReduceOperation, Stream};
    ///
    /// let communicator = Communicator::in_process(1)?.remove(0);
    /// let stream = Stream::worker()?;
    /// let operands = Operands::in_place(vec![1.0f32, 2.0].into());
    /// let collective = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
    /// let work = communicator.collective_async(collective, operands, &stream)?;
    /// let operands = work.wait()?;
    /// assert_eq!(operands.output.unwrap().as_slice::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    ///
    /// Errors come with the buffers: those of arguments and buffers from this call, all others from
    /// [`Work::wait`].
    #[doc = include_str!("errors.md")]
    pub fn collective_async(
        &self,
        collective: Collective<Rank>,
        mut operands: Operands,
        stream: &Stream,
    ) -> AsyncResult {
        match self.own_task(collective, &mut operands, stream) {
            Ok(task) => {
                operands.task = task;
                Ok(self.submit(operands, stream))
            }
            Err(error) => Err(EnqueueError::new(error, operands)),
        }
    }

    fn own_task(
        &self,
        collective: Collective<Rank>,
        operands: &mut Operands,
        stream: &Stream,
    ) -> Result<RawCollective> {
        let output = operands.output.as_mut().map(|buffer| *TensorViewMut::from(buffer).raw());
        let input = operands.input.as_ref().map(|buffer| *TensorView::from(buffer).raw());
        if let Some(list) = &mut operands.list {
            let list = list.iter_mut().map(|buffer| *TensorViewMut::from(buffer).raw()).collect();
            let one = if matches!(collective, Collective::Scatter { .. }) { output } else { input };
            return self.list_task(collective, one, list, None, stream);
        }
        let can_use_output = collective.operation().geometry().can_use_one_buffer();
        let input = input.or(output.filter(|_| can_use_output));
        let request = self.request(collective, [input.as_ref(), output.as_ref()])?;
        RawCollective::checked(self, request, stream)
    }
}

impl Task for Operands {
    fn run(&mut self, stream: Option<&Arc<CudaStream>>) -> Result<()> {
        // The addresses are those of the buffers beside the call, whose lengths it has compared.
        self.task.run(stream)
    }

    fn label(&self, error: Error) -> Error {
        self.task.label(error)
    }

    fn finish(&mut self) {
        self.task = RawCollective::default();
    }

    fn watch(&self) -> Option<(Arc<dyn Watch>, Instant)> {
        self.task.watch()
    }
}

//! Calls on a stream, with buffers that the work owns until the caller waits for it.

use std::sync::Arc;
use std::time::Instant;

use crate::collective::Collective;
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
    pub fn in_place(buffer: impl Into<Buffer>) -> Self {
        Operands::new(None, buffer.into())
    }
}

impl Communicator {
    /// Begins any of the eight operations on a stream, with buffers that the work owns, and returns
    /// at once. [`Work::wait`] hands the buffers back, and so does `.await` in an `async` function.
    /// Lengths, and what the call does, are those of the blocking call of the same name. On the
    /// communicator's [own stream](Self::stream), calls and blocking ones run in the order in which
    /// the rank makes them. Collective.
    ///
    /// ```
    /// use distcollective::collective::Collective;
    /// use distcollective::comm::Operands;
    /// use distcollective::{Buffer, Communicator, ReduceOperation};
    ///
    /// Communicator::spawn(2, |communicator| {
    ///     let (rank, stream) = (communicator.rank().0 as f32, communicator.stream()?);
    ///     let sum = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
    ///     let work = communicator.collective_async(sum, Operands::in_place(vec![rank]), &stream)?;
    ///     // Compute something else here.
    ///     let sum = work.wait()?.output.unwrap();
    ///     assert_eq!(sum.as_slice::<f32>()?, [1.0]);
    ///     // In one tensor, and in a list of them.
    ///     let ranks = Operands::new(sum, Buffer::from(vec![0f32; 2]));
    ///     communicator.collective_async(Collective::AllGather, ranks, &stream)?.wait()?;
    ///     let list = vec![vec![0f32].into(), vec![0f32].into()];
    ///     let ranks = Operands::with_list(Buffer::from(vec![rank]), None, list);
    ///     let work = communicator.collective_async(Collective::AllGather, ranks, &stream)?;
    ///     assert_eq!(work.wait()?.list.unwrap()[1].as_slice::<f32>()?, [1.0]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    ///
    /// On GPUs a call on a CUDA stream takes tensors in the GPU's memory. One on the own stream
    /// takes host memory too; what the program's CUDA streams do with a tensor has to be done
    /// before.
    ///
    /// Errors come with the buffers: those of arguments and buffers from this call, all others from
    /// [`Work::wait`].
    #[doc = include_str!("errors.md")]
    pub fn collective_async(
        &self,
        collective: Collective<Rank>,
        mut operands: Operands,
        stream: &Stream,
    ) -> Result<Work<Operands>, EnqueueError<Operands>> {
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
        self.task_on(collective, input, output, stream)
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

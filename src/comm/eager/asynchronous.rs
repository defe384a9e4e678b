//! Calls on a stream, with buffers that the work owns until the caller waits for it.

use std::sync::Arc;
use std::time::Instant;

use super::arguments::given;
use super::raw::RawCollective;
use crate::collective::Collective;
use crate::comm::Communicator;
use crate::cuda::CudaStream;
use crate::error::{Error, Result};
use crate::issue_order::{Extent, IssueOrder};
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
    /// The call on these buffers, until it is done.
    task: Option<RawCollective>,
}

impl Operands {
    /// One buffer for input and another for output.
    pub fn new(input: impl Into<Option<Buffer>>, output: impl Into<Option<Buffer>>) -> Self {
        Operands { input: input.into(), output: output.into(), task: None }
    }

    /// One buffer for both input and output of all_reduce, broadcast or reduce.
    pub fn in_place(buffer: Buffer) -> Self {
        Operands::new(None, buffer)
    }
}

impl Communicator {
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
    /// # Errors
    ///
    /// They come with the buffers: errors of arguments and buffers from this call, all others from
    /// [`Work::wait`].
    ///
    #[doc = include_str!("errors.md")]
    pub fn collective_async(
        &self,
        collective: Collective<Rank>,
        mut operands: Operands,
        stream: &Stream,
    ) -> Result<Work<Operands>, EnqueueError<Operands>> {
        match self.own_task(collective, &mut operands, stream) {
            Ok(task) => {
                operands.task = Some(task);
                Ok(stream.submit(operands, None))
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
        let output = operands.output.as_mut().map(|buffer| TensorViewMut::from(buffer).raw());
        let input = operands.input.as_ref().map(|buffer| TensorView::from(buffer).raw());
        let can_use_output = collective.operation().geometry().can_use_one_buffer();
        let input = input.or(output.filter(|_| can_use_output));
        let call = self.call(collective, given(input), given(output))?;
        RawCollective::new(self, call, self.addresses([input, output]), stream)
    }
}

impl Task for Operands {
    fn order(&self) -> Option<(Arc<IssueOrder>, Extent)> {
        self.task.as_ref()?.order()
    }

    fn run(&mut self, stream: Option<&Arc<CudaStream>>) -> Result<()> {
        // The addresses are those of the buffers beside the call, whose lengths it has compared.
        self.task.as_mut().map_or(Ok(()), |task| task.run(stream))
    }

    fn label(&self, error: Error) -> Error {
        match &self.task {
            Some(task) => task.label(error),
            None => error,
        }
    }

    fn finish(&mut self) {
        self.task = None;
    }

    fn watch(&self) -> Option<(Arc<dyn Watch>, Instant)> {
        self.task.as_ref()?.watch()
    }
}

//! Waiting for work in an `async` function.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use super::launched_work::WakeSlot;
use super::work::{EnqueueError, Work};

/// What `.await` on a [`Work`] waits for: its result, with what the work owned.
///
/// It needs no runtime of its own and works in any. A task that waits is woken by the thread of a
/// worker stream when the work ends. For work on a CUDA stream a thread of the library asks the GPU
/// and the communicator every 100 µs, as long as there is such a task: CUDA can call a function at
/// the end of work, but not if a peer has failed and the work never ends.
///
/// Dropping it is dropping the [`Work`]: what was enqueued goes on.
///
/// ```
/// use distcollective::collective::Collective;
/// use distcollective::comm::Operands;
/// use distcollective::{Communicator, Error, ReduceOperation};
///
/// async fn train(communicator: Communicator) -> Result<f32, Error> {
///     let sum = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
///     let loss = Operands::in_place(vec![1.0f32]);
///     let work = communicator.collective_async(sum, loss, &communicator.stream()?)?;
///     // Other tasks of this thread run while the ranks meet.
///     let operands = work.await?;
///     Ok(operands.output.unwrap().as_slice::<f32>()?[0])
/// }
/// # struct Unpark(std::thread::Thread);
/// # impl std::task::Wake for Unpark {
/// #     fn wake(self: std::sync::Arc<Self>) { self.0.unpark() }
/// # }
/// # let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
/// # let mut training = std::pin::pin!(train(Communicator::builder().in_process(1)?.remove(0)));
/// # let sum = loop {
/// #     match training.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
/// #         std::task::Poll::Ready(sum) => break sum?,
/// #         std::task::Poll::Pending => std::thread::park(),
/// #     }
/// # };
/// # assert_eq!(sum, 1.0);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
#[must_use = "a future does nothing by itself; the work goes on without it"]
pub struct WorkFuture<T: Send + 'static> {
    /// `None` when the result has been given.
    work: Option<Work<T>>,
    /// Where the thread that asks a GPU finds the task.
    slot: Option<WakeSlot>,
}

impl<T: Send + 'static> IntoFuture for Work<T> {
    type Output = Result<T, EnqueueError<T>>;
    type IntoFuture = WorkFuture<T>;

    fn into_future(self) -> WorkFuture<T> {
        WorkFuture { work: Some(self), slot: None }
    }
}

// The value that the work owns is never pinned.
impl<T: Send + 'static> Unpin for WorkFuture<T> {}

impl<T: Send + 'static> Future for WorkFuture<T> {
    type Output = Result<T, EnqueueError<T>>;

    /// # Panics
    ///
    /// The result has been given; or this process was forked from the one that enqueued the work on
    /// a worker stream.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(work) = self.work.take() else { panic!("the result of this work has been given") };
        if !work.is_done() {
            work.wake_at_end(&mut self.slot, context.waker());
            // It may have ended before the waker was stored.
            if !work.is_done() {
                self.work = Some(work);
                return Poll::Pending;
            }
        }
        match work.wait_until(Instant::now) {
            Ok(result) => {
                self.slot = None;
                Poll::Ready(result)
            }
            // On a CUDA stream whose capture has just ended, work that had passed its deadline may
            // not be done after all.
            Err(work) => {
                self.work = Some(work);
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}

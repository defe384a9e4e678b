//! Calls that return when their result is there.

use crate::collective::{Collective, ReduceOperation};
use crate::comm::{Communicator, Request};
use crate::error::{Error, Result};
use crate::issue_order::Extent;
use crate::memory::{TensorView, TensorViewMut};
use crate::rank::Rank;

/// # Collectives
///
/// A buffer is a slice, an array, a `Vec`, a scalar, a [`Buffer`](crate::Buffer) or, with the
/// feature `ndarray`, a contiguous array or view. Only its number of elements counts, so any shape
/// fits, 0-d too. Lengths are in elements, and `n` is the number of ranks.
///
/// ```
/// use distcollective::collective::Collective;
/// use distcollective::{Communicator, ReduceOperation};
///
/// Communicator::spawn(2, |communicator| {
///     let (rank, sum, root) = (communicator.rank().0 as i32, ReduceOperation::Sum, 1);
///     let is_root = rank == 1;
///     let mut loss = rank as f32;
///     communicator.all_reduce(&mut loss, ReduceOperation::Avg)?;
///     assert_eq!(loss, 0.5);
///     let mut ranks = [0i32; 2];
///     communicator.all_gather(&[rank], &mut ranks)?;
///     assert_eq!(ranks, [0, 1]);
///     let mut x = [rank, 10];
///     communicator.broadcast(&mut x, root)?;
///     assert_eq!(x, [1, 10]);
///     communicator.reduce(&mut x, sum, root)?;
///     assert_eq!(x, if is_root { [2, 20] } else { [1, 10] });
///     let mut block = [0i32];
///     communicator.reduce_scatter(&[3i32, 4], &mut block, sum)?;
///     assert_eq!(block, if is_root { [8] } else { [6] });
///     communicator.all_to_all(&[rank, rank + 10], &mut ranks)?;
///     assert_eq!(ranks, if is_root { [10, 11] } else { [0, 1] });
///     let mut all = [0i32; 2];
///     communicator.gather(&[rank + 5], is_root.then_some(&mut all), root)?;
///     communicator.scatter(is_root.then_some(&all), &mut block, root)?;
///     assert_eq!(block, [rank + 5]);
///     // all_reduce that leaves its input as it is.
///     let max = Collective::AllReduce { reduce_op: ReduceOperation::Max };
///     communicator.collective(max, Some(&[rank]), Some(&mut block))?;
///     assert_eq!(block, [1]);
///     Ok(())
/// })?;
/// # Ok::<(), distcollective::Error>(())
/// ```
///
/// Every call here blocks, is collective, and follows the contract of [`Communicator`].
impl Communicator {
    /// Replaces `buffer` on every rank by the reduction over all ranks.
    /// [`collective`](Self::collective) takes input and output apart.
    #[doc = include_str!("errors.md")]
    pub fn all_reduce<'a>(
        &self,
        buffer: impl TryInto<TensorViewMut<'a>, Error: Into<Error>>,
        reduce_op: ReduceOperation,
    ) -> Result<()> {
        self.in_place(Collective::AllReduce { reduce_op }, buffer)
    }

    /// Gives every rank all inputs in rank order: `output` is `n` times as long as `input`.
    #[doc = include_str!("errors.md")]
    pub fn all_gather<'a, 'b>(
        &self,
        input: impl TryInto<TensorView<'a>, Error: Into<Error>>,
        output: impl TryInto<TensorViewMut<'b>, Error: Into<Error>>,
    ) -> Result<()> {
        self.collective(Collective::AllGather, Some(input), Some(output))
    }

    /// Replaces `buffer` on every rank by the root's.
    #[doc = include_str!("errors.md")]
    pub fn broadcast<'a>(
        &self,
        buffer: impl TryInto<TensorViewMut<'a>, Error: Into<Error>>,
        root: impl Into<Rank>,
    ) -> Result<()> {
        self.in_place(Collective::Broadcast { root: root.into() }, buffer)
    }

    /// Replaces `buffer` on the root by the reduction over all ranks. On the other ranks it keeps
    /// its elements.
    #[doc = include_str!("errors.md")]
    pub fn reduce<'a>(
        &self,
        buffer: impl TryInto<TensorViewMut<'a>, Error: Into<Error>>,
        reduce_op: ReduceOperation,
        root: impl Into<Rank>,
    ) -> Result<()> {
        self.in_place(Collective::Reduce { reduce_op, root: root.into() }, buffer)
    }

    /// Gives every rank its block of the reduction over all ranks: `input` is `n` times as long as
    /// `output`.
    #[doc = include_str!("errors.md")]
    pub fn reduce_scatter<'a, 'b>(
        &self,
        input: impl TryInto<TensorView<'a>, Error: Into<Error>>,
        output: impl TryInto<TensorViewMut<'b>, Error: Into<Error>>,
        reduce_op: ReduceOperation,
    ) -> Result<()> {
        self.collective(Collective::ReduceScatter { reduce_op }, Some(input), Some(output))
    }

    /// Gives every rank its block of each input, in rank order: `input` and `output` have the same
    /// length, a multiple of `n`.
    #[doc = include_str!("errors.md")]
    pub fn all_to_all<'a, 'b>(
        &self,
        input: impl TryInto<TensorView<'a>, Error: Into<Error>>,
        output: impl TryInto<TensorViewMut<'b>, Error: Into<Error>>,
    ) -> Result<()> {
        self.collective(Collective::AllToAll, Some(input), Some(output))
    }

    /// Gives the root all inputs in rank order. The root's `output` is `n` times as long as
    /// `input`; the other ranks may give `None`, which then names a type:
    /// `None::<&mut [f32]>`.
    #[doc = include_str!("errors.md")]
    pub fn gather<'a, 'b>(
        &self,
        input: impl TryInto<TensorView<'a>, Error: Into<Error>>,
        output: Option<impl TryInto<TensorViewMut<'b>, Error: Into<Error>>>,
        root: impl Into<Rank>,
    ) -> Result<()> {
        self.collective(Collective::Gather { root: root.into() }, Some(input), output)
    }

    /// Gives every rank its block of the root's `input`, which is `n` times as long as `output`.
    /// The other ranks may give `None`, which then names a type: `None::<&[f32]>`.
    #[doc = include_str!("errors.md")]
    pub fn scatter<'a, 'b>(
        &self,
        input: Option<impl TryInto<TensorView<'a>, Error: Into<Error>>>,
        output: impl TryInto<TensorViewMut<'b>, Error: Into<Error>>,
        root: impl Into<Rank>,
    ) -> Result<()> {
        self.collective(Collective::Scatter { root: root.into() }, input, Some(output))
    }

    /// Any of the eight operations, with input and output apart. A buffer that this rank does not
    /// use may be absent; if it is given, it must fit.
    #[doc = include_str!("errors.md")]
    pub fn collective<'a, 'b>(
        &self,
        collective: Collective<Rank>,
        input: Option<impl TryInto<TensorView<'a>, Error: Into<Error>>>,
        output: Option<impl TryInto<TensorViewMut<'b>, Error: Into<Error>>>,
    ) -> Result<()> {
        let input = input.map(|input| self.view(&collective, input)).transpose()?;
        let mut output = output.map(|output| self.view_mut(&collective, output)).transpose()?;
        let (input, output) = (input.as_ref().map(TensorView::raw), output.as_mut().map(TensorViewMut::raw));
        let request = self.eager_request(collective, [input, output])?;
        // SAFETY: `eager_request` has compared the lengths of the buffers, which are borrowed.
        unsafe { self.run_in_turn(request) }
    }

    /// A collective whose input is its output.
    fn in_place<'a>(
        &self,
        collective: Collective<Rank>,
        buffer: impl TryInto<TensorViewMut<'a>, Error: Into<Error>>,
    ) -> Result<()> {
        let mut view = self.view_mut(&collective, buffer)?;
        let request = self.eager_request(collective, [Some(view.raw()); 2])?;
        // SAFETY: `eager_request` has compared the lengths of the buffer, which is borrowed.
        unsafe { self.run_in_turn(request) }
    }

    /// Runs a call on this thread when the calls that this rank made before have ended.
    ///
    /// # Safety
    ///
    /// The buffers that the call uses on this rank are valid for the lengths that it says, and used
    /// by nothing else during the call.
    unsafe fn run_in_turn(&self, request: Request<'_>) -> Result<()> {
        // SAFETY: the caller's promise.
        let run = || unsafe { self.run(request) };
        self.in_turn(Extent::Communicator, &request.call.collective.operation(), request.deadline, run)
    }
}

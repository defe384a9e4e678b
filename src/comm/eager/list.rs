//! The list forms of scatter, gather and all_gather: one tensor for each rank, in place of one that
//! holds all of them.

use super::raw::RawCollective;
use crate::collective::{Call, Collective, check_wire_type};
use crate::comm::{Communicator, Request};
use crate::error::{Error, Result, bail};
use crate::memory::{Address, RawTensor, TensorView, TensorViewMut};
use crate::moved_type::MovedType;
use crate::rank::Rank;
use crate::stream::Stream;
use crate::util::text::count_of;

/// # Lists of tensors
///
/// These calls mean the same as those without `_list`, with one tensor for each rank in rank order
/// in place of one tensor with all of them. All tensors have one type and one length, and are in
/// one memory; otherwise the call is an `InvalidBuffer`. Every rank makes the list form of the
/// call, also ranks that have no list. A list never shares memory with the call's other buffer.
///
/// Nothing is copied into one buffer on the host: threads read each other's tensors, and between
/// processes each tensor goes through staging memory. (Elements of `gather_list` and
/// `all_gather_list` that lie in symmetric memory are read in place.) On GPUs the tensors are sent
/// and received one by one, in one group of NCCL's calls; those in host memory go through one
/// buffer on the GPU.
///
/// [`Operands::with_list`](crate::comm::Operands::with_list) is for asynchronous calls, and
/// [`RawOperands::List`](crate::comm::RawOperands::List) for raw addresses.
///
/// ```
/// use distcollective::Communicator;
///
/// Communicator::spawn(2, |communicator| {
///     let rank = communicator.rank().0 as i32;
///     let mut all = [vec![0; 3], vec![0; 3]];
///     communicator.all_gather_list(&[rank; 3], &mut all)?;
///     assert_eq!(all, [vec![0; 3], vec![1; 3]]);
///     let mut own = [0; 3];
///     communicator.scatter_list((rank == 1).then_some(&all), &mut own, 1)?;
///     assert_eq!(own, [rank; 3]);
///     communicator.gather_list(&[rank + 7; 3], (rank == 1).then_some(&mut all), 1)?;
///     assert_eq!(all[0], [if rank == 1 { 7 } else { 0 }; 3]);
///     Ok(())
/// })?;
/// # Ok::<(), distcollective::Error>(())
/// ```
impl Communicator {
    /// Gives each rank its tensor of the root's list. The other ranks may give `None`, which then
    /// names a type: `None::<[&[f32]; 0]>`.
    #[doc = include_str!("errors.md")]
    pub fn scatter_list<'a, 'b>(
        &self,
        inputs: Option<impl IntoIterator<Item: TryInto<TensorView<'a>, Error: Into<Error>>>>,
        output: impl TryInto<TensorViewMut<'b>, Error: Into<Error>>,
        root: impl Into<Rank>,
    ) -> Result<()> {
        let collective = Collective::Scatter { root: root.into() };
        let inputs = inputs.into_iter().flatten();
        let list = inputs.map(|input| Ok(*self.view(&collective, input)?.raw())).collect::<Result<_>>()?;
        let output = *self.view_mut(&collective, output)?.raw();
        self.complete_list(collective, output, list)
    }

    /// Gives the root all inputs, each in a tensor of its own. The other ranks may give `None`,
    /// which then names a type: `None::<[&mut [f32]; 0]>`.
    #[doc = include_str!("errors.md")]
    pub fn gather_list<'a, 'b>(
        &self,
        input: impl TryInto<TensorView<'a>, Error: Into<Error>>,
        outputs: Option<impl IntoIterator<Item: TryInto<TensorViewMut<'b>, Error: Into<Error>>>>,
        root: impl Into<Rank>,
    ) -> Result<()> {
        let collective = Collective::Gather { root: root.into() };
        let input = *self.view(&collective, input)?.raw();
        let list = self.raw_list(&collective, outputs.into_iter().flatten())?;
        self.complete_list(collective, input, list)
    }

    /// Gives every rank all inputs, each in a tensor of its own.
    #[doc = include_str!("errors.md")]
    pub fn all_gather_list<'a, 'b>(
        &self,
        input: impl TryInto<TensorView<'a>, Error: Into<Error>>,
        outputs: impl IntoIterator<Item: TryInto<TensorViewMut<'b>, Error: Into<Error>>>,
    ) -> Result<()> {
        let input = *self.view(&Collective::AllGather, input)?.raw();
        let list = self.raw_list(&Collective::AllGather, outputs)?;
        self.complete_list(Collective::AllGather, input, list)
    }

    /// The views of a list that is written.
    fn raw_list<'a>(
        &self,
        collective: &Collective<Rank>,
        list: impl IntoIterator<Item: TryInto<TensorViewMut<'a>, Error: Into<Error>>>,
    ) -> Result<Vec<RawTensor>> {
        list.into_iter().map(|output| Ok(*self.view_mut(collective, output)?.raw())).collect()
    }

    /// Makes the call on this thread. The caller borrows the tensors meanwhile.
    fn complete_list(&self, collective: Collective<Rank>, one: RawTensor, list: Vec<RawTensor>) -> Result<()> {
        let stream = Stream::inline();
        let task = self.list_task(collective, Some(one), list, None, &stream)?;
        self.submit(task, &stream).wait().map(drop).map_err(Error::from)
    }

    /// A call on a list, which has been checked.
    pub(super) fn list_task(
        &self,
        collective: Collective<Rank>,
        one: Option<RawTensor>,
        list: Vec<RawTensor>,
        only_moved: Option<MovedType>,
        stream: &Stream,
    ) -> Result<RawCollective> {
        let whole = self.whole_list(collective, &list).map_err(|error| self.label(&collective, error))?;
        let is_scatter = matches!(collective, Collective::Scatter { .. });
        let sides = if is_scatter { [whole.as_ref(), one.as_ref()] } else { [one.as_ref(), whole.as_ref()] };
        let request = self.eager_request(collective, sides)?;
        let blocks: Vec<Address> = list.iter().filter(|_| whole.is_some()).map(RawTensor::located).collect();
        let call = Call { only_moved, ..request.call };
        let mut request = Request { call, blocks: Some(&blocks), stream: stream.as_cuda(), ..request };
        let checked = self.check_request(&mut request).map_err(|error| self.label(&collective, error))?;
        Ok(RawCollective::new(self, &checked, None))
    }

    /// The list as one tensor that holds it, whose address no code uses; `None` on a rank that uses
    /// no list.
    fn whole_list(&self, collective: Collective<Rank>, list: &[RawTensor]) -> Result<Option<RawTensor>> {
        let name = match collective {
            Collective::Scatter { .. } => "input",
            Collective::Gather { .. } | Collective::AllGather => "output",
            _ => bail!(InvalidArgument, "there is no list form; scatter, gather and all_gather have one"),
        };
        check_wire_type(collective.operation(), self.wire_type)?;
        if let Some(wire_type) = self.wire_type {
            bail!(
                Unsupported,
                "the list form has no transport type, and {wire_type} is set; all_gather on one tensor for all ranks has one"
            );
        }
        if collective.root().is_some_and(|root| root != self.rank()) {
            return Ok(None);
        }
        let n = self.world_size() as usize;
        if list.len() != n {
            let tensors = count_of(list.len(), "tensor");
            bail!(InvalidBuffer, "the {name} list has {tensors}; it must have one for each of {}", count_of(n, "rank"));
        }
        let first = &list[0];
        if let Some(at) = list.iter().position(|raw| !is_like(raw, first)) {
            bail!(InvalidBuffer, "tensor {at} of the {name} list is {:?}, and tensor 0 is {first:?}", list[at]);
        }
        match first.byte_len.checked_mul(n).filter(|len| isize::try_from(*len).is_ok()) {
            Some(byte_len) => Ok(Some(RawTensor { byte_len, shape: None, ..*first })),
            None => bail!(InvalidBuffer, "the {name} list is longer than memory"),
        }
    }
}

/// Whether two tensors of a list go together.
fn is_like(one: &RawTensor, other: &RawTensor) -> bool {
    let key = |raw: &RawTensor| (raw.data_type, raw.byte_len, raw.space);
    key(one) == key(other)
}

//! Calls on raw addresses, for engines that have memory of their own.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use super::uneven_blocks::UnevenBlocks;
use crate::collective::{Call, Collective, Purpose};
use crate::comm::{Backend, Checked, Communicator, CountedRun, Request, RunCounter};
use crate::cuda::CudaStream;
use crate::error::{Error, Result, bail};
use crate::memory::{Address, RawTensor, TensorView, TensorViewMut};
use crate::moved_type::TransferType;
use crate::rank::Rank;
use crate::stream::{Stream, Task, Watch, Work};
use crate::util::text::count_of;

/// The addresses of [`Communicator::enqueue`]. One that this rank does not use may be null.
#[derive(Clone, Copy, Debug)]
pub enum RawOperands<'a> {
    /// One tensor that is read, and one that is written.
    Pair {
        /// The tensor that is read.
        input: *const u8,
        /// The tensor that is written.
        output: *mut u8,
    },
    /// The list form of scatter, gather or all_gather.
    List {
        /// The output of scatter, the input of gather and all_gather.
        one: *mut u8,
        /// A tensor for each rank: the inputs of scatter at the root, the outputs of gather at the
        /// root and of all_gather. Empty on other ranks.
        list: &'a [*mut u8],
    },
}

/// A collective on raw addresses, a layer's run on them, or a barrier. It is empty if the
/// enqueueing call has run it itself.
#[derive(Debug, Default)]
pub struct RawCollective(Option<Box<RawCall>>);

/// A call that has passed the rules.
struct RawCall {
    backend: Arc<dyn Backend>,
    /// Whether the rank is alone in the call; see [`Checked`].
    is_alone: bool,
    call: Call,
    sides: [Address; 2],
    blocks: Option<Vec<Address>>,
    deadline: Instant,
    /// The blocks of a call with counts.
    uneven: Option<UnevenBlocks>,
    /// The bound layer that makes the call, and its runs.
    layer: Option<(Arc<str>, Arc<RunCounter>)>,
}

// SAFETY: `enqueue`'s caller promised that the addresses are valid until the work is done, on any
// thread; those of `Operands` are of buffers that the work owns.
unsafe impl Send for RawCall {}
// SAFETY: a shared reference gives no way to the addresses.
unsafe impl Sync for RawCall {}

/// # Raw addresses
///
/// ```
/// use distcollective::collective::Collective;
/// use distcollective::comm::RawOperands;
/// use distcollective::{Communicator, DataType, Stream};
///
/// Communicator::spawn(2, |communicator| {
///     let (rank, mut all) = (communicator.rank().0 as i32, [0i32; 2]);
///     let (input, output) = ((&raw const rank).cast(), all.as_mut_ptr().cast::<u8>());
///     let stream = Stream::worker()?;
///     let (call, data_type) = (Collective::AllGather, DataType::Int32);
///     // SAFETY: the input has one element and the output two, and both outlive the work.
///     let all_gather = |on| unsafe { communicator.enqueue(call, data_type, 1, on, &stream) };
///     all_gather(RawOperands::Pair { input, output })?.wait()?;
///     let list = [output, output.wrapping_add(4)];
///     all_gather(RawOperands::List { one: input.cast_mut(), list: &list })?.wait()?;
///     communicator.enqueue_barrier(&stream)?.wait()?;
///     assert_eq!(all, [0, 1]);
///     Ok(())
/// })?;
/// # Ok::<(), distcollective::Error>(())
/// ```
impl Communicator {
    /// Any of the eight operations on raw addresses, on a stream. The addresses are in the memory
    /// of the communicator, [`space`](Self::space). Collective.
    ///
    /// `block_elements` is NCCL's count: what a rank gives to all_gather and gather, gets from
    /// reduce_scatter and scatter, sends to each rank in all_to_all, and the whole buffer in
    /// all_reduce, broadcast and reduce. Each tensor of a list has as many. `data_type` is a
    /// [`DataType`](crate::DataType), or a [`MovedType`](crate::comm::MovedType), of which only the
    /// complex types are reduced.
    ///
    /// # Safety
    ///
    /// Until the work is done, and for ever if it is leaked before, the buffers that this rank uses
    /// are as long as the operation and the count say, and nothing else uses that memory.
    ///
    /// # Errors
    ///
    /// - `InvalidArgument`: the root is not a rank; the type does not have the reduction; a list is
    ///   given to an operation that has no list form; a [transport type](Self::with_wire_type) is
    ///   set, and the operation or the type has none.
    /// - `InvalidBuffer`: the elements are more than memory can hold; an address that this rank
    ///   uses is null or not aligned to the element; the list has not one address for each rank;
    ///   two outputs overlap, or input and output in another way than
    ///   [`InPlace`](crate::collective::InPlace) says. A [`MovedType`](crate::comm::MovedType)
    ///   that is not reduced needs no alignment.
    /// - `Unsupported`: a transport type is set, and a list is given; NCCL has not the reduction.
    /// - Those of [`enqueue_barrier`](Self::enqueue_barrier).
    pub unsafe fn enqueue(
        &self,
        collective: Collective<Rank>,
        data_type: impl Into<TransferType>,
        block_elements: usize,
        operands: RawOperands<'_>,
        stream: &Stream,
    ) -> Result<Work<RawCollective>> {
        let (n, data_type) = (self.world_size() as usize, data_type.into());
        self.check_transfer(&collective, data_type, block_elements).map_err(|error| self.label(&collective, error))?;
        let (carrier, only_moved) = (data_type.carrier(collective.reduce_op()), data_type.moved());
        let block = block_elements * data_type.carrier_count(collective.reduce_op());
        let raw = |address, blocks| RawTensor::flat(self.space(), address, carrier, blocks * block);
        let task = match operands {
            RawOperands::Pair { input, output } => {
                let input = raw(input.cast_mut(), collective.operation().input_blocks(n));
                let output = raw(output, collective.operation().output_blocks(n));
                let request = self.eager_request(collective, [Some(&input), Some(&output)])?;
                RawCollective::checked(self, Request { call: Call { only_moved, ..request.call }, ..request }, stream)?
            }
            RawOperands::List { one, list } => {
                let list = list.iter().map(|address| raw(*address, 1)).collect();
                self.list_task(collective, Some(raw(one, 1)), list, only_moved, stream)?
            }
        };
        Ok(self.submit(task, stream))
    }

    /// [`collective`](Self::collective) on a stream, with borrowed tensors. An absent input is the
    /// output's memory where the operation can use one buffer. Collective.
    ///
    /// # Safety
    ///
    /// Until the work is done, and for ever if it is leaked before, the tensors that this rank uses
    /// are valid, and nothing else uses their memory.
    ///
    /// # Errors
    ///
    /// Those of [`collective`](Self::collective); those of arguments and buffers from this call,
    /// all others from [`Work::wait`].
    pub unsafe fn enqueue_views(
        &self,
        collective: Collective<Rank>,
        input: Option<TensorView<'_>>,
        output: Option<TensorViewMut<'_>>,
        stream: &Stream,
    ) -> Result<Work<RawCollective>> {
        let output = output.map(|mut output| *output.raw());
        let input = input.map(|input| *input.raw());
        Ok(self.submit(self.task_on(collective, input, output, stream)?, stream))
    }

    /// A collective on tensors. An absent input is the output's memory where the operation can use
    /// one buffer.
    pub(super) fn task_on(
        &self,
        collective: Collective<Rank>,
        input: Option<RawTensor>,
        output: Option<RawTensor>,
        stream: &Stream,
    ) -> Result<RawCollective> {
        let input = input.or(output.filter(|_| collective.operation().geometry().can_use_one_buffer()));
        let request = self.eager_request(collective, [input.as_ref(), output.as_ref()])?;
        RawCollective::checked(self, request, stream)
    }

    /// [`barrier`](Self::barrier) on a stream: the work ends when every rank has come to it.
    /// Collective.
    ///
    /// # Errors
    ///
    /// - `Unsupported`: a CUDA stream, and a communicator on the host.
    /// - `InvalidArgument`: a stream of another GPU.
    ///
    /// All others come from [`Work::wait`], and are those of [`barrier`](Self::barrier).
    pub fn enqueue_barrier(&self, stream: &Stream) -> Result<Work<RawCollective>> {
        let request = Request::barrier(Purpose::BARRIER, self.deadline());
        Ok(self.submit(RawCollective::checked(self, request, stream)?, stream))
    }

    /// Checks that the operation takes the type, and that memory can hold a block for each rank.
    pub(super) fn check_transfer(
        &self,
        collective: &Collective<Rank>,
        data_type: TransferType,
        block_elements: usize,
    ) -> Result<()> {
        if let (Some(moved), Some(reduce_op)) = (data_type.moved(), collective.reduce_op())
            && !moved.has(reduce_op)
        {
            bail!(InvalidArgument, "{moved} has no {reduce_op}; cast to a type that is reduced");
        }
        if let (Some(moved), Some(wire_type)) = (data_type.moved(), self.wire_type()) {
            bail!(
                InvalidArgument,
                "the transport type is {wire_type}, and the elements are {moved}; only float32 has a transport type"
            );
        }
        let n = self.world_size() as usize;
        let longest = block_elements.checked_mul(n).and_then(|elements| elements.checked_mul(data_type.byte_len()));
        if longest.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            let elements = count_of(block_elements, "element");
            bail!(InvalidBuffer, "{elements} for each of {} are more than memory can hold", count_of(n, "rank"));
        }
        Ok(())
    }
}

impl RawCollective {
    /// Checks memory, alignment and overlap of the buffers. It is not done again when the call
    /// runs.
    pub(super) fn checked(communicator: &Communicator, request: Request<'_>, stream: &Stream) -> Result<Self> {
        let mut request = Request { stream: stream.as_cuda(), ..request };
        let call = request.call;
        let checked = communicator.check_request(&mut request).map_err(|e| communicator.about(&call, e))?;
        Ok(RawCollective::new(communicator, &checked, None))
    }

    /// The work of a checked call, which may be the next run of a bound layer.
    pub(crate) fn new(
        communicator: &Communicator,
        checked: &Checked<'_>,
        layer: Option<(Arc<str>, Arc<RunCounter>)>,
    ) -> Self {
        let Request { call, input, output, blocks, deadline, .. } = *checked.request;
        RawCollective(Some(Box::new(RawCall {
            backend: Arc::clone(&communicator.backend),
            is_alone: checked.backend.is_none(),
            call,
            sides: [input, output],
            blocks: blocks.map(<[Address]>::to_vec),
            deadline,
            uneven: None,
            layer,
        })))
    }

    /// The call with counts, on these blocks.
    pub(super) fn with_blocks(self, uneven: UnevenBlocks) -> Self {
        RawCollective(self.0.map(|raw| Box::new(RawCall { uneven: Some(uneven), ..*raw })))
    }
}

impl RawCall {
    fn on_rank(&self, error: Error) -> Error {
        error.on_rank(self.backend.origin(self.backend.rank()))
    }
}

impl Task for RawCollective {
    fn run(&mut self, stream: Option<&Arc<CudaStream>>) -> Result<()> {
        let Some(raw) = &self.0 else { return Ok(()) };
        let run = raw.layer.as_ref().map(|(_, runs)| CountedRun::new(runs));
        let request = Request {
            run: run.as_ref(),
            label: raw.layer.as_ref().map(|(subject, _)| &**subject),
            blocks: raw.blocks.as_deref(),
            stream,
            ..Request::new(raw.call, raw.sides, raw.deadline)
        };
        if let Some(uneven) = &raw.uneven {
            // SAFETY: the promise of `enqueue_v`, or buffers that the caller has borrowed.
            return unsafe { uneven.run(&raw.backend, &request) }.map_err(|error| raw.on_rank(error));
        }
        let checked = Checked { backend: (!raw.is_alone).then_some(&*raw.backend), request: &request };
        // SAFETY: the promise of `enqueue`, or buffers that the work owns.
        unsafe { checked.run() }.map_err(|error| raw.on_rank(error))
    }

    fn label(&self, error: Error) -> Error {
        let Some(raw) = &self.0 else { return error };
        raw.on_rank(error).about(|| match (&raw.layer, raw.call.purpose) {
            (Some((subject, _)), _) => subject.to_string(),
            (None, Purpose::COLLECTIVE | Purpose::UNEVEN) => raw.call.collective.operation().to_string(),
            (None, purpose) => purpose.name().to_owned(),
        })
    }

    fn watch(&self) -> Option<(Arc<dyn Watch>, Instant)> {
        self.0.as_ref().map(|raw| (Arc::clone(&raw.backend) as Arc<dyn Watch>, raw.deadline))
    }
}

impl fmt::Debug for RawCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.call.fmt(f)
    }
}

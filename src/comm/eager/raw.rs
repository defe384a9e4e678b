//! Calls on raw addresses, for engines that have memory of their own.

use std::sync::Arc;
use std::time::Instant;

use crate::collective::{Call, Collective};
use crate::comm::{Communicator, Purpose, Request, Signature};
use crate::cuda::CudaStream;
use crate::error::{Error, Result, bail};
use crate::issue_order::Extent;
use crate::memory::Address;
use crate::moved_type::{MovedType, TransferType};
use crate::rank::Rank;
use crate::stream::{Stream, Task, Watch, Work};
use crate::util::text::count_of;

/// A collective on raw addresses, which have been checked, or a barrier.
#[derive(Debug)]
pub struct RawCollective {
    communicator: Communicator,
    signature: Signature,
    sides: [Address; 2],
    /// The blocks of a list form.
    blocks: Option<Vec<Address>>,
    deadline: Instant,
}

// SAFETY: `enqueue`'s caller promised that the addresses are valid until the work is done, on any
// thread; those of `Operands` are of buffers that the work owns.
unsafe impl Send for RawCollective {}
// SAFETY: a shared reference gives no way to the addresses.
unsafe impl Sync for RawCollective {}

impl Communicator {
    /// Any of the eight operations on raw addresses, on a stream. The addresses are in the memory
    /// of the communicator, [`space`](Self::space). An address that this rank does not use may be
    /// null. Collective.
    ///
    /// `block_elements` is NCCL's count: what a rank gives to all_gather and gather, gets from
    /// reduce_scatter and scatter, sends to each rank in all_to_all, and the whole buffer in
    /// all_reduce, broadcast and reduce. `data_type` is a [`DataType`](crate::DataType), or in
    /// operations that do not reduce a [`MovedType`].
    ///
    /// # Safety
    ///
    /// Until the work is done, and for ever if it is leaked before, the buffers that this rank uses
    /// are as long as the operation and the count say, and nothing else uses that memory.
    ///
    /// # Errors
    ///
    /// - The root is not a rank.
    /// - bool is averaged, or a type that is only moved is reduced.
    /// - The elements are more than memory can hold.
    /// - An address that this rank uses is null or not aligned to the element, or both overlap in
    ///   another way than [`InPlace`](crate::collective::InPlace) says. A
    ///   [`MovedType`] needs no alignment.
    /// - The stream is not for the communicator's memory.
    ///
    /// All other errors come from [`Work::wait`]; see the contract of [`Communicator`].
    pub unsafe fn enqueue(
        &self,
        collective: Collective<Rank>,
        data_type: impl Into<TransferType>,
        block_elements: usize,
        input: *const u8,
        output: *mut u8,
        stream: &Stream,
    ) -> Result<Work<RawCollective>> {
        let n = self.world_size() as usize;
        let data_type = data_type.into();
        self.check_transfer(&collective, data_type, block_elements).map_err(|error| self.label(&collective, error))?;
        let (carrier, block) = (data_type.carrier(), block_elements * data_type.carrier_count());
        let operation = collective.operation();
        let [input_elements, output_elements] =
            [operation.input_blocks(n), operation.output_blocks(n)].map(|blocks| blocks * block);
        let call = self.call(collective, Some((carrier, input_elements)), Some((carrier, output_elements)))?;
        let call = Call { only_moved: data_type.moved(), ..call };
        let space = self.space();
        let sides = [input.cast_mut(), output].map(|pointer| Address { pointer, space });
        Ok(stream.submit(RawCollective::new(self, call, sides, stream)?, Some(self.order(Extent::Communicator)), None))
    }

    /// [`barrier`](Self::barrier) on a stream: the work ends when every rank has come to it.
    /// Collective.
    ///
    /// # Errors
    ///
    /// - The stream is not for the communicator's memory.
    ///
    /// All other errors come from [`Work::wait`]; see the contract of [`Communicator`].
    pub fn enqueue_barrier(&self, stream: &Stream) -> Result<Work<RawCollective>> {
        let Request { signature, input, output, deadline, .. } = Request::barrier(Purpose::Barrier, self.deadline());
        let sides = [input, output];
        let task = RawCollective { communicator: self.clone(), signature, sides, blocks: None, deadline };
        Ok(stream.submit(task.checked(stream)?, Some(self.order(Extent::Communicator)), None))
    }

    /// Checks that the operation takes the type, and that memory can hold a block for each rank.
    pub(super) fn check_transfer(
        &self,
        collective: &Collective<Rank>,
        data_type: TransferType,
        block_elements: usize,
    ) -> Result<()> {
        if let (Some(moved), Some(_)) = (data_type.moved(), collective.reduce_op()) {
            bail!(InvalidArgument, "{moved} is only moved, and this operation reduces; cast to a type that is reduced");
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
    pub(super) fn new(communicator: &Communicator, call: Call, sides: [Address; 2], stream: &Stream) -> Result<Self> {
        Self::of_user(communicator, call, sides, None).checked(stream)
    }

    /// A call on a list of blocks. The caller has checked memory, alignment and overlap.
    pub(super) fn of_list(communicator: &Communicator, call: Call, sides: [Address; 2], blocks: Vec<Address>) -> Self {
        Self::of_user(communicator, call, sides, Some(blocks))
    }

    /// The call on bytes of a type that only moves.
    pub(super) fn moving(mut self, only_moved: Option<MovedType>) -> Self {
        self.signature.call.only_moved = only_moved;
        self
    }

    fn of_user(communicator: &Communicator, call: Call, sides: [Address; 2], blocks: Option<Vec<Address>>) -> Self {
        let signature = Signature { purpose: Purpose::Collective, call };
        let (communicator, deadline) = (communicator.clone(), communicator.deadline());
        RawCollective { communicator, signature, sides, blocks, deadline }
    }

    fn checked(self, stream: &Stream) -> Result<Self> {
        let checked = self.communicator.check_request(&self.request(stream.as_cuda()));
        checked.map_err(|error| error.on_rank(self.communicator.origin_rank()).about(|| self.signature.to_string()))?;
        Ok(self)
    }

    fn request<'a>(&self, stream: Option<&'a Arc<CudaStream>>) -> Request<'a> {
        let RawCollective { signature, sides: [input, output], deadline, .. } = *self;
        Request { signature, label: None, input, output, deadline, stream }
    }
}

impl Task for RawCollective {
    fn run(&mut self, stream: Option<&Arc<CudaStream>>) -> Result<()> {
        // SAFETY: the promise of `enqueue`, or buffers that the work owns; `new` has checked the
        // rules of memory, alignment and overlap for this stream.
        let result = unsafe {
            match &self.blocks {
                None => self.communicator.run_checked(self.request(stream)),
                Some(blocks) => self.communicator.run_list_checked(self.request(stream), blocks),
            }
        };
        result.map_err(|error| error.on_rank(self.communicator.origin_rank()))
    }

    fn label(&self, error: Error) -> Error {
        error.on_rank(self.communicator.origin_rank()).about(|| match self.signature.purpose {
            Purpose::Collective => self.signature.call.collective.operation().to_string(),
            purpose => purpose.name().to_owned(),
        })
    }

    fn watch(&self) -> Option<(Arc<dyn Watch>, Instant)> {
        Some((self.communicator.watch(), self.deadline))
    }
}

//! The broadcast of a dictionary. Ranks first say who the source is, and the hash of the schema
//! that they have. If a receiver has another one, the schema travels, and receivers allocate what
//! they lack. Then the elements travel in pieces.

use std::sync::Arc;
use std::time::Instant;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::TensorDict;
use super::arrival::{Arrival, check_existing};
use super::options::{BroadcastOptions, BroadcastProgress};
use super::schema::{EncodedSchema, MAX_SCHEMA_BYTES, Schema, hash_of};
use crate::collective::{Call, Collective, Purpose, PurposeKind};
use crate::comm::{BackendKind, Communicator, Request};
use crate::cuda::{CudaStream, Device};
use crate::data_type::DataType;
use crate::error::{Error, Result, bail, error};
use crate::issue_order::Extent;
use crate::memory::{Address, MemorySpace};
use crate::rank::{GroupRank, Rank};
use crate::stream::{EnqueueError, Stream, Task, Watch, Work};
use crate::util::panic_message;

/// The call, as errors name it.
const NAME: &str = "broadcast_tensor_dict";
pub(super) const PURPOSE: Purpose = Purpose::new(NAME, PurposeKind::Bulk);

impl Communicator {
    /// Gives every rank the tensors of the source's dictionary. Collective.
    ///
    /// The source's dictionary stays as it is. On another rank, a tensor with the name, type and
    /// shape of one that arrives is filled in place; a tensor that the rank lacks is added at the
    /// end; all others stay. A receiver may begin with an empty dictionary. Elements keep their
    /// bits, whatever their type.
    ///
    /// Names, types and shapes travel first. They do not if every receiver has the source's: ranks
    /// compare a hash of 32 bytes. The elements follow in pieces of at most 8 MiB; tensors of less
    /// than 256 KiB share pieces. The call's deadline is that of all pieces together.
    ///
    /// # Errors
    ///
    /// Every rank gets these, no dictionary has changed, and the communicator stays as it was. If
    /// one rank finds the error, the others get its kind and text, with the number of that rank:
    /// - `InvalidArgument`: the source is not a rank; `pin_memory` where tensors are to lie on a
    ///   GPU; `shared` with a GPU or pinned memory; names and shapes are longer than 16 MiB.
    /// - `Unsupported`: `pin_memory` without CUDA; a device that is not there; `shared` on another
    ///   backend than the host's.
    /// - `Disagreement`: the ranks name different sources, or not all ask for `shared`.
    /// - `InvalidBuffer`: a rank has a tensor of that name with another type or shape.
    /// - `System`: a rank has no memory for what would arrive.
    /// - `Plugin`: with `shared`, the progress function of a receiver panicked.
    /// - The caller's own, of [`BroadcastOptions::refuse`].
    ///
    /// All others end the communicator; see its contract. On a receiver that gets one, the tensors
    /// that were to be filled in place may have any bytes then, and no tensor has been added. With
    /// `shared` its dictionary has not changed.
    pub fn broadcast_tensor_dict(&self, dict: &mut TensorDict, options: &BroadcastOptions) -> Result<()> {
        let broadcast = Broadcast::new(self, options);
        self.in_turn(Extent::Communicator, &NAME, broadcast.deadline, || broadcast.run(dict))
            .map_err(|error| broadcast.label(error))
    }

    /// [`broadcast_tensor_dict`](Self::broadcast_tensor_dict) on a stream, with a dictionary that
    /// the work owns and hands back.
    ///
    /// ```
    /// use distcollective::tensor_dict::BroadcastOptions;
    /// use distcollective::{Buffer, Communicator, Stream, TensorDict};
    ///
    /// let sums = Communicator::spawn(2, |communicator| {
    ///     let stream = Stream::worker()?;
    ///     let mut weights = TensorDict::new();
    ///     if communicator.rank().0 == 0 {
    ///         weights.insert("w", Buffer::from(vec![1i32, 2]));
    ///     }
    ///     let options = BroadcastOptions::new();
    ///     let work = communicator.broadcast_tensor_dict_async(weights, &options, &stream)?;
    ///     let weights = work.wait()?;
    ///     let w = weights.get("w").expect("it has come").view()?;
    ///     Ok(w.as_slice::<i32>()?.iter().sum::<i32>())
    /// })?;
    /// assert_eq!(sums, [3, 3]);
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// They come with the dictionary: `Unsupported` from this call if the stream is a CUDA stream,
    /// all others from [`Work::wait`].
    pub fn broadcast_tensor_dict_async(
        &self,
        mut dict: TensorDict,
        options: &BroadcastOptions,
        stream: &Stream,
    ) -> Result<Work<TensorDict>, EnqueueError<TensorDict>> {
        let broadcast = Broadcast::new(self, options);
        if stream.as_cuda().is_some() {
            let error = error!(Unsupported, "a dictionary goes on the inline stream or a worker stream, not on CUDA's");
            return Err(EnqueueError::new(broadcast.label(error), dict));
        }
        dict.task = Some(Box::new(broadcast));
        Ok(self.submit(dict, stream))
    }
}

/// One broadcast on one rank.
pub(super) struct Broadcast {
    pub(super) communicator: Communicator,
    pub(super) options: BroadcastOptions,
    pub(super) deadline: Instant,
}

/// What a rank says first.
#[derive(Serialize, Deserialize)]
struct Offer {
    src: u32,
    is_shared: bool,
    /// Whether all of the rank's tensors can be filled in place, or need not be.
    is_fillable: bool,
    schema_len: usize,
    hash: [u8; 32],
}

impl Broadcast {
    fn new(communicator: &Communicator, options: &BroadcastOptions) -> Self {
        let deadline = communicator.deadline();
        Broadcast { communicator: communicator.clone(), options: options.clone(), deadline }
    }

    fn label(&self, error: Error) -> Error {
        self.communicator.about(&NAME, error)
    }

    /// The whole broadcast, in this rank's turn.
    fn run(&self, dict: &mut TensorDict) -> Result<()> {
        let prepared = self.check().and_then(|pinning| Ok((pinning, EncodedSchema::of(dict)?)));
        let is_shared = self.options.shared;
        let is_fillable = is_shared || dict.iter().all(|(_, tensor)| tensor.is_fillable(self.options.device));
        let offer = |(_, schema): &(_, EncodedSchema)| Offer {
            src: self.options.src.0,
            is_shared,
            is_fillable,
            schema_len: schema.bytes.len(),
            hash: schema.hash,
        };
        let ((pinning, mut schema), all) = self.exchange(prepared, offer)?;
        self.check_sources(&all)?;
        let (src, own) = (self.options.src.index(), self.communicator.rank().index());
        let lacks_schema =
            |(rank, offer): (usize, &Offer)| rank != src && !(offer.is_fillable && offer.hash == all[src].hash);
        let sends_schema = all.iter().enumerate().any(lacks_schema);
        if own == src {
            if sends_schema {
                self.broadcast_bytes(&mut schema.bytes)?;
                self.agree(Ok(()))?;
            }
            let tensors = dict.iter().map(|(_, tensor)| tensor);
            return match is_shared {
                true => self.share(tensors.collect()),
                false => self.send(tensors),
            };
        }
        if is_shared {
            let check = |schema| check_existing(dict, &schema).map(|()| schema);
            let schema = match sends_schema {
                true => self.receive_schema(&all[src], check)?,
                false => Schema::decode(&schema.bytes)?,
            };
            return self.receive_shared(dict, schema);
        }
        if !sends_schema {
            return self.receive(dict.tensors.iter_mut().map(|(_, tensor)| tensor));
        }
        let prepare = |schema| Arrival::prepare(dict, schema, self.options.device, self.space(), pinning.as_ref());
        let mut arrival = self.receive_schema(&all[src], prepare)?;
        self.receive(arrival.tensors(dict))?;
        arrival.finish(dict);
        Ok(())
    }

    /// Where a receiver's new tensors lie.
    fn space(&self) -> MemorySpace {
        self.options.device.unwrap_or(self.communicator.space())
    }

    /// Checks the options on this rank. Gives the GPU for which new tensors are pinned.
    fn check(&self) -> Result<Option<Arc<Device>>> {
        let BroadcastOptions { src, pin_memory, shared, refusal, .. } = &self.options;
        refusal.clone().map_or(Ok(()), Err)?;
        let communicator = &self.communicator;
        communicator.check_rank("source", *src)?;
        let (own, space) = (communicator.backend(), self.space());
        if *shared && own != BackendKind::Host {
            bail!(Unsupported, "shared is for ranks of one machine on the host backend, and the group has {own}");
        }
        if *shared && (*pin_memory || space != MemorySpace::Host) {
            let other = if *pin_memory { "pin_memory" } else { "a device" };
            bail!(InvalidArgument, "shared puts what arrives into memory of all receivers, and {other} elsewhere");
        }
        let ordinal = match (space, communicator.space()) {
            (MemorySpace::Cuda(ordinal), _) | (_, MemorySpace::Cuda(ordinal)) => ordinal,
            _ => 0,
        };
        let open =
            |what: &str| Device::open(ordinal).map_err(|e| Error::new(e.kind(), format!("{what} needs CUDA: {e}")));
        match (pin_memory, space) {
            (true, MemorySpace::Host) => open("pin_memory").map(Some),
            (true, _) => {
                open("pin_memory")?;
                bail!(
                    InvalidArgument,
                    "pin_memory is for tensors in host memory, and what arrives is to lie in {space}"
                )
            }
            (false, MemorySpace::Cuda(_)) => open("the device").map(|_| None),
            (false, _) => Ok(None),
        }
    }

    /// This rank's result, and what every rank says of its own, if no rank has an error.
    fn exchange<T, S: Serialize + DeserializeOwned>(
        &self,
        own: Result<T>,
        say: impl FnOnce(&T) -> S,
    ) -> Result<(T, Vec<S>)> {
        let refused = |refusals: &[(Rank, Error)]| {
            let (rank, error) = &refusals[0];
            Error::new(error.kind(), format!("no dictionary has changed, because rank {rank} refuses: {error}"))
        };
        self.communicator.exchange_results(PURPOSE, own, say, refused, self.deadline)
    }

    /// This rank's result, if no rank has an error.
    pub(super) fn agree<T>(&self, own: Result<T>) -> Result<T> {
        Ok(self.exchange(own, |_| ())?.0)
    }

    /// Compares the source that each rank names, and whether it asks for shared memory. Every rank
    /// comes to the same result.
    fn check_sources(&self, all: &[Offer]) -> Result<()> {
        let (src, is_shared) = (self.options.src.0, self.options.shared);
        let origin = |rank: usize| self.communicator.origin(Rank(rank as u32));
        if let Some(rank) = all.iter().position(|offer| offer.is_shared != is_shared) {
            let (other, rank) = (all[rank].is_shared, origin(rank));
            bail!(
                Disagreement,
                "shared is {is_shared} on this rank and {other} on rank {rank}; every rank gives the same"
            );
        }
        if let Some(rank) = all.iter().position(|offer| offer.src != src) {
            let (other, rank) = (all[rank].src, origin(rank));
            bail!(
                Disagreement,
                "the ranks name different sources: this rank names {src}, and rank {rank} names {other}"
            );
        }
        Ok(())
    }

    /// Receives the schema, and prepares this rank for it.
    fn receive_schema<T>(&self, source: &Offer, prepare: impl FnOnce(Schema) -> Result<T>) -> Result<T> {
        // The source wrote this length. All ranks see the same.
        let len = source.schema_len;
        if !(1..=MAX_SCHEMA_BYTES).contains(&len) {
            bail!(System, "the source would send a schema of {len} bytes; the most are {MAX_SCHEMA_BYTES}");
        }
        let mut bytes = vec![0u8; len];
        self.broadcast_bytes(&mut bytes)?;
        let arrival = match hash_of(&bytes) == source.hash {
            true => Schema::decode(&bytes).and_then(prepare),
            false => Err(error!(System, "the schema that came has not the hash that the source said")),
        };
        self.agree(arrival)
    }

    /// Calls the progress function, if there is one.
    pub(super) fn report(&self, byte_count: u64, total_bytes: u64) -> Result<()> {
        let Some(progress) = &self.options.progress else { return Ok(()) };
        let call = || progress(BroadcastProgress { byte_count, total_bytes });
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(call))
            .map_err(|panic| error!(Plugin, "the progress function panicked: {}", panic_message(panic.as_ref())))
    }

    /// Gives the source's bytes to every rank, in this rank's turn.
    pub(super) fn broadcast_bytes(&self, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: the bytes are as long, and borrowed mutably.
        unsafe { self.broadcast(Address::host(bytes.as_mut_ptr()), bytes.len()) }
    }

    /// Broadcasts bytes in place, in this rank's turn.
    ///
    /// # Safety
    ///
    /// At the address there are `byte_len` bytes, which nothing else writes during the call. A
    /// receiver may write them, and nothing else reads them.
    pub(super) unsafe fn broadcast(&self, address: Address, byte_len: usize) -> Result<()> {
        let collective = Collective::Broadcast { root: GroupRank(self.options.src.0) };
        let call = Call::of_blocks(collective, DataType::Uint8, byte_len).for_purpose(PURPOSE);
        let request = Request { label: Some(NAME), ..Request::new(call, [address; 2], self.deadline) };
        // SAFETY: the caller's promise. The root of a broadcast in place only reads.
        unsafe { self.communicator.run(request) }
    }
}

impl Task for TensorDict {
    fn run(&mut self, _stream: Option<&Arc<CudaStream>>) -> Result<()> {
        // Its end releases the communicator, whenever the caller takes the dictionary.
        let Some(broadcast) = self.task.take() else { return Ok(()) };
        broadcast.run(self).map_err(|error| broadcast.label(error))
    }

    fn label(&self, error: Error) -> Error {
        match &self.task {
            Some(broadcast) => broadcast.label(error),
            None => error,
        }
    }

    fn finish(&mut self) {
        self.task = None;
    }

    fn watch(&self) -> Option<(Arc<dyn Watch>, Instant)> {
        let broadcast = self.task.as_ref()?;
        Some((broadcast.communicator.watch(), broadcast.deadline))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::loopback;
    use crate::memory::Buffer;
    use crate::tensor_dict::Tensor;

    /// The peer of a loopback communicator says what this rank says.
    #[test]
    fn a_schema_that_every_rank_has_does_not_travel() {
        let (communicator, calls) = loopback::communicator();
        let mut dict = TensorDict::new();
        dict.insert("a", Buffer::from(vec![1u8; 12]));
        dict.insert("b", Buffer::from(vec![1f32; 1 << 20]));
        dict.insert("c", Buffer::from(vec![1i64; 3]));
        let mut broadcast = || {
            communicator.broadcast_tensor_dict(&mut dict, &BroadcastOptions::new()).expect("it is looped back");
            calls.take()
        };
        // Each rank's length and bytes.
        let exchange = |len: usize| {
            [(1, "int64"), (len, "uint8")].map(|(n, data_type)| format!("{NAME} (all_gather of {n} {data_type})"))
        };
        let (offer, ready) = (exchange(37), exchange(1));
        let part = |len: usize| format!("{NAME} (broadcast from group rank 0 of {len} uint8)");
        let pieces = [4 << 20, 36].map(part);
        assert_eq!(broadcast(), [&offer[..], &pieces].concat());
        assert_eq!(broadcast(), [&offer[..], &pieces].concat());

        // A strided tensor cannot be filled, so the peer needs the schema. Then it says that it is
        // ready.
        let strided = Tensor::strided(Buffer::from(vec![0u8; 3]), 0, [2], &[2]).expect("it fits");
        dict.insert("c", strided);
        communicator.broadcast_tensor_dict(&mut dict, &BroadcastOptions::new()).expect("it is looped back");
        let schema_len = EncodedSchema::of(&dict).expect("it is short").bytes.len();
        let pieces = [4 << 20, 14].map(part);
        assert_eq!(calls.take(), [&offer[..], &[part(schema_len)], &ready, &pieces].concat());
    }
}

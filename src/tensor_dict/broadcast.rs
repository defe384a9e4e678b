//! The broadcast of a dictionary. Ranks first say who the source is, and the hash of the schema
//! that they have. If a receiver has another one, the schema travels, and receivers allocate what
//! they lack. Then the elements travel in pieces.

use std::sync::Arc;
use std::time::Instant;

use super::TensorDict;
use super::arrival::{Arrival, Destination, check_existing};
use super::options::{BroadcastOptions, BroadcastProgress};
use super::payload::{Piece, pieces};
use super::schema::{EncodedSchema, MAX_SCHEMA_BYTES, Schema, hash_of};
use super::tensor::Tensor;
use crate::collective::{Call, Collective, Purpose, PurposeKind};
use crate::comm::{BackendKind, Communicator, Request};
use crate::cuda::{CudaStream, Device};
use crate::data_type::DataType;
use crate::error::{Error, ErrorKind, Result, bail, error};
use crate::issue_order::Extent;
use crate::memory::{Address, MemorySpace};
use crate::rank::{GroupRank, Rank};
use crate::stream::{EnqueueError, Stream, Task, Watch, Work};
use crate::util::panic_message;
use crate::util::text::count_of;

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
struct Hello {
    accepts: bool,
    /// Whether all of the rank's tensors can be filled in place, or need not be.
    is_fillable: bool,
    is_shared: bool,
    src: u32,
    schema_len: i64,
    hash: [u8; 32],
}

/// The words in which a rank says hello.
type Words = [i64; 7];

impl Hello {
    fn to_words(&self) -> Words {
        let mut words = Words::default();
        words[0] = i64::from(self.accepts) | i64::from(self.is_fillable) << 1 | i64::from(self.is_shared) << 2;
        (words[1], words[2]) = (self.src.into(), self.schema_len);
        for (word, bytes) in words[3..].iter_mut().zip(self.hash.as_chunks::<8>().0) {
            *word = i64::from_le_bytes(*bytes);
        }
        words
    }

    /// Any words are a hello.
    fn from_words(words: &Words) -> Self {
        let mut hash = [0; 32];
        for (bytes, word) in hash.as_chunks_mut::<8>().0.iter_mut().zip(&words[3..]) {
            *bytes = word.to_le_bytes();
        }
        let [flags, src, schema_len, ..] = *words;
        let [accepts, is_fillable, is_shared] = [1, 2, 4].map(|flag| flags & flag != 0);
        Hello { accepts, is_fillable, is_shared, src: src as u32, schema_len, hash }
    }
}

/// The tensors of a rank, in the source's order.
enum Side<'a> {
    Source(Vec<&'a Tensor>),
    Receiver(Vec<&'a mut Tensor>),
}

impl Side<'_> {
    fn byte_lens(&self) -> Vec<usize> {
        match self {
            Side::Source(tensors) => tensors.iter().map(|tensor| tensor.byte_len()).collect(),
            Side::Receiver(tensors) => tensors.iter().map(|tensor| tensor.byte_len()).collect(),
        }
    }
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
        let (place, is_shared) = (self.options.device, self.options.shared);
        let hello = Hello {
            accepts: prepared.is_ok(),
            is_fillable: is_shared || dict.iter().all(|(_, tensor)| tensor.is_fillable(place)),
            is_shared,
            src: self.options.src.0,
            schema_len: prepared.as_ref().map_or(0, |(_, schema)| schema.bytes.len() as i64),
            hash: prepared.as_ref().map_or([0; 32], |(_, schema)| schema.hash),
        };
        let all = self.gather(hello.to_words())?;
        let all: Vec<Hello> = all.iter().map(Hello::from_words).collect();
        let (pinning, schema) = self.unless_refused(prepared, all.iter().map(|hello| hello.accepts))?;
        self.check_sources(&all)?;
        let (src, own) = (self.options.src.index(), self.communicator.rank().index());
        let needs_schema =
            |(rank, hello): (usize, &Hello)| rank != src && !(hello.is_fillable && hello.hash == all[src].hash);
        let sends_schema = all.iter().enumerate().any(needs_schema);
        if own == src {
            if sends_schema {
                self.send_schema(&schema)?;
            }
            let tensors = dict.tensors.iter().map(|(_, tensor)| tensor).collect();
            return if is_shared { self.share(tensors) } else { self.payload(Side::Source(tensors)) };
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
            return self.payload(Side::Receiver(dict.tensors.iter_mut().map(|(_, tensor)| tensor).collect()));
        }
        let space = place.unwrap_or(self.communicator.space());
        let destination = Destination { place, space, pinning: pinning.as_ref() };
        let mut arrival = self.receive_schema(&all[src], |schema| Arrival::prepare(dict, schema, destination))?;
        self.payload(Side::Receiver(arrival.tensors(dict)))?;
        arrival.finish(dict);
        Ok(())
    }

    /// Checks the options on this rank. Gives the GPU for which new tensors are pinned.
    fn check(&self) -> Result<Option<Arc<Device>>> {
        let BroadcastOptions { src, device, pin_memory, shared, refusal, .. } = &self.options;
        refusal.clone().map_or(Ok(()), Err)?;
        let communicator = &self.communicator;
        if src.0 >= communicator.world_size() {
            let ranks = count_of(communicator.world_size() as usize, "rank");
            bail!(InvalidArgument, "source {src} is not one of {ranks}");
        }
        let (own, space) = (communicator.backend(), device.unwrap_or(communicator.space()));
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

    fn gather(&self, words: Words) -> Result<Vec<Words>> {
        self.communicator.gather_words(PURPOSE, words, self.deadline)
    }

    /// What this rank found, if every rank accepts; else each rank's own error, or that of the
    /// first rank that has one. Collective if a rank refuses.
    fn unless_refused<T>(&self, own: Result<T>, mut accepts: impl Iterator<Item = bool>) -> Result<T> {
        let Some(first) = accepts.position(|accepts| !accepts) else { return own };
        // The kind's number, then the text.
        let kind = |error: &Error| ErrorKind::ALL.iter().position(|kind| *kind == error.kind()).unwrap_or(0) as u8;
        let said = own.as_ref().err().map(|error| (kind(error), error.to_string())).unwrap_or_default();
        let all = self.communicator.exchange(PURPOSE, &said, self.deadline)?;
        own?;
        let (kind, text) = &all[first];
        let kind = ErrorKind::ALL.get(usize::from(*kind)).copied().unwrap_or(ErrorKind::System);
        let rank = self.communicator.origin(Rank(first as u32));
        Err(Error::new(kind, format!("no dictionary has changed, because rank {rank} refuses: {text}")))
    }

    /// Compares the source that each rank names, and whether it asks for shared memory. Every rank
    /// comes to the same result.
    fn check_sources(&self, all: &[Hello]) -> Result<()> {
        if let Some(other) = all.iter().position(|hello| hello.is_shared != self.options.shared) {
            let rank = self.communicator.origin(Rank(other as u32));
            let [own, other] = [self.options.shared, all[other].is_shared];
            bail!(Disagreement, "shared is {own} on this rank and {other} on rank {rank}; every rank gives the same");
        }
        let src = self.options.src.0;
        let Some(other) = all.iter().position(|hello| hello.src != all[0].src) else { return Ok(()) };
        let other = if all[0].src == src { other } else { 0 };
        let rank = self.communicator.origin(Rank(other as u32));
        bail!(
            Disagreement,
            "the ranks name different sources: this rank names {src}, and rank {rank} names {}",
            all[other].src
        )
    }

    fn send_schema(&self, schema: &EncodedSchema) -> Result<()> {
        let address = Address::host(schema.bytes.as_ptr());
        // SAFETY: the bytes are as long, and the source only reads them.
        unsafe { self.broadcast(address, schema.bytes.len()) }?;
        self.agree(Ok(()))
    }

    /// Receives the schema, and prepares this rank for it.
    fn receive_schema<T>(&self, source: &Hello, prepare: impl FnOnce(Schema) -> Result<T>) -> Result<T> {
        // The source wrote this length. All ranks see the same.
        let len = usize::try_from(source.schema_len).ok().filter(|len| (1..=MAX_SCHEMA_BYTES).contains(len));
        let Some(len) = len else {
            bail!(
                System,
                "the source would send a schema of {} bytes; the most are {MAX_SCHEMA_BYTES}",
                source.schema_len
            )
        };
        let mut bytes = vec![0u8; len];
        let address = Address::host(bytes.as_mut_ptr());
        // SAFETY: the bytes are as long, and used by nothing else.
        unsafe { self.broadcast(address, len) }?;
        let arrival = match hash_of(&bytes) == source.hash {
            true => Schema::decode(&bytes).and_then(prepare),
            false => Err(error!(System, "the schema that came has not the hash that the source said")),
        };
        self.agree(arrival)
    }

    /// This rank's result, if no rank has an error.
    pub(super) fn agree<T>(&self, own: Result<T>) -> Result<T> {
        let mut words = Words::default();
        words[0] = i64::from(own.is_ok());
        let all = self.gather(words)?;
        self.unless_refused(own, all.iter().map(|words| words[0] != 0))
    }

    /// Moves the elements. After an error of this rank alone the communicator ends, because the
    /// other ranks wait for pieces.
    fn payload(&self, side: Side<'_>) -> Result<()> {
        self.move_pieces(side).inspect_err(|error| self.end(error))
    }

    /// Ends the communicator because of an error of this rank alone.
    pub(super) fn end(&self, error: &Error) {
        if self.communicator.check_alive().is_ok() {
            self.communicator.abort_with(error);
        }
    }

    /// Calls the progress function, if there is one.
    pub(super) fn report(&self, byte_count: u64, total_bytes: u64) -> Result<()> {
        let Some(progress) = &self.options.progress else { return Ok(()) };
        let call = || progress(BroadcastProgress { byte_count, total_bytes });
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(call))
            .map_err(|panic| error!(Plugin, "the progress function panicked: {}", panic_message(panic.as_ref())))
    }

    fn move_pieces(&self, mut side: Side<'_>) -> Result<()> {
        let byte_lens = side.byte_lens();
        let total_bytes = byte_lens.iter().map(|len| *len as u64).sum();
        let (mut byte_count, mut pack) = (0, Vec::new());
        for piece in pieces(&byte_lens) {
            match &mut side {
                Side::Source(tensors) => self.send(&piece, tensors, &mut pack)?,
                Side::Receiver(tensors) => self.receive(&piece, tensors, &mut pack)?,
            }
            byte_count += piece.byte_len as u64;
            self.report(byte_count, total_bytes)?;
        }
        Ok(())
    }

    fn send(&self, piece: &Piece, tensors: &[&Tensor], pack: &mut Vec<u8>) -> Result<()> {
        if let ([part], false) = (&piece.parts[..], piece.is_packed)
            && let Some(source) = tensors[part.tensor].source().filter(|source| self.reaches(source))
        {
            // SAFETY: the tensor has these bytes, is borrowed, and the source only reads it.
            return unsafe { self.broadcast(at(source, part.offset), part.byte_len) };
        }
        let mut rest = room(pack, piece.byte_len);
        for part in &piece.parts {
            let (bytes, left) = rest.split_at_mut(part.byte_len);
            tensors[part.tensor].read(part.offset, bytes)?;
            rest = left;
        }
        // SAFETY: the pack is as long, and used by nothing else.
        unsafe { self.broadcast(Address::host(pack.as_mut_ptr()), piece.byte_len) }
    }

    fn receive(&self, piece: &Piece, tensors: &mut [&mut Tensor], pack: &mut Vec<u8>) -> Result<()> {
        if let ([part], false) = (&piece.parts[..], piece.is_packed)
            && let Some(target) = tensors[part.tensor].target().filter(|target| self.reaches(target))
        {
            // SAFETY: the tensor has these bytes, and is borrowed mutably.
            return unsafe { self.broadcast(at(target, part.offset), part.byte_len) };
        }
        let mut rest = room(pack, piece.byte_len);
        // SAFETY: the pack is as long, and used by nothing else.
        unsafe { self.broadcast(Address::host(rest.as_mut_ptr()), piece.byte_len) }?;
        for part in &piece.parts {
            let (bytes, left) = rest.split_at_mut(part.byte_len);
            tensors[part.tensor].write(part.offset, bytes)?;
            rest = left;
        }
        Ok(())
    }

    /// Whether the backend takes memory as it is; every backend takes host memory.
    fn reaches(&self, address: &Address) -> bool {
        address.space == MemorySpace::Host || address.space == self.communicator.space()
    }

    /// Broadcasts bytes in place, in this rank's turn.
    ///
    /// # Safety
    ///
    /// At the address there are `byte_len` bytes, which nothing else writes during the call. A
    /// receiver may write them, and nothing else reads them.
    unsafe fn broadcast(&self, address: Address, byte_len: usize) -> Result<()> {
        let collective = Collective::Broadcast { root: GroupRank(self.options.src.0) };
        let call = Call::of_blocks(collective, DataType::Uint8, byte_len).for_purpose(PURPOSE);
        let request = Request { label: Some(NAME), ..Request::new(call, [address; 2], self.deadline) };
        // SAFETY: the caller's promise. The root of a broadcast in place only reads.
        unsafe { self.communicator.run(request) }
    }
}

fn at(address: Address, offset: usize) -> Address {
    Address { pointer: address.pointer.wrapping_add(offset), ..address }
}

/// The first bytes of a buffer that grows as it must.
fn room(pack: &mut Vec<u8>, byte_len: usize) -> &mut [u8] {
    if pack.len() < byte_len {
        pack.resize(byte_len, 0);
    }
    &mut pack[..byte_len]
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
        let hello = format!("{NAME} (all_gather of 7 int64)");
        let part = |len: usize| format!("{NAME} (broadcast from group rank 0 of {len} uint8)");
        let pieces = [4 << 20, 36].map(part);
        assert_eq!(broadcast(), [std::slice::from_ref(&hello), &pieces[..]].concat());
        assert_eq!(broadcast(), [std::slice::from_ref(&hello), &pieces[..]].concat());

        // A strided tensor cannot be filled, so the peer needs the schema. Then it says that it is
        // ready.
        let strided = Tensor::strided(Buffer::from(vec![0u8; 3]), 0, [2], &[2]).expect("it fits");
        dict.insert("c", strided);
        communicator.broadcast_tensor_dict(&mut dict, &BroadcastOptions::new()).expect("it is looped back");
        let schema_len = EncodedSchema::of(&dict).expect("it is short").bytes.len();
        let pieces = [4 << 20, 14].map(part);
        assert_eq!(calls.take(), [&[hello.clone(), part(schema_len), hello], &pieces[..]].concat());
    }
}

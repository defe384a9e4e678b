//! What one rank publishes for its peers: its calls, and how far it has come.

use super::doorbell::Doorbell;
use crate::comm::host::memory::Shareable;
use crate::comm::signature::Signature;
use crate::sync::{AtomicU32, AtomicU64, Ordering, Published};

/// How many call headers of a rank are kept, and so how many collectives a rank may be ahead of the
/// slowest one.
pub(crate) const HEADER_RING_LEN: u64 = if cfg!(loom) { 2 } else { 16 };

/// The longest payload of a call header.
pub(crate) const PAYLOAD_WORDS: usize = if cfg!(loom) { 5 } else { 12 };
pub(crate) const PAYLOAD_BYTES: usize = PAYLOAD_WORDS * 8;

/// One rank's slot. Only that rank writes it (invariant 2), except the doorbell.
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
pub(crate) struct Slot {
    /// The rank's round (invariant 7).
    pub(in crate::comm::host) round: Published,
    /// Up to which round the rank has taken what it takes (invariant 8).
    pub(in crate::comm::host) taken: Published,
    /// How many collectives the rank has finished and found equal on every rank (invariant 4).
    pub(super) done: Published,
    /// For each `Accessor`, 1 while that thread of the rank touches a peer's buffer (invariant 9).
    pub(super) is_accessing: [AtomicU32; 2],
    /// 1 when the rank has dropped its handle.
    pub(super) left: Published,
    /// Which peers have sent this rank something.
    doorbell: Doorbell,
    /// The headers of the latest collectives. Collective `s` has the one at `s % HEADER_RING_LEN`.
    headers: [CallHeader; HEADER_RING_LEN as usize],
}

/// One rank's call, and with a small call the rank's input. The sequence number, the signature and
/// the first bytes share a cache line.
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
pub(crate) struct CallHeader {
    /// The number of the collective, stored last (invariant 3).
    sequence: AtomicU64,
    signature: [AtomicU64; 3],
    /// The payload of a small call, or what [`CallBody::Locations`] has.
    body: [AtomicU64; PAYLOAD_WORDS],
}

// SAFETY: invariant 1: every field is an atomic, and zeros are a value of it.
unsafe impl Shareable for Slot {}

/// Where peers find a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BufferLocation {
    /// At an address of this process.
    Address(usize),
    /// In pieces: at an address of this process is a list with the `Address` of the block for each
    /// rank.
    List(usize),
    /// In the rank's part of a block of symmetric memory.
    Block { id: u64, offset: usize },
    /// Peers cannot reach it.
    Unreachable,
}

impl BufferLocation {
    /// The first word of an address. No block has this id.
    const ADDRESS: u64 = 0;
    /// The first word of an unreachable buffer. No block has this id.
    const UNREACHABLE: u64 = u64::MAX;
    /// The first word of a list. No block has this id.
    const LIST: u64 = u64::MAX - 1;

    pub(crate) fn to_words(self) -> [u64; 2] {
        match self {
            BufferLocation::Address(address) => [Self::ADDRESS, address as u64],
            BufferLocation::List(address) => [Self::LIST, address as u64],
            BufferLocation::Block { id, offset } => [id, offset as u64],
            BufferLocation::Unreachable => [Self::UNREACHABLE, 0],
        }
    }

    pub(crate) fn from_words([id, at]: [u64; 2]) -> Self {
        match id {
            Self::ADDRESS => BufferLocation::Address(at as usize),
            Self::LIST => BufferLocation::List(at as usize),
            Self::UNREACHABLE => BufferLocation::Unreachable,
            id => BufferLocation::Block { id, offset: at as usize },
        }
    }
}

/// What a call header has besides the signature.
#[derive(Clone, Copy)]
pub(crate) enum CallBody<'a> {
    /// The rank's input.
    Payload(&'a [u8]),
    /// Where its input and its output are, and whether the rank has written the first piece of a
    /// staged transfer.
    Locations([BufferLocation; 2], bool),
}

impl CallHeader {
    pub(crate) fn signature(&self) -> Signature {
        Signature(self.signature.each_ref().map(|word| word.load(Ordering::Relaxed)))
    }

    fn location(&self, words: [usize; 2]) -> BufferLocation {
        BufferLocation::from_words(words.map(|word| self.body[word].load(Ordering::Relaxed)))
    }

    pub(crate) fn input(&self) -> BufferLocation {
        self.location([0, 1])
    }

    pub(crate) fn output(&self) -> BufferLocation {
        self.location([2, 3])
    }

    /// Whether the rank has written the first piece of a staged transfer.
    pub(crate) fn has_first_piece(&self) -> bool {
        self.body[4].load(Ordering::Relaxed) != 0
    }

    /// The words of the first `byte_len` bytes of the payload.
    pub(crate) fn payload(&self, byte_len: usize) -> impl Iterator<Item = u64> {
        self.body[..byte_len.div_ceil(8)].iter().map(|word| word.load(Ordering::Relaxed))
    }
}

impl Slot {
    /// The header of a collective, if the rank has posted it (invariant 3). It does not change
    /// before this rank has finished that collective (invariant 4).
    pub(crate) fn call_header(&self, sequence: u64) -> Option<&CallHeader> {
        let header = self.header_for(sequence);
        (header.sequence.load(Ordering::Acquire) == sequence).then_some(header)
    }

    fn header_for(&self, sequence: u64) -> &CallHeader {
        &self.headers[(sequence % HEADER_RING_LEN) as usize]
    }

    /// Posts the header of a collective (invariant 3). The caller has waited until no peer reads
    /// the header that it replaces (invariant 4).
    pub(super) fn post_header(&self, sequence: u64, signature: Signature, body: CallBody<'_>) {
        let header = self.header_for(sequence);
        let store = |(to, word): (&AtomicU64, u64)| to.store(word, Ordering::Relaxed);
        header.signature.iter().zip(signature.0).for_each(store);
        match body {
            CallBody::Payload(bytes) => {
                let (words, rest) = bytes.as_chunks::<8>();
                header.body.iter().zip(words).for_each(|(to, word)| store((to, u64::from_le_bytes(*word))));
                if !rest.is_empty() {
                    store((&header.body[words.len()], word_of(rest)));
                }
            }
            CallBody::Locations(locations, has_first_piece) => {
                let words = locations.map(BufferLocation::to_words).into_iter().flatten();
                header.body.iter().zip(words.chain([u64::from(has_first_piece)])).for_each(store);
            }
        }
        header.sequence.store(sequence, Ordering::Release);
    }

    /// Which peers have sent this rank something.
    pub(crate) fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }
}

/// At most 8 bytes as a word.
pub(super) fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_read_back() {
        let block = BufferLocation::Block { id: 7, offset: 64 };
        let addresses = [BufferLocation::Address(0), BufferLocation::Address(4096), BufferLocation::List(4096)];
        for location in addresses.into_iter().chain([block, BufferLocation::Unreachable]) {
            assert_eq!(BufferLocation::from_words(location.to_words()), location);
        }
    }
}

//! What the cells of a ring say.

use super::slot::BufferLocation;
use crate::moved_type::TransferType;

/// How many words a record has.
pub(in crate::comm::host) const RECORD_WORDS: usize = 5;

/// What a receiver compares of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::comm::host) struct Envelope {
    pub(in crate::comm::host) tag: u16,
    pub(in crate::comm::host) data_type: TransferType,
    pub(in crate::comm::host) byte_len: usize,
}

/// What one rank tells another one. `id` is the sender's number of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::comm::host) enum Record {
    /// A message. Its bytes are in the cell.
    Inline(Envelope),
    /// A message whose bytes stay with the sender until the receiver has a buffer for them.
    Announce { id: u64, envelope: Envelope, location: BufferLocation },
    /// The receiver has a buffer, and cannot reach the sender's: the sender sends pieces.
    Ready { id: u64 },
    /// The next bytes of an announced message. They are in the cell.
    Piece { id: u64, byte_len: usize },
    /// The receiver has copied the bytes from the sender's buffer.
    Taken { id: u64 },
}

const INLINE: u8 = 1;
const ANNOUNCE: u8 = 2;
const READY: u8 = 3;
const PIECE: u8 = 4;
const TAKEN: u8 = 5;

impl Record {
    pub(in crate::comm::host) fn to_words(self) -> [u64; RECORD_WORDS] {
        let no_location = BufferLocation::Unreachable;
        let words = |kind: u8, id: u64, envelope: Option<Envelope>, byte_len: usize, location: BufferLocation| {
            let [tag_low, tag_high] = envelope.map_or(0, |envelope| envelope.tag).to_le_bytes();
            let data_type = envelope.map_or(0, |envelope| envelope.data_type.number());
            let [block, offset] = location.to_words();
            [u64::from(u32::from_le_bytes([kind, data_type, tag_low, tag_high])), id, byte_len as u64, block, offset]
        };
        match self {
            Record::Inline(envelope) => words(INLINE, 0, Some(envelope), envelope.byte_len, no_location),
            Record::Announce { id, envelope, location } => {
                words(ANNOUNCE, id, Some(envelope), envelope.byte_len, location)
            }
            Record::Ready { id } => words(READY, id, None, 0, no_location),
            Record::Piece { id, byte_len } => words(PIECE, id, None, byte_len, no_location),
            Record::Taken { id } => words(TAKEN, id, None, 0, no_location),
        }
    }

    /// The record of these words; `None` for words that no rank of this version writes.
    pub(in crate::comm::host) fn from_words([first, id, byte_len, block, offset]: [u64; RECORD_WORDS]) -> Option<Self> {
        let [kind, data_type, tag_low, tag_high] = u32::try_from(first).ok()?.to_le_bytes();
        let byte_len = usize::try_from(byte_len).ok().filter(|len| isize::try_from(*len).is_ok())?;
        let envelope = || {
            let data_type = TransferType::from_number(data_type)?;
            let is_whole = byte_len.is_multiple_of(data_type.byte_len());
            is_whole.then_some(Envelope { tag: u16::from_le_bytes([tag_low, tag_high]), data_type, byte_len })
        };
        Some(match kind {
            INLINE => Record::Inline(envelope()?),
            ANNOUNCE => {
                Record::Announce { id, envelope: envelope()?, location: BufferLocation::from_words([block, offset]) }
            }
            READY => Record::Ready { id },
            PIECE => Record::Piece { id, byte_len },
            TAKEN => Record::Taken { id },
            _ => return None,
        })
    }

    /// How many bytes are in the cell.
    pub(in crate::comm::host) fn payload_len(&self) -> usize {
        match self {
            Record::Inline(envelope) => envelope.byte_len,
            Record::Piece { byte_len, .. } => *byte_len,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_type::DataType;
    use crate::moved_type::MovedType;

    #[test]
    fn words_keep_every_part() {
        let location = BufferLocation::Block { id: 7, offset: 64 };
        let moved = MovedType::all().map(TransferType::Moved);
        for data_type in DataType::ALL.into_iter().map(TransferType::Data).chain(moved) {
            let envelope = Envelope { tag: 32_767, data_type, byte_len: 3 * data_type.byte_len() };
            for record in [
                Record::Inline(envelope),
                Record::Announce { id: u64::MAX, envelope, location },
                Record::Ready { id: 3 },
                Record::Piece { id: 4, byte_len: 5 },
                Record::Taken { id: 6 },
            ] {
                assert_eq!(Record::from_words(record.to_words()), Some(record));
            }
        }
    }

    /// A peer can write anything into its ring.
    #[test]
    fn words_that_no_rank_writes_are_no_record() {
        let four_floats = Envelope { tag: 0, data_type: DataType::Float32.into(), byte_len: 16 };
        let good = Record::Inline(four_floats).to_words();
        assert!(Record::from_words(good).is_some());
        for (place, word) in [(0, 0), (0, 9), (0, good[0] | 0xff00), (0, 1 << 32), (2, 15), (2, u64::MAX)] {
            let mut words = good;
            words[place] = word;
            assert_eq!(Record::from_words(words), None, "{words:x?}");
        }
    }
}

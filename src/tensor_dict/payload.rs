//! How the elements of all tensors are cut into pieces, one for each message.

/// The most bytes of a piece.
pub(super) const PIECE_BYTES: usize = 8 << 20;

/// A part of a tensor that is shorter than this shares a piece with others, by way of a copy.
pub(super) const PACKED_BYTES: usize = 256 << 10;

/// What one message carries.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Piece {
    /// The parts of tensors in it, one after the other.
    pub(super) parts: Vec<Part>,
    pub(super) byte_len: usize,
    /// Whether the parts are copied into one buffer. Otherwise there is one part, which goes from
    /// the tensor's memory and into it.
    pub(super) is_packed: bool,
}

/// A part of a tensor, in bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// The tensor's index.
    pub(super) tensor: usize,
    pub(super) offset: usize,
    pub(super) byte_len: usize,
}

/// The pieces of tensors of these lengths. They depend on nothing else, so all ranks cut alike.
pub(super) fn pieces(byte_lens: &[usize]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut pack = Piece { is_packed: true, ..Piece::default() };
    for (tensor, &total) in byte_lens.iter().enumerate() {
        for offset in (0..total).step_by(PIECE_BYTES) {
            let byte_len = PIECE_BYTES.min(total - offset);
            let part = Part { tensor, offset, byte_len };
            if byte_len >= PACKED_BYTES {
                pieces.push(Piece { parts: vec![part], byte_len, is_packed: false });
                continue;
            }
            if pack.byte_len + byte_len > PIECE_BYTES {
                pieces.push(std::mem::replace(&mut pack, Piece { is_packed: true, ..Piece::default() }));
            }
            pack.byte_len += byte_len;
            pack.parts.push(part);
        }
    }
    if !pack.parts.is_empty() {
        pieces.push(pack);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_in_one_piece() {
        for lens in [
            vec![],
            vec![0, 0],
            vec![1],
            vec![PACKED_BYTES - 1, PACKED_BYTES, 0, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES - 1],
            vec![PACKED_BYTES - 1; 100],
        ] {
            let pieces = pieces(&lens);
            let mut seen: Vec<Vec<(usize, usize)>> = vec![Vec::new(); lens.len()];
            for piece in &pieces {
                assert_eq!(piece.byte_len, piece.parts.iter().map(|part| part.byte_len).sum::<usize>());
                assert!(piece.byte_len <= PIECE_BYTES && piece.byte_len > 0);
                assert_eq!(piece.is_packed, piece.parts.iter().all(|part| part.byte_len < PACKED_BYTES));
                assert!(piece.is_packed || piece.parts.len() == 1);
                piece.parts.iter().for_each(|part| seen[part.tensor].push((part.offset, part.byte_len)));
            }
            for (ranges, len) in seen.into_iter().zip(&lens) {
                let end =
                    ranges.iter().fold(0, |end, (offset, len)| if *offset == end { end + len } else { usize::MAX });
                assert_eq!(end, *len, "{ranges:?}");
            }
        }
    }

    #[test]
    fn small_tensors_share_messages() {
        // 1000 tensors of 4 KiB fit one piece, and 1 of 1 GiB needs 128.
        assert_eq!(pieces(&[4096; 1000]).len(), 1);
        assert_eq!(pieces(&[1 << 30]).len(), (1 << 30) / PIECE_BYTES);
    }
}

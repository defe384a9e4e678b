//! Moving the elements of all tensors, cut into pieces, one for each message.

use super::broadcast::Broadcast;
use super::tensor::Tensor;
use crate::error::{Result, bail};
use crate::memory::{Address, MemorySpace, TensorView, TensorViewMut};

/// The most bytes of a piece.
pub(super) const PIECE_BYTES: usize = 8 << 20;

/// A part of a tensor that is shorter than this shares a piece with others, by way of a copy.
const PACKED_BYTES: usize = 256 << 10;

/// A tensor of this rank, in the source's order.
enum PayloadTensor<'a> {
    Source(&'a Tensor),
    Receiver(&'a mut Tensor),
}

impl PayloadTensor<'_> {
    fn byte_len(&self) -> usize {
        match self {
            PayloadTensor::Source(tensor) => tensor.byte_len(),
            PayloadTensor::Receiver(tensor) => tensor.byte_len(),
        }
    }

    /// Where the elements begin; `None` if they have to be copied.
    fn address(&mut self) -> Option<Address> {
        match self {
            PayloadTensor::Source(tensor) => match tensor.as_buffer() {
                Some(buffer) => Some(TensorView::from(buffer).raw().located()),
                None => Some(Address::host(tensor.as_bytes().ok()?.as_ptr())),
            },
            PayloadTensor::Receiver(tensor) => Some(TensorViewMut::from(tensor.as_mut_buffer()?).raw().located()),
        }
    }

    /// Copies a part of the source's tensor into the bytes, or the bytes into a receiver's.
    fn copy(&mut self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        match self {
            PayloadTensor::Source(tensor) => tensor.read(offset, bytes),
            PayloadTensor::Receiver(tensor) => match tensor.as_mut_buffer() {
                Some(buffer) => buffer.write(offset, bytes),
                None => bail!(InvalidBuffer, "the tensor is strided or read-only"),
            },
        }
    }
}

/// A part of a tensor, in bytes.
#[derive(Debug)]
struct Part {
    /// The tensor's index.
    tensor: usize,
    offset: usize,
    byte_len: usize,
}

/// The pieces of tensors of these lengths. They depend on nothing else, so all ranks cut alike. A
/// piece is one long part, or several short ones, which are copied into one buffer.
fn pieces(byte_lens: &[usize]) -> Vec<Vec<Part>> {
    let (mut pieces, mut pack, mut pack_len) = (Vec::new(), Vec::new(), 0);
    for (tensor, &total) in byte_lens.iter().enumerate() {
        for offset in (0..total).step_by(PIECE_BYTES) {
            let byte_len = PIECE_BYTES.min(total - offset);
            let part = Part { tensor, offset, byte_len };
            if byte_len >= PACKED_BYTES {
                pieces.push(vec![part]);
                continue;
            }
            if pack_len + byte_len > PIECE_BYTES {
                pieces.push(std::mem::take(&mut pack));
                pack_len = 0;
            }
            pack_len += byte_len;
            pack.push(part);
        }
    }
    if !pack.is_empty() {
        pieces.push(pack);
    }
    pieces
}

impl Broadcast {
    /// The source's part: sends the elements.
    pub(super) fn send<'a>(&self, tensors: impl Iterator<Item = &'a Tensor>) -> Result<()> {
        self.payload(tensors.map(PayloadTensor::Source).collect())
    }

    /// A receiver's part: receives the elements.
    pub(super) fn receive<'a>(&self, tensors: impl Iterator<Item = &'a mut Tensor>) -> Result<()> {
        self.payload(tensors.map(PayloadTensor::Receiver).collect())
    }

    /// Moves the elements. After an error of this rank alone the communicator ends, because the
    /// other ranks wait for pieces.
    fn payload(&self, mut tensors: Vec<PayloadTensor<'_>>) -> Result<()> {
        let byte_lens: Vec<usize> = tensors.iter().map(PayloadTensor::byte_len).collect();
        let total_bytes = byte_lens.iter().map(|len| *len as u64).sum();
        let (mut byte_count, mut pack) = (0, Vec::new());
        let moved = pieces(&byte_lens).iter().try_for_each(|piece| {
            byte_count += self.move_piece(piece, &mut tensors, &mut pack)? as u64;
            self.report(byte_count, total_bytes)
        });
        moved.inspect_err(|error| {
            if self.communicator.as_backend().check().is_ok() {
                self.communicator.abort_with(error);
            }
        })
    }

    /// Gives the length of the piece.
    fn move_piece(&self, piece: &[Part], tensors: &mut [PayloadTensor<'_>], pack: &mut Vec<u8>) -> Result<usize> {
        if let &[Part { tensor, offset, byte_len }] = piece
            && byte_len >= PACKED_BYTES
            && let Some(start) = tensors[tensor].address().filter(|start| self.reaches(start))
        {
            let address = Address { pointer: start.pointer.wrapping_add(offset), ..start };
            // SAFETY: the tensor has these bytes. It is borrowed, and mutably if they are written.
            unsafe { self.broadcast(address, byte_len) }?;
            return Ok(byte_len);
        }
        let byte_len: usize = piece.iter().map(|part| part.byte_len).sum();
        pack.resize(byte_len.max(pack.len()), 0);
        let pack = &mut pack[..byte_len];
        let mut copy = |pack: &mut [u8]| {
            let mut start = 0;
            piece.iter().try_for_each(|part| {
                let bytes = &mut pack[start..][..part.byte_len];
                start += part.byte_len;
                tensors[part.tensor].copy(part.offset, bytes)
            })
        };
        let is_source = self.communicator.rank() == self.options.src;
        if is_source {
            copy(pack)?;
        }
        self.broadcast_bytes(pack)?;
        if !is_source {
            copy(pack)?;
        }
        Ok(byte_len)
    }

    /// Whether the backend takes memory as it is; every backend takes host memory.
    fn reaches(&self, address: &Address) -> bool {
        address.space == MemorySpace::Host || address.space == self.communicator.space()
    }
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
                let byte_len = piece.iter().map(|part| part.byte_len).sum::<usize>();
                assert!(byte_len <= PIECE_BYTES && byte_len > 0);
                assert!(piece.len() == 1 || piece.iter().all(|part| part.byte_len < PACKED_BYTES));
                piece.iter().for_each(|part| seen[part.tensor].push((part.offset, part.byte_len)));
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

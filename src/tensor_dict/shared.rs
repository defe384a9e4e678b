//! The broadcast into memory that all receivers share: the source copies its tensors there, and
//! each receiver gets read-only views.

use std::ops::Range;

use super::TensorDict;
use super::broadcast::{Broadcast, PURPOSE};
use super::payload::PIECE_BYTES;
use super::schema::Schema;
use super::tensor::Tensor;
use crate::comm::Fill;
use crate::error::{Result, bail};
use crate::memory::ReadOnlyMemory;
use crate::rank::GroupRank;
use crate::util::free_memory;

/// What the tensors are aligned to: a cache line, and so every element type.
const ALIGN: usize = 64;

/// Where tensors of these lengths lie, each aligned to all element types, and how many bytes that
/// takes. It depends on nothing else, so all ranks find the same.
fn places(byte_lens: impl Iterator<Item = usize>) -> Result<(Vec<Range<usize>>, usize)> {
    let mut end = 0usize;
    let place = |byte_len: usize| {
        let start = end.checked_next_multiple_of(ALIGN)?;
        end = start.checked_add(byte_len).filter(|end| isize::try_from(*end).is_ok())?;
        Some(start..end)
    };
    match byte_lens.map(place).collect::<Option<Vec<_>>>() {
        Some(places) => Ok((places, end)),
        None => bail!(System, "the tensors are larger than memory can be"),
    }
}

impl Broadcast {
    /// The source's part: copies the tensors into new shared memory.
    pub(super) fn share(&self, tensors: Vec<&Tensor>) -> Result<()> {
        let placed = places(tensors.iter().map(|tensor| tensor.byte_len()));
        let placed = placed.and_then(|(places, byte_len)| {
            free_memory::check("shared memory for the tensors", byte_len as u64)?;
            Ok((places, byte_len))
        });
        let (places, byte_len) = self.agree(placed)?;
        let total_bytes = tensors.iter().map(|tensor| tensor.byte_len() as u64).sum();
        let mut fill = |memory: &mut [u8], keep_going: &dyn Fn() -> Result<()>| {
            let mut byte_count = 0;
            for (tensor, place) in tensors.iter().zip(&places) {
                for (piece, bytes) in memory[place.clone()].chunks_mut(PIECE_BYTES).enumerate() {
                    keep_going()?;
                    tensor.read(piece * PIECE_BYTES, bytes)?;
                    byte_count += bytes.len() as u64;
                    self.report(byte_count, total_bytes)?;
                }
            }
            Ok(())
        };
        self.share_memory(byte_len, Some(&mut fill))?;
        self.agree(Ok(()))
    }

    /// A receiver's part: puts views into the dictionary.
    pub(super) fn receive_shared(&self, dict: &mut TensorDict, schema: Schema) -> Result<()> {
        let (places, byte_len) = self.agree(places(schema.tensors.iter().map(|tensor| tensor.byte_len)))?;
        let memory = self.share_memory(byte_len, None)?;
        let total_bytes = schema.tensors.iter().map(|tensor| tensor.byte_len as u64).sum();
        let views = schema.tensors.into_iter().zip(places).map(|(tensor, place)| {
            Ok((tensor.name, Tensor::read_only(tensor.element_type, tensor.shape, &memory, place.start)?))
        });
        let views = self.report(total_bytes, total_bytes).and_then(|()| views.collect::<Result<Vec<_>>>());
        // A dictionary changes only if all do.
        for (name, view) in self.agree(views)? {
            dict.insert(name, view);
        }
        dict.metadata = schema.metadata;
        Ok(())
    }

    fn share_memory(&self, byte_len: usize, fill: Option<&mut Fill<'_>>) -> Result<ReadOnlyMemory> {
        self.communicator.as_backend().share(PURPOSE, byte_len, GroupRank(self.options.src.0), fill, self.deadline)
    }
}

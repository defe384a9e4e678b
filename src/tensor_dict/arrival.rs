//! What a receiver does before the elements come: it finds the tensors that it has, and allocates
//! those that it lacks.

use std::sync::Arc;

use super::schema::{Schema, TensorSchema};
use super::{Tensor, TensorDict};
use crate::cuda::Device;
use crate::error::{Error, Result, bail};
use crate::memory::MemorySpace;
use crate::util::free_memory;
use crate::util::text::clipped;

/// Where a receiver's tensors lie at the end.
#[derive(Clone, Copy)]
pub(super) struct Destination<'a> {
    /// Where they have to lie, if that matters.
    pub(super) place: Option<MemorySpace>,
    /// Where new ones lie.
    pub(super) space: MemorySpace,
    /// The GPU for which new ones are pinned.
    pub(super) pinning: Option<&'a Arc<Device>>,
}

/// What a receiver has for the tensors that arrive.
pub(super) struct Arrival {
    /// For each tensor, in the source's order.
    slots: Vec<Slot>,
    new: Vec<(String, Tensor)>,
    schema: Schema,
}

/// Where a tensor that arrives is put.
#[derive(Clone, Copy)]
enum Slot {
    /// Into the dictionary's tensor with this index.
    Existing(usize),
    /// Into the new tensor with this index.
    New(usize),
}

impl Arrival {
    /// Finds the tensors that are filled in place, and allocates the others. The dictionary does
    /// not change.
    ///
    /// # Errors
    ///
    /// - `InvalidBuffer`: the dictionary has a tensor of that name with another type or shape.
    /// - `System`: there is no memory.
    pub(super) fn prepare(dict: &TensorDict, schema: Schema, destination: Destination<'_>) -> Result<Self> {
        let (mut slots, mut missing) = (Vec::new(), Vec::new());
        for tensor in &schema.tensors {
            slots.push(match existing(dict, tensor)? {
                Some(index) if dict.tensors[index].1.is_fillable(destination.place) => Slot::Existing(index),
                _ => {
                    missing.push(tensor);
                    Slot::New(missing.len() - 1)
                }
            });
        }
        if destination.space == MemorySpace::Host {
            let byte_len = missing.iter().fold(0u64, |sum, tensor| sum.saturating_add(tensor.byte_len as u64));
            free_memory::check("memory for new tensors", byte_len)?;
        }
        let allocate = |tensor: &TensorSchema| {
            let Destination { space, pinning, .. } = destination;
            let made = Tensor::zeroed(tensor.element_type.clone(), tensor.shape, space, pinning);
            let name = clipped(&tensor.name);
            let made = made.map_err(|e| Error::new(e.kind(), format!("tensor {name:?}: {e}")))?;
            Ok((tensor.name.clone(), made))
        };
        let new = missing.into_iter().map(allocate).collect::<Result<_>>()?;
        Ok(Arrival { slots, new, schema })
    }

    /// The tensors into which elements are written, in the source's order.
    pub(super) fn tensors<'a>(&'a mut self, dict: &'a mut TensorDict) -> Vec<&'a mut Tensor> {
        let mut existing: Vec<_> = dict.tensors.iter_mut().map(|(_, tensor)| Some(tensor)).collect();
        let mut new: Vec<_> = self.new.iter_mut().map(|(_, tensor)| Some(tensor)).collect();
        let take = |slot: &Slot| match *slot {
            Slot::Existing(index) => existing[index].take(),
            Slot::New(index) => new[index].take(),
        };
        self.slots.iter().filter_map(take).collect()
    }

    /// Puts what has come into the dictionary.
    pub(super) fn finish(self, dict: &mut TensorDict) {
        self.new.into_iter().for_each(|(name, tensor)| drop(dict.insert(name, tensor)));
        dict.metadata = self.schema.metadata;
    }
}

/// Checks that no tensor of the dictionary contradicts one that arrives.
pub(super) fn check_existing(dict: &TensorDict, schema: &Schema) -> Result<()> {
    schema.tensors.iter().try_for_each(|tensor| existing(dict, tensor).map(drop))
}

/// The dictionary's tensor of that name, which has to have the type and the shape.
fn existing(dict: &TensorDict, tensor: &TensorSchema) -> Result<Option<usize>> {
    let Some(&index) = dict.indices.get(&tensor.name) else { return Ok(None) };
    let existing = &dict.tensors[index].1;
    let (own_type, own_shape) = (existing.element_type(), existing.shape());
    if (own_type, own_shape) != (&tensor.element_type, tensor.shape) {
        bail!(
            InvalidBuffer,
            "tensor {:?}: this rank has {own_type} {own_shape}, and the source sends {} {}; remove this rank's, or give \
             it that type and shape",
            clipped(&tensor.name),
            tensor.element_type,
            tensor.shape
        );
    }
    Ok(Some(index))
}

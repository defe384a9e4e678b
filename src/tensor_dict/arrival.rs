//! What a receiver does before the elements come: it finds the tensors that it has, and allocates
//! those that it lacks.

use std::collections::HashMap;
use std::sync::Arc;

use super::schema::{Schema, TensorSchema};
use super::{Tensor, TensorDict, of_tensor};
use crate::cuda::Device;
use crate::error::{Result, bail};
use crate::memory::MemorySpace;
use crate::util::free_memory;
use crate::util::text::clipped;

/// What a receiver has for the tensors that arrive.
pub(super) struct Arrival {
    schema: Schema,
    /// A new tensor for each of the schema's; `None` where the dictionary's own is filled.
    new: Vec<Option<Tensor>>,
}

impl Arrival {
    /// Finds the tensors that are filled in place, and allocates the others in `space`, in host
    /// memory that is pinned for a GPU if one is given. Tensors have to be in `place` if one is
    /// given. The dictionary does not change.
    ///
    /// # Errors
    ///
    /// - `InvalidBuffer`: the dictionary has a tensor of that name with another type or shape.
    /// - `System`: there is no memory.
    pub(super) fn prepare(
        dict: &TensorDict,
        schema: Schema,
        place: Option<MemorySpace>,
        space: MemorySpace,
        pinning: Option<&Arc<Device>>,
    ) -> Result<Self> {
        let is_missing = |tensor| Ok(!existing(dict, tensor)?.is_some_and(|own| own.is_fillable(place)));
        let are_missing: Vec<bool> = schema.tensors.iter().map(is_missing).collect::<Result<_>>()?;
        let tensors = || schema.tensors.iter().zip(&are_missing).map(|(tensor, missing)| missing.then_some(tensor));
        if space == MemorySpace::Host {
            let byte_len = tensors().flatten().fold(0u64, |sum, tensor| sum.saturating_add(tensor.byte_len as u64));
            free_memory::check("memory for new tensors", byte_len)?;
        }
        let allocate = |tensor: &TensorSchema| {
            let made = Tensor::zeroed(tensor.element_type.clone(), tensor.shape, space, pinning);
            made.map_err(|error| of_tensor(&tensor.name, error))
        };
        let new = tensors().map(|tensor| tensor.map(allocate).transpose()).collect::<Result<_>>()?;
        Ok(Arrival { schema, new })
    }

    /// The tensors into which elements are written, in the source's order.
    pub(super) fn tensors<'a>(&'a mut self, dict: &'a mut TensorDict) -> impl Iterator<Item = &'a mut Tensor> {
        let mut existing: HashMap<&str, &mut Tensor> =
            dict.tensors.iter_mut().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let tensors = self.schema.tensors.iter().zip(&mut self.new);
        tensors.filter_map(move |(tensor, new)| new.as_mut().or_else(|| existing.remove(tensor.name.as_str())))
    }

    /// Puts what has come into the dictionary.
    pub(super) fn finish(self, dict: &mut TensorDict) {
        for (tensor, new) in self.schema.tensors.into_iter().zip(self.new) {
            if let Some(new) = new {
                dict.insert(tensor.name, new);
            }
        }
        dict.metadata = self.schema.metadata;
    }
}

/// Checks that no tensor of the dictionary contradicts one that arrives.
pub(super) fn check_existing(dict: &TensorDict, schema: &Schema) -> Result<()> {
    schema.tensors.iter().try_for_each(|tensor| existing(dict, tensor).map(drop))
}

/// The dictionary's tensor of that name, which has to have the type and the shape.
fn existing<'a>(dict: &'a TensorDict, tensor: &TensorSchema) -> Result<Option<&'a Tensor>> {
    let Some(existing) = dict.get(&tensor.name) else { return Ok(None) };
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
    Ok(Some(existing))
}

//! Dictionaries of tensors: the weights of a model by name. A rank gives its own to all others with
//! [`Communicator::broadcast_tensor_dict`](crate::Communicator::broadcast_tensor_dict).

#[cfg(feature = "ndarray")]
mod array;
mod arrival;
mod broadcast;
mod element_type;
#[cfg(feature = "safetensors")]
mod file;
mod options;
mod payload;
mod schema;
mod shared;
mod strided;
mod tensor;

use std::collections::{BTreeMap, HashMap};
use std::fmt;

pub use element_type::{ElementType, OpaqueType};
pub use options::{BroadcastOptions, BroadcastProgress};
pub use tensor::Tensor;

use crate::error::Error;
use crate::util::text::clipped;

/// Tensors by name, in an order.
///
/// ```
/// use distcollective::tensor_dict::BroadcastOptions;
/// use distcollective::{Buffer, Communicator, TensorDict};
///
/// let weights = Communicator::spawn(2, |communicator| {
///     let mut weights = TensorDict::new();
///     if communicator.rank().0 == 0 {
///         weights.insert("bias", Buffer::from(vec![1.0f32, 2.0]));
///     }
///     communicator.broadcast_tensor_dict(&mut weights, &BroadcastOptions::new())?;
///     Ok(weights)
/// })?;
/// let bias = weights[1].get("bias").expect("rank 0 has sent it");
/// assert_eq!(bias.view()?.as_slice::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), distcollective::Error>(())
/// ```
///
/// # Files
///
/// With the feature `safetensors`, [`load`](Self::load), [`map`](Self::map) and
/// [`save`](Self::save) read and write the format of that name.
#[derive(Default)]
pub struct TensorDict {
    tensors: Vec<(String, Tensor)>,
    /// Where the tensor of a name is.
    indices: HashMap<String, usize>,
    metadata: BTreeMap<String, String>,
    /// What is broadcast, while the dictionary is on a stream.
    task: Option<Box<broadcast::Broadcast>>,
}

impl TensorDict {
    /// A dictionary without tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor at the end. If there is a tensor of that name, the new one takes its place in
    /// the order, and the old one is given back.
    pub fn insert(&mut self, name: impl Into<String>, tensor: impl Into<Tensor>) -> Option<Tensor> {
        let (name, tensor) = (name.into(), tensor.into());
        match self.indices.get(&name) {
            Some(&index) => Some(std::mem::replace(&mut self.tensors[index].1, tensor)),
            None => {
                self.indices.insert(name.clone(), self.tensors.len());
                self.tensors.push((name, tensor));
                None
            }
        }
    }

    /// The tensor of a name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.indices.get(name).map(|&index| &self.tensors[index].1)
    }

    /// The tensor of a name, for writing.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Tensor> {
        self.indices.get(name).map(|&index| &mut self.tensors[index].1)
    }

    /// Takes a tensor out. The others keep their order. The time is proportional to their number.
    pub fn remove(&mut self, name: &str) -> Option<Tensor> {
        let index = self.indices.remove(name)?;
        self.indices.values_mut().filter(|other| **other > index).for_each(|other| *other -= 1);
        Some(self.tensors.remove(index).1)
    }

    /// The tensors and their names, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Tensor)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// The number of tensors.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there is no tensor.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The number of bytes of all tensors.
    pub fn byte_len(&self) -> u64 {
        self.tensors.iter().map(|(_, tensor)| tensor.byte_len() as u64).sum()
    }

    /// Texts about the dictionary, such as `format`: `pt`. Files of safetensors have them as
    /// `__metadata__`. After a broadcast every rank has the source's.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The [texts](Self::metadata), for writing.
    pub fn metadata_mut(&mut self) -> &mut BTreeMap<String, String> {
        &mut self.metadata
    }
}

/// Says in an error which tensor it is about.
fn of_tensor(name: &str, error: Error) -> Error {
    Error::new(error.kind(), format!("tensor {:?}: {error}", clipped(name)))
}

impl fmt::Debug for TensorDict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Buffer;

    #[test]
    fn tensors_keep_their_order() {
        let mut dict = TensorDict::new();
        for (name, len) in [("b", 1), ("a", 2), ("c", 3)] {
            assert!(dict.insert(name, Buffer::from(vec![0u8; len])).is_none());
        }
        let old = dict.insert("a", Buffer::from(vec![0f32; 4])).expect("it was there");
        assert_eq!((old.byte_len(), dict.byte_len(), dict.len()), (2, 20, 3));
        let names = |dict: &TensorDict| dict.iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(names(&dict), ["b", "a", "c"]);
        assert_eq!(dict.remove("b").map(|tensor| tensor.byte_len()), Some(1));
        assert!(dict.remove("b").is_none());
        assert_eq!(names(&dict), ["a", "c"]);
        assert_eq!(dict.get("c").map(Tensor::byte_len), Some(3));
        assert_eq!(dict.get_mut("a").map(|tensor| tensor.byte_len()), Some(16));
    }
}

//! What travels before the elements: names, types, shapes and texts. It is data, in postcard's
//! format; nothing that a peer sends is trusted.

use std::collections::{BTreeMap, HashSet};

use sha2::{Digest, Sha256};

use super::element_type::ElementType;
use super::{Tensor, TensorDict};
use crate::error::{Error, Result, bail, error};
use crate::shape::Shape;
use crate::util::text::clipped;

/// The longest schema, in bytes. It bounds what a receiver allocates before it has checked it.
pub(super) const MAX_SCHEMA_BYTES: usize = 16 << 20;

/// A schema as bytes, and the hash by which ranks compare it.
pub(super) struct EncodedSchema {
    pub(super) bytes: Vec<u8>,
    pub(super) hash: [u8; 32],
}

/// What the source's schema says, checked.
pub(super) struct Schema {
    pub(super) tensors: Vec<TensorSchema>,
    pub(super) metadata: BTreeMap<String, String>,
}

/// One tensor of a schema.
pub(super) struct TensorSchema {
    pub(super) name: String,
    pub(super) element_type: ElementType,
    pub(super) shape: Shape,
    pub(super) byte_len: usize,
}

impl TensorSchema {
    pub(super) fn new(name: String, element_type: ElementType, dims: &[usize]) -> Result<Self> {
        let shape = Shape::new(dims)?;
        let byte_len = element_type.byte_len(&shape)?;
        Ok(TensorSchema { name, element_type, shape, byte_len })
    }
}

/// A schema as it travels: name, type and dimensions of each tensor, and the texts.
type Decoded = (Vec<(String, ElementType, Vec<usize>)>, BTreeMap<String, String>);

impl EncodedSchema {
    /// The schema of a dictionary.
    ///
    /// # Errors
    ///
    /// - `InvalidArgument`: it is longer than [`MAX_SCHEMA_BYTES`].
    pub(super) fn of(dict: &TensorDict) -> Result<Self> {
        let shapes: Vec<Shape> = dict.iter().map(|(_, tensor)| tensor.shape()).collect();
        let tensor = |((name, tensor), shape)| (name, Tensor::element_type(tensor), Shape::as_slice(shape));
        let tensors: Vec<(&str, &ElementType, &[usize])> = dict.iter().zip(&shapes).map(tensor).collect();
        let bytes = postcard::to_stdvec(&(tensors, dict.metadata()))
            .map_err(|e| error!(System, "the schema cannot be encoded").with_source(e))?;
        let len = bytes.len();
        if len > MAX_SCHEMA_BYTES {
            bail!(InvalidArgument, "names, shapes and texts are {len} bytes; the most are {MAX_SCHEMA_BYTES}");
        }
        Ok(EncodedSchema { hash: hash_of(&bytes), bytes })
    }
}

/// The hash by which ranks compare a schema.
pub(super) fn hash_of(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

impl Schema {
    /// Reads what the source has encoded.
    ///
    /// # Errors
    ///
    /// - `System`: the bytes are no schema, or one that breaks a rule of [`TensorDict`].
    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let damaged = |e: Error| error!(System, "the schema that came breaks a rule: {e}");
        let ((tensors, metadata), left) = postcard::take_from_bytes::<Decoded>(bytes)
            .map_err(|e| error!(System, "the schema that came cannot be read: {e}"))?;
        if !left.is_empty() {
            bail!(System, "the schema that came has {} bytes too many", left.len());
        }
        let check = |(name, element_type, dims): (_, _, Vec<usize>)| {
            TensorSchema::new(name, element_type, &dims).map_err(damaged)
        };
        let tensors = tensors.into_iter().map(check).collect::<Result<Vec<_>>>()?;
        let mut names = HashSet::new();
        if let Some(twice) = tensors.iter().find(|tensor| !names.insert(&tensor.name)) {
            bail!(System, "the schema that came has two tensors {:?}", clipped(&twice.name));
        }
        Ok(Schema { tensors, metadata })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_type::DataType;
    use crate::memory::Buffer;
    use crate::tensor_dict::OpaqueType;

    fn dict() -> TensorDict {
        let mut dict = TensorDict::new();
        dict.insert("weight", Buffer::zeroed(DataType::Bfloat16, [2, 3]).expect("a buffer"));
        dict.insert(
            "",
            Tensor::opaque(OpaqueType::new("F4", 4).expect("a type"), [3, 2], vec![0u8; 3]).expect("bytes"),
        );
        dict.metadata_mut().insert("format".to_owned(), "pt".to_owned());
        dict
    }

    fn encode(tensors: &[(&str, ElementType, &[usize])]) -> Vec<u8> {
        postcard::to_stdvec(&(tensors, BTreeMap::<String, String>::new())).expect("it is encoded")
    }

    #[test]
    fn a_schema_is_read_back() {
        let schema = Schema::decode(&EncodedSchema::of(&dict()).expect("it is short").bytes).expect("it is right");
        let tensors: Vec<_> = schema
            .tensors
            .iter()
            .map(|t| format!("{:?} {} {} {}", t.name, t.element_type, t.shape, t.byte_len))
            .collect();
        assert_eq!(tensors, ["\"weight\" bfloat16 [2, 3] 12", "\"\" F4 [3, 2] 3"]);
        assert_eq!(schema.metadata["format"], "pt");
    }

    /// Whatever differs between two dictionaries, their hashes differ.
    #[test]
    fn hashes_tell_schemas_apart() {
        let hash = |change: &dyn Fn(&mut TensorDict)| {
            let mut dict = dict();
            change(&mut dict);
            EncodedSchema::of(&dict).expect("it is short").hash
        };
        let put = |name: &'static str, data_type, dims: [i64; 2]| {
            hash(&move |dict| drop(dict.insert(name, Buffer::zeroed(data_type, dims).expect("a buffer"))))
        };
        let same = hash(&|_| ());
        assert_eq!(put("weight", DataType::Bfloat16, [2, 3]), same);
        for other in [
            put("weight", DataType::Bfloat16, [3, 2]),
            put("weight", DataType::Float16, [2, 3]),
            put("bias", DataType::Bfloat16, [2, 3]),
            hash(&|dict| dict.metadata_mut().clear()),
        ] {
            assert_ne!(other, same);
        }
    }

    #[test]
    fn a_hostile_schema_is_an_error() {
        let u8s = || ElementType::Known(DataType::Uint8);
        // What a peer writes is not made by `OpaqueType::new`.
        let opaque = |name: &str, bits: u32| -> ElementType {
            let bytes = postcard::to_stdvec(&(1u32, name, bits)).expect("it is encoded");
            postcard::from_bytes(&bytes).expect("it is decoded")
        };
        for (tensors, says) in [
            (encode(&[("a", u8s(), &[1]), ("a", u8s(), &[1])]), "two tensors \"a\""),
            (encode(&[("a", u8s(), &[1; 9])]), "at most 8"),
            (encode(&[("a", u8s(), &[usize::MAX, 2])]), "more elements than memory can hold"),
            (encode(&[("a", opaque("X", 1024), &[1 << 59])]), "larger than memory can be"),
            (encode(&[("a", opaque("X", 0), &[1])]), "it may have 1 to 1024"),
            (encode(&[("a", opaque("", 8), &[1])]), "empty name"),
            (encode(&[("a", opaque("F4", 4), &[1])]), "not whole bytes"),
        ] {
            let error = Schema::decode(&tensors).map(drop).expect_err(says);
            assert!(error.to_string().contains(says), "{says}: {error}");
        }
        let good = EncodedSchema::of(&dict()).expect("it is short").bytes;
        for len in 0..good.len() {
            assert!(Schema::decode(&good[..len]).is_err(), "cut to {len} bytes");
        }
        assert!(Schema::decode(&[&good[..], &[0]].concat()).is_err());
        // A length that no memory holds, at the place of every byte.
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes.splice(at..=at, [0xff; 9].into_iter().chain([1]));
            let _ = Schema::decode(&bytes);
        }
    }
}

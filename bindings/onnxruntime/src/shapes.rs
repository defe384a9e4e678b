//! The shapes of outputs, which ONNX Runtime infers when it loads a model. A model that was sharded
//! may store shapes of inner tensors that are those of one device; with the right ones ONNX Runtime
//! refuses it.

use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicU64, Ordering};

use distcollective::tensor::Dims;
use distcollective::{DistCollectiveLayer, Error, ErrorKind, Result};
use ort_sys::{OrtOpAttrType, OrtShapeInferContext};

use crate::api::Api;
use crate::node::{Attributes, layer_of};
use crate::session::copy_number;

/// The most numbers of an attribute. A text has at most eight times as many bytes.
const MOST_NUMBERS: usize = 1 << 13;

/// A node whose output's shape is inferred.
struct Inferred {
    api: Api,
    context: *const OrtShapeInferContext,
}

impl Inferred {
    /// The numbers of an attribute, or the bytes of a text, and how many bytes they are.
    fn read(&self, name: &CStr, kind: OrtOpAttrType) -> Result<Option<(Vec<i64>, usize)>> {
        let mut numbers = vec![0; MOST_NUMBERS];
        // SAFETY: the promise of `infer`.
        let len = unsafe { self.api.inferred_attribute(self.context, name, kind, &mut numbers)? };
        Ok(len.map(|len| (numbers, len)))
    }

    fn numbers(&self, name: &CStr, kind: OrtOpAttrType) -> Result<Option<Vec<i64>>> {
        let read = self.read(name, kind)?;
        Ok(read.map(|(mut numbers, len)| {
            numbers.truncate(len / size_of::<i64>());
            numbers
        }))
    }
}

impl Attributes for Inferred {
    fn text(&self, name: &CStr) -> Result<Option<String>> {
        let Some((bytes, _)) = self.read(name, OrtOpAttrType::ORT_OP_ATTR_STRING)? else { return Ok(None) };
        let bytes: Vec<u8> = bytes.into_iter().flat_map(i64::to_ne_bytes).collect();
        let text = CStr::from_bytes_until_nul(&bytes).ok().and_then(|text| text.to_str().ok());
        text.map(|text| Some(text.to_owned())).ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "not a text"))
    }

    fn integer(&self, name: &CStr) -> Result<Option<i64>> {
        let numbers = self.numbers(name, OrtOpAttrType::ORT_OP_ATTR_INT)?;
        Ok(numbers.and_then(|numbers| numbers.first().copied()))
    }

    fn integers(&self, name: &CStr) -> Result<Option<Vec<i64>>> {
        self.numbers(name, OrtOpAttrType::ORT_OP_ATTR_INTS)
    }
}

/// Sets the shape of a node's output, if the input's rank is known. `world_size` is 0 if it is not
/// known; most nodes say how many ranks take part.
///
/// # Safety
///
/// The context is that of an inference that runs.
///
/// # Errors
///
/// The node is wrong. ONNX Runtime hears of it from its kernel, which is made later.
pub(crate) unsafe fn infer(api: Api, context: *mut OrtShapeInferContext, world_size: u32) -> Result<()> {
    let layer = layer_of(&Inferred { api, context }, world_size, "")?;
    // SAFETY: the caller's promise.
    let (element_type, input, mut names) = unsafe { api.inferred_input(context)? };
    // ONNX Runtime gives no dimensions where the rank is not known.
    if input.is_empty() {
        return Ok(());
    }
    let output = layer.output_dims(&Dims::new(&input)?)?;
    let keeps_rows = keeps_rows(&layer)?;
    for (index, (name, dim)) in names.iter_mut().zip(output.as_slice()).enumerate() {
        if *dim != -1 {
            *name = CString::default();
        } else if name.is_empty() || (index == 0 && !keeps_rows) {
            *name = new_name();
        }
    }
    // SAFETY: the caller's promise.
    unsafe { api.set_inferred_output(context, element_type, output.as_slice(), &names) }
}

/// Whether the output has as many rows as the input.
fn keeps_rows(layer: &DistCollectiveLayer) -> Result<bool> {
    let rows = Dims::new(&[i64::from(layer.nb_rank().unwrap_or(1))])?;
    Ok(layer.output_dims(&rows)? == rows)
}

/// The name of a dimension that is equal to no other: ONNX Runtime takes equal names for equal
/// dimensions, and may store them.
fn new_name() -> CString {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let name = format!("DistCollective_{:x}_{}", copy_number(), MADE.fetch_add(1, Ordering::Relaxed));
    CString::new(name).unwrap_or_default()
}

//! What the tensors of one call have to do with each other.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::strided::Strided;
use super::tensor::Tensor;

/// Checks that no strided tensor of a collective shares an element with another one, if one of the
/// two is written. The library checks tensors whose elements lie one after the other.
pub(super) fn check_apart(tensors: &[Tensor]) -> PyResult<()> {
    match tensors.iter().any(Tensor::is_strided) {
        true => check_pairs(tensors, |one, other| one.is_strided() || other.is_strided()),
        false => Ok(()),
    }
}

/// Checks that no two tensors of a batch of messages share an element, if one of them is written.
pub(super) fn check_distinct(tensors: &[Tensor]) -> PyResult<()> {
    match tensors.len() {
        0 | 1 => Ok(()),
        _ => check_pairs(tensors, |_, _| true),
    }
}

fn check_pairs(tensors: &[Tensor], is_checked: impl Fn(&Tensor, &Tensor) -> bool) -> PyResult<()> {
    let mut elements: Vec<(&Tensor, Strided)> = tensors.iter().map(|tensor| (tensor, tensor.elements())).collect();
    elements.sort_by_key(|(_, elements)| elements.bounds().start);
    for (index, (one, own)) in elements.iter().enumerate() {
        let end = own.bounds().end;
        for (other, others) in elements[index + 1..].iter().take_while(|(_, others)| others.bounds().start < end) {
            let is_written = one.is_written() || other.is_written();
            if is_written && is_checked(one, other) && own.shares_memory(others) {
                let text = "two tensors of this call overlap: an element of memory belongs to both, and the call writes one of \
                            them; give a copy of one";
                return Err(PyValueError::new_err(text));
            }
        }
    }
    Ok(())
}

/// The CUDA streams on which the elements are made, each once.
pub(super) fn streams_of(tensors: &[Tensor]) -> Vec<usize> {
    let mut streams: Vec<usize> = tensors.iter().filter_map(Tensor::stream).collect();
    streams.sort_unstable();
    streams.dedup();
    streams
}

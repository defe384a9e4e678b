//! Addresses of tensors in calls of the library, and the parts of a tensor.

use distcollective::collective::Collective;
use distcollective::comm::{RawBlocks, RawCollective, RawMessage, RawOperands, TransferType};
use distcollective::{Error, Rank, Stream};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::tensor::Tensor;
use super::work::Pending;

/// Addresses of tensors, which live longer than the calls on them.
pub(super) enum Addresses {
    /// The input and the output.
    Pair([*mut u8; 2]),
    /// A tensor, and one for each rank.
    List(*mut u8, Vec<*mut u8>),
    /// The inputs, then the outputs, which may have different lengths.
    Blocks(Vec<*mut u8>),
}

// SAFETY: the addresses are used while the tensors that they belong to are kept.
unsafe impl Send for Addresses {}
// SAFETY: as above.
unsafe impl Sync for Addresses {}

impl Addresses {
    /// # Safety
    ///
    /// As [`distcollective::Communicator::enqueue`].
    pub(super) unsafe fn enqueue(
        &self,
        communicator: &distcollective::Communicator,
        collective: Collective<Rank>,
        data_type: TransferType,
        block_elements: usize,
        stream: &Stream,
    ) -> Result<distcollective::Work<RawCollective>, Error> {
        let operands = match *self {
            Addresses::Pair([input, output]) => RawOperands::Pair { input, output },
            Addresses::List(one, ref list) => RawOperands::List { one, list },
            Addresses::Blocks(_) => unreachable!("blocks have counts"),
        };
        // SAFETY: the caller's promise.
        unsafe { communicator.enqueue(collective, data_type, block_elements, operands, stream) }
    }

    /// Makes a call on blocks, of which the first `given` are the inputs.
    ///
    /// # Safety
    ///
    /// As [`distcollective::Communicator::enqueue_v`].
    pub(super) unsafe fn enqueue_blocks(
        &self,
        communicator: &distcollective::Communicator,
        collective: Collective<Rank>,
        data_type: TransferType,
        counts: &[usize],
        given: usize,
        stream: &Stream,
    ) -> Result<distcollective::Work<RawCollective>, Error> {
        let Addresses::Blocks(addresses) = self else { unreachable!("only blocks have counts") };
        let side =
            |range: std::ops::Range<usize>| RawBlocks { addresses: &addresses[range.clone()], counts: &counts[range] };
        let sides = [side(0..given), side(given..addresses.len())];
        // SAFETY: the caller's promise.
        unsafe { communicator.enqueue_v(collective, data_type, sides, stream) }
    }
}

/// Messages for the library.
pub(super) struct RawMessages(pub(super) Vec<RawMessage>);

// SAFETY: the addresses are used while the tensors that they belong to are kept.
unsafe impl Send for RawMessages {}

impl RawMessages {
    /// # Safety
    ///
    /// As [`distcollective::Communicator::enqueue_messages`].
    pub(super) unsafe fn enqueue(
        self,
        communicator: &distcollective::Communicator,
        stream: Option<&Stream>,
    ) -> Result<Pending, Error> {
        // SAFETY: the caller's promise.
        unsafe { communicator.enqueue_messages(&self.0, stream) }.map(Pending::Messages)
    }
}

/// The parts of a tensor along dimension 0, of these lengths, or of one length: where each begins,
/// and its number of elements.
pub(super) fn parts(name: &str, tensor: &Tensor, sizes: Option<Vec<i64>>, n: usize) -> PyResult<Vec<(*mut u8, usize)>> {
    let rows = tensor.first_len();
    let sizes = sizes.unwrap_or_else(|| vec![(rows / n) as i64; n]);
    let lens: Option<Vec<usize>> = sizes.iter().map(|size| usize::try_from(*size).ok()).collect();
    let sum = |lens: &Vec<usize>| lens.iter().try_fold(0usize, |sum, len| sum.checked_add(*len));
    let Some(lens) = lens.filter(|lens| lens.len() == n && sum(lens) == Some(rows)) else {
        return Err(PyValueError::new_err(format!(
            "{name}_split_sizes is {sizes:?}; it has a size for each of {n} ranks, and their sum is the length of dimension 0, \
             {rows}"
        )));
    };
    let row = tensor.element_count() / rows.max(1);
    let mut next = tensor.address();
    Ok(lens
        .into_iter()
        .map(|len| {
            let block = (next, len * row);
            next = next.wrapping_add(block.1 * tensor.element.byte_len);
            block
        })
        .collect())
}

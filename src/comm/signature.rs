//! What ranks compare of a collective before anything moves, so that different calls are an error:
//! its signature, two words in memory that ranks share.

use std::num::NonZeroU16;

use crate::collective::{
    Call, Collective, CollectiveOperation, Determinism, Purpose, PurposeKind, ReduceOperation, WireType,
};
use crate::moved_type::TransferType;
use crate::rank::GroupRank;

/// Where a collective is in the order of its communicator, as errors say it: `collective 3`.
/// `number` is that of the collective, or if it is not counted, of the next one that is.
pub(crate) fn place_of(is_counted: bool, number: u64) -> String {
    match number {
        _ if is_counted => format!("collective {number}"),
        1 => "before the first collective".to_owned(),
        _ => format!("after collective {}", number - 1),
    }
}

/// The purposes of what communicators and backends call. Other modules have purposes of their own.
impl Purpose {
    pub(crate) const BARRIER: Self = Self::new("barrier", PurposeKind::Counted);
    pub(crate) const MONITORED_BARRIER: Self = Self::new("monitored_barrier", PurposeKind::Counted);
    pub(crate) const FINALIZE: Self = Self::new("finalize", PurposeKind::Part);
    pub(crate) const SPLIT: Self = Self::new("split", PurposeKind::Part);
    pub(crate) const NEW_GROUP: Self = Self::new("new_group", PurposeKind::Part);
    pub(crate) const ALLOCATE: Self = Self::new("allocate", PurposeKind::Part);
    pub(crate) const INITIALIZE: Self = Self::new("initialize", PurposeKind::Part);
}

/// Two numbers below 16 share a byte: the operation and the transport type, and the reduction and
/// the determinism. This many bits are the first one's.
const HALF_BITS: u32 = 4;

/// `block_elements` and the layer share a word: this many bits are the elements'. That is enough
/// for 256 TiB, and a process has less memory.
const ELEMENT_BITS: u32 = 48;

/// The first and the second number of a byte.
fn halves(byte: u8) -> [i32; 2] {
    [byte & ((1 << HALF_BITS) - 1), byte >> HALF_BITS].map(i32::from)
}

impl Call {
    /// The signature. Two ranks agree if theirs are equal.
    pub(crate) fn to_words(self) -> [u64; 2] {
        let Call { purpose, collective, block_elements, determinism, wire_type, layer, .. } = self;
        let reduce_op = collective.reduce_op().map_or(ReduceOperation::NONE_NUMBER, ReduceOperation::number);
        let reduce_op = reduce_op as u8 | (determinism.number() as u8) << HALF_BITS;
        let root = collective.root().map_or(0, |root| root.0);
        let wire_type = wire_type.map_or(WireType::NONE_NUMBER, WireType::number);
        let operation = collective.operation().number() as u8 | (wire_type as u8) << HALF_BITS;
        let bytes = [purpose.number(), operation, reduce_op, self.transfer_type().number()];
        let layer = layer.map_or(0, NonZeroU16::get);
        let call = u64::from(u32::from_le_bytes(bytes)) | u64::from(root) << 32;
        [call, block_elements as u64 | u64::from(layer) << ELEMENT_BITS]
    }

    /// The call with a signature; `None` for words that no rank of this version wrote.
    pub(crate) fn from_words(words: [u64; 2]) -> Option<Self> {
        let [purpose, operation, reduce_op, data_type] = (words[0] as u32).to_le_bytes();
        let purpose = Purpose::from_number(purpose)?;
        let [operation, wire_type] = halves(operation);
        let [reduce_op, determinism] = halves(reduce_op);
        let determinism = Determinism::from_number(determinism).ok()?;
        let wire_type = WireType::from_number(wire_type).ok()?;
        let operation = CollectiveOperation::from_number(operation).ok()?;
        let reduce_op = ReduceOperation::from_number(reduce_op).ok()?;
        let transfer_type = TransferType::from_number(data_type)?;
        let (data_type, only_moved) = (transfer_type.carrier(), transfer_type.moved());
        let collective = Collective::from_parts(operation, reduce_op, Some(GroupRank((words[0] >> 32) as u32)))?;
        let block_elements = usize::try_from(words[1] & ((1 << ELEMENT_BITS) - 1)).ok()?;
        let layer = NonZeroU16::new((words[1] >> ELEMENT_BITS) as u16);
        Some(Call { purpose, collective, data_type, block_elements, determinism, wire_type, only_moved, layer })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_type::DataType;
    use crate::moved_type::MovedType;

    #[test]
    fn words_keep_every_part() {
        for operation in CollectiveOperation::ALL {
            let data_types = DataType::ALL.into_iter().map(TransferType::Data);
            for transfer_type in data_types.chain(MovedType::all().map(TransferType::Moved)) {
                let (data_type, only_moved) = (transfer_type.carrier(), transfer_type.moved());
                let collective =
                    Collective::from_parts(operation, Some(ReduceOperation::Min), Some(GroupRank(u32::MAX)))
                        .expect("complete");
                let wire_types = [None, Some(WireType::Float16), Some(WireType::Bfloat16)];
                let purposes = || (0..=u8::MAX).filter_map(Purpose::from_number);
                let options = Determinism::ALL.into_iter().flat_map(|mode| wire_types.map(|wire| (mode, wire)));
                for (purpose, (determinism, wire_type)) in
                    purposes().flat_map(|purpose| options.clone().map(move |option| (purpose, option)))
                {
                    let block_elements = usize::MAX >> (u64::BITS - ELEMENT_BITS);
                    for layer in [0, 1, u16::MAX].map(NonZeroU16::new) {
                        let call = Call::of_blocks(collective, data_type, block_elements).for_purpose(purpose);
                        let call = Call { determinism, wire_type, only_moved, layer, ..call };
                        assert_eq!(Call::from_words(call.to_words()), Some(call));
                    }
                }
            }
        }
        assert_eq!(Call::from_words([u64::MAX; 2]), None);
    }
}

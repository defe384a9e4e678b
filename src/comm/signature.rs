//! What ranks compare of a collective before anything moves, so that different calls are an error.

use std::fmt;

use crate::collective::{Call, Collective, CollectiveOperation, ReduceOperation};
use crate::data_type::DataType;
use crate::rank::GroupRank;

/// Which of the collective calls of the library a collective belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Purpose {
    /// A collective of the user or of a layer.
    Collective = 0,
    /// A barrier.
    Barrier = 1,
    /// `split`, also as a part of other calls.
    Split = 2,
    /// `allocate`.
    Allocate = 3,
    /// The comparison of plans at `set_communicator`.
    SetCommunicator = 4,
    /// `finalize`.
    Finalize = 5,
    /// The exchange of the ranks' properties when an environment is initialized.
    Initialize = 6,
    /// The comparison of lists in `new_group`.
    NewGroup = 7,
    /// `broadcast_tensor_dict`: what ranks compare, the schema, the elements.
    TensorDict = 8,
}

impl Purpose {
    /// Whether errors count the collective: one that the program or a layer calls. The others are
    /// parts of the library's calls, and a call can have several.
    pub(crate) fn is_counted(self) -> bool {
        matches!(self, Purpose::Collective | Purpose::Barrier)
    }

    const ALL: [Purpose; 9] = [
        Purpose::Collective,
        Purpose::Barrier,
        Purpose::Split,
        Purpose::Allocate,
        Purpose::SetCommunicator,
        Purpose::Finalize,
        Purpose::Initialize,
        Purpose::NewGroup,
        Purpose::TensorDict,
    ];
}

/// Where a collective is in the order of its communicator, as errors say it: `collective 3`.
/// `number` is that of the collective, or if it is not counted, of the next one that is.
pub(crate) fn place_of(is_counted: bool, number: u64) -> String {
    match number {
        _ if is_counted => format!("collective {number}"),
        1 => "before the first collective".to_owned(),
        _ => format!("after collective {}", number - 1),
    }
}

/// A call and its purpose. Two ranks agree if theirs are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signature {
    pub(crate) purpose: Purpose,
    pub(crate) call: Call,
}

impl Signature {
    /// As two words, for memory that ranks share.
    pub(crate) fn to_words(self) -> [u64; 2] {
        let Call { collective, data_type, block_elements } = self.call;
        let reduce_op = collective.reduce_op().map_or(ReduceOperation::NONE_NUMBER, ReduceOperation::number);
        let root = collective.root().map_or(0, |root| root.0);
        let bytes =
            [self.purpose as u8, collective.operation().number() as u8, reduce_op as u8, data_type.number() as u8];
        [u64::from(u32::from_le_bytes(bytes)) | u64::from(root) << 32, block_elements as u64]
    }

    /// The signature from its words; `None` for words that no rank of this version wrote.
    pub(crate) fn from_words(words: [u64; 2]) -> Option<Self> {
        let [purpose, operation, reduce_op, data_type] = (words[0] as u32).to_le_bytes();
        let purpose = Purpose::ALL.into_iter().find(|p| *p as u8 == purpose)?;
        let operation = CollectiveOperation::from_number(operation.into()).ok()?;
        let reduce_op = ReduceOperation::from_number(reduce_op.into()).ok()?;
        let data_type = DataType::from_number(data_type.into()).ok()?;
        let collective = Collective::from_parts(operation, reduce_op, Some(GroupRank((words[0] >> 32) as u32)))?;
        let block_elements = usize::try_from(words[1]).ok()?;
        Some(Signature { purpose, call: Call { collective, data_type, block_elements } })
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.purpose {
            Purpose::Collective => self.call.fmt(f),
            Purpose::Barrier => f.write_str("barrier"),
            Purpose::Split => f.write_str("split"),
            Purpose::Allocate => f.write_str("allocate"),
            Purpose::SetCommunicator => f.write_str("set_communicator"),
            Purpose::Finalize => f.write_str("finalize"),
            Purpose::Initialize => f.write_str("initialize"),
            Purpose::NewGroup => f.write_str("new_group"),
            Purpose::TensorDict => write!(f, "broadcast_tensor_dict ({})", self.call),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_every_part() {
        for operation in CollectiveOperation::ALL {
            for data_type in DataType::ALL {
                let collective =
                    Collective::from_parts(operation, Some(ReduceOperation::Min), Some(GroupRank(u32::MAX)))
                        .expect("complete");
                let call = Call { collective, data_type, block_elements: usize::MAX >> 8 };
                for purpose in Purpose::ALL {
                    let signature = Signature { purpose, call };
                    assert_eq!(Signature::from_words(signature.to_words()), Some(signature));
                }
            }
        }
        assert_eq!(Signature::from_words([u64::MAX; 2]), None);
    }
}

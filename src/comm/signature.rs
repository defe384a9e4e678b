//! What ranks compare of a collective before anything moves, so that different calls are an error.

use std::fmt;
use std::num::NonZeroU16;

use crate::collective::{Call, Collective, CollectiveOperation, Determinism, ReduceOperation, WireType};
use crate::moved_type::TransferType;
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
    /// The ranks' question which CUDA graph a run replays, if any.
    ChooseGraph = 8,
    /// A run that replays a CUDA graph; see [`is_announcement`](Self::is_announcement).
    Replay = 9,
    /// A run in a capture of the caller's; an announcement that waits for the others.
    Capture = 10,
    /// A run that is neither recorded nor replayed; an announcement.
    PlainRun = 11,
    /// `monitored_barrier`.
    MonitoredBarrier = 12,
    /// `broadcast_bytes`.
    BroadcastBytes = 13,
    /// `all_gather_bytes`.
    AllGatherBytes = 14,
    /// `gather_bytes`.
    GatherBytes = 15,
    /// `scatter_bytes`.
    ScatterBytes = 16,
    /// `broadcast_tensor_dict`: what ranks compare, the schema, the elements.
    TensorDict = 17,
}

impl Purpose {
    /// Whether errors count the collective: one that the program or a layer calls. The others are
    /// parts of the library's calls, and a call can have several.
    pub(crate) fn is_counted(self) -> bool {
        matches!(self, Purpose::Collective | Purpose::Barrier | Purpose::MonitoredBarrier)
    }

    /// Whether it is about a run of a context as a whole.
    pub(crate) fn is_run(self) -> bool {
        self.is_announcement() || self == Purpose::ChooseGraph
    }

    /// Whether ranks only compare the signature. Its `block_elements` is then any number, no
    /// elements move, and a rank waits for no other, except in a [`Capture`](Self::Capture).
    pub(crate) fn is_announcement(self) -> bool {
        matches!(self, Purpose::Replay | Purpose::Capture | Purpose::PlainRun)
    }

    /// The call of the library, as errors name it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Purpose::Collective => "collective",
            Purpose::Barrier => "barrier",
            Purpose::Split => "split",
            Purpose::Allocate => "allocate",
            Purpose::SetCommunicator => "set_communicator",
            Purpose::Finalize => "finalize",
            Purpose::Initialize => "initialize",
            Purpose::NewGroup => "new_group",
            Purpose::ChooseGraph | Purpose::Replay | Purpose::Capture | Purpose::PlainRun => "run",
            Purpose::MonitoredBarrier => "monitored_barrier",
            Purpose::BroadcastBytes => "broadcast_bytes",
            Purpose::AllGatherBytes => "all_gather_bytes",
            Purpose::GatherBytes => "gather_bytes",
            Purpose::ScatterBytes => "scatter_bytes",
            Purpose::TensorDict => "broadcast_tensor_dict",
        }
    }

    const ALL: [Purpose; 18] = [
        Purpose::Collective,
        Purpose::Barrier,
        Purpose::Split,
        Purpose::Allocate,
        Purpose::SetCommunicator,
        Purpose::Finalize,
        Purpose::Initialize,
        Purpose::NewGroup,
        Purpose::ChooseGraph,
        Purpose::Replay,
        Purpose::Capture,
        Purpose::PlainRun,
        Purpose::MonitoredBarrier,
        Purpose::BroadcastBytes,
        Purpose::AllGatherBytes,
        Purpose::GatherBytes,
        Purpose::ScatterBytes,
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

/// Which CUDA graph a run replays: the context's number, and the graph's in the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GraphNumber {
    pub(crate) context: u32,
    pub(crate) graph: u8,
}

impl GraphNumber {
    pub(super) fn to_word(self) -> usize {
        (self.context as usize) << 8 | usize::from(self.graph)
    }

    pub(super) fn from_word(word: usize) -> Self {
        GraphNumber { context: (word >> 8) as u32, graph: word as u8 }
    }
}

impl fmt::Display for GraphNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CUDA graph {} of context {}", self.graph, self.context)
    }
}

/// A call and its purpose. Two ranks agree if theirs are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signature {
    pub(crate) purpose: Purpose,
    pub(crate) call: Call,
}

/// The purpose and the determinism share a byte: this many bits are the purpose's.
const PURPOSE_BITS: u32 = 5;

/// The operation and the transport type share a byte: this many bits are the operation's.
const OPERATION_BITS: u32 = 4;

/// `block_elements` and the layer share a word: this many bits are the elements'. That is enough
/// for 256 TiB, and a process has less memory.
const ELEMENT_BITS: u32 = 48;

/// The lowest bits of a byte.
fn lowest(bits: u32, byte: u8) -> u8 {
    byte & ((1 << bits) - 1)
}

impl Signature {
    /// As two words, for memory that ranks share.
    pub(crate) fn to_words(self) -> [u64; 2] {
        let Call { collective, block_elements, determinism, wire_type, layer, .. } = self.call;
        let reduce_op = collective.reduce_op().map_or(ReduceOperation::NONE_NUMBER, ReduceOperation::number);
        let root = collective.root().map_or(0, |root| root.0);
        let purpose = self.purpose as u8 | (determinism.number() as u8) << PURPOSE_BITS;
        let wire_type = wire_type.map_or(WireType::NONE_NUMBER, WireType::number);
        let operation = collective.operation().number() as u8 | (wire_type as u8) << OPERATION_BITS;
        let bytes = [purpose, operation, reduce_op as u8, self.call.transfer_type().number()];
        let layer = layer.map_or(0, NonZeroU16::get);
        let call = u64::from(u32::from_le_bytes(bytes)) | u64::from(root) << 32;
        [call, block_elements as u64 | u64::from(layer) << ELEMENT_BITS]
    }

    /// The signature from its words; `None` for words that no rank of this version wrote.
    pub(crate) fn from_words(words: [u64; 2]) -> Option<Self> {
        let [purpose, operation, reduce_op, data_type] = (words[0] as u32).to_le_bytes();
        let determinism = Determinism::from_number((purpose >> PURPOSE_BITS).into()).ok()?;
        let purpose = Purpose::ALL.into_iter().find(|p| *p as u8 == lowest(PURPOSE_BITS, purpose))?;
        let wire_type = WireType::from_number((operation >> OPERATION_BITS).into()).ok()?;
        let operation = CollectiveOperation::from_number(lowest(OPERATION_BITS, operation).into()).ok()?;
        let reduce_op = ReduceOperation::from_number(reduce_op.into()).ok()?;
        let transfer_type = TransferType::from_number(data_type)?;
        let (data_type, only_moved) = (transfer_type.carrier(), transfer_type.moved());
        let collective = Collective::from_parts(operation, reduce_op, Some(GroupRank((words[0] >> 32) as u32)))?;
        let block_elements = usize::try_from(words[1] & ((1 << ELEMENT_BITS) - 1)).ok()?;
        let layer = NonZeroU16::new((words[1] >> ELEMENT_BITS) as u16);
        let call = Call { collective, data_type, block_elements, determinism, wire_type, only_moved, layer };
        Some(Signature { purpose, call })
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.purpose {
            Purpose::Collective => self.call.fmt(f),
            Purpose::ChooseGraph => f.write_str("a run with the buffers of no CUDA graph, or of several"),
            Purpose::Replay => write!(f, "a run that replays {}", GraphNumber::from_word(self.call.block_elements)),
            Purpose::Capture => {
                write!(f, "run {}, in a capture of the caller's", self.call.block_elements)
            }
            Purpose::PlainRun => write!(f, "run {}, in no capture", self.call.block_elements),
            Purpose::TensorDict => write!(f, "{} ({})", self.purpose.name(), self.call),
            purpose => f.write_str(purpose.name()),
        }
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
            for transfer_type in data_types.chain(MovedType::ALL.into_iter().map(TransferType::Moved)) {
                let (data_type, only_moved) = (transfer_type.carrier(), transfer_type.moved());
                let collective =
                    Collective::from_parts(operation, Some(ReduceOperation::Min), Some(GroupRank(u32::MAX)))
                        .expect("complete");
                let wire_types = [None, Some(WireType::Float16), Some(WireType::Bfloat16)];
                let options = Determinism::ALL.into_iter().flat_map(|mode| wire_types.map(|wire| (mode, wire)));
                for (purpose, (determinism, wire_type)) in
                    Purpose::ALL.into_iter().flat_map(|purpose| options.clone().map(move |option| (purpose, option)))
                {
                    let block_elements = usize::MAX >> (u64::BITS - ELEMENT_BITS);
                    for layer in [0, 1, u16::MAX].map(NonZeroU16::new) {
                        let call =
                            Call { collective, data_type, block_elements, determinism, wire_type, only_moved, layer };
                        let signature = Signature { purpose, call };
                        assert_eq!(Signature::from_words(signature.to_words()), Some(signature));
                    }
                }
            }
        }
        assert_eq!(Signature::from_words([u64::MAX; 2]), None);
    }
}

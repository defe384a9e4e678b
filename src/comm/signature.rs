//! What ranks compare of a collective before anything moves, so that different calls are an error:
//! its signature, three words in memory that ranks share.

use crate::collective::{
    Call, Collective, CollectiveOperation, Determinism, Purpose, PurposeKind, ReduceOperation, WireType,
};
use crate::comm::run_id::RunId;
use crate::error::{Error, error};
use crate::moved_type::TransferType;
use crate::rank::{GroupRank, Rank};
use crate::util::text::list_ranks;

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
    /// Rank 0 says which request is next.
    pub(crate) const REQUEST: Self = Self::new("request", PurposeKind::Part);
    pub(crate) const END_OF_REQUEST: Self = Self::new("end of a request", PurposeKind::Part);
    /// What a rank posts in place of the first collective of a run that it leaves out, or of the
    /// next call in a request. Its input is the reason, as text.
    pub(crate) const REFUSAL: Self = Self::new("refusal of a run", PurposeKind::Part);
}

/// The operation and the transport type share a byte. This many bits are the operation's.
const OPERATION_BITS: u32 = 4;

/// The reduction and the determinism share a byte. This many bits are the reduction's.
const REDUCTION_BITS: u32 = 7;

/// The first number of a byte, of so many bits, and the second one.
fn parts(byte: u8, bits: u32) -> [i32; 2] {
    [byte & ((1 << bits) - 1), byte >> bits].map(i32::from)
}

/// Two words of a [`Call`], and the run that it belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Signature(pub(crate) [u64; 3]);

impl Signature {
    /// `run` is the word of the run; 0 is none.
    #[inline]
    pub(crate) fn new(call: Call, run: u64) -> Self {
        let Call { purpose, collective, block_elements, determinism, wire_type, .. } = call;
        let reduce_op = collective.reduce_op().map_or(ReduceOperation::NONE_NUMBER, ReduceOperation::number);
        let reduce_op = reduce_op as u8 | (determinism.number() as u8) << REDUCTION_BITS;
        let root = collective.root().map_or(0, |root| root.0);
        let wire_type = wire_type.map_or(WireType::NONE_NUMBER, WireType::number);
        let operation = collective.operation().number() as u8 | (wire_type as u8) << OPERATION_BITS;
        let bytes = [purpose.number(), operation, reduce_op, call.transfer_type().number()];
        let first = u64::from(u32::from_le_bytes(bytes)) | u64::from(root) << 32;
        Signature([first, block_elements as u64, run])
    }

    /// The call; `None` for words that no rank of this version wrote.
    pub(crate) fn call(self) -> Option<Call> {
        let [first, block_elements, _] = self.0;
        let [purpose, operation, reduce_op, data_type] = (first as u32).to_le_bytes();
        let purpose = Purpose::from_number(purpose)?;
        let [operation, wire_type] = parts(operation, OPERATION_BITS);
        let [reduce_op, determinism] = parts(reduce_op, REDUCTION_BITS);
        let determinism = Determinism::from_number(determinism).ok()?;
        let wire_type = WireType::from_number(wire_type).ok()?;
        let operation = CollectiveOperation::from_number(operation).ok()?;
        let reduce_op = ReduceOperation::from_number(reduce_op).ok()?;
        let transfer_type = TransferType::from_number(data_type)?;
        let (data_type, only_moved) = (transfer_type.carrier(reduce_op), transfer_type.moved());
        let collective = Collective::from_parts(operation, reduce_op, Some(GroupRank((first >> 32) as u32)))?;
        let block_elements = usize::try_from(block_elements).ok()?;
        Some(Call { purpose, collective, data_type, block_elements, determinism, wire_type, only_moved })
    }

    /// The run; `None` for a call outside of runs.
    pub(crate) fn run(self) -> Option<RunId> {
        RunId::from_word(self.0[2])
    }

    /// Whether the rank leaves out a run, or the rest of a request.
    pub(crate) fn is_refusal(self) -> bool {
        self.0[0] as u8 == Purpose::REFUSAL.number()
    }

    /// Whether two ranks go on after these calls: if they are the same, or one rank leaves out what
    /// the other one does.
    #[inline]
    pub(crate) fn agrees_with(self, other: Self) -> bool {
        self == other || self.leaves_out(other) || other.leaves_out(self)
    }

    fn leaves_out(self, other: Self) -> bool {
        self.is_refusal() && self.run().zip(other.run()).is_some_and(|(refused, run)| refused.includes(run))
    }
}

/// The error of calls that differ, each with its rank, in the order of the ranks: `rank 0 calls …;
/// ranks 1 and 2 call …`. `number` is for [`place_of`].
pub(crate) fn difference(calls_of_ranks: impl Iterator<Item = (Rank, Signature)>, number: u64) -> Error {
    let mut calls: Vec<(Signature, Vec<u32>)> = Vec::new();
    for (Rank(rank), signature) in calls_of_ranks {
        match calls.iter_mut().find(|(other, _)| *other == signature) {
            Some((_, ranks)) => ranks.push(rank),
            None => calls.push((signature, vec![rank])),
        }
    }
    let known: Vec<Call> = calls.iter().filter_map(|(signature, _)| signature.call()).collect();
    let runs_differ = calls.iter().any(|(signature, _)| signature.run() != calls[0].0.run());
    let describe = |signature: Signature| {
        let call = match signature.call() {
            Some(call) => call.to_string(),
            None => format!("{:x?}", signature.0),
        };
        match signature.run() {
            Some(run) if runs_differ => format!("{call} in {run}"),
            None if runs_differ => format!("{call} outside of runs"),
            _ => call,
        }
    };
    let is_run = known.iter().any(|call| call.purpose.is_run());
    let is_counted = known.iter().any(|call| call.purpose.is_counted());
    let place = match is_run {
        true => "a run of a context".to_owned(),
        false => format!("{}{}", if is_counted { "" } else { "the call " }, place_of(is_counted, number)),
    };
    let sides: Vec<String> = calls
        .into_iter()
        .map(|(signature, ranks)| {
            let (verb, what) = match signature.run().filter(|_| signature.is_refusal()) {
                Some(run) => ("refuse", run.to_string()),
                None => (if is_run { "make" } else { "call" }, describe(signature)),
            };
            let ending = if ranks.len() == 1 { "s" } else { "" };
            format!("{} {verb}{ending} {what}", list_ranks(ranks))
        })
        .collect();
    error!(Disagreement, "ranks disagree on {place}: {}", sides.join("; "))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;
    use crate::comm::run_id::{CountedRun, RunCounter};
    use crate::data_type::DataType;
    use crate::moved_type::MovedType;

    #[test]
    fn words_keep_every_part() {
        for operation in CollectiveOperation::ALL {
            let data_types = DataType::ALL.into_iter().map(TransferType::Data);
            for transfer_type in data_types.chain(MovedType::all().map(TransferType::Moved)) {
                let collective =
                    Collective::from_parts(operation, Some(ReduceOperation::Bxor), Some(GroupRank(u32::MAX)))
                        .expect("complete");
                let (data_type, only_moved) = (transfer_type.carrier(collective.reduce_op()), transfer_type.moved());
                let wire_types = [None, Some(WireType::Float16), Some(WireType::Bfloat16)];
                let purposes = || (0..=u8::MAX).filter_map(Purpose::from_number);
                let options = Determinism::ALL.into_iter().flat_map(|mode| wire_types.map(|wire| (mode, wire)));
                for (purpose, (determinism, wire_type)) in
                    purposes().flat_map(|purpose| options.clone().map(move |option| (purpose, option)))
                {
                    let call = Call::of_blocks(collective, data_type, usize::MAX).for_purpose(purpose);
                    let call = Call { determinism, wire_type, only_moved, ..call };
                    let run = u64::MAX;
                    let signature = Signature::new(call, run);
                    assert_eq!((signature.call(), signature.run()), (Some(call), RunId::from_word(run)));
                }
            }
        }
        assert_eq!(Signature([u64::MAX; 3]).call(), None);
    }

    #[test]
    fn a_refusal_agrees_with_what_it_leaves_out_only() {
        let signature = |purpose, run| {
            let call = Call::of_blocks(Collective::AllGather, DataType::Uint8, 4).for_purpose(purpose);
            Signature::new(call, run)
        };
        let runs = RunCounter::new(NonZeroU16::MIN);
        let [first, second] = [CountedRun::new(&runs), CountedRun::new(&runs)];
        let (first, second, others) = (
            CountedRun::word(Some(&first), None),
            CountedRun::word(Some(&second), None),
            [CountedRun::word(None, None)],
        );
        // In a request every call may be left out.
        let in_request = |request| {
            [CountedRun::word(Some(&CountedRun::new(&runs)), Some(request)), CountedRun::word(None, Some(request))]
        };
        let words = [[first, second], in_request(2), in_request(3)].concat();
        let words: Vec<u64> = words.into_iter().chain(others).collect();
        for (refused, left_out) in [(second, vec![second]), (in_request(2)[1], in_request(2).to_vec())] {
            let refusal = signature(Purpose::REFUSAL, refused);
            for word in &words {
                let call = signature(Purpose::COLLECTIVE, *word);
                let agree = [call.agrees_with(refusal), refusal.agrees_with(call)];
                assert_eq!(agree, [left_out.contains(word); 2], "{refused:x} {word:x}");
            }
        }
    }
}

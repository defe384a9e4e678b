//! What each rank has called on a backend that compares nothing itself. A rank adds its calls to a
//! log in memory that its peers read, waits for none of them, and compares later.
//!
//! A record has a digest of all calls until then: if two ranks have the same digest, they have made
//! the same calls. So a comparison looks at the latest call of both only. After a difference it
//! looks for the first one. A rank whose peer is further ahead than the records compares the digest
//! of every [`INTERVAL`]th call.

use std::sync::Arc;

use super::report;
use super::segment::Segment;
use crate::comm::backend::CallLog;
use crate::comm::host::memory::{Shareable, Shared};
use crate::comm::signature::Signature;
use crate::error::{Error, Result, error};
use crate::rank::{GroupRank, Rank};
use crate::sync::{AtomicU64, Ordering, Published, fence};
use crate::util::text::list_ranks;

/// How many digests are kept longer than records.
const DIGESTS: u64 = if cfg!(loom) { 2 } else { 512 };

/// The digest of every so many calls is kept longer than the call's record.
const INTERVAL: u64 = if cfg!(loom) { 4 } else { 1024 };

/// How many records each of `members` ranks keeps.
fn record_count(members: usize) -> usize {
    const MOST_TOGETHER: usize = 1 << 17;
    if cfg!(loom) { 2 } else { 1 << (MOST_TOGETHER / members).clamp(64, 4096).ilog2() }
}

/// The bytes of one rank's log: whole pages.
pub(super) fn log_len(members: usize) -> usize {
    let records = record_count(members) * size_of::<Record>();
    (size_of::<LogHeader>() + records).next_multiple_of(rustix::param::page_size())
}

/// What a log begins with. The records follow.
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
pub(super) struct LogHeader {
    /// How many calls the rank has made.
    last: Published,
    /// The digest of call `c` is at `c / INTERVAL % DIGESTS`, if `INTERVAL` divides `c`.
    digests: [AtomicU64; DIGESTS as usize],
}

/// One call. Call `c` has the record at `c % record_count`.
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(64))]
pub(super) struct Record {
    /// The call's place in the log, from 1 on; 0 while the rank writes the record.
    sequence: AtomicU64,
    signature: [AtomicU64; 3],
    /// The call's number as errors count. It is not compared.
    number: AtomicU64,
    /// The digest of all calls up to this one.
    digest: AtomicU64,
}

// SAFETY: invariant 1: every field is an atomic, and zeros are a value of it.
unsafe impl Shareable for LogHeader {}
// SAFETY: as above.
unsafe impl Shareable for Record {}

/// One rank's log.
struct Log {
    header: Shared<LogHeader>,
    records: Shared<[Record]>,
}

/// A record as it was read.
#[derive(Clone, Copy)]
struct Logged {
    signature: Signature,
    number: u64,
    digest: u64,
}

/// The digest of a call after calls with another digest.
fn chain(digest: u64, signature: Signature) -> u64 {
    const FACTOR: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
    let mix = |digest: u64, word: u64| {
        let product = u128::from(digest ^ word).wrapping_mul(FACTOR);
        (product >> 64) as u64 ^ (product as u64).rotate_left(23)
    };
    signature.0.into_iter().fold(digest.wrapping_add(1), mix)
}

impl Log {
    fn record(&self, sequence: u64) -> &Record {
        &self.records[(sequence % self.records.len() as u64) as usize]
    }

    /// Adds a call. Only the log's own rank does so, one thread at a time.
    fn add(&self, signature: Signature, number: u64) {
        let last = self.header.last.load();
        let digest = chain(self.record(last).digest.load(Ordering::Relaxed), signature);
        let sequence = last + 1;
        let record = self.record(sequence);
        record.sequence.store(0, Ordering::Relaxed);
        // A rank that reads one of the words below, or the digest in the header, then also reads
        // the 0, and that the call before has been made.
        fence(Ordering::Release);
        record.signature.iter().zip(signature.0).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
        record.number.store(number, Ordering::Relaxed);
        record.digest.store(digest, Ordering::Relaxed);
        if sequence.is_multiple_of(INTERVAL) {
            self.kept_digest(sequence).store(digest, Ordering::Relaxed);
        }
        record.sequence.store(sequence, Ordering::Release);
        self.header.last.store(sequence);
    }

    /// A call's record, if it has been written and not replaced.
    fn read(&self, sequence: u64) -> Option<Logged> {
        let record = self.record(sequence);
        if record.sequence.load(Ordering::Acquire) != sequence {
            return None;
        }
        let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let signature = Signature(record.signature.each_ref().map(word));
        let logged = Logged { signature, number: word(&record.number), digest: word(&record.digest) };
        fence(Ordering::Acquire);
        (word(&record.sequence) == sequence).then_some(logged)
    }

    fn kept_digest(&self, sequence: u64) -> &AtomicU64 {
        &self.header.digests[(sequence / INTERVAL % DIGESTS) as usize]
    }

    /// The digest of a call that [`INTERVAL`] divides, if it is kept.
    fn read_digest(&self, sequence: u64) -> Option<u64> {
        let replacing = sequence + INTERVAL * DIGESTS;
        if self.header.last.load() < sequence {
            return None;
        }
        let digest = self.kept_digest(sequence).load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        (self.header.last.load() < replacing - 1).then_some(digest)
    }
}

/// The logs of all ranks, as one rank uses them.
pub(crate) struct CallLogs {
    segment: Arc<Segment>,
    rank: GroupRank,
    logs: Box<[Log]>,
    /// Up to which call this rank has found each peer's calls the same.
    compared: Box<[AtomicU64]>,
}

impl CallLogs {
    /// The logs of a segment's ranks. Allocates that of `rank`, this rank.
    pub(crate) fn new(segment: &Arc<Segment>, rank: GroupRank) -> Result<Self> {
        segment.allocate_log(rank)?;
        let count = record_count(segment.len());
        let log = |rank| {
            let (memory, offset) = segment.log_place(rank);
            Log {
                header: Shared::new(memory, offset),
                records: Shared::slice(memory, offset + size_of::<LogHeader>(), count),
            }
        };
        let logs = segment.ranks().map(log).collect();
        let compared = segment.ranks().map(|_| AtomicU64::new(0)).collect();
        Ok(CallLogs { segment: Arc::clone(segment), rank, logs, compared })
    }

    fn log(&self, rank: GroupRank) -> &Log {
        &self.logs[rank.index()]
    }

    /// Compares with a peer the calls from `known` on, of which both have made those up to `last`.
    /// Returns up to which they are the same.
    fn compare_with(&self, peer: GroupRank, known: u64, last: u64) -> Result<u64> {
        let logs = [self.log(self.rank), self.log(peer)];
        if let [Some(own), Some(other)] = logs.map(|log| log.read(last)) {
            return match own.digest == other.digest {
                true => Ok(last),
                false => Err(self.first_difference(peer, known, last)),
            };
        }
        // One rank is further ahead than its records.
        let latest = last / INTERVAL * INTERVAL;
        match logs.map(|log| log.read_digest(latest)) {
            [Some(own), Some(other)] if own != other => Err(self.interval(peer, known, latest)),
            [Some(_), Some(_)] => Ok(latest.max(known)),
            _ => Ok(known),
        }
    }

    /// The error of a difference between `known` and `last`.
    fn first_difference(&self, peer: GroupRank, known: u64, last: u64) -> Error {
        let logs = [self.log(self.rank), self.log(peer)];
        let oldest = last.saturating_sub(self.logs[0].records.len() as u64).max(known) + 1;
        let both = |sequence: u64| match logs.map(|log| log.read(sequence)) {
            [Some(own), Some(other)] => Some([own, other]),
            _ => None,
        };
        let differ = |sequence: &u64| both(*sequence).is_some_and(|[own, other]| own.digest != other.digest);
        let Some(first) = (oldest..=last).find(differ) else { return self.interval(peer, known, last) };
        // If the call before is not known to be the same, the difference may be earlier.
        let is_first = first == known + 1 || both(first - 1).is_some_and(|[own, other]| own.digest == other.digest);
        match both(first).filter(|_| is_first) {
            Some([own, _]) => {
                let calls = self.segment.ranks().filter_map(|rank| {
                    let logged = self.log(rank).read(first)?;
                    Some((self.segment.member(rank), logged.signature))
                });
                report::difference(calls, own.number)
            }
            None => self.interval(peer, known, first),
        }
    }

    /// The error of a difference between `known` and `last`, of which there are no records.
    fn interval(&self, peer: GroupRank, mut known: u64, mut last: u64) -> Error {
        let logs = [self.log(self.rank), self.log(peer)];
        for call in (known / INTERVAL + 1..=last / INTERVAL).map(|number| number * INTERVAL) {
            match logs.map(|log| log.read_digest(call)) {
                [Some(own), Some(other)] if own == other => known = call,
                [Some(_), Some(_)] => {
                    last = call;
                    break;
                }
                _ => {}
            }
        }
        let ranks = list_ranks([self.rank.min(peer), self.rank.max(peer)].map(|rank| self.segment.member(rank).0));
        error!(
            Disagreement,
            "{ranks} disagree on one of calls {} to {last} of this communicator, and are now too far apart to say on which",
            known + 1
        )
    }
}

impl CallLog for CallLogs {
    fn add(&self, signature: Signature, number: u64) {
        self.log(self.rank).add(signature, number);
    }

    fn compare(&self) -> Result<Option<Rank>> {
        let own = self.log(self.rank).header.last.load();
        let mut behind = None;
        for (peer, compared) in self.segment.ranks().zip(&self.compared).filter(|(peer, _)| *peer != self.rank) {
            let mut known = compared.load(Ordering::Relaxed);
            let last = own.min(self.log(peer).header.last.load());
            if known < last {
                known = self.compare_with(peer, known, last)?;
                compared.fetch_max(known, Ordering::Relaxed);
            }
            if known < own {
                behind = behind.or(Some(self.segment.member(peer)));
            }
        }
        Ok(behind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::{Call, Collective, ReduceOperation};
    use crate::data_type::DataType;
    use crate::error::ErrorKind;

    fn logs(n: u32) -> Vec<CallLogs> {
        let segment = Arc::new(Segment::in_process(n).expect("memory"));
        segment.ranks().map(|rank| CallLogs::new(&segment, rank).expect("a log")).collect()
    }

    fn sum_of(block_elements: usize) -> Signature {
        let collective = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
        Signature::new(Call::of_blocks(collective, DataType::Float32, block_elements), 0)
    }

    /// A rank that reads a record while another one replaces it reads the whole of one call, or
    /// nothing.
    #[cfg(loom)]
    #[test]
    fn a_model_of_a_record_that_is_replaced() {
        use crate::comm::host::protocol::model::explore;

        explore(3, || {
            let ranks = logs(2);
            ranks[1].add(sum_of(1), 1);
            let ranks = loom::sync::Arc::new(ranks);
            let of_writer = loom::sync::Arc::clone(&ranks);
            let writer = loom::thread::spawn(move || {
                for call in 2..=4 {
                    of_writer[1].add(sum_of(call as usize), call);
                }
            });
            let log = ranks[0].log(GroupRank(1));
            for sequence in [1, 2] {
                if let Some(logged) = log.read(sequence) {
                    assert_eq!((logged.signature, logged.number), (sum_of(sequence as usize), sequence));
                }
            }
            writer.join().expect("no panic");
        });
    }

    #[cfg(not(loom))]
    mod without_model {
        use super::*;

        #[test]
        fn equal_calls_are_equal_and_others_are_named() {
            let ranks = logs(3);
            for call in 0..10_000 {
                for rank in &ranks {
                    rank.add(sum_of(call), call as u64 + 1);
                    rank.compare().expect("the same");
                }
            }
            assert_eq!(ranks[2].compare().expect("the same"), None);
            for rank in [&ranks[0], &ranks[1]] {
                rank.add(sum_of(7), 10_001);
            }
            assert_eq!(ranks[0].compare().expect("rank 2 has not come"), Some(Rank(2)));
            ranks[2].add(sum_of(8), 10_001);
            ranks[2].add(sum_of(9), 10_002);
            for rank in &ranks {
                let error = rank.compare().expect_err("rank 2 differs");
                assert_eq!(error.kind(), ErrorKind::Disagreement);
                let text = "ranks disagree on collective 10001: ranks 0 and 1 call all_reduce(sum) of 7 float32; rank 2 \
                            calls all_reduce(sum) of 8 float32";
                assert_eq!(error.to_string(), text);
            }
        }

        /// The first difference is found, not the latest, and not one that follows from it.
        #[test]
        fn the_first_difference_is_named() {
            let ranks = logs(2);
            for call in 1..=3000u64 {
                ranks[0].add(sum_of(call as usize), call);
                // Rank 1 leaves out call 2000.
                if call != 2000 {
                    ranks[1].add(sum_of(call as usize), call - u64::from(call > 2000));
                }
            }
            let error = ranks[1].compare().expect_err("rank 1 leaves out a call");
            let text = "ranks disagree on collective 2000: rank 0 calls all_reduce(sum) of 2000 float32; rank 1 calls \
                        all_reduce(sum) of 2001 float32";
            assert_eq!(error.to_string(), text);
        }

        /// A rank that is ahead of another by more than the records is compared all the same.
        #[test]
        fn ranks_that_are_far_apart_are_compared_by_digests() {
            let most = record_count(2) as u64;
            for (odd, last, text) in [
                (None, most + 5000, None),
                (Some(1500), 3000, Some("ranks 0 and 1 disagree on one of calls 1025 to 2048 of")),
                (Some(3000), 3000, None),
            ] {
                let ranks = logs(2);
                for call in 1..=2 * most + 5000 {
                    ranks[0].add(sum_of(call as usize), call);
                }
                for call in 1..=last {
                    ranks[1].add(sum_of(if Some(call) == odd { 0 } else { call as usize }), call);
                }
                match (ranks[1].compare(), text) {
                    (Ok(behind), None) => assert_eq!(behind, Some(Rank(0)), "the latest calls are not compared yet"),
                    (Err(error), Some(text)) => assert!(error.to_string().starts_with(text), "{error}"),
                    (result, _) => panic!("{result:?}, expected {text:?}"),
                }
            }
        }

        /// Ranks that add and compare at the same time, at different speeds, find no difference.
        #[test]
        fn ranks_that_agree_are_never_said_to_differ() {
            let ranks = logs(3);
            std::thread::scope(|scope| {
                for (speed, rank) in [1, 7, 400].into_iter().zip(&ranks) {
                    scope.spawn(move || {
                        for call in 1..=300_000u64 {
                            rank.add(sum_of(call as usize % 11), call);
                            if call % speed == 0 {
                                rank.compare().expect("the same calls");
                            }
                        }
                    });
                }
            });
            ranks.iter().for_each(|rank| assert_eq!(rank.compare().expect("the same"), None));
        }
    }
}

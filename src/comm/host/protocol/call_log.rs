//! A log of calls in memory that ranks share. A rank adds its calls, waits for no peer, and
//! compares later.
//!
//! A record has a digest of all calls until then: if two ranks have the same digest, they have made
//! the same calls. So a comparison looks at the latest call of both only. After a difference it
//! looks for the first one. A rank whose peer is further ahead than the records compares the digest
//! of every [`INTERVAL`]th call.

use std::sync::Arc;

use crate::comm::host::memory::{Shareable, Shared, SharedMemory};
use crate::comm::signature::Signature;
use crate::sync::{AtomicU64, Ordering, Published, fence};

/// The digest of every so many calls is kept longer than the call's record.
const INTERVAL: u64 = if cfg!(loom) { 2 } else { 1024 };

/// How many digests are kept longer than records.
pub(super) const CALL_DIGESTS: usize = if cfg!(loom) { 8 } else { 512 };

/// How many records a log of messages has.
pub(super) const MESSAGES: usize = if cfg!(loom) { 2 } else { 64 };

/// Among more ranks, messages have no logs: there is one for each pair.
const MOST_WITH_MESSAGES: usize = 64;

/// How many records the log of calls of each of `members` ranks has.
pub(super) fn call_count(members: usize) -> usize {
    const MOST_TOGETHER: usize = 1 << 17;
    if cfg!(loom) { 2 } else { 1 << (MOST_TOGETHER / members).clamp(64, 4096).ilog2() }
}

/// How many logs of messages each of `members` ranks has: to each rank, and from each.
pub(super) fn message_logs(members: usize) -> usize {
    if members <= MOST_WITH_MESSAGES { 2 * members } else { 0 }
}

/// The bytes of one rank's logs: whole pages.
pub(super) fn logs_len(members: usize) -> usize {
    let byte_len =
        Log::byte_len(CALL_DIGESTS, call_count(members)) + message_logs(members) * Log::byte_len(0, MESSAGES);
    byte_len.next_multiple_of(rustix::param::page_size())
}

/// How many calls a log has, on a cache line of its own.
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(64))]
struct Last(Published);

/// Digests that are kept longer than records.
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(64))]
struct Digests([AtomicU64; 8]);

/// One call. Call `c` has the record at `c`, modulo the number of records.
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(64))]
struct Record {
    /// The call's place in the log, from 1 on; 0 while the rank writes the record.
    sequence: AtomicU64,
    signature: [AtomicU64; 3],
    /// The call's number as errors count. It is not compared.
    number: AtomicU64,
    /// The digest of all calls up to this one.
    digest: AtomicU64,
}

// SAFETY: invariant 1: every field is an atomic, and zeros are a value of it.
unsafe impl Shareable for Last {}
// SAFETY: as above.
unsafe impl Shareable for Digests {}
// SAFETY: as above.
unsafe impl Shareable for Record {}

/// A record as it was read.
#[derive(Clone, Copy)]
pub(super) struct Logged {
    pub(super) signature: Signature,
    pub(super) number: u64,
    digest: u64,
}

impl Logged {
    pub(super) const WORDS: usize = 5;

    pub(super) fn to_words(self) -> [u64; Self::WORDS] {
        let Signature([first, second, third]) = self.signature;
        [first, second, third, self.number, self.digest]
    }

    pub(super) fn of_words([first, second, third, number, digest]: [u64; Self::WORDS]) -> Self {
        Logged { signature: Signature([first, second, third]), number, digest }
    }
}

/// The digest of a call after calls with another digest.
pub(super) fn chain(digest: u64, signature: Signature) -> u64 {
    const FACTOR: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
    let mix = |digest: u64, word: u64| {
        let product = u128::from(digest ^ word).wrapping_mul(FACTOR);
        (product >> 64) as u64 ^ (product as u64).rotate_left(23)
    };
    signature.0.into_iter().fold(digest.wrapping_add(1), mix)
}

/// One log (invariant 27).
pub(super) struct Log {
    last: Shared<Last>,
    /// The digest of call `c` is at `c / INTERVAL`, modulo their number, if `INTERVAL` divides `c`.
    digests: Option<Shared<[Digests]>>,
    records: Shared<[Record]>,
}

impl Log {
    pub(super) fn byte_len(digests: usize, records: usize) -> usize {
        size_of::<Last>() + digests * size_of::<u64>() + records * size_of::<Record>()
    }

    /// The log at an offset of memory.
    pub(super) fn new(memory: &Arc<SharedMemory>, offset: usize, digests: usize, records: usize) -> Self {
        let digests_at = offset + size_of::<Last>();
        Log {
            last: Shared::new(memory, offset),
            digests: (digests > 0).then(|| Shared::slice(memory, digests_at, digests / 8)),
            records: Shared::slice(memory, digests_at + digests * size_of::<u64>(), records),
        }
    }

    pub(super) fn last(&self) -> u64 {
        self.last.0.load()
    }

    /// How many records it has.
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    fn record(&self, sequence: u64) -> &Record {
        &self.records[(sequence % self.len() as u64) as usize]
    }

    pub(super) fn add(&self, signature: Signature, number: u64) {
        let last = self.last();
        let digest = chain(self.record(last).digest.load(Ordering::Relaxed), signature);
        self.put(last + 1, Logged { signature, number, digest });
    }

    /// Adds a call that another log has at this place.
    pub(super) fn put(&self, sequence: u64, Logged { signature, number, digest }: Logged) {
        let record = self.record(sequence);
        record.sequence.store(0, Ordering::Relaxed);
        // A rank that reads one of the words below then also reads the 0, and that the call before
        // has been made.
        fence(Ordering::Release);
        record.signature.iter().zip(signature.0).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
        record.number.store(number, Ordering::Relaxed);
        record.digest.store(digest, Ordering::Relaxed);
        if sequence.is_multiple_of(INTERVAL)
            && let Some(kept) = self.kept_digest(sequence)
        {
            kept.store(digest, Ordering::Relaxed);
        }
        record.sequence.store(sequence, Ordering::Release);
        self.last.0.store(sequence);
    }

    /// A call's record, if it has been written and not replaced.
    pub(super) fn read(&self, sequence: u64) -> Option<Logged> {
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

    fn kept_digest(&self, sequence: u64) -> Option<&AtomicU64> {
        let digests = self.digests.as_ref()?;
        let place = (sequence / INTERVAL) as usize % (8 * digests.len());
        Some(&digests[place / 8].0[place % 8])
    }

    /// The digest of a call that [`INTERVAL`] divides, if it is kept.
    pub(super) fn read_digest(&self, sequence: u64) -> Option<u64> {
        let replaced_by = sequence + INTERVAL * CALL_DIGESTS as u64;
        let kept = self.kept_digest(sequence).filter(|_| self.last() >= sequence)?;
        let digest = kept.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        (self.last() < replaced_by - 1).then_some(digest)
    }
}

/// Where two logs differ.
pub(super) enum Difference {
    /// At this call first.
    At(u64),
    /// At one of the calls from the first to the second.
    Between(u64, u64),
}

/// Compares the calls after `known` of two logs, of which both have those up to `last`. Returns up
/// to which they are the same.
fn compare(logs: [&Log; 2], known: u64, last: u64) -> Result<u64, Difference> {
    if let [Some(one), Some(other)] = logs.map(|log| log.read(last)) {
        return if one.digest == other.digest { Ok(last) } else { Err(first_difference(logs, known, last)) };
    }
    // One rank is further ahead than its records.
    let latest = last / INTERVAL * INTERVAL;
    match logs.map(|log| log.read_digest(latest)) {
        [Some(one), Some(other)] if one != other => Err(interval(logs, known, latest)),
        [Some(_), Some(_)] => Ok(latest.max(known)),
        _ => Ok(known),
    }
}

/// The first of the calls after `known` up to `last` that differs: that one does, or one before it.
fn first_difference(logs: [&Log; 2], known: u64, last: u64) -> Difference {
    let oldest = last.saturating_sub(logs[0].len() as u64).max(known) + 1;
    let is_same = |sequence: u64| match logs.map(|log| log.read(sequence)) {
        [Some(one), Some(other)] => Some(one.digest == other.digest),
        _ => None,
    };
    match (oldest..=last).find(|sequence| is_same(*sequence) == Some(false)) {
        // If the call before is not known to be the same, the difference may be earlier.
        Some(first) if first == known + 1 || is_same(first - 1) == Some(true) => Difference::At(first),
        first => interval(logs, known, first.unwrap_or(last)),
    }
}

/// A difference of which there are no records.
fn interval(logs: [&Log; 2], mut known: u64, mut last: u64) -> Difference {
    for call in (known / INTERVAL + 1..=last / INTERVAL).map(|number| number * INTERVAL) {
        match logs.map(|log| log.read_digest(call)) {
            [Some(one), Some(other)] if one == other => known = call,
            [Some(_), Some(_)] => last = last.min(call),
            _ => {}
        }
    }
    Difference::Between(known + 1, last)
}

/// Compares two logs from where they are known to be the same.
pub(super) fn advance(logs: [&Log; 2], compared: &AtomicU64) -> Result<(), Difference> {
    let (own, known) = (logs[0].last(), compared.load(Ordering::Relaxed));
    if known < own {
        let last = own.min(logs[1].last());
        if known < last {
            compared.fetch_max(compare(logs, known, last)?, Ordering::Relaxed);
        }
    }
    Ok(())
}

//! How far a rank has come in its communicator, and up to which collective it knows that its peers
//! have made the same calls.

use std::sync::Mutex;

use super::report;
use super::segment::Segment;
use super::slot::{CallHeader, HEADER_RING_LEN};
use super::stage_stores::StageStores;
use crate::collective::{Call, Purpose};
use crate::comm::backend::Request;
use crate::comm::run_id::{CountedRun, RunId};
use crate::comm::signature::Signature;
use crate::comm::transfer_path::TransferPath;
use crate::error::{Error, Result};
use crate::rank::GroupRank;
use crate::sync::AtomicU32;

/// The rank lock: it is held during a call, so that the rank makes one call at a time (invariant
/// 2). On cache lines of its own, because each call writes some of it.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct RankLock {
    pub(in crate::comm::host) progress: Mutex<CallProgress>,
    /// 1 when this rank has begun a message since it began the latest request.
    pub(in crate::comm::host) has_messages: AtomicU32,
}

/// How far this rank has come in its communicator.
#[derive(Default)]
pub(crate) struct CallProgress {
    /// The number of its latest collective; the first one is 1.
    pub(crate) sequence: u64,
    /// The signatures of its latest collectives, each at the place of its header. This rank
    /// compares with these, because its headers may be in its peers' caches.
    signatures: [Signature; HEADER_RING_LEN as usize],
    /// How many of its collectives errors count; see `Purpose::is_counted`.
    counted: u64,
    /// Whether errors count the latest one. Its signature has no place before there is room for
    /// its header.
    is_latest_counted: bool,
    /// The latest one of which a refusal was found.
    pub(in crate::comm::host) refused: u64,
    /// The [word](CountedRun::word) of the run of the latest one.
    run: u64,
    /// That of the latest run that this rank has begun or refused here.
    latest_run: u64,
    pub(in crate::comm::host) request: RequestProgress,
    /// How many requests this rank has begun.
    requests: u64,
    /// The number of its latest round (invariant 7).
    pub(in crate::comm::host) round: u64,
    /// This rank may write stages up to this round (invariant 8).
    pub(super) stage_room: u64,
    /// The collectives up to this one have been found equal on every rank.
    pub(super) agreed: u64,
    /// The collectives up to this one have been published as done (invariant 4).
    pub(super) done: u64,
    /// Every rank has finished the collectives up to this one, so that this rank may replace their
    /// headers (invariant 4).
    pub(super) replaceable: u64,
    /// The latest collective that gave elements in this rank's eager memory.
    pub(super) eager: u64,
    /// How the rank copies into its stages.
    pub(in crate::comm::host) stage_stores: StageStores,
    /// Whether the rank has allocated its eager memory, and its staging memory.
    pub(in crate::comm::host) has_eager: bool,
    pub(in crate::comm::host) has_staging: bool,
    /// How elements moved in the latest collective that moved any.
    pub(crate) path: Option<TransferPath>,
}

/// The request in which this rank is.
#[derive(Default)]
pub(in crate::comm::host) enum RequestProgress {
    #[default]
    None,
    /// The request with this number.
    Open(u64),
    /// A rank has left the request, with this error, and this rank has not ended it.
    Left(Error),
}

impl CallProgress {
    /// Counts the next collective. Returns whether another rank may leave it out: it is the first
    /// one of its run here, or in a request.
    pub(super) fn begin(&mut self, request: &Request<'_>) -> bool {
        if request.call.purpose == Purpose::REQUEST {
            self.requests += 1;
            self.request = RequestProgress::Open(self.requests);
        }
        let number = self.request_number();
        self.sequence += 1;
        self.run = CountedRun::word(request.run, number);
        self.is_latest_counted = request.call.purpose.is_counted();
        self.counted += u64::from(self.is_latest_counted);
        let begins_run = request.run.is_some() && self.run != self.latest_run;
        if begins_run {
            self.latest_run = self.run;
        }
        begins_run || number.is_some()
    }

    /// Takes the latest collective out of what errors count: a rank has left it out, with a call of
    /// this signature.
    pub(in crate::comm::host) fn leave_out(&mut self, refusal: Signature) {
        self.counted -= u64::from(std::mem::take(&mut self.is_latest_counted));
        self.signatures[(self.sequence % HEADER_RING_LEN) as usize] = refusal;
    }

    /// The number of the request that is open.
    pub(in crate::comm::host) fn request_number(&self) -> Option<u64> {
        if let RequestProgress::Open(number) = self.request { Some(number) } else { None }
    }

    /// Whether this rank's latest run here is this one, which it has begun or refused.
    pub(in crate::comm::host) fn has_begun(&self, run: RunId) -> bool {
        RunId::from_word(self.latest_run) == Some(run)
    }

    /// Sets the signature of the latest collective. There is room for its header.
    #[inline]
    pub(super) fn set_signature(&mut self, call: Call) {
        self.signatures[(self.sequence % HEADER_RING_LEN) as usize] = Signature::new(call, self.run);
    }

    /// The signature of one of this rank's latest collectives.
    pub(super) fn signature(&self, sequence: u64) -> Signature {
        self.signatures[(sequence % HEADER_RING_LEN) as usize]
    }

    /// The number of one of this rank's latest collectives as errors count, for `place_of`.
    pub(super) fn number_of(&self, sequence: u64) -> u64 {
        let is_counted = |sequence: &u64| match *sequence == self.sequence {
            true => self.is_latest_counted,
            false => self.signature(*sequence).call().is_some_and(|call| call.purpose.is_counted()),
        };
        self.counted + 1 - (sequence..=self.sequence).filter(is_counted).count() as u64
    }

    /// Whether this rank's collectives have all been found equal on every rank.
    pub(crate) fn is_agreed(&self) -> bool {
        self.agreed == self.sequence
    }

    /// Compares all headers of the collectives up to `last` that are there (invariant 5).
    #[inline]
    pub(crate) fn compare_until(&mut self, segment: &Segment, rank: GroupRank, last: u64) -> Result<()> {
        if self.agreed < last { self.compare_new(segment, rank, last) } else { Ok(()) }
    }

    fn compare_new(&mut self, segment: &Segment, rank: GroupRank, last: u64) -> Result<()> {
        let first = self.agreed + 1;
        let (mut agreed, mut difference) = (last, u64::MAX);
        for peer in segment.ranks().filter(|peer| *peer != rank) {
            for sequence in first..=last {
                let own = self.signature(sequence);
                match segment.slot(peer).call_header(sequence).map(CallHeader::signature) {
                    Some(signature) if signature == own => continue,
                    Some(signature) if signature.agrees_with(own) => {
                        self.refused = self.refused.max(sequence);
                        continue;
                    }
                    Some(_) => difference = difference.min(sequence),
                    // It has posted no later one either.
                    None => agreed = agreed.min(sequence - 1),
                }
                break;
            }
        }
        if difference <= last {
            return Err(report::disagreement(segment, difference, self.number_of(difference)));
        }
        self.agreed = agreed;
        Ok(())
    }
}

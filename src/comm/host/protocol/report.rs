//! The texts of errors and warnings about a call: which ranks are missing, what they had to do, and
//! what they called instead.

use super::segment::{Milestone, Segment};
use super::slot::CallHeader;
use super::waiter::WaitError;
use crate::comm::backend::Request;
use crate::comm::signature::{difference, place_of};
use crate::error::{Error, error};
use crate::rank::GroupRank;
use crate::util::text::list_ranks;
use crate::util::wait::Stopped;

/// One call of one rank, as its errors and warnings describe it.
#[derive(Clone, Copy)]
pub(crate) struct Report<'a> {
    pub(crate) segment: &'a Segment,
    pub(crate) rank: GroupRank,
    pub(crate) request: &'a Request<'a>,
    /// The number of the collective.
    pub(crate) sequence: u64,
    /// Its number as errors count; see [`place_of`].
    pub(crate) number: u64,
}

/// The error of a collective whose headers differ. `number` is for [`place_of`].
pub(crate) fn disagreement(segment: &Segment, sequence: u64, number: u64) -> Error {
    let call_of = |peer| {
        let header = segment.slot(peer).call_header(sequence)?;
        Some((segment.name(peer), header.signature()))
    };
    difference(segment.ranks().filter_map(call_of), number)
}

impl Report<'_> {
    /// `all_reduce(sum) of 4 float32 (collective 3)`.
    fn call(&self) -> String {
        let call = &self.request.call;
        if call.purpose.is_run() {
            return call.to_string();
        }
        format!("{call} ({})", place_of(call.purpose.is_counted(), self.number))
    }

    /// Says what an error of this rank is about.
    fn about(&self, error: Error) -> Error {
        match self.request.explain {
            Some(explain) => explain(error),
            None => Error::new(error.kind(), format!("{}: {error}", self.call())),
        }
    }

    /// Whether a peer has posted another call than this rank.
    fn differs(&self, peer: GroupRank) -> bool {
        let signature = |rank| self.segment.slot(rank).call_header(self.sequence).map(CallHeader::signature);
        signature(peer).is_some_and(|peers| signature(self.rank).is_some_and(|own| !own.agrees_with(peers)))
    }

    fn has_arrived(&self, peer: GroupRank, sequence: u64) -> bool {
        self.segment.has_reached(peer, Milestone::Posted(sequence))
    }

    /// The ranks that have not come so far. If some have not arrived at the collective, only those:
    /// the others wait for them.
    fn missing(&self, milestone: Milestone) -> impl Iterator<Item = GroupRank> {
        let segment = self.segment;
        let sequence = if let Milestone::Done(sequence) = milestone { sequence } else { self.sequence };
        let have_arrived = segment.ranks().all(|peer| self.has_arrived(peer, sequence));
        let milestone = if have_arrived { milestone } else { Milestone::Posted(sequence) };
        let own = self.rank;
        segment.ranks().filter(move |peer| {
            // This rank's own `done` follows from its peers' headers.
            let is_own_done = matches!(milestone, Milestone::Done(_)) && *peer == own;
            !is_own_done && !segment.has_reached(*peer, milestone)
        })
    }

    fn list(&self, peers: impl Iterator<Item = GroupRank>) -> String {
        list_ranks(peers.map(|peer| self.segment.name(peer).0))
    }

    /// Whether all ranks have arrived, so that some are still moving elements.
    fn are_moving(&self, milestone: Milestone) -> bool {
        let mut ranks = self.segment.ranks();
        matches!(milestone, Milestone::Round(_) | Milestone::Taken(_))
            && ranks.all(|peer| self.has_arrived(peer, self.sequence))
    }

    /// The error of a wait for `milestone`.
    pub(crate) fn error(&self, error: WaitError, milestone: Milestone) -> Error {
        let segment = self.segment;
        match error {
            WaitError::Aborted(reason) => reason,
            // A rank may be missing because ranks made different calls.
            _ if segment.ranks().any(|peer| self.differs(peer)) => {
                disagreement(self.segment, self.sequence, self.number)
            }
            WaitError::Stopped(Stopped::Late) => {
                let late = self.list(self.missing(milestone));
                let problem = match self.are_moving(milestone) {
                    true => "arrived, but did not finish moving the elements",
                    false => "did not arrive",
                };
                self.about(error!(DeadlineExceeded, "{late} {problem} before the deadline"))
            }
            WaitError::Stopped(Stopped::Interrupted(interrupted)) => {
                let missing = self.list(self.missing(milestone));
                self.about(error!(Interrupted, "{interrupted} while it waited for {missing}"))
            }
            WaitError::PeerLost => {
                // A rank that has come and left meanwhile is not lost.
                let gone: Vec<_> = segment.ranks().filter(|peer| segment.is_gone(*peer)).collect();
                let gone: Vec<_> = self.missing(milestone).filter(|peer| gone.contains(peer)).collect();
                let how = segment.how_gone(&gone);
                let lost = error!(PeerLost, "{} {how} while this rank waited", self.list(gone.into_iter()));
                // A rank that fails meanwhile aborts before it leaves. Its reason does not name it.
                segment.domain.check().err().unwrap_or_else(|| self.about(lost))
            }
        }
    }

    /// The error of a rank that is stopped while it moves elements.
    pub(crate) fn stopped(&self, stopped: Stopped, moved: usize) -> Error {
        let late = "this rank did not finish moving the elements before the deadline; it had moved";
        self.about(stopped.error("while it moved the elements", format_args!("{late} {} MiB", moved >> 20)))
    }

    /// The warning about a wait that has lasted `seconds`.
    pub(crate) fn slow(&self, seconds: u64, milestone: Milestone) -> String {
        let segment = self.segment;
        let missing: Vec<GroupRank> = self.missing(milestone).collect();
        let problem = match self.are_moving(milestone) {
            true => "still moving elements",
            false => "not there",
        };
        let verb = if missing.len() == 1 { "is" } else { "are" };
        let own = segment.name(self.rank);
        let hint = missing.iter().find_map(|peer| self.segment.domain.callers.hint_about(segment.member(*peer)));
        let label = self.request.label.map_or_else(String::new, |label| format!("{label}: "));
        format!(
            "rank {own}: {label}{} has waited for {seconds} s: {} {verb} {problem}{}",
            self.call(),
            self.list(missing.into_iter()),
            hint.map_or_else(String::new, |hint| format!("; {hint}"))
        )
    }
}

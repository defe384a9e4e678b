//! The call logs of ranks on several machines. The ranks of a machine compare theirs in memory that
//! they share. The first rank of each other machine sends its log to the first machine's first rank
//! every so often, which compares it with its own.

use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::job::Handle;
use super::link::{Bytes, MessageKind, Tag};
use crate::comm::backend::{CallLog, ExportedLog};
use crate::comm::message::{Direction, MessageRequest};
use crate::comm::rank_lock::try_enter;
use crate::comm::signature::Signature;
use crate::error::Result;
use crate::rank::{GroupRank, Rank};

/// How often a rank does its part at most: waits ask it often.
const INTERVAL: Duration = Duration::from_millis(50);

/// The most calls that are sent at once.
const MOST_SENT: usize = 1000;

/// This rank's part in comparing the logs of machines.
pub(super) enum Duty {
    /// It compares its log with those of these ranks.
    Compare(Vec<Rank>),
    /// It sends its log to that rank.
    SendTo(Rank),
    /// Another rank of its machine does it.
    None,
}

pub(super) struct MachineLogs {
    /// Those of this machine's ranks.
    logs: Box<dyn ExportedLog>,
    ranks: Box<[GroupRank]>,
    duty: Duty,
    job: Handle,
    tag: Tag,
    latest: Mutex<Latest>,
}

/// When this rank has done its part, and up to which call it has sent its log.
struct Latest {
    time: Instant,
    sent: u64,
}

impl MachineLogs {
    pub(super) fn new(
        (logs, ranks): (Box<dyn ExportedLog>, &[GroupRank]),
        duty: Duty,
        job: Handle,
        communicator: u32,
    ) -> Self {
        let tag = Tag { communicator, kind: MessageKind::Calls, number: 0 };
        let latest = Mutex::new(Latest { time: Instant::now(), sent: 0 });
        MachineLogs { logs, ranks: ranks.into(), duty, job, tag, latest }
    }

    fn exchange(&self) -> Result<()> {
        if matches!(self.duty, Duty::None) {
            return Ok(());
        }
        // If not, another thread of this rank is here.
        let Some(mut latest) = try_enter(&self.latest) else { return Ok(()) };
        if latest.time.elapsed() < INTERVAL {
            return Ok(());
        }
        latest.time = Instant::now();
        match &self.duty {
            Duty::Compare(others) => {
                for other in others {
                    // This rank may have come to calls that it has had from the other one before.
                    let mut next = Some(Bytes::default());
                    while let Some(calls) = next {
                        self.logs.compare_with(*other, &calls)?;
                        next = self.job.inbox().take(*other, self.tag);
                    }
                }
            }
            Duty::SendTo(first) if self.logs.last() > latest.sent => {
                let (last, calls) = self.logs.export(latest.sent, MOST_SENT);
                latest.sent = last;
                // If the rank cannot be reached, nothing is compared any more.
                let _unreachable = self.job.send(*first, self.tag, Bytes::copy_of(&calls));
            }
            Duty::SendTo(_) | Duty::None => {}
        }
        Ok(())
    }
}

impl CallLog for MachineLogs {
    fn add(&self, signature: Signature, number: u64) {
        self.logs.add(signature, number);
    }

    /// A message to or from another machine has no log.
    fn add_message(&self, message: &MessageRequest) {
        // Its number among the ranks of this machine.
        let local = |peer: GroupRank| self.ranks.binary_search(&peer).ok().map(|index| GroupRank(index as u32));
        let direction = match message.direction {
            Direction::Send(to) => local(to).map(Direction::Send),
            Direction::Receive(from) => from.and_then(local).map(|from| Direction::Receive(Some(from))),
        };
        if let Some(direction) = direction {
            self.logs.add_message(&MessageRequest { direction, ..*message });
        }
    }

    fn compare(&self) -> Result<()> {
        self.exchange()?;
        self.logs.compare()
    }

    fn wait_for_peers(&self, what: &dyn fmt::Display, deadline: Instant) -> Result<()> {
        self.logs.wait_for_peers(what, deadline)
    }
}

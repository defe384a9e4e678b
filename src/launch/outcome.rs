//! How a job has ended.

use std::collections::BTreeSet;
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use crate::rank::Rank;
use crate::util::text::list_ranks;

/// How a [`Job`](super::Job) has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// All ranks exited with code 0.
    Success,
    /// A rank exited with another code, or a signal ended it. It was the first.
    Failed {
        /// The rank.
        rank: Rank,
        /// How it ended.
        status: ExitStatus,
    },
    /// A rank exited with code 0, and others waited for it to initialize their environment.
    Missed {
        /// The rank that exited.
        rank: Rank,
        /// The ranks that waited for it.
        waiting: BTreeSet<Rank>,
    },
    /// [`JobControl::end`](super::JobControl::end) was called.
    Ended {
        /// The signal of the first call.
        signal: i32,
    },
}

impl Outcome {
    /// Whether all ranks exited with code 0.
    pub fn is_success(&self) -> bool {
        matches!(self, Outcome::Success)
    }

    /// The exit code that a shell would have: 0, the failed rank's, 128 plus a signal's number, or
    /// 1 for [`Missed`](Self::Missed).
    pub fn exit_code(&self) -> u8 {
        let code = match self {
            Outcome::Success => 0,
            Outcome::Failed { status, .. } => status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
            Outcome::Missed { .. } => 1,
            Outcome::Ended { signal } => signal.saturating_add(128),
        };
        u8::try_from(code).unwrap_or(1)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Success => f.write_str("all ranks exited with code 0"),
            Outcome::Failed { rank, status } => match (status.code(), status.signal()) {
                (Some(code), _) => write!(f, "rank {rank} exited with code {code}"),
                (None, signal) => write!(f, "rank {rank} was ended by signal {}", signal.unwrap_or(0)),
            },
            Outcome::Missed { rank, waiting } => {
                let verb = if waiting.len() == 1 { "waits" } else { "wait" };
                write!(
                    f,
                    "rank {rank} exited with code 0 and never met the others, and {} {verb} for it to initialize the \
                     environment",
                    list_ranks(waiting.iter().map(|rank| rank.0))
                )
            }
            Outcome::Ended { signal } => write!(f, "interrupted by signal {signal}"),
        }
    }
}

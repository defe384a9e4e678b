//! How a job has ended.

use std::collections::BTreeSet;
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use distcollective::Rank;

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
                (None, signal) => write!(f, "rank {rank} was ended by signal {}", named(signal.unwrap_or(0))),
            },
            Outcome::Missed { rank, waiting } => {
                let (noun, verb) = if waiting.len() == 1 { ("rank", "waits") } else { ("ranks", "wait") };
                write!(
                    f,
                    "rank {rank} exited with code 0 and never met the others, and {noun} {} {verb} for it to initialize the \
                     environment",
                    listed(waiting)
                )
            }
            Outcome::Ended { signal } => write!(f, "interrupted by signal {}", named(*signal)),
        }
    }
}

/// Lists ranks as a sentence does: `0, 1 and 3`.
fn listed(ranks: &BTreeSet<Rank>) -> String {
    let numbers: Vec<String> = ranks.iter().map(Rank::to_string).collect();
    match numbers.as_slice() {
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
        [] => String::new(),
    }
}

/// The number of a signal, with its name if it has one: `11 (SIGSEGV)`.
fn named(signal: i32) -> String {
    // The standard library has the names: `signal: 11 (SIGSEGV)`.
    let text = (1..=64).contains(&signal).then(|| ExitStatus::from_raw(signal).to_string());
    text.and_then(|text| Some(text.strip_prefix("signal: ")?.to_owned())).unwrap_or_else(|| signal.to_string())
}

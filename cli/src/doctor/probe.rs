//! One fact, or why it could not be found out.

use std::error::Error;
use std::time::{Duration, Instant};

use distcollective::Result;
use serde::Serialize;

/// The time until a deadline.
pub fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// One fact about this machine: its value, or why it could not be found out. It is serialized as
/// the value itself, or as an object with the one field `problem`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Probe<T> {
    /// The value.
    Found(T),
    /// There is no value.
    Missing {
        /// Why not.
        problem: String,
    },
}

impl<T> Probe<T> {
    /// The value, if there is one.
    pub fn found(&self) -> Option<&T> {
        match self {
            Probe::Found(found) => Some(found),
            Probe::Missing { .. } => None,
        }
    }
}

impl<T> From<Result<T>> for Probe<T> {
    fn from(result: Result<T>) -> Self {
        match result {
            Ok(found) => Probe::Found(found),
            Err(error) => {
                let cause = error.source().map_or(String::new(), |cause| format!(" ({cause})"));
                Probe::Missing { problem: format!("{error}{cause}") }
            }
        }
    }
}

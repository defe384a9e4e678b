//! The hosts that may be rank 0's.

use std::io;

use crate::error::Error;
use crate::util::interrupt;

/// Why an attempt did not lead to rank 0.
pub(super) enum Failure {
    /// Another attempt may succeed.
    Passing(String),
    Final(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Final(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        interrupt::of_io(&error).map_or_else(|| Failure::Passing(error.to_string()), Failure::Final)
    }
}

/// Hosts, each with a port, of which one is rank 0's, and the nonce of the file that named them.
pub(super) struct Candidates {
    pub(super) hosts: Vec<(String, u16)>,
    pub(super) file_nonce: Option<String>,
}

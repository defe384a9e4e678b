//! MPI, as it is installed: a link between machines, and a rendezvous. The library is loaded at the
//! first use.
//!
//! Only point-to-point messages are used, each of which MPI completes in its own time. No call
//! waits inside MPI, except `MPI_Init_thread` and `MPI_Finalize`, which have a thread of their own.
//! All other calls are made with one lock held, so that no thread calls MPI after it has ended.

mod abi;
mod api;
mod communicator;
mod engine;
mod library;
mod meeting;
mod start;

pub(crate) use communicator::MpiCommunicator;
pub(crate) use engine::finalized;
pub(crate) use meeting::Meeting;
pub(crate) use start::{Launched, before_finalize, check};

use crate::error::Result;

/// The first line of what the installed MPI says of itself: `Open MPI v4.1.4`. It is not
/// initialized.
pub(crate) fn version() -> Result<String> {
    Ok(library::MpiLibrary::find()?.version.clone())
}

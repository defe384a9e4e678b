//! The link over MPI. It says of no rank that it has died: mpirun ends the whole job then.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::{Bytes, Link, LinkMessage, Tag};
use crate::comm::backend_kind::BackendKind;
use crate::error::{Result, bail};
use crate::mpi::MpiCommunicator;
use crate::rank::Rank;

/// How long a rank that leaves waits until its last messages are on their way.
const FLUSH_TIME: Duration = Duration::from_secs(1);

/// The bits of a tag's word that have the sender, whom MPI tells.
const SENDER_BITS: u32 = 16;

/// The ranks of the communicator are those of the job.
pub(in crate::comm) struct MpiLink(pub(in crate::comm) MpiCommunicator);

impl Link for MpiLink {
    fn kind(&self) -> BackendKind {
        BackendKind::Mpi
    }

    fn send(&self, to: Rank, tag: Tag, bytes: Bytes) -> Result<()> {
        self.0.send(to.0, tag.to_word(Rank(0)) >> SENDER_BITS, bytes)
    }

    fn progress(&self, arrivals: &mut Vec<LinkMessage>) -> Result<bool> {
        let mut arrived = Vec::new();
        let has_moved = self.0.progress(&mut arrived)?;
        for message in arrived {
            let Some((_, tag)) = Tag::from_word(message.label << SENDER_BITS) else {
                bail!(System, "a message of rank {} has label {:x}", message.from, message.label)
            };
            arrivals.push(LinkMessage { from: Rank(message.from), tag, bytes: message.bytes });
        }
        Ok(has_moved)
    }

    fn unsent(&self) -> usize {
        self.0.unsent()
    }

    fn has_died(&self, _rank: Rank) -> bool {
        false
    }

    fn flush(&self) {
        self.0.flush(FLUSH_TIME);
    }

    fn to_sleep_on(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

//! What has to reach every rank before there is a communicator, over MPI.

use std::time::Instant;

use super::communicator::{MpiArrival, MpiCommunicator};
use crate::error::{Error, Result, bail, error};
use crate::util::bytes::Bytes;
use crate::util::text::{list_ranks, printable};
use crate::util::wait::Wait;

/// A rank's part, for rank 0. No message of the link that takes the communicator over has one of
/// these labels.
const PART: u64 = 0xf_0000;
/// Rank 0's message with all parts.
const ALL_PARTS: u64 = 0xf_0001;
/// The sender has failed.
const END: u64 = 0xf_0002;

/// All ranks of a communicator of MPI, which exchange what they say through rank 0.
pub(crate) struct Meeting {
    communicator: MpiCommunicator,
    /// What has come and is of the next exchange.
    early: Vec<MpiArrival>,
}

impl Meeting {
    pub(crate) fn new(communicator: MpiCommunicator) -> Self {
        Meeting { communicator, early: Vec::new() }
    }

    /// The communicator, which gives what has come already to its next owner.
    pub(crate) fn into_communicator(self) -> MpiCommunicator {
        self.communicator.put_back(self.early);
        self.communicator
    }

    /// Gives every rank every rank's part, in the order of ranks. Collective. After an error the
    /// meeting has ended, also for the others.
    pub(crate) fn exchange(&mut self, part: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        let exchanged =
            if self.communicator.rank == 0 { self.on_rank_0(part, deadline) } else { self.on_peer(part, deadline) };
        exchanged.inspect_err(|error| self.tell(error))
    }

    fn on_rank_0(&mut self, part: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        let size = self.communicator.size as usize;
        let mut parts: Vec<Option<Vec<u8>>> = vec![None; size];
        parts[0] = Some(part.to_vec());
        while parts.iter().any(Option::is_none) {
            let missing = || list_ranks((0..).zip(&parts).filter(|(_, part)| part.is_none()).map(|(rank, _)| rank));
            let late = || format!("{} of {size} gave no part before the deadline", missing());
            let arrival = self.receive(PART, deadline, &late)?;
            let Some(part @ None) = parts.get_mut(arrival.from as usize) else {
                bail!(System, "rank {} gave two parts", arrival.from)
            };
            *part = Some(arrival.bytes.to_vec());
        }
        let parts: Vec<Vec<u8>> = parts.into_iter().flatten().collect();
        let encoded = postcard::to_stdvec(&parts);
        let encoded = encoded.map_err(|e| error!(System, "the parts cannot be encoded").with_source(e))?;
        for rank in 1..self.communicator.size {
            self.communicator.send(rank, ALL_PARTS, Bytes::copy_of(&encoded))?;
        }
        self.communicator.flush(deadline.saturating_duration_since(Instant::now()));
        Ok(parts)
    }

    fn on_peer(&mut self, part: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        self.communicator.send(0, PART, Bytes::copy_of(part))?;
        let late = || "some rank gave no part, or rank 0 did not answer, before the deadline".to_owned();
        let all = self.receive(ALL_PARTS, deadline, &late)?;
        let damaged = |e| error!(System, "what rank 0 sent cannot be read").with_source(e);
        postcard::from_bytes(&all.bytes).map_err(damaged)
    }

    /// Waits for a message. `late` is the error at the deadline.
    fn receive(&mut self, label: u64, deadline: Instant, late: &dyn Fn() -> String) -> Result<MpiArrival> {
        let rank = self.communicator.rank;
        let warning = |seconds| format!("rank {rank} has waited for {seconds} s for all ranks to meet over MPI");
        let mut wait = Wait::until(deadline).warning(&warning);
        loop {
            self.communicator.progress(&mut self.early)?;
            if let Some(end) = self.early.iter().find(|arrival| arrival.label == END) {
                bail!(Aborted, "rank {} ended the rendezvous: {}", end.from, printable(&end.bytes));
            }
            if let Some(index) = self.early.iter().position(|arrival| arrival.label == label) {
                return Ok(self.early.remove(index));
            }
            wait.pause().map_err(|stopped| stopped.error("while not all ranks had met over MPI", late()))?;
        }
    }

    /// Tells the others of an error: rank 0 all, and another rank that one.
    fn tell(&self, error: &Error) {
        let peers = if self.communicator.rank == 0 { 1..self.communicator.size } else { 0..1 };
        for rank in peers {
            // A rank that cannot be reached has ended.
            let _unreachable = self.communicator.send(rank, END, Bytes::copy_of(error.to_string().as_bytes()));
        }
    }
}

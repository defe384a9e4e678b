//! A run of a context or bound layer that this rank leaves out, because its arguments are wrong or
//! the program says so. The other ranks learn of it in the run's place.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use super::{Communicator, CountedRun, RunCounter};
use crate::cuda::CudaStream;
use crate::error::{Error, ErrorKind, Result};
use crate::issue_order::Extent;
use crate::stream::{Stream, Task, Watch};

/// A run that this rank leaves out.
pub(crate) struct RefusedRun {
    /// The communicator of the context or layer.
    pub(crate) communicator: Communicator,
    /// Those of the run's collectives in which this rank takes part.
    pub(crate) members: Vec<Communicator>,
    /// Whether the other ranks can go on to the next run, if they learn of this.
    pub(crate) can_go_on: bool,
    pub(crate) extent: Extent,
    pub(crate) runs: Arc<RunCounter>,
    pub(crate) reason: String,
    pub(crate) deadline: Instant,
}

impl RefusedRun {
    /// Tells the other ranks, in this rank's turn.
    pub(crate) fn tell(self, what: &dyn fmt::Display) -> Result<()> {
        match self.concerns_nobody() {
            true => self.communicator.check(),
            false => self.communicator.in_turn(self.extent, what, self.deadline, || self.tell_now()),
        }
    }

    /// Tells the other ranks of a run that was to run on a stream: after what was enqueued before.
    pub(crate) fn tell_on(self, stream: &Stream, what: &dyn fmt::Display) {
        if self.concerns_nobody() {
            return;
        }
        if stream.is_inline() || stream.as_cuda().is_some() {
            // If this rank cannot tell the others, its communicator has ended, or it is no rank.
            let _cannot_tell = self.tell(what);
            return;
        }
        let (communicator, extent) = (self.communicator.clone(), self.extent);
        drop(stream.submit(self, Some(communicator.order(extent)), None));
    }

    fn concerns_nobody(&self) -> bool {
        self.members.is_empty() && self.can_go_on
    }

    fn tell_now(&self) -> Result<()> {
        self.tell_of(&CountedRun::new(&self.runs))
    }

    /// Tells those of the other ranks that do not know it of this run. This rank has its turn.
    pub(crate) fn tell_of(&self, run: &CountedRun<'_>) -> Result<()> {
        let mut can_tell = self.can_go_on && !self.communicator.has_groups_in_request();
        for member in &self.members {
            can_tell = can_tell && member.as_backend().refuse(run, &self.reason, self.deadline)?;
        }
        if !can_tell {
            let reason = format!("refused {}: {}", run.id(), self.reason);
            self.communicator.as_backend().abort(ErrorKind::Aborted, &reason);
        }
        Ok(())
    }
}

impl Task for RefusedRun {
    fn run(&mut self, _stream: Option<&Arc<CudaStream>>) -> Result<()> {
        self.tell_now()
    }

    fn label(&self, error: Error) -> Error {
        error.on_rank(self.communicator.origin_rank())
    }

    fn watch(&self) -> Option<(Arc<dyn Watch>, Instant)> {
        Some((self.communicator.watch(), self.deadline))
    }
}

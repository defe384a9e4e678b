//! Whether a context records its runs into CUDA graphs, and who decides on a run.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use super::ContextOptions;
use super::replay::{Deciders, RunCounts};
use crate::comm::{Communicator, Control};
use crate::dist_collective::SET_COMMUNICATOR;
use crate::engine::EngineInner;
use crate::error::{Result, bail};
use crate::util::log::event;

/// Whether a context on a communicator records its runs.
#[derive(Default)]
pub(super) struct Graphs {
    is_recording: bool,
    /// Whether a run waits for peers: ranks then have to do the same with it.
    pub(super) is_collective: bool,
    /// The number of the context, the same on every rank.
    context: u32,
    pub(super) counts: RunCounts,
}

impl Graphs {
    /// What the ranks' options and the communicator allow. Collective.
    ///
    /// # Errors
    ///
    /// `Disagreement`: the options of ranks differ.
    pub(super) fn agree(
        engine: &EngineInner,
        communicator: &Communicator,
        options: ContextOptions,
        deadline: Instant,
    ) -> Result<Self> {
        static CONTEXTS: AtomicU32 = AtomicU32::new(1);
        let ContextOptions { cuda_graph, graphs_without_agreement } = options;
        let wanted = (cuda_graph, graphs_without_agreement);
        let own = CONTEXTS.fetch_add(1, Ordering::Relaxed);
        let all = communicator.exchange(SET_COMMUNICATOR, &(wanted, own), deadline)?;
        if all.iter().any(|(other, _)| *other != wanted) {
            bail!(
                Disagreement,
                "contexts of some ranks record CUDA graphs (`cuda_graph`, `graphs_without_agreement`), and of others \
                 do not"
            );
        }
        // Rank 0's number is that of the context.
        let (_, context) = all[0];
        // A rank need not run a context all of whose layers are for other ranks. One that records
        // has to run on every rank, so that they can agree.
        let mut layers = engine.analysis.collectives.iter().flatten();
        let is_for_all = layers.any(|layer| layer.nb_rank == communicator.world_size());
        let has_peers = communicator.world_size() > 1 && engine.first_collective().is_some();
        let is_collective = has_peers && (is_for_all || cuda_graph);
        let can_agree = !is_collective || communicator.control().is_some();
        if cuda_graph && !can_agree && !graphs_without_agreement {
            event!(
                WARN,
                "plan {} is not recorded into CUDA graphs: the ranks cannot agree on it, because they have no host \
                 communicator; `graphs_without_agreement` records all the same",
                engine.fingerprint
            );
        }
        let is_recording = cuda_graph && (can_agree || graphs_without_agreement);
        Ok(Graphs { is_recording, is_collective, context, counts: RunCounts::default() })
    }

    /// Who decides what becomes of a run; `None` if runs are not recorded.
    pub(super) fn deciders<'a>(&self, control: Option<&'a Control>) -> Option<Deciders<'a>> {
        let decider = |control| Deciders::All(control, self.context);
        self.is_recording.then(|| control.map_or(Deciders::Own, decider))
    }
}

//! An engine on a communicator: who does what on this rank, and the memory.

use std::num::NonZeroU16;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::ContextOptions;
use super::regions::Regions;
use super::replay::GraphPolicy;
use crate::collective::{Call, Groups};
use crate::comm::{Communicator, DEFAULT_TIMEOUT, RefusedRun, RunCounter, rank_lock};
use crate::cuda::Kernel;
use crate::data_type::DataType;
use crate::dist_collective::{Needs, PlanAgreement, ResolvedLayer, Role, Roles, agree};
use crate::engine::EngineInner;
use crate::error::{Error, ErrorKind, Result, bail, error};
use crate::issue_order::Extent;
use crate::memory::{Buffer, MemorySpace};
use crate::network::{LayerId, MadeFor, TensorId, TensorSource};
use crate::util::log::event;
use crate::util::{lock, rough_deadline_after, thread_number};

/// An engine on a communicator, or on none: what every run of a context shares.
pub(super) struct CommunicatorBinding {
    /// Locked during a run, so that the runs of one context do not overlap. Declared before the
    /// communicator, because its graphs have to be dropped first.
    pub(super) regions: Mutex<Regions>,
    /// The [number](thread_number) of the thread that has the regions, or 0.
    runner: AtomicUsize,
    pub(super) engine: Arc<EngineInner>,
    pub(super) communicator: Option<Communicator>,
    pub(super) graphs: GraphPolicy,
    /// Whether all ranks have the same collectives in each step, and so may make groups of them.
    pub(super) has_equal_steps: bool,
    /// Whether a collective is among a part of the ranks.
    pub(super) has_groups: bool,
    /// This rank's role in each DistCollective layer; empty without a communicator.
    roles: Vec<Option<Role>>,
    pub(super) runs: Arc<RunCounter>,
    /// Whether each input is read and each output written on this rank.
    pub(super) used: Vec<bool>,
}

impl CommunicatorBinding {
    /// Without a communicator: enough for a network all of whose layers are the identity.
    pub(super) fn without_communicator(engine: Arc<EngineInner>) -> Result<Self> {
        let is_usable = engine.first_collective().is_none();
        let regions = if is_usable { Regions::new(&engine, MemorySpace::Host)? } else { Regions::none(&engine) };
        let used = vec![true; engine.io.len()];
        Ok(CommunicatorBinding {
            engine,
            communicator: None,
            graphs: GraphPolicy::default(),
            has_equal_steps: false,
            has_groups: false,
            roles: Vec::new(),
            runs: Arc::new(RunCounter::new(NonZeroU16::MIN)),
            used,
            regions: Mutex::new(regions),
            runner: AtomicUsize::default(),
        })
    }

    /// On a communicator. Collective, in this rank's turn.
    pub(super) fn to(
        engine: Arc<EngineInner>,
        communicator: &Communicator,
        options: ContextOptions,
        deadline: Instant,
    ) -> Result<Self> {
        let make_regions = || {
            communicator
                .as_backend()
                .default_stream()
                .map_or(Ok(()), |stream| stream.device().prepare(kernels(&engine)?))?;
            Regions::new(&engine, communicator.space())
        };
        // What can fail on this rank alone comes before the agreement, which tells the other ranks.
        let mut layers =
            engine.analysis.schedule.iter().filter_map(|id| engine.analysis.collectives[id.index()].as_ref());
        let fit = check_rank(&engine, communicator)
            .and_then(|()| layers.try_for_each(|layer| Roles::check(communicator, layer)));
        let regions = fit.and_then(|()| make_regions());
        let calls = regions.as_ref().map(|_| engine.planned_calls.as_slice()).map_err(Clone::clone);
        let needs = Needs {
            region_bytes: engine.memory.communicator_bytes as u64,
            places: engine.places_of_operands(),
            steps: engine.analysis.collectives_in_steps(),
        };
        let PlanAgreement { region_bytes, has_equal_places, has_equal_steps, number } =
            agree(communicator, calls, &engine.fingerprint, needs, deadline)?;
        let mut regions = regions?;
        let collectives = &engine.analysis.collectives;
        let graphs = match communicator.as_backend().default_stream() {
            Some(_) => GraphPolicy::agree(&engine, communicator, options, deadline)?,
            None => GraphPolicy::default(),
        };
        let mut roles_of = Roles::new(communicator, deadline);
        let mut roles = vec![None; collectives.len()];
        for id in &engine.analysis.schedule {
            if let Some(layer) = &collectives[id.index()] {
                roles[id.index()] = Some(roles_of.role(layer)?);
            }
        }
        if region_bytes > 0 {
            let backend = communicator.as_backend();
            // Ranks with other layers between the same collectives may have other places.
            let region = match has_equal_places {
                true => backend.allocate_region(region_bytes, deadline)?,
                false => backend.allocate(region_bytes, deadline)?,
            };
            let join = |group: &Communicator| group.as_backend().join_region(&region, deadline).transpose();
            let groups = roles_of.groups().filter(|_| has_equal_places);
            regions.memory.parts = groups.filter_map(join).collect::<Result<_>>()?;
            regions.memory.communicator = Some(region);
        }
        let mut binding = CommunicatorBinding {
            used: Vec::new(),
            engine: Arc::clone(&engine),
            communicator: Some(communicator.clone()),
            graphs,
            has_equal_steps,
            has_groups: collectives.iter().flatten().any(|layer| layer.groups != Groups::All),
            roles,
            runs: Arc::new(RunCounter::new(number)),
            regions: Mutex::new(regions),
            runner: AtomicUsize::default(),
        };
        binding.warn_if_idle(communicator);
        binding.used = engine.io.iter().map(|io| binding.is_used(io.tensor)).collect();
        let scratch = binding.make_scratch().inspect_err(|error| communicator.abort_with(error))?;
        lock(&binding.regions).memory.scratch = scratch;
        event!(DEBUG, "plan {} is set up on {communicator:?}", engine.fingerprint);
        Ok(binding)
    }

    /// Warns if no collective of the plan has this rank as a member.
    fn warn_if_idle(&self, communicator: &Communicator) {
        let mut collectives = self.engine.analysis.collectives.iter().zip(&self.roles);
        let is_idle = |(layer, role): (&Option<ResolvedLayer>, &Option<Role>)| {
            layer.as_ref().is_none_or(ResolvedLayer::is_identity) || matches!(role, Some(Role::Skip))
        };
        if self.engine.first_collective().is_some() && collectives.all(is_idle) {
            event!(
                WARN,
                "rank {} takes part in no collective of plan {}: their groups name other ranks of the {}",
                communicator.origin_rank(),
                self.engine.fingerprint,
                communicator.world_size()
            );
        }
    }

    /// Makes what the largest calls need, so that a run makes nothing. Gives their scratch memory:
    /// collectives run one after the other, so they share it.
    fn make_scratch(&self) -> Result<Option<Buffer>> {
        let EngineInner { network, analysis, .. } = &*self.engine;
        let mut longest = 0;
        for &id in &analysis.schedule {
            if let Role::Member(communicator) = self.role(id)
                && let Some(call) = analysis.largest_call(network, id)
            {
                longest = longest.max(communicator.prepare(&call)?);
            }
        }
        let make = || Buffer::zeroed_in(self.space(), DataType::Uint8, [longest as i64]);
        (longest > 0).then(make).transpose()
    }

    /// Locks the memory for a run. Runs on a communicator take turns, so that it is free. If the
    /// lock is missed, the communicator ends, so that the other ranks do not wait for this run.
    pub(super) fn lock_regions(&self, deadline: Instant) -> Result<RegionsGuard<'_>> {
        // Another thread's number is never this one's, whenever it is seen.
        let this = thread_number();
        if self.runner.load(Ordering::Relaxed) == this {
            bail!(InvalidArgument, "a plugin cannot run the context that runs it");
        }
        let regions = rank_lock::enter(&self.regions, deadline).map_err(|error| {
            let error = match error.kind() {
                ErrorKind::DeadlineExceeded => {
                    error!(DeadlineExceeded, "an earlier run of the context did not end before the deadline")
                }
                _ => error,
            };
            if let Some(communicator) = &self.communicator {
                communicator.abort_with(&error);
            }
            error
        })?;
        self.runner.store(this, Ordering::Relaxed);
        Ok(RegionsGuard { regions, runner: &self.runner })
    }

    /// The memory of the tensors inside the network.
    pub(super) fn space(&self) -> MemorySpace {
        self.communicator.as_ref().map_or(MemorySpace::Host, Communicator::space)
    }

    /// When a run that is issued now has to be done.
    pub(super) fn deadline(&self, timeout: Option<Duration>) -> Instant {
        let own = || self.communicator.as_ref().map_or(DEFAULT_TIMEOUT, Communicator::timeout);
        rough_deadline_after(timeout.unwrap_or_else(own))
    }

    pub(super) fn role(&self, layer: LayerId) -> &Role {
        // Without a communicator all layers are the identity.
        self.roles.get(layer.index()).and_then(Option::as_ref).unwrap_or(&Role::Identity)
    }

    /// Whether an input is read, or an output written, on this rank.
    fn is_used(&self, tensor: TensorId) -> bool {
        let EngineInner { network, analysis, .. } = &*self.engine;
        // Which sides a call uses depends on its root, not on its shape.
        let call = |layer: LayerId| {
            analysis.collectives[layer.index()].as_ref().map(|c| Call::new(c.collective, DataType::Uint8, 0, 1))
        };
        match network.tensors[tensor.index()].source {
            TensorSource::Input(_) => analysis
                .readers
                .of(tensor)
                .iter()
                .any(|&reader| call(reader).is_none_or(|call| self.role(reader).reads_input(&call))),
            TensorSource::Layer { layer, .. } => call(layer).is_none_or(|call| self.role(layer).writes_output(&call)),
        }
    }

    /// A run that this rank leaves out, on the communicator that is set.
    pub(super) fn refused_run(&self, reason: String, deadline: Instant) -> Option<RefusedRun> {
        let (communicator, runs) = (self.communicator.clone()?, Arc::clone(&self.runs));
        let members = self.engine.analysis.schedule.iter().filter_map(|id| match self.role(*id) {
            Role::Member(member) => Some(member.clone()),
            _ => None,
        });
        let (members, extent) = (members.collect(), Extent::Run);
        // A plugin may make calls of its own, in which other ranks would wait.
        let is_alone = communicator.world_size() == 1;
        let can_go_on = is_alone || !self.engine.network.has_plugins() || communicator.is_in_request();
        Some(RefusedRun { communicator, members, can_go_on, extent, runs, reason, deadline })
    }

    pub(super) fn on_rank(&self, error: Error) -> Error {
        match &self.communicator {
            Some(communicator) => error.on_rank(communicator.origin_rank()),
            None => error,
        }
    }
}

/// The regions of the context that runs on this thread.
pub(super) struct RegionsGuard<'a> {
    pub(super) regions: MutexGuard<'a, Regions>,
    runner: &'a AtomicUsize,
}

impl Drop for RegionsGuard<'_> {
    fn drop(&mut self) {
        self.runner.store(0, Ordering::Relaxed);
    }
}

/// Checks that a network that was made for one rank runs on that rank.
fn check_rank(engine: &EngineInner, communicator: &Communicator) -> Result<()> {
    let is = MadeFor { rank: communicator.rank(), world_size: communicator.world_size() };
    match engine.network.made_for {
        Some(made_for) if (made_for.rank, made_for.world_size) != (is.rank, is.world_size) => {
            bail!(InvalidCommunicator, "the network was made for {made_for}, and this is {is}")
        }
        _ => Ok(()),
    }
}

/// The kernels that layers need on a GPU, of which some may be there several times. Checks that
/// every layer can run there.
fn kernels(engine: &EngineInner) -> Result<Vec<Kernel>> {
    let mut kernels = Vec::new();
    for layer in &engine.network.layers {
        let inputs: Vec<DataType> = layer.inputs.iter().map(|input| engine.analysis.types[input.index()]).collect();
        kernels.extend(layer.body.op().kernels(&inputs).map_err(|e| e.about(|| layer.subject()))?);
    }
    Ok(kernels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::ReduceOperation;
    use crate::comm::loopback::communicator;
    use crate::dist_collective::DistCollective;
    use crate::engine::Engine;
    use crate::network::Network;
    use crate::util::deadline_after;

    #[test]
    fn a_run_that_misses_the_memory_ends_the_communicator() -> Result<()> {
        let mut network = Network::new();
        let x = network.add_input("x", DataType::Float32, [2])?;
        let y = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(2), x)?;
        network.mark_output(y, "y")?;
        let mut context = Engine::new(network)?.create_execution_context()?;
        let (communicator, _) = communicator();
        context.set_communicator(&communicator)?;
        let binding = &*context.setup.binding;
        let earlier_run = binding.lock_regions(deadline_after(DEFAULT_TIMEOUT))?;
        let missed = |deadline| binding.lock_regions(deadline).err().map(|error| error.kind());

        // A plugin that runs its own context: this thread has the memory.
        assert_eq!(missed(deadline_after(DEFAULT_TIMEOUT)), Some(ErrorKind::InvalidArgument));
        communicator.check()?;

        let on_another_thread = std::thread::scope(|scope| scope.spawn(|| missed(Instant::now())).join());
        assert_eq!(on_another_thread.expect("no panic"), Some(ErrorKind::DeadlineExceeded));
        assert_eq!(communicator.check().expect_err("a run is left out").kind(), ErrorKind::DeadlineExceeded);
        drop(earlier_run);
        Ok(())
    }

    /// A run compiles nothing, and so can be captured.
    #[test]
    fn the_kernels_of_every_layer_are_known_before_it_runs() -> Result<()> {
        use std::collections::BTreeSet;

        use crate::network::{ElementWiseOperation, Shuffle, TensorId};

        type Add = fn(&mut Network, TensorId) -> Result<TensorId>;
        let of = |add: Add| -> Result<BTreeSet<String>> {
            let mut network = Network::new();
            let x = network.add_input("x", DataType::Float16, [4, 4])?;
            let y = add(&mut network, x)?;
            network.mark_output(y, "y")?;
            Ok(kernels(&Engine::new(network)?.inner)?.iter().map(Kernel::to_string).collect())
        };
        let widths = |name: &str| [2, 4, 8, 16].map(|width| format!("{name} {width}")).into_iter();
        let gathering: BTreeSet<String> =
            widths("transpose").chain(widths("transpose_tiled")).filter(|name| name != "transpose_tiled 16").collect();
        assert_eq!(of(|network, x| network.add_shuffle(x, Shuffle::transpose([1, 0])))?, gathering);
        assert_eq!(of(|network, x| network.add_slice(x, &[0, 0], &[2, 2], &[1, 1]))?, gathering);
        assert_eq!(of(|network, x| network.add_concatenation(&[x, x], 1))?, widths("copy_rows").collect());
        let quotient = of(|network, x| network.add_elementwise(x, x, ElementWiseOperation::Div))?;
        assert_eq!(quotient, BTreeSet::from(["elementwise float16 div".to_owned()]));
        assert_eq!(
            of(|network, x| network.add_cast(x, DataType::Int8))?,
            BTreeSet::from(["cast float16 int8".to_owned()])
        );
        assert_eq!(of(|network, x| network.add_shuffle(x, Shuffle::reshape([16])))?, BTreeSet::new());
        assert_eq!(of(Network::add_identity)?, BTreeSet::new());
        Ok(())
    }
}

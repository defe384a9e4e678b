//! Property tests: random networks are built, written and read as plans, and run on several ranks.
//! Every output of every rank is compared bit by bit with the reference interpreter.

mod local;

use std::sync::Arc;

use distcollective::context::{Bindings, ContextOptions};
use distcollective::engine::{IoMode, IoTensor};
use distcollective::tensor::{Dims, MemorySpace, TensorView, TensorViewMut};
use distcollective::{
    Buffer, CollectiveOperation, Communicator, DataType, Determinism, DistCollectiveLayer, Engine, ExecutionContext,
    Network, Rank, ReduceOperation, Result, Stream, WireType,
};
use ndarray::{ArrayD, IxDyn};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

use self::local::{Described, Local, pick};
use crate::cases::{Case, Participants, RootChoice, ShapeChoice, has_wire_type};
use crate::ranks::{DEADLINE, on_communicators, on_ranks};
use crate::reference::{self, Bits};
use crate::values::{elements, to_bytes};

/// The rows of dynamic inputs at min and at max of the profile.
const ROWS: [usize; 2] = [12, 24];

/// The byte of buffers before a run, which unwritten outputs keep.
const PATTERN: u8 = 0xa5;

/// The plan of a network: inputs, then operations on tensors that exist.
#[derive(Clone, Debug)]
struct Plan {
    n: u32,
    inputs: Vec<(DataType, Vec<usize>)>,
    dynamic: bool,
    steps: Vec<Step>,
    /// Tensors that are outputs: inputs are counted first, then the steps.
    outputs: Vec<usize>,
}

#[derive(Clone, Debug)]
struct Step {
    /// The tensors that it reads; a constant reads none.
    inputs: Vec<usize>,
    action: Action,
}

#[derive(Clone, Debug)]
enum Action {
    Collective(Case),
    Identity(CollectiveOperation, Option<ReduceOperation>),
    Local(Local),
    Constant(DataType, Vec<usize>, u64),
}

/// A tensor of the reference: its type, and its bits on each rank, `None` on a rank that does not
/// write it.
type Interpreted = (DataType, Vec<Option<Bits>>);

/// Random numbers, from which a plan takes what is possible.
type Gene = (u8, usize, u64);

fn plan(n: u32, dynamic: bool, types: Vec<usize>, genes: Vec<Gene>) -> Plan {
    let inputs: Vec<_> =
        types.iter().enumerate().map(|(i, &t)| (DataType::LAYER_TYPES[t], vec![ROWS[0], [1, 3, 2][i % 3]])).collect();
    let factor = if dynamic { ROWS[1] / ROWS[0] } else { 1 };
    let both = |dims: &[usize]| [dims.to_vec(), [&[dims[0] * factor], &dims[1..]].concat()];
    let mut tensors: Vec<Described> = inputs.iter().map(|(data_type, dims)| (*data_type, both(dims))).collect();
    let mut steps: Vec<Step> = Vec::new();
    let mut outputs = Vec::new();
    for (kind, input, choice) in genes {
        let input = input % tensors.len();
        let described = &tensors[input];
        let data_type = described.0;
        let any_type = pick(&DataType::LAYER_TYPES, choice, 0);
        let (inputs, action) = match kind % 17 {
            0..=5 => (vec![input], collective(n, data_type, &described.1[0], &CollectiveOperation::ALL, choice)),
            6 => (vec![input], identity(data_type, choice)),
            7 | 8 => (vec![input], Action::Local(local::shuffle(described, choice))),
            9 => (vec![input], Action::Local(Local::Cast(any_type))),
            10 => (vec![], Action::Constant(any_type, vec![ROWS[0], 2], choice)),
            11 => {
                let constant = Action::Constant(data_type, local::broadcastable(described, choice), choice);
                tensors.push(describe(&constant, &[], &tensors));
                steps.push(Step { inputs: vec![], action: constant });
                let mut inputs = vec![input, tensors.len() - 1];
                inputs.rotate_left(choice as usize >> 8 & 1);
                (inputs, Action::Local(local::element_wise(data_type, choice)))
            }
            12 => {
                let other = pick(&local::combinable(&tensors, input), choice, 8);
                (vec![input, other], Action::Local(local::element_wise(data_type, choice)))
            }
            13 => {
                let (axis, inputs) = local::joinable(&tensors, input, choice);
                (inputs, Action::Local(Local::Concatenation(axis)))
            }
            14 | 15 => (vec![input], Action::Local(local::slice(described, choice))),
            _ => (vec![input], Action::Local(Local::Identity)),
        };
        tensors.push(describe(&action, &inputs, &tensors));
        steps.push(Step { inputs, action });
        if choice >> 60 == 0 {
            outputs.push(tensors.len() - 1);
        }
    }
    // Every tensor is read or is an output: a shuffle that moves nothing reads an unread input.
    for tensor in 0..tensors.len() {
        if !outputs.contains(&tensor) && !steps.iter().any(|step| step.inputs.contains(&tensor)) {
            if tensor < inputs.len() {
                outputs.push(inputs.len() + steps.len());
                steps.push(Step { inputs: vec![tensor], action: Action::Local(local::READ) });
            } else {
                outputs.push(tensor);
            }
        }
    }
    Plan { n, inputs, dynamic, steps, outputs }
}

fn collective(n: u32, data_type: DataType, dims: &[usize], operations: &[CollectiveOperation], choice: u64) -> Action {
    let mut case = Case {
        operation: pick(operations, choice, 0),
        reduce_op: Some(pick(&ReduceOperation::LAYER_OPERATIONS, choice, 8)),
        data_type,
        wire_type: None,
        n,
        root: pick(&[RootChoice::First, RootChoice::Middle, RootChoice::Last], choice, 16),
        participants: pick(
            &[
                Participants::All,
                Participants::All,
                Participants::SomeReversed,
                Participants::Lone,
                Participants::Pairs,
            ],
            choice,
            24,
        ),
        shape: ShapeChoice::OneRow,
        in_place: false,
    };
    let len = case.group_len();
    let gathers = matches!(case.operation, CollectiveOperation::AllGather | CollectiveOperation::Gather);
    let too_large = dims.iter().product::<usize>() * len > 2000;
    if !dims[0].is_multiple_of(len) || gathers && too_large {
        case.operation = CollectiveOperation::AllReduce;
    }
    if data_type == DataType::Bool && case.reduce_op == Some(ReduceOperation::Avg) {
        case.reduce_op = Some(ReduceOperation::Prod);
    }
    case.reduce_op = case.reduce_op.filter(|_| case.operation.reduces());
    if data_type == DataType::Float32 && has_wire_type(case.operation) {
        case.wire_type = pick(&[None, None, Some(WireType::Float16), Some(WireType::Bfloat16)], choice, 32);
    }
    Action::Collective(case)
}

fn identity(data_type: DataType, choice: u64) -> Action {
    let operation = pick(&CollectiveOperation::ALL, choice, 0);
    let reduce_op = if data_type == DataType::Bool {
        ReduceOperation::Max
    } else {
        pick(&ReduceOperation::LAYER_OPERATIONS, choice, 8)
    };
    Action::Identity(operation, operation.reduces().then_some(reduce_op))
}

/// The output of an action.
fn describe(action: &Action, inputs: &[usize], tensors: &[Described]) -> Described {
    let input = inputs.first().map(|&input| &tensors[input]);
    let each = |f: &dyn Fn(Vec<&[usize]>) -> Vec<usize>| {
        [0, 1].map(|scale| f(inputs.iter().map(|&input| tensors[input].1[scale].as_slice()).collect()))
    };
    match (action, input) {
        (Action::Collective(case), Some((data_type, _))) => {
            let dims = each(&|inputs| {
                let mut dims = inputs[0].to_vec();
                match case.operation {
                    CollectiveOperation::AllGather | CollectiveOperation::Gather => dims[0] *= case.group_len(),
                    CollectiveOperation::ReduceScatter | CollectiveOperation::Scatter => dims[0] /= case.group_len(),
                    _ => {}
                }
                dims
            });
            (*data_type, dims)
        }
        (Action::Identity(..), Some(input)) => input.clone(),
        (Action::Local(local), Some((data_type, _))) => {
            (local.output_type(*data_type), each(&|inputs| local.output_dims(&inputs)))
        }
        (Action::Constant(data_type, dims, _), _) => (*data_type, [dims.clone(), dims.clone()]),
        (action, None) => panic!("{action:?} has an input"),
    }
}

impl Plan {
    /// The network, as an engine read from plan bytes.
    fn build(&self) -> Result<Engine> {
        let mut network = Network::new();
        let mut tensors = Vec::new();
        for (i, (data_type, dims)) in self.inputs.iter().enumerate() {
            let mut dims: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
            if self.dynamic {
                let [min, max] = ROWS.map(|rows| vec![rows as i64, dims[1]]);
                dims[0] = -1;
                let input = network.add_input(&format!("in{i}"), *data_type, dims)?;
                network.set_optimization_profile(input, min, max.clone(), max)?;
                tensors.push(input);
            } else {
                tensors.push(network.add_input(&format!("in{i}"), *data_type, dims)?);
            }
        }
        for step in &self.steps {
            let inputs: Vec<_> = step.inputs.iter().map(|&input| tensors[input]).collect();
            tensors.push(match &step.action {
                Action::Collective(case) => {
                    let root = if case.operation.has_root() { 0 } else { -1 };
                    let mut layer = DistCollectiveLayer::new(case.operation, case.reduce_op, root, &[])?;
                    layer.set_groups(case.groups())?;
                    layer.set_root(case.layer_root());
                    layer.set_wire_type(case.wire_type);
                    if case.participants == Participants::All {
                        layer.set_nb_rank(self.n)?;
                    }
                    network.add(layer, inputs[0])?
                }
                Action::Identity(operation, reduce_op) => {
                    let root = if operation.has_root() { 0 } else { -1 };
                    let layer = network.add_dist_collective(inputs[0], *operation, *reduce_op, root, &[])?;
                    network.layer_mut(layer)?.set_nb_rank(1)?;
                    network.output(layer)?
                }
                Action::Local(local) => local.add(&mut network, &inputs)?,
                Action::Constant(data_type, dims, seed) => {
                    let dims: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
                    let mut buffer = Buffer::zeroed(*data_type, dims)?;
                    let count = buffer.shape().element_count();
                    buffer.as_mut_bytes()?.copy_from_slice(&to_bytes(*data_type, elements(*data_type, count, *seed)));
                    network.add_constant_buffer(buffer)?
                }
            });
        }
        for (i, &output) in self.outputs.iter().enumerate() {
            network.mark_output(tensors[output], &format!("out{i}"))?;
        }
        Engine::deserialize(&network.build()?.serialize()?)
    }

    /// For the ranks with even numbers and for those with odd ones. The latter may have one more
    /// output, so that shuffles run there that do not run elsewhere.
    fn for_ranks(self, watched: Option<usize>) -> [(Plan, Engine); 2] {
        let mut watching = self.clone();
        let watched = watched.map(|step| self.inputs.len() + step % self.steps.len());
        watching.outputs.extend(watched.filter(|tensor| !self.outputs.contains(tensor)));
        [self, watching].map(|plan| {
            let engine = plan.build().unwrap_or_else(|error| panic!("{error}\n{plan:#?}"));
            (plan, engine)
        })
    }

    fn input(&self, i: usize, rank: u32, scale: usize) -> Bits {
        let (data_type, dims) = &self.inputs[i];
        let mut dims = dims.clone();
        dims[0] *= scale;
        let count = dims.iter().product();
        let seed = (i as u64) << 40 | u64::from(rank) << 8 | scale as u64;
        ArrayD::from_shape_vec(IxDyn(&dims), elements(*data_type, count, seed)).expect("count of dims")
    }

    /// Every tensor on every rank.
    fn interpret(&self, scale: usize) -> Vec<Interpreted> {
        let mut tensors: Vec<Interpreted> = (0..self.inputs.len())
            .map(|i| (self.inputs[i].0, (0..self.n).map(|rank| Some(self.input(i, rank, scale))).collect()))
            .collect();
        for step in &self.steps {
            // On a rank that does not write it, a reader sees zeros.
            let read = |tensor: usize, rank: u32| {
                let values: &[Option<Bits>] = &tensors[tensor].1;
                let written = values.iter().flatten().next().expect("written somewhere");
                values[rank as usize].clone().unwrap_or_else(|| ArrayD::zeros(written.raw_dim()))
            };
            let data_type = step.inputs.first().map_or(DataType::Bool, |&input| tensors[input].0);
            let output = match &step.action {
                Action::Identity(..) => (data_type, (0..self.n).map(|rank| Some(read(step.inputs[0], rank))).collect()),
                Action::Local(local) => {
                    let output = |rank: u32| {
                        let inputs: Vec<Bits> = step.inputs.iter().map(|&input| read(input, rank)).collect();
                        Some(local.output(data_type, &inputs.iter().collect::<Vec<_>>()))
                    };
                    (local.output_type(data_type), (0..self.n).map(output).collect())
                }
                Action::Constant(data_type, dims, seed) => {
                    let bits = elements(*data_type, dims.iter().product(), *seed);
                    let value = ArrayD::from_shape_vec(IxDyn(dims), bits).expect("count of dims");
                    (*data_type, vec![Some(value); self.n as usize])
                }
                Action::Collective(case) => {
                    let output = |rank: u32| {
                        let members = case.members(Rank(rank))?;
                        let inputs: Vec<Bits> = members.iter().map(|m| read(step.inputs[0], m.0)).collect();
                        let inputs = reference::sent_as(case.wire_type, inputs);
                        let own = members.iter().position(|m| m.0 == rank)?;
                        let root = case.group_root();
                        reference::collective(case.operation, case.reduce_op, data_type, root, own, &inputs)
                    };
                    (data_type, (0..self.n).map(output).collect())
                }
            };
            tensors.push(output);
        }
        tensors
    }

    /// Whether other backends give the same bits. Reductions of floats may differ.
    fn is_exact(&self) -> bool {
        let types: Vec<DataType> = self.interpret(1).iter().map(|(data_type, _)| *data_type).collect();
        self.steps.iter().all(|step| match &step.action {
            Action::Collective(case) => {
                case.reduce_op.is_none() || case.wire_type.is_some() || !types[step.inputs[0]].is_float()
            }
            _ => true,
        })
    }

    /// Runs one rank in every way to run, and compares with the reference.
    fn run(
        &self,
        engine: &Engine,
        expected: &[Vec<Interpreted>; 2],
        communicator: &Communicator,
        options: ContextOptions,
    ) -> Result<()> {
        let mut context = engine.create_execution_context_with(options)?;
        context.set_communicator(communicator)?;
        let (space, worker) = (communicator.space(), Stream::worker()?);
        let mut bindings = context.create_bindings();
        let ways = match space {
            MemorySpace::Cuda(ordinal) => {
                let [stream, other] = [Stream::cuda(ordinal)?, Stream::cuda(ordinal)?];
                vec![
                    (1, Way::Execute),
                    (2, Way::Enqueue(Stream::inline(), MemorySpace::Host)),
                    (1, Way::Enqueue(stream.clone(), space)),
                    // With graphs, the second run is recorded, and the others replay it.
                    (1, Way::Enqueue(stream.clone(), space)),
                    (1, Way::Enqueue(other, space)),
                    (1, Way::Enqueue(worker, space)),
                    (2, Way::Enqueue(stream, space)),
                ]
            }
            _ => vec![(1, Way::Execute), (2, Way::Enqueue(Stream::inline(), space)), (1, Way::Enqueue(worker, space))],
        };
        for (run, (scale, way)) in ways.into_iter().enumerate() {
            if !self.dynamic && scale == 2 {
                continue;
            }
            let mut names = Vec::new();
            for (i, (_, dims)) in self.inputs.iter().enumerate() {
                names.push((format!("in{i}"), Dims::new(&[(dims[0] * scale) as i64, dims[1] as i64])?));
            }
            let shapes: Vec<(&str, Dims)> = names.iter().map(|(name, dims)| (name.as_str(), *dims)).collect();
            if run == 0 || self.dynamic {
                context.set_input_shapes(&shapes)?;
            }
            let outputs = match way {
                Way::Execute => self.execute(engine, &mut context, communicator.rank(), scale)?,
                Way::Enqueue(stream, space) => {
                    self.bind(engine, &context, &mut bindings, communicator.rank(), scale, space)?;
                    bindings = context.enqueue(bindings, &stream)?.wait()?;
                    outputs_of(engine, &bindings)?
                }
            };
            self.compare(engine, &expected[scale - 1], communicator.rank(), run, &outputs);
        }
        Ok(())
    }

    /// Runs two contexts on one rank, each on a worker stream of its own, in alternation, and then
    /// a barrier.
    fn run_two_contexts(&self, engine: &Engine, expected: &[Interpreted], communicator: &Communicator) -> Result<()> {
        let mut runs = Vec::new();
        for _ in 0..2 {
            let mut context = engine.create_execution_context()?;
            context.set_communicator(communicator)?;
            for (i, (_, dims)) in self.inputs.iter().enumerate().filter(|_| self.dynamic) {
                context.set_input_shape(&format!("in{i}"), [dims[0] as i64, dims[1] as i64])?;
            }
            let mut bindings = context.create_bindings();
            self.bind(engine, &context, &mut bindings, communicator.rank(), 1, MemorySpace::Host)?;
            runs.push((context, bindings, Stream::worker()?));
        }
        let mut work = Vec::new();
        for (context, bindings, stream) in &mut runs {
            work.push(context.enqueue(std::mem::replace(bindings, context.create_bindings()), stream)?);
        }
        communicator.barrier()?;
        for (run, work) in work.into_iter().enumerate().rev() {
            let outputs = outputs_of(engine, &work.wait()?)?;
            self.compare(engine, expected, communicator.rank(), run, &outputs);
        }
        Ok(())
    }

    /// The bytes of an input or output before a run.
    fn content(&self, io: &IoTensor, rank: Rank, scale: usize, byte_len: usize) -> Vec<u8> {
        match io.name.strip_prefix("in") {
            Some(i) => to_bytes(io.data_type, self.input(i.parse().expect("a number"), rank.0, scale)),
            None => vec![PATTERN; byte_len],
        }
    }

    fn execute(
        &self,
        engine: &Engine,
        context: &mut ExecutionContext,
        rank: Rank,
        scale: usize,
    ) -> Result<Vec<Vec<u8>>> {
        let mut buffers = Vec::new();
        for io in engine.io_tensors() {
            let mut buffer = Buffer::zeroed(io.data_type, context.tensor_shape(&io.name)?)?;
            let content = self.content(io, rank, scale, buffer.byte_len());
            buffer.write(0, &content)?;
            buffers.push((io.name.clone(), buffer));
        }
        let (inputs, outputs) = buffers.split_at_mut(self.inputs.len());
        context.execute(
            inputs.iter().map(|(name, buffer)| (name.as_str(), Ok(TensorView::from(buffer)))),
            outputs.iter_mut().map(|(name, buffer)| (name.as_str(), Ok(TensorViewMut::from(buffer)))),
        )?;
        outputs.iter().map(|(_, buffer)| buffer.as_bytes().map(<[u8]>::to_vec)).collect()
    }

    /// Fills and binds a buffer for each tensor. Uses the bound one again, if it fits.
    fn bind(
        &self,
        engine: &Engine,
        context: &ExecutionContext,
        bindings: &mut Bindings,
        rank: Rank,
        scale: usize,
        space: MemorySpace,
    ) -> Result<()> {
        for io in engine.io_tensors() {
            let shape = context.tensor_shape(&io.name)?;
            let fits = |buffer: &Buffer| buffer.shape() == shape && buffer.space() == space;
            let mut buffer = match bindings.take(&io.name)?.filter(fits) {
                Some(buffer) => buffer,
                None => Buffer::zeroed_in(space, io.data_type, shape)?,
            };
            let content = self.content(io, rank, scale, buffer.byte_len());
            buffer.write(0, &content)?;
            match io.mode {
                IoMode::Output => bindings.bind_output(&io.name, buffer)?,
                // An input may be shared. On a GPU it keeps its address for the next run.
                IoMode::Input if space == MemorySpace::Host => bindings.bind_input(&io.name, Arc::new(buffer))?,
                IoMode::Input => bindings.bind_input(&io.name, buffer)?,
            }
        }
        Ok(())
    }

    fn compare(&self, engine: &Engine, expected: &[Interpreted], rank: Rank, run: usize, outputs: &[Vec<u8>]) {
        for (i, (&output, got)) in self.outputs.iter().zip(outputs).enumerate() {
            let (data_type, values) = &expected[output];
            let want = match &values[rank.index()] {
                Some(bits) => to_bytes(*data_type, bits.iter().copied()),
                None => vec![PATTERN; got.len()],
            };
            assert!(
                *got == want,
                "rank {rank}, run {run}, out{i}\n got {got:x?}\nwant {want:x?}\n{self:#?}\n{}",
                engine.inspect()
            );
        }
    }
}

/// The bytes of the outputs after a run.
fn outputs_of(engine: &Engine, bindings: &Bindings) -> Result<Vec<Vec<u8>>> {
    let outputs = engine.io_tensors().iter().filter(|io| io.mode == IoMode::Output);
    let read = |io: &IoTensor| {
        let buffer = bindings.get(&io.name)?;
        let mut bytes = vec![0; buffer.byte_len()];
        buffer.read(0, &mut bytes)?;
        Ok(bytes)
    };
    outputs.map(read).collect()
}

/// The way to run.
enum Way {
    Execute,
    Enqueue(Stream, MemorySpace),
}

/// Random networks whose bits do not depend on the backend, on communicators of 1 to 4 ranks; on
/// exact ones any networks. Every second context records graphs. The same seed gives the same
/// networks.
pub fn run_exact_networks(cases: u32, seed: u8, communicators: &[Vec<Communicator>]) {
    let genes = vec((any::<u8>(), any::<usize>(), any::<u64>()), 1..=12);
    let types = vec(0usize..DataType::LAYER_TYPES.len(), 1..=3);
    let strategy = (0..communicators.len(), any::<bool>(), types, genes, option::of(any::<usize>()));
    let config = ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 0, ..ProptestConfig::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]));
    let result = runner.run(&strategy, |(n, dynamic, types, genes, watched)| {
        let communicators = communicators[n].clone();
        let plan = plan(communicators.len() as u32, dynamic, types, genes);
        prop_assume!(plan.is_exact() || communicators[0].determinism() == Determinism::Exact);
        let expected = Arc::new([plan.interpret(1), plan.interpret(if plan.dynamic { 2 } else { 1 })]);
        let options = ContextOptions::default().cuda_graph(plan.steps.len().is_multiple_of(2));
        let of_ranks = plan.for_ranks(watched);
        let body = move |communicator: Communicator| {
            let (plan, engine) = &of_ranks[communicator.rank().index() % 2];
            plan.run(engine, &expected, &communicator, options)
        };
        for result in on_communicators(DEADLINE, communicators, body) {
            result.unwrap_or_else(|error| panic!("{error}"));
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

fn cases() -> u32 {
    if std::env::var_os("DCL_EXHAUSTIVE").is_some() { 10_000 } else { 96 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_network_gives_what_the_reference_gives(
        n in 1u32..=4,
        dynamic: bool,
        types in vec(0usize..DataType::LAYER_TYPES.len(), 1..=3),
        genes in vec((any::<u8>(), any::<usize>(), any::<u64>()), 1..=12),
        watched in option::of(any::<usize>()),
    ) {
        let plan = plan(n, dynamic, types, genes);
        let expected = Arc::new([plan.interpret(1), plan.interpret(if plan.dynamic { 2 } else { 1 })]);
        let of_ranks = plan.for_ranks(watched);
        let results = on_ranks(n, move |communicator| {
            let (plan, engine) = &of_ranks[communicator.rank().index() % 2];
            plan.run(engine, &expected, &communicator, ContextOptions::default())?;
            plan.run_two_contexts(engine, &expected[0], &communicator)
        });
        for result in results {
            result.expect("no error");
        }
    }
}

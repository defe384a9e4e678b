//! Exact mode on GPUs: the host's bits, around the lengths at which the way to reduce changes; and
//! that NCCL only moves.

use std::sync::Arc;

use distcollective::collective::Collective;
use distcollective::comm::{NcclId, RawOperands};
use distcollective::context::ContextOptions;
use distcollective::engine::IoMode;
use distcollective::{
    Buffer, CollectiveOperation, Communicator, DataType, Determinism, DistCollective, DistCollectiveLayer, Engine,
    ErrorKind, Network, Rank, ReduceOperation, Result, Stream,
};
use fake_gpu::Variant;

use super::libraries::{cuda_calls, nccl_calls};
use super::{Child, TIMEOUT, available_ranks, cuda_stream, is_on_gpu, needs_more_gpus, needs_test_libraries, on_gpus};
use crate::determinism::differences_are_errors;
use crate::ranks::{on_ranks, patient};
use crate::values::{elements, to_bytes};

/// The most bytes that all ranks together contribute to a reduction of which no rank gets only a
/// share; as the guide says.
const LONGEST_EXCHANGE: usize = 512 << 10;

/// Plays a role in a child.
pub fn play(name: &str, ranks: u32) {
    match name {
        "lengths" => lengths(ranks),
        "graphs" => {
            let host = Communicator::builder().in_process(ranks).expect("ranks");
            on_gpus(ranks, move |communicator| graphs(&communicator, &host[communicator.rank().index()]));
            assert_nothing_was_reduced();
        }
        "reserves" => on_gpus(ranks, |communicator| reserves(&communicator)),
        "differences" => on_gpus(ranks, |communicator| differences_are_errors(&communicator)),
        "connect" => connect(ranks),
        _ => panic!("{name} is no role"),
    }
}

/// NCCL was called, and none of the calls was a reduction. A barrier is one, of a byte.
fn assert_nothing_was_reduced() {
    if !is_on_gpu() {
        assert!(nccl_calls("ncclAllGather") > 0);
        assert_eq!(["ncclAllReduce", "ncclReduce", "ncclReduceScatter"].map(nccl_calls), [0; 3]);
    }
}

/// A collective on blocks of some length.
struct Case {
    collective: Collective<Rank>,
    data_type: DataType,
    block: usize,
    is_in_place: bool,
}

impl Case {
    fn operation(&self) -> CollectiveOperation {
        self.collective.operation()
    }

    /// Where the input and the output begin in one memory of bytes, and how long it is.
    fn layout(&self, rank: usize, n: usize) -> [usize; 3] {
        let block = self.block * self.data_type.byte_len();
        let (input, output) = (self.operation().input_blocks(n) * block, self.operation().output_blocks(n) * block);
        let apart = input.next_multiple_of(16);
        match (self.is_in_place, self.operation()) {
            (false, _) => [0, apart, apart + output],
            (true, CollectiveOperation::ReduceScatter) => [0, rank * block, input],
            (true, _) => [0, 0, input],
        }
    }

    /// Runs it on memory that begins with these bytes, and gives the memory after it.
    fn run(&self, communicator: &Communicator, memory: &mut Buffer, input: &[u8], stream: &Stream) -> Result<Vec<u8>> {
        let (rank, n) = (communicator.rank().index(), communicator.world_size() as usize);
        let [input_at, output_at, len] = self.layout(rank, n);
        let mut bytes = vec![0x5a; len];
        let input_len = self.operation().input_blocks(n) * self.block * self.data_type.byte_len();
        bytes[..input_len].copy_from_slice(&input[..input_len]);
        memory.write(0, &bytes)?;
        let address = memory.as_mut_ptr();
        // SAFETY: the layout is within the memory, which nothing else uses.
        let work = unsafe {
            let operands = RawOperands::Pair { input: address.add(input_at), output: address.add(output_at) };
            communicator.enqueue(self.collective, self.data_type, self.block, operands, stream)?
        };
        work.wait()?;
        memory.read(0, &mut bytes)?;
        Ok(bytes)
    }
}

/// Every type and reduction, with lengths at which a rank gets all contributions or its share.
fn cases(n: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for data_type in DataType::ALL {
        for reduce_op in ReduceOperation::LAYER_OPERATIONS.into_iter().filter(|op| op.applies_to(data_type)) {
            let root = Rank(cases.len() as u32 % n as u32);
            let longest = LONGEST_EXCHANGE / n / data_type.byte_len();
            let packet = 16 / data_type.byte_len();
            // The second to last is long enough for shares, and n divides the last.
            let lengths = [5, longest, longest + 1, (longest + 1).next_multiple_of(n * packet)];
            for collective in [Collective::AllReduce { reduce_op }, Collective::Reduce { reduce_op, root }] {
                for (i, block) in lengths.into_iter().enumerate() {
                    cases.push(Case { collective, data_type, block, is_in_place: (i + cases.len()) % 3 == 0 });
                }
            }
            for block in [5, 1040] {
                let is_in_place = cases.len() % 2 == 0;
                cases.push(Case { collective: Collective::ReduceScatter { reduce_op }, data_type, block, is_in_place });
            }
        }
    }
    cases
}

fn lengths(ranks: u32) {
    let n = ranks as usize;
    let host = Communicator::builder().in_process(ranks).expect("ranks");
    on_gpus(ranks, move |communicator| {
        let (host, rank) = (&host[communicator.rank().index()], communicator.rank());
        let exact = communicator.with_determinism(Determinism::Exact);
        let (stream, inline) = (cuda_stream(&communicator)?, Stream::inline());
        const ROOM: i64 = 2 << 20;
        let mut memory = Buffer::zeroed_in(communicator.space(), DataType::Uint8, [ROOM])?;
        let mut host_memory = Buffer::zeroed(DataType::Uint8, [ROOM])?;
        let mut input = (DataType::Float32, Vec::new());
        for case in cases(n) {
            if input.0 != case.data_type || input.1.is_empty() {
                // As many as the longest case has.
                let count = (LONGEST_EXCHANGE / n + 16 * n) / case.data_type.byte_len() + 1040 * n;
                let bits = elements(case.data_type, count, u64::from(rank.0));
                input = (case.data_type, to_bytes(case.data_type, bits));
            }
            let expected = case.run(host, &mut host_memory, &input.1, &inline)?;
            let got = case.run(&exact, &mut memory, &input.1, &stream)?;
            let at = got.iter().zip(&expected).position(|(a, b)| a != b);
            let Case { collective, data_type, block, is_in_place } = case;
            assert_eq!(at, None, "{collective:?} of {block} {data_type} on rank {rank} of {n}, in place {is_in_place}");
        }
        Ok(())
    });
    if n == 1 || is_on_gpu() {
        return;
    }
    assert_nothing_was_reduced();
    // Which way each case took.
    let is_exchanged_in_parts = |case: &Case| {
        let is_long = case.block * case.data_type.byte_len() * n > LONGEST_EXCHANGE;
        is_long || case.operation() == CollectiveOperation::ReduceScatter
    };
    assert_eq!(nccl_calls("ncclAlltoAll"), n * cases(n).into_iter().filter(is_exchanged_in_parts).count());
}

/// A network whose reductions are exact, with tensors of lengths that the number of ranks does not
/// divide, some of which are reduced by shares.
fn network(n: u32) -> Result<Network> {
    let mut network = Network::new();
    let mut add = |mut layer: DistCollectiveLayer, name: &str, data_type, len: i64| -> Result<()> {
        let x = network.add_input(&format!("{name} in"), data_type, [len])?;
        layer.set_determinism(Determinism::Exact);
        let y = network.add(layer, x)?;
        network.mark_output(y, name)
    };
    let reversed: Vec<Rank> = (0..n).rev().map(Rank).collect();
    let all_reduce = |reduce_op| DistCollective::all_reduce(reduce_op).nb_rank(n).into_layer();
    add(all_reduce(ReduceOperation::Sum), "long", DataType::Float32, 100_003)?;
    add(all_reduce(ReduceOperation::Avg), "short", DataType::Float16, 1001)?;
    add(all_reduce(ReduceOperation::Sum), "bools", DataType::Bool, 77)?;
    let group = DistCollective::all_reduce(ReduceOperation::Prod).group(reversed);
    add(group.into_layer(), "group", DataType::Bfloat16, 200_005)?;
    let scatter = DistCollective::reduce_scatter(ReduceOperation::Sum).nb_rank(n);
    add(scatter.into_layer(), "scatter", DataType::Float8E4M3, i64::from(n) * 1001)?;
    let root = DistCollective::reduce(ReduceOperation::Avg, Rank(n - 1)).nb_rank(n);
    add(root.into_layer(), "root", DataType::Float32, 90_001)?;
    Ok(network)
}

/// Runs an engine four times on other inputs each time, and gives the outputs of each run.
fn outputs_of(engine: &Engine, communicator: &Communicator, stream: &Stream) -> Result<Vec<Vec<u8>>> {
    let options = ContextOptions::default().cuda_graph(true);
    let mut context = engine.create_execution_context_with(options)?;
    context.set_communicator(communicator)?;
    let mut bindings = context.create_bindings();
    for io in engine.io_tensors() {
        let (name, dims) = (io.name.as_str(), io.dims);
        let buffer = Buffer::zeroed_in(communicator.space(), io.data_type, dims)?;
        match io.mode == IoMode::Input {
            true => bindings.bind_input(name, buffer)?,
            false => bindings.bind_output(name, buffer)?,
        };
    }
    let mut all = Vec::new();
    for round in 0..4 {
        for io in engine.io_tensors().iter().filter(|io| io.mode == IoMode::Input) {
            let buffer = bindings.get_mut(&io.name)?;
            let seed = round << 32 | u64::from(communicator.rank().0);
            let bits = elements(io.data_type, buffer.byte_len() / io.data_type.byte_len(), seed);
            buffer.write(0, &to_bytes(io.data_type, bits))?;
        }
        bindings = context.enqueue(bindings, stream)?.wait()?;
        for io in engine.io_tensors().iter().filter(|io| io.mode == IoMode::Output) {
            let buffer = bindings.get(&io.name)?;
            let mut bytes = vec![0; buffer.byte_len()];
            buffer.read(0, &mut bytes)?;
            all.push(bytes);
        }
    }
    Ok(all)
}

/// A context that records graphs gives the host's bits in each run: the plain one, the recorded
/// one, and those that replay.
fn graphs(communicator: &Communicator, host: &Communicator) -> Result<()> {
    let engine = network(communicator.world_size())?.build()?;
    let engine = Engine::deserialize(&engine.serialize()?)?;
    let expected = outputs_of(&engine, host, &Stream::inline())?;
    let got = outputs_of(&engine, communicator, &cuda_stream(communicator)?)?;
    assert_eq!(got.len(), expected.len());
    for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
        assert!(got == expected, "output {i} on rank {}", communicator.rank());
    }
    Ok(())
}

/// What exact mode needs is made by `set_communicator`, for the longest call and for shorter ones,
/// so that runs allocate and compile nothing.
fn reserves(communicator: &Communicator) -> Result<()> {
    let exact = communicator.with_determinism(Determinism::Exact);
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [-1])?;
    network.set_optimization_profile(x, [1], [1000], [100_000])?;
    let sum = DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(communicator.world_size());
    let y = network.add(sum, x)?;
    network.mark_output(y, "y")?;
    let mut context = network.build()?.create_execution_context()?;
    context.set_communicator(&exact)?;
    // With two ranks each reduces its share of the first length, and all of the second.
    for len in [100_000i64, 65_000] {
        context.set_input_shape("x", [len])?;
        let mut bindings = context.create_bindings();
        let tensor = || Buffer::zeroed_in(communicator.space(), DataType::Float32, [len]);
        bindings.bind_input("x", tensor()?)?;
        bindings.bind_output("y", tensor()?)?;
        // Every rank counts the calls of all ranks, so none runs while another one reads the count.
        let made = || -> Result<[usize; 2]> {
            communicator.barrier()?;
            let counts = ["cuMemAlloc_v2", "cuModuleLoadData"].map(cuda_calls);
            communicator.barrier()?;
            Ok(counts)
        };
        let before = made()?;
        context.enqueue(bindings, &Stream::inline())?.wait()?;
        assert_eq!(made()?, before, "a run of {len} elements makes what it needs");
    }
    Ok(())
}

/// Ranks that connect with different modes.
fn connect(ranks: u32) {
    let id = Arc::new(NcclId::new().expect("an id"));
    let is_gpu_shared = std::env::var_os("NCCL_MULTI_RANK_GPU_ENABLE").is_some();
    let errors = on_ranks(ranks, move |host| {
        let determinism = if host.rank() == Rank(0) { Determinism::Exact } else { Determinism::Backend };
        let device = if is_gpu_shared { 0 } else { host.rank().0 };
        let builder = Communicator::builder().nccl(&id).world_size(ranks).rank(host.rank()).device(device);
        let connected = builder.determinism(determinism).timeout(patient(TIMEOUT)).connect();
        // No rank drops its communicator before the others have compared.
        host.barrier().expect("all ranks come");
        connected.map(drop).expect_err("the modes differ")
    });
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Disagreement, "{error}");
        assert!(error.to_string().contains("connect wants the same determinism on every rank"), "{error}");
    }
}

fn lengths_on(ranks: u32, variant: Variant, capability: &str) {
    if is_on_gpu() && (ranks > available_ranks() || variant != Variant::Current || capability != "90") {
        println!("skipped: this needs the test libraries, or more GPUs");
        return;
    }
    Child::new("exact lengths", ranks).on(variant).with(&[("FAKE_CUDA_SM", capability)]).passes();
}

/// Makes a test of each configuration.
macro_rules! lengths {
    ($($name:ident: $ranks:literal, $variant:ident, $capability:literal;)*) => { $(
        #[test]
        fn $name() {
            lengths_on($ranks, Variant::$variant, $capability);
        }
    )* };
}

lengths! {
    all_lengths_on_one_rank: 1, Current, "90";
    all_lengths_on_two_ranks: 2, Current, "90";
    all_lengths_on_three_ranks: 3, Current, "80";
    all_lengths_on_four_ranks: 4, Current, "90";
    all_lengths_on_five_ranks: 5, Current, "90";
    all_lengths_on_six_ranks: 6, Current, "80";
    all_lengths_on_seven_ranks: 7, Current, "90";
    all_lengths_on_eight_ranks: 8, Current, "90";
}

#[test]
fn graphs_replay_the_hosts_bits() {
    for ranks in [2, 3] {
        if needs_more_gpus(ranks) {
            return;
        }
        Child::new("exact graphs", ranks).passes();
    }
}

#[test]
fn what_runs_need_is_reserved() {
    if needs_test_libraries() {
        return;
    }
    Child::new("exact reserves", 2).passes();
}

#[test]
fn ranks_that_differ_disagree() {
    if needs_more_gpus(3) {
        return;
    }
    Child::new("exact differences", 3).passes();
}

#[test]
fn ranks_that_connect_with_different_modes_disagree() {
    if needs_more_gpus(2) {
        return;
    }
    Child::new("exact connect", 2).passes();
}

//! Contexts on GPUs: networks, graphs, plugins.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex};

use distcollective::collective::Collective;
use distcollective::comm::Operands;
use distcollective::context::ContextOptions;
use distcollective::network::{Plugin, PluginCall, Shuffle};
use distcollective::tensor::{Bool, MemorySpace};
use distcollective::{
    Buffer, Communicator, DataType, Determinism, DistCollective, Engine, ErrorKind, Network, Rank, ReduceOperation,
    Result, Stream, inputs, outputs,
};
use libloading::Symbol;

use super::libraries::{cuda_calls, nccl_calls};
use super::{
    Child, available_ranks, communicators, cuda_stream, is_on_gpu, needs_more_gpus, needs_test_libraries, on_gpus,
    threads_share_a_gpu,
};
use crate::networks::run_exact_networks;

/// Plays a role in a child.
pub fn play(name: &str, ranks: u32) {
    match name {
        seed if seed.starts_with("networks ") => {
            let seed = seed["networks ".len()..].parse().expect("a number");
            run_exact_networks(30, seed, &(1..=ranks).map(communicators).collect::<Vec<_>>());
        }
        seed if seed.starts_with("exact networks ") => {
            let seed = seed["exact networks ".len()..].parse().expect("a number");
            let exact = |communicator: Communicator| communicator.with_determinism(Determinism::Exact);
            let exact = |n| communicators(n).into_iter().map(exact).collect();
            run_exact_networks(30, seed, &(1..=ranks).map(exact).collect::<Vec<_>>());
        }
        "casts" => on_gpus(ranks, |communicator| casts(&communicator)),
        "options" => on_gpus(ranks, |communicator| options(&communicator)),
        "groups" => groups(ranks),
        "no groups" => no_groups(ranks),
        "reserve" => on_gpus(ranks, |communicator| reserves_for_groups(&communicator)),
        "graphs" => graphs(ranks),
        "profile" => profile(ranks),
        "capture" => on_gpus(ranks, |communicator| capture(&communicator)),
        "mistakes" => on_gpus(ranks, |communicator| mistakes(&communicator)),
        "host memory" => on_gpus(ranks, |communicator| {
            let text = "input \"x\": it is bound to host memory; on a CUDA stream tensors are in the memory of GPU";
            wrong_memory(&communicator, MemorySpace::Host, text)
        }),
        "other memory" => on_gpus(ranks, |communicator| {
            let MemorySpace::Cuda(own) = communicator.space() else { return communicator.check() };
            let other = MemorySpace::Cuda((own + 1) % communicator.world_size());
            wrong_memory(&communicator, other, "input \"x\": it is bound to the memory of GPU")
        }),
        "old device" => on_gpus(ranks, |communicator| old_device(&communicator)),
        _ => panic!("{name} is no role"),
    }
}

/// An all_reduce of float32 [4], after a plugin if one is given.
fn sum(ranks: u32, plugin: Option<Copying>) -> Result<Engine> {
    let mut network = Network::new();
    let mut x = network.add_input("x", DataType::Float32, [4])?;
    if let Some(plugin) = plugin {
        x = network.add_plugin("copying", plugin, &[x])?;
    }
    let y = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(ranks).named("sum"), x)?;
    network.mark_output(y, "y")?;
    network.build()
}

/// A plugin that checks that its tensors are on the GPU, and then fails.
#[derive(Debug)]
struct Copying {
    runs_on_cuda: bool,
}

impl Plugin for Copying {
    fn type_name(&self) -> &str {
        "copying"
    }

    fn enqueue(&self, call: &mut PluginCall<'_>) -> Result<()> {
        assert!(call.cuda_stream().is_some_and(|stream| !stream.is_null()));
        let input = call.input(0)?;
        assert!(matches!(input.space(), MemorySpace::Cuda(_)) && !input.as_ptr().is_null());
        // A plugin for the host makes this call.
        let error = input.as_slice::<f32>().expect_err("the processor cannot touch it");
        assert!(error.to_string().contains("which the processor cannot touch"), "{error}");
        Err(error)
    }

    fn runs_on_cuda(&self) -> bool {
        self.runs_on_cuda
    }
}

/// A network that uses one kernel several times, and other kernels in between.
fn casts(communicator: &Communicator) -> Result<()> {
    let mut network = Network::new();
    let mut x = network.add_input("x", DataType::Float32, [3, 5])?;
    for to in [DataType::Float16, DataType::Float32, DataType::Float16, DataType::Int8, DataType::Float32] {
        x = network.add_cast(x, to)?;
        x = network.add_shuffle(x, Shuffle::transpose([1, 0]))?;
    }
    network.mark_output(x, "y")?;
    let mut context = network.build()?.create_execution_context()?;
    context.set_communicator(communicator)?;
    let given: Vec<f32> = (0..15).map(|x| x as f32).collect();
    let mut y = vec![0f32; 15];
    context.execute(inputs!["x" => &given], outputs!["y" => &mut y])?;
    assert_eq!(y[..6], [0.0, 5.0, 10.0, 1.0, 6.0, 11.0]);
    Ok(())
}

/// Only some ranks want CUDA graphs, which is an error on all of them.
fn options(communicator: &Communicator) -> Result<()> {
    let engine = sum(communicator.world_size(), None)?;
    let options = ContextOptions::default().cuda_graph(communicator.rank() == Rank(0));
    let mut context = engine.create_execution_context_with(options)?;
    let error = context.set_communicator(communicator).expect_err("the options differ");
    assert_eq!(error.kind(), ErrorKind::Disagreement, "{error}");
    communicator.barrier()
}

/// NCCL gets adjacent collectives that do not depend on each other in one group, if each of them is
/// one call of NCCL's.
fn groups(ranks: u32) {
    on_gpus(ranks, |communicator| {
        let n = communicator.world_size();
        let mut network = Network::new();
        let x = network.add_input("x", DataType::Int32, [i64::from(n), 2])?;
        let t = network.add_input("t", DataType::Bool, [4])?;
        let sum = DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(n).named("sum");
        let max = DistCollective::all_reduce(ReduceOperation::Max)
            .group((0..n).rev().map(Rank).collect::<Vec<_>>())
            .named("max");
        let first = DistCollective::reduce(ReduceOperation::Sum, Rank(0)).nb_rank(n).named("first");
        let (sum, max, first) = (network.add(sum, x)?, network.add(max, x)?, network.add(first, x)?);
        // "all" reads the output of "first", and "any" needs a kernel.
        let all = network.add(DistCollective::all_gather().nb_rank(n).named("all"), first)?;
        let any = network.add(DistCollective::all_reduce(ReduceOperation::Max).nb_rank(n).named("any"), t)?;
        for (tensor, name) in [(sum, "sum"), (max, "max"), (all, "all"), (any, "any")] {
            network.mark_output(tensor, name)?;
        }
        let engine = network.build()?;
        let mut context = engine.create_execution_context()?;
        context.set_communicator(&communicator)?;
        let rank = communicator.rank().0 as i32;
        let x = vec![rank + 1; 2 * n as usize];
        let t = [Bool(u8::from(rank == 0)), Bool(0), Bool(1), Bool(rank as u8)];
        let len = 2 * n as usize;
        let (mut sum, mut max, mut all, mut any) =
            (vec![0; len], vec![0; len], vec![9; n as usize * len], [Bool(0); 4]);
        context.execute(
            inputs!["x" => &x, "t" => &t],
            outputs!["sum" => &mut sum, "max" => &mut max, "all" => &mut all, "any" => &mut any],
        )?;
        let total = (n * (n + 1) / 2) as i32;
        assert_eq!((sum, max), (vec![total; len], vec![n as i32; len]));
        // Off the root, the output of "first" reads as zeros.
        assert_eq!(all[..len], vec![total; len]);
        assert!(all[len..].iter().all(|x| *x == 0), "{all:?}");
        assert_eq!(any.map(|x| x.0), [1, 0, 1, u8::from(n > 1)]);
        Ok(())
    });
    if !is_on_gpu() {
        // Each rank makes one group of "sum", "max" and "first". "all" and "any" are one step too,
        // but "any" needs more than one call of NCCL's.
        assert_eq!(nccl_calls("ncclGroupStart"), if ranks > 1 { ranks as usize } else { 0 });
    }
}

/// Ranks with different layers between their collectives make no groups of them, because NCCL has
/// to get the same groups on every rank.
fn no_groups(ranks: u32) {
    on_gpus(ranks, |communicator| {
        let mut network = Network::new();
        let x = network.add_input("x", DataType::Int32, [2, 2])?;
        let sum = || DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(communicator.world_size());
        let first = network.add(sum(), x)?;
        let turned = network.add_shuffle(x, Shuffle::transpose([1, 0]))?;
        let back = network.add_shuffle(turned, Shuffle::transpose([1, 0]))?;
        let second = network.add(sum(), back)?;
        network.mark_output(first, "first")?;
        network.mark_output(second, "second")?;
        // The shuffles run on this rank only.
        let is_seen = communicator.rank() == Rank(0);
        if is_seen {
            network.mark_output(turned, "turned")?;
        }
        let mut context = network.build()?.create_execution_context()?;
        context.set_communicator(&communicator)?;
        let (mut first, mut second, mut turned) = ([0; 4], [0; 4], [0; 4]);
        let outputs = outputs!["first" => &mut first, "second" => &mut second, "turned" => &mut turned];
        context.execute(inputs!["x" => &[1, 2, 3, 4]], outputs.into_iter().take(if is_seen { 3 } else { 2 }))?;
        let total = [1, 2, 3, 4].map(|x| x * communicator.world_size() as i32);
        assert_eq!((first, second, turned), (total, total, if is_seen { [1, 3, 2, 4] } else { [0; 4] }));
        Ok(())
    });
    if !is_on_gpu() {
        assert_eq!(nccl_calls("ncclGroupStart"), 0);
    }
}

/// A layer on a group runs on the stream of the context's communicator. What it needs there is made
/// by `set_communicator`, so the first run allocates nothing.
fn reserves_for_groups(communicator: &Communicator) -> Result<()> {
    let n = communicator.world_size();
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Bool, [64])?;
    // A reduction of bool needs scratch memory and kernels. The group has the ranks in another
    // order, so it is a communicator of its own.
    let group: Vec<Rank> = (0..n).rev().map(Rank).collect();
    let y = network.add(DistCollective::all_reduce(ReduceOperation::Max).group(group), x)?;
    network.mark_output(y, "y")?;
    let engine = network.build()?;
    for options in [ContextOptions::default(), ContextOptions::default().cuda_graph(true)] {
        let mut context = engine.create_execution_context_with(options)?;
        context.set_communicator(communicator)?;
        let mut bindings = context.create_bindings();
        bindings.bind_input("x", Buffer::zeroed_in(communicator.space(), DataType::Bool, [64])?)?;
        bindings.bind_output("y", Buffer::zeroed_in(communicator.space(), DataType::Bool, [64])?)?;
        // Every rank counts the calls of all ranks, so none runs while another one reads the count.
        let made = || -> Result<[usize; 2]> {
            communicator.barrier()?;
            let counts = ["cuMemAlloc_v2", "cuModuleLoadData"].map(cuda_calls);
            communicator.barrier()?;
            Ok(counts)
        };
        let before = made()?;
        bindings = context.enqueue(bindings, &Stream::inline())?.wait()?;
        assert_eq!(made()?, before, "the first run makes what it needs");
        // With a graph, the second run is recorded, which does not allow an allocation either.
        context.enqueue(bindings, &Stream::inline())?.wait()?;
    }
    Ok(())
}

/// With `cuda_graph`, a context records its second run, and replays the graph from the third on
/// until an address or a shape changes. Not where ranks of the process share a GPU.
fn graphs(ranks: u32) {
    let shares_gpu = threads_share_a_gpu(ranks);
    let counts = if shares_gpu { [0; 3] } else { [1, 3, 2] };
    on_gpus(ranks, move |communicator| {
        let n = communicator.world_size() as f32;
        let engine = sum(communicator.world_size(), None)?;
        let mut context = engine.create_execution_context_with(ContextOptions::default().cuda_graph(true))?;
        context.set_communicator(&communicator)?;
        let stream = cuda_stream(&communicator)?;
        let tensor = || Buffer::zeroed_in(communicator.space(), DataType::Float32, [4]);
        let mut bindings = context.create_bindings();
        bindings.bind_input("x", tensor()?)?;
        bindings.bind_output("y", tensor()?)?;
        for round in 0..6 {
            if round == 5 {
                bindings.bind_output("y", tensor()?)?;
            }
            bindings.get_mut("x")?.write(0, &[round as f32; 4].map(f32::to_le_bytes).concat())?;
            bindings = context.enqueue(bindings, &stream)?.wait()?;
            let mut y = [0; 16];
            bindings.get("y")?.read(0, &mut y)?;
            assert_eq!(y.to_vec(), [n * round as f32; 4].map(f32::to_le_bytes).concat(), "round {round}");
        }
        let graphs = context.cuda_graphs();
        assert_eq!([graphs.recorded, graphs.replayed, graphs.plain], counts);
        Ok(())
    });
    if !is_on_gpu() {
        assert_eq!(cuda_calls("cuGraphLaunch"), (counts[0] + counts[1]) as usize * ranks as usize);
        assert_eq!(cuda_calls("cuStreamBeginCapture_v2"), counts[0] as usize * ranks as usize);
    }
}

/// The GPU's times: of a layer, of layers in one group of NCCL's, of a graph as a whole.
fn profile(ranks: u32) {
    let shares_gpu = threads_share_a_gpu(ranks);
    on_gpus(ranks, move |communicator| {
        let n = communicator.world_size();
        let mut network = Network::new();
        let x = network.add_input("x", DataType::Float32, [4])?;
        let cast = network.add_cast(x, DataType::Int32)?;
        for (name, reduce_op) in [("sum", ReduceOperation::Sum), ("max", ReduceOperation::Max)] {
            let y = network.add(DistCollective::all_reduce(reduce_op).nb_rank(n).named(name), cast)?;
            network.mark_output(y, name)?;
        }
        let options = ContextOptions::default().cuda_graph(true);
        let mut context = network.build()?.create_execution_context_with(options)?;
        context.set_communicator(&communicator)?;
        let told = Arc::new(Mutex::new(Vec::<(String, [usize; 2])>::new()));
        let list = Arc::clone(&told);
        context.set_profiler(Some(Arc::new(move |time| {
            assert_eq!(time.waited, None);
            list.lock().expect("no panic").push((time.layer.to_owned(), [time.input_bytes, time.output_bytes]));
        })));
        let stream = cuda_stream(&communicator)?;
        let mut bindings = context.create_bindings();
        for name in ["sum", "max"] {
            bindings.bind_output(name, Buffer::zeroed_in(communicator.space(), DataType::Int32, [4])?)?;
        }
        bindings.bind_input("x", Buffer::zeroed_in(communicator.space(), DataType::Float32, [4])?)?;
        for round in 0..4 {
            bindings = context.enqueue(bindings, &stream)?.wait()?;
            let told: Vec<_> = std::mem::take(&mut *told.lock().expect("no panic"));
            let both = if n > 1 { vec![("sum, max", [32, 32])] } else { vec![("sum", [16, 16]), ("max", [16, 16])] };
            let plain = [vec![("cast_0", [16, 16])], both].concat();
            let expected = if round > 0 && !shares_gpu { vec![("CUDA graph", [0, 0])] } else { plain };
            let told: Vec<_> = told.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect();
            assert_eq!(told, expected, "round {round}");
        }
        Ok(())
    });
}

type Handle = *mut c_void;

/// The caller captures a stream: a context's run on it becomes part of the caller's graph.
fn capture(communicator: &Communicator) -> Result<()> {
    let MemorySpace::Cuda(ordinal) = communicator.space() else { panic!("the communicator is not on a GPU") };
    let n = communicator.world_size() as f32;
    let engine = sum(communicator.world_size(), None)?;
    let mut context = engine.create_execution_context()?;
    context.set_communicator(communicator)?;
    let stream = cuda_stream(communicator)?;
    let raw = stream.as_raw_cuda().expect("a CUDA stream");
    let tensor = || Buffer::zeroed_in(communicator.space(), DataType::Float32, [4]);
    let mut bindings = context.create_bindings();
    bindings.bind_input("x", tensor()?)?;
    bindings.bind_output("y", tensor()?)?;
    // The first run makes all that a capture cannot make.
    bindings = context.enqueue(bindings, &stream)?.wait()?;
    // SAFETY: the driver's functions have these types; the buffers outlive the graph, which is
    // launched and waited for here.
    let graph = unsafe {
        let cuda = libloading::Library::new("libcuda.so.1").expect("a driver");
        let begin: Symbol<'_, unsafe extern "C" fn(Handle, i32) -> i32> =
            cuda.get("cuStreamBeginCapture_v2").expect("it");
        let end: Symbol<'_, unsafe extern "C" fn(Handle, *mut Handle) -> i32> =
            cuda.get("cuStreamEndCapture").expect("it");
        let make: Symbol<'_, unsafe extern "C" fn(*mut Handle, Handle, u64) -> i32> =
            cuda.get("cuGraphInstantiateWithFlags").expect("it");
        let set_current: Symbol<'_, unsafe extern "C" fn(Handle) -> i32> = cuda.get("cuCtxSetCurrent").expect("it");
        let retain: Symbol<'_, unsafe extern "C" fn(*mut Handle, i32) -> i32> =
            cuda.get("cuDevicePrimaryCtxRetain").expect("it");
        let launch: Symbol<'_, unsafe extern "C" fn(Handle, Handle) -> i32> = cuda.get("cuGraphLaunch").expect("it");
        let destroy: Symbol<'_, unsafe extern "C" fn(Handle) -> i32> = cuda.get("cuGraphDestroy").expect("it");
        let destroy_exec: Symbol<'_, unsafe extern "C" fn(Handle) -> i32> = cuda.get("cuGraphExecDestroy").expect("it");
        let (mut current, mut graph, mut executable) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        assert_eq!(retain(&mut current, ordinal as i32), 0);
        assert_eq!(set_current(current), 0);
        const THREAD_LOCAL: i32 = 1;
        // A call that still needs a kernel is an error, and the communicator still works. Ranks may
        // share a GPU and its kernels, so each needs another one.
        if n > 1.0 {
            let exact = communicator.with_determinism(Determinism::Exact);
            let data_type = DataType::ALL[communicator.rank().index()];
            let operands = Operands::in_place(Buffer::zeroed_in(communicator.space(), data_type, [4])?);
            let sum = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
            assert_eq!(begin(raw, THREAD_LOCAL), 0);
            let failed = exact.collective_async(sum, operands, &stream)?.wait().expect_err("nothing is there yet");
            let failed = distcollective::Error::from(failed);
            assert_eq!(failed.kind(), ErrorKind::NotReady, "{failed}");
            assert_eq!(end(raw, &mut graph), 0);
            assert_eq!(destroy(graph), 0);
            communicator.barrier()?;
        }
        context.set_profiler(Some(Arc::new(|time| panic!("{} is measured in a capture", time.layer))));
        assert_eq!(begin(raw, THREAD_LOCAL), 0);
        let work = context.enqueue(bindings, &stream)?;
        assert!(work.is_done(), "what is recorded is not waited for");
        bindings = work.wait()?;
        assert_eq!(end(raw, &mut graph), 0);
        assert_eq!(make(&mut executable, graph, 0), 0);
        for round in 1..4 {
            bindings.get_mut("x")?.write(0, &[round as f32; 4].map(f32::to_le_bytes).concat())?;
            assert_eq!(launch(executable, raw), 0);
            stream.synchronize()?;
            let mut y = [0; 16];
            bindings.get("y")?.read(0, &mut y)?;
            assert_eq!(y.to_vec(), [n * round as f32; 4].map(f32::to_le_bytes).concat(), "round {round}");
        }
        assert_eq!(destroy(graph), 0);
        destroy_exec(executable)
    };
    assert_eq!(graph, 0);
    communicator.barrier()
}

fn mistakes(communicator: &Communicator) -> Result<()> {
    let n = communicator.world_size();
    let stream = cuda_stream(communicator)?;
    let engine = sum(n, None)?;
    let mut context = engine.create_execution_context()?;

    // A CUDA stream without a communicator on GPUs. A single rank needs no communicator, and then
    // the context runs on the host.
    let error = context.enqueue(context.create_bindings(), &stream).expect_err("there is no communicator").error;
    assert_eq!(error.kind(), if n > 1 { ErrorKind::NotReady } else { ErrorKind::Unsupported }, "{error}");
    context.set_communicator(communicator)?;

    // The inline stream takes host memory.
    let (x, mut y) = ([1.0f32; 4], [0.0f32; 4]);
    context.execute(inputs!["x" => &x], outputs!["y" => &mut y])?;
    assert_eq!(y, [n as f32; 4]);

    // A plugin for the host is an error of `set_communicator` on every rank, and the communicator
    // still works.
    let mut host_only = sum(n, Some(Copying { runs_on_cuda: false }))?.create_execution_context()?;
    let error = host_only.set_communicator(communicator).expect_err("the plugin is for the host").to_string();
    assert!(error.contains("the plugin does not say that it runs on CUDA"), "{error}");
    communicator.barrier()?;

    // A plugin that wrongly says that it runs on CUDA ends the communicator. Each rank returns its
    // own error, or that of the rank that failed first.
    let mut wrong = sum(n, Some(Copying { runs_on_cuda: true }))?.create_execution_context()?;
    let mut y = [0f32; 4];
    let error = wrong
        .set_communicator(communicator)
        .and_then(|()| wrong.execute(inputs!["x" => &[1f32; 4]], outputs!["y" => &mut y]))
        .expect_err("the plugin fails");
    assert!(error.to_string().contains("which the processor cannot touch"), "{error}");
    communicator.check().expect_err("the communicator has ended");
    Ok(())
}

/// A run that cannot begin, because its tensors are in memory of the host or of another GPU. Among
/// several ranks it ends the communicator, because NCCL has no way to leave out a run.
fn wrong_memory(communicator: &Communicator, space: MemorySpace, expected: &str) -> Result<()> {
    let n = communicator.world_size();
    let stream = cuda_stream(communicator)?;
    let mut context = sum(n, None)?.create_execution_context()?;
    context.set_communicator(communicator)?;
    let mut bindings = context.create_bindings();
    bindings.bind_input("x", Buffer::zeroed_in(space, DataType::Float32, [4])?)?;
    bindings.bind_output("y", Buffer::zeroed_in(communicator.space(), DataType::Float32, [4])?)?;
    // All ranks have set it. From here on, another rank may have ended it.
    if let Err(error) = communicator.barrier() {
        assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
    }
    let error = context.enqueue(bindings, &stream).expect_err("the wrong memory").error;
    assert!(error.to_string().contains(expected) || error.kind() == ErrorKind::Aborted, "{error}");
    match n {
        1 => communicator.check(),
        _ => {
            let error = communicator.check().expect_err("it has ended");
            assert!(error.to_string().contains("refused run 1 of context or layer"), "{error}");
            Ok(())
        }
    }
}

/// TensorRT's layer needs compute capability 8.0 on every rank.
fn old_device(communicator: &Communicator) -> Result<()> {
    let engine = sum(communicator.world_size(), None)?;
    let mut context = engine.create_execution_context_with(ContextOptions::default())?;
    let error = context.set_communicator(communicator).expect_err("the device is too old").to_string();
    assert!(error.contains("layer \"sum\" (all_reduce): GPU"), "{error}");
    assert!(error.contains("has compute capability 7.5; layers of several ranks need 8.0"), "{error}");
    // The rule is for layers, and not for eager calls.
    communicator.all_reduce(&mut [1f32], ReduceOperation::Sum)
}

fn networks_give_what_the_reference_gives(kind: &str, seed: u8) {
    let ranks = if is_on_gpu() { available_ranks().min(4) } else { 4 };
    Child::new(&format!("contexts {kind} {seed}"), ranks).passes();
}

/// Makes a test of each seed.
macro_rules! networks {
    ($kind:literal; $($name:ident: $seed:literal),*) => { $(
        #[test]
        fn $name() {
            networks_give_what_the_reference_gives($kind, $seed);
        }
    )* };
}

networks!("networks"; first_networks: 1, second_networks: 2, third_networks: 3, fourth_networks: 4, fifth_networks: 5,
    sixth_networks: 6);
// Here reductions of floats are among them.
networks!("exact networks"; first_exact_networks: 7, second_exact_networks: 8, third_exact_networks: 9);

#[test]
fn independent_collectives_go_together() {
    for ranks in [1, 2, 3] {
        if needs_more_gpus(ranks) {
            return;
        }
        Child::new("contexts groups", ranks).passes();
        Child::new("contexts no groups", ranks).passes();
    }
}

#[test]
fn layers_on_groups_have_what_they_need_before_they_run() {
    if needs_test_libraries() {
        return;
    }
    Child::new("contexts reserve", 2).passes();
}

#[test]
fn kernels_are_made_once() {
    Child::new("contexts casts", 1).passes();
}

#[test]
fn ranks_record_alike() {
    if needs_more_gpus(2) {
        return;
    }
    Child::new("contexts options", 2).passes();
}

#[test]
fn contexts_record_graphs_and_replay_them() {
    for ranks in [1, 3] {
        if needs_more_gpus(ranks) {
            return;
        }
        Child::new("contexts graphs", ranks).passes();
    }
}

#[test]
fn the_times_of_layers_are_those_of_the_gpu() {
    for ranks in [1, 3] {
        if needs_more_gpus(ranks) {
            return;
        }
        Child::new("contexts profile", ranks).passes();
    }
}

#[test]
fn what_is_enqueued_can_be_captured() {
    for ranks in [1, 2] {
        if needs_more_gpus(ranks) {
            return;
        }
        Child::new("contexts capture", ranks).passes();
    }
}

#[test]
fn mistakes_are_named_and_the_other_ranks_continue() {
    let ranks = if is_on_gpu() { 1 } else { 2 };
    Child::new("contexts mistakes", ranks).passes();
    Child::new("contexts host memory", ranks).passes();
    if ranks > 1 {
        Child::new("contexts other memory", ranks).passes();
    }
}

#[test]
fn a_device_that_is_too_old_is_named() {
    if needs_test_libraries() {
        return;
    }
    Child::new("contexts old device", 2).with(&[("FAKE_CUDA_SM", "75")]).passes();
}

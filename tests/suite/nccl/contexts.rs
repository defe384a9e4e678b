//! Contexts on GPUs: networks, graphs, plugins.

use std::time::Duration;

use distcollective::{
    Builder, Communicator, ContextOptions, DataType, DistCollective, Engine, ErrorKind, MemorySpace, Network, Plugin,
    PluginCall, ReduceOperation, Result, Shape, inputs, outputs,
};

use super::{Child, TIMEOUT, available_ranks, cuda_stream, is_on_gpu, on_gpus};
use crate::networks::run_exact_networks;

/// Plays a role in a child.
pub fn play(name: &str, ranks: u32) {
    match name {
        "networks" => {
            let on = |n| Communicator::nccl_in_process(n, TIMEOUT).unwrap_or_else(|error| panic!("{error}"));
            run_exact_networks(40, &(1..=ranks).map(on).collect::<Vec<_>>());
        }
        "mistakes" => on_gpus(ranks, |communicator| mistakes(&communicator)),
        "old device" => on_gpus(ranks, |communicator| old_device(&communicator)),
        _ => panic!("{name} is no role"),
    }
}

/// A sum of float32 [4], with a plugin before it if there is one.
fn sum(ranks: u32, plugin: Option<Copying>) -> Result<Engine> {
    let mut network = Network::new();
    let mut x = network.add_input("x", DataType::Float32, [4])?;
    if let Some(plugin) = plugin {
        x = network.add_plugin("copying", plugin, &[x])?;
    }
    let y = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(ranks).named("sum"), x)?;
    network.mark_output(y, "y")?;
    Builder::new().build(&network)
}

/// A layer of the user's own.
#[derive(Debug)]
struct Copying {
    runs_on_cuda: bool,
}

impl Plugin for Copying {
    fn type_name(&self) -> &str {
        "copying"
    }

    fn output_types(&self, inputs: &[DataType]) -> Result<Vec<DataType>> {
        Ok(inputs.to_vec())
    }

    fn output_shapes(&self, inputs: &[Shape]) -> Result<Vec<Shape>> {
        Ok(inputs.to_vec())
    }

    fn enqueue(&self, call: &mut PluginCall<'_>) -> Result<()> {
        assert!(call.cuda_stream().is_some_and(|stream| !stream.is_null()));
        let input = call.input(0)?;
        assert!(matches!(input.space(), MemorySpace::Cuda(_)) && !input.as_ptr().is_null());
        // What a plugin for the host would do.
        let error = input.as_slice::<f32>().expect_err("the processor cannot touch it");
        assert!(error.to_string().contains("which the processor cannot touch"), "{error}");
        Err(error)
    }

    fn runs_on_cuda(&self) -> bool {
        self.runs_on_cuda
    }
}

fn mistakes(communicator: &Communicator) -> Result<()> {
    let n = communicator.world_size();
    let stream = cuda_stream(communicator)?;
    let engine = sum(n, None)?;
    let mut context = engine.create_execution_context()?;

    // A CUDA stream without a communicator on GPUs.
    let error = context.enqueue(context_bindings(&context), &stream).expect_err("there is no communicator").error;
    assert_eq!(error.kind(), ErrorKind::NotReady, "{error}");
    context.set_communicator(communicator)?;

    // Host memory on a CUDA stream.
    let mut bindings = context.create_bindings();
    let tensor = || distcollective::Buffer::from_slice(&[1.0f32; 4], [4]);
    bindings.bind_input("x", tensor()?)?;
    bindings.bind_output("y", tensor()?)?;
    let failed = context.enqueue(bindings, &stream).expect_err("host memory");
    let text = failed.error.to_string();
    assert!(
        text.contains("input \"x\": it is bound to host memory; on a CUDA stream tensors are in the memory of GPU"),
        "{text}"
    );

    // The same, and done, on the inline stream.
    let bindings = context.enqueue(*failed.operands, &distcollective::Stream::inline())?.wait()?;
    assert_eq!(bindings.get("y")?.as_slice::<f32>()?, [n as f32; 4]);

    // Another GPU's stream, and another GPU's memory.
    if let MemorySpace::Cuda(own) = communicator.space()
        && n > 1
    {
        let other = MemorySpace::Cuda((own + 1) % n);
        let mut bindings = context.create_bindings();
        bindings.bind_input("x", distcollective::Buffer::zeroed_in(other, DataType::Float32, [4])?)?;
        bindings.bind_output("y", distcollective::Buffer::zeroed_in(communicator.space(), DataType::Float32, [4])?)?;
        let error = context.enqueue(bindings, &stream).expect_err("another GPU's memory").error.to_string();
        assert!(error.contains("it is bound to the memory of GPU") && error.contains("the context runs on"), "{error}");
    }

    // A plugin that says nothing of CUDA is found when the communicator is set, on every rank; the communicator still works.
    let mut host_only = sum(n, Some(Copying { runs_on_cuda: false }))?.create_execution_context()?;
    let error = host_only.set_communicator(communicator).expect_err("the plugin is for the host").to_string();
    assert!(error.contains("the plugin does not say that it runs on CUDA"), "{error}");
    communicator.barrier()?;

    // One that says that it does, and does not, ends the communicator.
    let mut wrong = sum(n, Some(Copying { runs_on_cuda: true }))?.create_execution_context()?;
    wrong.set_communicator(communicator)?;
    let mut y = [0f32; 4];
    let error = wrong.execute(inputs!["x" => &[1f32; 4]], outputs!["y" => &mut y]).expect_err("the plugin fails");
    assert!(error.to_string().contains("which the processor cannot touch"), "{error}");
    communicator.check().expect_err("the communicator has ended");
    Ok(())
}

fn context_bindings(context: &distcollective::ExecutionContext) -> distcollective::Bindings {
    context.create_bindings()
}

/// TensorRT's layer wants compute capability 8.0 of every rank.
fn old_device(communicator: &Communicator) -> Result<()> {
    let engine = sum(communicator.world_size(), None)?;
    let mut context = engine.create_execution_context_with(ContextOptions::default())?;
    let error = context.set_communicator(communicator).expect_err("the device is too old").to_string();
    assert!(error.contains("layer \"sum\" (all_reduce): GPU"), "{error}");
    assert!(error.contains("has compute capability 7.5; layers of several ranks need 8.0"), "{error}");
    // Eager calls are no layers.
    communicator.all_reduce(&mut [1f32], ReduceOperation::Sum)
}

#[test]
fn networks_give_what_the_reference_gives() {
    let ranks = if is_on_gpu() { available_ranks().min(4) } else { 4 };
    Child::new("contexts networks", ranks).passes_within(Duration::from_secs(60));
}

#[test]
fn mistakes_are_named_and_leave_others_in_peace() {
    let ranks = if is_on_gpu() { 1 } else { 2 };
    Child::new("contexts mistakes", ranks).passes();
}

#[test]
fn a_device_that_is_too_old_is_named() {
    if is_on_gpu() {
        println!("skipped: this needs the test libraries");
        return;
    }
    Child::new("contexts old device", 2).with(&[("FAKE_CUDA_SM", "75")]).passes();
}

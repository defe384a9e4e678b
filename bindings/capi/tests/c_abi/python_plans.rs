//! Plans go from Python to Rust and C, and back: each language writes the same plan, and each runs
//! it.

use std::path::{Path, PathBuf};
use std::process::Command;

use dcl::network::Shuffle;
use dcl::{Communicator, DataType, DistCollective, Engine, Network, Result, inputs, outputs};
use test_support::{Folder, root, run, skip, succeed, timed};

use crate::compiler::{Language, Under, program};

const RANKS: u32 = 2;

/// The network: x [-1, 3] -> transpose -> all_gather -> cast -> y.
fn engine() -> Result<Engine> {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [-1, 3])?;
    network.set_optimization_profile(x, [1, 3], [2, 3], [4, 3])?;
    let transposed = network.add_shuffle(x, Shuffle::transpose([1, 0]))?;
    let gathered = network.add(DistCollective::all_gather().nb_rank(RANKS), transposed)?;
    let y = network.add_cast(gathered, DataType::Int32)?;
    for (tensor, layer, name) in [(transposed, "transpose", "transposed"), (gathered, "gather", "gathered")] {
        network.layer_of_mut(tensor)?.set_name(layer);
        network.set_tensor_name(tensor, name)?;
    }
    network.layer_of_mut(y)?.set_name("cast");
    network.mark_output(y, "y")?;
    network.build()
}

/// What the ranks print: the rank, and its y.
fn run_in_rust(plan: &Path) -> Result<Vec<String>> {
    let engine = Engine::load(plan)?;
    Communicator::spawn(RANKS, |communicator| {
        let mut context = engine.create_execution_context()?;
        context.set_communicator(&communicator)?;
        let x: Vec<f32> = (0..6u8).map(|i| f32::from(i) + 10.0 * communicator.rank().0 as f32).collect();
        let mut y = [0i32; 12];
        context.set_input_shape("x", [2, 3])?;
        context.execute(inputs!["x" => &x], outputs!["y" => &mut y])?;
        let y = y.map(|element| element.to_string()).join(" ");
        Ok(format!("rank {}: {y}", communicator.rank()))
    })
}

/// The interpreter into which `.ci/run` installs the package.
fn python() -> Option<PathBuf> {
    let python = root().join("target/python/bin/python");
    let (output, text) = match python.exists() {
        true => run(timed(&python).args(["-c", "import distcollective.tensorrt, numpy"])),
        false => return none(&format!("{} does not exist", python.display())),
    };
    if output.status.success() { Some(python) } else { none(&text) }
}

fn none(reason: &str) -> Option<PathBuf> {
    skip(&format!("the Python package is not installed as .ci/run does it: {reason}"));
    None
}

#[test]
#[ignore = "needs the Python package; CI installs it and runs this"]
fn plans_of_python_run_in_rust_and_c_and_back() {
    let own = |name: &str| root().join("bindings/capi/tests/c_abi").join(name);
    let Some(c) = program(Language::C, &own("python_plans.c"), Under::Nothing, &[]) else { return };
    let Some(python) = python() else { return };
    let folder = Folder::create();
    let plan_of = |language: &str| folder.file(format!("{language}.plan"));
    let in_c = || timed(&c);
    let in_python = || {
        let mut command = timed(&python);
        command.arg(own("python_plans.py"));
        command
    };
    let write = |mut command: Command, language: &str| succeed(command.arg("write").arg(plan_of(language)));
    write(in_python(), "python");
    write(in_c(), "c");
    engine().and_then(|engine| engine.save(plan_of("rust"))).expect("a plan");
    let expected = ["rank 0: 0 3 1 4 2 5 10 13 11 14 12 15", "rank 1: 0 3 1 4 2 5 10 13 11 14 12 15"];
    for language in ["python", "c", "rust"] {
        let plan = plan_of(language);
        assert_eq!(run_in_rust(&plan).expect("a run"), expected, "{language}'s plan in Rust");
        for (other, mut command) in [("C", in_c()), ("Python", in_python())] {
            let text = succeed(command.arg("run").arg(&plan));
            let mut lines: Vec<&str> = text.lines().collect();
            lines.sort();
            assert_eq!(lines, expected, "{language}'s plan in {other}");
        }
        let [bytes, rust] = [plan, plan_of("rust")].map(|plan| std::fs::read(plan).expect("a plan"));
        assert_eq!(bytes, rust, "{language}'s plan and Rust's differ");
    }
}

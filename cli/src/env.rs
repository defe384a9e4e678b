//! `distcollective env`: the environment that a rank finds.

use std::process::ExitCode;
use std::time::Duration;

use distcollective::Environment;
use distcollective::comm::BackendKind;
use distcollective::tensor::MemorySpace;
use serde_json::{Map, Value, json};

use crate::names;
use crate::output::{Ended, print, print_json};

/// Initializes the environment as any program would, and shows each value and the variable that it
/// came from.
///
/// Example: distcollective launch -n 3 -- distcollective env --json
#[derive(clap::Args)]
pub struct Arguments {
    /// One line of JSON
    #[arg(long)]
    json: bool,
    /// How long to wait for the other ranks, in seconds [default: DCL_TIMEOUT, or 60]
    #[arg(long, value_parser = crate::seconds)]
    timeout: Option<Duration>,
    /// The backend; auto is NCCL if there is a GPU for each rank
    #[arg(long, default_value = "auto", value_parser = names::backend(&["ucx", "mpi"]))]
    backend: BackendKind,
    /// Rank 0's seed
    #[arg(long, default_value_t = distcollective::environment::DEFAULT_SEED)]
    seed: u64,
}

/// `cpu`, or `cuda:0` as PyTorch has it.
fn device(environment: &Environment) -> String {
    match environment.device() {
        MemorySpace::Cuda(ordinal) => format!("cuda:{ordinal}"),
        _ => "cpu".to_owned(),
    }
}

/// Initializes the environment, prints it and finalizes it.
pub fn run(arguments: &Arguments) -> Ended {
    let environment = Environment::builder()
        .timeout(crate::timeout(arguments.timeout)?)
        .seed(arguments.seed)
        .backend(arguments.backend)
        .initialize()?;
    let sources: Map<String, Value> =
        environment.sources().map(|(what, from)| (what.to_owned(), Value::from(from))).collect();
    let found = json!({
        "rank": environment.rank().0,
        "world_size": environment.world_size(),
        "local_rank": environment.local_rank(),
        "local_world_size": environment.local_world_size(),
        "launcher": environment.launcher().name(),
        "backend": environment.backend().name(),
        "device": device(&environment),
        // As text, since many readers round large numbers.
        "seed": environment.seed().to_string(),
        "sources": sources,
    });
    match arguments.json {
        true => print_json("distcollective.env/1", found),
        false => print(rows(&found, &sources)),
    }
    environment.finalize()?;
    Ok(ExitCode::SUCCESS)
}

/// A row for each value, with the variable that it came from.
fn rows(found: &Value, sources: &Map<String, Value>) -> String {
    let source = |name: &str| sources.get(name).and_then(Value::as_str);
    let values = found.as_object().into_iter().flatten().filter(|(name, _)| *name != "sources");
    let rows = values.map(|(name, value)| {
        let from = source(name).map_or(String::new(), |from| format!("  ({from})"));
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("{name:18} {value}{from}\n")
    });
    rows.chain(source("rendezvous").map(|from| format!("{:18} {from}\n", "rendezvous from"))).collect()
}

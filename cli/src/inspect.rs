//! `distcollective inspect`: what a plan consists of.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueHint;
use distcollective::engine::Inspection;

use crate::output::{Ended, print, print_json};

/// Shows what a plan consists of: tensors, layers in the order in which they run, memory, warnings.
///
/// The plan is a file that `Engine::save` or `dcl_engine_serialize` wrote. Reading it checks the
/// network and plans its memory. In a plan with plugins these are unknown layers; then shapes and
/// memory are not shown, and rules are not checked.
///
/// Example: distcollective inspect model.plan --dot | dot -Tsvg -o model.svg
#[derive(clap::Args)]
pub struct Arguments {
    /// The file
    #[arg(value_hint = ValueHint::FilePath)]
    plan: PathBuf,
    /// One line of JSON
    #[arg(long)]
    json: bool,
    /// A graph in Graphviz's language: layers are boxes, tensors are edges
    #[arg(long, conflicts_with = "json")]
    dot: bool,
}

pub fn run(arguments: &Arguments) -> Ended {
    let inspection = Inspection::of_plan(&arguments.plan)?;
    match arguments {
        Arguments { json: true, .. } => print_json("distcollective.inspect/1", inspection.to_json()),
        Arguments { dot: true, .. } => print(inspection.to_dot()),
        _ => print(inspection.to_string()),
    }
    Ok(ExitCode::SUCCESS)
}

//! `distcollective inspect`: what a plan consists of.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueHint;
use distcollective::engine::Inspection;

use crate::output::{fail, print};

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

pub fn run(arguments: &Arguments) -> ExitCode {
    let inspection = match Inspection::of_plan(&arguments.plan) {
        Ok(inspection) => inspection,
        Err(error) => return fail(error),
    };
    print(match arguments {
        Arguments { json: true, .. } => format!("{}\n", in_ascii(&inspection.to_json().to_string())),
        Arguments { dot: true, .. } => inspection.to_dot(),
        _ => inspection.to_string(),
    });
    ExitCode::SUCCESS
}

/// The same JSON in ASCII: all other characters are in its texts, where they can be escaped. A plan
/// may come from anyone, and characters can steer a terminal.
fn in_ascii(json: &str) -> String {
    let escaped = |c: char| c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect();
    json.chars().map(|c| if c.is_ascii() { c.to_string() } else { escaped(c) }).collect()
}

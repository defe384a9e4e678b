//! `distcollective schema`: what the JSON of a command consists of.

use std::process::ExitCode;

use clap::builder::PossibleValuesParser;

use crate::output::{Ended, print};

/// The commands with `--json`, and their schemas.
const SCHEMAS: [(&str, &str); 6] = [
    ("bench", include_str!("../schemas/bench.json")),
    ("broadcast-weights", include_str!("../schemas/broadcast-weights.json")),
    ("doctor", include_str!("../schemas/doctor.json")),
    ("env", include_str!("../schemas/env.json")),
    ("inspect", include_str!("../schemas/inspect.json")),
    ("run", include_str!("../schemas/run.json")),
];

/// Prints the JSON Schema (draft 2020-12) of what a command prints with --json.
///
/// The member "schema" of each object names its schema and the version: "distcollective.env/1". The
/// version changes if a member is removed or renamed or gets another meaning, and also if one is
/// added, since a schema allows no other members than its own.
///
/// Example: distcollective schema bench
#[derive(clap::Args)]
pub struct Arguments {
    /// The command
    #[arg(value_parser = PossibleValuesParser::new(SCHEMAS.map(|(name, _)| name)))]
    command: String,
}

pub fn run(arguments: &Arguments) -> Ended {
    SCHEMAS.iter().filter(|(name, _)| *name == arguments.command).for_each(|(_, schema)| print(schema));
    Ok(ExitCode::SUCCESS)
}

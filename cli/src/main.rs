//! The command line.

mod bench;
mod doctor;
mod env;
mod launch;
mod npy;
mod progress;
mod run;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

/// Collectives between ranks: start them, see what they find.
#[derive(Parser)]
#[command(name = "distcollective", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Launch(launch::Arguments),
    Run(run::Arguments),
    Bench(bench::Arguments),
    Env(env::Arguments),
    Doctor(doctor::Arguments),
}

/// How long a rank waits for the others: what the option says, or `DCL_TIMEOUT`, or a minute.
fn timeout(seconds: Option<u64>) -> distcollective::Result<Duration> {
    match seconds {
        Some(seconds) => Ok(Duration::from_secs(seconds)),
        None => distcollective::timeout_or(Duration::from_secs(60)),
    }
}

fn main() -> ExitCode {
    distcollective::show_warnings();
    match Arguments::parse().command {
        Command::Launch(arguments) => launch::run(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Env(arguments) => env::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
    }
}

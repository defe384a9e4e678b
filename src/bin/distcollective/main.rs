//! The command line.

mod bench;
mod doctor;
mod env;
mod launch;
mod npy;
mod progress;
mod run;

use std::process::ExitCode;

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

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Launch(arguments) => launch::run(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Env(arguments) => env::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
    }
}

//! The command line.

mod env;
mod launch;
mod npy;
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
    /// Starts ranks of a program on this machine, with torchrun's variables
    Launch(launch::Arguments),
    /// Runs one layer on .npy files
    Run(run::Arguments),
    /// Initializes the environment and tells what was found, and where
    Env(env::Arguments),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Launch(arguments) => launch::run(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Env(arguments) => env::run(&arguments),
    }
}

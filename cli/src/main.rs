//! The program `distcollective`.

mod bench;
mod broadcast_weights;
mod doctor;
mod env;
mod inspect;
mod launch;
mod manual;
mod names;
mod npy;
mod output;
mod plot;
mod progress;
mod rank_files;
mod run;

use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser, Subcommand};

/// Starts ranks, runs and measures collectives between them, and examines this machine.
///
/// Example: distcollective launch -n 4 -- sample_dist_collective --op all
#[derive(Parser)]
#[command(name = "distcollective", version, styles = output::STYLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Launch(launch::Arguments),
    Run(run::Arguments),
    Bench(bench::Arguments),
    Plot(plot::Arguments),
    BroadcastWeights(broadcast_weights::Arguments),
    Inspect(inspect::Arguments),
    Env(env::Arguments),
    Doctor(doctor::Arguments),
    Completions(manual::Completions),
    Man(manual::Manual),
}

/// A time in seconds, as an option gives it.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| *seconds > 0.0);
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| "a number of seconds above 0, such as 60 or 0.5, is needed".to_owned())
}

/// How long a rank waits for the others: the option, or `DCL_TIMEOUT`, or 60 s.
fn timeout(option: Option<Duration>) -> distcollective::Result<Duration> {
    match option {
        Some(timeout) => Ok(timeout),
        None => distcollective::comm::timeout_or(Duration::from_secs(60)),
    }
}

/// Undoes an ignored SIGCHLD, which a program inherits from the one that starts it. While it is
/// ignored, the exit codes of children are lost.
fn notice_children() {
    // SAFETY: the default action replaces an inherited one; no other thread runs yet.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

fn main() -> ExitCode {
    notice_children();
    match output::parse::<Arguments>().command {
        Command::Launch(arguments) => launch::run(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Plot(arguments) => plot::run(&arguments),
        Command::BroadcastWeights(arguments) => broadcast_weights::run(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Env(arguments) => env::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Completions(arguments) => manual::complete(&arguments, Arguments::command()),
        Command::Man(arguments) => manual::write_manual(&arguments, Arguments::command()),
    }
}

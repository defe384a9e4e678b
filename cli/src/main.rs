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
mod schema;

use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser, Subcommand};
use distcollective::Environment;
use distcollective::environment::Launcher;
use output::Failure;

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
    Schema(schema::Arguments),
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

/// Checks that no launcher started this process beside others, for a command that runs all ranks
/// itself and writes their files.
fn check_alone(command: &str) -> Result<(), Failure> {
    let Some(launcher) = Environment::detect_launcher() else { return Ok(()) };
    let place = match Environment::detect_rank() {
        Ok((_, 1)) => return Ok(()),
        Ok((rank, world_size)) => format!("as rank {rank} of {world_size}"),
        // A script of sbatch has the allocation's variables.
        Err(_) if launcher == Launcher::Slurm => return Ok(()),
        Err(error) => format!("({error})"),
    };
    Err(Failure::usage(format!(
        "{command} runs all ranks itself, and {launcher} started this process {place}; start it once, without the \
         launcher"
    )))
}

/// The program's command line. The help of each command lists its exit codes.
fn program() -> clap::Command {
    let with_exit_codes = |command: clap::Command| match command.get_name() {
        "launch" => command.after_long_help(launch::EXIT_STATUS),
        _ => command.after_long_help(output::EXIT_STATUS),
    };
    with_exit_codes(Arguments::command()).mut_subcommands(with_exit_codes)
}

/// Undoes an ignored SIGCHLD, which a program inherits from the one that starts it. While it is
/// ignored, the exit codes of children are lost.
fn notice_children() {
    // SAFETY: the default action replaces an inherited one; no other thread runs yet.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

fn main() -> ExitCode {
    notice_children();
    let ended = match output::parse::<Arguments>(program()).command {
        Command::Launch(arguments) => launch::run(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Plot(arguments) => plot::run(&arguments),
        Command::BroadcastWeights(arguments) => broadcast_weights::run(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Env(arguments) => env::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Schema(arguments) => schema::run(&arguments),
        Command::Completions(arguments) => manual::complete(&arguments, program()),
        Command::Man(arguments) => manual::write_manual(&arguments, program()),
    };
    ended.unwrap_or_else(Failure::tell)
}

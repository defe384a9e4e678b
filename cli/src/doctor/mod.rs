//! `distcollective doctor`: what this machine has for ranks, and which backend they would use.

use std::process::ExitCode;

mod assessment;
mod diagnosis;
mod gpu;
mod host;
mod launch;
mod probe;

use diagnosis::Diagnosis;
use distcollective::system::{GpuInfo, NcclInfo};
use gpu::{Gpu, Library};
use host::Host;
use launch::Launch;
use probe::Probe;

use crate::output::{Ended, print, print_json};

/// Shows what this machine has for ranks (cores, limits, launcher, GPUs, CUDA, NCCL), which backend
/// they would use, and warnings.
///
/// It needs no other rank and changes nothing. The exit code is 0 even if something is missing: the
/// warnings say what is wrong. In the output of --json, a fact that could not be found out is an
/// object with one field, "problem".
///
/// Example: distcollective doctor --json
#[derive(clap::Args)]
pub struct Arguments {
    /// One line of JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Ended {
    let mut diagnosis = Diagnosis::collect();
    assessment::assess(&mut diagnosis);
    match arguments.json {
        true => print_json("distcollective.doctor/1", serde_json::to_value(&diagnosis)?),
        false => print(to_text(&diagnosis)),
    }
    Ok(ExitCode::SUCCESS)
}

/// A row for each fact, then the conclusions and the warnings.
fn to_text(diagnosis: &Diagnosis) -> String {
    let mut rows =
        vec![row("version", diagnosis.version), row("commit", diagnosis.commit), row("target", diagnosis.target)];
    rows.extend(host(&diagnosis.host));
    rows.extend(launch(&diagnosis.launch));
    rows.push(row("driver", text_of(&diagnosis.driver, library)));
    rows.extend(gpus(&diagnosis.gpus, diagnosis.nccl.found()));
    rows.push(row("NVRTC", text_of(&diagnosis.nvrtc, library)));
    rows.push(row("NCCL", text_of(&diagnosis.nccl, nccl)));
    rows.push(row("UCX", text_of(&diagnosis.ucx, library)));
    rows.push(row("MPI", text_of(&diagnosis.mpi, library)));
    let rows = rows.into_iter().map(|(name, text)| format!("{name:11} {text}\n"));
    let conclusions = diagnosis.conclusions.iter().map(|conclusion| format!("{conclusion}\n"));
    let warnings = diagnosis.warnings.iter().map(|warning| format!("warning: {warning}\n"));
    rows.chain(["\n".to_owned()]).chain(conclusions).chain(warnings).collect()
}

/// The name of a fact, which is empty if the fact goes on, and its text.
type Row = (String, String);

fn row(name: &str, text: impl Into<String>) -> Row {
    (name.to_owned(), text.into())
}

/// A fact as text, or why it is missing.
fn text_of<T>(fact: &Probe<T>, text: impl FnOnce(&T) -> String) -> String {
    match fact {
        Probe::Found(found) => text(found),
        Probe::Missing { problem } => problem.clone(),
    }
}

fn host(host: &Host) -> Vec<Row> {
    let limit = host.memory_limit_bytes.map_or(String::new(), |limit| format!(", limited to {}", size(limit)));
    let available = |bytes: &u64| format!("{} available", size(*bytes));
    let count = |limit: Option<u64>| limit.map_or("without limit".to_owned(), |limit| limit.to_string());
    let files = host.open_files;
    vec![
        row("system", &host.system),
        row("cores", text_of(&host.cores, usize::to_string)),
        row("memory", format!("{}{limit}", text_of(&host.memory_available_bytes, available))),
        row("/dev/shm", host.dev_shm_bytes.map_or("none".to_owned(), size)),
        row("limits", format!("open files: {} (may be raised to: {})", count(files.soft), count(files.hard))),
        row("", format!("threads: {}; mappings of a process: {}", count(host.threads), count(host.mappings))),
        row("processes", text_of(&host.processes, |count| format!("about {count} can have a rank each"))),
    ]
}

fn launch(launch: &Launch) -> Vec<Row> {
    let place = match (launch.rank, launch.world_size) {
        (Some(rank), Some(world_size)) => format!(": rank {rank} of {world_size}"),
        _ => String::new(),
    };
    let names = ["variables"].into_iter().chain(std::iter::repeat(""));
    let variables =
        names.zip(&launch.variables).map(|(name, (variable, value))| row(name, format!("{variable}={value}")));
    [row("launcher", format!("{}{place}", launch.launcher.unwrap_or("none")))].into_iter().chain(variables).collect()
}

fn library(library: &Library) -> String {
    let file = library.file.as_ref().map_or(String::new(), |file| format!(" ({file})"));
    format!("{}{file}", library.version)
}

fn gpus(gpus: &Probe<Vec<Probe<Gpu>>>, nccl: Option<&NcclInfo>) -> Vec<Row> {
    let nccl_reduces_float8 = nccl.is_none_or(|nccl| nccl.reduces_float8);
    let text = |found| text_of(found, |found| gpu(found, nccl_reduces_float8));
    match gpus {
        Probe::Found(gpus) if gpus.is_empty() => vec![row("GPUs", "none")],
        Probe::Found(gpus) => {
            gpus.iter().enumerate().map(|(number, found)| row(&format!("GPU {number}"), text(found))).collect()
        }
        Probe::Missing { problem } => vec![row("GPUs", problem)],
    }
}

fn gpu(gpu: &Gpu, nccl_reduces_float8: bool) -> String {
    let GpuInfo { name, capability, multiprocessors, bus_id, .. } = &gpu.info;
    let memory = size(gpu.info.memory_bytes);
    let layers = if gpu.info.runs_layers { "" } else { "; no layers of several ranks" };
    let float8 = if gpu.info.reduces_float8 && nccl_reduces_float8 { "by NCCL" } else { "by exchange" };
    format!(
        "{name}, {capability}, {memory}, {multiprocessors} multiprocessors, {bus_id}{layers}; float8 is reduced {float8}"
    )
}

fn nccl(nccl: &NcclInfo) -> String {
    let all_to_all = if nccl.has_all_to_all { "native" } else { "by send and receive" };
    let windows = if nccl.has_windows { "symmetric windows" } else { "no symmetric windows" };
    let sharing = if nccl.shares_gpus { "several ranks a GPU" } else { "one rank a GPU" };
    let NcclInfo { version, file, .. } = nccl;
    format!("{version} ({file}); all_to_all, gather and scatter {all_to_all}; {windows}; {sharing}")
}

/// `23.1 GiB`.
fn size(bytes: u64) -> String {
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    if mebibytes < 1024.0 { format!("{mebibytes:.1} MiB") } else { format!("{:.1} GiB", mebibytes / 1024.0) }
}

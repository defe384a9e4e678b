//! The benchmarks on a GPU, with the test libraries: they print what `tools/gpu-check` reads.

use std::path::Path;
use std::process::Command;

use fake_gpu::{Variant, library_dir};
use serde_json::Value;

use crate::benchmark;

/// Runs a benchmark on one GPU, which ranks may share.
fn figures(arguments: &[&str]) -> Vec<Value> {
    run(arguments, "1")
}

fn run(arguments: &[&str], shared: &str) -> Vec<Value> {
    parse(bench(arguments, shared))
}

/// A benchmark on one GPU.
fn bench(arguments: &[&str], shared: &str) -> Command {
    let mut bench = benchmark("gpu");
    bench
        .args(arguments)
        .arg("--quick")
        .env("LD_LIBRARY_PATH", library_dir(Variant::Current))
        .env("FAKE_CUDA_DEVICES", "1")
        .env("NCCL_MULTI_RANK_GPU_ENABLE", shared);
    bench
}

/// Runs a benchmark, and returns the objects that it prints.
fn parse(mut bench: Command) -> Vec<Value> {
    let (output, text) = test_support::run(&mut bench);
    assert!(output.status.success(), "{bench:?}\n{text}");
    test_support::text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("an object")).collect()
}

/// The number of figures of a way. Each must have its numbers.
fn count(figures: &[Value], way: &str) -> usize {
    let of_way: Vec<_> = figures.iter().filter(|figure| figure["way"] == way).collect();
    let numbers = ["ns", "bare_ns", "done_ns", "bare_done_ns"];
    let is_whole = |f: &&&Value| numbers.iter().all(|name| f[name].is_f64()) && f["ok"].is_boolean();
    assert!(of_way.iter().all(|f| is_whole(&f)), "{of_way:?}");
    of_way.len()
}

const OURS: [&str; 4] =
    ["Communicator::enqueue", "BoundLayer::enqueue", "ExecutionContext::enqueue", "ExecutionContext::enqueue, graph"];

/// The libraries of benches/no_op have what a call needs.
#[test]
fn a_call_is_measured_on_libraries_that_do_nothing() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no_op");
    std::fs::create_dir_all(&folder).expect("a folder");
    for (source, library) in [("cuda.c", "libcuda.so.1"), ("nccl.c", "libnccl.so.2")] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("no_op").join(source);
        let mut compile = Command::new("cc");
        compile.args(["-O1", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-shared", "-fPIC", "-o"]);
        let (output, text) = test_support::run(compile.arg(folder.join(library)).arg(source).arg("-lpthread"));
        assert!(output.status.success(), "{text}");
    }
    let mut bench = bench(&["calls", "--ranks", "2", "--no-op"], "1");
    bench.env("LD_LIBRARY_PATH", &folder);
    let figures = parse(bench);
    for way in OURS {
        assert_eq!(count(&figures, way), 2, "{way}: {figures:?}");
    }
}

#[test]
fn every_operation_and_size_is_measured_on_every_rank() {
    let mut on_two_gpus = bench(&["calls", "--ranks", "2"], "1");
    on_two_gpus.env("FAKE_CUDA_DEVICES", "2");
    let figures = parse(on_two_gpus);
    for way in OURS {
        assert_eq!(count(&figures, way), 8 * 2 * 2, "{way}: {figures:?}");
    }
    for rank in 0..2 {
        assert!(figures.iter().any(|figure| figure["place"]["rank"] == rank), "{figures:?}");
    }
    // Exact mode is shown for the three operations that reduce, and not judged.
    let exact: Vec<_> = figures.iter().filter(|figure| figure["way"] == "Communicator::enqueue, exact").collect();
    assert_eq!(exact.len(), 3 * 2 * 2, "{figures:?}");
    // Contexts of ranks that share a GPU record no graphs.
    let shared = run(&["calls", "--ranks", "2"], "1");
    assert_eq!(count(&shared, OURS[2]), 8 * 2 * 2, "{shared:?}");
    assert!(shared.iter().any(|figure| figure["skipped"].as_str().is_some_and(|why| why.contains("no graphs"))));
    assert!(exact.iter().all(|figure| figure["ns"].is_f64() && figure["ok"].is_null()), "{exact:?}");
}

#[test]
fn exact_mode_has_the_hosts_hashes() {
    let figures = figures(&["exact", "--ranks", "3"]);
    assert_eq!(figures.len(), 3 * 2 * 3 * 3, "{figures:?}");
    assert!(figures.iter().all(|figure| figure["ok"] == true), "{figures:?}");
    let hashes = |field: &str| figures.iter().map(|figure| figure[field].to_string()).collect::<Vec<_>>();
    let of_exact = hashes("exact_hash");
    assert_eq!(of_exact, hashes("host_hash"));
    // The order and the rounding of NCCL's own reduction show in the bits.
    assert_ne!(of_exact, hashes("nccl_hash"));
}

#[test]
fn one_rank_is_compared_with_a_copy() {
    let figures = figures(&["calls"]);
    for way in OURS {
        assert_eq!(count(&figures, way), 2, "{way}: {figures:?}");
    }
    assert!(figures.iter().any(|figure| figure["against"] == "cuMemcpyDtoDAsync"), "{figures:?}");
    // NCCL's own call is shown, and not judged.
    assert!(figures.iter().any(|figure| figure["way"] == "NCCL" && figure["ok"].is_null()), "{figures:?}");
}

#[test]
fn a_process_that_a_launcher_started_is_a_rank() {
    let mut bench = bench(&["calls", "--launched"], "1");
    let variables = [("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")];
    bench.envs(variables).env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", "29417");
    let figures = parse(bench);
    assert_eq!(count(&figures, OURS[0]), 2, "{figures:?}");
    assert!(figures.iter().all(|figure| figure["place"]["ranks_are"] == "processes"), "{figures:?}");
}

#[test]
fn a_call_that_nccl_lacks_is_skipped_with_a_reason() {
    let mut bench = bench(&["calls", "--ranks", "2"], "1");
    bench.env("LD_LIBRARY_PATH", library_dir(Variant::Old));
    // An NCCL before 2.30 has one rank a GPU.
    bench.env("FAKE_CUDA_DEVICES", "2");
    let figures = parse(bench);
    let skipped: Vec<_> = figures.iter().filter(|figure| !figure["skipped"].is_null()).collect();
    assert_eq!(skipped.len(), 3 * 2 * 2, "{figures:?}");
    assert!(skipped.iter().all(|figure| figure["place"]["operation"] != "all_reduce"), "{skipped:?}");
}

#[test]
fn kernels_give_what_the_host_gives() {
    let figures = figures(&["kernels"]);
    let measured: Vec<_> = figures.iter().filter(|figure| figure["skipped"].is_null()).collect();
    assert_eq!(measured.len(), 19, "{figures:?}");
    assert!(measured.iter().all(|figure| figure["error"].is_null() && figure["ratio"].is_f64()), "{figures:?}");
}

#[test]
fn everything_is_let_go_of() {
    let figures = figures(&["leaks"]);
    assert_eq!(figures.len(), 1);
    // The test libraries count every byte, so nothing may be lost.
    assert_eq!(figures[0]["lost_bytes"], 0, "{figures:?}");
    assert_eq!(figures[0]["before"]["threads"], figures[0]["after"]["threads"], "{figures:?}");
}

#[test]
fn ranks_that_cannot_share_the_gpu_are_skipped() {
    let figures = run(&["calls", "--ranks", "2"], "0");
    let reason = figures[0]["skipped"].as_str().expect("a reason");
    assert!(figures.len() == 1 && reason.contains("NCCL has one rank a GPU"), "{figures:?}");
}

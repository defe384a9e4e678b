//! The benchmarks of `benches/gpu` with the test libraries: they run to their end and print what
//! `tools/gpu-check` reads. The figures themselves mean nothing here.

use fake_gpu::{Variant, library_dir};
use serde_json::Value;
use test_support::timed;

/// Runs a benchmark on one GPU, which ranks may share.
fn figures(arguments: &[&str]) -> Vec<Value> {
    run(arguments, "1")
}

/// Runs a benchmark on one GPU, and returns the objects that it prints.
fn run(arguments: &[&str], shared: &str) -> Vec<Value> {
    let mut bench = timed(env!("CARGO_BIN_EXE_gpu_bench"));
    bench
        .args(arguments)
        .arg("--quick")
        .env("LD_LIBRARY_PATH", library_dir(Variant::Current))
        .env("FAKE_CUDA_DEVICES", "1")
        .env("NCCL_MULTI_RANK_GPU_ENABLE", shared);
    let (output, text) = test_support::run(&mut bench);
    assert!(output.status.success(), "{arguments:?}\n{text}");
    test_support::text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("an object")).collect()
}

/// The number of figures of a way. Each must have its numbers.
fn count(figures: &[Value], way: &str) -> usize {
    let of_way: Vec<_> = figures.iter().filter(|figure| figure["way"] == way).collect();
    assert!(of_way.iter().all(|f| f["ns"].is_f64() && f["bare_ns"].is_f64() && f["ok"].is_boolean()), "{of_way:?}");
    of_way.len()
}

#[test]
fn overhead_is_measured_for_every_rank_and_size() {
    for ranks in [1, 2] {
        let ranks_argument = ranks.to_string();
        let enqueued = figures(&["enqueue", "--ranks", &ranks_argument]);
        assert_eq!(count(&enqueued, "BoundLayer::enqueue"), 2 * ranks, "{enqueued:?}");
        assert_eq!(count(&enqueued, "ExecutionContext::enqueue"), 2 * ranks, "{enqueued:?}");
        let replayed = figures(&["replay", "--ranks", &ranks_argument]);
        assert_eq!(count(&replayed, "ExecutionContext::enqueue"), 2 * ranks, "{replayed:?}");
    }
}

#[test]
fn kernels_give_what_the_host_gives() {
    let figures = figures(&["kernels"]);
    let measured: Vec<_> = figures.iter().filter(|figure| figure["skipped"].is_null()).collect();
    assert_eq!(measured.len(), 15, "{figures:?}");
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
    let figures = run(&["enqueue", "--ranks", "2"], "0");
    let reason = figures[0]["skipped"].as_str().expect("a reason");
    assert!(figures.len() == 1 && reason.contains("NCCL has one rank a GPU"), "{figures:?}");
}

//! The command line on GPUs, with the test libraries in place of CUDA, NVRTC and NCCL.

mod json;

use std::process::Output;

use fake_gpu::{Variant, library_dir};
use test_support::{demo, timed};

const DISTCOLLECTIVE: &str = env!("CARGO_BIN_EXE_distcollective");

/// Runs a command on so many GPUs.
fn run(variant: Variant, devices: &str, command: &[&str]) -> (Output, String) {
    let mut timed = timed(command[0]);
    timed.args(&command[1..]).env("LD_LIBRARY_PATH", library_dir(variant)).env("FAKE_CUDA_DEVICES", devices);
    test_support::run(&mut timed)
}

#[test]
fn the_demo_runs_unchanged() {
    for backend in ["nccl", "auto"] {
        let (output, text) =
            run(Variant::Current, "4", &[demo(), "--ranks", "4", "--backend", backend, "--dtype", "float8"]);
        assert!(output.status.success() && text.contains("backend: nccl"), "{text}");
        assert_eq!(text.lines().filter(|line| line.ends_with("PASSED")).count(), 40 - 2, "{text}");
    }
    // Shuffles need kernels.
    for backend in ["nccl", "auto"] {
        let (output, text) = run(Variant::NoNvrtc, "4", &[demo(), "--backend", backend]);
        assert!(!output.status.success() && text.contains("CUDA's run-time compiler"), "{text}");
    }
}

#[test]
fn the_benchmark_finds_nothing_wrong() {
    let variants =
        [&["--reduce-op", "avg"][..], &["--symmetric", "--dtype", "bfloat16"], &["--dtype", "bool"], &["--exact"]];
    for arguments in variants {
        let bench = [DISTCOLLECTIVE, "bench", "--backend", "nccl", "--op", "all", "--max-bytes", "4K", "--factor", "8"];
        let short = ["--iters", "5", "--batches", "2"];
        let (output, text) = run(Variant::Current, "2", &[&bench, &short[..], arguments].concat());
        assert!(output.status.success() && text.contains("# backend: nccl"), "{text}");
        assert!(text.lines().filter(|line| !line.starts_with('#')).count() >= 8, "{text}");
    }
}

/// NCCL's reduction fails here, and an exact one does not call it.
#[test]
fn exact_mode_is_an_option() {
    let bench = [DISTCOLLECTIVE, "bench", "--backend", "nccl", "--op", "reduce", "--max-bytes", "64"];
    for (arguments, works) in [(&[][..], false), (&["--exact"], true)] {
        let mut timed = timed(bench[0]);
        timed.args(&bench[1..]).args(arguments);
        timed.env("LD_LIBRARY_PATH", library_dir(Variant::Current)).env("FAKE_NCCL", "fail=ncclReduce:1:3");
        let (output, text) = test_support::run(&mut timed);
        assert_eq!((output.status.success(), text.contains("# exact: true")), (works, works), "{text}");
    }
}

#[test]
fn why_not_is_one_line() {
    let (output, text) = run(Variant::NoDriver, "2", &[demo(), "--backend", "nccl"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.lines().count() == 1 && text.starts_with("error: CUDA's driver"), "{text}");
    let (output, text) = run(Variant::Current, "1", &[DISTCOLLECTIVE, "bench", "--backend", "nccl"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.lines().count() == 1 && text.starts_with("error: 2 ranks on 1 GPU"), "{text}");
}

#[test]
fn an_environment_has_its_gpu() {
    let launch = |n: &str, backend: &str, devices: &str| {
        let env = ["env", "--json", "--timeout", "5", "--backend", backend];
        run(Variant::Current, devices, &[&[DISTCOLLECTIVE, "launch", "-n", n, "--", DISTCOLLECTIVE], &env[..]].concat())
    };
    for backend in ["auto", "nccl"] {
        let (output, text) = launch("2", backend, "8");
        assert!(output.status.success() && text.lines().count() == 2, "{text}");
        for line in text.lines() {
            let (rank, found) = line.split_once(' ').expect("a prefix");
            let device = if rank == "[0]" { "cuda:0" } else { "cuda:1" };
            let found = json::read(found);
            assert_eq!((&found["backend"], &found["device"]), (&"nccl".into(), &device.into()));
        }
    }
    // Two ranks on one GPU: "auto" is the host backend, and "nccl" fails.
    let (output, text) = launch("2", "auto", "1");
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches("\"backend\":\"host\"").count(), 2, "{text}");
    let (output, text) = launch("2", "nccl", "1");
    assert!(!output.status.success(), "{text}");
    assert_eq!(text.matches("ranks 0 and 1 are both on GPU").count(), 2, "{text}");
    // If creating the communicator fails on one rank, the other fails at once.
    let failing = ["env", "FAKE_NCCL=fail=ncclCommInitRankConfig:1:2:1", DISTCOLLECTIVE, "launch", "-n", "2", "--"];
    let env = [DISTCOLLECTIVE, "env", "--timeout", "5", "--backend", "nccl"];
    let (output, text) = run(Variant::Current, "2", &[&failing[..], &env].concat());
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("rank 1: ncclCommInitRankConfig: NCCL says ncclSystemError"), "{text}");
}

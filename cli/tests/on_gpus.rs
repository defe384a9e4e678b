//! The command line on GPUs, with libraries of our own in place of CUDA, NVRTC and NCCL.

#![cfg(feature = "nccl")]

use std::process::{Command, Output};

use fake_gpu::{Variant, library_dir};
use test_support::demo;

const DISTCOLLECTIVE: &str = env!("CARGO_BIN_EXE_distcollective");

/// `timeout` ends what hangs; ten seconds are a test's deadline.
fn run(variant: Variant, devices: &str, command: &[&str]) -> (Output, String) {
    let output = Command::new("timeout")
        .args(["-k", "1", "9"])
        .args(command)
        .env("LD_LIBRARY_PATH", library_dir(variant))
        .env("FAKE_CUDA_DEVICES", devices)
        .output()
        .expect("the command starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output, text)
}

#[test]
fn the_demo_runs_unchanged() {
    for backend in ["nccl", "auto"] {
        let (output, text) =
            run(Variant::Current, "4", &[demo(), "--ranks", "4", "--backend", backend, "--dtype", "float8"]);
        assert!(output.status.success() && text.contains("backend: nccl"), "{text}");
        assert_eq!(text.lines().filter(|line| line.ends_with("PASSED")).count(), 40 - 2, "{text}");
    }
    // Shuffles need a kernel: what is to be chosen does not choose what cannot do them.
    let (output, text) = run(Variant::NoNvrtc, "4", &[demo()]);
    assert!(output.status.success() && text.contains("backend: host"), "{text}");
    let (output, text) = run(Variant::NoNvrtc, "4", &[demo(), "--backend", "nccl"]);
    assert!(!output.status.success() && text.contains("CUDA's run-time compiler"), "{text}");
}

#[test]
fn the_benchmark_finds_nothing_wrong() {
    for arguments in [&["--reduce-op", "avg"][..], &["--symmetric", "--dtype", "bfloat16"], &["--dtype", "bool"]] {
        let bench = [DISTCOLLECTIVE, "bench", "--backend", "nccl", "--op", "all", "--max-bytes", "4K", "--factor", "8"];
        let (output, text) = run(Variant::Current, "2", &[&bench, arguments].concat());
        assert!(output.status.success() && text.contains("# backend: nccl"), "{text}");
        assert!(text.lines().filter(|line| !line.starts_with('#')).count() >= 8, "{text}");
    }
}

#[test]
fn why_not_is_one_line() {
    for command in [&[demo(), "--backend", "nccl"][..], &[demo(), "--backend", "nccl", "--processes"]] {
        let (output, text) = run(Variant::NoDriver, "2", command);
        assert_eq!(output.status.code(), Some(1));
        assert!(text.lines().count() == 1 && text.starts_with("error: CUDA's driver"), "{text}");
    }
    let (output, text) = run(Variant::Current, "1", &[DISTCOLLECTIVE, "bench", "--backend", "nccl"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.lines().count() == 1 && text.starts_with("error: 2 ranks on 1 GPU"), "{text}");
}

/// One rank alone, since the test library has no ranks in other processes.
#[test]
fn an_environment_has_its_gpu() {
    let launch = |n: &str, backend: &str, devices: &str| {
        let env = ["env", "--json", "--timeout", "5", "--backend", backend];
        run(Variant::Current, devices, &[&[DISTCOLLECTIVE, "launch", "-n", n, "--", DISTCOLLECTIVE], &env[..]].concat())
    };
    for backend in ["auto", "nccl"] {
        let (output, text) = launch("1", backend, "8");
        assert!(output.status.success(), "{text}");
        assert!(text.contains("\"backend\":\"nccl\"") && text.contains("\"device\":\"cuda:0\""), "{text}");
    }
    // Two ranks on one GPU: on the host, or not at all.
    let (output, text) = launch("2", "auto", "1");
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches("\"backend\":\"host\"").count(), 2, "{text}");
    let (output, text) = launch("2", "nccl", "1");
    assert!(!output.status.success(), "{text}");
    assert_eq!(text.matches("ranks 0 and 1 are both on GPU").count(), 2, "{text}");
    // Where making the communicator fails on one rank, the other learns of it at once.
    let (output, text) = launch("2", "nccl", "2");
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("ended the communicator: ncclCommInitRankConfig") || text.contains("NCCL says"), "{text}");
}

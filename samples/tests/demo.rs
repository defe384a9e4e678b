//! The demo and the tensor-parallel MLP, run as a user runs them.

use std::process::Output;

use test_support::{run, timed};

const DEMO: &str = env!("CARGO_BIN_EXE_sample_dist_collective");

fn demo(arguments: &[&str]) -> Output {
    run(timed(DEMO).args(arguments)).0
}

fn text(output: &Output) -> (String, String) {
    (test_support::text(&output.stdout), test_support::text(&output.stderr))
}

const OPERATIONS: [&str; 8] =
    ["ALL_REDUCE", "ALL_GATHER", "BROADCAST", "REDUCE", "REDUCE_SCATTER", "ALL_TO_ALL", "GATHER", "SCATTER"];

#[test]
fn all_operations_pass_on_every_rank() {
    let output = demo(&[]);
    let (stdout, stderr) = text(&output);
    assert!(output.status.success(), "{stdout}{stderr}");
    for operation in OPERATIONS {
        for rank in 0..2 {
            for line in [
                format!("Rank {rank} - {operation} PASSED"),
                format!("Rank {rank} - {operation} test completed successfully!"),
            ] {
                assert_eq!(stdout.lines().filter(|l| *l == line).count(), 1, "{line}\n{stdout}");
            }
        }
        let row = stdout.lines().rev().find(|line| line.starts_with(&format!("{operation} "))).expect("a row");
        assert!(row.contains(" us  PASSED"), "{row}");
    }
    assert!(stdout.contains("ranks: 2 threads; type: float32; backend: host"), "{stdout}");
    assert_eq!(stderr, "", "the demo's networks are no reason for a warning");
}

#[test]
fn a_demo_that_cannot_print_ends_and_does_not_panic() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let full = std::fs::File::options().write(true).open("/dev/full").expect("a device");
    for (stdout, reason) in [(writer.into(), "Broken pipe"), (full.into(), "No space left on device")] {
        let output = run(timed(DEMO).stdout::<std::process::Stdio>(stdout)).0;
        let errors = test_support::text(&output.stderr);
        assert!(output.status.code() == Some(1) && errors.lines().count() == 1, "{errors}");
        assert!(errors.contains(&format!("the output cannot be written: {reason}")), "{errors}");
    }
}

#[test]
fn the_split_model_has_the_results_of_the_whole_one() {
    for ranks in ["1", "3"] {
        let (output, text) = run(timed(env!("CARGO_BIN_EXE_tensor_parallel_mlp")).arg(ranks));
        assert!(output.status.success() && text.lines().all(|line| line.ends_with(" PASSED")), "{text}");
    }
}

#[test]
fn every_type_and_number_of_ranks_passes() {
    for dtype in ["float32", "float16", "bfloat16", "float8", "float8_e5m2", "int64", "int32", "int8", "uint8", "bool"]
    {
        for ranks in [1, 2, 3, 8, 40] {
            let output = demo(&["--ranks", &ranks.to_string(), "--dtype", dtype]);
            let (stdout, stderr) = text(&output);
            assert!(output.status.success(), "{ranks} ranks, {dtype}\n{stdout}{stderr}");
            let passed = stdout.lines().filter(|line| line.starts_with("Rank ") && line.ends_with(" PASSED"));
            assert_eq!(passed.count(), 8 * ranks, "{stdout}");
        }
    }
}

#[test]
fn columns_can_be_chosen() {
    let output = demo(&["--ranks", "3", "--columns", "9"]);
    let (stdout, stderr) = text(&output);
    assert!(output.status.success(), "{stdout}{stderr}");
    let row = stdout.lines().find(|line| line.starts_with("SCATTER ")).expect("a row");
    assert!(row.starts_with("SCATTER         [3, 9]     [3, 3] "), "{row}");
}

#[test]
fn ranks_that_do_not_divide_the_rows_are_found_at_build_time() {
    let output = demo(&["--op", "reduce_scatter", "--ranks", "3", "--columns", "4"]);
    assert_eq!(output.status.code(), Some(1));
    let error = "error: layer \"reduce_scatter\" (reduce_scatter): dimension 0 is 4, which is not a multiple of 3 ranks; \
                 input is float32 [4, 3]\n";
    assert_eq!(text(&output), (String::new(), error.to_owned()));
}

#[test]
fn names_are_read_in_any_case_and_wrong_ones_are_refused() {
    assert!(demo(&["--op", "All_Reduce"]).status.success());
    for (arguments, says) in [
        (["--op", "mean"], "\"mean\" is not a collective operation; they are all_reduce"),
        (["--dtype", "float64"], "float64 is a type of eager calls; a tensor of a network is float32"),
        (["--dtype", "fp4"], "data type FP4 has no collective"),
        (["--ranks", "0"], "0 is not in 1.."),
    ] {
        let output = demo(&arguments);
        let (_, stderr) = text(&output);
        assert!(!output.status.success() && stderr.contains(says), "{arguments:?}: {stderr}");
    }
}

//! The demo, run as a user runs it.

use std::process::{Output, Stdio};

use test_support::{run, timed};

fn demo(arguments: &[&str]) -> Output {
    run(timed(env!("CARGO_BIN_EXE_sample_dist_collective")).args(arguments)).0
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
    }
    assert!(!stdout.contains("FAILED"));
    assert_eq!(stderr, "", "the demo's networks are no reason for a warning");
}

/// The samples, and how they print much and little.
const PROGRAMS: [&[&str]; 5] = [
    &[env!("CARGO_BIN_EXE_sample_dist_collective"), "--processes", "--ranks", "1"],
    &[env!("CARGO_BIN_EXE_sample_dist_collective")],
    &[env!("CARGO_BIN_EXE_sample_dist_collective"), "--help"],
    &[env!("CARGO_BIN_EXE_tensor_parallel_mlp")],
    &[env!("CARGO_BIN_EXE_tensor_parallel_mlp"), "--help"],
];

#[test]
fn a_sample_that_cannot_print_ends_and_does_not_panic() {
    for program in PROGRAMS {
        let print_to = |stdout: Stdio| {
            let output = run(timed(program[0]).args(&program[1..]).stdout(stdout)).0;
            (output.status.code(), test_support::text(&output.stderr))
        };
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        assert_eq!(print_to(writer.into()), (Some(128 + 13), String::new()), "{program:?}");
        let full = std::fs::File::options().write(true).open("/dev/full").expect("a device");
        let error = "error: the output cannot be written: No space left on device (os error 28)\n";
        let (code, errors) = print_to(full.into());
        assert!(code == Some(1) && errors.starts_with(error), "{program:?}: {code:?} {errors}");
        // With --processes, one more line says which rank failed.
        assert_eq!(errors.lines().count(), 1 + usize::from(program.contains(&"--processes")), "{program:?}: {errors}");
    }
}

#[test]
fn the_split_model_has_the_results_of_the_whole_one() {
    for ranks in ["1", "3"] {
        let (output, text) = run(timed(env!("CARGO_BIN_EXE_tensor_parallel_mlp")).arg(ranks));
        assert!(output.status.success() && text.lines().all(|line| line.ends_with(" PASSED")), "{text}");
    }
    for (ranks, says) in [("0", "0 is not in 1..=240"), ("two", "invalid value 'two'")] {
        let (output, text) = run(timed(env!("CARGO_BIN_EXE_tensor_parallel_mlp")).arg(ranks));
        assert!(output.status.code() == Some(2) && text.contains(says), "{text}");
    }
}

#[test]
fn every_type_and_reduction_passes_on_four_ranks() {
    for dtype in ["float32", "float16", "bfloat16", "float8", "float8_e5m2", "int64", "int32", "int8", "uint8", "bool"]
    {
        for reduce_op in ["sum", "prod", "max", "min", "avg"] {
            let output = demo(&["--ranks", "4", "--dtype", dtype, "--reduce-op", reduce_op, "--root", "2"]);
            let (stdout, stderr) = text(&output);
            let passed = stdout.lines().filter(|line| line.ends_with("PASSED")).count();
            if (dtype, reduce_op) == ("bool", "avg") {
                assert!(!output.status.success());
                assert_eq!(stderr.matches("bool has no average").count(), 3, "{stderr}");
            } else {
                assert!(output.status.success() && passed >= 32, "{dtype} {reduce_op}\n{stdout}{stderr}");
            }
        }
    }
}

#[test]
fn ranks_can_be_processes() {
    let output = demo(&["--processes", "--ranks", "3", "--op", "all_gather"]);
    let (stdout, stderr) = text(&output);
    assert!(output.status.success(), "{stdout}{stderr}");
    for rank in 0..3 {
        assert!(stdout.contains(&format!("Rank {rank} - ALL_GATHER PASSED")), "{stdout}");
    }
    assert!(stdout.contains("ranks: 3 processes"), "{stdout}");
}

#[test]
fn one_rank_is_the_identity_for_every_type() {
    for dtype in ["float32", "float8", "uint8", "bool"] {
        let output = demo(&["--ranks", "1", "--dtype", dtype]);
        let (stdout, stderr) = text(&output);
        assert!(output.status.success(), "{dtype}\n{stdout}{stderr}");
    }
}

#[test]
fn every_number_of_ranks_passes() {
    for ranks in (1..=17).chain([64]) {
        let output = demo(&["--ranks", &ranks.to_string(), "--dtype", "int32"]);
        let (stdout, stderr) = text(&output);
        assert!(output.status.success(), "{ranks} ranks\n{stdout}{stderr}");
        assert_eq!(stdout.matches(" PASSED\n").count() - stdout.matches("us  PASSED\n").count(), 8 * ranks, "{stdout}");
    }
    // The sum of 300 ranks wraps in int8 before it is divided.
    let output = demo(&["--ranks", "300", "--dtype", "int8", "--op", "all_reduce", "--reduce-op", "avg"]);
    assert!(output.status.success(), "{:?}", text(&output));
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
    let (stdout, stderr) = text(&output);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        stderr,
        "error: REDUCE_SCATTER cannot be built: layer \"reduce_scatter\" (reduce_scatter): dimension 0 is 4, which is not a \
         multiple of 3 ranks; input is float32 [4, 3]; make --columns a multiple of 3, such as 6\n"
    );
    assert!(stdout.contains("FAILED: cannot be built"));

    let output = demo(&["--ranks", "3", "--columns", "4"]);
    let (stdout, stderr) = text(&output);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr.matches("cannot be built").count(), 3, "{stderr}");
    for operation in ["ALL_REDUCE", "ALL_GATHER", "BROADCAST", "REDUCE", "GATHER"] {
        assert!(stdout.contains(&format!("Rank 2 - {operation} PASSED")), "{stdout}");
    }
}

#[test]
fn names_are_read_in_any_case_and_wrong_ones_are_refused() {
    assert!(demo(&["--op", "All_Reduce"]).status.success());
    for (arguments, says) in [
        (["--op", "mean"], "\"mean\" is not a collective operation; they are all_reduce"),
        (["--dtype", "float64"], "data type float64 has no collective; the types are float32"),
        (["--dtype", "fp4"], "data type FP4 has no collective"),
        (["--ranks", "0"], "0 is not in 1..=1024"),
        (["--root", "2"], "root 2 is not one of 2 ranks"),
        (["--root", "-1"], "-1 is not in 0..=65535"),
    ] {
        let output = demo(&arguments);
        let (_, stderr) = text(&output);
        assert!(!output.status.success() && stderr.contains(says), "{arguments:?}: {stderr}");
    }
}

//! `distcollective bench`, run as a user runs it. The tests check that times are printed, not what
//! they are.

use std::process::Output;

use test_support::{text, timed};

const DISTCOLLECTIVE: &str = env!("CARGO_BIN_EXE_distcollective");

const OPERATIONS: [&str; 8] =
    ["all_reduce", "all_gather", "broadcast", "reduce", "reduce_scatter", "all_to_all", "gather", "scatter"];

const TYPES: [&str; 10] =
    ["float32", "float16", "bfloat16", "float8", "float8_e5m2", "int64", "int32", "int8", "uint8", "bool"];

fn run(arguments: &[&str]) -> (Output, String, String) {
    let (output, _) = test_support::run(timed(DISTCOLLECTIVE).args(arguments));
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    (output, stdout, stderr)
}

/// The standard output of a run that succeeds.
fn bench(arguments: &[&str]) -> String {
    let (output, stdout, stderr) = run(&[&["bench"], arguments].concat());
    assert!(output.status.success() && stderr.is_empty(), "{arguments:?}\n{stdout}{stderr}");
    stdout
}

/// The cells of a table's rows.
fn rows(table: &str) -> Vec<Vec<&str>> {
    table.lines().filter(|line| !line.starts_with('#')).map(|line| line.split_whitespace().collect()).collect()
}

/// Each speed must have a time above 0 and no wrong element; it is N/A if the operation has no
/// in-place form.
fn assert_right(operation: &str, speeds: &[&str]) {
    for (speed, in_place) in speeds.chunks(4).zip([false, true]) {
        if operation == "all_to_all" && in_place {
            assert_eq!(speed, ["N/A"; 4], "{operation}");
        } else {
            let time: f64 = speed[0].parse().expect("a time");
            assert!(
                time > 0.0 && speed[1..3].iter().all(|width| width.parse::<f64>().is_ok()),
                "{operation} {speed:?}"
            );
            assert_eq!(speed[3], "0", "{operation}");
        }
    }
}

#[test]
fn the_table_has_the_columns_and_the_sizes_step() {
    let table = bench(&["--min-bytes", "8", "--max-bytes", "1K", "--factor", "4", "--iters", "2", "--warmup", "0"]);
    for line in
        ["# ranks: 2", "# ranks_are: threads", "# backend: host", "# buffers: own", "# exact: false", "# warmup: 0"]
    {
        assert!(table.lines().any(|l| l == line), "{line}\n{table}");
    }
    assert!(table.contains("# time: each rank's mean"), "{table}");
    let speed = ["time", "algbw", "busbw", "#wrong"];
    let columns = [&["#", "size", "count", "type", "redop", "root"], &speed[..], &speed[..]].concat();
    assert!(table.lines().any(|line| line.split_whitespace().eq(columns.iter().copied())), "{table}");
    let rows = rows(&table);
    let sizes: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(sizes, ["8", "32", "128", "512"]);
    for row in rows {
        let size: usize = row[0].parse().expect("a size");
        assert_eq!(row[1..5], [(size / 4).to_string().as_str(), "float32", "sum", "-1"]);
        assert_right("all_reduce", &row[5..]);
    }
}

#[test]
fn the_size_is_the_whole_tensor_and_the_count_a_block() {
    for operation in OPERATIONS {
        let arguments = ["--op", operation, "-n", "4", "--max-bytes", "40", "--root", "3", "--iters", "1"];
        let table = bench(&arguments);
        let found: Vec<[&str; 2]> = rows(&table).iter().map(|row| [row[0], row[1]]).collect();
        let whole = ["all_reduce", "broadcast", "reduce"].contains(&operation);
        // 8 bytes have less than one float32 for each of four ranks.
        let expected = if whole { vec![["8", "2"], ["16", "4"], ["32", "8"]] } else { vec![["16", "1"], ["32", "2"]] };
        assert_eq!(found, expected, "{operation}");
        let root = if ["broadcast", "reduce", "gather", "scatter"].contains(&operation) { "3" } else { "-1" };
        assert!(rows(&table).iter().all(|row| row[4] == root), "{table}");
    }
}

/// Runs all operations; every row must be right. There are `sizes` rows for each operation.
fn assert_nothing_wrong(sizes: usize, arguments: &[&str]) {
    let common = ["--op", "all", "--csv", "--min-bytes", "50", "--factor", "60", "--iters", "2"];
    let csv = bench(&[&common[..], arguments].concat());
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<&str>>());
    let header = lines.next().expect("a header");
    let column = |name: &str| header.iter().position(|column| *column == name).expect("a column");
    let (operation, speeds) = (column("operation"), column("out_of_place_time_us"));
    let rows: Vec<Vec<&str>> = lines.collect();
    assert_eq!(rows.len(), sizes * OPERATIONS.len(), "{csv}");
    for row in rows {
        assert_eq!(row.len(), header.len(), "{csv}");
        assert_right(row[operation], &row[speeds..]);
    }
}

#[test]
fn nothing_is_wrong_for_any_operation_and_type() {
    for dtype in TYPES {
        assert_nothing_wrong(3, &["--dtype", dtype, "-n", "3", "--root", "1", "--max-bytes", "200K"]);
    }
    // One rank is the identity. Then all_to_all has an in-place form too.
    assert_eq!(rows(&bench(&["--op", "all", "-n", "1", "--max-bytes", "8"])).len(), OPERATIONS.len());
}

#[test]
fn nothing_is_wrong_for_any_reduction_and_type() {
    for reduce_op in ["prod", "max", "min", "avg"] {
        for dtype in TYPES.into_iter().filter(|dtype| (*dtype, reduce_op) != ("bool", "avg")) {
            assert_nothing_wrong(2, &["--dtype", dtype, "--reduce-op", reduce_op, "--max-bytes", "4K"]);
        }
    }
    // With 40 ranks a larger sum would wrap.
    assert_nothing_wrong(2, &["--dtype", "int8", "--reduce-op", "avg", "-n", "40", "--max-bytes", "4K"]);
}

#[test]
fn ranks_can_be_processes_and_buffers_the_communicators() {
    assert_nothing_wrong(2, &["--processes", "-n", "3", "--dtype", "float16", "--max-bytes", "4K"]);
    assert_nothing_wrong(2, &["--processes", "--symmetric", "--max-bytes", "4K"]);
    assert_nothing_wrong(2, &["--symmetric", "--backend", "gloo", "--max-bytes", "4K"]);
    let table = bench(&["--processes", "-n", "3", "--symmetric", "--max-bytes", "8"]);
    for line in ["# ranks: 3", "# ranks_are: processes", "# buffers: symmetric"] {
        assert!(table.lines().any(|l| l == line), "{line}\n{table}");
    }
}

#[test]
fn under_a_launcher_it_is_one_rank_and_rank_0_prints() {
    let under = |arguments: &[&str]| {
        run(&[&["launch", "-n", "3", "--", DISTCOLLECTIVE, "bench", "--max-bytes", "64"], arguments].concat())
    };
    let (output, stdout, stderr) = under(&["--op", "all", "--json"]);
    assert!(output.status.success(), "{stdout}{stderr}");
    let rows: Vec<serde_json::Value> = stdout
        .lines()
        .map(|line| serde_json::from_str(line.strip_prefix("[0] ").expect("rank 0's")).expect("JSON"))
        .collect();
    assert_eq!(rows.len(), 3 * 4 + 5 * 3);
    for row in rows {
        assert_eq!((&row["ranks"], &row["ranks_are"]), (&3.into(), &"processes".into()));
        assert!(row["out_of_place_time_us"].as_f64().is_some_and(|time| time > 0.0), "{row}");
        assert_eq!(row["out_of_place_wrong"], 0, "{row}");
        assert_eq!(row["in_place_wrong"].is_null(), row["operation"] == "all_to_all", "{row}");
    }

    for (arguments, says) in [
        (["-n", "2"], "[0] error: -n is 2, and the launcher started 3\n"),
        (["--backend", "nccl"], "NCCL cannot be used"),
    ] {
        let (output, stdout, stderr) = under(&arguments);
        assert!(output.status.code() == Some(1) && stdout.is_empty() && stderr.contains(says), "{stdout}{stderr}");
    }
}

#[test]
fn unchecked_results_are_neither_right_nor_wrong() {
    let table = bench(&["--check", "0", "--max-bytes", "16"]);
    assert!(rows(&table).iter().all(|row| [row[8], row[12]] == ["N/A"; 2]), "{table}");
}

#[test]
fn the_help_says_what_the_columns_mean() {
    let help = bench(&["--help"]);
    for part in ["algbw is size / time", "2(n-1)/n for all_reduce", "PERFORMANCE.md", "Example: distcollective bench"] {
        assert!(help.contains(part), "{help}");
    }
}

#[test]
fn what_is_wrong_is_one_line() {
    for (arguments, says) in [
        (&["--op", "reduce", "--root", "2"][..], "root 2 is not one of 2 ranks"),
        (&["--op", "reduce", "--root", "2", "--processes"], "root 2 is not one of 2 ranks"),
        (&["--dtype", "bool", "--reduce-op", "avg"], "bool has no average"),
        (&["--min-bytes", "9", "--max-bytes", "8"], "no size from 9 to 8 bytes has a float32 for each of 2 ranks"),
        (
            &["--ranks", "1", "--max-bytes", "3", "--min-bytes", "1"],
            "no size from 1 to 3 bytes has a float32 for the rank",
        ),
        (&["--op", "scatter", "--max-bytes", "7", "--min-bytes", "1"], "no size from 1 to 7 bytes"),
    ] {
        let (output, stdout, stderr) = run(&[&["bench"], arguments].concat());
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stdout.is_empty() && stderr.starts_with("error: ") && stderr.contains(says), "{stdout}{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
    for (arguments, says) in [
        (["--op", "mean"], "\"mean\" is not a collective operation"),
        (["--backend", "mpi"], "\"mpi\" is not a backend"),
        (["--min-bytes", "0"], "it is zero"),
        (["--max-bytes", "3X"], "X is not a unit; they are K, M and G, or KiB, MiB and GiB, powers of 1024"),
        (["--max-bytes", "KiB"], "a number of bytes is needed, such as 8, 64K or 1MiB"),
        (["--root", "-1"], "-1 is not in 0..=65535"),
        (["--max-bytes", "-1"], "unexpected argument '-1'"),
        (["--max-bytes", "99999999999G"], "more than memory can be"),
        (["--factor", "1"], "1 is not in 2.."),
        (["--check", "2"], "2 is not in 0..=1"),
        (["--iters", "0"], "0 is not in 1.."),
        (["--csv", "--json"], "cannot be used with"),
    ] {
        let (output, _, stderr) = run(&[&["bench"], &arguments[..]].concat());
        let line = stderr.lines().next().unwrap_or_default();
        assert!(output.status.code() == Some(2) && line.contains(says), "{arguments:?}: {stderr}");
    }
}

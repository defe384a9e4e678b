//! `distcollective bench`, run as a user runs it. The tests check that times are printed, not what
//! they are.

mod json;

use std::process::Output;

use test_support::{Folder, text, timed};

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
    let short = ["--iters", "2", "--warmup", "0", "--batches", "3"];
    let table = bench(&[&["-b", "8", "-e", "1K", "-f", "4"], &short[..]].concat());
    for line in [
        "# world_size: 2",
        "# ranks_are: threads",
        "# backend: host",
        "# symmetric: false",
        "# exact: false",
        "# warmup_iterations: 0",
        "# iterations: 2",
        "# batch_ms: N/A",
        "# batches: 3",
    ] {
        assert!(table.lines().any(|l| l == line), "{line}\n{table}");
    }
    assert!(table.contains("# time: the median of the batches"), "{table}");
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
        assert_right(row[operation], &row[speeds..speeds + 8]);
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
fn nothing_is_wrong_with_a_transport_type() {
    for wire in ["float16", "bfloat16"] {
        let arguments = ["--wire", wire, "-n", "3", "--max-bytes", "200K", "--iters", "1", "--warmup", "0"];
        for operation in ["all_reduce", "reduce", "reduce_scatter", "broadcast", "all_gather"] {
            let table = bench(&[&arguments[..], &["--op", operation]].concat());
            assert!(table.lines().any(|line| line == format!("# wire_type: {wire}")), "{table}");
            rows(&table).iter().for_each(|row| assert_right(operation, &row[5..]));
        }
    }
}

#[test]
fn ranks_can_be_processes_and_buffers_the_communicators() {
    assert_nothing_wrong(2, &["--processes", "-n", "3", "--dtype", "float16", "--max-bytes", "4K"]);
    assert_nothing_wrong(2, &["--processes", "--symmetric", "--max-bytes", "4K"]);
    assert_nothing_wrong(2, &["--symmetric", "--backend", "host", "--max-bytes", "4K"]);
    let table = bench(&["--processes", "-n", "3", "--symmetric", "--max-bytes", "8"]);
    for line in ["# world_size: 3", "# ranks_are: processes", "# symmetric: true"] {
        assert!(table.lines().any(|l| l == line), "{line}\n{table}");
    }
}

#[test]
fn under_a_launcher_it_is_one_rank_and_rank_0_prints() {
    let under = |arguments: &[&str]| {
        let bench = ["launch", "-n", "3", "--", DISTCOLLECTIVE, "bench", "--max-bytes", "64", "--iters", "5"];
        run(&[&bench[..], arguments].concat())
    };
    let (output, stdout, stderr) = under(&["--op", "all", "--json"]);
    assert!(output.status.success(), "{stdout}{stderr}");
    let rows: Vec<serde_json::Value> =
        stdout.lines().map(|line| json::read(line.strip_prefix("[0] ").expect("rank 0's"))).collect();
    assert_eq!(rows.len(), 3 * 4 + 5 * 3);
    for row in rows {
        assert_eq!((&row["world_size"], &row["ranks_are"]), (&3.into(), &"processes".into()));
        assert!(row["out_of_place_time_us"].as_f64().is_some_and(|time| time > 0.0), "{row}");
        assert_eq!(row["out_of_place_wrong"], 0, "{row}");
        assert_eq!(row["in_place_wrong"].is_null(), row["operation"] == "all_to_all", "{row}");
    }

    for (arguments, code, says) in [
        (["-n", "2"], 2, "[0] error: -n is 2, and the launcher started 3\n"),
        (["--backend", "nccl"], 1, "NCCL cannot be used"),
    ] {
        let (output, stdout, stderr) = under(&arguments);
        assert!(output.status.code() == Some(code) && stdout.is_empty() && stderr.contains(says), "{stdout}{stderr}");
    }
}

#[test]
fn unchecked_results_are_neither_right_nor_wrong() {
    let table = bench(&["--check", "0", "--max-bytes", "16"]);
    assert!(rows(&table).iter().all(|row| [row[8], row[12]] == ["N/A"; 2]), "{table}");
}

#[test]
fn percentiles_lie_between_the_shortest_and_the_longest_batch() {
    let arguments = ["--op", "all_gather,broadcast,all_gather", "-e", "64", "--percentiles", "0,50,90,100", "--json"];
    let json = bench(&[&arguments[..], &["--iters", "3", "--batches", "7", "--dirty", "--barrier"]].concat());
    let rows: Vec<serde_json::Value> = json.lines().map(json::read).collect();
    let operations: Vec<&str> = rows.iter().map(|row| row["operation"].as_str().expect("a name")).collect();
    assert_eq!(operations, [["all_gather"; 4], ["broadcast"; 4]].concat(), "each operation once, in their order");
    for row in rows {
        for form in ["out_of_place", "in_place"] {
            let names = ["min", "p0", "time", "p50", "p90", "p100", "max"];
            let times = names.map(|name| row[format!("{form}_{name}_us")].as_f64().expect("a time"));
            assert!(times[0] == times[1] && times[2] == times[3] && times[5] == times[6], "{row}");
            assert!(times.is_sorted(), "{row}");
            assert_eq!(row[format!("{form}_iterations")], 3, "{row}");
        }
        assert_eq!([&row["rewrites_input"], &row["barrier_after_each_call"]], [true; 2]);
        assert_eq!((&row["iterations"], &row["batch_ms"]), (&3.into(), &serde_json::Value::Null));
        assert_eq!([&row["reduce_op"], &row["wire_type"]], [&serde_json::Value::Null; 2]);
        assert_eq!(row["root"].as_u64(), (row["operation"] == "broadcast").then_some(0));
    }
    let table = bench(&["-e", "8", "--percentiles", "90"]);
    assert!(table.lines().any(|line| line.ends_with("#wrong        p90        p90")), "{table}");
    assert_eq!(rows_of(&table, 15), 1, "{table}");
}

/// Private buffers of processes are staged; symmetric ones and those of threads are reached.
#[test]
fn explain_shows_how_elements_moved() {
    let common = ["--op", "all_reduce", "-b", "64", "-e", "64K", "-f", "32", "--iters", "1", "--batches", "1"];
    let paths = |more: &[&str]| {
        let json = bench(&[&common[..], &["--explain", "--json"], more].concat());
        let rows = json.lines().map(json::read);
        rows.map(|row| ["out_of_place_path", "in_place_path"].map(|name| row[name].as_str().unwrap_or("").to_owned()))
            .collect::<Vec<_>>()
    };
    let expected = |largest: &str| ["inline", "eager", largest].map(|path| [path.to_owned(), path.to_owned()]);
    assert_eq!(paths(&["--processes"]), expected("staged"));
    assert_eq!(paths(&["--processes", "--symmetric", "--barrier"]), expected("direct"));
    assert_eq!(paths(&["--dirty"]), expected("direct"));
    let table = bench(&["-e", "8", "--percentiles", "90", "--explain"]);
    assert!(table.lines().any(|line| line.ends_with("p90       path        p90       path")), "{table}");
    assert_eq!(rows_of(&table, 17), 1, "{table}");
}

/// The number of rows, which must have this many cells.
fn rows_of(table: &str, cells: usize) -> usize {
    let rows = rows(table);
    assert!(rows.iter().all(|row| row.len() == cells), "{table}");
    rows.len()
}

#[test]
fn points_have_the_bytes_of_a_rank() {
    let common = ["--op", "all", "-n", "4", "-b", "64", "-e", "128", "--iters", "2", "--batches", "5"];
    let text = bench(&[&common[..], &["--points", "mine", "--barrier"]].concat());
    let points: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    let expected: Vec<(String, &str)> = OPERATIONS
        .iter()
        .flat_map(|operation| ["64", "128"].map(|bytes| (format!("{operation}_bar"), bytes)))
        .collect();
    let found: Vec<(String, &str)> = points.iter().map(|point| (point[2].to_owned(), point[3])).collect();
    assert_eq!(found, expected);
    for point in points {
        assert_eq!((&point[..2], &point[7..]), (&["mine", "4"][..], &["5", "2"][..]), "{text}");
        let times: Vec<f64> = point[4..7].iter().map(|time| time.parse().expect("a time")).collect();
        assert!(0.0 < times[1] && times[1] <= times[0] && times[0] <= times[2], "median, minimum, maximum: {point:?}");
    }
}

#[test]
fn a_plot_has_a_chart_for_each_operation_and_a_line_for_each_label() {
    let folder = Folder::create();
    let (peers, plot) = (folder.file("peers.csv"), folder.file("plot.svg"));
    let lines = "slow,2,all_reduce,8,90,80,100,9,100\nslow,2,all_reduce,16,WRONG\nslow,4,all_reduce,8,1,1,1,9,1\n";
    std::fs::write(&peers, lines).expect("a file");
    let [peers, plot] = [&peers, &plot].map(|path| path.to_str().expect("text"));
    let arguments = ["--op", "all_reduce,gather", "-e", "16", "--plot", plot, "--peers", peers];
    for processes in [&[][..], &["--processes"]] {
        bench(&[&arguments[..], processes].concat());
        let svg = std::fs::read_to_string(plot).expect("a plot");
        std::fs::remove_file(plot).expect("it is there");
        for (part, count) in [("all_reduce, 2 ranks", 1), ("gather, 2 ranks", 1), ("distcollective", 2), ("slow", 1)] {
            assert_eq!(svg.matches(part).count(), count, "{part}\n{svg}");
        }
    }
    std::fs::write(peers, "slow,2,all_reduce,8,90,80,100,9,many\n").expect("a file");
    for (path, says) in
        [(peers, "peers.csv: line 1: a point's ranks, bytes"), ("none.csv", "none.csv: it cannot be read: ")]
    {
        let (output, stdout, stderr) = run(&["bench", "-e", "8", "--plot", plot, "--peers", path]);
        assert!(output.status.code() == Some(1) && stdout.is_empty() && stderr.contains(says), "{stderr}");
    }
    // It is found before anything is measured.
    let (output, stdout, stderr) = run(&["bench", "-e", "8", "--plot", "no folder/plot.svg"]);
    assert!(output.status.code() == Some(1) && stdout.is_empty(), "{stdout}");
    assert!(stderr.contains("plot.svg: it cannot be written: "), "{stderr}");
}

#[test]
fn a_plot_can_have_only_the_points_of_files() {
    let folder = Folder::create();
    let (points, svg) = (folder.file("points.csv"), folder.file("plot.svg"));
    std::fs::write(&points, "a,2,reduce,8,1,1,1,9,1\nb,2,reduce,8,2,2,2,9,1\na,4,reduce,8,1,1,1,9,1\n")
        .expect("a file");
    let [points, plot] = [&points, &svg].map(|path| path.to_str().expect("text"));
    let (output, _, stderr) = run(&["plot", plot, points]);
    assert!(output.status.success(), "{stderr}");
    let drawn = std::fs::read_to_string(&svg).expect("a plot");
    assert!(["reduce, 2 ranks", "reduce, 4 ranks"].iter().all(|title| drawn.contains(title)), "{drawn}");
    for arguments in [&["plot", "/dev/full", points][..], &["bench", "-e", "8", "--plot", "/dev/full"]] {
        let (output, _, stderr) = run(arguments);
        let says = "/dev/full: it cannot be written: No space left on device";
        assert!(output.status.code() == Some(1) && stderr.contains(says), "{arguments:?}: {stderr}");
    }
    std::fs::write(points, "a,2,reduce,8,WRONG\n").expect("a file");
    for (path, says) in [(points, "the files have no points"), ("none.csv", "none.csv: it cannot be read: ")] {
        let (output, _, stderr) = run(&["plot", plot, path]);
        assert!(output.status.code() == Some(1) && stderr.contains(says), "{stderr}");
    }
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
        (&["--op", "scatter", "--wire", "float16"], "it has no transport type"),
        (&["--dtype", "int8", "--wire", "float16"], "only float32 has a transport type"),
        (&["--min-bytes", "9", "--max-bytes", "8"], "no size from 9 to 8 bytes has a float32 for each of 2 ranks"),
        (
            &["--ranks", "1", "--max-bytes", "3", "--min-bytes", "1"],
            "no size from 1 to 3 bytes has a float32 for the rank",
        ),
        (&["--op", "scatter", "--max-bytes", "7", "--min-bytes", "1"], "no size from 1 to 7 bytes"),
        (&["--bind", "0"], "--bind has 1 set of CPUs for 2 ranks"),
        (&["--bind", "0;65000"], "65000"),
    ] {
        let (output, stdout, stderr) = run(&[&["bench"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stdout.is_empty() && stderr.starts_with("error: ") && stderr.contains(says), "{stdout}{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
    for (arguments, says) in [
        (["--op", "mean"], "\"mean\" is not a collective operation"),
        (["--backend", "ucc"], "\"ucc\" is not a backend"),
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
        (["--batches", "0"], "0 is not in 1..=100000"),
        (["--percentiles", "101"], "101 is not in 0..=100"),
        (["--points", "a,b"], "a label has no comma"),
        (["--peers", "a.csv"], "required arguments were not provided"),
    ] {
        let (output, _, stderr) = run(&[&["bench"], &arguments[..]].concat());
        let line = stderr.lines().next().unwrap_or_default();
        assert!(output.status.code() == Some(2) && line.contains(says), "{arguments:?}: {stderr}");
    }
}

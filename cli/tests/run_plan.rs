//! `distcollective run` with a plan, and `DCL_PROFILE`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use distcollective::network::Shuffle;
use distcollective::{DataType, DistCollective, Network, Rank, ReduceOperation, Result};
use serde_json::Value;
use test_support::{Folder, timed};

const DISTCOLLECTIVE: &str = env!("CARGO_BIN_EXE_distcollective");

/// A plan for two ranks: y is the sum of all x, transposed, and "first" what rank 0 has of it.
fn save_plan(folder: &Path) -> Result<()> {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int32, [-1, 2])?;
    network.set_optimization_profile(x, [1, 2], [3, 2], [8, 2])?;
    let sum = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(2).named("the \"sum\""), x)?;
    let y = network.add_shuffle(sum, Shuffle::transpose([1, 0]))?;
    let first = network.add(DistCollective::broadcast(Rank(0)).nb_rank(2).named("first"), y)?;
    network.mark_output(y, "y")?;
    network.mark_output(first, "first")?;
    network.build()?.save(folder.join("a.plan"))
}

/// A file of numpy's format with [rows, 2] of this type, which has 4 bytes.
fn npy(descr: &str, values: &[i32]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}, 2), }}", values.len() / 2);
    let header = format!("{header:<117}\n");
    let magic = [b"\x93NUMPY\x01\x00".as_slice(), &(header.len() as u16).to_le_bytes()].concat();
    let values: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    [magic, header.into_bytes(), values].concat()
}

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = timed(DISTCOLLECTIVE);
    command.args(["run", "a.plan"]).args(arguments).current_dir(folder);
    command
}

fn run(folder: &Path, arguments: &[&str]) -> (Output, String) {
    test_support::run(&mut command(folder, arguments))
}

/// The names, the ranks and the numbers of the table.
fn rows(text: &str) -> Vec<(String, u32, Vec<f64>)> {
    let mut name = String::new();
    let row = |line: &str| {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        let numbers = words.split_off(words.len() - 5);
        let rank = words.pop().expect("a rank").parse().expect("a rank");
        if !words.is_empty() {
            name = words.join(" ");
        }
        (name.clone(), rank, numbers.iter().map(|number| number.parse().expect("a number")).collect())
    };
    text.lines().skip(2).map(row).collect()
}

#[test]
fn a_table_has_each_layer_on_each_rank_and_files_have_inputs_and_outputs() {
    let folder = Folder::create();
    save_plan(folder.path()).expect("a plan");
    for (rank, values) in [[1, 2, 3, 4], [10, 20, 30, 40]].iter().enumerate() {
        std::fs::write(folder.file(format!("in{rank}.npy")), npy("<i4", values)).expect("a file");
    }
    let files = ["--input", "x=in{rank}.npy", "--output", "y=y{rank}.npy", "--output", "first=first{rank}.npy"];
    let (output, text) = run(folder.path(), &[&["-n", "2", "--runs", "3"], &files[..]].concat());
    assert!(output.status.success(), "{text}");
    assert!(text.starts_with("a.plan: 2 ranks, host, means of 3 runs\nlayer"), "{text}");
    let rows = rows(&text);
    let names: Vec<_> = rows.iter().map(|(name, rank, _)| (name.as_str(), *rank)).collect();
    let layers = ["the \\\"sum\\\"", "shuffle_1", "first"];
    let expected: Vec<_> = layers.iter().flat_map(|layer| [(*layer, 0), (*layer, 1)]).collect();
    assert_eq!(names, expected, "{text}");
    for (name, rank, numbers) in &rows {
        let [time, wait, moved, input, output] = numbers[..] else { panic!("{text}") };
        // In tenths.
        assert!((wait + moved - time).abs() < 0.2, "{text}");
        let input_bytes = if name == "first" && *rank == 1 { 0.0 } else { 16.0 };
        assert_eq!([input, output], [input_bytes, 16.0], "{text}");
    }
    let of_file = |name: &str| std::fs::read(folder.file(name)).expect("a file")[128..].to_vec();
    let bytes: Vec<u8> = [11i32, 33, 22, 44].iter().flat_map(|value| value.to_le_bytes()).collect();
    for name in ["y0.npy", "y1.npy", "first0.npy", "first1.npy"] {
        assert_eq!(of_file(name), bytes, "{name}");
    }
}

/// Without a file an input is zeros, of the profile's usual shape.
#[test]
fn an_input_without_a_file_is_zeros_and_one_file_is_for_all_ranks() {
    let folder = Folder::create();
    save_plan(folder.path()).expect("a plan");
    let (output, text) = run(folder.path(), &["-n", "2", "--output", "y=y{rank}.npy"]);
    assert!(output.status.success() && text.contains("means of 10 runs"), "{text}");
    assert_eq!(std::fs::read(folder.file("y1.npy")).expect("a file")[128..], [0; 24]);
    std::fs::write(folder.file("in.npy"), npy("<i4", &[1, 2])).expect("a file");
    let (output, text) = run(folder.path(), &["-n", "2", "--input", "x=in.npy", "--output", "y=y{rank}.npy"]);
    assert!(output.status.success(), "{text}");
    assert_eq!(std::fs::read(folder.file("y1.npy")).expect("a file")[128..], [2, 0, 0, 0, 4, 0, 0, 0]);
}

#[test]
fn what_is_wrong_is_said() {
    let folder = Folder::create();
    save_plan(folder.path()).expect("a plan");
    std::fs::write(folder.file("long.npy"), npy("<i4", &[0; 18])).expect("a file");
    std::fs::write(folder.file("float.npy"), npy("<f4", &[0; 6])).expect("a file");
    for (code, arguments, says) in [
        (2, &["-n", "2", "--input", "x"][..], "--input \"x\" is not NAME=FILE; the plan's inputs are \"x\""),
        (2, &["-n", "2", "--input", "y=in.npy"], "the plan's inputs are \"x\""),
        (2, &["-n", "2", "--output", "x=x{rank}.npy"], "the plan's outputs are \"y\", \"first\""),
        (2, &["-n", "1", "--output", "y=a.plan"], "the output a.plan is the input a.plan, which would be lost"),
        (2, &["-n", "1", "--output", "y=y.npy", "--output", "first=y.npy"], "--output names y.npy twice"),
        (2, &["-n", "2", "--output", "y=y.npy"], "names one file for 2 ranks; put {rank} into it"),
        (2, &["-n", "2", "--input", "x=a", "--input", "x=b"], "--input \"x\" is given twice"),
        (2, &["-n", "2", "--op", "all_gather"], "cannot be used with"),
        (2, &["-n", "2", "--json"], "cannot be used with"),
        (1, &["-n", "2", "--input", "x=float.npy"], "float.npy: it holds float32, not int32"),
        (1, &["-n", "2", "--input", "x=none.npy"], "none.npy: No such file or directory"),
        (1, &["-n", "2", "--input", "x=long.npy"], "input \"x\": [9, 2] is not in its profile"),
        (1, &["-n", "3"], "nb_rank is 2, but the communicator has 3 ranks"),
    ] {
        let (output, text) = run(folder.path(), arguments);
        assert!(output.status.code() == Some(code) && text.contains(says), "{arguments:?}: {text}");
    }
}

/// The events in a file of `DCL_PROFILE`, which needs no end.
fn events(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).expect("a file");
    serde_json::from_str(&format!("{text}]")).expect("an array")
}

/// Several processes write one file at once, and no line is torn.
#[test]
fn processes_write_one_file_of_trace_events() {
    let folder = Folder::create();
    save_plan(folder.path()).expect("a plan");
    let start = |_| {
        let mut command = command(folder.path(), &["-n", "2", "--runs", "20"]);
        command.env("DCL_PROFILE", "trace.json").stdout(Stdio::null()).spawn().expect("a process")
    };
    for mut process in (0..4).map(start).collect::<Vec<_>>() {
        assert!(process.wait().expect("a process").success());
    }
    let mut counts = BTreeMap::new();
    for event in events(&folder.file("trace.json")) {
        let rank = event["pid"].as_u64().expect("a rank");
        let name = event["name"].as_str().expect("a name").to_owned();
        if event["ph"] == "M" {
            let is_name = name == "process_name" && event["args"]["name"] == format!("rank {rank}");
            assert!(is_name || (name == "process_sort_index" && rank == 0), "{event}");
        } else {
            let number = |value: &Value| value.as_f64().expect("a number");
            let (parts, whole) = (&event["args"], number(&event["dur"]));
            assert!((number(&parts["wait_us"]) + number(&parts["move_us"]) - whole).abs() < 0.01, "{event}");
            assert!(event["ph"] == "X" && number(&event["ts"]) > 0.0 && event["tid"].is_u64(), "{event}");
            assert_eq!(parts["output_bytes"], 24, "{event}");
        }
        *counts.entry((rank, name)).or_insert(0) += 1;
    }
    assert_eq!(counts.remove(&(0, "process_sort_index".to_owned())), Some(1));
    for rank in 0..2 {
        assert_eq!(counts.remove(&(rank, "process_name".to_owned())), Some(4));
        for layer in ["the \"sum\"", "shuffle_1", "first"] {
            assert_eq!(counts.remove(&(rank, layer.to_owned())), Some(84), "{layer}");
        }
    }
    assert!(counts.is_empty(), "{counts:?}");
}

/// A file that is not one for it is an error before the run. One that takes no more is a warning.
#[test]
fn a_profile_that_cannot_be_written_is_said() {
    let folder = Folder::create();
    save_plan(folder.path()).expect("a plan");
    test_support::succeed(timed("mkfifo").arg(folder.file("pipe")));
    for (file, says) in [
        ("none/trace.json", "No such file or directory (os error 2)"),
        ("pipe", "it is not a regular file"),
        ("a.plan", "it has something else in it"),
    ] {
        let (output, text) = test_support::run(command(folder.path(), &["-n", "2"]).env("DCL_PROFILE", file));
        assert!(output.status.code() == Some(1) && text.lines().count() == 1, "{text}");
        assert!(text.contains(&format!("DCL_PROFILE is {file:?}, which cannot be written: {says}")), "{text}");
    }
    let limited = format!("trap '' XFSZ; ulimit -f 1; exec {DISTCOLLECTIVE} run a.plan -n 2 --runs 50");
    let mut shell = timed("sh");
    shell.args(["-c", &limited]).current_dir(folder.path()).env("DCL_PROFILE", "trace.json");
    let (output, text) = test_support::run(&mut shell);
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches("the file of DCL_PROFILE cannot be written, and gets no more: ").count(), 1, "{text}");
}

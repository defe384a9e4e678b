//! `distcollective run`, with files that numpy writes and reads.

mod json;

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use test_support::{Folder, has, skip, timed};

const DISTCOLLECTIVE: &str = env!("CARGO_BIN_EXE_distcollective");

/// Debian's Python, whose numpy is a package.
const PYTHON: &str = "/usr/bin/python3";

/// Runs Python with numpy as `np` in a folder. `None` if numpy is not installed, which it must be
/// in CI.
fn python(folder: &Path, script: &str) -> Option<()> {
    let import = Command::new(PYTHON).args(["-c", "import numpy"]).output();
    if !import.is_ok_and(|output| output.status.success()) {
        skip("numpy is not installed");
        return None;
    }
    let script = format!("import numpy as np\nnp.random.seed(1)\n{script}");
    let (output, text) = test_support::run(timed(PYTHON).args(["-c", &script]).current_dir(folder));
    assert!(output.status.success(), "{text}");
    Some(())
}

fn run(folder: &Path, arguments: &[&str]) -> (Output, String) {
    let files = ["--input", "in{rank}.npy", "--output", "out{rank}.npy"];
    test_support::run(timed(DISTCOLLECTIVE).arg("run").args(files).args(arguments).current_dir(folder))
}

fn succeeds(folder: &Path, arguments: &[&str]) {
    let (output, text) = run(folder, arguments);
    assert!(output.status.success(), "{text}");
}

/// The command fails, with one line that has this in it.
fn fails(folder: &Path, arguments: &[&str], says: &str) {
    fails_with(1, folder, arguments, says);
}

fn fails_with(code: i32, folder: &Path, arguments: &[&str], says: &str) {
    let (output, text) = run(folder, arguments);
    assert!(output.status.code() == Some(code) && text.contains(says), "{says}: {text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

/// Mistakes that clap does not find. They come before those of files.
#[test]
fn a_wrong_call_has_exit_code_2() {
    let folder = Folder::create();
    let reduce = ["--op", "reduce", "--reduce-op", "sum"];
    for (arguments, says) in [
        (&["--op", "all_reduce", "-n", "1"][..], "all_reduce reduces; give sum, prod, max, min or avg with"),
        (&["--op", "gather", "-n", "1"], "gather has a root; give it with --root"),
        (&["--op", "all_gather", "--reduce-op", "sum", "-n", "1"], "it does not reduce"),
        (&[&reduce[..], &["-n", "2", "--root", "2"]].concat(), "root 2 is not one of 2 ranks"),
        (
            &[&reduce[..], &["-n", "3", "--root", "2", "--groups", "0,1"]].concat(),
            "root 2 is not a member of the group",
        ),
        (&["--op", "all_gather", "-n", "3", "--groups", "0,3"], "--groups has rank 3, and there are 3 ranks"),
        (&["--op", "all_gather", "-n", "3", "--groups", "0,1;2,3"], "--groups has rank 3, and there are 3 ranks"),
    ] {
        fails_with(2, folder.path(), arguments, says);
    }
    let files = ["run", "--op", "all_gather", "-n", "2", "--input", "in.npy", "--output", "out{rank}.npy"];
    let (output, text) = test_support::run(timed(DISTCOLLECTIVE).args(files));
    assert!(
        output.status.code() == Some(2) && text.contains("names one file for 2 ranks; put {rank} into it"),
        "{text}"
    );
}

/// Each process of a launcher would run all ranks, and write the same files.
#[test]
fn a_command_that_runs_all_ranks_is_no_rank_of_a_launcher() {
    let folder = Folder::create();
    let commands = [
        &["run", "--op", "all_gather", "-n", "2", "--input", "in{rank}", "--output", "out{rank}"][..],
        &["broadcast-weights", "m.safetensors", "-n", "2"],
    ];
    let alone = [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")];
    for command in commands {
        let mut launch = timed(DISTCOLLECTIVE);
        launch.args(["launch", "-n", "2", "--", DISTCOLLECTIVE]).args(command).current_dir(folder.path());
        let (output, text) = test_support::run(&mut launch);
        let says =
            " runs all ranks itself, and distcollective launch started this process as rank 1 of 2; start it once";
        assert!(
            output.status.code() == Some(2) && (text.contains(says) || text.contains(&says.replace('1', "0"))),
            "{text}"
        );
        // Without a rendezvous point it is a rank too.
        let (output, text) =
            test_support::run(timed(DISTCOLLECTIVE).args(command).envs([("RANK", "1"), ("WORLD_SIZE", "2")]));
        assert!(output.status.code() == Some(2) && text.contains("torchrun started this process ("), "{text}");
        // As the script of sbatch has them.
        let batch = [("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2")];
        for variables in [&alone[..], &batch] {
            let (output, text) = test_support::run(
                timed(DISTCOLLECTIVE).args(command).envs(variables.iter().copied()).current_dir(folder.path()),
            );
            assert!(output.status.code() == Some(1) && text.contains("No such file"), "{variables:?}: {text}");
        }
    }
}

#[test]
fn files_get_what_numpy_gives() {
    let folder = Folder::create();
    for (dtype, make) in [
        ("float32", "np.random.rand(2, 3).astype('f4')"),
        ("float16", "np.random.rand(2, 3).astype('f2')"),
        ("int64", "np.asfortranarray(np.random.randint(-9, 9, (2, 3)))"),
        ("uint8", "np.random.randint(0, 200, (2, 3)).astype('u1')"),
        ("bool", "np.random.rand(2, 3) < 0.5"),
    ] {
        let written = python(folder.path(), &format!("[np.save(f'in{{r}}.npy', {make}) for r in range(3)]"));
        if written.is_none() {
            return;
        }
        succeeds(folder.path(), &["--op", "all_gather", "-n", "3", "--dtype", dtype]);
        python(
            folder.path(),
            "x = [np.load(f'in{r}.npy') for r in range(3)]
for r in range(3):
    y = np.load(f'out{r}.npy')
    assert y.dtype == x[0].dtype and np.array_equal(y, np.concatenate(x)), (x, y)",
        );
        succeeds(folder.path(), &["--op", "all_reduce", "--reduce-op", "max", "-n", "3"]);
        python(
            folder.path(),
            "x = [np.load(f'in{r}.npy') for r in range(3)]
for r in range(3):
    assert np.array_equal(np.load(f'out{r}.npy'), np.maximum(np.maximum(x[0], x[1]), x[2]))",
        );
    }
}

#[test]
fn every_layout_that_numpy_writes_is_read() {
    let folder = Folder::create();
    for dtype in ["f4", "f2", "i8", "i4", "i1", "u1", "?"] {
        let write = format!(
            "x = np.random.randint(0, 100, (2, 3, 4)).astype('{dtype}')
np.save('x.npy', x)
layouts = [x, x.astype(x.dtype.newbyteorder('>')), np.asfortranarray(x.astype(x.dtype.newbyteorder('>')))]
for r in range(9):
    with open(f'in{{r}}.npy', 'wb') as file:
        np.lib.format.write_array(file, layouts[r % 3], version=(1 + r // 3, 0))"
        );
        if python(folder.path(), &write).is_none() {
            return;
        }
        succeeds(folder.path(), &["--op", "all_gather", "-n", "9"]);
        python(
            folder.path(),
            "x, y = np.load('x.npy'), np.load('out4.npy')
assert y.dtype == x.dtype and np.array_equal(y, np.concatenate([x] * 9)), (x, y)",
        );
    }
}

#[test]
fn roots_groups_and_types_that_numpy_does_not_have() {
    let folder = Folder::create();
    let write = "[np.save(f'in{r}.npy', np.full((2,), 0x3f80 + r, 'u2')) for r in range(3)]";
    if python(folder.path(), write).is_none() {
        return;
    }
    succeeds(folder.path(), &["--op", "gather", "--root", "2", "--groups", "2,0", "-n", "3", "--dtype", "bfloat16"]);
    assert!(!folder.file("out0.npy").exists() && !folder.file("out1.npy").exists());
    python(
        folder.path(),
        "assert np.array_equal(np.load('out2.npy'), np.array([0x3f82, 0x3f82, 0x3f80, 0x3f80], 'u2'))",
    );
    // One and one is two: 0x38 + 0x38 = 0x40 in float8_e4m3.
    python(folder.path(), "[np.save(f'in{r}.npy', np.full((1,), 0x38, 'u1')) for r in range(2)]");
    succeeds(folder.path(), &["--op", "all_reduce", "--reduce-op", "sum", "-n", "2", "--dtype", "float8"]);
    python(folder.path(), "assert np.load('out1.npy') == 0x40");
}

#[test]
fn what_is_wrong_is_one_line() {
    let folder = Folder::create();
    let write = "np.save('in0.npy', np.zeros((2, 2), 'f4')); np.save('in1.npy', np.zeros((3, 2), 'f4'))";
    if python(folder.path(), write).is_none() {
        return;
    }
    let sum = ["--op", "all_reduce", "--reduce-op", "sum"];
    fails(
        folder.path(),
        &[&sum[..], &["-n", "2"]].concat(),
        "in1.npy is float32 [3, 2], and in0.npy is float32 [2, 2]",
    );
    fails(folder.path(), &[&sum[..], &["-n", "1", "--dtype", "int8"]].concat(), "in0.npy: it holds float32, not int8");
    python(folder.path(), "np.save('in1.npy', np.zeros((2, 2), 'c8'))");
    fails(
        folder.path(),
        &[&sum[..], &["-n", "2"]].concat(),
        "in1.npy: it holds complex64, which collectives do not take",
    );
    python(folder.path(), "np.save('in1.npy', np.zeros((2, 2), 'f4')); open('in0.npy', 'r+b').truncate(90)");
    fails(folder.path(), &[&sum[..], &["-n", "2"]].concat(), "in0.npy: it is not an .npy file, because it ends within");
    python(folder.path(), "[np.save(f'in{r}.npy', np.zeros((5, 2), 'f4')) for r in range(2)]");
    fails(folder.path(), &[&sum[..], &["-n", "3"]].concat(), "in2.npy: No such file or directory");
    fails(
        folder.path(),
        &["--op", "all_to_all", "-n", "2"],
        "(all_to_all): dimension 0 is 5, which is not a multiple of 2 ranks; input is float32 [5, 2]",
    );
    python(folder.path(), "import os\nos.mkdir('out1.npy')");
    fails(folder.path(), &[&sum[..], &["-n", "2"]].concat(), "out1.npy: Is a directory");
}

#[test]
fn a_timeout_is_above_0_and_need_not_be_whole() {
    for wrong in ["0", "-1", "soon", "1e30"] {
        for command in ["run --op all_reduce --input x.npy --output y.npy", "env", "bench"] {
            let option = format!("--timeout={wrong}");
            let (output, text) = test_support::run(timed(DISTCOLLECTIVE).args(command.split(' ')).arg(option));
            assert_eq!(output.status.code(), Some(2), "{command}: {text}");
            assert!(text.contains("a number of seconds above 0, such as 60 or 0.5, is needed"), "{command}: {text}");
        }
    }
    let (output, text) = test_support::run(timed(DISTCOLLECTIVE).args(["bench", "--timeout=9.5", "--max-bytes=8"]));
    assert!(output.status.success(), "{text}");
}

#[test]
fn a_partition_runs_each_group_by_itself_and_json_tells_what_was_written() {
    let folder = Folder::create();
    if python(folder.path(), "[np.save(f'in{r}.npy', np.full((1, 2), r, '>f4')) for r in range(5)]").is_none() {
        return;
    }
    let gather = ["--op", "gather", "--root", "1", "--ranks", "5", "--groups", "0,1;3,2", "--json"];
    let options = ["--backend", "host", "--timeout", "8"];
    let (output, text) = run(folder.path(), &[&gather[..], &options].concat());
    assert!(output.status.success(), "{text}");
    // The root is the second member of each group. Rank 4 takes no part.
    python(
        folder.path(),
        "import os
assert np.array_equal(np.load('out1.npy'), [[0, 0], [1, 1]]), np.load('out1.npy')
assert np.array_equal(np.load('out2.npy'), [[3, 3], [2, 2]]), np.load('out2.npy')
assert not any(os.path.exists(f'out{r}.npy') for r in (0, 3, 4))",
    );
    let summary = json::read(&text);
    assert_eq!(summary["groups"], serde_json::json!([[0, 1], [3, 2]]));
    assert_eq!(
        (&summary["operation"], &summary["root"], &summary["backend"]),
        (&"gather".into(), &1.into(), &"host".into())
    );
    let written = serde_json::json!({ "file": "out2.npy", "data_type": "float32", "shape": [2, 2] });
    assert_eq!((&summary["ranks"][2]["output"], &summary["ranks"][3]["output"]), (&written, &serde_json::Value::Null));
    assert_eq!(summary["ranks"][4]["input"]["file"], "in4.npy");
}

#[test]
fn no_input_is_overwritten_by_whatever_name() {
    let folder = Folder::create();
    if python(folder.path(), "[np.save(f'in{r}.npy', np.full((2,), r, 'f4')) for r in range(2)]").is_none() {
        return;
    }
    let before = |rank| std::fs::read(folder.file(format!("in{rank}.npy"))).expect("an input");
    let inputs = [before(0), before(1)];
    symlink("in1.npy", folder.file("soft0.npy")).expect("a symbolic link");
    std::fs::hard_link(folder.file("in0.npy"), folder.file("hard1.npy")).expect("a link");
    for (output, says) in [
        ("in{rank}.npy", "the output in0.npy is the input in0.npy, which would be lost; give --output another name"),
        ("./in{rank}.npy", "the output ./in0.npy is the input in0.npy"),
        ("soft{rank}.npy", "the output soft0.npy is the input in1.npy"),
        ("hard{rank}.npy", "the output hard1.npy is the input in0.npy"),
    ] {
        let files = ["--input", "in{rank}.npy", "--output", output];
        let sum = ["run", "--op", "all_reduce", "--reduce-op", "sum", "-n", "2"];
        let (ended, text) = test_support::run(timed(DISTCOLLECTIVE).args(sum).args(files).current_dir(folder.path()));
        assert!(ended.status.code() == Some(2) && text.contains(says), "{output}: {text}");
        assert_eq!([before(0), before(1)], inputs, "{output}");
    }
}

/// Limited files stand for a full disk. Without SIGXFSZ a longer file is an error.
#[test]
fn an_output_that_cannot_be_written_whole_leaves_the_old_file() {
    let folder = Folder::create();
    let header = "{'descr': '|u1', 'fortran_order': False, 'shape': (9999,)}";
    let header = [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes()].concat();
    std::fs::write(folder.file("in0.npy"), [header, vec![7; 9999]].concat()).expect("a file");
    std::fs::write(folder.file("out0.npy"), "old").expect("a file");
    let run = |limit: &str| {
        let script = format!("trap '' XFSZ; ulimit -f {limit}; exec {DISTCOLLECTIVE} run --op all_gather -n 1 \"$@\"");
        let files = ["sh", "--input", "in{rank}.npy", "--output", "out{rank}.npy"];
        test_support::run(timed("sh").args(["-c", &script]).args(files).current_dir(folder.path()))
    };
    let (output, text) = run("4");
    assert_eq!((output.status.code(), text.as_str()), (Some(1), "error: out0.npy: File too large (os error 27)\n"));
    assert_eq!(std::fs::read(folder.file("out0.npy")).expect("a file"), b"old");
    let names = || std::fs::read_dir(folder.path()).expect("a folder").count();
    assert_eq!(names(), 2);
    // As a run leaves it that ends between the two calls that replace a file.
    std::fs::write(folder.file(".out0.npy.distcollective"), "left").expect("a file");
    let (output, text) = run("unlimited");
    assert!(output.status.success(), "{text}");
    assert_eq!((std::fs::metadata(folder.file("out0.npy")).expect("a file").len() > 9999, names()), (true, 2));
}

/// Files that once took all memory, much time, or made the program panic.
#[test]
fn a_hostile_file_is_one_line_with_its_name() {
    let folder = Folder::create();
    let file = |shape: &str| {
        let dictionary = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}");
        let len = (dictionary.len() as u32).to_le_bytes();
        [b"\x93NUMPY\x02\x00", &len[..], dictionary.as_bytes()].concat()
    };
    for (bytes, says) in [
        (b"junk".to_vec(), "it is not an .npy file, because it ends within the header; numpy.save writes such files"),
        (file("(2305843009213693951,)"), "[2305843009213693951] has more elements than memory can hold"),
        (file("(0, 9223372036854775807, 9223372036854775807)"), ""),
        (file(&"[".repeat(60)), "where '(' is expected"),
        (file(&format!("({},)", "9".repeat(2_000_000))), "bytes, and at most 10000 are read"),
        (file(&format!("({},)", "9".repeat(9_000))), "a dimension of it is larger than memory can be"),
    ] {
        std::fs::write(folder.file("in0.npy"), bytes).expect("a file");
        if says.is_empty() {
            succeeds(folder.path(), &["--op", "all_gather", "-n", "1"]);
        } else {
            fails(folder.path(), &["--op", "all_gather", "-n", "1"], says);
            fails(folder.path(), &["--op", "all_gather", "-n", "1"], "error: in0.npy: ");
        }
    }
    std::fs::remove_file(folder.file("in0.npy")).expect("a file");
    // A pipe without a writer.
    if Command::new("mkfifo").arg(folder.file("in0.npy")).status().is_ok_and(|status| status.success()) {
        fails(folder.path(), &["--op", "all_gather", "-n", "1"], "in0.npy: it is not a regular file");
    }
}

#[test]
fn large_files_have_a_bar_where_there_is_a_terminal_and_only_there() {
    let folder = Folder::create();
    let write = |rows: usize| {
        for rank in 0..2 {
            let dictionary = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({rows}, {})}}", 1 << 20);
            let header = [b"\x93NUMPY\x01\x00", &(dictionary.len() as u16).to_le_bytes()[..], dictionary.as_bytes()];
            let file = File::create(folder.file(format!("in{rank}.npy"))).expect("a file");
            (&file).write_all(&header.concat()).expect("a header");
            // The rest reads as zeros.
            file.set_len((header.concat().len() + (rows << 20)) as u64).expect("a file of that length");
        }
    };
    let arguments = ["--op", "all_gather", "-n", "2"];
    write(20);
    let (output, text) = run(folder.path(), &arguments);
    assert!(output.status.success() && text.is_empty(), "{text}");

    let in_terminal = || {
        let command =
            format!("{DISTCOLLECTIVE} run --input 'in{{rank}}.npy' --output 'out{{rank}}.npy' {}", arguments.join(" "));
        let mut script = timed("script");
        script.args(["-qec", &command, "/dev/null"]).stdin(Stdio::null()).current_dir(folder.path());
        let (output, text) = test_support::run(&mut script);
        assert!(output.status.success(), "{text}");
        text
    };
    if !has("script") {
        return;
    }
    let shown = in_terminal();
    assert!(shown.contains("reading [") && shown.contains(" of 40.00 MiB"), "{shown}");
    assert!(shown.contains("writing [") && shown.contains(" of 80.00 MiB"), "{shown}");
    // 2 x 4 MiB read and 2 x 8 MiB written are too little for a bar.
    write(4);
    assert_eq!(in_terminal(), "");
}

//! `distcollective run`, with files that numpy writes and reads.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use test_support::{has, skip, timed};

const DISTCOLLECTIVE: &str = env!("CARGO_BIN_EXE_distcollective");

/// A folder for one test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("dcl-run-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

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
    let (output, text) = run(folder, arguments);
    assert!(!output.status.success() && text.contains(says), "{says}: {text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn files_get_what_numpy_gives() {
    let folder = Folder::new("numpy");
    for (dtype, make) in [
        ("float32", "np.random.rand(2, 3).astype('f4')"),
        ("float16", "np.random.rand(2, 3).astype('f2')"),
        ("int64", "np.asfortranarray(np.random.randint(-9, 9, (2, 3)))"),
        ("uint8", "np.random.randint(0, 200, (2, 3)).astype('u1')"),
        ("bool", "np.random.rand(2, 3) < 0.5"),
    ] {
        let written = python(&folder.0, &format!("[np.save(f'in{{r}}.npy', {make}) for r in range(3)]"));
        if written.is_none() {
            return;
        }
        succeeds(&folder.0, &["--op", "all_gather", "-n", "3", "--dtype", dtype]);
        python(
            &folder.0,
            "x = [np.load(f'in{r}.npy') for r in range(3)]
for r in range(3):
    y = np.load(f'out{r}.npy')
    assert y.dtype == x[0].dtype and np.array_equal(y, np.concatenate(x)), (x, y)",
        );
        succeeds(&folder.0, &["--op", "all_reduce", "--reduce-op", "max", "-n", "3"]);
        python(
            &folder.0,
            "x = [np.load(f'in{r}.npy') for r in range(3)]
for r in range(3):
    assert np.array_equal(np.load(f'out{r}.npy'), np.maximum(np.maximum(x[0], x[1]), x[2]))",
        );
    }
}

#[test]
fn roots_groups_and_types_that_numpy_does_not_have() {
    let folder = Folder::new("groups");
    let write = "[np.save(f'in{r}.npy', np.full((2,), 0x3f80 + r, 'u2')) for r in range(3)]";
    if python(&folder.0, write).is_none() {
        return;
    }
    succeeds(&folder.0, &["--op", "gather", "--root", "2", "--groups", "2,0", "-n", "3", "--dtype", "bfloat16"]);
    assert!(!folder.0.join("out0.npy").exists() && !folder.0.join("out1.npy").exists());
    python(&folder.0, "assert np.array_equal(np.load('out2.npy'), np.array([0x3f82, 0x3f82, 0x3f80, 0x3f80], 'u2'))");
    // One and one is two: 0x38 + 0x38 = 0x40 in float8_e4m3.
    python(&folder.0, "[np.save(f'in{r}.npy', np.full((1,), 0x38, 'u1')) for r in range(2)]");
    succeeds(&folder.0, &["--op", "all_reduce", "--reduce-op", "sum", "-n", "2", "--dtype", "float8"]);
    python(&folder.0, "assert np.load('out1.npy') == 0x40");
}

#[test]
fn what_is_wrong_is_one_line() {
    let folder = Folder::new("wrong");
    let write = "np.save('in0.npy', np.zeros((2, 2), 'f4')); np.save('in1.npy', np.zeros((3, 2), 'f4'))";
    if python(&folder.0, write).is_none() {
        return;
    }
    let sum = ["--op", "all_reduce", "--reduce-op", "sum"];
    fails(&folder.0, &[&sum[..], &["-n", "2"]].concat(), "in1.npy is float32 [3, 2], and in0.npy is float32 [2, 2]");
    fails(&folder.0, &[&sum[..], &["-n", "3"]].concat(), "in2.npy: No such file or directory");
    fails(
        &folder.0,
        &[&sum[..], &["-n", "1", "--dtype", "int8"]].concat(),
        "in0.npy: it does not hold int8, as --dtype int8 wants",
    );
    fails(&folder.0, &["--op", "all_reduce", "-n", "1"], "it needs a reduce operation");
    python(&folder.0, "np.save('in1.npy', np.zeros((2, 2), 'f8'))");
    fails(&folder.0, &[&sum[..], &["-n", "2"]].concat(), "in1.npy: its type is not one of float32, float16, int64");
    python(&folder.0, "np.save('in1.npy', np.zeros((2, 2), 'f4')); open('in0.npy', 'r+b').truncate(90)");
    fails(&folder.0, &[&sum[..], &["-n", "2"]].concat(), "in0.npy: ");
    python(&folder.0, "[np.save(f'in{r}.npy', np.zeros((5, 2), 'f4')) for r in range(2)]");
    fails(
        &folder.0,
        &["--op", "all_to_all", "-n", "2"],
        "(all_to_all): dimension 0 is 5, which is not a multiple of 2 ranks; input is float32 [5, 2]",
    );
    python(&folder.0, "import os\nos.mkdir('out1.npy')");
    fails(&folder.0, &[&sum[..], &["-n", "2"]].concat(), "out1.npy: Is a directory");
}

#[test]
fn large_files_have_a_bar_where_there_is_a_terminal_and_only_there() {
    let folder = Folder::new("progress");
    let write = |rows| {
        for rank in 0..2 {
            let zeros = ndarray::Array2::<f32>::zeros((rows, 1 << 18));
            ndarray_npy::write_npy(folder.0.join(format!("in{rank}.npy")), &zeros).expect("a file");
        }
    };
    let arguments = ["--op", "all_gather", "-n", "2"];
    write(20);
    let (output, text) = run(&folder.0, &arguments);
    assert!(output.status.success() && text.is_empty(), "{text}");

    let in_terminal = || {
        let command =
            format!("{DISTCOLLECTIVE} run --input 'in{{rank}}.npy' --output 'out{{rank}}.npy' {}", arguments.join(" "));
        let mut script = timed("script");
        script.args(["-qec", &command, "/dev/null"]).stdin(Stdio::null()).current_dir(&folder.0);
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

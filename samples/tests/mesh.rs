//! The guide "From an empty folder to a mesh": its program is the sample, and prints what it says.

use std::ffi::OsStr;
use std::fs;

use test_support::{Folder, has, product, root, run, succeed, timed};

const MESH: &str = env!("CARGO_BIN_EXE_mesh");

/// A file of the repository.
fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).expect("a text")
}

/// The blocks of the guide that begin with a fence.
fn blocks(guide: &str, fence: &str) -> Vec<String> {
    let fence = format!("\n```{fence}\n");
    let blocks = guide.split(&fence).skip(1);
    blocks.filter_map(|rest| Some(rest.split_once("\n```")?.0.to_owned())).collect()
}

#[test]
fn the_guide_has_the_whole_program() {
    let program = read("samples/src/mesh.rs");
    let program = program.split_once("\n\n").expect("a line between the description and the program").1;
    assert_eq!(blocks(&read("docs/src/mesh.md"), "rs").join("\n\n"), program.trim_end());
}

#[test]
fn it_prints_what_the_guide_says() {
    let guide = read("docs/src/mesh.md");
    let expected = guide.lines().find(|line| line.starts_with("one row: ")).expect("the output");
    let folder = Folder::create();
    let mesh = |program: &OsStr, arguments: &[&str]| {
        succeed(timed(program).args(arguments).current_dir(folder.path()).env("DCL_TIMEOUT", "8"))
    };
    let check = |text: &str| assert_eq!(text.matches(expected).count(), 4, "{text}");
    mesh(MESH.as_ref(), &["build"]);
    check(&mesh(MESH.as_ref(), &["threads"]));
    let launcher = product("distcollective");
    check(&mesh(launcher.as_ref(), &["launch", "-n", "4", "--", MESH]));
    if has("torchrun") {
        check(&mesh(
            "torchrun".as_ref(),
            &["--standalone", "--nproc_per_node", "4", "-r", "1", "-t", "1", "--no_python", MESH],
        ));
    }
    if has("mpirun.openmpi") {
        check(&mesh("mpirun.openmpi".as_ref(), &["--allow-run-as-root", "--oversubscribe", "-np", "4", MESH]));
    }
    let three = ["launch", "-n", "3", "--", MESH];
    let (output, text) = run(timed(&launcher).args(three).current_dir(folder.path()).env("DCL_TIMEOUT", "8"));
    let errors = blocks(&guide, "text");
    assert!(!output.status.success() && text.contains(&errors[0]), "{text}");
}

//! `distcollective broadcast-weights`: copies of a file, and what is no file of safetensors.

use std::fs;
use std::path::Path;
use std::process::Output;

use test_support::{Folder, timed};

const DISTCOLLECTIVE: &str = env!("CARGO_BIN_EXE_distcollective");

fn run(folder: &Path, arguments: &[&str]) -> (Output, String) {
    test_support::run(timed(DISTCOLLECTIVE).arg("broadcast-weights").args(arguments).current_dir(folder))
}

/// A file as the format's own library writes it.
fn model() -> Vec<u8> {
    let mut header = concat!(
        r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"F64","shape":[2],"data_offsets":[0,16]},"#,
        r#""a":{"dtype":"BF16","shape":[3,1],"data_offsets":[16,22]},"c":{"dtype":"U8","shape":[0],"data_offsets":[22,22]}}"#
    )
    .as_bytes()
    .to_vec();
    header.resize(header.len().next_multiple_of(8), b' ');
    let elements: Vec<u8> = (0..22).collect();
    [&(header.len() as u64).to_le_bytes()[..], &header, &elements].concat()
}

#[test]
fn every_rank_writes_the_file_that_rank_0_has() {
    let folder = Folder::create();
    fs::write(folder.file("m.safetensors"), model()).expect("a file");
    let (output, text) = run(folder.path(), &["m.safetensors", "-n", "3", "--output", "copy{rank}.safetensors"]);
    assert!(output.status.success(), "{text}");
    assert!(text.starts_with("3 ranks have 3 tensors of 22 bytes after ") && text.lines().count() == 1, "{text}");
    for rank in 0..3 {
        let copy = fs::read(folder.file(format!("copy{rank}.safetensors"))).expect("it was written");
        assert!(copy == model(), "copy {rank} differs");
    }
    let (output, text) = run(folder.path(), &["m.safetensors", "-n", "1", "--output", "m.safetensors", "--json"]);
    assert!(output.status.success(), "{text}");
    let summary: serde_json::Value = serde_json::from_str(&text).expect("one object");
    assert_eq!(
        (&summary["tensors"], &summary["bytes"], &summary["outputs"][0]),
        (&3.into(), &22.into(), &"m.safetensors".into())
    );
    assert_eq!(fs::read(folder.file("m.safetensors")).expect("it is there"), model());
}

#[test]
fn what_does_not_fit_is_one_line() {
    let folder = Folder::create();
    fs::write(folder.file("m.safetensors"), model()).expect("a file");
    fs::write(folder.file("cut.safetensors"), &model()[..model().len() - 1]).expect("a file");
    for (arguments, says) in [
        (
            &["cut.safetensors", "-n", "2"][..],
            "error: cut.safetensors: its header promises 22 bytes of elements, and 21",
        ),
        (&["none.safetensors", "-n", "2"], "error: none.safetensors: it cannot be read: No such file"),
        (&["m.safetensors", "-n", "2", "--output", "copy"], "error: --output \"copy\" names one file for 2 ranks"),
        (&["m.safetensors", "-n", "2", "--output", "no/{rank}"], "error: no/0: it cannot be written: No such file"),
    ] {
        let (output, text) = run(folder.path(), arguments);
        assert!(output.status.code() == Some(1) && text.starts_with(says), "{says}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    let (output, text) = run(folder.path(), &["m.safetensors", "-n", "0"]);
    assert!(output.status.code() == Some(2) && text.contains("0 is not in 1..=1024"), "{text}");
}

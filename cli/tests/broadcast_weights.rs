//! `distcollective broadcast-weights`: copies of a file, and what is no file of safetensors.

mod json;
mod terminal;

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Output, Stdio};

use test_support::{Folder, timed};

use self::terminal::terminal;

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
    let (output, text) = run(folder.path(), &["m.safetensors", "-n", "1", "--output", "copy0.safetensors", "--json"]);
    assert!(output.status.success(), "{text}");
    let summary = json::read(&text);
    assert_eq!(
        (&summary["tensor_count"], &summary["tensor_bytes"], &summary["outputs"][0]),
        (&3.into(), &22.into(), &"copy0.safetensors".into())
    );
    let (output, text) = run(folder.path(), &["m.safetensors", "-n", "1", "--output", "./m.safetensors"]);
    let says =
        "error: the output ./m.safetensors is the input m.safetensors, which would be lost; give --output another";
    assert!(output.status.code() == Some(2) && text.starts_with(says), "{text}");
}

/// SIGXFSZ ends the program while it writes.
#[test]
fn a_signal_leaves_the_old_file_and_no_part_of_the_new_one() {
    let folder = Folder::create();
    fs::write(folder.file("m.safetensors"), model()).expect("a file");
    fs::write(folder.file("copy.safetensors"), "old").expect("a file");
    let script = format!("ulimit -c 0; ulimit -f 0; exec {DISTCOLLECTIVE} \"$@\"");
    let arguments = ["sh", "broadcast-weights", "m.safetensors", "-n", "1", "--output", "copy.safetensors"];
    let mut command = timed("sh");
    let (output, text) = test_support::run(command.args(["-c", &script]).args(arguments).current_dir(folder.path()));
    assert!(!output.status.success() && text.is_empty(), "{text}");
    assert_eq!(fs::read(folder.file("copy.safetensors")).expect("it is there"), b"old");
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2);
}

/// The bar is on a terminal only, and is gone at the end.
#[test]
fn a_terminal_shows_how_far_the_broadcast_has_come() {
    let folder = Folder::create();
    let len = 40 << 20;
    let header = format!(r#"{{"a":{{"dtype":"U8","shape":[{len}],"data_offsets":[0,{len}]}}}}"#);
    let start = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    let path = folder.file("m.safetensors");
    fs::write(&path, &start).expect("a file");
    let file = fs::File::options().write(true).open(&path).expect("the file");
    file.set_len(start.len() as u64 + len).expect("a longer file");
    for sharing in [&[][..], &["--shared"]] {
        let (mut screen, open) = terminal();
        let mut command = timed(DISTCOLLECTIVE);
        command.arg("broadcast-weights").arg(&path).args(["-n", "2"]).args(sharing);
        let mut program = command.stdout(Stdio::piped()).stderr(open()).spawn().expect("it starts");
        // Only the program has the other end open now.
        drop((command, open));
        let mut shown = Vec::new();
        // A terminal whose other end is closed is an error.
        let _ = screen.read_to_end(&mut shown);
        let shown = String::from_utf8_lossy(&shown);
        let mut printed = String::new();
        program.stdout.take().expect("a pipe").read_to_string(&mut printed).expect("text");
        assert!(program.wait().expect("it ends").success(), "{shown}");
        assert!(printed.starts_with("2 ranks have 1 tensor of 41943040 bytes after "), "{printed}");
        assert!(shown.contains("broadcasting [") && shown.contains("of 40.00 MiB"), "{shown:?}");
        let last = shown.rsplit("\x1b[2K").next().expect("a last part");
        assert!(!last.contains("broadcasting"), "it is cleared: {shown:?}");
    }
    let (output, text) = run(folder.path(), &["m.safetensors", "-n", "2"]);
    assert!(output.status.success() && text.lines().count() == 1, "{text}");
}

/// The receivers' files come from the one copy that they share.
#[test]
fn ranks_that_share_write_the_same_files() {
    let folder = Folder::create();
    fs::write(folder.file("m.safetensors"), model()).expect("a file");
    let (output, text) =
        run(folder.path(), &["m.safetensors", "-n", "3", "--shared", "--output", "copy{rank}.safetensors"]);
    assert!(output.status.success(), "{text}");
    for rank in 0..3 {
        assert!(fs::read(folder.file(format!("copy{rank}.safetensors"))).expect("it was written") == model());
    }
}

#[test]
fn what_does_not_fit_is_one_line() {
    let folder = Folder::create();
    fs::write(folder.file("m.safetensors"), model()).expect("a file");
    fs::write(folder.file("cut.safetensors"), &model()[..model().len() - 1]).expect("a file");
    for (arguments, code, says) in [
        (
            &["cut.safetensors", "-n", "2"][..],
            1,
            "error: cut.safetensors: its header promises 22 bytes of elements, and 21",
        ),
        (&["none.safetensors", "-n", "2"], 1, "error: none.safetensors: it cannot be read: No such file"),
        (&["m.safetensors", "-n", "2", "--output", "copy"], 2, "error: --output \"copy\" names one file for 2 ranks"),
        (&["m.safetensors", "-n", "2", "--output", "no/{rank}"], 1, "error: no/0: it cannot be written: No such file"),
    ] {
        let (output, text) = run(folder.path(), arguments);
        assert!(output.status.code() == Some(code) && text.starts_with(says), "{says}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    let (output, text) = run(folder.path(), &["m.safetensors", "-n", "0"]);
    assert!(output.status.code() == Some(2) && text.contains("0 is not in 1..=1024"), "{text}");
}

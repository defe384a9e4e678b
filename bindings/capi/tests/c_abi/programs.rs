//! Runs the programs of this folder and the samples for C and C++: by themselves, under the
//! sanitizers, and under valgrind.

use std::fs;
use std::path::Path;

use fake_gpu::{Variant, library_dir};
use test_support::{has, root, succeed, timed};

use crate::compiler::{Language, Under, folder, library, program, started, under_each_tool};

/// Compiles a program and runs it.
fn run(source: &Path, language: Language, under: Under, arguments: &[&str]) {
    let Some(program) = program(language, source, under, &[]) else { return };
    let Some(mut command) = started(&program, under) else { return };
    succeed(command.args(arguments));
}

/// Runs a program of this folder.
fn run_own(name: &str, under: Under) {
    run_own_in(Language::C, name, under);
}

fn run_own_in(language: Language, name: &str, under: Under) {
    let source = root().join("bindings/capi/tests/c_abi").join(name).with_extension(language.extension());
    run(&source, language, under, &[]);
}

/// Runs the samples of a language on so many ranks.
fn run_samples(language: Language, under: Under, ranks: &str) {
    let folder = root().join("samples").join(language.extension());
    let files = fs::read_dir(&folder).expect("the samples").map(|entry| entry.expect("a file").path());
    let samples: Vec<_> =
        files.filter(|file| file.extension().is_some_and(|extension| extension == language.extension())).collect();
    assert!(!samples.is_empty(), "no samples in {}", folder.display());
    for sample in samples {
        run(&sample, language, under, &["--ranks", ranks]);
    }
}

/// Runs the program for GPUs on the stand-ins for CUDA and NCCL.
fn run_on_gpus(under: Under, arguments: &[&str]) {
    let source = root().join("bindings/capi/tests/c_abi/gpus.c");
    let Some(program) = program(Language::C, &source, under, &[]) else { return };
    let Some(mut command) = started(&program, under) else { return };
    command.args(arguments).env("LD_LIBRARY_PATH", library_dir(Variant::Current)).env("FAKE_CUDA_DEVICES", "2");
    // NCCL may write a communicator's address late, so its memory is never freed.
    succeed(command.env("ASAN_OPTIONS", "detect_leaks=0"));
}

#[test]
fn gpus_plainly() {
    run_on_gpus(Under::Nothing, &[]);
}

#[test]
#[ignore = "compiles with sanitizers, which takes long; CI runs it"]
fn gpus_under_sanitizers() {
    run_on_gpus(Under::Sanitizers, &[]);
}

/// Processes that fork. valgrind lacks a system call that their bootstrap needs. AddressSanitizer's
/// allocator may be locked by another thread during the fork, and then the child waits for ever.
#[test]
fn forks_plainly() {
    run_own("forks", Under::Nothing);
}

#[test]
fn forks_on_gpus_plainly() {
    run_on_gpus(Under::Nothing, &["fork"]);
}

/// Both ranks of each program of the guide print a line.
#[test]
fn the_guides_programs_run() {
    let guide = fs::read_to_string(root().join("docs/src/c.md")).expect("the guide");
    let blocks = guide.split("```").skip(1).step_by(2).filter_map(|block| block.split_once('\n'));
    let (mut whole, mut lines) = (String::new(), Vec::new());
    for (extension, text) in blocks.filter(|(language, _)| ["c", "cpp"].contains(language)) {
        whole = if text.contains("int main") {
            text.to_owned()
        } else {
            // It is another function `run` for the program before.
            let (before, rest) = whole.split_once("/* One rank. */").expect("the function's comment");
            let (_, main) = rest.split_once("int main").expect("the main function");
            format!("{before}{text}\nint main{main}")
        };
        let source = folder("guide").join(format!("guide{}.{extension}", lines.len()));
        fs::write(&source, &whole).expect("a file");
        let language = if extension == "c" { Language::C } else { Language::Cpp };
        let Some(program) = program(language, &source, Under::Nothing, &[]) else { return };
        let Some(mut command) = started(&program, Under::Nothing) else { return };
        lines.push(succeed(&mut command));
    }
    assert_eq!(lines, ["2 4 6 8\n2 4 6 8\n", "1 2 1 2\n1 2 1 2\n", "2 4 6 8\n2 4 6 8\n"]);
}

/// Numbers of ranks that do not divide the samples' least tensors.
#[test]
fn samples_run_on_any_number_of_ranks() {
    for ranks in ["1", "3", "7"] {
        run_samples(Language::C, Under::Nothing, ranks);
    }
}

under_each_tool! {
    eager: |under| run_own("eager", under),
    eager_in_cpp: |under| run_own_in(Language::Cpp, "eager", under),
    failures: |under| run_own("failures", under),
    interrupts: |under| run_own("interrupts", under),
    layers: |under| run_own("layers", under),
    lifetimes: |under| run_own("lifetimes", under),
    local_layers: |under| run_own("local_layers", under),
    local_layers_in_cpp: |under| run_own_in(Language::Cpp, "local_layers", under),
    logs: |under| run_own("logs", under),
    messages: |under| run_own("messages", under),
    mistakes: |under| run_own("mistakes", under),
    mistakes_in_cpp: |under| run_own_in(Language::Cpp, "mistakes", under),
    plugins: |under| run_own("plugins", under),
    tensor_dicts: |under| run_own("tensor_dicts", under),
    text: |under| run_own("text", under),
    threads: |under| run_own("threads", under),
    c_samples: |under| run_samples(Language::C, under, "4"),
    cpp_samples: |under| run_samples(Language::Cpp, under, "4"),
}

/// Ctrl-C in a program in Python.
#[test]
fn ctrl_c_ends_a_wait_of_python() {
    if !has("python3") {
        return;
    }
    let script = root().join("bindings/capi/tests/c_abi/interrupts.py");
    let (output, text) = test_support::run(timed("python3").arg(script).arg(library()));
    assert!(output.status.success() && text == "interrupted\n", "{}: {text}", output.status);
}

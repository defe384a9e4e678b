//! Compiles the headers by themselves.

use std::fs;

use test_support::{root, succeed};

use crate::compiler::{Language, compiler, folder};

/// Compiles a file that only includes a header, once and twice.
fn compiles(header: &str, language: Language, flags: &[&str]) {
    let folder = folder("header");
    for times in [1, 2] {
        let source = folder.join(format!("{header}-{times}-{}.{}", flags.concat(), language.extension()));
        fs::write(&source, format!("#include \"{header}\"\n").repeat(times)).expect("a file");
        let Some(mut command) = compiler(language) else { return };
        succeed(command.args(flags).arg("-fsyntax-only").arg(&source));
    }
}

#[test]
fn the_header_is_c() {
    compiles("distcollective.h", Language::C, &["-Wstrict-prototypes", "-Wconversion"]);
}

#[test]
fn the_header_is_cpp() {
    compiles("distcollective.h", Language::Cpp, &["-Wold-style-cast"]);
    compiles("distcollective.h", Language::Cpp, &["-fno-exceptions", "-fno-rtti"]);
}

#[test]
fn the_header_for_cpp_is_cpp() {
    assert!(root().join("include/distcollective.hpp").exists(), "include/distcollective.hpp is not there");
    compiles("distcollective.hpp", Language::Cpp, &[]);
    compiles("distcollective.hpp", Language::Cpp, &["-fno-exceptions"]);
    compiles("distcollective.hpp", Language::Cpp, &["-std=c++20"]);
}

//! What build scripts make of the folder `cuda/`.

use std::fs;
use std::path::Path;

#[path = "../../cuda/assemble.rs"]
mod assemble;

use assemble::{Kernel, Sources};

fn sources_of(test: &str, files: &[(&str, &str)]) -> Result<Sources, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    fs::create_dir_all(&folder).expect("a folder for the test");
    for (name, content) in files {
        fs::write(folder.join(name), content).expect("a file of the test");
    }
    Sources::read(&folder)
}

#[test]
fn each_header_is_once_in_the_text_and_after_those_that_it_includes() {
    let files = [
        ("a.h", "#include \"c.h\"\n#include <math.h>\nint a;\n"),
        ("b.h", "#include \"c.h\"\nint b;\n"),
        ("c.h", "int c;\n"),
        ("kernels.list", "# none\n"),
    ];
    let text = sources_of("headers", &files).expect("the headers").text;
    let a = "#line 1 \"a.h\"\n\n#include <math.h>\nint a;\n";
    assert_eq!(text, format!("#line 1 \"c.h\"\nint c;\n{a}#line 1 \"b.h\"\n\nint b;\n"));
}

#[test]
fn a_line_of_the_list_is_a_kernel() {
    let sources = sources_of("list", &[("kernels.list", "# all\n\nnormalize_bool\ncast int8 bool\n")]);
    let all: Vec<[String; 3]> = sources
        .expect("a list")
        .kernels
        .into_iter()
        .map(|Kernel { entry, name, definition }| [entry, name, definition])
        .collect();
    let expected = [
        ["normalize_bool", "dcl_normalize_bool", "DCL_NORMALIZE_BOOL(dcl_normalize_bool)"],
        ["cast int8 bool", "dcl_cast_int8_bool", "DCL_CAST(dcl_cast_int8_bool, int8, bool)"],
    ];
    assert_eq!(all, expected.map(|kernel| kernel.map(str::to_owned)));
}

#[test]
fn a_mistake_in_the_folder_is_an_error_that_names_the_file() {
    let twice =
        sources_of("twice", &[("kernels.list", "divide int8\ndivide int8\n")]).err().expect("it is there twice");
    assert!(twice.ends_with("twice/kernels.list: \"divide int8\" is there twice"), "{twice}");
    let missing = sources_of("missing", &[("a.h", "#include \"b.h\"\n")]).err().expect("there is no b.h");
    assert!(missing.contains("missing/b.h: No such file"), "{missing}");
}

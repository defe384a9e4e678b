//! Comments and documents are at most 100 columns wide. rustfmt holds the width of code only.

use crate::{assert_none, files_below, read, shown};

const WIDTH: usize = 100;

/// What the rule covers, folders and files.
const COVERED: &[&str] = &[
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "benches/gpu",
    "benches/networks",
    "build.rs",
    "capi",
    "cli",
    "cuda",
    "docs",
    "include",
    "samples",
    "src",
    "tests/architecture",
    "tests/c_header",
    "tests/fake_gpu/src",
    "tests/fake_gpu/tests",
    "tests/guides.rs",
    "tests/host_kernels",
    "tests/kernels",
    "tests/linking.rs",
    "tests/log.rs",
    "tests/no_alloc.rs",
    "tests/nvrtc.rs",
    "tests/plans.rs",
    "tests/shared",
    "tests/slow.rs",
    "tests/suite",
    "tests/support",
    "tools/nccl_bindings",
];

/// What a program has generated.
const GENERATED: &str = "src/comm/nccl/bindings.rs";

/// Whether a line of a program is a comment, or a line inside a comment of C.
fn is_comment(line: &str) -> bool {
    ["//", "/*", "* ", "# "].iter().any(|start| line.starts_with(start))
}

/// Tables cannot wrap, and neither can a link.
fn may_be_wider(text: &str) -> bool {
    text.trim_start_matches(['/', '!', '*', ' ']).starts_with('|') || text.contains("://")
}

/// The numbers of the lines that are too wide.
fn wide_lines(text: &str, is_document: bool) -> Vec<usize> {
    let mut is_example = false;
    let mut wide = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        // Commands, output and programs in a document are shown as they are.
        if is_document && trimmed.starts_with("```") {
            is_example = !is_example;
        }
        let is_text = if is_document { !is_example } else { is_comment(trimmed) };
        if is_text && line.chars().count() > WIDTH && !may_be_wider(trimmed) {
            wide.push(index + 1);
        }
    }
    wide
}

#[test]
fn comments_and_documents_are_at_most_100_columns_wide() {
    let mut mistakes = Vec::new();
    let extensions = ["rs", "c", "h", "hpp", "cpp", "cu", "list", "md", "toml", "py"];
    for path in COVERED.iter().flat_map(|covered| files_below(covered, &extensions)) {
        if shown(&path) == GENERATED {
            continue;
        }
        let is_document = path.extension().is_some_and(|extension| extension == "md");
        for line in wide_lines(&read(&path), is_document) {
            mistakes.push(format!("{}:{line}: a comment wider than {WIDTH} columns", shown(&path)));
        }
    }
    assert_none(mistakes);
}

#[test]
fn wide_lines_are_found() {
    let wide = "x".repeat(99);
    let program =
        format!("// {wide}\n    /// {wide}\nlet x = {wide};\n//! | {wide} |\n// see https://{wide}\n * {wide}\n");
    assert_eq!(wide_lines(&program, false), [1, 2, 6]);
    let document = format!("x {wide}\n\n| {wide} |\n```\n{wide} x\n```\n- {wide}\n");
    assert_eq!(wide_lines(&document, true), [1, 7]);
}

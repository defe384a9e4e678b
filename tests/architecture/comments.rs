//! Comments and documents are at most 100 columns wide, and code of C and C++ at most 120. rustfmt
//! holds the width of Rust's code only.

use crate::{assert_none, files_below, read, shown};

/// The width of comments and documents.
const WIDTH: usize = 100;

/// The width of code.
const CODE_WIDTH: usize = 120;

/// What the rule covers, folders and files.
const COVERED: &[&str] = &[
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "benches",
    "bindings",
    "build.rs",
    "cli",
    "crates",
    "cuda",
    "docs",
    "include",
    "python",
    "samples",
    "src",
    "tests",
    "tools",
];

/// Whether a line of a program is a comment, or a line inside a comment of C.
fn is_comment(line: &str) -> bool {
    ["//", "/*", "* ", "# "].iter().any(|start| line.starts_with(start))
}

/// Tables cannot wrap, and neither can a link.
fn may_be_wider(text: &str) -> bool {
    text.trim_start_matches(['/', '!', '*', ' ']).starts_with('|') || text.contains("://")
}

fn is_wide(line: &str, width: usize) -> bool {
    line.chars().count() > width
}

/// The numbers of the comments or lines of a document that are too wide.
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
        if is_text && is_wide(line, WIDTH) && !may_be_wider(trimmed) {
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
        let is_document = path.extension().is_some_and(|extension| extension == "md");
        for line in wide_lines(&read(&path), is_document) {
            mistakes.push(format!("{}:{line}: a comment wider than {WIDTH} columns", shown(&path)));
        }
    }
    assert_none(mistakes);
}

#[test]
fn code_of_c_and_cpp_is_at_most_120_columns_wide() {
    let mut mistakes = Vec::new();
    for path in COVERED.iter().flat_map(|covered| files_below(covered, &["c", "h", "hpp", "cpp"])) {
        for (index, _) in read(&path).lines().enumerate().filter(|(_, line)| is_wide(line, CODE_WIDTH)) {
            mistakes.push(format!("{}:{}: wider than {CODE_WIDTH} columns", shown(&path), index + 1));
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

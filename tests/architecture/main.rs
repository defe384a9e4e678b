//! Rules about the source text: which module may import which, how wide comments are, and how much
//! of everything there may be.

mod budget;
mod comments;
mod imports;
mod parse;

use std::fs;
use std::path::{Path, PathBuf};

/// All files below a folder of the package whose names end in one of `extensions`, sorted. A file
/// counts as its own folder.
fn files_below(folder: &str, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)];
    while let Some(path) = open.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            open.extend(entries.map(|entry| entry.expect("an entry of a folder").path()));
        } else if path.extension().is_some_and(|extension| extensions.iter().any(|other| extension == *other)) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Whether a file has tests only.
fn is_test(file: &str) -> bool {
    let is_model = file.starts_with("src/") && file.ends_with("model.rs");
    let names = ["tests", "loopback", "backend_contract"];
    is_model || file.trim_end_matches(".rs").split('/').any(|name| names.contains(&name))
}

/// The text of a file without its tests. A file's own tests are at its end.
fn read_without_tests(path: &Path) -> String {
    if is_test(&shown(path)) {
        return String::new();
    }
    let mut text = read(path);
    let of_tests = text.match_indices("\n#[cfg(").map(|(at, _)| at).find(|&at| {
        let mut lines = text[at + 1..].lines();
        let cfg = lines.next().unwrap_or_default();
        let is_module = |line: &str| line.starts_with("mod ") && line.ends_with('{');
        cfg.contains("test") && !cfg.contains("not(test") && lines.next().is_some_and(is_module)
    });
    text.truncate(of_tests.map_or(text.len(), |at| at + 1));
    text
}

/// A path as messages show it: from the package's folder.
fn shown(path: &Path) -> String {
    path.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap_or(path).display().to_string()
}

/// Fails with all mistakes at once.
fn assert_none(mistakes: Vec<String>) {
    assert!(mistakes.is_empty(), "{} mistakes:\n{}", mistakes.len(), mistakes.join("\n"));
}

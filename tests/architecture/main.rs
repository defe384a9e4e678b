//! Rules about the source text: which module may import which, and how wide comments are.

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

/// A path as messages show it: from the package's folder.
fn shown(path: &Path) -> String {
    path.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap_or(path).display().to_string()
}

/// Fails with all mistakes at once.
fn assert_none(mistakes: Vec<String>) {
    assert!(mistakes.is_empty(), "{} mistakes:\n{}", mistakes.len(), mistakes.join("\n"));
}

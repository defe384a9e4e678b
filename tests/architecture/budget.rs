//! The tree stays within the budget: lines, crates, circles, exceptions and public types.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use crate::imports::{circles, exception_count};
use crate::{assert_none, files_below, read, read_without_tests, shown};

/// The most of everything, a line each. A commit may raise one, and says what a user gets for it.
const BUDGET: &str = include_str!("budget.toml");

/// The folders whose lines count.
const FOLDERS: &[&str] = &["src", "crates", "bindings", "cli", "python", "samples", "benches"];

/// The sources of each package in these folders.
fn sources() -> BTreeSet<String> {
    let files = FOLDERS.iter().flat_map(|folder| files_below(folder, &["rs"]));
    let of_package = |file: String| match file.split_once("src/")? {
        ("", _) => Some("src".to_owned()),
        (package, _) => Some(format!("{package}src")),
    };
    files.filter_map(|path| of_package(shown(&path))).collect()
}

/// The crates that the library is compiled from, itself among them.
fn crates() -> usize {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["tree", "--locked", "--offline", "--package", "distcollective", "--edges", "normal,build"]);
    let output = cargo.args(["--prefix", "none"]).current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.lines().map(|line| line.trim_end_matches(" (*)")).collect::<BTreeSet<_>>().len()
}

/// The names of the structs, enums, unions and traits in a text, and whether each is `pub`. The
/// name that a macro takes is `$name`.
fn types(text: &str) -> impl Iterator<Item = (&str, bool)> {
    text.lines().filter_map(|line| {
        let line = line.trim_start();
        let is_public = line.starts_with("pub ");
        let start = line.strip_prefix("pub").map_or(line, |rest| rest.split_once(' ').map_or("", |(_, rest)| rest));
        let (kind, rest) = start.trim_start_matches("unsafe ").split_once(' ')?;
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '$').unwrap_or(rest.len());
        (end > 0 && ["struct", "enum", "union", "trait"].contains(&kind)).then_some((&rest[..end], is_public))
    })
}

/// The sources in a folder, without tests.
fn texts_of(folder: &str) -> Vec<String> {
    files_below(folder, &["rs"]).iter().map(|path| read_without_tests(path)).collect()
}

/// The names that types in several files have.
fn shared_names<'a>(files: impl Iterator<Item = &'a String>) -> Vec<&'a str> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for text in files {
        let names: BTreeSet<_> = types(text).map(|(name, _)| name).filter(|name| !name.starts_with('$')).collect();
        names.into_iter().for_each(|name| *counts.entry(name).or_default() += 1);
    }
    counts.into_iter().filter(|(_, count)| *count > 1).map(|(name, _)| name).collect()
}

#[test]
fn everything_is_within_the_budget() {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for folder in FOLDERS {
        let (mut all, mut own) = (0, 0);
        for path in files_below(folder, &["rs"]) {
            all += read(&path).lines().count();
            own += read_without_tests(&path).lines().count();
        }
        counts.insert(format!("{folder}_lines"), own);
        if *folder == "src" {
            counts.insert("src_lines_with_tests".to_owned(), all);
        }
        println!("{folder} has {} lines of tests", all - own);
    }
    let mut circle_count = 0;
    for sources in sources() {
        for circle in circles(&sources) {
            println!("a circle in {sources}: {}", circle.join(", "));
            circle_count += 1;
        }
    }
    counts.insert("circles".to_owned(), circle_count);
    counts.insert("crates".to_owned(), crates());
    counts.insert("import_exceptions".to_owned(), exception_count());
    let (library, elements) = (texts_of("src"), texts_of("crates/elements/src"));
    let public = library.iter().flat_map(|text| types(text)).filter(|(_, is_public)| *is_public);
    counts.insert("public_types".to_owned(), public.count());
    let shared = shared_names(library.iter().chain(&elements));
    println!("names of several types: {}", shared.join(", "));
    counts.insert("shared_names".to_owned(), shared.len());

    let budget: BTreeMap<&str, usize> = BUDGET
        .lines()
        .filter_map(|line| line.split_once(" = "))
        .map(|(name, most)| (name, most.parse().expect("a number")))
        .collect();
    let mut mistakes = Vec::new();
    for (name, count) in &counts {
        let most = budget.get(name.as_str()).unwrap_or_else(|| panic!("budget.toml has no line for {name}"));
        println!("{name} = {count} of {most}");
        if count > most {
            mistakes.push(format!("{name} is {count}, and tests/architecture/budget.toml has {most}"));
        }
    }
    assert_none(mistakes);
}

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

/// Structs, enums, unions and traits that are `pub`.
fn public_types(text: &str) -> usize {
    let is_type = |line: &&str| {
        let words = line.trim_start().strip_prefix("pub ").map(|rest| rest.trim_start_matches("unsafe "));
        words.is_some_and(|rest| ["struct ", "enum ", "union ", "trait "].iter().any(|kind| rest.starts_with(kind)))
    };
    text.lines().filter(is_type).count()
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
    let of_library = files_below("src", &["rs"]);
    counts.insert("circles".to_owned(), circle_count);
    counts.insert("crates".to_owned(), crates());
    counts.insert("import_exceptions".to_owned(), exception_count());
    let types = of_library.iter().map(|path| public_types(&read_without_tests(path))).sum();
    counts.insert("public_types".to_owned(), types);

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

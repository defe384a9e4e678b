//! The guides and the other documents: every guide is in the table of contents, every link leads
//! somewhere, and every command and variable that they name exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use test_support::{product, root, run, timed};

/// The documents beside the guides whose links are checked.
const DOCUMENTS: &[&str] = &["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"];

/// A Markdown file, split into what is text and what is in fenced blocks.
struct Document {
    /// From the root of the repository.
    path: PathBuf,
    /// The lines outside of blocks, without what stands in backticks.
    text: Vec<String>,
    /// The blocks: the word after the fence, and the lines.
    blocks: Vec<(String, Vec<String>)>,
}

impl Document {
    fn read(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let content = fs::read_to_string(root().join(&path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut document = Document { path, text: Vec::new(), blocks: Vec::new() };
        let mut is_open = false;
        for line in content.lines() {
            if let Some(language) = line.trim_start().strip_prefix("```") {
                if !is_open {
                    document.blocks.push((language.to_owned(), Vec::new()));
                }
                is_open = !is_open;
            } else if is_open && let Some((_, lines)) = document.blocks.last_mut() {
                lines.push(line.to_owned());
            } else {
                document.text.push(line.to_owned());
            }
        }
        assert!(!is_open, "{}: a block has no end", document.path.display());
        document
    }

    /// The targets of all links.
    fn links(&self) -> Vec<String> {
        // A link's text may begin on one line and end on the next.
        let text = without_code(&self.text.join("\n"));
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        targets.map(|(target, _)| target.to_owned()).collect()
    }

    /// What a link to a heading has after the `#`.
    fn anchors(&self) -> BTreeSet<String> {
        let headings = self.text.iter().filter(|line| line.starts_with('#'));
        headings.map(|line| anchor(line.trim_start_matches('#').trim())).collect()
    }

    /// The commands of the console blocks: the lines after a `$`, or all lines of a block without
    /// one. A line that ends in a backslash goes on in the next.
    fn commands(&self) -> Vec<String> {
        let mut commands = Vec::new();
        for (_, lines) in self.blocks.iter().filter(|(language, _)| language == "console") {
            let joined = lines.join("\n").replace("\\\n", " ");
            let has_prompt = joined.lines().any(|line| line.starts_with("$ "));
            let commands_of = joined.lines().filter_map(|line| match has_prompt {
                true => line.strip_prefix("$ "),
                false => Some(line),
            });
            commands.extend(commands_of.map(str::to_owned));
        }
        commands
    }
}

/// The text without what stands in backticks.
fn without_code(text: &str) -> String {
    text.split('`').step_by(2).collect()
}

/// The anchor that GitHub and mdBook make of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// A path without `..`.
fn normalized(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => assert!(normal.pop(), "{} leaves the repository", path.display()),
            other => normal.push(other),
        }
    }
    normal
}

fn guides() -> Vec<Document> {
    let entries = fs::read_dir(root().join("docs/src")).expect("the guides' folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let mut paths: Vec<PathBuf> = names.map(|name| Path::new("docs/src").join(name)).collect();
    paths.sort();
    paths.into_iter().map(Document::read).collect()
}

fn all_documents() -> Vec<Document> {
    DOCUMENTS.iter().map(Document::read).chain(guides()).collect()
}

#[test]
fn the_table_of_contents_has_every_guide_once() {
    let mut linked = Document::read("docs/src/SUMMARY.md").links();
    linked.sort();
    let names = guides().into_iter().map(|guide| guide.path.file_name().expect("a name").to_owned());
    let files: Vec<String> = names.map(|name| name.into_string().expect("UTF-8")).collect();
    let files: Vec<String> = files.into_iter().filter(|name| name != "SUMMARY.md").collect();
    assert_eq!(linked, files);
}

#[test]
fn the_programs_of_every_guide_are_tests() {
    let lists = ["src/guides.rs", "bindings/candle/src/lib.rs"];
    let tested = lists.map(|list| fs::read_to_string(root().join(list)).expect("a list of guides")).concat();
    let is_missing = |guide: &Document| {
        let has_programs = guide.blocks.iter().any(|(language, _)| language.starts_with("rust"));
        has_programs && !tested.contains(&format!("../{}\"", guide.path.display()))
    };
    let missing: Vec<PathBuf> = all_documents().into_iter().filter(is_missing).map(|guide| guide.path).collect();
    assert!(missing.is_empty(), "neither src/guides.rs nor bindings/candle/src/lib.rs has {missing:?}");
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let mut mistakes = Vec::new();
    for document in all_documents() {
        let shown = document.path.display();
        for link in document.links() {
            if link.contains("://") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let folder = document.path.parent().expect("a file has a folder");
            let target = if file.is_empty() { document.path.clone() } else { normalized(&folder.join(file)) };
            if !root().join(&target).exists() {
                mistakes.push(format!("{shown}: there is no {}", target.display()));
            } else if document.path.starts_with("docs") && !target.starts_with("docs/src") {
                mistakes.push(format!("{shown}: {link} is not in the book, so the built book cannot link it"));
            } else if !heading.is_empty() && !Document::read(&target).anchors().contains(heading) {
                mistakes.push(format!("{shown}: {} has no heading #{heading}", target.display()));
            }
        }
    }
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

/// The subcommands or options in the help of the program `distcollective`.
fn help_of(program: &Path, subcommand: Option<&str>) -> BTreeSet<String> {
    let output = Command::new(program).args(subcommand).arg("--help").output().expect("the program starts");
    assert!(output.status.success(), "{subcommand:?} has no help");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    words.map(str::to_owned).collect()
}

/// Every `distcollective …` inside a command: the subcommand and its options. Options after `--`
/// are another program's.
fn uses(command: &str) -> Vec<(String, Vec<String>)> {
    let words: Vec<&str> = command.split_whitespace().map(|word| word.trim_matches(['\'', '"'])).collect();
    let mut uses = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let Some(subcommand) =
            words.get(index + 1).filter(|_| *word == "distcollective" || word.ends_with("/distcollective"))
        else {
            continue;
        };
        let arguments = words[index + 2..].iter().take_while(|word| !matches!(**word, "--" | "|" | "&&" | "||" | "&"));
        let options = arguments.filter(|word| word.starts_with('-'));
        let names = options.map(|option| option.split('=').next().expect("the name").to_owned());
        uses.push(((*subcommand).to_owned(), names.collect()));
    }
    uses
}

#[test]
fn every_command_of_the_program_exists() {
    let program = product("distcollective");
    let subcommands = help_of(&program, None);
    let (mut mistakes, mut count) = (Vec::new(), 0);
    for document in all_documents() {
        for command in document.commands() {
            for (subcommand, options) in uses(&command) {
                count += 1;
                if !subcommands.contains(&subcommand) {
                    mistakes.push(format!("{}: there is no subcommand {subcommand}", document.path.display()));
                    continue;
                }
                let known = help_of(&program, Some(&subcommand));
                for option in options.iter().filter(|option| !known.contains(*option)) {
                    mistakes.push(format!("{}: {subcommand} has no option {option}", document.path.display()));
                }
            }
        }
    }
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
    assert!(count >= 10, "only {count} commands were found");
}

/// Other errors stand in tables; `tests/suite/errors/guide.rs` makes them.
#[test]
fn a_command_whose_output_is_an_error_says_it() {
    let folder = product("distcollective").parent().expect("a folder").to_owned();
    let folders = std::env::var_os("PATH").expect("folders of programs");
    let path = std::env::join_paths(std::iter::once(folder).chain(std::env::split_paths(&folders))).expect("a path");
    let mut count = 0;
    for (_, lines) in all_documents().iter().flat_map(|document| &document.blocks) {
        let [command, error] = &lines[..] else { continue };
        let Some(command) = command.strip_prefix("$ ").filter(|_| error.starts_with("error: ")) else { continue };
        count += 1;
        let (_, output) = run(timed("sh").args(["-c", command]).env("PATH", &path));
        assert!(output.lines().any(|line| line == error), "{command}:\n{output}\nand not\n{error}");
    }
    assert!(count >= 2, "only {count} commands were found");
}

#[test]
fn commands_are_read_as_a_shell_reads_them() {
    let found = uses("distcollective launch -n 2 -- sh -c 'exec distcollective env --timeout=1' && x --y");
    let options = |options: &[&str]| options.iter().map(|option| (*option).to_owned()).collect::<Vec<_>>();
    let expected = [("launch".to_owned(), options(&["-n"])), ("env".to_owned(), options(&["--timeout"]))];
    assert_eq!(found, expected);
    assert_eq!(uses("cargo build -p distcollective-cli; cc $(pkg-config --libs distcollective) -lm"), []);
}

/// The variables of this library that the sources read, as string literals.
fn variables_in(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            variables_in(&path, found);
            continue;
        }
        let text = fs::read_to_string(&path).expect("UTF-8");
        let names = text.split('"').filter(|word| {
            let rest = word.strip_prefix("DCL_").unwrap_or_default();
            !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
        });
        found.extend(names.map(str::to_owned));
    }
}

#[test]
fn every_variable_of_the_library_is_described() {
    let mut read = BTreeSet::new();
    for folder in ["src", "cli/src"] {
        variables_in(&root().join(folder), &mut read);
    }
    assert!(read.contains("DCL_TIMEOUT"), "{read:?}");
    let settings = fs::read_to_string(root().join("docs/src/settings.md")).expect("the guide");
    let missing: Vec<&String> = read.iter().filter(|name| !settings.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/src/settings.md does not describe {missing:?}");
}

//! Helpers that the tests of several packages share.

mod folder;
pub mod processes;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

pub use folder::Folder;

/// The folder of the repository.
pub fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().and_then(Path::parent).expect("this package is in tests/support")
}

/// Prints why a test is skipped. If `DCL_REQUIRE_PEERS` is set, as in CI, no test may be skipped.
///
/// # Panics
///
/// `DCL_REQUIRE_PEERS` is set.
pub fn skip(reason: &str) {
    assert!(std::env::var_os("DCL_REQUIRE_PEERS").is_none(), "{reason}");
    eprintln!("skipped: {reason}");
}

/// Whether a program is installed. If not, says that the test is skipped.
///
/// # Panics
///
/// As [`skip`].
pub fn has(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    let is_there = found.is_ok_and(|output| output.status.success());
    if !is_there {
        skip(&format!("{program} is not installed"));
    }
    is_there
}

/// A command that `timeout` ends after 9 seconds, since a test has 10. `timeout` passes signals on
/// to the program.
pub fn timed(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "1", "9"]).arg(program);
    command
}

/// Runs a command to its end. The text is its standard output, then its standard error.
///
/// # Panics
///
/// The command cannot be started.
pub fn run(command: &mut Command) -> (Output, String) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
    let text = text(&output.stdout) + &text(&output.stderr);
    (output, text)
}

/// Runs a command, which has to succeed, and returns what it writes.
///
/// # Panics
///
/// The command cannot be started, or fails.
pub fn succeed(command: &mut Command) -> String {
    let (output, text) = run(command);
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
    text
}

/// How many times as long as usual a deadline is: `DCL_TEST_PATIENCE`, for tools under which
/// everything is slow.
pub fn patience() -> u32 {
    std::env::var("DCL_TEST_PATIENCE").ok().and_then(|times| times.parse().ok()).unwrap_or(1)
}

/// What a program wrote, as text.
///
/// # Panics
///
/// It is not UTF-8.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("programs write UTF-8")
}

/// The path of a file that another package of the workspace's default members builds:
/// `product("distcollective")` is the command line.
///
/// Cargo builds the products of a test's own package only. So the first call builds the default
/// members, in the profile and the folder of the test that calls it. Their dependencies have the
/// features that `cargo test` compiles them with, so Cargo compiles nothing twice. The file is
/// never one of an earlier state of the sources.
///
/// # Panics
///
/// The default members cannot be built, or have no such product.
pub fn product(file: &str) -> PathBuf {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(build);
    let product = FOLDER.join(file);
    assert!(product.exists(), "the default members do not make {}", product.display());
    product
}

/// Builds the default members, and gives the folder of their products.
fn build() -> PathBuf {
    // A test is `<target>/[<triple>/]<profile>/deps/<name>`.
    let test = std::env::current_exe().expect("the path of this program");
    let folder = test.parent().and_then(Path::parent).expect("Cargo's folders");
    let name = |path: &Path| path.file_name().expect("a folder").to_str().expect("UTF-8").to_owned();
    let parent = folder.parent().expect("Cargo's folders");
    let profile = match name(folder).as_str() {
        "debug" => "dev".to_owned(),
        other => other.to_owned(),
    };
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--locked", "--profile", &profile]);
    // With `--target`, the folder of the profile is in one that has the triple's name.
    let (parent_name, arch) = (name(parent), std::env::consts::ARCH);
    if parent_name.starts_with(arch) && parent_name.contains("-linux-") {
        cargo.args(["--target", &parent_name, "--target-dir"]).arg(parent.parent().expect("Cargo's folders"));
    } else {
        cargo.arg("--target-dir").arg(parent);
    }
    succeed(cargo.current_dir(root()));
    folder.to_owned()
}

/// The path of the demo.
pub fn demo() -> &'static str {
    static DEMO: LazyLock<PathBuf> = LazyLock::new(|| product("sample_dist_collective"));
    DEMO.to_str().expect("UTF-8")
}

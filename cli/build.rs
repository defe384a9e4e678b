//! Sets `CLI_COMMIT` and `CLI_TARGET`, which `distcollective doctor` shows.

use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = env::var("TARGET").expect("cargo sets TARGET");
    println!("cargo::rustc-env=CLI_TARGET={target}");
    // A package may be unpacked inside another project's repository, so its own file comes first.
    let commit = packaged_commit().or_else(checked_out_commit).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=CLI_COMMIT={commit}");
}

/// The commit that `cargo package` wrote into the package.
fn packaged_commit() -> Option<String> {
    let text = fs::read_to_string(".cargo_vcs_info.json").ok()?;
    // {"git": {"sha1": "d670460b4b4aece5915caf5c68d12f560a9fe3e4"}, ...}
    let commit = text.split('"').skip_while(|word| *word != "sha1").nth(2)?;
    Some(commit.chars().take(12).collect())
}

/// The commit of the checkout that has these sources.
fn checked_out_commit() -> Option<String> {
    // HEAD's log changes with every commit and checkout; a repository without logs has the others.
    let branch = git(&["rev-parse", "--symbolic-full-name", "HEAD"])?;
    for name in ["HEAD", "logs/HEAD", "packed-refs", branch.as_str()] {
        // Cargo runs this script every time if a file that it names does not exist.
        if let Some(path) = git(&["rev-parse", "--git-path", name]).filter(|path| fs::exists(path).unwrap_or(false)) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    // Copied sources may lie in the checkout of another project, which does not track them.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    git(&["rev-parse", "--short=12", "HEAD"])
}

/// What a git command prints, if it succeeds.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

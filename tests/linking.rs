//! A program that depends on two versions of the library, and has a symbol with the C library's
//! prefix, links and runs: the Rust library exports no symbol of C.

use std::fs;
use std::path::Path;
use std::process::Command;

use test_support::{root, succeed};

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

const MANIFEST: &str = r#"
[package]
name = "program"
version = "0.0.0"
edition = "2024"

[workspace]

[dependencies]
distcollective = { path = "@ROOT@" }
earlier = { package = "distcollective", path = "earlier" }

# Both versions have the same arithmetic, since the earlier one differs in its number only.
[patch.crates-io]
distcollective-elements = { path = "@ROOT@/crates/elements" }

# The dependencies are those of the tests, built for them.
[profile.dev]
opt-level = 1
debug = "line-tables-only"

[profile.dev.package.distcollective]
opt-level = 0
"#;

const MAIN: &str = r#"
#[unsafe(no_mangle)]
extern "C" fn dcl_version() -> u32 {
    7
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut new, mut old) = ([1.0f32], [2.0f32]);
    distcollective::Communicator::builder().in_process(1)?[0]
        .all_reduce(&mut new, distcollective::ReduceOperation::Sum)?;
    earlier::Communicator::builder().in_process(1)?[0].all_reduce(&mut old, earlier::ReduceOperation::Sum)?;
    println!("{} {new:?} {old:?}", dcl_version());
    Ok(())
}
"#;

/// As a program may have it.
#[unsafe(no_mangle)]
extern "C" fn dcl_version() -> u32 {
    7
}

#[test]
fn a_symbol_of_the_program_links_with_the_library() -> Result<(), Box<dyn std::error::Error>> {
    let mut value = [1.0f32];
    distcollective::Communicator::builder().in_process(1)?[0]
        .all_reduce(&mut value, distcollective::ReduceOperation::Sum)?;
    assert_eq!((dcl_version(), value), (7, [1.0]));
    Ok(())
}

#[test]
#[ignore = "compiles the library twice; CI runs it"]
fn two_versions_and_a_symbol_of_the_program_link_together() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("linking");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("src")).expect("a folder");

    // What a registry would have, under an earlier version.
    let package = ["package", "--package", "distcollective", "--package", "distcollective-elements"];
    let options = ["--no-verify", "--allow-dirty", "--locked", "--offline"];
    succeed(cargo().args(package).args(options).arg("--target-dir").arg(&folder).current_dir(root()));
    let version = env!("CARGO_PKG_VERSION");
    let archive = folder.join(format!("package/distcollective-{version}.crate"));
    succeed(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&folder));
    let earlier = folder.join("earlier");
    fs::rename(folder.join(format!("distcollective-{version}")), &earlier).expect("the package");
    let manifest = fs::read_to_string(earlier.join("Cargo.toml")).expect("the package's manifest");
    let own = format!("version = \"{version}\"");
    fs::write(earlier.join("Cargo.toml"), manifest.replacen(&own, "version = \"0.0.1\"", 1)).expect("a file");

    let root_path = root().to_str().expect("UTF-8");
    fs::write(folder.join("Cargo.toml"), MANIFEST.replace("@ROOT@", root_path)).expect("a file");
    fs::write(folder.join("src/main.rs"), MAIN).expect("a file");
    fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock")).expect("the lock file");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("Cargo's target folder");
    let run = ["run", "--quiet", "--offline"];
    let text = succeed(cargo().args(run).arg("--target-dir").arg(target).current_dir(&folder));
    assert!(text.starts_with("7 [1.0] [2.0]\n"), "{text}");
}

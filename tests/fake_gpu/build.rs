//! Compiles the C sources into shared libraries, and lays them out in a folder for each variant.

use std::error::Error;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::{env, fs};

const FLAGS: &[&str] = &[
    "-std=c11",
    "-D_GNU_SOURCE",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fPIC",
    "-O1",
    "-g",
    "-pthread",
    "-ffp-contract=off",
];

/// Threads of the libraries may run until the process ends, so they are never unloaded.
const LINK_FLAGS: &[&str] = &["-shared", "-Wl,-z,nodelete", "-Wl,-z,defs", "-fvisibility=hidden"];

/// What libraries with a lock have in common.
const FORKS: &str = "forks.c";

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo::rerun-if-changed={FORKS}");
    let forks = &[PathBuf::from(FORKS)];
    let cuda = library(&out, "libcuda.so.1", "", "cuda", &[&[kernels(&out)?][..], forks].concat(), &[])?;
    let nvrtc = library(&out, "libnvrtc.so.13", "", "nvrtc", &[], &[])?;
    let nvrtc_12 = library(&out, "libnvrtc.so.12", "", "nvrtc", &[], &["-DFAKE_NVRTC_MAJOR=12"])?;
    let current = library(&out, "libnccl.so.2", "current", "nccl", forks, &[])?;
    let old = library(&out, "libnccl.so.2", "old", "nccl", forks, &["-DFAKE_NCCL_VERSION=22105"])?;
    let previous = library(&out, "libnccl.so.2", "previous", "nccl", forks, &["-DFAKE_NCCL_VERSION=23006"])?;
    let ancient = library(&out, "libnccl.so.2", "ancient", "nccl", forks, &["-DFAKE_NCCL_VERSION=21803"])?;
    for (variant, libraries) in [
        ("current", &[&cuda, &nvrtc, &nvrtc_12, &current][..]),
        ("nvrtc_13", &[&cuda, &nvrtc, &current]),
        ("old", &[&cuda, &nvrtc, &old]),
        ("previous", &[&cuda, &nvrtc, &previous]),
        ("ancient", &[&cuda, &nvrtc, &ancient]),
        ("no_nvrtc", &[&cuda, &current]),
        ("no_nccl", &[&cuda, &nvrtc]),
        ("no_driver", &[&nvrtc, &current]),
    ] {
        folder(&out.join(variant), libraries)?;
    }
    Ok(())
}

/// Compiles a folder of sources, and what else there is, into a library, and gives where it is.
fn library(
    out: &Path,
    name: &str,
    variant: &str,
    sources: &str,
    others: &[PathBuf],
    flags: &[&str],
) -> Result<PathBuf> {
    println!("cargo::rerun-if-changed={sources}");
    let folder = out.join("built").join(variant);
    fs::create_dir_all(&folder)?;
    let path = folder.join(name);
    let mut files = Vec::new();
    for entry in fs::read_dir(sources)? {
        files.push(entry?.path());
    }
    files.retain(|file| file.extension().is_some_and(|extension| extension == "c"));
    files.sort();
    let mut command = compiler()?;
    command.args(FLAGS).args(LINK_FLAGS).args(flags).arg(format!("-Wl,-soname,{name}"));
    command.arg("-o").arg(&path).args(files).args(others).args(["-lm", "-ldl"]);
    run(command)?;
    Ok(path)
}

/// The library's kernels compiled for the host.
fn kernels(out: &Path) -> Result<PathBuf> {
    println!("cargo::rerun-if-changed={}", host_kernels::SOURCE);
    let object = out.join("kernels.o");
    let mut command = compiler()?;
    command.args(FLAGS).args(["-fvisibility=hidden", "-c"]).arg("-o").arg(&object).arg(host_kernels::SOURCE);
    run(command)?;
    Ok(object)
}

fn compiler() -> Result<std::process::Command> {
    Ok(cc::Build::new().opt_level(1).cargo_metadata(false).try_get_compiler()?.to_command())
}

fn run(mut command: std::process::Command) -> Result<()> {
    if command.status()?.success() { Ok(()) } else { Err(format!("this failed: {command:?}").into()) }
}

/// Makes a folder with links to libraries, under each name by which a loader may look for them.
fn folder(folder: &Path, libraries: &[&PathBuf]) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    for library in libraries {
        let name = library.file_name().and_then(|name| name.to_str()).ok_or("a library without a name")?;
        let bare = name.split_once(".so").map_or(name, |(bare, _)| bare);
        symlink(library, folder.join(name))?;
        let bare = folder.join(format!("{bare}.so"));
        if !bare.exists() {
            symlink(library, bare)?;
        }
    }
    Ok(())
}

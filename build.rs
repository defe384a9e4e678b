//! Links the shared library, and makes what the library needs of `cuda/`. rustc tells the linker
//! what the shared library exports: the `dcl_` functions of `src/capi/`, nothing else.

use std::fmt::Write;
use std::path::PathBuf;
use std::{env, fs};

#[path = "cuda/assemble.rs"]
mod assemble;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The name under which programs find it: as long as the major version is 0, a minor version may
    // change the ABI.
    let part = |name: &str| env::var(format!("CARGO_PKG_VERSION_{name}")).unwrap_or_default();
    let (major, minor) = (part("MAJOR"), part("MINOR"));
    let version = if major == "0" { format!("{major}.{minor}") } else { major };
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libdistcollective.so.{version}");
    // Its threads and thread-local destructors outlive a dlclose.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    write_kernels();
}

/// Writes `kernels.cu`, the text that NVRTC compiles, and `kernels.rs`, the list of kernels as an
/// array of (entry, name, definition).
fn write_kernels() {
    println!("cargo::rerun-if-changed=cuda");
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the package's folder"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo names a folder for output"));
    let sources = assemble::Sources::read(&root.join("cuda")).unwrap_or_else(|error| panic!("{error}"));
    let mut list = "[\n".to_owned();
    for assemble::Kernel { entry, name, definition } in &sources.kernels {
        writeln!(list, "    ({entry:?}, {name:?}, {definition:?}),").expect("a String takes every text");
    }
    list.push_str("]\n");
    fs::write(out.join("kernels.cu"), sources.text).expect("the output folder is writable");
    fs::write(out.join("kernels.rs"), list).expect("the output folder is writable");
}

//! Makes what the library needs of `cuda/`: the text that NVRTC compiles, and the list of kernels.

use std::fmt::Write;
use std::path::PathBuf;
use std::{env, fs};

#[path = "cuda/assemble.rs"]
mod assemble;

/// Writes `kernels.cu`, the text that NVRTC compiles, and `kernels.rs`, the list of kernels as an
/// array of (entry, name, definition).
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
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

//! Compiles the text that NVRTC compiles for devices, as C11 for the host.

use std::path::{Path, PathBuf};
use std::{env, fs};

#[path = "../../cuda/assemble.rs"]
mod assemble;

fn main() {
    println!("cargo::rerun-if-changed=../../cuda");
    println!("cargo::rerun-if-changed=lookup.c");
    println!("cargo::rerun-if-changed=build.rs");
    let source = PathBuf::from(env::var_os("OUT_DIR").expect("cargo names a folder for output")).join("kernels.c");
    fs::write(&source, host_source()).expect("the output folder is writable");
    cc::Build::new()
        .std("c11")
        .flag("-ffp-contract=off")
        .extra_warnings(true)
        .warnings_into_errors(true)
        // With more, as in a release build, GCC warns of uninitialized packets that are never read.
        .opt_level(1)
        // Tests with a few thousand elements reach the code for tensors of billions of elements.
        .define("DCL_NARROW_COUNT", "4096")
        .file(source)
        .compile("dcl_host_kernels");
}

/// All kernels, and functions that find them by name.
fn host_source() -> String {
    let sources = assemble::Sources::read(Path::new("../../cuda")).unwrap_or_else(|error| panic!("{error}"));
    let lookup = fs::read_to_string("lookup.c").expect("lookup.c is beside this file");
    let mut text = sources.text;
    let mut table = "#define DCL_HOST_KERNELS".to_owned();
    for assemble::Kernel { entry, name, definition } in &sources.kernels {
        text.push_str(&format!("#line 1 \"{entry}\"\n{definition}\n"));
        table.push_str(&format!(" \\\n    {{\"{name}\", {name}, {name}_argument_bytes}},"));
    }
    text + &table + "\n#line 1 \"lookup.c\"\n" + &lookup
}

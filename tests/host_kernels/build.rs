//! Compiles the text that NVRTC compiles for devices, as C11 for the host.

fn main() {
    println!("cargo::rerun-if-changed=../../cuda");
    println!("cargo::rerun-if-changed=build.rs");
    cc::Build::new()
        .flag("-x")
        .flag("c")
        .std("c11")
        .flag("-ffp-contract=off")
        .extra_warnings(true)
        .warnings_into_errors(true)
        // With more, as in a release build, GCC takes packets that are never read for uninitialized.
        .opt_level(1)
        // What only tensors of billions of elements need is reached by those of a few thousand.
        .define("DCL_NARROW_COUNT", "4096")
        .file("../../cuda/kernels.cu")
        .compile("dcl_host_kernels");
}

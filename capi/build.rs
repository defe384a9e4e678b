//! How the shared library is linked. What it exports, rustc tells the linker: the `dcl_`
//! functions of this package, nothing else.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The name under which programs find it: as long as the major version is 0, a minor version may change the ABI.
    let part = |name: &str| std::env::var(format!("CARGO_PKG_VERSION_{name}")).unwrap_or_default();
    let (major, minor) = (part("MAJOR"), part("MINOR"));
    let version = if major == "0" { format!("{major}.{minor}") } else { major };
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libdistcollective.so.{version}");
    // Its threads and thread-local destructors outlive a dlclose.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

//! Sets how the shared library is linked. rustc tells the linker what to export: the `dcl_`
//! functions of this package and nothing else.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The soname has the minor version as long as the major version is 0, because a minor version
    // may change the ABI until then.
    let part = |name: &str| std::env::var(format!("CARGO_PKG_VERSION_{name}")).unwrap_or_default();
    let (major, minor) = (part("MAJOR"), part("MINOR"));
    let version = if major == "0" { format!("{major}.{minor}") } else { major };
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libdistcollective.so.{version}");
    // The library's threads and thread-local destructors outlive a dlclose.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

//! What the tests of several packages use.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// The folder of the repository.
pub fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().and_then(Path::parent).expect("this package is in tests/support")
}

/// Says why a test is skipped. Where `DCL_REQUIRE_PEERS` is set, as in CI, no test may be skipped.
///
/// # Panics
///
/// `DCL_REQUIRE_PEERS` is set.
pub fn skip(reason: &str) {
    assert!(std::env::var_os("DCL_REQUIRE_PEERS").is_none(), "{reason}");
    eprintln!("skipped: {reason}");
}

/// A file that another package of the workspace makes: `product("distcollective-cli",
/// "distcollective")`.
///
/// Cargo builds the products of a test's own package only. So this builds the other package, in
/// the profile and the folder of the test that calls it; if the product is up to date, Cargo does
/// nothing. The file is never one of an earlier state of the sources.
///
/// # Panics
///
/// The package cannot be built, or has no such product.
pub fn product(package: &str, file: &str) -> PathBuf {
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
    cargo.args(["build", "--quiet", "--locked", "--package", package, "--profile", &profile]);
    // Only the folder of a target triple has no such file.
    if parent.join("CACHEDIR.TAG").exists() {
        cargo.arg("--target-dir").arg(parent);
    } else {
        cargo.args(["--target", &name(parent), "--target-dir"]).arg(parent.parent().expect("Cargo's folders"));
    }
    let output = cargo.current_dir(root()).output().expect("cargo starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{package} cannot be built:\n{stderr}");
    let product = folder.join(file);
    assert!(product.exists(), "{package} does not make {}", product.display());
    product
}

/// The path of the demo.
pub fn demo() -> &'static str {
    static DEMO: LazyLock<PathBuf> = LazyLock::new(|| product("distcollective-samples", "sample_dist_collective"));
    DEMO.to_str().expect("UTF-8")
}

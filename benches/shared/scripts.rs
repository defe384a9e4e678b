//! Scripts in Python with torch, beside which benchmarks measure.

use std::path::Path;
use std::process::Command;

use distcollective::{Error, ErrorKind, Result};

/// Runs a script with a Python that has torch.
pub fn run_script<const N: usize>(python: &Path, script: &str, arguments: [String; N]) -> Result<()> {
    match Command::new(python).arg(script).args(arguments).status() {
        Ok(status) if status.success() => Ok(()),
        other => Err(Error::new(ErrorKind::System, format!("{} with torch: {other:?}", python.display()))),
    }
}

/// Numbers as an argument of a script: `1,2,3`.
pub fn list(numbers: &[usize]) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

//! File names in which `{rank}` stands for the rank.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::output::Failure;

/// The file of each rank. `option` is the option that gives the names, for the error.
pub fn of_ranks(option: &str, pattern: &str, n: u32) -> Result<Vec<PathBuf>, Failure> {
    if n > 1 && !pattern.contains("{rank}") {
        let error = format!("{option} {pattern:?} names one file for {n} ranks; put {{rank}} into it");
        return Err(Failure::usage(error));
    }
    Ok((0..n).map(|rank| of_rank(pattern, rank)).collect())
}

/// The file of one rank.
pub fn of_rank(pattern: &str, rank: u32) -> PathBuf {
    pattern.replace("{rank}", &rank.to_string()).into()
}

/// Checks that no output is an input, by whatever name.
pub fn check_apart(inputs: &[PathBuf], outputs: &[PathBuf]) -> Result<(), Failure> {
    let identity = |file: &PathBuf| file.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()));
    let inputs: HashMap<_, _> = inputs.iter().filter_map(|file| Some((identity(file)?, file))).collect();
    for output in outputs {
        if let Some(input) = identity(output).and_then(|identity| inputs.get(&identity)) {
            let (input, output) = (input.display(), output.display());
            return Err(Failure::usage(format!(
                "the output {output} is the input {input}, which would be lost; give --output another name"
            )));
        }
    }
    Ok(())
}

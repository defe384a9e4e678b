//! File names in which `{rank}` stands for the rank.

use std::path::PathBuf;

/// The file of each rank. `option` is the option that gives the names, for the error.
pub fn of_ranks(option: &str, pattern: &str, n: u32) -> Result<Vec<PathBuf>, String> {
    if n > 1 && !pattern.contains("{rank}") {
        return Err(format!("{option} {pattern:?} names one file for {n} ranks; put {{rank}} into it"));
    }
    Ok((0..n).map(|rank| PathBuf::from(pattern.replace("{rank}", &rank.to_string()))).collect())
}

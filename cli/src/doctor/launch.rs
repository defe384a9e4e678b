//! What the environment variables say.

use std::collections::BTreeMap;

use distcollective::environment::{self, Environment};
use serde::Serialize;

use crate::launch::RESTART_COUNT;

/// Variables beside the launchers' that matter to a job. All variables whose names begin with
/// `DCL_` or `NCCL_` matter too.
const FURTHER_VARIABLES: [&str; 4] =
    ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "LD_LIBRARY_PATH"];

/// The variable whose value is not shown.
const SECRET: &str = "DCL_SECRET";

/// The variable that names the jobs in which a process runs.
const JOBS: &str = "DCL_LAUNCH_JOBS";

/// What the environment variables say about ranks and libraries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Launch {
    /// The launcher whose variables are set.
    pub launcher: Option<&'static str>,
    /// This process's rank, if a launcher set it.
    pub rank: Option<u32>,
    /// The number of ranks, if a launcher set it.
    pub world_size: Option<u32>,
    /// What is missing or contradictory in the launcher's variables.
    pub problem: Option<String>,
    /// The library's own variables with values that they cannot have, or with unknown names.
    pub mistakes: Vec<String>,
    /// The variables that matter and are set. The value of `DCL_SECRET` is not shown.
    pub variables: BTreeMap<String, String>,
}

impl Launch {
    pub fn look() -> Self {
        let launcher = Environment::detect_launcher();
        let (place, problem) = match launcher.map(|_| Environment::detect_rank()) {
            None => (None, None),
            Some(Ok(place)) => (Some(place), None),
            Some(Err(error)) => (None, Some(error.to_string())),
        };
        Launch {
            launcher: launcher.map(|launcher| launcher.name()),
            rank: place.map(|(rank, _)| rank.0),
            world_size: place.map(|(_, world_size)| world_size),
            mistakes: mistakes(),
            problem,
            variables: variables(),
        }
    }
}

/// What is wrong with the library's own variables, apart from what a launcher's problem says.
fn mistakes() -> Vec<String> {
    let mut mistakes = environment::variable_mistakes();
    let is_known = |name: &str| {
        [JOBS, RESTART_COUNT, "DCL_ALLOW_PICKLE"].contains(&name)
            || environment::variable_names().any(|known| known == name)
    };
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut unknown: Vec<String> = names.filter(|name| name.starts_with("DCL_") && !is_known(name)).collect();
    unknown.sort();
    mistakes.extend(unknown.into_iter().map(|name| format!("{name} is none of this library's variables")));
    mistakes
}

fn variables() -> BTreeMap<String, String> {
    let matters = |name: &str| {
        name.starts_with("NCCL_")
            || name.starts_with("DCL_")
            || FURTHER_VARIABLES.contains(&name)
            || environment::variable_names().any(|known| known == name)
    };
    std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
        .filter(|(name, _)| matters(name))
        .map(|(name, value)| if name == SECRET { (name, "set, and not shown".to_owned()) } else { (name, value) })
        .collect()
}

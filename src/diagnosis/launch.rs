//! What the environment variables say.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::environment::{self, Environment};

/// Variables beside the launchers' that matter to a job. All variables whose names begin with
/// `DCL_` or `NCCL_` matter too.
const FURTHER_VARIABLES: [&str; 4] =
    ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "LD_LIBRARY_PATH"];

/// The variable whose value is not shown.
const SECRET: &str = "DCL_SECRET";

/// What the environment variables say about ranks and libraries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Launch {
    /// The launcher whose variables are set.
    pub launcher: Option<&'static str>,
    /// This process's rank, if a launcher set it.
    pub rank: Option<u32>,
    /// The number of ranks, if a launcher set it.
    pub world_size: Option<u32>,
    /// What is missing or contradictory in the launcher's variables.
    pub problem: Option<String>,
    /// The variables that matter and are set. The value of `DCL_SECRET` is not shown.
    pub variables: BTreeMap<String, String>,
}

impl Launch {
    pub(super) fn look() -> Self {
        let launcher = Environment::detect_launcher();
        let (place, problem) = match launcher.map(|_| environment::rank_and_world_size()) {
            None => (None, None),
            Some(Ok(place)) => (Some(place), None),
            Some(Err(error)) => (None, Some(error.to_string())),
        };
        Launch {
            launcher: launcher.map(|launcher| launcher.name()),
            rank: place.map(|(rank, _)| rank.0),
            world_size: place.map(|(_, world_size)| world_size),
            problem,
            variables: variables(),
        }
    }
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

//! The names of backends.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, bail};

/// The backend that a process asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Wanted {
    Auto,
    Host,
    Nccl,
}

impl Wanted {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Wanted::Auto => "auto",
            Wanted::Host => "host",
            Wanted::Nccl => "nccl",
        }
    }
}

impl FromStr for Wanted {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Ok(match name.to_ascii_lowercase().as_str() {
            "auto" => Wanted::Auto,
            "host" | "gloo" => Wanted::Host,
            "nccl" => Wanted::Nccl,
            _ => {
                bail!(InvalidArgument, "{name:?} is not a backend; they are \"nccl\", \"host\" (\"gloo\") and \"auto\"")
            }
        })
    }
}

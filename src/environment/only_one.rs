//! There is one environment at a time in a process.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::comm::Communicator;
use crate::error::{Result, bail};
use crate::util::lock;

/// Where the environment of this process was initialized (`src/main.rs:7:5`), and its communicator,
/// when all ranks have come.
static CURRENT: Mutex<Option<(String, Option<Communicator>)>> = Mutex::new(None);

/// How many environments have been initialized.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Exists once in a process.
pub(super) struct OnlyOne(());

impl OnlyOne {
    pub(super) fn new(caller: String) -> Result<Self> {
        let mut current = lock(&CURRENT);
        if let Some((first, _)) = &*current {
            bail!(
                NotReady,
                "the environment was initialized at {first} and not finalized since; there is one at a time"
            );
        }
        *current = Some((caller, None));
        Ok(OnlyOne(()))
    }

    /// Whether there is an environment.
    pub(super) fn exists() -> bool {
        lock(&CURRENT).is_some()
    }

    /// How many environments this process has had. It is the same on all ranks, and part of the
    /// job's name: a new environment never meets what is left of the one before.
    pub(super) fn generation(&self) -> u64 {
        GENERATION.load(Ordering::Relaxed)
    }

    /// Counts an environment, when all ranks have come.
    pub(super) fn count(&self, communicator: &Communicator) {
        GENERATION.fetch_add(1, Ordering::Relaxed);
        if let Some((_, current)) = &mut *lock(&CURRENT) {
            *current = Some(communicator.clone());
        }
    }

    /// The communicator of the environment that was counted last and still exists.
    pub(super) fn communicator() -> Option<Communicator> {
        lock(&CURRENT).as_ref()?.1.clone()
    }
}

impl Drop for OnlyOne {
    fn drop(&mut self) {
        let communicator = lock(&CURRENT).as_mut().and_then(|(_, communicator)| communicator.take());
        // The last handle of a communicator may wait; nothing is locked then.
        drop(communicator);
        *lock(&CURRENT) = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_environment_is_refused_and_the_first_is_named() {
        let first = OnlyOne::new("serve.py:12".to_owned()).expect("there is none");
        assert!(OnlyOne::exists());
        let error = OnlyOne::new("serve.py:13".to_owned()).err().expect("there is one");
        let text = "the environment was initialized at serve.py:12 and not finalized since; there is one at a time";
        assert_eq!(error.to_string(), text);
        drop(first);
        assert!(!OnlyOne::exists());
    }
}

//! A warning about a wait that takes long.

use std::time::{Duration, Instant};

use crate::util::log;
use crate::util::settings::settings;

/// Logs a wait once, when it has lasted as long as `DCL_SLOW_WARNING` says.
pub(crate) struct SlowWarning {
    begin: Instant,
    /// `None` after the warning, and if warnings are off.
    after: Option<Duration>,
}

impl SlowWarning {
    /// For a wait that begins now.
    pub(crate) fn new() -> Self {
        let after = settings().ok().and_then(|settings| settings.slow_warning);
        SlowWarning { begin: Instant::now(), after }
    }

    /// For a wait that is never logged.
    pub(crate) fn never() -> Self {
        SlowWarning { begin: Instant::now(), after: None }
    }

    /// When the wait has to call [`look`](Self::look) next: at `deadline`, or earlier for the
    /// warning.
    pub(crate) fn next_look(&self, deadline: Instant) -> Instant {
        self.after.and_then(|after| self.begin.checked_add(after)).map_or(deadline, |due| due.min(deadline))
    }

    /// Logs the wait if it is long enough. `text` gets the seconds that it has lasted.
    pub(crate) fn look(&mut self, text: impl FnOnce(u64) -> String) {
        let waited = self.begin.elapsed();
        if self.after.is_some_and(|after| waited >= after) {
            self.after = None;
            let text = text(waited.as_secs());
            log::event!(WARN, "{text}");
        }
    }
}

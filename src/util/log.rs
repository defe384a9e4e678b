//! The library's log. Events go to the program's `tracing` subscriber. If the program has none,
//! they go to stderr, if `DCL_LOG` or [`show_warnings`] asks for their level.

use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::Level;
use tracing::dispatcher::get_default;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::NoSubscriber;

use crate::util::settings::settings;

static SHOWS_WARNINGS: AtomicBool = AtomicBool::new(false);

/// Prints the library's warnings and errors on stderr from now on, if the program has no `tracing`
/// subscriber. If `DCL_LOG` is set, it decides instead which events are printed.
///
/// A library prints nothing by itself; a program's `main` function calls this.
pub fn show_warnings() {
    SHOWS_WARNINGS.store(true, Ordering::Relaxed);
}

/// Logs an event: `log::event!(WARN, "rank {rank} is late")`.
macro_rules! event {
    ($level:ident, $($text:tt)+) => {{
        tracing::event!(tracing::Level::$level, $($text)+);
        if !$crate::util::log::has_subscriber() {
            $crate::util::log::print(tracing::Level::$level, format_args!($($text)+));
        }
    }};
}

pub(crate) use event;

/// Whether the program has a subscriber.
pub(crate) fn has_subscriber() -> bool {
    get_default(|dispatch| !dispatch.is::<NoSubscriber>())
}

/// Whether events of this level are printed on stderr.
pub(crate) fn is_printed(level: Level) -> bool {
    let set = settings().ok().and_then(|settings| settings.log);
    let shows_warnings = SHOWS_WARNINGS.load(Ordering::Relaxed);
    level <= set.unwrap_or(if shows_warnings { LevelFilter::WARN } else { LevelFilter::OFF })
}

/// Prints an event on stderr, if events of its level are wanted.
pub(crate) fn print(level: Level, text: fmt::Arguments<'_>) {
    if is_printed(level) {
        let name = if level == Level::WARN { "warning".to_owned() } else { level.as_str().to_lowercase() };
        // If stderr is closed, the event has no reader.
        let _ = writeln!(std::io::stderr(), "distcollective: {name}: {text}");
    }
}

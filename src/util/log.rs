//! The library's log. Events go to the program's `tracing` subscriber and to the handler that
//! [`set_log_handler`] sets. If the program has neither, those that `DCL_LOG` asks for go to
//! stderr: warnings and errors, unless it is set.

use std::cell::Cell;
use std::fmt;
use std::io::Write;
use std::sync::Once;

use tracing::Level;
use tracing::dispatcher::get_default;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::NoSubscriber;

use crate::error::Result;
use crate::util::callback::Callback;
use crate::util::settings::{mistyped, settings};

static HANDLER: Callback<Handler> = Callback::new("the handler of the log", &IN_HANDLER);

thread_local! {
    /// Whether this thread is inside the handler.
    static IN_HANDLER: Cell<bool> = const { Cell::new(false) };
}

/// The most verbose level that the function gets, and the function.
type Handler = (LogLevel, Box<dyn Fn(LogLevel, &str) + Send + Sync>);

/// How serious an event of the log is, from the most serious on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LogLevel {
    /// A call fails, or memory is lost.
    Error,
    /// Something is probably not as the program wants it: a wait takes long, an attribute is
    /// ignored.
    Warn,
    /// Something that happens a few times in a job.
    Info,
    /// Something that helps to find a mistake.
    Debug,
    /// Everything.
    Trace,
}

impl From<Level> for LogLevel {
    fn from(level: Level) -> Self {
        match level {
            Level::ERROR => LogLevel::Error,
            Level::WARN => LogLevel::Warn,
            Level::INFO => LogLevel::Info,
            Level::DEBUG => LogLevel::Debug,
            Level::TRACE => LogLevel::Trace,
        }
    }
}

/// Passes the library's events, up to the level `most_verbose`, to `handler` from now on, instead
/// of stderr. A handler that was set before is dropped; when this returns, no thread is inside it.
/// A program's `tracing` subscriber gets the events too.
///
/// Any thread may call the handler, several at once. Events that the library logs while a thread
/// is inside the handler are not passed to it on that thread. The library catches a panic of the
/// handler. A process that is forked from this one has no handler.
///
/// ```
/// use distcollective::log::{LogLevel, clear_log_handler, set_log_handler};
///
/// set_log_handler(LogLevel::Warn, |level, text| eprintln!("{level:?}: {text}"))?;
/// clear_log_handler()?;
/// # Ok::<(), distcollective::Error>(())
/// ```
///
/// # Errors
///
/// The handler itself calls this; or this process was forked from one that has a handler.
pub fn set_log_handler(most_verbose: LogLevel, handler: impl Fn(LogLevel, &str) + Send + Sync + 'static) -> Result<()> {
    HANDLER.replace(Some((most_verbose, Box::new(handler))))
}

/// Undoes [`set_log_handler`]. When this returns, no thread is inside the handler.
///
/// # Errors
///
/// As [`set_log_handler`].
pub fn clear_log_handler() -> Result<()> {
    HANDLER.replace(None)
}

/// Logs an event: `log::event!(WARN, "rank {rank} is late")`.
macro_rules! event {
    ($level:ident, $($text:tt)+) => {{
        tracing::event!(tracing::Level::$level, $($text)+);
        $crate::util::log::pass_on(tracing::Level::$level, format_args!($($text)+));
    }};
}

pub(crate) use event;

/// Logs, once in a process, the variables whose names are almost those of settings.
pub(crate) fn warn_of_mistyped_settings() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for (name, setting) in mistyped(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok())) {
            event!(WARN, "{name} is none of this library's variables, and {setting} is one");
        }
    });
}

/// Passes an event to the handler. If there is none, and no subscriber either, it is printed.
pub(crate) fn pass_on(level: Level, text: fmt::Arguments<'_>) {
    let pass = |(most_verbose, handler): &Handler| {
        if LogLevel::from(level) <= *most_verbose {
            handler(level.into(), &text.to_string());
        }
    };
    // A panic of the handler changes nothing for the library.
    if HANDLER.is_set() && (HANDLER.is_inside() || HANDLER.call(pass).is_some()) {
        return;
    }
    if get_default(|dispatch| !dispatch.is::<NoSubscriber>()) {
        return;
    }
    let printed = settings().ok().and_then(|settings| settings.log).unwrap_or(LevelFilter::WARN);
    if level <= printed {
        let name = if level == Level::WARN { "warning".to_owned() } else { level.as_str().to_lowercase() };
        // In one piece, so that lines of several processes do not mix. If stderr is closed, the
        // event has no reader.
        let line = format!("distcollective: {name}: {text}\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

//! Version, names, errors and the log.

use std::cell::Cell;
use std::ffi::{CString, c_char, c_void};
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, span, subscriber};

use super::arguments::Text;
use super::copy_out::TextRoom;
use super::status::{Fault, Result, Status, call, last_message, last_rank, set_last};
use crate::collective::{CollectiveOperation, ReduceOperation};
use crate::data_type::DataType;
use crate::util::log;

#[unsafe(no_mangle)]
extern "C" fn dcl_version() -> u32 {
    let part = |text: &str| text.parse().unwrap_or(0);
    part(env!("CARGO_PKG_VERSION_MAJOR")) * 10_000
        + part(env!("CARGO_PKG_VERSION_MINOR")) * 100
        + part(env!("CARGO_PKG_VERSION_PATCH"))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_version_string() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

#[unsafe(no_mangle)]
extern "C" fn dcl_status_name(status: Status) -> *const c_char {
    status.name().as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn dcl_last_error_message(buffer: TextRoom, capacity: usize) -> usize {
    last_message(|message| buffer.write_fitting(message, capacity))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_set_last_error(status: Status, message: Text) -> Status {
    call(|| {
        if status == Status::SUCCESS {
            return Err(Fault::invalid_argument("the status is that of an error, and not DCL_STATUS_SUCCESS"));
        }
        set_last(status, message.get("message")?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_last_error_rank() -> i32 {
    last_rank().and_then(|rank| i32::try_from(rank).ok()).unwrap_or(-1)
}

/// A name as C wants it, for ever: the Rust names have no NUL.
macro_rules! c_names {
    ($value:expr; $($variant:path => $name:literal),* $(,)?) => {
        match $value { $( $variant => $name.as_ptr(), )* }
    };
}

#[unsafe(no_mangle)]
extern "C" fn dcl_data_type_name(data_type: i32) -> *const c_char {
    let Ok(data_type) = DataType::from_number(data_type) else { return std::ptr::null() };
    c_names! { data_type;
        DataType::Float32 => c"float32",
        DataType::Float16 => c"float16",
        DataType::Bfloat16 => c"bfloat16",
        DataType::Float8E4M3 => c"float8_e4m3",
        DataType::Float8E5M2 => c"float8_e5m2",
        DataType::Int64 => c"int64",
        DataType::Int32 => c"int32",
        DataType::Int8 => c"int8",
        DataType::Uint8 => c"uint8",
        DataType::Bool => c"bool",
    }
}

#[unsafe(no_mangle)]
extern "C" fn dcl_data_type_size(data_type: i32) -> usize {
    DataType::from_number(data_type).map_or(0, DataType::byte_len)
}

#[unsafe(no_mangle)]
extern "C" fn dcl_collective_operation_name(operation: i32) -> *const c_char {
    let Ok(operation) = CollectiveOperation::from_number(operation) else { return std::ptr::null() };
    c_names! { operation;
        CollectiveOperation::AllReduce => c"all_reduce",
        CollectiveOperation::AllGather => c"all_gather",
        CollectiveOperation::Broadcast => c"broadcast",
        CollectiveOperation::Reduce => c"reduce",
        CollectiveOperation::ReduceScatter => c"reduce_scatter",
        CollectiveOperation::AllToAll => c"all_to_all",
        CollectiveOperation::Gather => c"gather",
        CollectiveOperation::Scatter => c"scatter",
    }
}

#[unsafe(no_mangle)]
extern "C" fn dcl_reduce_operation_name(reduce_op: i32) -> *const c_char {
    let reduce_op = match ReduceOperation::from_number(reduce_op) {
        Ok(Some(reduce_op)) => reduce_op,
        Ok(None) => return c"none".as_ptr(),
        Err(_) => return std::ptr::null(),
    };
    c_names! { reduce_op;
        ReduceOperation::Sum => c"sum",
        ReduceOperation::Prod => c"prod",
        ReduceOperation::Max => c"max",
        ReduceOperation::Min => c"min",
        ReduceOperation::Avg => c"avg",
    }
}

/// `dcl_log_callback_t`.
type Callback = extern "C" fn(severity: i32, message: *const c_char, user_data: *mut c_void);

/// Who gets the log.
struct Listener {
    callback: Callback,
    user_data: *mut c_void,
    most_verbose: u8,
}

// SAFETY: the header wants a callback that any thread may call with its user data.
unsafe impl Send for Listener {}
// SAFETY: as above, and several at once.
unsafe impl Sync for Listener {}

static LISTENER: RwLock<Option<Listener>> = RwLock::new(None);

/// Its severity, to be seen without the lock; 0 for none.
static MOST_VERBOSE: AtomicU8 = AtomicU8::new(0);

thread_local! {
    /// Whether this thread is inside the callback. What is logged there is not for it.
    static IS_LISTENING: Cell<bool> = const { Cell::new(false) };
}

#[unsafe(no_mangle)]
extern "C" fn dcl_set_log_callback(callback: Option<Callback>, user_data: *mut c_void, most_verbose: i32) -> Status {
    call(|| {
        if IS_LISTENING.get() {
            return Err(Fault::new(Status::BUSY, "the callback for the log calls this itself"));
        }
        if callback.is_some() && !(1..=4).contains(&most_verbose) {
            let message = format!("most_verbose is {most_verbose}; it is 1 (errors) to 4 (verbose)");
            return Err(Fault::invalid_argument(message));
        }
        if callback.is_some() {
            subscribe()?;
        }
        // Waits until nobody is inside the callback of before.
        let mut listener = LISTENER.write().unwrap_or_else(PoisonError::into_inner);
        *listener = callback.map(|callback| Listener { callback, user_data, most_verbose: most_verbose as u8 });
        let wanted = if callback.is_some() { most_verbose as u8 } else { 0 };
        MOST_VERBOSE.store(wanted, Ordering::Relaxed);
        tracing::callsite::rebuild_interest_cache();
        Ok(())
    })
}

/// Makes the log of this process come here, the first time.
fn subscribe() -> Result<()> {
    static IS_OURS: OnceLock<bool> = OnceLock::new();
    match IS_OURS.get_or_init(|| subscriber::set_global_default(Log).is_ok()) {
        true => Ok(()),
        false => {
            Err(Fault::new(Status::UNSUPPORTED, "this program has a tracing subscriber of its own, which gets the log"))
        }
    }
}

/// Passes events of the library on to the listener. There are no spans.
struct Log;

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let is_ours = metadata.is_event() && metadata.target().starts_with(env!("CARGO_PKG_NAME"));
        is_ours
            && match MOST_VERBOSE.load(Ordering::Relaxed) {
                0 => log::is_printed(*metadata.level()),
                most_verbose => severity(*metadata.level()) <= most_verbose,
            }
    }

    fn event(&self, event: &Event<'_>) {
        if IS_LISTENING.get() {
            return;
        }
        let mut line = Line(String::new());
        event.record(&mut line);
        let level = *event.metadata().level();
        if MOST_VERBOSE.load(Ordering::Relaxed) == 0 {
            return log::print(level, format_args!("{}", line.0));
        }
        // A text from elsewhere may have a NUL in it.
        let Ok(message) = CString::new(line.0.replace('\0', " ")) else { return };
        let listener = LISTENER.read().unwrap_or_else(PoisonError::into_inner);
        let severity = severity(level);
        if let Some(listener) = listener.as_ref().filter(|listener| severity <= listener.most_verbose) {
            IS_LISTENING.set(true);
            (listener.callback)(severity.into(), message.as_ptr(), listener.user_data);
            IS_LISTENING.set(false);
        }
    }

    fn new_span(&self, _span: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _span: &span::Id, _values: &span::Record<'_>) {}

    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}

    fn enter(&self, _span: &span::Id) {}

    fn exit(&self, _span: &span::Id) {}
}

/// `dcl_severity_t`.
fn severity(level: Level) -> u8 {
    match level {
        Level::ERROR => 1,
        Level::WARN => 2,
        Level::INFO => 3,
        _ => 4,
    }
}

/// One line: the message, then the fields with their names.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let line = &mut self.0;
        let separator = if line.is_empty() { "" } else { " " };
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(line, "{separator}{value:?}"),
            name => write!(line, "{separator}{name}={value:?}"),
        };
    }
}

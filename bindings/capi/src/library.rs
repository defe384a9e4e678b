//! `dcl_version*`, `dcl_*_name`, `dcl_*last_error*`, the log and the interrupt callback.

use std::cell::Cell;
use std::ffi::{CString, c_char, c_void};
use std::ops::ControlFlow;
use std::sync::LazyLock;

use dcl::interrupt::{clear_interrupt_hook, set_interrupt_hook};
use dcl::log::{LogLevel, clear_log_handler, set_log_handler};
use dcl::{CollectiveOperation, DataType, ReduceOperation};

use super::arguments::TextPointer;
use super::copy_out::TextBuffer;
use super::status::{CallError, Status, call, last_message, last_rank, set_last_error};

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
extern "C" fn dcl_last_error_message(buffer: TextBuffer, capacity: usize) -> usize {
    last_message(|message| buffer.write_fitting(message, capacity))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_set_last_error(status: Status, message: TextPointer) -> Status {
    call(|| {
        if status == Status::SUCCESS {
            return Err(CallError::invalid_argument("status is DCL_STATUS_SUCCESS; it must be an error's"));
        }
        set_last_error(status, message.get("message")?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_last_error_rank() -> i32 {
    last_rank().and_then(|rank| i32::try_from(rank).ok()).unwrap_or(-1)
}

/// A static C string of a name that the Rust API has without a NUL.
fn c_name(name: &str) -> *const c_char {
    static NAMES: LazyLock<Vec<CString>> = LazyLock::new(|| {
        let types = DataType::ALL.into_iter().map(DataType::name);
        let operations = CollectiveOperation::ALL.into_iter().map(CollectiveOperation::name);
        let reductions = ReduceOperation::ALL.into_iter().map(ReduceOperation::name);
        let names = types.chain(operations).chain(reductions).chain([NO_REDUCTION]);
        names.map(|name| CString::new(name).expect("no name has a NUL")).collect()
    });
    NAMES.iter().find(|known| known.as_bytes() == name.as_bytes()).map_or(std::ptr::null(), |known| known.as_ptr())
}

/// The name of `DCL_REDUCE_NONE`.
const NO_REDUCTION: &str = "none";

#[unsafe(no_mangle)]
extern "C" fn dcl_data_type_name(data_type: i32) -> *const c_char {
    DataType::from_number(data_type).map_or(std::ptr::null(), |data_type| c_name(data_type.name()))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_data_type_size(data_type: i32) -> usize {
    DataType::from_number(data_type).map_or(0, DataType::byte_len)
}

#[unsafe(no_mangle)]
extern "C" fn dcl_collective_operation_name(operation: i32) -> *const c_char {
    CollectiveOperation::from_number(operation).map_or(std::ptr::null(), |operation| c_name(operation.name()))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_reduce_operation_name(reduce_op: i32) -> *const c_char {
    let name = |reduce_op: Option<_>| c_name(reduce_op.map_or(NO_REDUCTION, ReduceOperation::name));
    ReduceOperation::from_number(reduce_op).map_or(std::ptr::null(), name)
}

/// `dcl_log_callback_t`.
type LogCallback = extern "C" fn(severity: i32, message: *const c_char, user_data: *mut c_void);

/// The `user_data` of C's callback.
pub(super) struct UserData(pub(super) *mut c_void);

// SAFETY: the header requires `user_data` that any thread may pass to the callback.
unsafe impl Send for UserData {}
// SAFETY: the header requires that several threads may do so at once.
unsafe impl Sync for UserData {}

thread_local! {
    /// Whether this thread is inside the log callback.
    static IN_LOG_CALLBACK: Cell<bool> = const { Cell::new(false) };
    /// Whether this thread is inside the interrupt callback.
    static IN_INTERRUPT_CALLBACK: Cell<bool> = const { Cell::new(false) };
    /// How often the interrupt callback has ended a wait of this thread.
    static INTERRUPTIONS: Cell<u64> = const { Cell::new(0) };
}

/// How often the interrupt callback has ended a wait of this thread.
pub(super) fn interruption_count() -> u64 {
    INTERRUPTIONS.get()
}

#[unsafe(no_mangle)]
extern "C" fn dcl_set_log_callback(callback: Option<LogCallback>, user_data: *mut c_void, most_verbose: i32) -> Status {
    call(|| {
        if IN_LOG_CALLBACK.get() {
            return Err(CallError::new(Status::BUSY, "the log callback itself makes this call"));
        }
        let Some(callback) = callback else { return Ok(clear_log_handler()?) };
        let level = match most_verbose {
            1 => LogLevel::Error,
            2 => LogLevel::Warn,
            3 => LogLevel::Info,
            4 => LogLevel::Trace,
            _ => {
                let message = format!("most_verbose is {most_verbose}; it is 1 (errors) to 4 (verbose)");
                return Err(CallError::invalid_argument(message));
            }
        };
        let user_data = UserData(user_data);
        Ok(set_log_handler(level, move |level, text| {
            let UserData(user_data) = &user_data;
            // The message may contain text of a peer or of a file, and that may contain a NUL.
            let Ok(message) = CString::new(text.replace('\0', " ")) else { return };
            IN_LOG_CALLBACK.set(true);
            callback(severity(level), message.as_ptr(), *user_data);
            IN_LOG_CALLBACK.set(false);
        })?)
    })
}

/// `dcl_interrupt_callback_t`.
type InterruptCallback = extern "C" fn(user_data: *mut c_void) -> i32;

#[unsafe(no_mangle)]
extern "C" fn dcl_set_interrupt_callback(callback: Option<InterruptCallback>, user_data: *mut c_void) -> Status {
    call(|| {
        if IN_INTERRUPT_CALLBACK.get() {
            return Err(CallError::new(Status::BUSY, "the interrupt callback itself makes this call"));
        }
        let Some(callback) = callback else { return Ok(clear_interrupt_hook()?) };
        let user_data = UserData(user_data);
        Ok(set_interrupt_hook(move || {
            let UserData(user_data) = &user_data;
            IN_INTERRUPT_CALLBACK.set(true);
            let answer = callback(*user_data);
            IN_INTERRUPT_CALLBACK.set(false);
            if answer == 0 {
                return ControlFlow::Continue(());
            }
            INTERRUPTIONS.set(INTERRUPTIONS.get() + 1);
            ControlFlow::Break(())
        })?)
    })
}

/// `dcl_severity_t`.
fn severity(level: LogLevel) -> i32 {
    match level {
        LogLevel::Error => 1,
        LogLevel::Warn => 2,
        LogLevel::Info => 3,
        _ => 4,
    }
}

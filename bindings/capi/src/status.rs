//! Statuses, this thread's last error, and [`call`], which runs the body of each function.

use std::any::{Any, type_name};
use std::cell::{Cell, RefCell};
use std::error::Error as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dcl::stream::EnqueueError;
use dcl::{Error, ErrorKind};

/// `dcl_status_t`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status(i32);

impl Status {
    pub(super) const SUCCESS: Status = Status(0);
    pub(super) const INVALID_ARGUMENT: Status = Status(1);
    pub(super) const INVALID_HANDLE: Status = Status(2);
    pub(super) const INVALID_NETWORK: Status = Status(3);
    pub(super) const INVALID_PLAN: Status = Status(4);
    pub(super) const INVALID_SHAPE: Status = Status(5);
    pub(super) const INVALID_BUFFER: Status = Status(6);
    pub(super) const INVALID_COMMUNICATOR: Status = Status(7);
    pub(super) const NOT_READY: Status = Status(8);
    pub(super) const UNSUPPORTED: Status = Status(9);
    pub(super) const BUSY: Status = Status(10);
    pub(super) const BUFFER_TOO_SMALL: Status = Status(11);
    pub(super) const DISAGREEMENT: Status = Status(12);
    pub(super) const DEADLINE_EXCEEDED: Status = Status(13);
    pub(super) const PEER_LOST: Status = Status(14);
    pub(super) const ABORTED: Status = Status(15);
    pub(super) const PLUGIN: Status = Status(16);
    pub(super) const SYSTEM: Status = Status(17);
    pub(super) const INTERNAL: Status = Status(18);
    pub(super) const INTERRUPTED: Status = Status(19);
    pub(super) const PENDING: Status = Status(20);
    pub(super) const NOT_A_MEMBER: Status = Status(21);
    pub(super) const RUN_REFUSED: Status = Status(22);

    /// The status's name in the header.
    pub(super) fn name(self) -> &'static std::ffi::CStr {
        match self {
            Status::SUCCESS => c"DCL_STATUS_SUCCESS",
            Status::INVALID_ARGUMENT => c"DCL_STATUS_INVALID_ARGUMENT",
            Status::INVALID_HANDLE => c"DCL_STATUS_INVALID_HANDLE",
            Status::INVALID_NETWORK => c"DCL_STATUS_INVALID_NETWORK",
            Status::INVALID_PLAN => c"DCL_STATUS_INVALID_PLAN",
            Status::INVALID_SHAPE => c"DCL_STATUS_INVALID_SHAPE",
            Status::INVALID_BUFFER => c"DCL_STATUS_INVALID_BUFFER",
            Status::INVALID_COMMUNICATOR => c"DCL_STATUS_INVALID_COMMUNICATOR",
            Status::NOT_READY => c"DCL_STATUS_NOT_READY",
            Status::UNSUPPORTED => c"DCL_STATUS_UNSUPPORTED",
            Status::BUSY => c"DCL_STATUS_BUSY",
            Status::BUFFER_TOO_SMALL => c"DCL_STATUS_BUFFER_TOO_SMALL",
            Status::DISAGREEMENT => c"DCL_STATUS_DISAGREEMENT",
            Status::DEADLINE_EXCEEDED => c"DCL_STATUS_DEADLINE_EXCEEDED",
            Status::PEER_LOST => c"DCL_STATUS_PEER_LOST",
            Status::ABORTED => c"DCL_STATUS_ABORTED",
            Status::PLUGIN => c"DCL_STATUS_PLUGIN",
            Status::SYSTEM => c"DCL_STATUS_SYSTEM",
            Status::INTERNAL => c"DCL_STATUS_INTERNAL",
            Status::INTERRUPTED => c"DCL_STATUS_INTERRUPTED",
            Status::PENDING => c"DCL_STATUS_PENDING",
            Status::NOT_A_MEMBER => c"DCL_STATUS_NOT_A_MEMBER",
            Status::RUN_REFUSED => c"DCL_STATUS_RUN_REFUSED",
            Status(_) => c"unknown status",
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name().to_str() {
            Ok(name) if name.starts_with("DCL_") => f.write_str(name),
            _ => write!(f, "status {}", self.0),
        }
    }
}

impl From<ErrorKind> for Status {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::InvalidArgument => Status::INVALID_ARGUMENT,
            ErrorKind::InvalidNetwork => Status::INVALID_NETWORK,
            ErrorKind::InvalidPlan => Status::INVALID_PLAN,
            ErrorKind::InvalidShape => Status::INVALID_SHAPE,
            ErrorKind::InvalidBuffer => Status::INVALID_BUFFER,
            ErrorKind::InvalidCommunicator => Status::INVALID_COMMUNICATOR,
            ErrorKind::NotAMember => Status::NOT_A_MEMBER,
            ErrorKind::NotReady => Status::NOT_READY,
            ErrorKind::Unsupported => Status::UNSUPPORTED,
            ErrorKind::Disagreement => Status::DISAGREEMENT,
            ErrorKind::DeadlineExceeded => Status::DEADLINE_EXCEEDED,
            ErrorKind::PeerLost => Status::PEER_LOST,
            ErrorKind::Aborted => Status::ABORTED,
            ErrorKind::RunRefused => Status::RUN_REFUSED,
            ErrorKind::Interrupted => Status::INTERRUPTED,
            ErrorKind::Plugin => Status::PLUGIN,
            ErrorKind::System => Status::SYSTEM,
            _ => Status::INTERNAL,
        }
    }
}

/// Why a call fails: an error of the Rust API, or one that only the C ABI has.
#[derive(Clone, Debug)]
pub(super) struct CallError {
    status: Status,
    error: Error,
}

pub(super) type Result<T, E = CallError> = std::result::Result<T, E>;

impl CallError {
    /// An error with a status that no [`ErrorKind`] has. If it returns to Rust code, such as a
    /// plugin's, its kind is `InvalidArgument`.
    pub(super) fn new(status: Status, message: impl Into<String>) -> Self {
        CallError { status, error: Error::new(ErrorKind::InvalidArgument, message) }
    }

    pub(super) fn invalid_argument(message: impl Into<String>) -> Self {
        CallError::new(Status::INVALID_ARGUMENT, message)
    }
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        CallError { status: error.kind().into(), error }
    }
}

impl<T> From<EnqueueError<T>> for CallError {
    fn from(failed: EnqueueError<T>) -> Self {
        failed.error.into()
    }
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

/// For callbacks, which return errors to the Rust API.
impl From<CallError> for Error {
    fn from(error: CallError) -> Self {
        error.error
    }
}

/// What `dcl_last_error_message` and `dcl_last_error_rank` return.
struct LastError {
    status: Status,
    message: String,
    rank: Option<u32>,
}

thread_local! {
    static LAST_ERROR: RefCell<Option<LastError>> = const { RefCell::new(None) };
    static FAILURES: Cell<u64> = const { Cell::new(0) };
}

/// How often this thread's last error was set.
pub(super) fn failure_count() -> u64 {
    FAILURES.get()
}

/// Sets this thread's last error.
fn store_last_error(last: LastError) {
    FAILURES.set(FAILURES.get() + 1);
    // If the thread is ending, its last error is gone already.
    let _ = LAST_ERROR.try_with(|slot| slot.replace(Some(last)));
}

/// Sets this thread's last error to a message of the caller.
pub(super) fn set_last_error(status: Status, message: &str) {
    store_last_error(LastError { status, message: message.to_owned(), rank: None });
}

/// Runs the body of a function of the header. An error or a panic becomes a status and this
/// thread's last error.
pub(super) fn call<F: FnOnce() -> Result<()>>(body: F) -> Status {
    let error = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return Status::SUCCESS,
        Ok(Err(error)) => error,
        Err(panic) => {
            let text = panic_message(panic.as_ref()).to_owned();
            // Dropping it may panic too.
            std::mem::forget(panic);
            CallError::new(Status::INTERNAL, format!("a bug in this library, please report it: {text}"))
        }
    };
    let CallError { status, error } = error;
    // A message that names no object gets the function's name.
    let error = error.about(|| function_name::<F>().to_owned());
    store_last_error(LastError { status, message: with_causes(&error), rank: error.rank().map(|rank| rank.0) });
    status
}

/// The message of a panic, if it is text.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// Locks a mutex. A panic cannot leave the data in these mutexes inconsistent.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The message and those of all causes, because C has no other access to the causes.
fn with_causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// The name of the function that contains a closure. The closure's type name is
/// `distcollective::network::dcl_network_new::{{closure}}`, for example.
fn function_name<F>() -> &'static str {
    type_name::<F>().rsplit("::").find(|part| part.starts_with("dcl_")).unwrap_or("distcollective")
}

/// Passes the last message to `copy`, and returns its length.
pub(super) fn last_message(copy: impl FnOnce(&[u8])) -> usize {
    let length = LAST_ERROR.try_with(|last| match &*last.borrow() {
        Some(last) => {
            copy(last.message.as_bytes());
            last.message.len()
        }
        None => {
            copy(&[]);
            0
        }
    });
    length.unwrap_or(0)
}

pub(super) fn last_status() -> Option<Status> {
    LAST_ERROR.try_with(|last| last.borrow().as_ref().map(|last| last.status)).ok().flatten()
}

pub(super) fn last_rank() -> Option<u32> {
    LAST_ERROR.try_with(|last| last.borrow().as_ref().and_then(|last| last.rank)).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy_out::fitting;

    fn message() -> String {
        let mut text = String::new();
        last_message(|bytes| text = String::from_utf8_lossy(bytes).into_owned());
        text
    }

    fn dcl_that_panics() -> Status {
        call(|| panic!("on purpose"))
    }

    #[test]
    fn every_kind_of_error_has_a_status() {
        for kind in ErrorKind::ALL {
            assert_ne!(Status::from(kind), Status::INTERNAL, "{kind:?}");
        }
    }

    #[test]
    fn a_panic_is_a_status() {
        assert_eq!(dcl_that_panics(), Status::INTERNAL);
        assert_eq!(message(), "dcl_that_panics: a bug in this library, please report it: on purpose");
        assert_eq!(fitting(&message(), 15), "dcl_that_panics");
    }
}

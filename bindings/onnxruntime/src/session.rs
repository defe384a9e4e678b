//! Which communicator a session has.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::ffi::CStr;
use std::hash::{BuildHasher, Hasher};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use distcollective::{Communicator, Environment, Error, ErrorKind, Result};

/// The session config entry that names a session's communicator. It counts when the library is
/// registered with the options: one that is set later is ignored.
pub const CONFIG_KEY: &str = "distcollective.communicator";

/// [`CONFIG_KEY`], for ONNX Runtime.
pub(crate) const CONFIG_KEY_TEXT: &CStr = c"distcollective.communicator";

/// The communicators that sessions may have, by number.
static COMMUNICATORS: Mutex<Table> = Mutex::new(Table { last: 0, entries: BTreeMap::new() });

/// Tells the session values of this copy of the library from those of another one in the process:
/// the Python package and the shared library have tables of their own.
static COPY: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish());

/// The environment that a session has initialized. It lives as long as the process.
static OWN_ENVIRONMENT: Mutex<Option<Environment>> = Mutex::new(None);

/// A number that no other copy of the library has.
pub(crate) fn copy_number() -> u64 {
    *COPY
}

struct Table {
    last: u64,
    entries: BTreeMap<u64, Communicator>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A communicator that sessions can be made with. Sessions that are made while this lives keep the
/// communicator.
///
/// ```
/// use distcollective::Communicator;
/// use distcollective_onnxruntime::{CONFIG_KEY, SessionCommunicator};
///
/// Communicator::spawn(2, |communicator| {
///     let for_session = SessionCommunicator::new(&communicator);
///     // In ONNX Runtime: session_options.add_session_config_entry(CONFIG_KEY, value)
///     println!("{CONFIG_KEY} = {}", for_session.value());
///     Ok(())
/// })?;
/// # Ok::<(), distcollective::Error>(())
/// ```
#[derive(Debug)]
pub struct SessionCommunicator {
    number: u64,
}

impl SessionCommunicator {
    /// Lets sessions have a communicator.
    pub fn new(communicator: &Communicator) -> Self {
        let mut table = lock(&COMMUNICATORS);
        table.last += 1;
        let number = table.last;
        table.entries.insert(number, communicator.clone());
        SessionCommunicator { number }
    }

    /// The value of the session config entry [`CONFIG_KEY`].
    pub fn value(&self) -> String {
        format!("{:016x}-{}", *COPY, self.number)
    }
}

impl Drop for SessionCommunicator {
    fn drop(&mut self) {
        let removed = lock(&COMMUNICATORS).entries.remove(&self.number);
        // The last handle of a communicator may wait; the table is not locked then.
        drop(removed);
    }
}

/// The communicator of a session whose config entry has this value.
pub(crate) fn communicator_of(value: Option<&str>) -> Result<Communicator> {
    match value {
        Some(value) => named(value),
        None => of_process(),
    }
}

/// The same communicator, if it is there already.
pub(crate) fn communicator_now(value: Option<&str>) -> Option<Communicator> {
    value.map_or_else(Environment::current_communicator, |value| named(value).ok())
}

fn named(value: &str) -> Result<Communicator> {
    let parts = value.split_once('-');
    let parts = parts.and_then(|(copy, number)| Some((u64::from_str_radix(copy, 16).ok()?, number.parse().ok()?)));
    let problem = match parts {
        None => "which is no communicator's session value",
        Some((copy, _)) if copy != *COPY => {
            "which a communicator of another copy of the library has; register the library that made the communicator: \
             libdistcollective.so for C and C++, distcollective.onnxruntime_library() in Python"
        }
        Some((_, number)) => match lock(&COMMUNICATORS).entries.get(&number) {
            Some(communicator) => return Ok(communicator.clone()),
            None => "whose communicator is gone",
        },
    };
    let text = format!("the session config entry {CONFIG_KEY} is {value:?}, {problem}");
    Err(Error::new(ErrorKind::InvalidArgument, text))
}

/// The communicator of the process's environment.
fn of_process() -> Result<Communicator> {
    let mut own = lock(&OWN_ENVIRONMENT);
    if let Some(communicator) = Environment::current_communicator() {
        return Ok(communicator);
    }
    let environment = Environment::builder().called_at("an ONNX Runtime session").initialize().map_err(|error| {
        let text = format!(
            "the session has no communicator: there is no environment, and the launcher's variables do not make one: \
             {error}"
        );
        Error::new(error.kind(), text).with_source(error)
    })?;
    let communicator = environment.communicator().clone();
    *own = Some(environment);
    Ok(communicator)
}

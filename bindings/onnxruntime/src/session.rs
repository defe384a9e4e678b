//! Which communicator a session has.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use distcollective::{Communicator, Environment, Error, ErrorKind, Result};

/// The session config entry that names a session's communicator. It counts when the library is
/// registered with the options: one that is set later is ignored.
pub const CONFIG_KEY: &str = "distcollective.communicator";

/// [`CONFIG_KEY`], for ONNX Runtime.
pub(crate) const CONFIG_KEY_TEXT: &CStr = c"distcollective.communicator";

/// The communicators that sessions may have, by number.
static COMMUNICATORS: Mutex<Table> = Mutex::new(Table { last: 0, entries: BTreeMap::new() });

/// The environment that a session has initialized. It lives as long as the process.
static OWN_ENVIRONMENT: Mutex<Option<Environment>> = Mutex::new(None);

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
        self.number.to_string()
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

fn named(value: &str) -> Result<Communicator> {
    let number = value.parse().ok();
    number.and_then(|number| lock(&COMMUNICATORS).entries.get(&number).cloned()).ok_or_else(|| {
        let text = format!(
            "the session config entry {CONFIG_KEY} is {value:?}, which is no communicator's session value, or that \
             communicator is gone"
        );
        Error::new(ErrorKind::InvalidArgument, text)
    })
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

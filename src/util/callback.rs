//! A function of the program that the library calls: the handler of the log, the interrupt hook.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock};
use std::thread::LocalKey;

use crate::error::{Result, bail};
use crate::util::fork::ProcessGuard;
use crate::util::panic_message;

/// The place of such a function, which the whole process has.
pub(crate) struct Callback<F: 'static> {
    /// What errors call it.
    what: &'static str,
    place: RwLock<Option<F>>,
    /// Whether there is a function, so that a look at an empty place takes no lock.
    is_set: AtomicBool,
    /// The process that has the function. A forked child has a copy of the lock, which a thread
    /// that does not exist there may hold.
    process: OnceLock<ProcessGuard>,
    /// Whether this thread is inside the function.
    is_inside: &'static LocalKey<Cell<bool>>,
}

impl<F> Callback<F> {
    pub(crate) const fn new(what: &'static str, is_inside: &'static LocalKey<Cell<bool>>) -> Self {
        Callback { what, place: RwLock::new(None), is_set: AtomicBool::new(false), process: OnceLock::new(), is_inside }
    }

    /// Whether there is a function. Takes no lock.
    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// Whether this thread is inside the function.
    pub(crate) fn is_inside(&self) -> bool {
        self.is_inside.get()
    }

    /// Sets or removes the function. When this returns, no thread is inside the one before.
    ///
    /// # Errors
    ///
    /// The function itself calls this; or this process was forked from one that has a function.
    pub(crate) fn replace(&self, function: Option<F>) -> Result<()> {
        if self.is_inside() {
            bail!(InvalidArgument, "{} cannot replace itself", self.what);
        }
        self.process.get_or_init(ProcessGuard::current).check(self.what)?;
        // Each call of the function holds the lock for reading.
        let mut place = self.place.write().unwrap_or_else(PoisonError::into_inner);
        self.is_set.store(function.is_some(), Ordering::Relaxed);
        let old = std::mem::replace(&mut *place, function);
        drop(place);
        // What the closure owns may log when it is dropped.
        drop(old);
        Ok(())
    }

    /// Lets `call` call the function. Gives `None` if there is none, if this thread is inside it,
    /// or in a forked child; and the text of a panic as an error.
    pub(crate) fn call<T>(&self, call: impl FnOnce(&F) -> T) -> Option<Result<T, String>> {
        if self.is_inside() || !self.process.get().is_some_and(ProcessGuard::is_current) {
            return None;
        }
        let place = self.place.read().unwrap_or_else(PoisonError::into_inner);
        let function = place.as_ref()?;
        self.is_inside.set(true);
        // A panic here would end a call of the caller's or a thread of the library's.
        let called = catch_unwind(AssertUnwindSafe(|| call(function)));
        self.is_inside.set(false);
        Some(called.map_err(|panic| {
            let text = panic_message(panic.as_ref()).to_owned();
            // Its drop may panic too.
            std::mem::forget(panic);
            text
        }))
    }
}

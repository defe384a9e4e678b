//! A thread that looks again and again at what wakes no thread.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::Duration;

use crate::util::{interrupt, lock};

/// What the thread calls. It returns whether it has to be called again.
type Look = Box<dyn FnMut() -> bool + Send>;

/// A thread that lives as long as there is something to look at.
pub(crate) struct Poller {
    name: &'static str,
    /// How long the thread sleeps between two looks.
    interval: Duration,
    /// What the thread has not taken yet; `None` while there is no thread.
    added: Mutex<Option<Vec<Look>>>,
}

impl Poller {
    pub(crate) const fn new(name: &'static str, interval: Duration) -> Self {
        Poller { name, interval, added: Mutex::new(None) }
    }

    /// Has the thread call `look` until that returns false or panics.
    ///
    /// # Errors
    ///
    /// The operating system gives no thread.
    pub(crate) fn add(&'static self, look: impl FnMut() -> bool + Send + 'static) -> io::Result<()> {
        let mut added = lock(&self.added);
        if added.is_none() {
            // It waits for the lock.
            std::thread::Builder::new().name(self.name.to_owned()).spawn(|| self.run())?;
        }
        added.get_or_insert_default().push(Box::new(look));
        Ok(())
    }

    fn run(&self) {
        let _mask = interrupt::mask();
        let mut looks = Vec::new();
        loop {
            {
                let mut added = lock(&self.added);
                looks.extend(added.iter_mut().flat_map(|added| added.drain(..)));
                if looks.is_empty() {
                    *added = None;
                    return;
                }
            }
            looks.retain_mut(|look| catch_unwind(AssertUnwindSafe(look)).unwrap_or(false));
            std::thread::sleep(self.interval);
        }
    }
}

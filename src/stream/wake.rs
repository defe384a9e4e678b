//! Wakes tasks of `async` programs that wait for work on a GPU. Nothing there calls back in every
//! case, so a thread asks. It lives as long as there is something to ask.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Weak};
use std::task::Waker;

use crate::util::wait::POLL;
use crate::util::{interrupt, lock};

/// The task that waits. The thread takes the waker when the work has ended, and forgets work whose
/// slot is dropped.
pub(super) type WakeSlot = Arc<Mutex<Option<Waker>>>;

struct Watched {
    has_ended: Box<dyn Fn() -> bool + Send>,
    slot: Weak<Mutex<Option<Waker>>>,
}

#[derive(Default)]
struct Watching {
    list: Vec<Watched>,
    is_running: bool,
}

static WATCHING: Mutex<Watching> = Mutex::new(Watching { list: Vec::new(), is_running: false });

/// A slot whose waker is woken when `has_ended` is true, which then stays true.
///
/// # Errors
///
/// The operating system gives no thread.
pub(super) fn when(has_ended: impl Fn() -> bool + Send + 'static) -> io::Result<WakeSlot> {
    let slot = WakeSlot::default();
    let mut watching = lock(&WATCHING);
    if !watching.is_running {
        // It waits for the lock.
        std::thread::Builder::new().name("dcl-wake".to_owned()).spawn(watch)?;
        watching.is_running = true;
    }
    watching.list.push(Watched { has_ended: Box::new(has_ended), slot: Arc::downgrade(&slot) });
    Ok(slot)
}

/// What the thread does.
fn watch() {
    let _mask = interrupt::mask();
    let mut list = Vec::new();
    loop {
        {
            let mut watching = lock(&WATCHING);
            list.append(&mut watching.list);
            if list.is_empty() {
                watching.is_running = false;
                return;
            }
        }
        list.retain(|Watched { has_ended, slot }| {
            let Some(slot) = slot.upgrade() else { return false };
            // A question or a waker that panics concerns its own task only.
            let has_ended = catch_unwind(AssertUnwindSafe(has_ended)).unwrap_or(true);
            if has_ended {
                let waker = lock(&slot).take();
                let _ = catch_unwind(AssertUnwindSafe(|| waker.into_iter().for_each(Waker::wake)));
            }
            !has_ended
        });
        std::thread::sleep(POLL);
    }
}

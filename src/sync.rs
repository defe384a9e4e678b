//! The atomics of the host protocol, sleeping on one, and the locks of the issue order. Under
//! `--cfg loom` they are those of a model checker, which tries every order in which threads can
//! interleave (`comm/host/protocol/model.rs`, `issue_order/model.rs`).

use std::time::Duration;

/// A number that one thread stores and others load. A thread that has loaded it sees what the
/// other one wrote before.
#[derive(Default)]
#[repr(transparent)]
pub(crate) struct Published(AtomicU64);

impl Published {
    #[inline]
    pub(crate) fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn store(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }
}

#[cfg(loom)]
use ::loom as library;
#[cfg(not(loom))]
use ::std as library;

pub(crate) use library::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, AtomicU64, Ordering, fence},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread::yield_now,
    thread_local,
};

#[cfg(not(loom))]
pub(crate) use real::{Futex, Tracked};

#[cfg(loom)]
pub(crate) use model::{Futex, Tracked};

#[cfg(not(loom))]
mod real {
    use rustix::thread::futex;
    use rustix::time::Timespec;

    use super::{AtomicU32, Duration, Ordering};

    /// A counter of wake-ups to sleep on.
    #[derive(Default)]
    #[repr(transparent)]
    pub(crate) struct Futex(AtomicU32);

    impl Futex {
        pub(crate) fn load(&self) -> u32 {
            self.0.load(Ordering::Acquire)
        }

        /// Sleeps while the counter is `expected`, until [`wake_all`](Self::wake_all) or `timeout`.
        /// It may also return without a reason, so that the caller checks its condition again.
        pub(crate) fn wait(&self, expected: u32, timeout: Duration) {
            // A time that the kernel cannot express is endless.
            let timeout = Timespec::try_from(timeout).ok();
            // After every error (the counter changed, the timeout is over, a signal came) the
            // caller checks its condition.
            let _ = futex::wait(&self.0, futex::Flags::empty(), expected, timeout.as_ref());
        }

        /// Increments the counter, and wakes all threads that sleep on it.
        pub(crate) fn wake_all(&self) {
            self.0.fetch_add(1, Ordering::Release);
            // It cannot fail: the address is a live reference.
            let _ = futex::wake(&self.0, futex::Flags::empty(), i32::MAX as u32);
        }
    }

    /// Stands for plain memory that one rank writes and others read later. The model checks that no
    /// rank reads it while another one writes; here it does nothing.
    #[derive(Default)]
    pub(crate) struct Tracked(());

    impl Tracked {
        #[inline]
        pub(crate) fn write<T>(&self, access: impl FnOnce() -> T) -> T {
            access()
        }

        #[inline]
        pub(crate) fn read<T>(&self, access: impl FnOnce() -> T) -> T {
            access()
        }
    }
}

#[cfg(loom)]
mod model {
    use loom::cell::UnsafeCell;
    use loom::sync::{Condvar, Mutex};

    use super::Duration;

    /// Like the kernel's futex it compares the counter and falls asleep in one step. It wakes only
    /// by [`wake_all`](Self::wake_all), so that the model reports a missing wake-up as a deadlock.
    #[derive(Default)]
    pub(crate) struct Futex {
        counter: Mutex<u32>,
        woken: Condvar,
    }

    impl Futex {
        pub(crate) fn load(&self) -> u32 {
            *self.counter.lock().expect("no panic")
        }

        pub(crate) fn wait(&self, expected: u32, _timeout: Duration) {
            let counter = self.counter.lock().expect("no panic");
            if *counter == expected {
                drop(self.woken.wait(counter).expect("no panic"));
            }
        }

        pub(crate) fn wake_all(&self) {
            *self.counter.lock().expect("no panic") += 1;
            self.woken.notify_all();
        }
    }

    #[derive(Default)]
    pub(crate) struct Tracked(UnsafeCell<()>);

    // SAFETY: the cell is empty. It only shows the checker who accesses when.
    unsafe impl Sync for Tracked {}

    impl Tracked {
        pub(crate) fn write<T>(&self, access: impl FnOnce() -> T) -> T {
            self.0.with_mut(|_| access())
        }

        pub(crate) fn read<T>(&self, access: impl FnOnce() -> T) -> T {
            self.0.with(|_| access())
        }
    }
}

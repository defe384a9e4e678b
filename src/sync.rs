//! The atomics of the host protocol, sleeping on one, and the locks of the issue order. Under
//! `--cfg loom` a model checker stands in for them, which tries every order in which threads can
//! interleave (`comm/host/protocol/model.rs`, `issue_order.rs`).

use std::time::Duration;

#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, AtomicU64, Ordering, fence},
    sync::{Condvar, Mutex, MutexGuard},
    thread::yield_now,
    thread_local,
};

#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, AtomicU64, Ordering, fence},
    sync::{Condvar, Mutex, MutexGuard},
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

    /// A counter to sleep on.
    #[derive(Default)]
    #[repr(transparent)]
    pub(crate) struct Futex(AtomicU32);

    impl Futex {
        pub(crate) fn load(&self) -> u32 {
            self.0.load(Ordering::Acquire)
        }

        /// Sleeps while the counter is `expected`, until [`ring`](Self::ring), `timeout` or for no reason at all. The caller
        /// looks again.
        pub(crate) fn sleep(&self, expected: u32, timeout: Duration) {
            let timeout = Timespec {
                tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: timeout.subsec_nanos().into(),
            };
            // Every error (the counter changed, the time is over, a signal came) means: look again.
            let _ = futex::wait(&self.0, futex::Flags::empty(), expected, Some(&timeout));
        }

        /// Counts on, and wakes all who sleep.
        pub(crate) fn ring(&self) {
            self.0.fetch_add(1, Ordering::Release);
            // The counter is a live reference, so there is no error to have.
            let _ = futex::wake(&self.0, futex::Flags::empty(), i32::MAX as u32);
        }
    }

    /// Plain memory that is written by one rank and then read by others. The model checks that nobody reads while somebody
    /// writes; here there is nothing to it.
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

    /// As the kernel does it: looking at the counter and falling asleep are one step. Nobody wakes without a ring, so that a
    /// ring which is forgotten shows as a deadlock.
    #[derive(Default)]
    pub(crate) struct Futex {
        counter: Mutex<u32>,
        rung: Condvar,
    }

    impl Futex {
        pub(crate) fn load(&self) -> u32 {
            *self.counter.lock().expect("no panic")
        }

        pub(crate) fn sleep(&self, expected: u32, _timeout: Duration) {
            let counter = self.counter.lock().expect("no panic");
            if *counter == expected {
                drop(self.rung.wait(counter).expect("no panic"));
            }
        }

        pub(crate) fn ring(&self) {
            *self.counter.lock().expect("no panic") += 1;
            self.rung.notify_all();
        }
    }

    #[derive(Default)]
    pub(crate) struct Tracked(UnsafeCell<()>);

    // SAFETY: there is nothing in the cell; it only lets the checker see who accesses when.
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

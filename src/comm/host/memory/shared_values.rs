//! Values at one place in shared memory.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{Shareable, SharedMemory};

/// Values in shared memory, whose place is checked once. The memory stays mapped as long as this.
pub(crate) struct SharedValues<T> {
    values: NonNull<[T]>,
    _memory: Arc<SharedMemory>,
}

// SAFETY: it is a reference to values that threads may share, and keeps them itself.
unsafe impl<T: Sync> Send for SharedValues<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for SharedValues<T> {}

impl<T: Shareable> SharedValues<T> {
    /// `count` values at an offset.
    ///
    /// # Panics
    ///
    /// If they are not within the memory, or not aligned.
    pub(crate) fn new(memory: &Arc<SharedMemory>, offset: usize, count: usize) -> Self {
        SharedValues { values: NonNull::from(memory.slice(offset, count)), _memory: Arc::clone(memory) }
    }
}

impl<T> Deref for SharedValues<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `new` has borrowed the values from the memory, which lives as long as this.
        unsafe { self.values.as_ref() }
    }
}

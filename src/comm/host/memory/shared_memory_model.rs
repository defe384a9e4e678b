//! The model checker's stand-in for `shared_memory.rs`. loom's atomics cannot be made from zeros,
//! so each value is constructed when it is first used.

use std::any::Any;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use crate::error::{Result, bail};
use crate::sync::Tracked;
use crate::util::lock;

pub(crate) struct SharedMemory {
    len: usize,
    values: Mutex<BTreeMap<usize, Box<dyn Any + Send>>>,
    bytes: Mutex<BTreeMap<usize, Box<[u64]>>>,
    /// A test reads this while it uses the memory. The drop unmaps the memory, and writes this.
    mapped: Arc<Tracked>,
}

/// As in `shared_memory.rs`.
///
/// # Safety
///
/// None here.
pub(crate) unsafe trait Shareable: Default + Send + 'static {}

impl SharedMemory {
    pub(crate) fn for_threads(len: usize) -> Result<Self> {
        Ok(SharedMemory { len, values: Mutex::default(), bytes: Mutex::default(), mapped: Arc::default() })
    }

    pub(crate) fn mapped(&self) -> Arc<Tracked> {
        Arc::clone(&self.mapped)
    }

    pub(super) fn map(_: &OwnedFd, _: u64, _: usize, _: Option<Box<dyn Send + Sync>>) -> Result<Self> {
        bail!(Unsupported, "the model has no other processes")
    }

    pub(crate) fn populate(&self, _: usize, _: usize, _: &dyn Fn() -> Result<()>) -> Result<()> {
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn give_back(&self, _: *mut u8, _: usize) {}

    pub(crate) fn protect(&self) -> Result<()> {
        Ok(())
    }

    pub(crate) unsafe fn replace_by_copy(_: *mut u8, _: usize) {}

    pub(crate) fn slice<T: Shareable>(&self, offset: usize, count: usize) -> &[T] {
        let mut values = lock(&self.values);
        let values =
            values.entry(offset).or_insert_with(|| Box::new((0..count).map(|_| T::default()).collect::<Vec<T>>()));
        let values: *const Vec<T> = values.downcast_ref::<Vec<T>>().expect("one type at an offset");
        // SAFETY: the vector is never changed, and lives as long as `self`.
        unsafe { &*values }
    }

    pub(crate) fn bytes(&self, offset: usize, len: usize) -> *mut u8 {
        let mut bytes = lock(&self.bytes);
        bytes.entry(offset).or_insert_with(|| vec![0; len.div_ceil(8)].into()).as_mut_ptr().cast()
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        self.mapped.write(|| ());
    }
}

//! Handles, and the table of the objects behind them.
//!
//! A handle is a number that C sees as a pointer. It consists of an entry's index in the table and
//! the entry's generation, so the table detects a freed handle although its entry is used again. A
//! process can have several copies of this library: the shared library and the Python package. Each
//! mixes a random number into its handles, so a handle of another copy is no entry here.

use std::any::Any;
use std::collections::hash_map::RandomState;
use std::ffi::c_void;
use std::hash::{BuildHasher, Hasher};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use slotmap::{DefaultKey, Key, KeyData, SlotMap};

use super::status::{CallError, Result, Status};

/// A type of object that has handles.
pub(super) trait Object: Send + Sync + 'static {
    /// The name of the handle's type in the header.
    const TYPE: &'static str;
}

/// An entry of the table.
struct Entry {
    object: Arc<dyn Any + Send + Sync>,
    type_name: &'static str,
}

/// A part of the table. Each has cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Shard {
    entries: RwLock<SlotMap<DefaultKey, Entry>>,
}

/// The table. It has shards so that rank threads of one process do not wait for each other when
/// they look up their objects.
static TABLE: LazyLock<[Shard; SHARDS]> = LazyLock::new(Default::default);

/// What this copy of the library mixes into handles. The lowest bit of a generation is always set,
/// so without that bit this makes no handle NULL.
static COPY: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish() & !(1 << 32));

const SHARDS: usize = 16;

/// Counts new objects, which go to the shards in turn.
static NEXT_SHARD: AtomicUsize = AtomicUsize::new(0);

/// The lowest bit of the shard's number in a handle. A key is a generation above 32 bits of an
/// index, and no shard has 2^28 entries, so these bits of the index are free.
const SHARD_SHIFT: u32 = 28;

/// `dcl_..._t *`: a handle of a `T`. It is never an address.
#[repr(transparent)]
pub(super) struct Handle<T> {
    number: *mut c_void,
    object: PhantomData<fn() -> T>,
}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T> PartialEq for Handle<T> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

// SAFETY: a handle is a number; nothing dereferences it.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Handle<T> {
    /// The NULL handle.
    pub(super) const NULL: Self = Handle { number: std::ptr::null_mut(), object: PhantomData };

    pub(super) fn is_null(self) -> bool {
        self.number.is_null()
    }
}

impl<T: Object> Handle<T> {
    /// Adds an object to the table.
    pub(super) fn new(object: T) -> Self {
        let entry = Entry { object: Arc::new(object), type_name: T::TYPE };
        let shard = NEXT_SHARD.fetch_add(1, Ordering::Relaxed) % SHARDS;
        let key = TABLE[shard].entries.write().unwrap_or_else(PoisonError::into_inner).insert(entry);
        let number = key.data().as_ffi() | (shard as u64) << SHARD_SHIFT;
        Handle { number: std::ptr::without_provenance_mut((number ^ *COPY) as usize), object: PhantomData }
    }

    /// The shard and the key in it. If the number is not a key, the key is null, and no entry has
    /// that.
    fn locate(self) -> (&'static Shard, DefaultKey) {
        let number = self.number.addr() as u64 ^ *COPY;
        let shard = (number >> SHARD_SHIFT) as usize % SHARDS;
        let number = number & !((SHARDS as u64 - 1) << SHARD_SHIFT);
        let key = DefaultKey::from(KeyData::from_ffi(number));
        // `from_ffi` changes a number that is not a key.
        let key = if key.data().as_ffi() == number { key } else { DefaultKey::null() };
        (&TABLE[shard], key)
    }

    /// Returns the object. It lives until the caller drops it, even if another thread frees the
    /// handle.
    pub(super) fn get(self) -> Result<Arc<T>> {
        let (shard, key) = self.locate();
        match shard.entries.read().unwrap_or_else(PoisonError::into_inner).get(key) {
            Some(entry) => Arc::downcast(Arc::clone(&entry.object)).map_err(|_| self.is_a(entry.type_name)),
            None => Err(self.is_nothing()),
        }
    }

    /// Removes the object from the table and returns it.
    pub(super) fn take(self) -> Result<Arc<T>> {
        let (shard, key) = self.locate();
        let mut entries = shard.entries.write().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = entries.get(key) else { return Err(self.is_nothing()) };
        let object = Arc::downcast(Arc::clone(&entry.object)).map_err(|_| self.is_a(entry.type_name))?;
        // The caller drops the object, after this lock is released: a drop may call the library
        // again.
        entries.remove(key);
        Ok(object)
    }

    /// Frees a handle. NULL is allowed.
    pub(super) fn free(self) -> Result<()> {
        if !self.is_null() {
            drop(self.take()?);
        }
        Ok(())
    }

    fn is_nothing(self) -> CallError {
        let what = match self.is_null() {
            true => format!("the {} is NULL", T::TYPE),
            false => format!(
                "{:p} is not a {}, or it was freed, or another copy of the library made it",
                self.number,
                T::TYPE
            ),
        };
        CallError::new(Status::INVALID_HANDLE, what)
    }

    fn is_a(self, other: &str) -> CallError {
        CallError::new(Status::INVALID_HANDLE, format!("{:p} is a {other}, not a {}", self.number, T::TYPE))
    }
}

/// A value that several [shared] calls may read, or one [exclusive] call may change. No call waits:
/// if the value is in use, the call returns `DCL_STATUS_BUSY`. So a callback cannot wait for the
/// call that runs it. `O` is the object that the error names.
pub(super) struct TryRwLock<T, O> {
    value: RwLock<T>,
    behind: PhantomData<fn() -> O>,
}

impl<T: Default, O> Default for TryRwLock<T, O> {
    fn default() -> Self {
        TryRwLock::new(T::default())
    }
}

impl<T, O> TryRwLock<T, O> {
    pub(super) fn new(value: T) -> Self {
        TryRwLock { value: RwLock::new(value), behind: PhantomData }
    }
}

impl<T, O: Object> TryRwLock<T, O> {
    /// The value, for a [shared] call.
    pub(super) fn read(&self) -> Result<RwLockReadGuard<'_, T>> {
        match self.value.try_read() {
            Ok(value) => Ok(value),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(busy::<O>()),
        }
    }

    /// The value, for an [exclusive] call.
    pub(super) fn write(&self) -> Result<RwLockWriteGuard<'_, T>> {
        match self.value.try_write() {
            Ok(value) => Ok(value),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(busy::<O>()),
        }
    }
}

fn busy<O: Object>() -> CallError {
    CallError::new(Status::BUSY, format!("another call uses this {}, and one of the two needs it exclusively", O::TYPE))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Thing(usize);

    impl Object for Thing {
        const TYPE: &'static str = "dcl_thing_t";
    }

    struct Other;

    impl Object for Other {
        const TYPE: &'static str = "dcl_other_t";
    }

    fn number<T>(handle: Handle<T>) -> usize {
        handle.number.addr()
    }

    fn from<T>(number: usize) -> Handle<T> {
        Handle { number: std::ptr::without_provenance_mut(number), object: PhantomData }
    }

    /// 300 objects use every shard, and the later rounds use freed entries again.
    #[test]
    fn handles_name_one_object_until_they_are_freed() {
        let mut freed = Vec::new();
        for round in 0..3 {
            let handles: Vec<Handle<Thing>> = (0..100).map(|i| Handle::new(Thing(round * 100 + i))).collect();
            for (i, handle) in handles.iter().enumerate() {
                assert_eq!(handle.get().expect("an object").0, round * 100 + i);
                assert!(from::<Other>(number(*handle)).get().is_err(), "another type");
            }
            for handle in &handles {
                let object = handle.get().expect("an object");
                assert!(handle.free().is_ok());
                assert!(handle.free().is_err(), "freed twice");
                drop(object);
            }
            freed.extend(handles);
        }
        assert!(freed.iter().all(|handle| handle.get().is_err()), "used after free");
    }

    #[test]
    fn other_numbers_name_nothing() {
        // No other test has an object of this type in the table.
        struct Alone;
        impl Object for Alone {
            const TYPE: &'static str = "dcl_alone_t";
        }
        let handle = Handle::new(Alone);
        let right = number(handle);
        let other = [0, 1, usize::MAX, usize::MAX - 1, &raw const right as usize];
        for wrong in (0..64).map(|bit| right ^ 1 << bit).chain(other) {
            assert!(from::<Alone>(wrong).get().is_err(), "{wrong:#x} for {right:#x}");
        }
        assert!(handle.free().is_ok());
    }
}

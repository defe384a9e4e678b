//! The table behind the handles. A handle is a number in the clothes of a pointer: a place in the table, and how often that place has
//! been used, so that one that was freed is known for what it is.

use std::any::Any;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use slotmap::{DefaultKey, Key, KeyData, SlotMap};

use super::status::{CallError, Result, Status};

/// What handles are names of.
pub(super) trait Object: Send + Sync + 'static {
    /// The name of the handle's type in the header.
    const TYPE: &'static str;
}

/// What the table knows of an object.
struct Entry {
    object: Arc<dyn Any + Send + Sync>,
    type_name: &'static str,
}

/// A part of the table, on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Shard {
    entries: RwLock<SlotMap<DefaultKey, Entry>>,
}

/// The table is in parts, so that ranks on threads of one process do not wait for each other to look up what is theirs.
static TABLE: LazyLock<[Shard; SHARDS]> = LazyLock::new(Default::default);

const SHARDS: usize = 16;

/// The part of the object that is made next: they take turns.
static NEXT_SHARD: AtomicUsize = AtomicUsize::new(0);

/// Where a key, which is a version above 32 bits of an index, has the number of its shard. No shard has so many entries.
const SHARD_SHIFT: u32 = 28;

/// `dcl_..._t *`: the name of an object. Never an address.
#[repr(transparent)]
pub(super) struct Handle<T> {
    name: *mut c_void,
    names: PhantomData<fn() -> T>,
}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T> PartialEq for Handle<T> {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

// SAFETY: a number.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: a number.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Handle<T> {
    /// The handle that is none.
    pub(super) const NULL: Self = Handle { name: std::ptr::null_mut(), names: PhantomData };

    pub(super) fn is_null(self) -> bool {
        self.name.is_null()
    }
}

impl<T: Object> Handle<T> {
    /// Puts an object into the table.
    pub(super) fn new(object: T) -> Self {
        let entry = Entry { object: Arc::new(object), type_name: T::TYPE };
        let shard = NEXT_SHARD.fetch_add(1, Ordering::Relaxed) % SHARDS;
        let key = TABLE[shard].entries.write().unwrap_or_else(PoisonError::into_inner).insert(entry);
        let number = key.data().as_ffi() | (shard as u64) << SHARD_SHIFT;
        Handle { name: std::ptr::without_provenance_mut(number as usize), names: PhantomData }
    }

    /// The part of the table, and the key in it; no object has it if it is not a key.
    fn locate(self) -> (&'static Shard, DefaultKey) {
        let number = self.name.addr() as u64;
        let shard = (number >> SHARD_SHIFT) as usize % SHARDS;
        let number = number & !((SHARDS as u64 - 1) << SHARD_SHIFT);
        let key = DefaultKey::from(KeyData::from_ffi(number));
        // What is no key becomes another number on its way.
        let key = if key.data().as_ffi() == number { key } else { DefaultKey::null() };
        (&TABLE[shard], key)
    }

    /// The object, which stays until the caller drops it, whatever becomes of the handle.
    pub(super) fn get(self) -> Result<Arc<T>> {
        let (shard, key) = self.locate();
        match shard.entries.read().unwrap_or_else(PoisonError::into_inner).get(key) {
            Some(entry) => Arc::downcast(Arc::clone(&entry.object)).map_err(|_| self.is_a(entry.type_name)),
            None => Err(self.is_nothing()),
        }
    }

    /// Takes the object out of the table.
    pub(super) fn take(self) -> Result<Arc<T>> {
        let (shard, key) = self.locate();
        let mut entries = shard.entries.write().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = entries.get(key) else { return Err(self.is_nothing()) };
        let object = Arc::downcast(Arc::clone(&entry.object)).map_err(|_| self.is_a(entry.type_name))?;
        // The object is dropped by the caller, when the table is free again.
        entries.remove(key);
        Ok(object)
    }

    /// Frees a handle; NULL is nobody's.
    pub(super) fn free(self) -> Result<()> {
        if !self.is_null() {
            drop(self.take()?);
        }
        Ok(())
    }

    fn is_nothing(self) -> CallError {
        let what = match self.is_null() {
            true => format!("the {} is NULL", T::TYPE),
            false => format!("{:p} is not a {}, or not any more", self.name, T::TYPE),
        };
        CallError::new(Status::INVALID_HANDLE, what)
    }

    fn is_a(self, other: &str) -> CallError {
        CallError::new(Status::INVALID_HANDLE, format!("{:p} is a {other}, and not a {}", self.name, T::TYPE))
    }
}

/// What several calls may read at once, and one at a time may change, behind handles to `O`. Nobody waits: a call that cannot have it now
/// is a error, also where it comes from a callback of the call that has it.
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
    /// For a call that is shared.
    pub(super) fn read(&self) -> Result<RwLockReadGuard<'_, T>> {
        match self.value.try_read() {
            Ok(value) => Ok(value),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(busy::<O>()),
        }
    }

    /// For a call that is exclusive.
    pub(super) fn write(&self) -> Result<RwLockWriteGuard<'_, T>> {
        match self.value.try_write() {
            Ok(value) => Ok(value),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(busy::<O>()),
        }
    }
}

fn busy<O: Object>() -> CallError {
    CallError::new(Status::BUSY, format!("another call is inside this {}, and only one at a time may be", O::TYPE))
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
        handle.name.addr()
    }

    fn from<T>(number: usize) -> Handle<T> {
        Handle { name: std::ptr::without_provenance_mut(number), names: PhantomData }
    }

    /// In every shard of the table, and again where something was before.
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
        // Of a type that no other test has in the table at the same time.
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

//! The table behind the handles. A handle is a number in the clothes of a pointer: a place in the table, and how often that place has
//! been used, so that one that was freed is known for what it is.

use std::any::Any;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::{Arc, LazyLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use slotmap::{DefaultKey, Key, KeyData, SlotMap};

use super::status::{Fault, Result, Status};

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

static TABLE: LazyLock<RwLock<SlotMap<DefaultKey, Entry>>> = LazyLock::new(RwLock::default);

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
        let key = TABLE.write().unwrap_or_else(PoisonError::into_inner).insert(entry);
        Handle { name: std::ptr::without_provenance_mut(key.data().as_ffi() as usize), names: PhantomData }
    }

    fn key(self) -> Option<DefaultKey> {
        let number = self.name.addr() as u64;
        let key = DefaultKey::from(KeyData::from_ffi(number));
        // What is no key becomes another number on its way.
        (key.data().as_ffi() == number).then_some(key)
    }

    /// The object, which stays until the caller drops it, whatever becomes of the handle.
    pub(super) fn get(self) -> Result<Arc<T>> {
        let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
        match self.key().and_then(|key| table.get(key)) {
            Some(entry) => Arc::downcast(Arc::clone(&entry.object)).map_err(|_| self.is_a(entry.type_name)),
            None => Err(self.is_nothing()),
        }
    }

    /// Takes the object out of the table.
    pub(super) fn take(self) -> Result<Arc<T>> {
        let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
        let Some((key, entry)) = self.key().and_then(|key| Some((key, table.get(key)?))) else {
            return Err(self.is_nothing());
        };
        let object = Arc::downcast(Arc::clone(&entry.object)).map_err(|_| self.is_a(entry.type_name))?;
        // The object is dropped by the caller, when the table is free again.
        table.remove(key);
        Ok(object)
    }

    /// Frees a handle; NULL is nobody's.
    pub(super) fn free(self) -> Result<()> {
        if !self.is_null() {
            drop(self.take()?);
        }
        Ok(())
    }

    fn is_nothing(self) -> Fault {
        let what = match self.is_null() {
            true => format!("the {} is NULL", T::TYPE),
            false => format!("{:p} is not a {}, or not any more", self.name, T::TYPE),
        };
        Fault::new(Status::INVALID_HANDLE, what)
    }

    fn is_a(self, other: &str) -> Fault {
        Fault::new(Status::INVALID_HANDLE, format!("{:p} is a {other}, and not a {}", self.name, T::TYPE))
    }
}

/// What several calls may read at once, and one at a time may change, behind handles to `O`. Nobody waits: a call that cannot have it now
/// is a fault, also where it comes from a callback of the call that has it.
pub(super) struct Guarded<T, O> {
    value: RwLock<T>,
    behind: PhantomData<fn() -> O>,
}

impl<T: Default, O> Default for Guarded<T, O> {
    fn default() -> Self {
        Guarded::new(T::default())
    }
}

impl<T, O> Guarded<T, O> {
    pub(super) fn new(value: T) -> Self {
        Guarded { value: RwLock::new(value), behind: PhantomData }
    }
}

impl<T, O: Object> Guarded<T, O> {
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

fn busy<O: Object>() -> Fault {
    Fault::new(Status::BUSY, format!("another call is inside this {}, and only one at a time may be", O::TYPE))
}

//! What keeps memory or a stream that another library has made.

use std::any::Any;

use super::call_out;

/// A value of the program's, or none. Memory or a stream exists until it is dropped.
#[derive(Default)]
pub(crate) struct Owner(Option<Box<dyn Any + Send + Sync>>);

impl Owner {
    pub(crate) fn new(owner: impl Any + Send + Sync) -> Self {
        Owner(Some(Box::new(owner)))
    }

    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// The value, if it is of this type.
    pub(crate) fn take<T: Any>(&mut self) -> Option<T> {
        let owner = self.0.take_if(|owner| owner.is::<T>())?;
        owner.downcast().ok().map(|owner| *owner)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let Some(owner) = self.0.take() else { return };
        // If this fails, the next call of CUDA reports an error.
        let _ = call_out(|| drop(owner));
    }
}

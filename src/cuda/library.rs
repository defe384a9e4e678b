//! C libraries that are loaded at the first use. Each is bound by a table of the functions that
//! this crate calls, so that no other crate's choice of linking or of CUDA's version matters.

use std::mem::ManuallyDrop;

use libloading::Library;

use crate::error::{Result, bail, error};

/// What a function returns while its library is not loaded.
pub(super) trait Unloaded {
    const UNLOADED: Self;
}

/// Declares functions of a C library as unsafe functions of this module, and `load`, which looks
/// all of them up. Before `load` has succeeded, a function only returns `Unloaded::UNLOADED`.
macro_rules! functions {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        struct Functions {
            $($name: unsafe extern "C" fn($($type),*) -> $result,)*
        }

        static FUNCTIONS: std::sync::OnceLock<$crate::error::Result<Functions>> = std::sync::OnceLock::new();

        /// Loads the library from the first of these files that is there, once. Without any,
        /// `missing` is the error.
        pub(in $crate::cuda) fn load(files: &[&str], missing: &str) -> $crate::error::Result<()> {
            let loaded = FUNCTIONS.get_or_init(|| {
                let file = $crate::cuda::library::open(files, missing)?;
                // SAFETY: the table has the types of the library's header.
                unsafe { Ok(Functions { $($name: file.function(stringify!($name))?,)* }) }
            });
            loaded.as_ref().map(drop).map_err(Clone::clone)
        }

        $(
            /// # Safety
            ///
            /// That of the C function.
            pub(in $crate::cuda) unsafe fn $name($($argument: $type),*) -> $result {
                match FUNCTIONS.get() {
                    // SAFETY: the caller's promise.
                    Some(Ok(functions)) => unsafe { (functions.$name)($($argument),*) },
                    _ => $crate::cuda::library::Unloaded::UNLOADED,
                }
            }
        )*
    };
}

pub(super) use functions;

/// A library that stays loaded until the process ends.
pub(super) struct File {
    name: String,
    library: ManuallyDrop<Library>,
}

/// Opens the first of these files that is there.
pub(super) fn open(files: &[&str], missing: &str) -> Result<File> {
    for name in files {
        // SAFETY: CUDA's libraries may be loaded at any time and from any thread.
        if let Ok(library) = unsafe { Library::new(*name) } {
            return Ok(File { name: (*name).to_owned(), library: ManuallyDrop::new(library) });
        }
    }
    bail!(Unsupported, "{missing}")
}

impl File {
    /// Looks a function up.
    ///
    /// # Safety
    ///
    /// `F` is the type of the function.
    pub(super) unsafe fn function<F: Copy>(&self, name: &str) -> Result<F> {
        // SAFETY: the caller's promise.
        let function = unsafe { self.library.get::<F>(name) };
        function
            .map(|function| *function)
            .map_err(|e| error!(Unsupported, "{} has no {name}; it is older than CUDA 12", self.name).with_source(e))
    }
}

#[cfg(test)]
mod tests {
    use super::Unloaded;

    impl Unloaded for i32 {
        const UNLOADED: Self = -1;
    }

    /// Functions of the C library.
    mod present {
        functions! {
            fn abs(number: i32) -> i32;
        }
    }

    mod absent {
        functions! {
            fn abs(number: i32) -> i32;
            fn no_such_function() -> i32;
        }
    }

    const FILES: &[&str] = &["libno_such_library.so", "libc.so.6"];

    #[test]
    fn functions_are_there_once_the_library_is_loaded() {
        // SAFETY: abs takes any number above the least.
        unsafe {
            assert_eq!(present::abs(-7), -1);
            present::load(FILES, "no C library").expect("the C library");
            assert_eq!(present::abs(-7), 7);
        }
    }

    #[test]
    fn a_library_without_a_function_is_not_used() {
        let error = absent::load(FILES, "no C library").expect_err("a function is missing");
        assert!(error.to_string().contains("libc.so.6 has no no_such_function"), "{error}");
        // SAFETY: as above; the second function is not called.
        unsafe {
            assert_eq!(absent::abs(-7), -1);
            assert_eq!(absent::no_such_function(), -1);
        }
    }

    #[test]
    fn without_the_library_the_caller_says_what_is_missing() {
        let error = super::open(&FILES[..1], "no C library").map(drop).expect_err("there is none");
        assert_eq!(error.to_string(), "no C library");
    }
}

//! C libraries that are loaded at the first use. Each is bound by a table of the functions that
//! this crate calls, so that no other crate's choice of linking or of a version matters.

use std::ffi::c_char;
use std::mem::ManuallyDrop;

use libloading::Library;

use crate::error::{Result, error};

/// What a function returns if its library is not loaded or lacks it.
pub(crate) trait Unloaded {
    const UNLOADED: Self;
}

impl Unloaded for *const c_char {
    const UNLOADED: Self = c"it is not loaded".as_ptr();
}

/// Declares functions of a C library as unsafe functions of this module, `load`, which looks all of
/// them up, and `lacking`, which names those that the library lacks. Those only return
/// `Unloaded::UNLOADED`, and so do all before `load` has succeeded.
macro_rules! functions {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty;)*) => {
        struct Functions {
            file: &'static str,
            $($name: Option<unsafe extern "C" fn($($type),*) -> $result>,)*
        }

        static FUNCTIONS: std::sync::OnceLock<$crate::error::Result<Functions>> = std::sync::OnceLock::new();

        /// Loads the library from the first of these files that is there, once, and gives the
        /// file's name. `missing` makes the error of what was tried.
        pub(super) fn load(
            files: &[&'static str],
            missing: impl FnOnce(&str) -> $crate::error::Error,
        ) -> $crate::error::Result<&'static str> {
            let loaded = FUNCTIONS.get_or_init(|| {
                let (file, library) = $crate::cuda::library::open(files).map_err(|tried| missing(&tried))?;
                // SAFETY: the table has the types of the library's header.
                unsafe {
                    Ok(Functions { file, $($name: library.get(stringify!($name)).ok().map(|function| *function),)* })
                }
            });
            loaded.as_ref().map(|functions| functions.file).map_err(Clone::clone)
        }

        /// The functions that the loaded library lacks.
        pub(super) fn lacking() -> Vec<&'static str> {
            let Some(Ok(functions)) = FUNCTIONS.get() else { return Vec::new() };
            let mut lacking = Vec::new();
            $(if functions.$name.is_none() { lacking.push(stringify!($name)) })*
            lacking
        }

        $(
            /// # Safety
            ///
            /// That of the C function.
            pub(super) unsafe fn $name($($argument: $type),*) -> $result {
                match FUNCTIONS.get() {
                    // SAFETY: the caller's promise.
                    Some(Ok(Functions { $name: Some(function), .. })) => unsafe { function($($argument),*) },
                    _ => $crate::cuda::library::Unloaded::UNLOADED,
                }
            }
        )*
    };
}

/// Declares pointers to structures that only the library knows.
macro_rules! handles {
    ($($name:ident = $structure:ident;)*) => {
        $(
            #[repr(C)]
            pub(super) struct $structure([u8; 0]);
            pub(super) type $name = *mut $structure;
        )*
    };
}

pub(crate) use {functions, handles};

/// Opens the first of these files that is there. The library stays loaded until the process ends.
/// The error says what was tried.
pub(crate) fn open(files: &[&'static str]) -> Result<(&'static str, ManuallyDrop<Library>), String> {
    let mut tried = Vec::new();
    for name in files {
        // SAFETY: NVIDIA's libraries may be loaded at any time and from any thread.
        match unsafe { Library::new(*name) } {
            Ok(library) => return Ok((name, ManuallyDrop::new(library))),
            Err(e) => {
                let why = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
                tried.push(format!("{name} ({why})"));
            }
        }
    }
    Err(tried.join(" and "))
}

/// Checks that a library of CUDA's lacks none of the functions.
pub(super) fn require_all(file: &str, lacking: &[&str]) -> Result<()> {
    match lacking.first() {
        Some(name) => Err(error!(Unsupported, "{file} has no {name}; it is older than CUDA 12")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{Unloaded, require_all};
    use crate::error::{Error, error};

    impl Unloaded for i32 {
        const UNLOADED: Self = -1;
    }

    /// Functions of the C library.
    mod present {
        functions! {
            fn abs(number: i32) -> i32;
            fn no_such_function() -> i32;
        }
    }

    mod absent {
        functions! {
            fn abs(number: i32) -> i32;
        }
    }

    const FILES: &[&str] = &["libno_such_library.so", "libc.so.6"];

    fn missing(tried: &str) -> Error {
        error!(Unsupported, "no C library; tried {tried}")
    }

    #[test]
    fn functions_are_there_once_the_library_is_loaded() {
        // SAFETY: abs takes any number above the least; the second function is not called.
        unsafe {
            assert_eq!(present::abs(-7), -1);
            assert_eq!(present::load(FILES, missing).expect("the C library"), "libc.so.6");
            assert_eq!(present::abs(-7), 7);
            assert_eq!(present::no_such_function(), -1);
        }
        assert_eq!(present::lacking(), ["no_such_function"]);
        let error = require_all("libc.so.6", &present::lacking()).expect_err("a function is missing");
        assert_eq!(error.to_string(), "libc.so.6 has no no_such_function; it is older than CUDA 12");
    }

    #[test]
    fn without_the_library_the_caller_says_what_is_missing() {
        let error = absent::load(&FILES[..1], missing).expect_err("there is none");
        assert!(error.to_string().starts_with("no C library; tried libno_such_library.so ("), "{error}");
        // SAFETY: nothing is called.
        assert_eq!(unsafe { absent::abs(-7) }, -1);
        assert_eq!(absent::lacking(), [""; 0]);
    }
}

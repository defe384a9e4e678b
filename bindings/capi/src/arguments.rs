//! The types of arguments. Each has the layout of a C argument.
//!
//! A C caller makes the values of these types, so each value comes with the header's promises,
//! which the safety comments call *C's promise*:
//!
//! - a pointer that is not NULL is valid during the call, for as many elements as the function
//!   says;
//! - no other thread accesses what the function writes.
//!
//! The fields are private, so Rust code cannot make such a value. Only this module and `copy_out`
//! read and write through the pointers.

use std::ffi::{CStr, c_char, c_void};
use std::time::Duration;

use dcl::comm::{DEFAULT_TIMEOUT, timeout_or};
use dcl::tensor::{Dims, MAX_DIMS, Shape};
use dcl::{CollectiveOperation, DataType, Determinism, ReduceOperation, WireType};

use super::status::{CallError, Result};

/// `const T *`: one value or an array.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct InPointer<T>(*const T);

impl<T: Copy> InPointer<T> {
    pub(super) const NULL: Self = InPointer(std::ptr::null());

    pub(super) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// The value, or `None` for NULL.
    pub(super) fn optional(&self) -> Option<T> {
        // SAFETY: C's promise: the pointer is valid.
        (!self.0.is_null()).then(|| unsafe { self.0.read() })
    }

    pub(super) fn get(&self, name: &str) -> Result<T> {
        self.optional().ok_or_else(|| is_null(name))
    }

    /// A copy of an array of `count` values.
    pub(super) fn array(&self, name: &str, count: impl TryInto<usize>) -> Result<Vec<T>> {
        let fits = |count: &usize| count.checked_mul(size_of::<T>()).is_some_and(|len| isize::try_from(len).is_ok());
        let Some(count) = count.try_into().ok().filter(fits) else {
            return Err(CallError::invalid_argument(format!(
                "the length of {name} is negative, or larger than memory"
            )));
        };
        if count == 0 {
            return Ok(Vec::new());
        }
        if self.0.is_null() {
            return Err(is_null(name));
        }
        // SAFETY: C's promise: the array has `count` values. Their length in bytes was checked
        // above.
        Ok(unsafe { std::slice::from_raw_parts(self.0, count) }.to_vec())
    }
}

/// A structure that begins with its size, so that a later version can add fields.
///
/// # Safety
///
/// Any bytes are a valid value, and the first field is a `usize`, the structure's size.
pub(super) unsafe trait SizedStruct: Copy {
    /// The length of its first version in bytes.
    const FIRST_BYTE_LEN: usize;
    /// The value of its `_INIT` macro in the header.
    const INITIAL: Self;
}

impl<T: SizedStruct> InPointer<T> {
    /// A pointer to a structure of this library.
    ///
    /// # Safety
    ///
    /// The pointer is valid for reading `size_of::<usize>()` bytes, and as many bytes as the size
    /// there says, up to 4096.
    pub(super) unsafe fn of(structure: *const T) -> Self {
        InPointer(structure)
    }

    /// The structure, or its initial value for NULL.
    pub(super) fn or_initial(&self, name: &str) -> Result<T> {
        if self.0.is_null() { Ok(T::INITIAL) } else { self.required(name) }
    }

    /// A copy of an array of structures, which must all have the same size.
    pub(super) fn structures(&self, name: &str, count: i32) -> Result<Vec<T>> {
        let Ok(count) = usize::try_from(count) else {
            return Err(CallError::invalid_argument(format!("the number of {name} is negative")));
        };
        let mut structures = Vec::new();
        if count > 0 && self.0.is_null() {
            return Err(is_null(name));
        }
        let mut next = self.0;
        let mut first_size = None;
        for _ in 0..count {
            // SAFETY: C's promise: the array has another structure, and its first field is its
            // size.
            let size = unsafe { next.cast::<usize>().read() };
            if *first_size.get_or_insert(size) != size || !size.is_multiple_of(align_of::<usize>()) {
                let message = format!("struct_size of one of {name} is {size}; it is the same sizeof in all of them");
                return Err(CallError::invalid_argument(message));
            }
            structures.push(InPointer(next).required(name)?);
            // SAFETY: C's promise: the array has `count` structures of this size, so `next` is in
            // it or at its end.
            next = unsafe { next.byte_add(size) };
        }
        Ok(structures)
    }

    /// The structure. Fields that the caller's version does not have keep their initial value.
    pub(super) fn required(&self, name: &str) -> Result<T> {
        if self.0.is_null() {
            return Err(is_null(name));
        }
        let start = self.0.cast::<u8>();
        // SAFETY: C's promise: the pointer is valid, and the first field is the size.
        let size = unsafe { start.cast::<usize>().read() };
        let own = size_of::<T>();
        check_size::<T>(name, size)?;
        // SAFETY: C's promise: the structure has `size` bytes.
        let bytes = unsafe { std::slice::from_raw_parts(start, size) };
        if bytes.get(own..).is_some_and(|tail| tail.iter().any(|byte| *byte != 0)) {
            return Err(CallError::invalid_argument(format!(
                "struct_size of {name} is {size}, and something is set beyond the {own} bytes that this version knows"
            )));
        }
        let mut value = T::INITIAL;
        // SAFETY: both have at least this many bytes, they do not overlap, and any bytes are a
        // valid `T`.
        unsafe { std::ptr::copy_nonoverlapping(start, (&raw mut value).cast::<u8>(), size.min(own)) };
        Ok(value)
    }
}

/// `const char *`: UTF-8 text that ends with a NUL.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct TextPointer(*const c_char);

impl TextPointer {
    pub(super) const NULL: TextPointer = TextPointer(std::ptr::null());

    /// A text of this library, which lives as long as the header says.
    pub(super) fn to(text: &CStr) -> Self {
        TextPointer(text.as_ptr())
    }

    pub(super) fn optional(&self, name: &str) -> Result<Option<&str>> {
        if self.0.is_null() {
            return Ok(None);
        }
        // SAFETY: C's promise: the text ends with a NUL.
        match unsafe { CStr::from_ptr(self.0) }.to_str() {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(CallError::invalid_argument(format!("{name} is not UTF-8"))),
        }
    }

    pub(super) fn get(&self, name: &str) -> Result<&str> {
        self.optional(name)?.ok_or_else(|| is_null(name))
    }
}

/// `const void *`: bytes to read, or an address that the library stores.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct ConstVoidPointer(*const c_void);

impl ConstVoidPointer {
    pub(super) fn get(&self, name: &str, byte_len: usize) -> Result<&[u8]> {
        if byte_len == 0 {
            return Ok(&[]);
        }
        if self.0.is_null() {
            return Err(is_null(name));
        }
        if isize::try_from(byte_len).is_err() {
            return Err(CallError::invalid_argument(format!(
                "{byte_len} bytes of {name} are more than memory can hold"
            )));
        }
        // SAFETY: C's promise: `byte_len` bytes are valid. That is at most `isize::MAX`, as checked
        // above.
        Ok(unsafe { std::slice::from_raw_parts(self.0.cast(), byte_len) })
    }

    /// The address, for a caller that does not read the bytes here.
    pub(super) fn address(&self) -> *const u8 {
        self.0.cast()
    }

    /// The same address as the type of an argument that may be written.
    pub(super) fn as_void(self) -> VoidPointer {
        VoidPointer(self.0.cast_mut())
    }
}

/// `void *`: memory to write, or an address that the library stores.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct VoidPointer(*mut c_void);

impl VoidPointer {
    pub(super) const NULL: VoidPointer = VoidPointer(std::ptr::null_mut());

    /// Memory of this library, which lives as long as the header says.
    pub(super) fn to(start: *const u8) -> Self {
        VoidPointer(start.cast_mut().cast())
    }

    /// The address, which may be NULL only if `byte_len` is 0.
    pub(super) fn for_bytes(&self, name: &str, byte_len: usize) -> Result<*mut u8> {
        match self.0.is_null() && byte_len > 0 {
            true => Err(is_null(name)),
            false => Ok(self.0.cast()),
        }
    }

    /// Has the bytes written.
    pub(super) fn fill(&self, name: &str, byte_len: usize, write: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<()> {
        let start = self.for_bytes(name, byte_len)?;
        if byte_len == 0 {
            return write(&mut []);
        }
        if isize::try_from(byte_len).is_err() {
            return Err(CallError::invalid_argument(format!(
                "{byte_len} bytes of {name} are more than memory can hold"
            )));
        }
        // SAFETY: C's promise: `byte_len` bytes are valid for writing, and no other thread accesses
        // them. That is at most `isize::MAX`, as checked above.
        write(unsafe { std::slice::from_raw_parts_mut(start, byte_len) })
    }

    /// The address, for a caller that does not write the bytes here.
    pub(super) fn address(&self) -> *mut c_void {
        self.0
    }
}

/// `T *`: where the function writes a result. A function checks it before it does anything else.
#[repr(transparent)]
pub(super) struct OutPointer<T>(*mut T);

impl<T> OutPointer<T> {
    /// Checks that the pointer is not NULL.
    pub(super) fn check(self, name: &str) -> Result<CheckedOut<T>> {
        if self.0.is_null() { Err(is_null(name)) } else { Ok(CheckedOut(self.0)) }
    }

    pub(super) fn optional(self) -> Option<CheckedOut<T>> {
        (!self.0.is_null()).then_some(CheckedOut(self.0))
    }
}

impl<T: SizedStruct> OutPointer<T> {
    /// Writes a structure's initial value. The caller's version of it has `size` bytes.
    pub(super) fn initialize(self, name: &str, size: usize) -> Result<()> {
        let CheckedOut(start) = self.check(name)?;
        check_size::<T>(name, size)?;
        OutStructure { start, size }.set(T::INITIAL);
        Ok(())
    }

    /// Checks a structure that the function fills in. The caller has set its size.
    pub(super) fn structure(self, name: &str) -> Result<OutStructure<T>> {
        let CheckedOut(start) = self.check(name)?;
        // SAFETY: C's promise: the pointer is valid, and the first field is the size.
        let size = unsafe { start.cast::<usize>().read() };
        check_size::<T>(name, size)?;
        Ok(OutStructure { start, size })
    }
}

/// A structure that the function fills in, with the size of the caller's version.
pub(super) struct OutStructure<T> {
    start: *mut T,
    size: usize,
}

impl<T: SizedStruct> OutStructure<T> {
    /// Writes the fields that the caller's version has. Bytes that this version does not know
    /// become 0.
    pub(super) fn set(self, value: T) {
        let (start, size) = (self.start.cast::<u8>(), self.size);
        // SAFETY: C's promise: the structure has `size` bytes, the first of which are its size. The
        // value has as many bytes as are copied, and does not overlap it.
        unsafe {
            start.write_bytes(0, size);
            start.copy_from_nonoverlapping((&raw const value).cast(), size.min(size_of::<T>()));
            start.cast::<usize>().write(size);
        }
    }
}

/// Checks the size that the caller's version of a structure has.
fn check_size<T: SizedStruct>(name: &str, size: usize) -> Result<()> {
    const LARGEST: usize = 4096;
    let (first, own) = (T::FIRST_BYTE_LEN, size_of::<T>());
    let why = match size {
        _ if size < first => format!("less than the {first} bytes of its first version"),
        _ if size > LARGEST => format!("more than any version has; this one has {own} bytes"),
        _ => return Ok(()),
    };
    Err(CallError::invalid_argument(format!("struct_size of {name} is {size}, {why}")))
}

/// An output pointer that is not NULL.
pub(super) struct CheckedOut<T>(*mut T);

impl<T> CheckedOut<T> {
    pub(super) fn set(self, value: T) {
        // SAFETY: C's promise: the pointer is valid for writing one value.
        unsafe { self.0.write(value) };
    }

    /// Writes an array. The header says how many elements it must have room for.
    pub(super) fn set_array(self, values: impl IntoIterator<Item = T>) {
        for (i, value) in values.into_iter().enumerate() {
            // SAFETY: C's promise: the array has room for every value that the function writes.
            unsafe { self.0.add(i).write(value) };
        }
    }
}

fn is_null(name: &str) -> CallError {
    CallError::invalid_argument(format!("{name} is NULL"))
}

/// `dcl_dims_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CDims {
    nb_dims: i32,
    d: [i64; MAX_DIMS],
}

impl CDims {
    pub(super) const SCALAR: CDims = CDims { nb_dims: 0, d: [0; MAX_DIMS] };
    /// No dimensions, in contrast to zero dimensions.
    pub(super) const ABSENT: CDims = CDims { nb_dims: -1, d: [0; MAX_DIMS] };

    pub(super) fn as_slice(&self) -> Result<&[i64]> {
        match usize::try_from(self.nb_dims).ok().and_then(|count| self.d.get(..count)) {
            Some(dims) => Ok(dims),
            None => Err(CallError::invalid_argument(format!("nb_dims is {}; it is 0 to {MAX_DIMS}", self.nb_dims))),
        }
    }

    pub(super) fn to_dims(self) -> Result<Dims> {
        Ok(Dims::new(self.as_slice()?)?)
    }

    pub(super) fn to_shape(self) -> Result<Shape> {
        Ok(self.to_dims()?.to_shape()?)
    }
}

impl From<&[i64]> for CDims {
    fn from(dims: &[i64]) -> Self {
        let mut c = CDims { nb_dims: dims.len().min(MAX_DIMS) as i32, d: [0; MAX_DIMS] };
        for (to, from) in c.d.iter_mut().zip(dims) {
            *to = *from;
        }
        c
    }
}

impl From<Dims> for CDims {
    fn from(dims: Dims) -> Self {
        dims.as_slice().into()
    }
}

impl From<Shape> for CDims {
    fn from(shape: Shape) -> Self {
        shape.to_dims().into()
    }
}

/// `dcl_data_type_t`.
pub(super) fn data_type(number: i32) -> Result<DataType> {
    Ok(DataType::from_number(number)?)
}

/// `dcl_collective_operation_t`.
pub(super) fn operation(number: i32) -> Result<CollectiveOperation> {
    Ok(CollectiveOperation::from_number(number)?)
}

/// `dcl_reduce_operation_t`.
pub(super) fn reduce_op(number: i32) -> Result<Option<ReduceOperation>> {
    Ok(ReduceOperation::from_number(number)?)
}

/// `dcl_determinism_t`.
pub(super) fn determinism(number: i32) -> Result<Determinism> {
    Ok(Determinism::from_number(number)?)
}

/// `dcl_wire_type_t`.
pub(super) fn wire_type(number: i32) -> Result<Option<WireType>> {
    Ok(WireType::from_number(number)?)
}

/// Parses the number of a rank or a GPU.
pub(super) fn unsigned(name: &str, number: impl Into<i64>) -> Result<u32> {
    let number = number.into();
    let most = if number < 0 { String::new() } else { format!(", and at most {}", u32::MAX) };
    u32::try_from(number).map_err(|_| CallError::invalid_argument(format!("{name} is {number}; it is 0 or more{most}")))
}

/// Checks a reserved field, which a later version may use.
pub(super) fn zero(name: &str, number: i32) -> Result<()> {
    match number {
        0 => Ok(()),
        _ => Err(CallError::invalid_argument(format!("{name} is {number}; it is 0"))),
    }
}

/// Parses a number of ranks.
pub(super) fn positive(name: &str, number: i32) -> Result<u32> {
    match u32::try_from(number) {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(CallError::invalid_argument(format!("{name} is {number}; it is 1 or more"))),
    }
}

/// Checks an index into a list of `len` elements.
pub(super) fn index(noun: &str, index: i32, len: usize) -> Result<usize> {
    match usize::try_from(index) {
        Ok(index) if index < len => Ok(index),
        _ => Err(CallError::invalid_argument(format!("there is no {noun} {index}; there are {len}"))),
    }
}

/// Parses milliseconds. `None` means `DCL_TIMEOUT_DEFAULT`.
pub(super) fn timeout(milliseconds: i64) -> Result<Option<Duration>> {
    match u64::try_from(milliseconds) {
        Ok(milliseconds) => Ok(Some(Duration::from_millis(milliseconds))),
        Err(_) if milliseconds == -1 => Ok(None),
        Err(_) => Err(CallError::invalid_argument(format!(
            "timeout_ms is {milliseconds}; it is 0 or more, or DCL_TIMEOUT_DEFAULT"
        ))),
    }
}

/// Parses the timeout of a new communicator.
pub(super) fn timeout_or_default(milliseconds: i64) -> Result<Duration> {
    Ok(match timeout(milliseconds)? {
        Some(timeout) => timeout,
        None => timeout_or(DEFAULT_TIMEOUT)?,
    })
}

/// A length as C's number.
pub(super) fn count(len: usize) -> i32 {
    i32::try_from(len).unwrap_or(i32::MAX)
}

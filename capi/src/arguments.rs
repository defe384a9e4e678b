//! The types of arguments. A value of one of these comes from C only, and C's promise is the header's: what a pointer that is not NULL points
//! to is valid for the call, as long as the function says, and what is written to is nobody else's. The fields are private, so that
//! no Rust code can make one up, and what reads or writes through them stands here and in `copy_out` only.

use std::ffi::{CStr, c_char, c_void};
use std::time::Duration;

use dcl::{CollectiveOperation, DEFAULT_TIMEOUT, DataType, Dims, MAX_DIMS, ReduceOperation, Shape, timeout_or};

use super::status::{CallError, Result};

/// `const T *`: one value, or several.
#[repr(transparent)]
pub(super) struct InPointer<T>(*const T);

impl<T: Copy> InPointer<T> {
    /// The value, where there is one.
    pub(super) fn optional(&self) -> Option<T> {
        // SAFETY: C's promise.
        (!self.0.is_null()).then(|| unsafe { self.0.read() })
    }

    pub(super) fn get(&self, name: &str) -> Result<T> {
        self.optional().ok_or_else(|| is_null(name))
    }

    /// So many values.
    pub(super) fn array(&self, name: &str, count: impl TryInto<usize>) -> Result<Vec<T>> {
        let fits = |count: &usize| count.checked_mul(size_of::<T>()).is_some_and(|len| isize::try_from(len).is_ok());
        let Some(count) = count.try_into().ok().filter(fits) else {
            return Err(CallError::invalid_argument(format!("the length of {name} is negative, or beyond memory")));
        };
        if count == 0 {
            return Ok(Vec::new());
        }
        if self.0.is_null() {
            return Err(is_null(name));
        }
        // SAFETY: C's promise.
        Ok(unsafe { std::slice::from_raw_parts(self.0, count) }.to_vec())
    }
}

/// A structure that begins with its size, so that it can grow.
///
/// # Safety
///
/// Any bytes are a value of it, and its first field is a `usize`, its size.
pub(super) unsafe trait SizedStruct: Copy {
    /// The length of its first version.
    const FIRST_BYTE_LEN: usize;
    /// What C gets from the macro of the header.
    const INITIAL: Self;
}

impl<T: SizedStruct> InPointer<T> {
    /// One of this library's own.
    ///
    /// # Safety
    ///
    /// As C promises for its own: it is valid, as long as it says that it is.
    pub(super) unsafe fn of(structure: *const T) -> Self {
        InPointer(structure)
    }

    /// The structure; the initial one for NULL.
    pub(super) fn or_initial(&self, name: &str) -> Result<T> {
        if self.0.is_null() { Ok(T::INITIAL) } else { self.required(name) }
    }

    /// So many structures, of one version.
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
            // SAFETY: C's promise; the first field is the size.
            let size = unsafe { next.cast::<usize>().read() };
            if *first_size.get_or_insert(size) != size || !size.is_multiple_of(align_of::<usize>()) {
                let message = format!("struct_size of one of {name} is {size}; it is the same sizeof in all of them");
                return Err(CallError::invalid_argument(message));
            }
            structures.push(InPointer(next).required(name)?);
            // SAFETY: C's promise: there is another one, or the array ends here.
            next = unsafe { next.byte_add(size) };
        }
        Ok(structures)
    }

    /// The structure, with what the caller's version lacks as it is initially.
    pub(super) fn required(&self, name: &str) -> Result<T> {
        if self.0.is_null() {
            return Err(is_null(name));
        }
        let start = self.0.cast::<u8>();
        // SAFETY: C's promise; the first field is the size.
        let size = unsafe { start.cast::<usize>().read() };
        let own = size_of::<T>();
        let wrong = |why: String| Err(CallError::invalid_argument(format!("struct_size of {name} is {size}, {why}")));
        if size < T::FIRST_BYTE_LEN {
            return wrong(format!("less than the {} bytes of its first version", T::FIRST_BYTE_LEN));
        }
        const LARGEST: usize = 4096;
        if size > LARGEST {
            return wrong(format!("more than any version has; this one has {own} bytes"));
        }
        // SAFETY: C's promise: the structure is as long as it says.
        let bytes = unsafe { std::slice::from_raw_parts(start, size) };
        if bytes.get(own..).is_some_and(|tail| tail.iter().any(|byte| *byte != 0)) {
            return wrong(format!("and something is set beyond the {own} bytes that this version knows"));
        }
        let mut value = T::INITIAL;
        // SAFETY: as many bytes as both have; any bytes are a value.
        unsafe { std::ptr::copy_nonoverlapping(start, (&raw mut value).cast::<u8>(), size.min(own)) };
        Ok(value)
    }
}

/// `const char *`: text in UTF-8 that ends with a NUL.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct TextPointer(*const c_char);

impl TextPointer {
    pub(super) const NULL: TextPointer = TextPointer(std::ptr::null());

    pub(super) fn optional(&self, name: &str) -> Result<Option<&str>> {
        if self.0.is_null() {
            return Ok(None);
        }
        // SAFETY: C's promise.
        match unsafe { CStr::from_ptr(self.0) }.to_str() {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(CallError::invalid_argument(format!("{name} is not UTF-8"))),
        }
    }

    pub(super) fn get(&self, name: &str) -> Result<&str> {
        self.optional(name)?.ok_or_else(|| is_null(name))
    }
}

/// `const void *`: bytes to read, or an address to keep.
#[repr(transparent)]
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
        // SAFETY: C's promise.
        Ok(unsafe { std::slice::from_raw_parts(self.0.cast(), byte_len) })
    }

    /// The address, for what only passes it on.
    pub(super) fn address(&self) -> *const u8 {
        self.0.cast()
    }
}

/// `void *`: room for bytes, or an address to keep.
#[repr(transparent)]
pub(super) struct VoidPointer(*mut c_void);

impl VoidPointer {
    /// The address of room for so many bytes.
    pub(super) fn for_bytes(&self, name: &str, byte_len: usize) -> Result<*mut u8> {
        match self.0.is_null() && byte_len > 0 {
            true => Err(is_null(name)),
            false => Ok(self.0.cast()),
        }
    }

    /// The address, for what only passes it on.
    pub(super) fn address(&self) -> *mut c_void {
        self.0
    }
}

/// `T *`: where a result goes.
#[repr(transparent)]
pub(super) struct OutPointer<T>(*mut T);

impl<T> OutPointer<T> {
    /// Makes sure that there is a place, before anything is done.
    pub(super) fn check(self, name: &str) -> Result<CheckedOut<T>> {
        if self.0.is_null() { Err(is_null(name)) } else { Ok(CheckedOut(self.0)) }
    }

    pub(super) fn optional(self) -> Option<CheckedOut<T>> {
        (!self.0.is_null()).then_some(CheckedOut(self.0))
    }
}

/// Where results go.
pub(super) struct CheckedOut<T>(*mut T);

impl<T> CheckedOut<T> {
    pub(super) fn set(self, value: T) {
        // SAFETY: C's promise.
        unsafe { self.0.write(value) };
    }

    /// Writes several, for which the function promises room.
    pub(super) fn set_array(self, values: impl IntoIterator<Item = T>) {
        for (i, value) in values.into_iter().enumerate() {
            // SAFETY: C's promise.
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
    /// No dimensions at all, not even none: the reshape of a Shuffle that has none.
    pub(super) const ABSENT: CDims = CDims { nb_dims: -1, d: [0; MAX_DIMS] };

    pub(super) fn is_absent(&self) -> bool {
        self.nb_dims == -1
    }

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

/// The number of a rank or of a GPU.
pub(super) fn unsigned(name: &str, number: impl Into<i64>) -> Result<u32> {
    let number = number.into();
    let most = if number < 0 { String::new() } else { format!(", and at most {}", u32::MAX) };
    u32::try_from(number).map_err(|_| CallError::invalid_argument(format!("{name} is {number}; it is 0 or more{most}")))
}

/// What has no meaning yet, and so can have one later.
pub(super) fn zero(name: &str, number: i32) -> Result<()> {
    match number {
        0 => Ok(()),
        _ => Err(CallError::invalid_argument(format!("{name} is {number}; it is 0"))),
    }
}

/// A number of ranks.
pub(super) fn positive(name: &str, number: i32) -> Result<u32> {
    match u32::try_from(number) {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(CallError::invalid_argument(format!("{name} is {number}; it is 1 or more"))),
    }
}

/// An index into a list of `len`.
pub(super) fn index(noun: &str, index: i32, len: usize) -> Result<usize> {
    match usize::try_from(index) {
        Ok(index) if index < len => Ok(index),
        _ => Err(CallError::invalid_argument(format!("there is no {noun} {index}; there are {len}"))),
    }
}

/// Milliseconds; `None` is `DCL_TIMEOUT_DEFAULT`.
pub(super) fn timeout(milliseconds: i64) -> Result<Option<Duration>> {
    match u64::try_from(milliseconds) {
        Ok(milliseconds) => Ok(Some(Duration::from_millis(milliseconds))),
        Err(_) if milliseconds == -1 => Ok(None),
        Err(_) => Err(CallError::invalid_argument(format!(
            "timeout_ms is {milliseconds}; it is 0 or more, or DCL_TIMEOUT_DEFAULT"
        ))),
    }
}

/// The timeout of a new communicator.
pub(super) fn timeout_or_default(milliseconds: i64) -> Result<Duration> {
    Ok(match timeout(milliseconds)? {
        Some(timeout) => timeout,
        None => timeout_or(DEFAULT_TIMEOUT)?,
    })
}

/// The number of a length for C.
pub(super) fn count(len: usize) -> i32 {
    i32::try_from(len).unwrap_or(i32::MAX)
}

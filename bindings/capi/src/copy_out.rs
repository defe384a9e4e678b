//! Copies text and bytes to the caller's buffers, by (buffer, capacity, length).

use std::ffi::{c_char, c_void};

use dcl::Rank;

use super::arguments::{CheckedOut, OutPointer, index};
use super::status::{CallError, Result, Status};

/// `char *`: a buffer for text.
#[repr(transparent)]
pub(super) struct TextBuffer(*mut c_char);

/// `void *`: a buffer for bytes.
#[repr(transparent)]
pub(super) struct ByteBuffer(*mut c_void);

/// The three arguments that receive text.
pub(super) struct TextDestination {
    pub(super) buffer: TextBuffer,
    pub(super) capacity: usize,
    pub(super) length: OutPointer<usize>,
}

impl TextDestination {
    /// Copies the text and a NUL.
    pub(super) fn write(self, text: &str) -> Result<()> {
        let text = [text.as_bytes(), &[0]].concat();
        // SAFETY: C's promise (see `arguments`): the buffer has `capacity` bytes, or is NULL.
        unsafe { copy_out(&text, self.buffer.0.cast(), self.capacity, self.length.optional(), text.len() - 1) }
    }

    /// Copies one of some texts. `noun` is what a text is about, for errors.
    pub(super) fn write_nth<'a>(
        self,
        noun: &str,
        index: i32,
        mut texts: impl ExactSizeIterator<Item = &'a str>,
    ) -> Result<()> {
        let index = self::index(noun, index, texts.len())?;
        self.write(texts.nth(index).unwrap_or_default())
    }
}

/// The three arguments that receive bytes.
pub(super) struct ByteDestination {
    pub(super) buffer: ByteBuffer,
    pub(super) capacity: usize,
    pub(super) length: OutPointer<usize>,
}

impl ByteDestination {
    /// Copies the bytes.
    pub(super) fn write(self, bytes: &[u8]) -> Result<()> {
        // SAFETY: as in `TextDestination::write`.
        unsafe { copy_out(bytes, self.buffer.0.cast(), self.capacity, self.length.optional(), bytes.len()) }
    }
}

/// The three arguments that receive ranks.
pub(super) struct RanksDestination {
    pub(super) ranks: OutPointer<i64>,
    pub(super) capacity: usize,
    pub(super) length: OutPointer<usize>,
}

impl RanksDestination {
    /// Copies the ranks.
    pub(super) fn write(self, ranks: &[Rank]) -> Result<()> {
        if let Some(length) = self.length.optional() {
            length.set(ranks.len());
        }
        let Some(destination) = self.ranks.optional() else { return Ok(()) };
        if self.capacity < ranks.len() {
            let message = format!("ranks has room for {} ranks, and there are {}", self.capacity, ranks.len());
            return Err(CallError::new(Status::BUFFER_TOO_SMALL, message));
        }
        destination.set_array(ranks.iter().map(|rank| i64::from(rank.0)));
        Ok(())
    }
}

/// Copies `bytes`, and reports `shown_len` as their length.
///
/// # Safety
///
/// `buffer` is null, or valid for writing `capacity` bytes.
unsafe fn copy_out(
    bytes: &[u8],
    buffer: *mut u8,
    capacity: usize,
    length: Option<CheckedOut<usize>>,
    shown_len: usize,
) -> Result<()> {
    if let Some(length) = length {
        length.set(shown_len);
    }
    if buffer.is_null() {
        return Ok(());
    }
    if capacity < bytes.len() {
        let message = format!("the buffer has room for {capacity} bytes, and {} are needed", bytes.len());
        return Err(CallError::new(Status::BUFFER_TOO_SMALL, message));
    }
    // SAFETY: the buffer has `capacity` bytes, which was compared above, and does not overlap
    // `bytes`.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer, bytes.len()) };
    Ok(())
}

impl TextBuffer {
    /// Copies as much of the text as fits, and a NUL.
    pub(super) fn write_fitting(&self, text: &[u8], capacity: usize) {
        if self.0.is_null() || capacity == 0 {
            return;
        }
        let text = fitting(std::str::from_utf8(text).unwrap_or_default(), capacity - 1).as_bytes();
        // SAFETY: C's promise (see `arguments`): the buffer has `capacity` bytes, and the text is
        // shorter.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), self.0.cast(), text.len());
            self.0.add(text.len()).write(0);
        }
    }
}

/// The longest start of the text that has at most `byte_len` bytes and ends between characters.
pub(super) fn fitting(text: &str, byte_len: usize) -> &str {
    let end = (0..=byte_len.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

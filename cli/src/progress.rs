//! A progress bar for reading and writing large files, shown on a terminal only.

use std::io::{IsTerminal, Read, Result, Write, stderr};

use indicatif::{ProgressBar, ProgressStyle};

/// Up to this many bytes there is no bar.
const SMALL: u64 = 16 << 20;

/// The most bytes that one call reads or writes, so that the bar also moves within a file.
const PIECE: usize = 1 << 20;

/// A bar for `total` bytes, which disappears when it is dropped. It is hidden if `total` is small,
/// or if standard error is not a terminal.
pub fn bar(what: &'static str, total: u64) -> ProgressBar {
    if total <= SMALL || !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} [{bar:40}] {bytes} of {total_bytes}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ");
    ProgressBar::new(total).with_style(style).with_message(what)
}

/// A file whose bytes a bar counts.
pub struct Counted<'a, T> {
    pub file: T,
    pub bar: &'a ProgressBar,
}

impl<T: Read> Read for Counted<'_, T> {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize> {
        let piece = bytes.len().min(PIECE);
        let count = self.file.read(&mut bytes[..piece])?;
        self.bar.inc(count as u64);
        Ok(count)
    }
}

impl<T: Write> Write for Counted<'_, T> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let count = self.file.write(&bytes[..bytes.len().min(PIECE)])?;
        self.bar.inc(count as u64);
        Ok(count)
    }

    fn flush(&mut self) -> Result<()> {
        self.file.flush()
    }
}

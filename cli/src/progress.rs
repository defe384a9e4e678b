//! A bar that shows how far reading or writing large files has come, for people only.

use std::io::{IsTerminal, Read, Result, Write, stderr};

use indicatif::{ProgressBar, ProgressStyle};

/// Up to so many bytes there is nothing to wait for.
const SMALL: u64 = 16 << 20;

/// The most that is read or written at once, so that the bar moves within a file too.
const PIECE: usize = 1 << 20;

/// A bar for so many bytes, which vanishes when it is dropped. It is hidden where they are few, and where standard error is
/// not a terminal.
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

//! Copies the ranks' output to the launcher's output.

use std::io::{BufRead, BufReader, Read, Result, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// After this long without output, the launcher stops waiting for a pipe that a rank's child still
/// holds open.
const QUIET: Duration = Duration::from_secs(1);

const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The threads that copy the ranks' output.
#[derive(Default)]
pub struct Output {
    /// Each thread with its rank.
    threads: Vec<(u32, JoinHandle<()>)>,
    traffic: Arc<Traffic>,
}

#[derive(Default)]
struct Traffic {
    bytes_read: AtomicU64,
    /// The number of threads that are writing. They wait for the reader of the launcher's output,
    /// not for a rank.
    writing: AtomicUsize,
}

impl Output {
    /// Copies a rank's output in whole lines, each with the rank's number as prefix.
    pub fn forward<W: Write + 'static>(
        &mut self,
        rank: u32,
        pipe: impl Read + Send + 'static,
        to: fn() -> W,
    ) -> Result<()> {
        let traffic = Arc::clone(&self.traffic);
        let thread = std::thread::Builder::new().spawn(move || {
            let mut lines = BufReader::new(Counted { pipe, traffic: &traffic });
            let mut line = Vec::new();
            while lines.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
                if !line.ends_with(b"\n") {
                    line.push(b'\n');
                }
                let mut text = format!("[{rank}] ").into_bytes();
                text.append(&mut line);
                traffic.writing.fetch_add(1, Ordering::Relaxed);
                // The reader may have gone. The rank goes on.
                let _ = to().write_all(&text);
                traffic.writing.fetch_sub(1, Ordering::Relaxed);
            }
        })?;
        self.threads.push((rank, thread));
        Ok(())
    }

    /// Whether every process has closed the rank's output.
    pub fn has_ended(&self, rank: u32) -> bool {
        self.threads.iter().filter(|(number, _)| *number == rank).all(|(_, thread)| thread.is_finished())
    }

    /// Waits until all output of the ranks is copied, or until `interrupted` returns true. The
    /// pipes close when the ranks end, unless a rank's child still holds one.
    pub fn drain(&self, mut interrupted: impl FnMut(Duration) -> bool) {
        let mut before = 0;
        let mut quiet_since = Instant::now();
        while self.threads.iter().any(|(_, thread)| !thread.is_finished()) && quiet_since.elapsed() < QUIET {
            if interrupted(POLL_INTERVAL) {
                return;
            }
            let bytes_read = self.traffic.bytes_read.load(Ordering::Relaxed);
            if bytes_read != before || self.traffic.writing.load(Ordering::Relaxed) > 0 {
                before = bytes_read;
                quiet_since = Instant::now();
            }
        }
    }
}

struct Counted<'a, R> {
    pipe: R,
    traffic: &'a Traffic,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize> {
        let count = self.pipe.read(bytes)?;
        self.traffic.bytes_read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

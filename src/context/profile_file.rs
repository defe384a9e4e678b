//! `DCL_PROFILE`: a file in which processes write the times of their layers, in the trace event
//! format of Chrome, which Perfetto opens. Its array needs no end, so processes append to it.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::thread::gettid;
use serde_json::json;

use super::profile::LayerTime;
use crate::error::{Result, error};
use crate::util::fork::ProcessGuard;
use crate::util::lock;
use crate::util::log::event;
use crate::util::settings::settings;

/// The file, which this process has opened.
pub(super) struct ProfileFile {
    process: ProcessGuard,
    output: Mutex<Output>,
}

struct Output {
    /// None after an error.
    file: Option<File>,
    /// The numbers that have a name in the file.
    named: HashSet<u32>,
}

impl ProfileFile {
    /// The file that `DCL_PROFILE` names.
    ///
    /// # Errors
    ///
    /// It cannot be opened.
    pub(super) fn of_environment() -> Result<Option<&'static Self>> {
        static FILE: OnceLock<Result<Option<ProfileFile>>> = OnceLock::new();
        let open = || settings()?.profile.as_deref().map(Self::open).transpose();
        FILE.get_or_init(open).as_ref().map(Option::as_ref).map_err(Clone::clone)
    }

    fn open(path: &Path) -> Result<Self> {
        // Events follow a comma, so there is one that changes nothing: rank 0 is the first.
        let first = json!({ "ph": "M", "name": "process_sort_index", "pid": 0, "args": { "sort_index": 0 } });
        let open = || {
            let nonblocking = libc::O_NONBLOCK;
            let mut file =
                OpenOptions::new().read(true).append(true).create(true).custom_flags(nonblocking).open(path)?;
            if !file.metadata()?.is_file() {
                return Err(std::io::Error::other("it is not a regular file"));
            }
            flock(&file, FlockOperation::LockExclusive)?;
            let mut begin = [0];
            match file.read(&mut begin)? {
                0 => write!(file, "[\n{first}")?,
                _ if begin == *b"[" => {}
                _ => return Err(std::io::Error::other("it has something else in it")),
            }
            flock(&file, FlockOperation::Unlock)?;
            Ok(file)
        };
        let file = open().map_err(|e| {
            error!(InvalidArgument, "DCL_PROFILE is {:?}, which cannot be written: {e}", path.display()).with_source(e)
        })?;
        let output = Mutex::new(Output { file: Some(file), named: HashSet::new() });
        Ok(ProfileFile { process: ProcessGuard::current(), output })
    }

    /// Writes the events of one run.
    pub(super) fn write(&self, rank: Option<u32>, events: &str) {
        // A thread that is not in this process may have the lock.
        if !self.process.is_current() {
            return;
        }
        let mut output = lock(&self.output);
        let lane = lane(rank);
        let mut text = String::new();
        if output.named.insert(lane) {
            let name = rank.map_or_else(|| format!("process {}", std::process::id()), |rank| format!("rank {rank}"));
            let name = json!({ "ph": "M", "name": "process_name", "pid": lane, "args": { "name": name } });
            text = format!(",\n{name}");
        }
        text += events;
        // In one piece, so that lines of several processes do not mix.
        if let Some(Err(error)) = output.file.as_mut().map(|file| file.write_all(text.as_bytes())) {
            event!(WARN, "the file of DCL_PROFILE cannot be written, and gets no more: {error}");
            output.file = None;
        }
    }
}

/// The number of a process in the file: the rank, or without a communicator one that no rank has.
fn lane(rank: Option<u32>) -> u32 {
    const MOST_RANKS: u32 = 1 << 16;
    rank.unwrap_or_else(|| MOST_RANKS + std::process::id())
}

/// Adds the event of a layer.
pub(super) fn add_event(events: &mut String, rank: Option<u32>, time: &LayerTime<'_>) {
    let LayerTime { layer, begin, duration, waited, input_bytes, output_bytes } = *time;
    let micros = |time: Duration| time.as_nanos() as f64 / 1e3;
    let mut details = json!({ "input_bytes": input_bytes, "output_bytes": output_bytes });
    if let Some(waited) = waited {
        details["wait_us"] = micros(waited).into();
        details["move_us"] = micros(duration.saturating_sub(waited)).into();
    }
    let event = json!({
        "ph": "X", "name": layer, "pid": lane(rank), "tid": gettid().as_raw_nonzero().get(),
        "ts": micros(begin), "dur": micros(duration), "args": details,
    });
    *events += &format!(",\n{event}");
}

//! `DCL_PROFILE`: a file in which processes write the times of their layers, in the trace event
//! format of Chrome, which Perfetto opens. Its array needs no end, so processes append to it.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::thread::gettid;
use serde_json::json;

use super::profile::LayerTime;
use crate::error::{Result, error};
use crate::util::log::event;
use crate::util::settings::settings;
use crate::util::{caused_by, lock};

/// The file, which this process has opened.
pub(super) struct ProfileFile {
    state: Mutex<State>,
}

struct State {
    /// None after an error.
    file: Option<File>,
    /// The ranks that have a name in the file.
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
        let open = || {
            let mut file = OpenOptions::new().append(true).create(true).open(path)?;
            flock(&file, FlockOperation::LockExclusive)?;
            if file.metadata()?.len() == 0 {
                file.write_all(b"[\n")?;
            }
            flock(&file, FlockOperation::Unlock)?;
            Ok(file)
        };
        let file = open().map_err(|e: std::io::Error| {
            let error = error!(InvalidArgument, "DCL_PROFILE is {:?}, which cannot be written", path.display());
            caused_by(error, "open", e)
        })?;
        let state = Mutex::new(State { file: Some(file), named: HashSet::new() });
        Ok(ProfileFile { state })
    }

    /// Writes the times of one run of a rank.
    pub(super) fn write<'a>(&self, rank: u32, times: impl Iterator<Item = LayerTime<'a>>) {
        let mut state = lock(&self.state);
        let mut lines = String::new();
        if state.named.insert(rank) {
            let name = json!({ "name": format!("rank {rank}") });
            lines += &format!("{},\n", json!({ "ph": "M", "name": "process_name", "pid": rank, "args": name }));
        }
        let micros = |time: Duration| time.as_nanos() as f64 / 1e3;
        let thread = gettid().as_raw_nonzero().get();
        for LayerTime { layer, begin, duration, waited, input_bytes, output_bytes } in times {
            let mut details = json!({ "input_bytes": input_bytes, "output_bytes": output_bytes });
            if let Some(waited) = waited {
                details["wait_us"] = micros(waited).into();
                details["move_us"] = micros(duration.saturating_sub(waited)).into();
            }
            let span = json!({
                "ph": "X", "name": layer, "pid": rank, "tid": thread,
                "ts": micros(begin), "dur": micros(duration), "args": details,
            });
            lines += &format!("{span},\n");
        }
        // In one piece, so that lines of several processes do not mix.
        if let Some(Err(error)) = state.file.as_mut().map(|file| file.write_all(lines.as_bytes())) {
            event!(WARN, "rank {rank}: the file of DCL_PROFILE cannot be written, and gets no more: {error}");
            state.file = None;
        }
    }
}

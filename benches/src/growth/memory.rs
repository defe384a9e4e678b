//! The memory of this process.

use std::ops::Sub;

use distcollective::{Communicator, Error, ErrorKind, ReduceOperation, Result};

/// Bytes in memory. What several processes have is divided among them.
#[derive(Clone, Copy, Default)]
pub struct Memory {
    pub private: i64,
    pub shared: i64,
}

impl Sub for Memory {
    type Output = Memory;

    fn sub(self, other: Memory) -> Memory {
        Memory { private: self.private - other.private, shared: self.shared - other.shared }
    }
}

pub fn of_this_process() -> Result<Memory> {
    let path = "/proc/self/smaps_rollup";
    let failed = |what: String| Error::new(ErrorKind::System, format!("{path}: {what}"));
    let text = std::fs::read_to_string(path).map_err(|e| failed(e.to_string()))?;
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<i64>().ok());
        kib.map(|kib| kib << 10).ok_or_else(|| failed(format!("no {name}")))
    };
    Ok(Memory { private: bytes("Pss_Anon:")?, shared: bytes("Pss_Shmem:")? })
}

/// The memory that all processes have more than before.
pub fn of_all_since(before: Memory, communicator: &Communicator, are_processes: bool) -> Result<Memory> {
    communicator.barrier()?;
    let own = of_this_process()? - before;
    let mut sum = [own.private, own.shared];
    if are_processes {
        communicator.all_reduce(&mut sum, ReduceOperation::Sum)?;
    }
    communicator.barrier()?;
    Ok(Memory { private: sum[0], shared: sum[1] })
}

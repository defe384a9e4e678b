//! Calls of several sizes, and calls in many groups.

use std::time::Instant;

use distcollective::{Communicator, Rank, ReduceOperation, Result};
use serde_json::{Value, json};

use super::Arguments;
use super::memory::{Memory, of_all_since};
use crate::time::{median, micros, powers, timed};

/// How often a time is taken.
const BATCHES: usize = 7;

/// The bytes that all calls of a batch move, and the most calls.
const BATCH: (u32, u32) = (8 << 20, 1000);

/// Measures on one communicator. Rank 0 prints.
pub fn measure(
    kind: &str,
    communicator: &Communicator,
    arguments: &Arguments,
    before: Memory,
    connect_us: f64,
) -> Result<()> {
    let ranks = communicator.world_size();
    let print = |more: Value| {
        if communicator.rank() == Rank(0) {
            let mut line = json!({ "ranks_are": kind, "ranks": ranks });
            if let (Some(line), Value::Object(more)) = (line.as_object_mut(), more) {
                line.extend(more);
            }
            println!("{line}");
        }
    };
    let memory = || of_all_since(before, communicator, kind == "processes");
    let Memory { private, shared } = memory()?;
    print(json!({
        "benchmark": "connect", "connect_us": connect_us, "private_bytes": private, "shared_bytes": shared,
    }));
    for bytes in powers(8, arguments.bytes, 8) {
        let time = all_reduce(communicator, bytes)?;
        print(json!({ "benchmark": "all_reduce", "bytes": bytes, "median_us": time }));
    }
    let Memory { private, shared } = memory()?;
    print(json!({ "benchmark": "memory_after_calls", "private_bytes": private, "shared_bytes": shared }));
    let mut groups = Vec::new();
    for count in powers(1, arguments.groups, 10).filter(|_| ranks == 2) {
        let (first, before) = (groups.len(), memory()?);
        let (time, ()) = timed(|| {
            while groups.len() < count as usize {
                groups.extend(communicator.split(Some(0), 0)?);
            }
            Ok(())
        })?;
        let call = groups.last().map(|group| all_reduce(group, 8)).transpose()?;
        let (made, memory) = ((groups.len() - first) as i64, memory()? - before);
        print(json!({
            "benchmark": "groups", "groups": count, "split_us": time / made as f64, "all_reduce_8_us": call,
            "private_bytes_each": memory.private / made, "shared_bytes_each": memory.shared / made,
        }));
    }
    Ok(())
}

/// The time of an all_reduce of floats in place.
fn all_reduce(communicator: &Communicator, bytes: u32) -> Result<f64> {
    let mut buffer = vec![0f32; bytes as usize / 4];
    let calls = (BATCH.0 / bytes).clamp(1, BATCH.1);
    let mut times = Vec::new();
    for _ in 0..BATCHES {
        communicator.barrier()?;
        let start = Instant::now();
        for _ in 0..calls {
            communicator.all_reduce(&mut buffer, ReduceOperation::Sum)?;
        }
        times.push(micros(start, calls));
    }
    Ok(median(times))
}

//! Ways of doing the same thing, measured in turns, so that a change of the machine's speed affects
//! all of them.

use std::time::{Duration, Instant};

use distcollective::{Communicator, ReduceOperation};
use serde_json::{Value, json};

use super::Options;
use crate::Result;
use crate::time::median;

/// The time of a batch of calls.
pub struct Times {
    /// Until the host has made the calls.
    pub host: Duration,
    /// Until the GPU has finished them.
    pub done: Duration,
}

impl Times {
    /// Makes calls with `enqueue`, then waits for them with `finish`.
    pub fn of<T>(
        kept: &mut T,
        enqueue: impl FnOnce(&mut T) -> Result<()>,
        finish: impl FnOnce(&mut T) -> Result<()>,
    ) -> Result<Self> {
        let begin = Instant::now();
        enqueue(kept)?;
        let host = begin.elapsed();
        finish(kept)?;
        Ok(Times { host, done: begin.elapsed() })
    }
}

/// One way of doing something. `batch` does it as many times as asked.
pub struct Way<'a> {
    pub name: &'static str,
    pub batch: Box<dyn FnMut(usize) -> Result<Times> + 'a>,
    /// Whether this way is the library's, whose time must be close to the bare call's.
    is_ours: bool,
}

impl<'a> Way<'a> {
    pub fn ours(name: &'static str, batch: impl FnMut(usize) -> Result<Times> + 'a) -> Self {
        Way { name, batch: Box::new(batch), is_ours: true }
    }

    pub fn bare(name: &'static str, batch: impl FnMut(usize) -> Result<Times> + 'a) -> Self {
        Way { name, batch: Box::new(batch), is_ours: false }
    }
}

/// The calls of a batch: far fewer than fit into a stream's queue.
pub fn batch_len(options: &Options) -> usize {
    if options.quick {
        4
    } else if options.is_no_op {
        512
    } else {
        32
    }
}

/// The nanoseconds of a call: until the host has made it, and until the GPU has finished it.
#[derive(Clone, Copy)]
pub struct Nanoseconds {
    host: f64,
    done: f64,
}

/// The median times of a call, for each way. It takes about `budget`, and makes a few rounds in any
/// case. Collective: ranks start each batch together, and make equally many rounds.
pub fn nanoseconds(
    options: &Options,
    communicator: &Communicator,
    budget: Duration,
    ways: &mut [Way<'_>],
) -> Result<Vec<Nanoseconds>> {
    let len = batch_len(options);
    let mut rounds = Vec::new();
    let mut run = |count: usize| -> Result<Duration> {
        let begin = Instant::now();
        for _ in 0..count {
            let mut round = Vec::with_capacity(ways.len());
            for turn in 0..ways.len() {
                // Each round starts with another way.
                let way = (rounds.len() + turn) % ways.len();
                communicator.barrier()?;
                round.push((way, (ways[way].batch)(len)?));
            }
            rounds.push(round);
        }
        Ok(begin.elapsed())
    };
    run(WARM_UP)?;
    let mut seconds = [(run(FEWEST)? / FEWEST as u32).as_secs_f32()];
    communicator.all_reduce(&mut seconds, ReduceOperation::Max)?;
    let most = if options.quick { FEWEST } else { MOST };
    run(((budget.as_secs_f32() / seconds[0]) as usize).clamp(FEWEST, most) - FEWEST)?;

    let median_of = |way: usize, part: fn(&Times) -> Duration| {
        let measured = rounds[WARM_UP..].iter().flatten().filter(|(of, _)| *of == way);
        median(measured.map(|(_, times)| part(times).as_nanos() as f64 / len as f64).collect())
    };
    let of_way =
        |way| Nanoseconds { host: median_of(way, |times| times.host), done: median_of(way, |times| times.done) };
    Ok((0..ways.len()).map(of_way).collect())
}

/// The rounds that are not measured, and the fewest and the most that are.
const WARM_UP: usize = 2;
const FEWEST: usize = 3;
const MOST: usize = 400;

/// The allowed time beyond the bare call: 2 % or 200 ns, whichever is larger.
fn allowed(bare: f64) -> f64 {
    (bare * 0.02).max(200.0)
}

/// Compares ways with the first one. The second way is the first once more; their difference is the
/// noise.
pub fn compare(benchmark: &str, place: &Value, ways: &[Way<'_>], times: &[Nanoseconds]) -> Vec<Value> {
    let bare = times[0];
    let rows = ways.iter().zip(times).skip(2).map(|(way, time)| {
        let difference = time.host - bare.host;
        json!({
            "benchmark": benchmark,
            "place": place,
            "way": way.name,
            "against": ways[0].name,
            "ns": round(time.host),
            "bare_ns": round(bare.host),
            "difference_ns": round(difference),
            "allowed_ns": round(allowed(bare.host)),
            "noise_ns": round((times[1].host - bare.host).abs()),
            "done_ns": round(time.done),
            "bare_done_ns": round(bare.done),
            "ok": way.is_ours.then_some(difference <= allowed(bare.host)),
        })
    });
    rows.collect()
}

/// Rounds to a tenth.
pub fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

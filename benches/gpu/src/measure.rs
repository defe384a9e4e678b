//! Ways of doing the same thing, measured in turns, so that a change of the machine's speed affects
//! all of them.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{Options, Result};

/// One way of doing something. `batch` does it as many times as asked, and returns the host's time
/// for that.
pub struct Way<'a> {
    pub name: &'static str,
    pub batch: Box<dyn FnMut(usize) -> Result<Duration> + 'a>,
    /// Whether this way is the library's, whose time must be close to the bare call's.
    is_ours: bool,
}

impl<'a> Way<'a> {
    pub fn ours(name: &'static str, batch: impl FnMut(usize) -> Result<Duration> + 'a) -> Self {
        Way { name, batch: Box::new(batch), is_ours: true }
    }

    pub fn bare(name: &'static str, batch: impl FnMut(usize) -> Result<Duration> + 'a) -> Self {
        Way { name, batch: Box::new(batch), is_ours: false }
    }
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The calls of a batch: far fewer than fit into a stream's queue.
pub fn batch_len(options: &Options) -> usize {
    if options.quick { 4 } else { 32 }
}

/// The median nanoseconds of a call, for each way. `align` is called before every batch, so that
/// ranks start together.
pub fn nanoseconds(options: &Options, ways: &mut [Way<'_>], align: impl Fn() -> Result<()>) -> Result<Vec<f64>> {
    let (warm_up, rounds) = if options.quick { (1, 3) } else { (20, 400) };
    let len = batch_len(options);
    let mut times = vec![Vec::with_capacity(rounds); ways.len()];
    for round in 0..warm_up + rounds {
        for turn in 0..ways.len() {
            // Each round starts with another way.
            let way = (round + turn) % ways.len();
            align()?;
            let time = (ways[way].batch)(len)?;
            if round >= warm_up {
                times[way].push(time.as_nanos() as f64 / len as f64);
            }
        }
    }
    Ok(times.into_iter().map(median).collect())
}

/// The allowed time beyond the bare call: 2 % or 200 ns, whichever is larger.
fn allowed(bare: f64) -> f64 {
    (bare * 0.02).max(200.0)
}

/// Compares ways with the first one. The second way is the first once more; their difference is the
/// noise.
pub fn compare(benchmark: &str, place: &Value, ways: &[Way<'_>], times: &[f64]) -> Vec<Value> {
    let bare = times[0];
    let rows = ways.iter().zip(times).skip(2).map(|(way, &time)| {
        json!({
            "benchmark": benchmark,
            "place": place,
            "way": way.name,
            "against": ways[0].name,
            "ns": round(time),
            "bare_ns": round(bare),
            "difference_ns": round(time - bare),
            "allowed_ns": round(allowed(bare)),
            "noise_ns": round((times[1] - bare).abs()),
            "ok": way.is_ours.then_some(time - bare <= allowed(bare)),
        })
    });
    rows.collect()
}

/// Rounds to a tenth.
pub fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

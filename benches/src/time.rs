//! Times and their medians.

use std::time::Instant;

use distcollective::Result;

/// Does something, and says how many microseconds that took.
pub fn timed<T>(body: impl FnOnce() -> Result<T>) -> Result<(f64, T)> {
    let start = Instant::now();
    let value = body()?;
    Ok((micros(start, 1), value))
}

/// The microseconds of each of `count` calls since `start`.
pub fn micros(start: Instant, count: u32) -> f64 {
    (start.elapsed().as_secs_f64() * 1e9 / f64::from(count)).round() / 1e3
}

/// The median; NaN if there are no values.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The median microseconds of a call: of `samples` samples of `calls` calls, after one more sample.
pub fn median_micros(samples: u32, calls: u32, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::new();
    for sample in 0..=samples {
        let start = Instant::now();
        for _ in 0..calls {
            call()?;
        }
        if sample > 0 {
            times.push(micros(start, calls));
        }
    }
    Ok(median(times))
}

/// Numbers from `least` to `most`, each `factor` times the one before.
pub fn powers(least: u32, most: u32, factor: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(least), move |number| number.checked_mul(factor)).take_while(move |n| *n <= most)
}

//! Measures each transpose and a copy of its bytes, once, and prints one JSON object per line.
//! `benches/micro/beside_torch.py` runs it in alternation with numpy and torch.

use std::process::ExitCode;
use std::time::Instant;

use distcollective::Result;
use micro_bench::{CASES, Transpose};
use serde_json::json;

/// How often each is timed; the median counts.
const RUNS: usize = 9;

fn median_us(mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    run()?;
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let start = Instant::now();
        run()?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[RUNS / 2])
}

fn measure() -> Result<()> {
    for case in CASES {
        let mut transpose = Transpose::new(case)?;
        let (copy, time) = (median_us(|| transpose.copy())?, median_us(|| transpose.run())?);
        let (dims, permutation) = (case.dims, case.permutation);
        println!(
            "{}",
            json!({
                "data_type": case.data_type.name(), "dims": dims, "permutation": permutation, "copy_us": copy, "ours_us": time,
            })
        );
    }
    Ok(())
}

fn main() -> ExitCode {
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

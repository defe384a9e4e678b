//! What this machine's memory allows: a copy by two threads, each from a buffer of its own into
//! another.

use std::sync::Barrier;
use std::time::Instant;

/// The length of each buffer.
pub const BYTES: usize = 64 << 20;

const ROUNDS: usize = 15;

/// The bytes that both threads together copy per second, in GB/s: the median of some rounds.
pub fn two_threads() -> f64 {
    let barrier = Barrier::new(2);
    let run = || {
        let (source, mut target) = (vec![1u8; BYTES], vec![2u8; BYTES]);
        let mut seconds = Vec::new();
        for _ in 0..ROUNDS {
            barrier.wait();
            let start = Instant::now();
            target.copy_from_slice(std::hint::black_box(&source));
            std::hint::black_box(&target);
            seconds.push(start.elapsed().as_secs_f64());
        }
        seconds
    };
    let mut slower: Vec<f64> = std::thread::scope(|scope| {
        let other = scope.spawn(run);
        let own = run();
        let other = other.join().unwrap_or_default();
        own.into_iter().zip(other).map(|(a, b)| a.max(b)).collect()
    });
    slower.sort_by(f64::total_cmp);
    slower.get(slower.len() / 2).map_or(0.0, |seconds| super::gigabytes_per_second(2 * BYTES as u64, *seconds))
}

//! Streams of random numbers from one seed.

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;

/// One of the streams of a seed. Streams never overlap.
pub(super) fn stream(seed: u64, number: u64) -> ChaCha20Rng {
    let mut rng = ChaCha20Rng::seed_from_u64(seed);
    rng.set_stream(number);
    rng
}

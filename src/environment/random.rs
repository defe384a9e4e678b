//! Streams of random numbers from one seed.

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// One of the streams of a seed. Streams never overlap.
pub(super) fn stream(seed: u64, number: u64) -> ChaCha20Rng {
    let mut rng = ChaCha20Rng::seed_from_u64(seed);
    rng.set_stream(number);
    rng
}

/// The first number of a stream.
pub(super) fn first(mut rng: ChaCha20Rng) -> u64 {
    rng.next_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_a_seed_are_the_same_everywhere_and_apart() {
        assert_eq!(first(stream(1024, 0)), first(stream(1024, 0)));
        let firsts: std::collections::HashSet<u64> = (0..100).map(|number| first(stream(1024, number))).collect();
        assert_eq!(firsts.len(), 100);
        assert_ne!(first(stream(1024, 0)), first(stream(1025, 0)));
    }
}

//! Streams of random numbers from one seed.

use std::fmt;

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A stream of random numbers: ChaCha20 from a seed. Equal seeds and stream numbers give equal
/// numbers on every machine and in every version of this crate. Streams of one seed do not overlap.
///
/// To use another crate's generators, seed one with [`fill_bytes`](Self::fill_bytes).
///
/// The numbers are those of rand_chacha's `ChaCha20Rng::seed_from_u64(seed)` after
/// `set_stream(stream)`.
///
/// ```
/// use distcollective::environment::Generator;
///
/// let mut common = Generator::new(1024, 0);
/// assert_eq!(common.next_u64(), Generator::new(1024, 0).next_u64());
/// assert_ne!(common.next_u64(), Generator::new(1024, 1).next_u64());
/// let mut seed = [0; 32];
/// common.fill_bytes(&mut seed); // for `StdRng::from_seed(seed)`
/// ```
#[derive(Clone)]
pub struct Generator {
    numbers: ChaCha20Rng,
    seed: u64,
    stream: u64,
}

impl Generator {
    /// The stream with this number of a seed, from its beginning.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut numbers = ChaCha20Rng::seed_from_u64(seed);
        numbers.set_stream(stream);
        Generator { numbers, seed, stream }
    }

    /// The next 32 bits.
    pub fn next_u32(&mut self) -> u32 {
        self.numbers.next_u32()
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.numbers.next_u64()
    }

    /// Fills a slice with the next bytes.
    pub fn fill_bytes(&mut self, bytes: &mut [u8]) {
        self.numbers.fill_bytes(bytes);
    }

    /// The seed that it was made with.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The stream's number.
    pub fn stream(&self) -> u64 {
        self.stream
    }
}

impl fmt::Debug for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Generator { seed, stream, .. } = self;
        f.debug_struct("Generator").field("seed", seed).field("stream", stream).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_a_seed_are_the_same_everywhere_and_apart() {
        let first = |seed, stream| Generator::new(seed, stream).next_u64();
        let firsts: std::collections::HashSet<u64> = (0..100).map(|stream| first(1024, stream)).collect();
        assert_eq!(firsts.len(), 100);
        assert_ne!(first(1024, 0), first(1025, 0));
    }

    /// Programs may have stored what they drew.
    #[test]
    fn the_numbers_stay_the_same() {
        let [mut generator, mut other] = [Generator::new(1024, 1), Generator::new(1024, 1)];
        let drawn = [&mut generator, &mut other].map(|generator| (generator.next_u64(), generator.next_u32()));
        assert_eq!(drawn, [(6853284172719915149, 4098017785); 2]);
        let mut bytes = [0; 4];
        generator.fill_bytes(&mut bytes);
        assert_eq!(u32::from_le_bytes(bytes), other.next_u32());
        assert_eq!(format!("{generator:?}"), "Generator { seed: 1024, stream: 1, .. }");
    }
}

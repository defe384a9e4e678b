//! Streams of random numbers from one seed.

use std::fmt;

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
    key: [u32; 8],
    seed: u64,
    stream: u64,
    /// The number of the next block.
    counter: u64,
    block: [u32; 16],
    /// How many words of the block were drawn.
    drawn: usize,
}

impl Generator {
    /// The stream with this number of a seed, from its beginning.
    pub fn new(seed: u64, stream: u64) -> Self {
        Generator { key: key_of(seed), seed, stream, counter: 0, block: [0; 16], drawn: 16 }
    }

    /// The next 32 bits.
    pub fn next_u32(&mut self) -> u32 {
        if self.drawn == self.block.len() {
            self.block = chacha20(&self.key, self.counter, self.stream);
            self.counter = self.counter.wrapping_add(1);
            self.drawn = 0;
        }
        self.drawn += 1;
        self.block[self.drawn - 1]
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let low = self.next_u32();
        u64::from(low) | u64::from(self.next_u32()) << 32
    }

    /// Fills a slice with the next bytes. What is left of the last 32 bits is dropped.
    pub fn fill_bytes(&mut self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(4) {
            part.copy_from_slice(&self.next_u32().to_le_bytes()[..part.len()]);
        }
    }
}

impl fmt::Debug for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Generator { seed, stream, .. } = self;
        f.debug_struct("Generator").field("seed", seed).field("stream", stream).finish_non_exhaustive()
    }
}

/// The key that rand_core makes of a seed: eight numbers of the generator PCG XSH RR 64/32.
fn key_of(mut state: u64) -> [u32; 8] {
    std::array::from_fn(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(11_634_580_027_462_260_723);
        let shifted = (((state >> 18) ^ state) >> 27) as u32;
        shifted.rotate_right((state >> 59) as u32)
    })
}

/// A block of ChaCha20 (RFC 8439, 2.3), with 64 bits each for counter and nonce, as in Bernstein's
/// original.
fn chacha20(key: &[u32; 8], counter: u64, nonce: u64) -> [u32; 16] {
    let mut start = [0; 16];
    // "expand 32-byte k".
    start[..4].copy_from_slice(&[0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574]);
    start[4..12].copy_from_slice(key);
    start[12..].copy_from_slice(&[counter as u32, (counter >> 32) as u32, nonce as u32, (nonce >> 32) as u32]);
    let mut words = start;
    for _ in 0..10 {
        for column in 0..4 {
            quarter_round(&mut words, [0, 1, 2, 3].map(|row| 4 * row + column));
        }
        for diagonal in 0..4 {
            quarter_round(&mut words, [0, 1, 2, 3].map(|row| 4 * row + (diagonal + row) % 4));
        }
    }
    std::array::from_fn(|i| words[i].wrapping_add(start[i]))
}

fn quarter_round(words: &mut [u32; 16], [a, b, c, d]: [usize; 4]) {
    for (to, from, mixed, distance) in [(a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)] {
        words[to] = words[to].wrapping_add(words[from]);
        words[mixed] = (words[mixed] ^ words[to]).rotate_left(distance);
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha20Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn the_numbers_are_those_of_rand_chacha() {
        for (seed, stream) in [(0, 0), (1024, 1), (u64::MAX, 1 << 63 | 5)] {
            let (mut own, mut theirs) = (Generator::new(seed, stream), ChaCha20Rng::seed_from_u64(seed));
            theirs.set_stream(stream);
            for round in 0..200 {
                assert_eq!(own.next_u64(), theirs.next_u64());
                assert_eq!(own.next_u32(), theirs.next_u32());
                let (mut a, mut b) = (vec![0; round], vec![0; round]);
                own.fill_bytes(&mut a);
                theirs.fill_bytes(&mut b);
                assert_eq!(a, b);
            }
        }
    }

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

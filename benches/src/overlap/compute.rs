//! Computation of one thread, in steps of less than a tenth of a millisecond.

use std::hint::black_box;

/// The elements of a step in the cache, and how often it passes over them.
const FEW: usize = 4096;
const PASSES: usize = 16;

/// The elements of a step in memory, and all of them: more than a processor's cache holds.
const MANY: usize = 64 << 10;
const ALL: usize = 16 << 20;

/// One kind of computation.
pub struct Computation {
    name: &'static str,
    elements: Vec<f32>,
    step: usize,
    passes: usize,
    next: usize,
}

impl Computation {
    /// Multiplications and additions on a few elements: what computes, not what waits for memory.
    pub fn in_cache() -> Self {
        Computation { name: "in the cache", elements: vec![1.0; FEW], step: FEW, passes: PASSES, next: 0 }
    }

    /// One multiplication and addition for each element of a long vector, which memory limits.
    pub fn in_memory() -> Self {
        Computation { name: "in memory", elements: vec![1.0; ALL], step: MANY, passes: 1, next: 0 }
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    pub fn run(&mut self, steps: u32) {
        for _ in 0..steps {
            let part = &mut self.elements[self.next..self.next + self.step];
            for _ in 0..self.passes {
                part.iter_mut().for_each(|x| *x = *x * 0.999 + 0.001);
                black_box(&*part);
            }
            self.next = (self.next + self.step) % self.elements.len();
        }
    }
}

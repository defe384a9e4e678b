//! The floating-point environment of reductions and casts: nearest even, no flush to zero, whatever
//! the caller has set.
//!
//! To the compiler, the instructions that change it may read and write all memory. So it does not
//! move loads, stores and the arithmetic between them across these instructions. Arithmetic whose
//! result is not stored may move.

/// The control register MXCSR.
#[cfg(target_arch = "x86_64")]
mod control {
    use std::arch::asm;

    pub(super) type Value = u32;

    /// All exceptions masked, nearest even, denormals kept: the value after reset (Intel SDM 1,
    /// 10.2.3).
    pub(super) const DEFAULT: Value = 0x1f80;
    /// The sticky exception flags, which arithmetic sets and which change no result.
    pub(super) const FLAGS: Value = 0x3f;
    /// Flush to zero, denormals are zeros, round up.
    #[cfg(test)]
    pub(super) const UNUSUAL: Value = DEFAULT | 1 << 15 | 1 << 6 | 2 << 13;

    #[inline(always)]
    pub(super) fn read() -> Value {
        let mut value = 0;
        // SAFETY: stores the register to a local variable.
        unsafe { asm!("stmxcsr [{}]", in(reg) &mut value, options(nostack)) };
        value
    }

    /// # Safety
    ///
    /// Until the thread has written [`DEFAULT`] or what it had before, it runs no other code that
    /// depends on the environment.
    #[inline(always)]
    pub(super) unsafe fn write(value: Value) {
        // SAFETY: loads a local variable; the caller promises the rest.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &value, options(nostack)) };
    }
}

/// The control register FPCR.
#[cfg(target_arch = "aarch64")]
mod control {
    use std::arch::asm;

    pub(super) type Value = u64;

    /// Nearest even, denormals kept, IEEE's float16, NaN kept, no exception trapped.
    pub(super) const DEFAULT: Value = 0;
    /// The exception flags are in another register.
    pub(super) const FLAGS: Value = 0;
    /// A float16 without infinities, flush to zero, round up.
    #[cfg(test)]
    pub(super) const UNUSUAL: Value = 1 << 26 | 1 << 24 | 1 << 22;

    #[inline(always)]
    pub(super) fn read() -> Value {
        let value;
        // SAFETY: reads the register.
        unsafe { asm!("mrs {}, fpcr", out(reg) value, options(nostack)) };
        value
    }

    /// # Safety
    ///
    /// Until the thread has written [`DEFAULT`] or what it had before, it runs no other code that
    /// depends on the environment.
    #[inline(always)]
    pub(super) unsafe fn write(value: Value) {
        // SAFETY: the caller's promise.
        unsafe { asm!("msr fpcr, {}", in(reg) value, options(nostack)) };
    }
}

/// Runs `work` in the default floating-point environment of the processor, and restores the
/// caller's.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) fn with_default<T>(work: impl FnOnce() -> T) -> T {
    struct Restore(control::Value);
    impl Drop for Restore {
        fn drop(&mut self) {
            // SAFETY: this is what the thread had before.
            unsafe { control::write(self.0) };
        }
    }

    let current = control::read();
    if current & !control::FLAGS == control::DEFAULT {
        return work();
    }
    let _restore = Restore(current);
    // SAFETY: this is the environment that Rust assumes; the drop of `_restore` restores the
    // caller's.
    unsafe { control::write(control::DEFAULT) };
    work()
}

/// On other processors the library does not change the environment.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) fn with_default<T>(work: impl FnOnce() -> T) -> T {
    work()
}

/// Runs `work` in an environment that flushes to zero and rounds up.
#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) fn in_an_unusual_one<T>(work: impl FnOnce() -> T) -> T {
    let before = control::read();
    // SAFETY: `work` is the test of this environment; the default follows.
    unsafe { control::write(control::UNUSUAL) };
    let result = work();
    // SAFETY: this is what the thread had before.
    unsafe { control::write(before) };
    result
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use std::hint::black_box;

    use super::*;

    #[test]
    fn a_caller_that_flushes_to_zero_does_not_change_results() {
        // The outer `black_box` is the store.
        let half_of_the_smallest = || black_box(black_box(f32::MIN_POSITIVE) / black_box(2.0));
        let (flushed, kept, after) =
            in_an_unusual_one(|| (half_of_the_smallest(), with_default(half_of_the_smallest), control::read()));
        assert_eq!(flushed, 0.0, "the test's own setting has an effect");
        assert_eq!(kept, f32::from_bits(0x0040_0000));
        assert_eq!(after & !control::FLAGS, control::UNUSUAL, "the caller's environment is back");
    }
}

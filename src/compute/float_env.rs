//! The floating-point environment of reductions and casts: nearest even, no flush to zero, whatever
//! the caller has set.
//!
//! To the compiler, the instructions that change it may read and write all memory. So it does not
//! move loads, stores and the arithmetic between them across these instructions.

/// Runs `work` in the default floating-point environment of the processor, and restores the
/// caller's.
#[cfg(target_arch = "x86_64")]
pub(super) fn with_default<T>(work: impl FnOnce() -> T) -> T {
    use std::arch::asm;

    /// All exceptions masked, nearest even, denormals kept: the value after reset (Intel SDM 1,
    /// 10.2.3).
    const DEFAULT: u32 = 0x1f80;
    /// The sticky exception flags, which arithmetic sets and which change no result.
    const FLAGS: u32 = 0x3f;

    struct Restore(u32);
    impl Drop for Restore {
        fn drop(&mut self) {
            // SAFETY: loads a value that `stmxcsr` gave on this thread.
            unsafe { asm!("ldmxcsr [{}]", in(reg) &self.0, options(nostack)) };
        }
    }

    let mut current = 0u32;
    // SAFETY: stores the control register to a local variable.
    unsafe { asm!("stmxcsr [{}]", in(reg) &mut current, options(nostack)) };
    if current & !FLAGS == DEFAULT {
        return work();
    }
    let _restore = Restore(current);
    // SAFETY: this is the environment that Rust assumes; the drop of `_restore` restores the
    // caller's.
    unsafe { asm!("ldmxcsr [{}]", in(reg) &DEFAULT, options(nostack)) };
    work()
}

/// Runs `work` in the default floating-point environment of the processor, and restores the
/// caller's.
#[cfg(target_arch = "aarch64")]
pub(super) fn with_default<T>(work: impl FnOnce() -> T) -> T {
    use std::arch::asm;

    struct Restore(u64);
    impl Drop for Restore {
        fn drop(&mut self) {
            // SAFETY: writes back a value that was read on this thread.
            unsafe { asm!("msr fpcr, {}", in(reg) self.0, options(nostack)) };
        }
    }

    let current: u64;
    // SAFETY: reads the control register.
    unsafe { asm!("mrs {}, fpcr", out(reg) current, options(nostack, nomem)) };
    if current == 0 {
        return work();
    }
    let _restore = Restore(current);
    // SAFETY: zero is the default environment, which Rust assumes; the drop of `_restore` restores
    // the caller's.
    unsafe { asm!("msr fpcr, xzr", options(nostack)) };
    work()
}

/// On other processors the library does not change the environment.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) fn with_default<T>(work: impl FnOnce() -> T) -> T {
    work()
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::arch::asm;
    use std::hint::black_box;

    fn control() -> u32 {
        let mut value = 0u32;
        // SAFETY: stores the control register to a local variable.
        unsafe { asm!("stmxcsr [{}]", in(reg) &mut value, options(nostack)) };
        value
    }

    fn set_control(value: u32) {
        // SAFETY: the test below restores the default before other floating-point code runs.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &value, options(nostack, readonly)) };
    }

    #[test]
    fn a_caller_that_flushes_to_zero_does_not_change_results() {
        let before = control();
        const FLUSH_AND_ROUND_UP: u32 = 0x1f80 | 1 << 15 | 1 << 6 | 2 << 13;
        set_control(FLUSH_AND_ROUND_UP);
        let flushed = black_box(f32::MIN_POSITIVE) / black_box(2.0);
        let kept = super::with_default(|| black_box(f32::MIN_POSITIVE) / black_box(2.0));
        let after = control();
        set_control(before);
        assert_eq!(flushed, 0.0, "the test's own setting has an effect");
        assert_eq!(kept, f32::from_bits(0x0040_0000));
        assert_eq!(after & !0x3f, FLUSH_AND_ROUND_UP, "the caller's environment is back");
    }
}

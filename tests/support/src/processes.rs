//! Other processes of this machine, by their numbers.

use std::time::{Duration, Instant};

/// Waits until a condition holds.
///
/// # Panics
///
/// It does not hold within 9 s.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(9);
    while !condition() {
        assert!(Instant::now() < end, "not before the deadline: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The state of a process as `ps` shows it: `S` for one that sleeps, `T` for a stopped one. `None`
/// if it has ended.
pub fn state(pid: u32) -> Option<char> {
    let state = fields(pid)?.0;
    (!matches!(state, 'Z' | 'X')).then_some(state)
}

/// The processes that a process has started and that have not ended.
///
/// # Panics
///
/// `/proc` cannot be read.
pub fn children(parent: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("/proc");
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| state(*pid).is_some() && fields(*pid).is_some_and(|(_, of)| of == parent)).collect()
}

/// The state and the parent of a process.
fn fields(pid: u32) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // `7 (a name) S 1 ...`: the name may contain any characters.
    let mut fields = stat.rsplit(')').next()?.split_ascii_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

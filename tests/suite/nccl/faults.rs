//! What goes wrong.

/// Plays a role in a child.
pub fn play(name: &str, _ranks: u32) {
    panic!("{name} is no role")
}

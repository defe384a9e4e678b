//! How errors and logs write counts and lists of numbers.

/// Lists ranks as a sentence does: `rank 3`, `ranks 0, 1 and 3`.
pub(crate) fn list_ranks(ranks: impl IntoIterator<Item = u32>) -> String {
    list_of("rank", ranks)
}

/// Lists numbered things: `GPU 3`, `GPUs 0, 1 and 3`.
pub(crate) fn list_of(noun: &str, numbers: impl IntoIterator<Item = u32>) -> String {
    let numbers: Vec<String> = numbers.into_iter().map(|number| number.to_string()).collect();
    match numbers.as_slice() {
        [] => format!("no {noun}"),
        [one] => format!("{noun} {one}"),
        [first @ .., last] => format!("{noun}s {} and {last}", first.join(", ")),
    }
}

/// `1 rank`, `4 ranks`.
pub(crate) fn count_of(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

//! How errors and logs write counts, lists of numbers and long names.

use std::borrow::Cow;

/// Lists ranks as a sentence does: `rank 3`, `ranks 0, 1 and 3`.
pub(crate) fn list_ranks(ranks: impl IntoIterator<Item = u32>) -> String {
    let ranks: Vec<String> = ranks.into_iter().map(|rank| rank.to_string()).collect();
    match ranks.as_slice() {
        [] => "no rank".to_owned(),
        [one] => format!("rank {one}"),
        [first @ .., last] => format!("ranks {} and {last}", first.join(", ")),
    }
}

/// `1 rank`, `4 ranks`.
pub(crate) fn count_of(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// A text of at most some 120 bytes: a longer one with its middle left out.
pub(crate) fn clipped(text: &str) -> Cow<'_, str> {
    const SIDE: usize = 60;
    if text.len() <= 2 * SIDE {
        return Cow::Borrowed(text);
    }
    let start = (0..=SIDE).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    let end = (text.len() - SIDE..text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len());
    Cow::Owned(format!("{}…{}", &text[..start], &text[end..]))
}

/// The longest start of a text that is at most this many bytes.
pub(crate) fn start_of(text: &str, most_bytes: usize) -> &str {
    let end = (0..=most_bytes.min(text.len())).rev().find(|&at| text.is_char_boundary(at));
    &text[..end.unwrap_or(0)]
}

/// A text that a peer wrote, which may be any bytes. Control characters, except line breaks, are
/// replaced.
pub(crate) fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace(|c: char| c.is_control() && c != '\n', "\u{fffd}")
}

/// A name from a file that anyone may have written, on one line. Characters that are not printable,
/// such as line breaks and those that turn the direction of writing, are escaped.
pub(crate) fn on_one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\'' | '\\' => line.push(c),
            c => line.extend(c.escape_debug()),
        }
    }
    line
}

/// `==`, which is no constant function.
pub(crate) const fn is_same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

#[test]
fn a_long_text_is_clipped_between_characters() {
    assert_eq!(clipped("short"), "short");
    let text = "é".repeat(100);
    assert_eq!(clipped(&text), format!("{}…{}", "é".repeat(30), "é".repeat(30)));
    let text = format!("x{text}");
    assert_eq!(clipped(&text), format!("x{}…{}", "é".repeat(29), "é".repeat(30)));
}

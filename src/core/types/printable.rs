//! Text that others have written, in a form that may be shown.
//!
//! What is in a lock store, what a server answers and what an operator types may have any character. A terminal obeys some
//! characters, a bus disconnects a client that sends it a NUL, sd_notify(3) takes the line after a newline for a message of its
//! own, and characters that change the direction of writing make a line say something else. So all such text goes through
//! [`printable`] or [`shortened`] on its way to the journal, the bus, a terminal or systemd's status line.

use std::{
    borrow::{Borrow, Cow},
    fmt::Write as _,
    iter,
};

use serde::{Deserialize, Deserializer};

/// `text` with each character that cannot be printed written as an escape: `\n`, `\u{1b}` and so on. A backslash stays as it is.
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_printable) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_printable(character) {
            shown.push(character);
        } else {
            shown.extend(character.escape_debug());
        }
    }
    Cow::Owned(shown)
}

/// [`printable`], line by line: for text of several lines whose newlines putexd has put there itself.
pub fn printable_lines(text: &str) -> String {
    let lines: Vec<Cow<'_, str>> = text.split('\n').map(printable).collect();
    lines.join("\n")
}

/// The text of an error and of all its causes, on one line.
pub fn with_sources(error: &dyn std::error::Error) -> String {
    let causes = iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        if text.contains(&cause) {
            text
        } else {
            format!("{text}: {cause}")
        }
    })
}

/// [`printable`], and at most `limit` characters long. An ellipsis at the end tells that something was left out.
pub fn shortened(text: &str, limit: usize) -> String {
    // Text that is cut anyway is not read to its end, which may be a megabyte away: no character becomes shorter when it is
    // escaped.
    let whole = text
        .char_indices()
        .nth(limit + 1)
        .map_or(text, |(end, _)| &text[..end]);
    cut(&printable(whole), limit)
}

/// The most characters of an operator's free text, so that a record of a lock stays small.
const TEXT_LIMIT: usize = 256;

/// For serde: a text that is printable and short, whatever the writer has sent.
pub(crate) fn short_text<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    String::deserialize(from).map(|text| short(&text))
}

/// For serde: [`short_text`], if there is one.
pub(crate) fn short_if_any<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<String>::deserialize(from)?.as_deref().map(short))
}

/// An operator's text as a record can have it.
pub(crate) fn short(text: &str) -> String {
    shortened(text, TEXT_LIMIT)
}

/// Bytes as text of at most `limit` characters. Bytes that are not UTF-8 are written `\xff`.
pub(super) fn shown_bytes(bytes: &[u8], limit: usize) -> String {
    let mut shown = String::new();
    for chunk in bytes[..bytes.len().min(4 * (limit + 1))].utf8_chunks() {
        shown.push_str(&printable(chunk.valid()));
        for byte in chunk.invalid() {
            // Writing to a string does not fail.
            let _ = write!(shown, "\\x{byte:02x}");
        }
    }
    cut(&shown, limit)
}

/// `a, b, c and 5 more`: the first `limit` of `names`, and how many others there are.
pub fn first_named<T: Borrow<str>>(names: &[T], limit: usize) -> String {
    let shown = names[..names.len().min(limit)].join(", ");
    match names.len().saturating_sub(limit) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Whether a character can be shown as it is wherever text is shown.
pub fn is_printable(character: char) -> bool {
    matches!(character, '"' | '\'' | '\\') || character.escape_debug().len() == 1
}

fn cut(text: &str, limit: usize) -> String {
    if text.chars().nth(limit).is_none() {
        return text.to_owned();
    }
    text.chars()
        .take(limit.saturating_sub(1))
        .chain(['…'])
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_a_terminal_a_bus_or_systemd_would_obey_is_shown() {
        assert_eq!(printable("h2\nMAINPID=17"), "h2\\nMAINPID=17");
        assert_eq!(
            printable("\u{1b}[31m\0\u{9b}\u{7f}"),
            "\\u{1b}[31m\\0\\u{9b}\\u{7f}"
        );
        assert_eq!(
            printable("a\u{202e}b\u{feff}\u{2028}"),
            "a\\u{202e}b\\u{feff}\\u{2028}"
        );
        for plain in ["", "h1", "k\u{f6}ln \"it's\" \\x41", "\u{4e2d}"] {
            assert!(
                matches!(printable(plain), Cow::Borrowed(text) if text == plain),
                "{plain}"
            );
        }
        assert_eq!(printable_lines("a\tb\nc\r\n"), "a\\tb\nc\\r\n");
    }

    #[test]
    fn what_is_too_long_is_cut_and_says_so() {
        assert_eq!(shortened("abcd", 4), "abcd");
        assert_eq!(shortened("abcde", 4), "abc…");
        assert_eq!(shortened("\n\n\n", 4), "\\n\\…");
        assert_eq!(shown_bytes(b"a\xff\x1b\xc3\xb6", 20), "a\\xff\\u{1b}\u{f6}");
        assert_eq!(shown_bytes(&[b'x'; 1000], 3), "xx…");
    }

    #[test]
    fn as_many_are_named_as_there_is_room_for_and_the_others_are_counted() {
        let names = ["a", "b", "c"];
        let shown = [3, 2, 1].map(|limit| first_named(&names, limit));
        assert_eq!(shown, ["a, b, c", "a, b and 1 more", "a and 2 more"]);
        assert_eq!(first_named::<&str>(&[], 2), "");
    }

    proptest! {
        #[test]
        fn nothing_that_is_shown_is_a_control_character(text: String, bytes: Vec<u8>, limit in 1_usize..40) {
            let harmless = |shown: &str| shown.chars().all(|character| is_printable(character) && !character.is_control());
            prop_assert!(harmless(&printable(&text)));
            let once = printable(&text);
            prop_assert_eq!(printable(&once), &*once);
            for shown in [shortened(&text, limit), shown_bytes(&bytes, limit)] {
                prop_assert!(harmless(&shown) && shown.chars().count() <= limit);
            }
        }
    }
}

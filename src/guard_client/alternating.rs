//! A file that begins with two lines which are written in turn, in place. That takes no additional space, and a tenth of the
//! time that replacing the file takes. If a line is read while it is written, or after its writer died over it, the other line
//! has what was there before.
//!
//! A line has its number, its text, and a digest of both. The digest is needed because any part of a line that is read while it
//! is written may be new, which numbers at both of its ends would not show. To systemd, which reads the grants, the lines are
//! comments.

use ring::digest::{SHA256, digest};

const BEGIN: &str = "# ";

/// The line with `number`. All lines of one file need the same length, so each `said` must have the same length, and no line
/// break.
#[must_use]
pub fn line(number: u64, said: &str) -> String {
    let content = format!("{number:020} {said}");
    let digest = of(&content);
    format!("{BEGIN}{content} {digest}\n")
}

/// Both lines of a new file. The second has no text yet.
#[must_use]
pub fn lines(said: &str) -> String {
    let first = line(0, said);
    let blank = " ".repeat(first.len() - BEGIN.len() - 1);
    format!("{first}{BEGIN}{blank}\n")
}

/// Where the line with `number` begins in a file whose lines are `length` bytes long.
#[must_use]
pub fn place(number: u64, length: usize) -> u64 {
    if number.is_multiple_of(2) { 0 } else { length.try_into().unwrap_or(u64::MAX) }
}

/// The text of the latest line that is whole, and what follows both lines. `None`: neither line is whole.
#[must_use]
pub fn latest(text: &str) -> Option<(&str, &str)> {
    let (first, rest) = text.split_once('\n')?;
    let (second, rest) = rest.split_once('\n')?;
    let (_, said) = [first, second].into_iter().filter_map(whole).max_by_key(|(number, _)| *number)?;
    Some((said, rest))
}

fn whole(line: &str) -> Option<(u64, &str)> {
    let (content, found) = line.strip_prefix(BEGIN)?.rsplit_once(' ')?;
    let (number, said) = content.split_once(' ')?;
    if found != of(content) {
        return None;
    }
    Some((number.parse().ok()?, said))
}

fn of(content: &str) -> String {
    // These 64 bits of the digest suffice to tell a whole line from any mixture of two lines.
    let first = digest(&SHA256, content.as_bytes()).as_ref().first_chunk().copied().unwrap_or_default();
    format!("{:016x}", u64::from_be_bytes(first))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A file in which the lines 0 to `last` were written in turn, each with the text that `said` gives for it.
    fn file(last: u64, said: impl Fn(u64) -> String) -> String {
        let mut text = lines(&said(0)) + "rest\n";
        for number in 1..=last {
            let line = line(number, &said(number));
            let place = usize::try_from(place(number, line.len())).expect("it is small");
            text.replace_range(place..place + line.len(), &line);
        }
        text
    }

    fn said(number: u64) -> String {
        format!("{:020}", 1_999_999 + number)
    }

    #[test]
    fn the_last_line_counts() {
        for last in 0..4 {
            assert_eq!(latest(&file(last, said)), Some((said(last).as_str(), "rest\n")));
        }
    }

    #[test]
    fn what_has_no_whole_line_says_nothing() {
        for text in ["", "\n", "\n\n", "# \n# \n", "PUTEX=1\nPUTEX=2\n", "# 0 x 0000000000000000\n# \n"] {
            assert_eq!(latest(text), None, "{text:?}");
        }
        assert_eq!(latest(file(1, said).split_once('\n').expect("two lines").0), None);
    }

    proptest! {
        /// Any set of bytes may be new to a reader while the kernel writes a line.
        #[test]
        fn a_line_of_which_a_part_is_new_counts_as_none(
            last in 1_u64..5,
            is_new in proptest::collection::vec(any::<bool>(), 128),
        ) {
            let (before, after) = (file(last - 1, said), file(last, said));
            let mixed = before.bytes().zip(after.bytes()).zip(is_new.iter().cycle());
            let mixed: Vec<u8> = mixed.map(|((old, new), is_new)| if *is_new { new } else { old }).collect();
            let mixed = String::from_utf8(mixed).expect("it is text");
            let expected = if mixed == after { last } else { last - 1 };
            prop_assert_eq!(latest(&mixed).map(|(found, _)| found.to_owned()), Some(said(expected)));
        }
    }
}

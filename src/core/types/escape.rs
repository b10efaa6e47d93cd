//! How names are written where some of their characters have a meaning.

use std::fmt::Write as _;

/// `text` with each byte of a character that is not plain, by its place and itself, as two hexadecimal digits behind `mark`.
pub fn escaped(text: &str, mark: &str, is_plain: impl Fn(usize, char) -> bool) -> String {
    let mut written = String::new();
    for (at, character) in text.char_indices() {
        if is_plain(at, character) {
            written.push(character);
            continue;
        }
        for byte in character.encode_utf8(&mut [0; 4]).bytes() {
            // Writing to a string does not fail.
            let _ = write!(written, "{mark}{byte:02x}");
        }
    }
    written
}

/// A name as one part of an object's path on the bus, as sd_bus_path_encode(3) writes it: what is no letter and no digit as `_` and two
/// hexadecimal digits, and so a digit at the beginning.
pub fn path_part(name: &str) -> String {
    escaped(name, "_", |at, character| {
        character.is_ascii_alphabetic() || character.is_ascii_digit() && at > 0
    })
}

/// `text` with each number of `digits` digits behind `mark` as the byte that it stands for. What is no number stays as it is.
pub fn unescaped(text: &str, mark: &str, digits: usize, radix: u32) -> String {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(mark) {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        rest = &rest[at + mark.len()..];
        match rest
            .get(..digits)
            .and_then(|code| u8::from_str_radix(code, radix).ok())
        {
            Some(byte) => {
                bytes.push(byte);
                rest = &rest[digits..];
            }
            None => bytes.extend_from_slice(mark.as_bytes()),
        }
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8_lossy(&bytes).into_owned()
}

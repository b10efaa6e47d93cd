//! Bytes as hexadecimal digits.

/// The digits of `bytes`, in lower case.
pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// The bytes that `digits` stand for, in either case; `None` for an odd number of digits and for any other character.
pub(super) fn from_hexadecimal(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        u8::from_str_radix(pair, 16).ok().filter(|_| pair.len() == 2)
    });
    pairs.collect()
}

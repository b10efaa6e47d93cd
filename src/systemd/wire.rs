//! Messages of systemd's private socket, which zbus refuses to read as they are.
//!
//! PID 1 puts its well-known name, `org.freedesktop.systemd1`, into the header field SENDER of what it sends there. The D-Bus
//! specification permits that: without a bus, a server may define its own meaning of the field. zbus 6 takes the value for
//! a unique name, such as `:1.7`, on each connection, and nothing else is accepted (`Fields` in its `message/fields.rs`). A
//! message with another value fails to parse, which ends the connection, and no setting of zbus changes that.
//!
//! So the messages are cut out of the stream here, and [`mend_sender`] makes the value a unique name before zbus sees it.
//! Nothing in putexd looks at the field. None of this would be needed if zbus accepted any value, or ignored the field,
//! where the connection is between two peers without a bus (`connection::Builder::p2p`).

use zbus::wire::Endian;

/// The length of the fixed part of a message, up to and including the length of its header fields.
pub const FIXED_BYTES: usize = 16;

/// Code and signature of the header field SENDER.
const SENDER_FIELD: [u8; 4] = [7, 1, b's', 0];

/// How a message is laid out, as its fixed part says.
#[derive(Debug)]
pub struct Layout {
    /// The byte order of its numbers.
    pub endian: Endian,
    fields: usize,
    body: usize,
}

impl Layout {
    /// Reads the fixed part, which `raw` begins with. `None`: it is not all there, or is none of a message.
    #[must_use]
    pub fn of(raw: &[u8]) -> Option<Self> {
        let (endian, read): (_, fn([u8; 4]) -> u32) = match raw.first()? {
            b'l' => (Endian::Little, u32::from_le_bytes),
            b'B' => (Endian::Big, u32::from_be_bytes),
            _ => return None,
        };
        let number = |at: usize| usize::try_from(read(raw.get(at..at + 4)?.try_into().ok()?)).ok();
        Some(Self { endian, fields: number(12)?, body: number(4)? })
    }

    /// Where the body begins.
    #[must_use]
    pub fn body_at(&self) -> usize {
        FIXED_BYTES + self.fields.next_multiple_of(8)
    }

    /// The length of the whole message.
    #[must_use]
    pub fn length(&self) -> usize {
        self.body_at() + self.body
    }
}

/// Makes the sender of a whole message a unique name: its first letter becomes the colon that unique names begin with. Header
/// fields start at multiples of eight.
pub fn mend_sender(message: &mut [u8]) {
    let Some(layout) = Layout::of(message) else { return };
    let Some(header) = message.get_mut(FIXED_BYTES..FIXED_BYTES + layout.fields) else { return };
    for field in header.chunks_mut(8).skip_while(|chunk| !chunk.starts_with(&SENDER_FIELD)).skip(1).take(1) {
        if let Some(letter) = field.first_mut() {
            *letter = b':';
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A method return as PID 1 sends it, with one header field before the sender: that it answers the call 1. Its body is four
    /// bytes.
    pub(crate) fn message(sender: &str) -> Vec<u8> {
        let mut fields = vec![5, 1, b'u', 0, 1, 0, 0, 0];
        fields.extend(SENDER_FIELD);
        fields.extend(u32::try_from(sender.len()).expect("short").to_le_bytes());
        fields.extend(sender.as_bytes());
        fields.push(0);
        let mut message = vec![b'l', 2, 0, 1, 4, 0, 0, 0, 9, 0, 0, 0];
        message.extend(u32::try_from(fields.len()).expect("short").to_le_bytes());
        message.extend(&fields);
        message.resize(message.len().next_multiple_of(8), 0);
        message.extend([1, 2, 3, 4]);
        message
    }

    #[test]
    fn a_well_known_sender_becomes_a_unique_one() {
        let mut whole = message("org.freedesktop.systemd1");
        mend_sender(&mut whole);
        assert_eq!(whole, message(":rg.freedesktop.systemd1"));
        mend_sender(&mut whole);
        assert_eq!(whole, message(":rg.freedesktop.systemd1"));
    }
}

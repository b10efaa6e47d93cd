//! The holder of a lock, by the body of its record.

use std::fmt;

use serde::Serialize;

use super::{
    NodeId,
    printable::{is_printable, shown_bytes},
};

/// The holder of a lock, as its record names it: nobody, a name, or an unknown holder, where the body is no name.
///
/// The body of a record may be anything, because other programs write it too. It is looked at once, here: a name is at most
/// [`Holder::LIMIT`] characters that can be printed. Any other body stands for an unknown holder, and its bytes are shown
/// escaped, so that whatever is shown of a holder is harmless.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize)]
pub struct Holder {
    shown: String,
    is_unknown: bool,
}

impl Holder {
    /// The longest name, in characters.
    pub const LIMIT: usize = 128;

    /// Reads the body of a record. White space around it does not count.
    pub fn decode(body: &[u8]) -> Self {
        let body = body.trim_ascii();
        let name = str::from_utf8(body).ok().map(str::trim);
        let is_name =
            |name: &&str| name.chars().all(is_printable) && name.chars().count() <= Self::LIMIT;
        match name.filter(is_name) {
            Some(name) => Self {
                shown: name.to_owned(),
                is_unknown: false,
            },
            None => Self::unknown(body),
        }
    }

    /// An unknown holder, shown as `what`, which must not be empty.
    pub fn unknown(what: &[u8]) -> Self {
        Self {
            shown: shown_bytes(what, Self::LIMIT),
            is_unknown: true,
        }
    }

    /// Whether the record names nobody, so that the lock is free.
    pub fn is_nobody(&self) -> bool {
        self.shown.is_empty()
    }

    /// Whether the record names a holder, but not by a name.
    pub fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    /// The text of the holder: empty for nobody, and for an unknown holder what the record has in place of a name, escaped and
    /// cut.
    pub fn as_str(&self) -> &str {
        &self.shown
    }

    /// The holder as a node, if its name can be that of one.
    pub fn node(&self) -> Option<NodeId> {
        NodeId::new(&self.shown).ok().filter(|_| !self.is_unknown)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl From<&NodeId> for Holder {
    fn from(node: &NodeId) -> Self {
        Self {
            shown: node.as_str().to_owned(),
            is_unknown: false,
        }
    }
}

impl PartialEq<str> for Holder {
    fn eq(&self, name: &str) -> bool {
        !self.is_unknown && self.shown == name
    }
}

impl PartialEq<NodeId> for Holder {
    fn eq(&self, node: &NodeId) -> bool {
        *self == *node.as_str()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_and_can_be_printed() {
        for (body, name) in [
            ("h1", "h1"),
            (" h1\n", "h1"),
            ("my host", "my host"),
            ("k\u{f6}ln", "k\u{f6}ln"),
        ] {
            let holder = Holder::decode(body.as_bytes());
            assert_eq!((holder.as_str(), holder.is_unknown()), (name, false));
        }
        assert!(!Holder::decode("\u{f6}".repeat(Holder::LIMIT).as_bytes()).is_unknown());
        for nobody in ["", " ", "\n", "\u{3000}"] {
            assert!(Holder::decode(nobody.as_bytes()).is_nobody(), "{nobody:?}");
        }
    }

    #[test]
    fn whoever_has_no_name_is_somebody_and_shown_escaped() {
        let unknown = |body: &[u8]| {
            let holder = Holder::decode(body);
            assert!(
                holder.is_unknown() && !holder.is_nobody() && holder.node().is_none(),
                "{holder}"
            );
            holder.to_string()
        };
        assert_eq!(unknown(b"h2\nMAINPID=17\nx"), "h2\\nMAINPID=17\\nx");
        assert_eq!(unknown(b"\0"), "\\0");
        assert_eq!(unknown(b"\xff"), "\\xff");
        assert_eq!(
            unknown(&[b'x'; Holder::LIMIT + 1]).chars().count(),
            Holder::LIMIT
        );
        // The unknown holder is not the one whose name looks the same.
        assert!(Holder::decode(b"\0") != *"\\0");
        assert_ne!(Holder::decode(b"\0"), Holder::decode(b"\\0"));
    }

    #[test]
    fn only_a_node_of_ours_is_one() {
        for (body, is_node) in [
            ("h1", true),
            ("my host", false),
            ("-x", false),
            ("/x", false),
            ("../x", true),
            ("", false),
        ] {
            assert_eq!(
                Holder::decode(body.as_bytes()).node().is_some(),
                is_node,
                "{body}"
            );
        }
    }
}

//! What this putexd makes of a record that a later version has written in a format that this one does not know.
//!
//! A record says its format, and a writer says the lowest one in which all that it says can be understood. So hosts of two versions
//! understand each other for as long as nobody uses what only the later one has. Some things are the same in all formats: the
//! holder, and the fields that [`decode`] cannot do without. By them the record is a holder with a name, a lease and a hold, and
//! nothing shorter is waited for than what it names. All else counts only where waiting longer is the worst that can follow.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{
    Details, HOLDERS_LIMIT, OperatorNote, Standing, UNFENCED_LIMIT, decode_passing, decode_word, field, optional,
    parse, split_nodes, split_units,
};
use crate::types::FencingToken;

/// The format of the records that this version writes. It reads this one and all before it.
pub const FORMAT: u32 = 1;

/// The format that a record says it has, if this version does not know it.
pub(super) fn format_of(fields: &BTreeMap<String, String>) -> Option<u32> {
    fields.get(field::FORMAT)?.parse().ok().filter(|format| *format > FORMAT)
}

/// What is the same in all formats. `None`: it is not there, and the holder counts as unknown.
///
/// Of a state only a later version knows what it says. So the record counts as that of a holder which has claimed the lock: nothing
/// in it shows an earlier holder dead, and whoever it has not fenced is fenced by its successor.
pub(super) fn decode(fields: &BTreeMap<String, String>) -> Option<Details> {
    let hold = Duration::from_millis(parse(fields, field::HOLD_MS)?);
    let nodes = |name, limit| fields.get(name).map_or_else(Vec::new, |nodes| split_nodes(nodes, limit));
    Some(Details {
        machine: parse(fields, field::MACHINE)?,
        instance: parse(fields, field::INSTANCE)?,
        write: parse(fields, field::WRITE)?,
        standing: Standing::Confirming,
        lease: Duration::from_millis(parse(fields, field::LEASE_MS)?),
        hold,
        passing: decode_passing(fields, hold),
        token: FencingToken(parse(fields, field::TOKEN)?),
        prev: None,
        unfenced: nodes(field::UNFENCED, UNFENCED_LIMIT),
        units: fields.get(field::UNITS).map_or_else(Vec::new, |units| split_units(units)),
        holders: nodes(field::HOLDERS, HOLDERS_LIMIT),
        note: OperatorNote {
            next: optional(fields, field::NEXT).flatten(),
            stopped: decode_word(fields, field::STOPPED).flatten(),
            started: None,
            paused: decode_word(fields, field::PAUSED).flatten(),
            reason: None,
            by: None,
            above: optional(fields, field::ABOVE).flatten().map(FencingToken),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::full;
    use super::super::{Odd, Record};
    use super::*;
    use crate::types::Value;

    /// A record as a later version may write it.
    fn later() -> Value {
        let mut value = full().encode();
        for (name, text) in [("format", "2"), ("state", "handing-over"), ("prev-revision", "41@2"), ("quorum", "3/5")] {
            value.fields.insert(name.to_owned(), text.to_owned());
        }
        value
    }

    #[test]
    fn each_record_says_its_format_and_one_that_does_not_has_the_first() {
        let value = full().encode();
        assert_eq!(value.fields["format"], "1");
        let mut without = value.clone();
        without.fields.remove("format");
        assert_eq!(Record::decode(&without), full());
        for garbled in ["", "0", "-1", "one", "1.0", "99999999999"] {
            let mut value = value.clone();
            value.fields.insert("format".to_owned(), garbled.to_owned());
            let record = Record::decode(&value);
            assert_eq!((record.details, record.newer), (None, None), "{garbled:?}");
        }
    }

    #[test]
    fn a_record_of_a_later_format_is_a_holder_with_a_name_a_lease_and_a_hold() {
        let (record, known) = (Record::decode(&later()), full().details.expect("details"));
        assert_eq!((record.holder.as_str(), record.newer, record.oddity.is_none()), ("h1", Some(2), true));
        let details = record.details.expect("details");
        let expected = Details {
            standing: Standing::Confirming,
            prev: None,
            note: OperatorNote { reason: None, by: None, started: None, ..known.note.clone() },
            ..known
        };
        assert_eq!(details, expected);
    }

    #[test]
    fn what_a_later_format_says_is_never_a_proof() {
        for state in ["proven", "active", "confirming", ""] {
            let mut value = later();
            value.body.clear();
            value.fields.insert("state".to_owned(), state.to_owned());
            value.fields.insert("gave-up".to_owned(), "yes".to_owned());
            let standing = Record::decode(&value).details.map(|details| details.standing);
            assert_eq!(standing, Some(Standing::Confirming), "{state:?}");
        }
    }

    #[test]
    fn a_later_format_without_what_all_formats_have_names_a_holder_and_nothing_else() {
        for name in ["machine", "instance", "write", "lease-ms", "hold-ms", "token"] {
            let mut value = later();
            value.fields.remove(name);
            let record = Record::decode(&value);
            assert_eq!((record.details, record.newer, record.holder.as_str()), (None, Some(2), "h1"), "{name}");
        }
        // What is out of range in this format is so in all, and a record without a valid seal is anybody's.
        let mut value = later();
        value.fields.insert("hold-ms".to_owned(), u64::MAX.to_string());
        let record = Record::decode(&value);
        assert!(matches!(record.oddity.map(|oddity| oddity.what), Some(Odd::Hold(_))));
        let record = Record::decode(&later().marked_unsealed());
        assert_eq!((record.details, record.newer, record.oddity.map(|odd| odd.what)), (None, None, Some(Odd::Seal)));
    }
}

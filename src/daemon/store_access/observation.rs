//! What the store has shown, in the words of the election.

use crate::election::{Content, Observation, Record};
use crate::store::Snapshot;
use crate::types::Revision;

pub(crate) fn observation(snapshot: Snapshot) -> Observation {
    let (revision, content) = match snapshot.entry {
        None => (Revision(0), Content::Absent),
        Some(entry) => match entry.value {
            None => (entry.revision, Content::Tombstone),
            Some(value) => (entry.revision, Content::Record(Record::decode(&value))),
        },
    };
    Observation {
        incarnation: snapshot.incarnation,
        revision,
        content,
    }
}

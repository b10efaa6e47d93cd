//! One host, and its store.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::{
    At, Word,
    alarm::{Alarm, known},
};

/// What a host says of itself.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostState {
    /// The host's name in the locks.
    pub node: String,
    /// The version of its putexd.
    pub version: String,
    /// When putexd was started there.
    pub since: At,
    /// When this was said, by the host's own clock. Another host's clock may differ.
    pub at: At,
    /// The operator's word that drains the host.
    pub drained: Option<Word>,
    /// What is wrong with the host as a whole.
    #[serde(deserialize_with = "known")]
    pub alarms: Vec<Alarm>,
}

/// How the store has answered a host since its putexd started.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreState {
    /// Where the store is.
    pub store: String,
    /// Since when it has given no answer. `None`: it answers.
    pub silent_since: Option<At>,
    /// Since when it has answered reads and taken no write. `None`: it takes them, or nobody writes.
    pub unwritten_since: Option<At>,
    /// The last error, which tells why. `None`: it answers and takes writes. A store that answers with an error, as one that does not
    /// exist, has the error alone.
    pub error: Option<String>,
    /// When it answered again after it gave no answer for a second or more, or was made. `None`: neither was seen.
    pub returned: Option<At>,
}

//! The values of this domain, such as names, ids, revisions and times, as types that cannot be mixed up.
//!
//! Lowest layer: it imports nothing of this crate.

pub mod bound;
pub mod escape;
pub mod format;
pub mod holder;
mod lease;
pub mod mount;
mod names;
pub mod printable;
pub mod span;
pub mod store;
mod time;
pub mod trust;
mod value;

use std::{fmt, ops::RangeInclusive, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

pub use holder::Holder;
pub use lease::{Extension, LeaseTerms};
pub use names::{ClusterName, Key, NameError, NodeId, ServiceName, UnitName};
pub use printable::{
    first_named, is_printable, printable, printable_lines, shortened, with_sources,
};
pub use time::Time;
pub use value::Value;

/// The longest pause of a holder. No maintenance of a store takes a week, and for as long as a pause lasts nobody takes over from a
/// holder that dies.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(7 * 24 * 3600);

/// The directory of the grants: one file for each service, present exactly while a deadline is armed and open.
pub const LEASES_DIR: &str = "/run/putex/leases";

/// The directory in which the guard keeps the deadlines over its restart: one file for each lease that is armed.
pub const GUARDED_LEASES_DIR: &str = "/run/putex/guard/leases";

/// Where putexd keeps what has to outlive a boot.
pub const STATE_DIR: &str = "/var/lib/putex";

/// The daemon's own unit. While one of its processes is connected, the guard sends all others away. PID 1 is asked about the
/// unit's job.
pub const DAEMON_UNIT: &str = "putexd.service";

/// The unit that starts a process with the network for whoever connects.
pub const NET_SOCKET: &str = "putex-net.socket";

/// The name of the variable that has the fencing token, in the grant and in the unit's environment.
pub const FENCING_TOKEN: &str = "PUTEX_FENCING_TOKEN";

/// A sum of bytes (FNV-1a) that is the same in each version of putexd. It finds changes and accidents, and protects against nothing.
pub fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The users that systemd gives to units with `DynamicUser=`, and putexd to health commands that name no other one. They have no
/// name. See "Users, Groups, UIDs and GIDs on systemd Systems".
pub const DYNAMIC_USERS: RangeInclusive<u32> = 61184..=65519;

/// Whether `text` is a path of a device that may become a word of the guard's command line, by way of a unit file: absolute, and
/// of letters, digits and `/._-` alone.
pub fn is_device_path(text: &str) -> bool {
    let plain = |character: char| character.is_ascii_alphanumeric() || "/._-".contains(character);
    text.starts_with('/') && text.chars().all(plain)
}

/// Whether the control group `group` is `other` or lies below it.
pub fn is_within(group: &str, other: &str) -> bool {
    group
        .strip_prefix(other)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u128);

        /// Serialized as text where people read the format, else as the number, under the type's name: the model check tells states
        /// apart by what is random in them, and not by how it was drawn.
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if serializer.is_human_readable() {
                    serializer.collect_str(self)
                } else {
                    serializer.serialize_newtype_struct(stringify!($name), &self.0)
                }
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                if deserializer.is_human_readable() {
                    String::deserialize(deserializer)?.parse().map_err(Error::custom)
                } else {
                    u128::deserialize(deserializer).map(Self)
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }
        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                    return Err(IdError);
                }
                u128::from_str_radix(text, 16).map(Self).map_err(|_| IdError)
            }
        }
    };
}

/// The text is not 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not 32 hexadecimal digits")]
pub struct IdError;

random_id! {
    /// 128 random bits, new with each tenure of a lock.
    Instance
}
random_id! {
    /// 128 random bits, new with each attempt to write.
    WriteId
}
random_id! {
    /// The host's /etc/machine-id.
    MachineId
}
random_id! {
    /// The kernel's id of this boot.
    BootId
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// Orders the writes to one key within one incarnation of a store. 0 stands for "the key does not exist".
    Revision
}
number! {
    /// The fencing token: it grows from tenure to tenure, and is the same through one.
    FencingToken
}

/// Tells one life of a store from the next: a store that was wiped and made again has another incarnation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Incarnation(pub String);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The most services of a host, and so the most leases that its guard holds.
pub const LEASE_LIMIT: usize = 4096;

/// What a host does when the stop of its unit cannot be proven in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnStopFailure {
    /// Raise an alarm, keep the lock, and go on trying: for units whose control groups SIGKILL empties.
    #[default]
    Alert,
    /// Reboot at once, without stopping anything else: `systemctl reboot --force --force`.
    RebootForce,
    /// Crash the kernel through /proc/sysrq-trigger.
    KernelPanic,
}

impl OnStopFailure {
    /// Whether this takes the host down, so that the unit is dead whatever kept it alive.
    pub fn is_self_fence(self) -> bool {
        match self {
            Self::RebootForce | Self::KernelPanic => true,
            Self::Alert => false,
        }
    }

    /// What happens to this host, in words.
    pub fn consequence(self) -> &'static str {
        match self {
            Self::Alert => "an alarm is raised",
            Self::RebootForce => "this host is rebooted",
            Self::KernelPanic => "this host's kernel is made to panic",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_within;

    #[test]
    fn a_group_is_within_itself_and_those_above_it() {
        assert!(is_within("/a.slice", "/a.slice") && is_within("/a.slice/a-b.slice", "/a.slice"));
        assert!(
            !is_within("/a.slice", "/a.slice/a-b.slice") && !is_within("/a.slices", "/a.slice")
        );
        assert!(!is_within("/", "/a.slice"));
    }
}

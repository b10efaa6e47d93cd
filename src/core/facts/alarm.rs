//! What is wrong with a service or a host, from where it is noticed to the screens of all hosts.

use std::{fmt, time::Duration};

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value as Json, from_value};
use serde_with::skip_serializing_none;
use thiserror::Error;

use crate::types::{MachineId, NodeId, Revision, ServiceName, UnitName, span::rounded};

/// For how long an alarm is shown whose cause was a moment and not a state, in seconds.
pub const SHOWN_S: u64 = 3600;

/// An alarm.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alarm {
    /// The service. `None`: it concerns the host as a whole.
    pub about: Option<ServiceName>,
    /// What is wrong: `kind`, and its `detail`.
    #[serde(flatten)]
    pub problem: Problem,
    /// When it was raised, in seconds since 1970.
    pub since: u64,
    /// When it is shown no longer, in seconds since 1970, because its cause was a moment. `None`: when its cause is over.
    pub until: Option<u64>,
}

impl Alarm {
    /// An alarm that is raised now, in seconds since 1970.
    pub fn new(about: Option<ServiceName>, problem: Problem, now: u64) -> Self {
        let until = problem.kind().is_of_a_moment().then_some(now + SHOWN_S);
        Self {
            about,
            problem,
            since: now,
            until,
        }
    }

    /// What is wrong, without the particulars.
    pub const fn kind(&self) -> AlarmKind {
        self.problem.kind()
    }

    /// Whether it is still shown. One of a moment is not where the clock was set since.
    pub fn is_shown(&self, now: u64) -> bool {
        self.until.is_none() || self.since.abs_diff(now) < SHOWN_S
    }
}

/// Why a stop is not proven.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StopFailure {
    /// An orderly stop has taken longer than `stop-limit`.
    Late,
    /// It was not proven by the end of its budget: that of a lapse, or that of SIGKILL at `stop-limit`.
    Unproven,
}

/// How urgent an alarm is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// putexd acts, and somebody should look.
    Warn,
    /// Somebody has to act.
    Error,
}

/// A row has: the level and the id of its entry in the journal, whose explanation is in the catalog; what to do
/// about it; what has happened.
macro_rules! problems {
    ($($(#[$doc:meta])* $variant:ident $({ $($(#[$field_doc:meta])* $field:ident: $type:ty),* })?
        = $level:ident, $id:literal, $remedy:literal, $happened:tt;)*) => {
        /// What is wrong. The fields are what the case adds.
        #[skip_serializing_none]
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Error)]
        #[serde(tag = "kind", content = "detail", rename_all = "kebab-case")]
        pub enum Problem {
            $($(#[$doc])* #[error $happened] $variant $({ $($(#[$field_doc])* $field: $type),* })?,)*
        }

        /// What is wrong, without the particulars.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum AlarmKind {
            $($(#[$doc])* $variant,)*
        }

        impl Problem {
            /// What is wrong, without the particulars.
            pub const fn kind(&self) -> AlarmKind {
                match self {
                    $(Self::$variant { .. } => AlarmKind::$variant,)*
                }
            }
        }

        impl AlarmKind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The level, the MESSAGE_ID, and what to do.
            const fn row(self) -> (Urgency, &'static str, &'static str) {
                match self {
                    $(Self::$variant => (Urgency::$level, $id, $remedy),)*
                }
            }
        }
    };
}

problems! {
    /// The store gives no answer. An active host goes on until its lease ends.
    StoreLost {
        /// Why.
        error: String
    } = Warn, "07d21fdefdff481f9acc84901398a646",
        "see that the store is up, and that the host reaches it",
        ("the store is lost: {error}");
    /// The store answers reads and takes no writes, as a server does that is cut off from the others of its cluster.
    StoreReadOnly {
        /// Why.
        error: String
    } = Warn, "5eea734955ae4f85b4f512a93c691111",
        "see that the servers of the store reach each other and have room on their disks",
        ("the store takes no writes: {error}");
    /// Two hosts with one name (K7): another machine writes what this one writes. `None`: it names no id.
    SharedName {
        /// The machine id of the other host.
        machine: Option<MachineId>
    } = Error, "2c82915d2ada43ff86e7dc5d99ece7e4",
        "give each host a name of its own",
        ("another machine has the name of this host: {}", machine.map_or_else(|| "it names no id".to_owned(), |id| id.to_string()));
    /// Regression (K6): the store has gone back to an earlier revision, or, without revisions, to another incarnation: it was wiped,
    /// restored or made again.
    Regression {
        /// The revision that was seen before, and that which is shown now.
        revisions: Option<(Revision, Revision)>
    } = Error, "40c964e3695047948c83c8d574dbe5cf",
        "find out what happened to the store",
        ("the store has gone back in time: {}", gone_back(*revisions));
    /// The unit ran on a host that does not hold the lock; it is stopped.
    StrayUnit {
        /// What runs; the election does not know it.
        units: Vec<UnitName>
    } = Error, "560b984bbabc4cb7a14842f97acdf01f",
        "find out what has started the unit",
        ("the unit runs without the lock, and is stopped: {}", list(units));
    /// A daemon-reload has taken away what binds a unit to its lease.
    Ungated {
        /// What is missing, and what to do about it.
        refusal: String
    } = Error, "d248be04c4ba4b28927e4877768bb7b8",
        "put back what binds the unit to its lease, and run \"systemctl daemon-reload\"",
        ("the unit can be started without its lease: {refusal}");
    /// A process of the unit was found outside of its control groups, or one that has its work done elsewhere.
    LeftControlGroup {
        /// What it is.
        work: String
    } = Error, "048ce3eabad14d69b26f25ae714d4a99",
        "have the work stay in the unit, and run \"systemctl reload putexd\"",
        ("work of the unit is outside of its control group: {work}");
    /// The wall clock moved against the time since boot: somebody set it, or the whole machine stood still.
    ClockJump {
        /// By how many milliseconds.
        by_ms: u64
    } = Warn, "d5c90c2baec24517a030a3eae78486bb",
        "check whether this machine was paused",
        ("the wall clock moved by {} against the time since boot", rounded(Duration::from_millis(*by_ms)));
    /// A stop is not proven in time.
    StopFailed {
        /// Of what; the election does not know it.
        units: Vec<UnitName>,
        /// Why.
        why: StopFailure
    } = Error, "23c22031c9be49748ff121ccbf1bd302",
        "look for what is left of the unit",
        ("the stop cannot be proven: {}", unproven(units, why));
    /// This host takes itself down, because a stop cannot be proven.
    SelfFence = Warn, "93b50776cacc4856ade1697695d23a4c",
        "find out why the unit could not be stopped",
        ("the stop cannot be proven, so this host goes down");
    /// A configuration file is wrong. What ran by its former text goes on as it was.
    ConfigurationBroken {
        /// Where, what to do, and what is so until then.
        error: String
    } = Error, "addfd2a5f1f04e3082106f0d1d42afba",
        "correct the file",
        ("the configuration is broken: {error}");
    /// The store holds a record that no putexd would write; it counts as that of an unknown holder.
    OddRecord {
        /// The holder that the record names.
        holder: String,
        /// What is odd about it.
        what: String
    } = Error, "5f1de39cf4f74b2f9d8c4a60f1f3f7d2",
        "find out who may write to the store",
        ("the lock's record is not believed: it is said to be {holder:?}'s, and {what}");
    /// A later version has written the lock's record in a format that this one does not know.
    NewerRecord {
        /// The number of the format.
        format: u32,
        /// The highest that this host knows.
        known: u32
    } = Warn, "5afb23aa2b3a49cb997c794c4cc25461",
        "install on the host the version of putexd that the holder has",
        ("the lock's record has format {format}, and this putexd knows up to {known}");
    /// Somebody else has answered a request of this host in the store's place.
    ForgedAnswer = Error, "ba1c6ff2c1934ad5a9fb7b5b7ed3a7c4",
        "have no login but those of the hosts in the account of the bucket, and restart a server that leads the bucket beside another, see putexd-stores(7)",
        ("two different answers came to one request of this host");
    /// Other logins can answer in the store's place.
    Forgeable = Warn, "6a1f9c3de54f4d4f8b0f6a7f3f3c0f1e",
        "give the bucket an account of its own, as in putexd-stores(7)",
        ("the store's answers can be forged by any login with putexd's rights, which no seal shows");
    /// An operator has stopped the service everywhere, and the store does not say so any more.
    StopLost {
        /// Who, when and why.
        order: String
    } = Error, "0d5c6f0b7f6e4a0fb3a6a2d3f0c7e8a1",
        "find out who may write to the store; \"putexctl start\" there ends the stop",
        ("the store has lost an operator's stop: {order}");
    /// A previous holder could not be fenced.
    FenceFailed {
        /// Of which hosts, why, and what to do.
        error: String
    } = Error, "ed2b988e00da4c9aa1becce287448c2a",
        "find out why the host is not fenced",
        ("fencing has failed: {error}");
    /// The health check has failed `fall` times in a row.
    CheckFailed {
        /// Why.
        error: String,
        /// Its unit, whose journal has what it says.
        unit: Option<UnitName>
    } = Warn, "35fea88bae6546ea8c01b69e47aab897",
        "find out why the health check fails",
        ("the health check has failed: {error}{}", unit.as_ref().map_or_else(String::new, |unit| format!("; \"journalctl -u {unit}\" has what it says")));
    /// The unit is run under another key or in another store than this host's configuration says.
    OtherLock {
        /// Which.
        reason: String
    } = Error, "75fa00572ce64f6d817c697473ef501c",
        "follow putexd-operations(7)",
        ("{reason}");
    /// The record asks for hosts to be fenced that may not be. They are left alone.
    NotToBeFenced {
        /// The hosts.
        hosts: Vec<String>
    } = Warn, "6755d565f6ea456087aa950741bac930",
        "name the host under [fence] hosts if it should be fenced",
        ("{} is left alone: it is not in [fence] hosts, or, without a list, was not seen to hold the lock", list(hosts));
    /// An operator knows that a host is off, and no fencing of it is waited for.
    ConfirmedDead {
        /// The host.
        node: NodeId,
        /// Who says so.
        by: String
    } = Warn, "9d484331d9cd46b4b8a89a32ef607da1",
        "look at the host that is off before it is switched on again",
        ("a host is taken for dead: {by} says that {node} is off");
    /// The unit has failed here again and again, or has failed and nobody runs it since.
    ServiceFails {
        /// Why, at last.
        error: String
    } = Error, "a3f13eb9ca454ccfbd466124f42333bd",
        "see \"journalctl -u UNIT\" for why it fails",
        ("the service fails on this host: {error}");
    /// Somebody has frozen the unit, which holds the lock and serves nobody.
    Frozen {
        /// The unit or slice that is frozen.
        unit: String
    } = Error, "61c83ab2ba5540e4a37ed6e6b2a7a4bb",
        "thaw the unit",
        ("the unit is frozen, and keeps its lock; \"systemctl thaw {unit}\" ends that");
    /// The guard does not answer putexd.
    GuardGone = Error, "d1d1f9b4ee014057a53f4cd15a7f1764",
        "look at \"systemctl status putex-guard\"",
        ("the guard does not answer, so that nothing is started");
    /// The guard has ended, or gave no answer, while a unit ran under its lease. It may be back by now.
    GuardLost = Warn, "df8f837353af4fb99081602ce33e35f4",
        "find out from \"journalctl -u putex-guard\" why it ended",
        ("the guard ended, or gave no answer, while units ran under its leases, so that they were stopped");
    /// The guard arms no lease: it cannot write to /run, or does not serve the hardware watchdog. It has told the journal.
    GuardUnfit {
        /// Why.
        error: String
    } = Error, "37c2ad1e2c08467da11d784e9ab05515",
        "look at \"journalctl -u putex-guard\"",
        ("the guard arms no lease: {error}");
    /// What this host has to remember cannot be written to its disk. The journal has been told.
    NotKept {
        /// Why.
        error: String
    } = Error, "92e0724c6132493abe84e17e86928066",
        "see that /var/lib/putex can be written",
        ("putexd cannot write what it has to remember: {error}");
    /// PID 1 of this host does not answer.
    SystemdSilent = Error, "6f0f3b7f2f0b4a54a8c4b6a8f7e3d912",
        "run \"cat /proc/1/stack\": if PID 1 waits for a share, run \"umount -f -l\" on its path; else reboot the host",
        ("systemd does not answer; units are neither started nor stopped here");
    /// putexd can open no more files.
    NoDescriptors {
        /// Whose, and what to do.
        error: String
    } = Error, "5d0a4f6c2b7e4a1f9c83e6b1d27f40a9",
        "find out who has so many files open",
        ("file descriptors have run out: {error}");
    /// The lease of a running unit has ended without a renewal.
    Lapsed {
        /// Why.
        cause: String
    } = Warn, "bf53fe8cad78499295e38045a6cac98e",
        "look in the journal of putexd for the cause",
        ("the lease has lapsed: {cause}");
}

/// The name for programs, by which serde writes it.
impl fmt::Display for AlarmKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl AlarmKind {
    /// How urgent it is.
    pub const fn urgency(self) -> Urgency {
        self.row().0
    }

    /// The MESSAGE_ID of its entry: the key of the explanation in the catalog.
    pub const fn message_id(self) -> &'static str {
        self.row().1
    }

    /// What to do about it.
    pub const fn remedy(self) -> &'static str {
        self.row().2
    }

    /// Whether the cause is over as soon as it is noticed, so that the alarm is shown for [`SHOWN_S`].
    pub const fn is_of_a_moment(self) -> bool {
        matches!(
            self,
            Self::Regression
                | Self::ClockJump
                | Self::SelfFence
                | Self::NotToBeFenced
                | Self::ConfirmedDead
                | Self::ForgedAnswer
                | Self::GuardLost
                | Self::Lapsed
        )
    }
}

/// Reads a list of alarms without those that this version does not know.
pub fn known<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Alarm>, D::Error> {
    Ok(Vec::<Json>::deserialize(from)?
        .into_iter()
        .filter_map(|alarm| from_value(alarm).ok())
        .collect())
}

fn gone_back(revisions: Option<(Revision, Revision)>) -> String {
    match revisions {
        Some((from, to)) => {
            format!("the lock was at revision {from}, and has another record at {to}")
        }
        None => "it was made anew or restored".to_owned(),
    }
}

fn unproven(units: &[UnitName], why: &StopFailure) -> String {
    let units = list(units);
    match why {
        StopFailure::Late => {
            format!(
                "{units} takes longer than stop-limit; \"systemctl kill --signal=KILL\" unless it needs more time"
            )
        }
        StopFailure::Unproven => {
            format!("{units} may live at the end of the stop budget")
        }
    }
}

/// Joins names with "and", as in `a.timer and a.service`.
pub fn list(all: impl IntoIterator<Item: ToString>) -> String {
    let all: Vec<String> = all.into_iter().map(|name| name.to_string()).collect();
    all.join(" and ")
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json, to_value};

    use super::super::HostState;
    use super::*;

    #[test]
    fn an_alarm_is_an_object_with_its_kind_and_one_of_a_later_version_is_left_out() {
        let lost = Problem::CheckFailed {
            error: "no".into(),
            unit: None,
        };
        let about = Some(ServiceName::new("db").expect("a name"));
        let alarms = [
            Alarm::new(about, lost, 7),
            Alarm::new(None, Problem::SelfFence, 7),
            Alarm::new(None, Problem::FenceFailed { error: "so".into() }, 8),
        ];
        let check =
            json!({"about": "db", "kind": "check-failed", "detail": {"error": "no"}, "since": 7});
        let fence = json!({"kind": "self-fence", "since": 7, "until": 3607});
        let ungated = json!({"kind": "fence-failed", "detail": {"error": "so"}, "since": 8});
        assert_eq!(
            to_value(&alarms).expect("it encodes"),
            json!([check, fence, ungated])
        );
        let later = json!({"kind": "burning", "detail": {"where": "roof"}, "since": 9});
        let read: HostState =
            from_value(json!({"alarms": [check, later, fence, ungated]})).expect("a list");
        assert_eq!(read.alarms, alarms);
    }

    #[test]
    fn an_alarm_of_a_moment_is_shown_for_an_hour_unless_the_clock_was_set() {
        let alarm = Alarm::new(None, Problem::SelfFence, 10_000);
        let shown = [10_000, 13_599, 13_600, 9_000, 5_000].map(|now| alarm.is_shown(now));
        assert_eq!(shown, [true, true, false, true, false]);
        assert!(Alarm::new(None, Problem::GuardGone, 10_000).is_shown(99_999));
    }

    #[test]
    fn each_kind_says_what_to_do() {
        let mut remedies = AlarmKind::ALL.iter().map(|kind| kind.remedy());
        assert!(remedies.all(|remedy| !remedy.is_empty()));
    }
}

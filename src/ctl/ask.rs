//! Questions to the putexd of this host, each with a time limit; and what can be told where it does not answer.

use std::{collections::BTreeSet, path::Path, time::Duration};

use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};
use zbus::{fdo, proxy::CacheProperties};

use super::output::{Cell, Failure, Screen, width};
use crate::{
    bus,
    cluster::{history::Run, verb::Verb},
    command_line::exit,
    config::below,
    dbus::{Begun, ManagerProxy, control},
    facts::ClusterState,
    guard_client::grant,
    host::identity,
    types::{LEASES_DIR, ServiceName, span::rounded},
};

/// How long one call is waited for. A putexd that stands still must not make a command stand still as well.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// Pause after a call that was one too many.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);
/// How long it is waited for that putexd begins with what it is told to do. It may have to wait for a host that can take over.
const ORDER_LIMIT: Duration = Duration::from_secs(45);

impl From<zbus::Error> for Failure {
    fn from(error: zbus::Error) -> Self {
        fdo::Error::from(error).into()
    }
}

impl From<fdo::Error> for Failure {
    fn from(error: fdo::Error) -> Self {
        use fdo::Error as E;
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "the enum may grow, and an error says what it is"
        )]
        Self::unavailable(match error {
            E::AccessDenied(reason)
            | E::InteractiveAuthorizationRequired(reason)
            | E::Failed(reason)
            | E::InvalidArgs(reason) => return Self::refused(reason),
            // What putexd was asked for stands in the store, which does not answer it.
            E::IOError(reason) => reason,
            E::UnknownMethod(_) => "restart putexd, which is older than this putexctl".to_owned(),
            E::ServiceUnknown(_) | E::NameHasNoOwner(_) | E::NoReply(_) | E::Disconnected(_) => {
                "see \"systemctl status putexd\", and start it: it does not run".to_owned()
            }
            other => format!(
                "see that dbus.service runs: putexd is not reached over the system bus: {other}"
            ),
        })
    }
}

/// The connection to the putexd of this host: of root over putexd's own socket, and otherwise over the system bus.
pub struct Bus(ManagerProxy<'static>);

impl Bus {
    pub async fn connect() -> Result<Self, Failure> {
        limited(async {
            let own = match identity::user() {
                0 => control::connect(Path::new(control::SOCKET)).await.ok(),
                _ => None,
            };
            let connection = match own {
                Some(connection) => connection,
                None => bus::system().await?,
            };
            let manager = ManagerProxy::builder(&connection);
            let manager = manager.cache_properties(CacheProperties::No);
            Ok(Self(manager.build().await?))
        })
        .await
    }

    /// All that the putexd of this host knows.
    pub async fn described() -> Result<ClusterState, Failure> {
        Self::connect().await?.describe().await
    }

    /// All that putexd knows.
    pub async fn describe(&self) -> Result<ClusterState, Failure> {
        limited(async { read(&admitted(async || self.0.describe().await).await?) }).await
    }

    /// The history of a service's lock, the latest tenure last.
    pub async fn history(&self, service: &str) -> Result<Vec<Run>, Failure> {
        limited(async { read(&admitted(async || self.0.describe_history(service).await).await?) })
            .await
    }

    /// Asks putexd to do something, and returns what it has begun.
    pub async fn order(&self, verb: &Verb) -> Result<Begun, Failure> {
        let verb = serde_json::to_string(verb);
        let verb = verb.map_err(|error| Failure::refused(error.to_string()))?;
        let carried_out = admitted(async || self.0.carry_out(&verb).await);
        match timeout(ORDER_LIMIT, carried_out).await {
            Ok(answer) => read(&answer.map_err(of_order)?),
            Err(_) => Err(open("putexd has not answered")),
        }
    }
}

/// Makes a call until it is not one too many of this user's, as the calls of a script are that come one after another.
async fn admitted<T>(call: impl AsyncFn() -> fdo::Result<T>) -> fdo::Result<T> {
    loop {
        match call().await {
            Err(fdo::Error::LimitsExceeded(_)) => sleep(REFUSED_PAUSE).await,
            answer => return answer,
        }
    }
}

/// What an error says of something that putexd was told to do. Where it does not refuse it, nobody knows whether it has begun.
fn of_order(error: fdo::Error) -> Failure {
    match error.into() {
        Failure {
            status: exit::UNAVAILABLE,
            message,
        } => open(&message),
        refused => refused,
    }
}

/// The failure of an order that may have been begun, or may be begun still.
fn open(known: &str) -> Failure {
    let text =
        format!("look at \"putexctl status\" before you say it again, it may have begun: {known}");
    Failure::new(exit::GOING_ON, text)
}

async fn limited<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    timeout(CALL_LIMIT, work).await.unwrap_or_else(|_| {
        Err(Failure::unavailable(format!(
            "see \"systemctl status putexd\", and restart it if this stays so: it has not answered within {}",
            rounded(CALL_LIMIT)
        )))
    })
}

/// What putexd has told. It may be another version of putexd, which tells more or less.
fn read<T: DeserializeOwned>(text: &str) -> Result<T, Failure> {
    serde_json::from_str(text).map_err(|error| {
        Failure::unavailable(format!(
            "restart putexd, whose answer is not understood: {error}"
        ))
    })
}

/// What can be told of the host whose root is `root` without its putexd: the leases that the guard still keeps.
pub fn without_putexd(root: &Path) -> Screen {
    let leases = &below(root, LEASES_DIR);
    let mut screen = Screen::new(width());
    let entries = std::fs::read_dir(leases).into_iter().flatten().flatten();
    let services: BTreeSet<ServiceName> = entries
        .filter_map(|entry| ServiceName::new(entry.file_name().to_str()?).ok())
        .collect();
    let grants = services.iter().filter_map(|service| {
        let held = grant::held(leases, service).ok()?;
        let (token, left) = (held.token.to_string(), rounded(held.left));
        Some([service.to_string(), token, left].map(Cell::from))
    });
    let grants: Vec<[Cell; 3]> = grants.collect();
    if grants.is_empty() {
        screen.line("no lease is in force on this host");
    } else {
        screen.line("the guard kills the units of these leases when they end:");
        screen.table(0, ["SERVICE", "TOKEN", "ENDS IN"], grants);
    }
    screen
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{self, assert_described, small, troubled};
    use super::*;
    use crate::cluster::history::Known;
    use crate::facts::{
        Asked, Bar, LapseCause, Missing, NotTaking, Order, ReleaseCause, Retirement, Seen,
        StepDown, StopCause, Wait,
    };
    use crate::types::{MachineId, NodeId, OnStopFailure};

    #[test]
    fn what_the_bus_has_is_as_the_schema_describes_it() {
        for cluster in [small(), troubled()] {
            assert_described("Manager.Describe", &cluster);
            let state = cluster.services[0].hosts[0].state.as_ref();
            assert_described("Service.Describe", state.expect("h1 has it"));
        }
        let run = fixture::run(-60, "h1", 7, Some((-30, Known::Exactly)), "why");
        assert_described("Manager.DescribeHistory", &[run]);
        assert_described("Manager.Do, the answer", &Begun::default());
        let service = ServiceName::new("db").expect("a name");
        let (node, reason) = (NodeId::new("h2").expect("a name"), Some("why".to_owned()));
        for verb in [
            Verb::StepDown {
                service: service.clone(),
                reason: reason.clone(),
                to: Some(node.clone()),
            },
            Verb::Stop {
                service: service.clone(),
                reason: reason.clone(),
                until: Some(1),
            },
            Verb::Start {
                service: service.clone(),
            },
            Verb::Pause {
                service: service.clone(),
                reason: reason.clone(),
                until: 1,
            },
            Verb::Resume {
                service: service.clone(),
            },
            Verb::Adopt { service },
            Verb::Drain {
                reason,
                until: None,
                force: true,
                removal: true,
            },
            Verb::Undrain {},
            Verb::ConfirmDead { node, yes: true },
        ] {
            assert_described("Manager.Do", &verb);
        }
    }

    /// A screen shows what there is at the time; here is one of each kind of what a host waits for, and of what keeps it from taking a
    /// lock.
    #[test]
    fn the_schema_describes_each_wait_each_bar_and_each_cause() {
        let text = || "why".to_owned();
        let (word, until) = (fixture::word("disks", None), fixture::ago(7));
        let bars = vec![
            Bar::Stopped(word.clone()),
            Bar::StopLost(word.clone()),
            Bar::Writing,
            Bar::Retiring {
                because: Retirement::Removed,
            },
            Bar::ShuttingDown,
            Bar::Drained(word.clone()),
            Bar::Broken { error: text() },
            Bar::Observed { runs: true },
            Bar::NotAdmitted {
                error: text(),
                ungated: true,
            },
            Bar::OtherLock { error: text() },
            Bar::EntryUnknown { error: text() },
            Bar::Outside { error: text() },
            Bar::StoreAway,
            Bar::GuardAway,
            Bar::UnitAlive,
            Bar::SharedName {
                machine: MachineId(10),
            },
            Bar::CheckFails { error: text() },
            Bar::CheckPending,
            Bar::BackOff {
                because: text(),
                failures: 2,
            },
            Bar::Unknown,
        ];
        let order = |what| {
            ReleaseCause::SteppedDown(StepDown::Order(Order {
                what,
                word: word.clone(),
            }))
        };
        let mut causes = vec![
            ReleaseCause::Retired(Retirement::Stopped),
            ReleaseCause::ClosedWhileAway,
            ReleaseCause::UnitEnded {
                result: text(),
                in_order: true,
            },
            ReleaseCause::UnitFails(text()),
            ReleaseCause::CheckFailed(text()),
            ReleaseCause::CheckOverdue(7000),
            ReleaseCause::StartFailed(text()),
            ReleaseCause::GuardGone,
            ReleaseCause::GuardRefusedLease(text()),
            order(Asked::StepDown(None)),
            order(Asked::StepDown(NodeId::new("h2").ok())),
            order(Asked::Pause),
            order(Asked::Resume),
            ReleaseCause::SteppedDown(StepDown::Stopped(word.clone())),
            ReleaseCause::SteppedDown(StepDown::UnitsChanged),
        ];
        causes.extend(bars.iter().cloned().map(ReleaseCause::Barred));
        let (former, take_at) = (Some(("h2".to_owned(), Seen::Found(until))), Some(until));
        let mut waits = vec![
            Wait::Entitlement {
                until,
                former: former.clone(),
            },
            Wait::Entitlement {
                until,
                former: None,
            },
            Wait::Fencing {
                hosts: vec![text()],
            },
            Wait::Renewal {
                since: until,
                deadline: until,
            },
            Wait::Store { holder: former },
            Wait::Store { holder: None },
            Wait::Holder {
                holder: "h2".to_owned(),
                runs: true,
                seen: Seen::Renewed(until),
                take_at,
            },
            Wait::OwnRecord {
                runs: true,
                take_at,
            },
            Wait::Other {
                services: vec![text()],
            },
        ];
        let proof = |cause| Wait::Proof {
            cause,
            until,
            on_stop_failure: OnStopFailure::Alert,
        };
        let lapses = [
            LapseCause::NotRenewed,
            LapseCause::GuardRefusedExtension(text()),
            LapseCause::HeldBy("h2".to_owned()),
        ];
        let lapses = lapses.into_iter().map(StopCause::Lapse);
        waits.extend(
            causes
                .into_iter()
                .map(StopCause::Release)
                .chain(lapses)
                .map(proof),
        );
        let mut kept = vec![
            NotTaking::Drained(word),
            NotTaking::Unseen,
            NotTaking::Silent(until),
            NotTaking::NoService,
            NotTaking::OtherKey(text()),
        ];
        kept.extend(bars.into_iter().map(NotTaking::Barred));
        let mut cluster = small();
        cluster.missing = vec![
            Missing::StoreAway(text()),
            Missing::Refused(text()),
            Missing::Unfit(text()),
            Missing::TooMuch,
            Missing::Unsealed(vec![text()]),
        ];
        for not_taking in kept {
            fixture::part(&mut cluster, "h2", "db").not_taking = Some(not_taking);
            assert_described("status", &cluster);
        }
        for wait in waits {
            fixture::state(&mut cluster, "h1", "db").wait = Some(wait);
            assert_described("status", &cluster);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_one_too_many_is_made_again() {
        let calls = std::cell::Cell::new(0);
        let call = async || {
            calls.set(calls.get() + 1);
            match calls.get() {
                1 | 2 => Err(fdo::Error::LimitsExceeded("full".to_owned())),
                _ => Ok("done"),
            }
        };
        assert_eq!(admitted(call).await.expect("the third one"), "done");
        assert_eq!(calls.get(), 3);
    }

    /// Scripts act upon the status: only where it is 1 nothing was changed.
    #[test]
    fn an_order_whose_outcome_nobody_knows_has_a_status_of_its_own() {
        let why = || "why".to_owned();
        for error in [
            fdo::Error::NoReply(why()),
            fdo::Error::TimedOut(why()),
            fdo::Error::Timeout(why()),
            fdo::Error::Disconnected(why()),
            fdo::Error::IOError(why()),
            fdo::Error::LimitsExceeded(why()),
            fdo::Error::ZBus(zbus::Error::Failure(why())),
        ] {
            let failure = of_order(error);
            assert_eq!(failure.status, exit::GOING_ON, "{}", failure.message);
            assert!(
                failure.message.starts_with("look at"),
                "{}",
                failure.message
            );
        }
        for error in [
            fdo::Error::Failed(why()),
            fdo::Error::InvalidArgs(why()),
            fdo::Error::AccessDenied(why()),
            fdo::Error::InteractiveAuthorizationRequired(why()),
        ] {
            let failure = of_order(error);
            assert_eq!(failure.status, exit::REFUSED, "{}", failure.message);
        }
    }

    /// A look begins nothing. Where the store does not give a history, it is as unavailable as putexd.
    #[test]
    fn a_look_that_is_not_answered_is_unavailable_and_says_what_to_do() {
        for error in [
            fdo::Error::NoReply("recipient disconnected".to_owned()),
            fdo::Error::IOError("see it".to_owned()),
        ] {
            let failure = Failure::from(error);
            assert_eq!(failure.status, exit::UNAVAILABLE);
            assert!(
                failure.message.starts_with("see ") && !failure.message.contains("freedesktop"),
                "{}",
                failure.message
            );
        }
    }
}

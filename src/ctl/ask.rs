//! Questions to the putexd of this host, each with a time limit; and what can be told where it does not
//! answer.

use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;
use zbus::proxy::CacheProperties;
use zbus::{Connection, MatchRule, MessageStream, Proxy, fdo};

use super::output::Failure;
use super::view::enumerated;
use crate::bus;
use crate::cluster::history::Run;
use crate::cluster::request::Verb;
use crate::command_line::exit;
use crate::dbus::{self, Begun, Description, ManagerProxy, control};
use crate::guard_client::{alternating, grant};
use crate::host::{clock, identity};
use crate::types::span::rounded;
use crate::types::{DAEMON_UNIT, FENCING_TOKEN, LEASES_DIR, ServiceName};

/// How long one call is waited for. A putexd that stands still must not make a command stand still as well.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// How many signals wait until they are read. putexd tells no more than this at once.
const SIGNALS: usize = 4096;
/// How long it is waited for that putexd begins with what it is told to do. It may have to wait for a host that can take over, and
/// for the putexd of another host, which it asks through the store.
const ORDER_LIMIT: Duration = Duration::from_secs(45);

/// So many leases are told of one by one.
const FEW: usize = 12;

impl From<zbus::Error> for Failure {
    fn from(error: zbus::Error) -> Self {
        fdo::Error::from(error).into()
    }
}

impl From<fdo::Error> for Failure {
    fn from(error: fdo::Error) -> Self {
        #[expect(clippy::wildcard_enum_match_arm, reason = "the enum may grow, and an error says what it is")]
        match error {
            fdo::Error::ServiceUnknown(_) | fdo::Error::NameHasNoOwner(_) => Self::new(
                exit::UNAVAILABLE,
                "run \"systemctl start putexd\": putexd does not run on this host; \"systemctl status putexd\" says why",
            ),
            fdo::Error::UnknownMethod(_) => Self::new(
                exit::UNAVAILABLE,
                "restart putexd, which is older than this putexctl and does not know this request",
            ),
            fdo::Error::NoReply(_) | fdo::Error::Disconnected(_) | fdo::Error::ZBus(zbus::Error::InputOutput(_)) => Self::unavailable(
                "see \"systemctl status putexd\", and say it again once putexd runs: it ended, or was restarted, while it was asked"
                    .to_owned(),
            ),
            // What putexd was asked for stands in the store, which does not answer it; or too much was asked.
            fdo::Error::IOError(reason) | fdo::Error::LimitsExceeded(reason) => Self::unavailable(reason),
            fdo::Error::AccessDenied(reason)
            | fdo::Error::InteractiveAuthorizationRequired(reason)
            | fdo::Error::Failed(reason)
            | fdo::Error::InvalidArgs(reason) => Self::new(exit::REFUSED, reason),
            other => Self::new(exit::UNAVAILABLE, format!("failed to reach putexd over the system bus: {other}")),
        }
    }
}

/// The connection to the putexd of this host: of root over putexd's own socket, and otherwise over the system bus.
#[derive(Debug, Clone)]
pub(super) struct Bus {
    connection: Connection,
}

impl Bus {
    pub(super) async fn connect() -> Result<Self, Failure> {
        limited(async {
            let own = match identity::user() {
                0 => control::connect(Path::new(control::SOCKET)).await.ok(),
                _ => None,
            };
            let connection = match own {
                Some(connection) => connection,
                None => bus::system().await?,
            };
            Ok(Self { connection })
        })
        .await
    }

    /// All that putexd knows.
    pub(super) async fn describe(&self) -> Result<Description, Failure> {
        limited(async { read(&self.manager().await?.describe().await?) }).await
    }

    /// The history of a service's lock, the latest tenure last.
    pub(super) async fn history(&self, service: &str) -> Result<Vec<Run>, Failure> {
        limited(async { read(&self.manager().await?.describe_history(service).await?) }).await
    }

    async fn manager(&self) -> Result<ManagerProxy<'_>, Failure> {
        Ok(ManagerProxy::builder(&self.connection).cache_properties(CacheProperties::No).build().await?)
    }

    /// Whether this user may have putexd do something, as far as that is known before it is asked.
    pub(super) async fn may_act(&self) -> bool {
        identity::user() == 0 || dbus::is_permitted(&self.connection).await
    }

    /// Asks putexd to do something, and returns what it has begun.
    pub(super) async fn order(&self, verb: &Verb) -> Result<Begun, Failure> {
        let ordered = async {
            let verb = serde_json::to_string(verb).map_err(|error| Failure::new(exit::REFUSED, error.to_string()))?;
            read(&self.manager().await?.carry_out(&verb).await.map_err(of_order)?)
        };
        let late = || open(&format!("the putexd of this host has not answered within {}", rounded(ORDER_LIMIT)));
        tokio::time::timeout(ORDER_LIMIT, ordered).await.unwrap_or_else(|_| Err(late()))
    }
}

/// What putexd tells by itself of its services, which it does on the bus alone. After a restart of putexd the new one is heard. `None`:
/// there is no bus.
pub(super) async fn signals() -> Option<MessageStream> {
    let listening = async {
        let connection = bus::system().await?;
        let rule = MatchRule::builder()
            .msg_type(zbus::message::Type::Signal)
            .sender(dbus::NAME)
            .path_namespace(dbus::PATH)
            .member(dbus::TRANSITION)
            .build()?;
        MessageStream::for_match_rule(rule, &connection, NonZeroUsize::new(SIGNALS)).await
    };
    tokio::time::timeout(CALL_LIMIT, listening).await.ok()?.ok()
}

/// What systemd says of putexd's unit, such as `inactive (dead)`.
async fn daemon() -> Result<String, Failure> {
    let systemd = "org.freedesktop.systemd1";
    limited(async {
        let connection = bus::system().await?;
        let manager = Proxy::new(&connection, systemd, "/org/freedesktop/systemd1", format!("{systemd}.Manager"));
        let unit: zbus::OwnedObjectPath = manager.await?.call("LoadUnit", &(DAEMON_UNIT,)).await?;
        let unit = Proxy::new(&connection, systemd, unit, format!("{systemd}.Unit")).await?;
        let (state, sub): (String, String) =
            (unit.get_property("ActiveState").await?, unit.get_property("SubState").await?);
        Ok(format!("{state} ({sub})"))
    })
    .await
}

/// All that the putexd of this host knows.
pub(super) async fn described() -> Result<Description, Failure> {
    Bus::connect().await?.describe().await
}

/// What an error says of something that putexd was told to do. Where it does not say that nothing has begun, nobody knows.
fn of_order(error: fdo::Error) -> Failure {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the enum may grow, and all other errors say that nothing has begun"
    )]
    match error {
        fdo::Error::NoReply(_) | fdo::Error::Disconnected(_) => {
            open("putexd ended, or was restarted, while it was asked")
        }
        fdo::Error::TimedOut(known) | fdo::Error::Timeout(known) | fdo::Error::IOError(known) => open(&known),
        fdo::Error::ZBus(error) => open(&error.to_string()),
        other => other.into(),
    }
}

/// The failure of an order that may have been begun, or may be begun still.
fn open(known: &str) -> Failure {
    let text = format!(
        "look at \"putexctl status\" before you say it again, because it is not known whether it has begun or begins still: {known}"
    );
    Failure::new(exit::GOING_ON, text)
}

async fn limited<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    within(CALL_LIMIT, work).await
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
        Err(Failure::unavailable(format!(
            "the putexd of this host has not answered within {}: it stands still or the host is overloaded; see \"systemctl status putexd\", and \
             restart it if it stays so, which no service feels whose lease is renewed again in time",
            rounded(limit)
        )))
    })
}

/// What putexd has told. It may be another version of putexd, which tells more or less.
fn read<T: DeserializeOwned>(told: &str) -> Result<T, Failure> {
    serde_json::from_str(told)
        .map_err(|error| Failure::unavailable(format!("restart putexd, whose answer is not understood: {error}")))
}

/// What can be told of this host without its putexd, in lines: the state of its unit, and the leases that the guard still keeps.
pub(super) async fn without_putexd(leases: &Path) -> Vec<String> {
    let mut lines = vec![match daemon().await {
        Ok(state) => format!("{DAEMON_UNIT} is {state}"),
        Err(_) => format!("the state of {DAEMON_UNIT} is not known, because systemd cannot be asked"),
    }];
    let grants = grants(leases);
    if grants.is_empty() {
        lines.push("no lease is in force on this host: its guard permits no unit to run".to_owned());
    }
    lines.extend(in_lines(&grants));
    lines
}

/// The leases in words: each where there are few, and otherwise those together that stand alike.
fn in_lines(grants: &[Grant]) -> Vec<String> {
    let (in_force, over): (Vec<&Grant>, Vec<&Grant>) =
        grants.iter().partition(|grant| grant.left.is_some_and(|left| !left.is_zero()));
    let names = |grants: &[&Grant]| {
        let names: Vec<String> = grants.iter().map(|grant| grant.service.to_string()).collect();
        match names.len() {
            count if count > FEW => format!("{count} services ({})", enumerated(&names, FEW)),
            _ => enumerated(&names, FEW),
        }
    };
    let mut lines = Vec::new();
    let lefts = || in_force.iter().filter_map(|grant| grant.left);
    if in_force.len() > FEW
        && let (Some(first), Some(last)) = (lefts().min(), lefts().max())
    {
        lines.push(format!(
            "{}: this host has their leases; unless putexd renews them, the guard kills their units, the first of them in {} and the \
             last in {} at the latest",
            names(&in_force),
            rounded(first),
            rounded(last)
        ));
    } else {
        lines.extend(in_force.iter().map(|grant| {
            format!(
                "{}: this host has its lease, with the token {}; unless putexd renews it, the guard kills its unit in {} at the latest",
                grant.service,
                grant.token,
                rounded(grant.left.unwrap_or_default())
            )
        }));
    }
    if !over.is_empty() {
        lines.push(format!(
            "{}: the lease of this host is over, so that the guard ends the unit, or its grant cannot be read",
            names(&over)
        ));
    }
    if !grants.is_empty() {
        lines.push(
            "this host has no lease of any other service: the guard permits none of their units to run".to_owned(),
        );
    }
    lines
}

/// A lease as the guard's grant tells it.
#[derive(Debug)]
struct Grant {
    service: ServiceName,
    token: String,
    /// How long it lasts from now on. `None`: it cannot be read.
    left: Option<Duration>,
}

fn grants(leases: &Path) -> Vec<Grant> {
    let Ok(entries) = std::fs::read_dir(leases) else { return Vec::new() };
    let mut services: Vec<ServiceName> =
        entries.filter_map(|entry| ServiceName::new(entry.ok()?.file_name().to_str()?).ok()).collect();
    services.sort();
    let now = clock::now();
    let of_service = |service: ServiceName| {
        let text = std::fs::read_to_string(leases.join(service.as_str())).unwrap_or_default();
        let (deadline, environment) = alternating::latest(&text).unwrap_or_default();
        let token = environment.lines().find_map(|line| line.strip_prefix(FENCING_TOKEN)?.strip_prefix('='));
        let left = grant::parse_deadline(deadline)
            .map(|deadline| deadline.boot.saturating_sub(now.boot).min(deadline.raw.saturating_sub(now.raw)));
        Grant { token: token.unwrap_or("?").to_owned(), left, service }
    };
    services.into_iter().map(of_service).collect()
}

/// The directory of the grants below `root`.
pub(super) fn leases_below(root: &Path) -> std::path::PathBuf {
    root.join(LEASES_DIR.trim_start_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{self, assert_described, small, troubled};
    use super::*;
    use crate::cluster::history::Known;
    use crate::dbus::TransitionStatus;
    use crate::types::NodeId;

    #[test]
    fn many_leases_are_told_of_together() {
        let grant = |number: u64| Grant {
            service: ServiceName::new(&format!("job-{number:03}")).expect("a name"),
            token: "7".to_owned(),
            left: Some(Duration::from_secs(number % 5)),
        };
        let few: Vec<Grant> = (1..4).map(grant).collect();
        assert_eq!(in_lines(&few).len(), 4);
        let many: Vec<Grant> = (0..112).map(grant).collect();
        let lines = in_lines(&many);
        assert_eq!(lines.len(), 3, "{lines:#?}");
        assert!(lines[0].starts_with("89 services (job-001, job-002, "), "{lines:#?}");
        assert!(lines[0].contains("in 1.0s and the last in 4.0s at the latest"), "{lines:#?}");
        assert!(lines[1].starts_with("23 services (job-000, job-005, "), "{lines:#?}");
        assert!(in_lines(&[]).is_empty());
    }

    #[test]
    fn what_the_bus_has_is_as_the_schema_describes_it() {
        for told in [small(), troubled()] {
            assert_described("Service.Describe", &told.services[0]);
            let fixture::Told { services, store, cluster } = told;
            assert_described("Manager.Describe", &Description { services, store, cluster });
        }
        let run = fixture::run(-60, "h1", 7, Some((-30, Known::Exactly)), "why");
        assert_described("Manager.DescribeHistory", &[run]);
        assert_described("Manager.Do, the answer", &Begun::default());
        assert_described("Service.Transition", &TransitionStatus::default());
        let service = ServiceName::new("db").expect("a name");
        let (node, reason) = (NodeId::new("h2").expect("a name"), String::new());
        for verb in [
            Verb::StepDown { service: service.clone(), reason: reason.clone(), to: Some(node.clone()) },
            Verb::Stop { service: service.clone(), reason: reason.clone(), until: Some(1) },
            Verb::Start { service: service.clone() },
            Verb::Pause { service: service.clone(), reason: reason.clone(), seconds: 1 },
            Verb::Resume { service: service.clone() },
            Verb::Adopt { service },
            Verb::Drain { reason, until: None, force: true },
            Verb::Undrain,
            Verb::ConfirmDead { node },
        ] {
            assert_described("Manager.Do", &verb);
        }
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
            fdo::Error::ZBus(zbus::Error::Failure(why())),
        ] {
            let failure = of_order(error);
            assert_eq!(failure.status, exit::GOING_ON, "{}", failure.message);
            let is_named = ["why", "while it was asked"].iter().any(|end| failure.message.ends_with(end));
            assert!(failure.message.starts_with("look at") && is_named, "{}", failure.message);
        }
        for (error, status) in [
            (fdo::Error::Failed(why()), exit::REFUSED),
            (fdo::Error::InvalidArgs(why()), exit::REFUSED),
            (fdo::Error::AccessDenied(why()), exit::REFUSED),
            (fdo::Error::InteractiveAuthorizationRequired(why()), exit::REFUSED),
            (fdo::Error::ServiceUnknown(why()), exit::UNAVAILABLE),
            (fdo::Error::UnknownMethod(why()), exit::UNAVAILABLE),
            (fdo::Error::LimitsExceeded(why()), exit::UNAVAILABLE),
        ] {
            let failure = of_order(error);
            assert_eq!(failure.status, status, "{}", failure.message);
        }
    }

    /// A look begins nothing. Where the store does not give a history, it is as unavailable as putexd.
    #[test]
    fn a_look_that_is_not_answered_is_unavailable_and_says_what_to_do() {
        for error in
            [fdo::Error::NoReply("recipient disconnected".to_owned()), fdo::Error::IOError("see it".to_owned())]
        {
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

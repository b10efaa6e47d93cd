//! Who asks, and what he may do.
//!
//! Root may do everything. Of others polkit decides: whether they may look (`org.putexd.Putexd1.read`) and whether they may act
//! (`org.putexd.Putexd1.manage-services`, and `org.putexd.Putexd1.confirm-dead` for that one). Where there is no polkit, or its unit is masked, everybody may look whom the bus's own
//! policy lets through, and only root may act. Where polkit is there and does not answer in time, only root may do either.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use zbus::{Connection, Variant, fdo};

use crate::cluster::request::Verb;
use crate::types::NodeId;

/// The action of whoever looks.
pub(super) const READ: &str = "org.putexd.Putexd1.read";
/// The action of whoever acts on services, or on the part that a host takes.
pub(super) const MANAGE: &str = "org.putexd.Putexd1.manage-services";
/// The action of whoever says that a host is off. It is one of its own, because the word is believed without a proof: if it is
/// wrong, two hosts run a service at once.
pub(super) const CONFIRM_DEAD: &str = "org.putexd.Putexd1.confirm-dead";

const POLKIT: &str = "org.freedesktop.PolicyKit1";
const POLKIT_PATH: &str = "/org/freedesktop/PolicyKit1/Authority";
const POLKIT_INTERFACE: &str = "org.freedesktop.PolicyKit1.Authority";
/// What PID 1 says where polkit cannot be started because an administrator does not want it.
const NOT_STARTED: [&str; 2] = ["org.freedesktop.systemd1.UnitMasked", "org.freedesktop.systemd1.NoSuchUnit"];
/// The flag by which polkit may ask the user for a password.
const MAY_ASK: u32 = 1;

/// How long the bus may take to say who a client is.
const BUS_LIMIT: Duration = Duration::from_secs(2);
/// How long polkit may take where it asks nobody.
const POLKIT_LIMIT: Duration = Duration::from_secs(5);
/// How long polkit may take where a user has to type a password.
const PASSWORD_LIMIT: Duration = Duration::from_secs(120);
/// How long it is believed that a client may look, or may not, and that there is no polkit, or one that does not answer.
const KEPT: Duration = Duration::from_secs(10);
/// How many clients are remembered at most.
const CLIENTS: usize = 256;
/// The file with the names of users, and how much of it is read.
const USERS: &str = "/etc/passwd";
const USERS_LIMIT: u64 = 1024 * 1024;

/// What polkit says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Yes,
    No,
    /// Not without asking the user for a password.
    Challenge,
    /// There is no polkit on this host.
    Absent,
    /// It is there, and gives no answer.
    Silent,
}

/// A client, by what was found out before.
#[derive(Debug, Clone, Copy)]
struct Client {
    uid: u32,
    looks: Option<(Verdict, Instant)>,
}

#[derive(Debug, Default)]
struct Known {
    clients: BTreeMap<String, Client>,
    /// Until when polkit is not asked again whether somebody may look, and what is taken for its answer.
    away: Option<(Verdict, Instant)>,
}

/// Finds out who asks, and what he may do.
pub(super) struct Authority {
    /// A connection of its own: on that of the calls, an answer would wait behind them.
    bus: Connection,
    node: NodeId,
    known: Mutex<Known>,
}

impl Authority {
    pub(super) fn new(bus: Connection, node: NodeId) -> Self {
        Self { bus, node, known: Mutex::default() }
    }

    /// The number of the user who asks.
    pub(super) async fn uid(&self, sender: &str) -> fdo::Result<u32> {
        if let Some(client) = self.known.lock().await.clients.get(sender) {
            return Ok(client.uid);
        }
        let unknown = |why: String| fdo::Error::AccessDenied(format!("the bus does not say who asks: {why}"));
        let bus = Some("org.freedesktop.DBus");
        let call = self.bus.call_method(bus, "/org/freedesktop/DBus", bus, "GetConnectionCredentials", &sender);
        let answer = timeout(BUS_LIMIT, call).await.map_err(|_| unknown("it does not answer".to_owned()))?;
        let answer = answer.map_err(|error| unknown(error.to_string()))?;
        let body = answer.body();
        let credentials: HashMap<String, Variant<'_>> =
            body.deserialize().map_err(|error| unknown(error.to_string()))?;
        let Some(Variant::U32(uid)) = credentials.get("UnixUserID") else {
            return Err(unknown("it names no user".to_owned()));
        };
        let mut known = self.known.lock().await;
        if known.clients.len() >= CLIENTS {
            known.clients.clear();
        }
        known.clients.insert(sender.to_owned(), Client { uid: *uid, looks: None });
        Ok(*uid)
    }

    /// Whether it is known that the client may look, or that he may not. `None`: polkit has to be asked.
    pub(super) async fn knows_of_look(&self, sender: &str) -> Option<fdo::Result<()>> {
        let known = self.known.lock().await;
        let client = known.clients.get(sender)?;
        if client.uid == 0 {
            return Some(Ok(()));
        }
        let now = Instant::now();
        let verdict = [client.looks, known.away].into_iter().flatten().find(|(_, until)| now < *until);
        verdict.map(|(verdict, _)| may_look(verdict))
    }

    /// Whether the client may look.
    pub(super) async fn look(&self, sender: &str) -> fdo::Result<()> {
        let uid = self.uid(sender).await?;
        if uid == 0 {
            return Ok(());
        }
        let verdict = ask_polkit(&self.bus, sender, READ, false).await;
        let until = Instant::now() + KEPT;
        let mut known = self.known.lock().await;
        match verdict {
            Verdict::Absent | Verdict::Silent => known.away = Some((verdict, until)),
            Verdict::Yes | Verdict::No | Verdict::Challenge => {
                if let Some(client) = known.clients.get_mut(sender) {
                    client.looks = Some((verdict, until));
                }
            }
        }
        may_look(verdict)
    }

    /// Whether the client may do this; if so, who he is, as in `root@h1`. `may_ask`: the client waits for a user to type a password.
    pub(super) async fn act(&self, sender: &str, verb: &Verb, may_ask: bool) -> fdo::Result<String> {
        let uid = self.uid(sender).await?;
        if uid != 0 {
            let action = action_of(verb);
            may_act(ask_polkit(&self.bus, sender, action, may_ask).await, action)?;
        }
        // A client that has given up meanwhile has been told that nothing is known. So it is asked anew whether he is there still:
        // a putexd that stood still must not do later what nobody waits for.
        self.known.lock().await.clients.remove(sender);
        self.uid(sender).await?;
        Ok(format!("{}@{}", user_name(uid).await, self.node))
    }
}

fn action_of(verb: &Verb) -> &'static str {
    match verb {
        Verb::ConfirmDead { .. } => CONFIRM_DEAD,
        Verb::StepDown { .. }
        | Verb::Stop { .. }
        | Verb::Start { .. }
        | Verb::Pause { .. }
        | Verb::Resume { .. }
        | Verb::Adopt { .. }
        | Verb::Drain { .. }
        | Verb::Undrain => MANAGE,
    }
}

/// Whether polkit permits the client of the bus with this name to act on services, without a password. A client may ask that of itself.
pub async fn is_permitted(bus: &Connection, client: &str) -> bool {
    matches!(ask_polkit(bus, client, MANAGE, false).await, Verdict::Yes)
}

async fn ask_polkit(bus: &Connection, sender: &str, action: &str, may_ask: bool) -> Verdict {
    let subject = ("system-bus-name", HashMap::from([("name", Variant::from(sender))]));
    let (flags, limit) = if may_ask { (MAY_ASK, PASSWORD_LIMIT) } else { (0, POLKIT_LIMIT) };
    let asked = (subject, action, HashMap::<&str, &str>::new(), flags, "");
    let call = bus.call_method(Some(POLKIT), POLKIT_PATH, Some(POLKIT_INTERFACE), "CheckAuthorization", &asked);
    let answer = match timeout(limit, call).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return of_error(&error),
        Err(_) => return Verdict::Silent,
    };
    match answer.body().deserialize::<((bool, bool, HashMap<String, String>),)>() {
        Ok(((true, _, _),)) => Verdict::Yes,
        Ok(((false, true, _),)) => Verdict::Challenge,
        Ok(((false, false, _),)) => Verdict::No,
        Err(_) => Verdict::Silent,
    }
}

/// What a failed call of polkit means. Only a bus that knows of no polkit says that there is none, and PID 1, whom the bus asks to
/// start it, where an administrator has masked its unit or has removed it.
fn of_error(error: &zbus::Error) -> Verdict {
    #[expect(clippy::wildcard_enum_match_arm, reason = "the enum may grow, and what is not known is no answer")]
    let is_absent = match error {
        zbus::Error::FDO(error) => matches!(
            **error,
            fdo::Error::ServiceUnknown(_) | fdo::Error::NameHasNoOwner(_) | fdo::Error::SpawnServiceNotFound(_)
        ),
        zbus::Error::MethodError(name, ..) => NOT_STARTED.contains(&name.as_str()),
        _ => false,
    };
    if is_absent { Verdict::Absent } else { Verdict::Silent }
}

fn may_look(verdict: Verdict) -> fdo::Result<()> {
    match verdict {
        Verdict::Yes | Verdict::Absent => Ok(()),
        Verdict::No | Verdict::Challenge => {
            Err(fdo::Error::AccessDenied(format!("polkit does not permit it to you ({READ})")))
        }
        Verdict::Silent => Err(silent(READ)),
    }
}

fn may_act(verdict: Verdict, action: &str) -> fdo::Result<()> {
    match verdict {
        Verdict::Yes => Ok(()),
        Verdict::No => Err(fdo::Error::AccessDenied(format!("polkit does not permit it to you ({action})"))),
        Verdict::Challenge => Err(fdo::Error::InteractiveAuthorizationRequired(format!(
            "be root, or let yourself be asked for a password: polkit does not permit it without ({action})"
        ))),
        Verdict::Absent => {
            Err(fdo::Error::AccessDenied("only root may do that: this host has no polkit that permits it".to_owned()))
        }
        Verdict::Silent => Err(silent(action)),
    }
}

fn silent(action: &str) -> fdo::Error {
    fdo::Error::AccessDenied(format!("be root: polkit, which decides of others, does not answer ({action})"))
}

/// The user's name as the host's own file has it, and `uid-N` where that has none: the name of a directory service is asked of
/// other programs, for which nobody waits here.
async fn user_name(uid: u32) -> String {
    if uid == 0 {
        return "root".to_owned();
    }
    let mut users = String::new();
    if let Ok(file) = tokio::fs::File::open(USERS).await {
        let _ = file.take(USERS_LIMIT).read_to_string(&mut users).await;
    }
    name_in(&users, uid).unwrap_or_else(|| format!("uid-{uid}"))
}

fn name_in(users: &str, uid: u32) -> Option<String> {
    let of_line = |line: &str| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(uid)).then(|| crate::types::shortened(name, 32))
    };
    users.lines().find_map(of_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_polkit_root_acts_and_everybody_looks_and_one_that_is_silent_permits_nothing() {
        assert!(may_look(Verdict::Absent).is_ok() && may_look(Verdict::Yes).is_ok());
        assert!(may_act(Verdict::Yes, MANAGE).is_ok());
        for verdict in [Verdict::No, Verdict::Challenge, Verdict::Absent, Verdict::Silent] {
            assert!(may_act(verdict, MANAGE).is_err(), "{verdict:?}");
        }
        for verdict in [Verdict::No, Verdict::Challenge, Verdict::Silent] {
            assert!(may_look(verdict).is_err(), "{verdict:?}");
        }
    }

    #[test]
    fn a_user_is_known_by_the_name_in_the_file() {
        let users = "root:x:0:0::/root:/bin/sh\nbad line\nanna:x:1000:1000::/home/anna:/bin/sh\n";
        assert_eq!(name_in(users, 1000).as_deref(), Some("anna"));
        assert_eq!(name_in(users, 1001), None);
    }
}

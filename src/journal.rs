//! The journal: each change of state is one entry, with its MESSAGE_ID and fields.
//!
//! Three kinds of entries have a MESSAGE_ID, and so an explanation in `packaging/usr/lib/systemd/catalog/putexd.catalog` that
//! `journalctl -x` shows: that a service has entered a state ([`transition`]), an [`Alarm`], and a [`GuardAlarm`], which the
//! guard writes. All carry OBJECT_SYSTEMD_UNIT.
//! Where root has written such an entry, journalctl counts it as the unit's own, so that all that has happened is shown by
//! `journalctl -u database.service`. An entry for several services has these fields for each of them ([`transitions`]).
//!
//! tracing-journald turns a field's name into upper case and, without a prefix, leaves it otherwise alone. So the fields
//! of *any* tracing event of the program become journal fields: do not name one `priority`, `message_id` or like another
//! [field that the journal knows](https://www.freedesktop.org/software/systemd/man/systemd.journal-fields.html).

use std::env;
use std::fmt;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::{Level, field};
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::{FormatFields, Writer};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use crate::election::{State, Transition};
use crate::types::{FencingToken, Revision, ServiceName, UnitName, first_named, printable, printable_lines};

/// The environment variable with a filter such as `debug` or `info,putexd::store=trace`.
const FILTER_VARIABLE: &str = "PUTEX_LOG";
/// The libraries log what putexd itself logs better. That of NATS tells an administrator of each failed attempt to connect as
/// "max reconnection attempts reached".
const DEFAULT_FILTER: &str = "info,async_nats=off,zbus=warn";

/// The most services of one entry: the journal takes 1024 fields, and each service needs two.
const SERVICES_LIMIT: usize = 256;
/// The most services that the message of such an entry names.
const SERVICES_NAMED: usize = 3;

/// Sends the program's messages to the journal when stderr is the journal, else as text to stderr.
///
/// Call it once, at the beginning of a main function; `program` becomes SYSLOG_IDENTIFIER.
pub fn init(program: &str) -> Result<(), TryInitError> {
    let wanted = env::var(FILTER_VARIABLE).unwrap_or_else(|_| DEFAULT_FILTER.to_owned());
    let (filter, complaint) = match EnvFilter::builder().parse(&wanted) {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new(DEFAULT_FILTER), Some(error)),
    };
    let registry = tracing_subscriber::registry().with(filter);
    // A journal that does not answer is no reason to be silent: stderr is used then.
    match journal_layer(program) {
        Some(layer) => registry.with(layer).try_init()?,
        None => registry
            .with(
                tracing_subscriber::fmt::layer()
                    .compact()
                    .with_target(false)
                    .fmt_fields(PlainFields)
                    .with_ansi(io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none())
                    .with_writer(io::stderr),
            )
            .try_init()?,
    }
    if let Some(error) = complaint {
        tracing::warn!("{FILTER_VARIABLE}={wanted:?} is not a filter: {error}, ignoring");
    }
    Ok(())
}

/// The MESSAGE_ID of the entry that a service has entered `state`: the key of the explanation in the catalog.
#[must_use]
pub const fn message_id(state: State) -> &'static str {
    match state {
        State::NoStore => "0b419e0b897f411093b83a4a1cc49268",
        State::Standby => "416ecee12d854ed3898ca6fdb1d107bb",
        State::Confirming => "85b862624bec4320aca9ba407eccd3af",
        State::Fencing => "6ecb8cf8d5b14aefa0e2fa9168ad1e43",
        State::Starting => "572f07d3dbbb4c5d8748e1b11528180a",
        State::Active => "8393ed64d4eb429fb2b6001fe2bde5cf",
        State::Releasing => "be8bad596007420c801dfa778bf686ef",
        State::Lapsing => "8b4034494734414dba01b5ec3d9fb529",
        State::Retired => "8a6bd094bf304c76aae9d889c3fbc83f",
    }
}

/// How often each alarm was written, by its place in [`Alarm::ALL`].
static RAISED: [AtomicU64; Alarm::ALL.len()] = [const { AtomicU64::new(0) }; Alarm::ALL.len()];

/// How often this process has written `alarm`, for the metrics.
#[must_use]
pub fn raised(alarm: Alarm) -> u64 {
    RAISED[alarm as usize].load(Ordering::Relaxed)
}

/// The level of that entry, by the same rule as [`Alarm::level`].
const fn level(state: State) -> Level {
    match state {
        State::Lapsing => Level::ERROR,
        State::NoStore => Level::WARN,
        State::Standby
        | State::Confirming
        | State::Fencing
        | State::Starting
        | State::Active
        | State::Releasing
        | State::Retired => Level::INFO,
    }
}

/// Writes the entry of a transition of `service`. A holder, revision or token that is not known is left out of it.
pub fn transition(service: &ServiceName, unit: &UnitName, transition: &Transition) {
    let Transition { from, to, reason, holder, revision, token } = transition;
    write(&Entry {
        level: level(*to),
        message: format_args!("{service}: {to} (was {from}): {reason}"),
        message_id: Some(message_id(*to)),
        service: Some(service.as_str()),
        unit: Some(unit.as_str()),
        from: Some(from.as_str()),
        to: Some(to.as_str()),
        reason,
        holder: Some(&**holder).filter(|holder| !holder.is_empty()),
        revision: Some(revision.0).filter(|revision| *revision != 0),
        token: Some(token.0).filter(|token| *token != 0),
        over: None,
    });
}

/// Writes the entry of a transition that several services have made for the same reason. It has PUTEX_SERVICE and
/// OBJECT_SYSTEMD_UNIT of each of them, so that a search for any of them finds it, and no other field that belongs to one
/// service.
pub fn transitions(services: &[(&ServiceName, &UnitName)], from: State, to: State, reason: &str) {
    together(services, |names| {
        write(&Entry {
            level: level(to),
            message: format_args!("{names}: {to} (was {from}): {reason}"),
            message_id: Some(message_id(to)),
            service: None,
            unit: None,
            from: Some(from.as_str()),
            to: Some(to.as_str()),
            reason,
            holder: None,
            revision: None,
            token: None,
            over: None,
        });
    });
}

/// Writes that the locks of services that do not run here have another holder than before. `former`: who held them before, as
/// far as this host has seen.
pub fn new_holder(services: &[(&ServiceName, &UnitName)], holder: &str, former: &str) {
    let reason = format!("holder is now {holder} (was {former})");
    together(services, |names| {
        write(&Entry {
            level: Level::INFO,
            message: format_args!("{names}: {reason}"),
            message_id: None,
            service: None,
            unit: None,
            from: None,
            to: None,
            reason: &reason,
            holder: Some(holder),
            revision: None,
            token: None,
            over: None,
        });
    });
}

/// Has `tell` write an entry that concerns several services, with the names that its message begins with.
fn together(services: &[(&ServiceName, &UnitName)], tell: impl Fn(&str)) {
    for services in services.chunks(SERVICES_LIMIT) {
        // An event has each field once. In a span tracing-journald adds each value that is recorded to those recorded before.
        let span = tracing::error_span!(
            target: "putexd",
            "together",
            PUTEX_SERVICE = field::Empty,
            OBJECT_SYSTEMD_UNIT = field::Empty
        );
        for (service, unit) in services {
            span.record("PUTEX_SERVICE", service.as_str());
            span.record("OBJECT_SYSTEMD_UNIT", unit.as_str());
        }
        let named: Vec<&str> = services.iter().map(|(service, _)| service.as_str()).collect();
        span.in_scope(|| tell(&first_named(&named, SERVICES_NAMED)));
    }
}

/// What an alarm is about.
#[derive(Debug, Clone, Copy, Default)]
pub struct Subject<'a> {
    /// The service and its unit; `None` when it concerns the host as a whole.
    pub service: Option<(&'a ServiceName, &'a UnitName)>,
    /// The holder of the lock, or the other host that is concerned.
    pub holder: Option<&'a str>,
    /// The lock's revision.
    pub revision: Option<Revision>,
    /// The fencing token.
    pub token: Option<FencingToken>,
}

/// Counts an alarm of which another entry of the journal tells.
pub fn count(alarm: Alarm) {
    RAISED[alarm as usize].fetch_add(1, Ordering::Relaxed);
}

/// Writes the entry of an alarm. `reason` fits behind a colon, and ends in ", ignoring" when nothing follows from it.
pub fn alarm(alarm: Alarm, subject: &Subject<'_>, reason: &str) {
    count(alarm);
    let service = subject.service.map(|(service, _)| service.as_str());
    let (before, colon) = service.map_or(("", ""), |service| (service, ": "));
    write(&Entry {
        level: alarm.level(),
        message: format_args!("{before}{colon}{}: {reason}", alarm.name()),
        message_id: Some(alarm.message_id()),
        service,
        unit: subject.service.map(|(_, unit)| unit.as_str()),
        from: None,
        to: None,
        reason,
        holder: subject.holder,
        revision: subject.revision.map(|revision| revision.0),
        token: subject.token.map(|token| token.0),
        over: None,
    });
}

/// Writes the entry that an alarm is over, with the name of the alarm in PUTEX_ALARM.
pub fn over(alarm: Alarm, service: Option<(&ServiceName, &UnitName)>) {
    let name = service.map(|(service, _)| service.as_str());
    let (before, colon) = name.map_or(("", ""), |service| (service, ": "));
    let reason = format!("\"{}\" is over", alarm.name());
    write(&Entry {
        level: Alarm::Over.level(),
        message: format_args!("{before}{colon}{}: {reason}", Alarm::Over.name()),
        message_id: Some(Alarm::Over.message_id()),
        service: name,
        unit: service.map(|(_, unit)| unit.as_str()),
        from: None,
        to: None,
        reason: &reason,
        holder: None,
        revision: None,
        token: None,
        over: Some(alarm.name()),
    });
}

macro_rules! messages {
    ($(#[$doc:meta])* $table:ident { $($(#[$entry_doc:meta])* $variant:ident = $name:literal, $id:literal, $level:ident;)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $table {
            $($(#[$entry_doc])* $variant,)*
        }

        impl $table {
            /// All values, in the order of their declaration.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The kind in one word for programs: `StoreLost` is `store-lost`.
            #[must_use]
            pub fn kind(self) -> String {
                let mut kind = String::new();
                for character in format!("{self:?}").chars() {
                    if character.is_ascii_uppercase() && !kind.is_empty() {
                        kind.push('-');
                    }
                    kind.push(character.to_ascii_lowercase());
                }
                kind
            }

            /// The name, as an operator reads it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// The MESSAGE_ID: the key of the explanation in the catalog.
            #[must_use]
            pub const fn message_id(self) -> &'static str {
                match self {
                    $(Self::$variant => $id,)*
                }
            }

            /// ERROR: somebody has to act. WARN: putexd acts, and somebody should look. INFO: all is as it should be.
            #[must_use]
            pub const fn level(self) -> Level {
                match self {
                    $(Self::$variant => Level::$level,)*
                }
            }
        }
    };
}

messages! {
    /// What an operator should know beside the changes of state.
    Alarm {
        /// The store gives no answer. An active host goes on until its lease ends.
        StoreLost = "the store is lost", "07d21fdefdff481f9acc84901398a646", WARN;
        /// The store answers again.
        StoreFound = "the store answers again", "a4bb0980580f4d769de81e8a2daab5d5", INFO;
        /// Two hosts with one name (K7): a record with this node's name changes without a write of this node.
        SharedName = "two hosts use one name", "2c82915d2ada43ff86e7dc5d99ece7e4", ERROR;
        /// Regression (K6): the store has gone back to an earlier revision.
        Regression = "the store has gone back in time", "40c964e3695047948c83c8d574dbe5cf", ERROR;
        /// The unit ran on a host that does not hold the lock.
        StrayUnit = "the unit runs without the lock", "560b984bbabc4cb7a14842f97acdf01f", ERROR;
        /// A daemon-reload has taken away what binds a unit to its lease.
        Ungated = "the unit can be started without its lease", "d248be04c4ba4b28927e4877768bb7b8", ERROR;
        /// A process of the unit was found outside of its control groups, or one that has its work done elsewhere.
        LeftControlGroup = "work of the unit is outside of its control group", "048ce3eabad14d69b26f25ae714d4a99", ERROR;
        /// The wall clock moved against the time since boot.
        ClockJump = "the clock jumped", "d5c90c2baec24517a030a3eae78486bb", WARN;
        /// A stop could not be proven in time: not within `stop-limit`, or not by the end of its stop budget.
        StopFailed = "the stop cannot be proven", "23c22031c9be49748ff121ccbf1bd302", ERROR;
        /// This host takes itself down.
        SelfFence = "this host takes itself down", "93b50776cacc4856ade1697695d23a4c", ERROR;
        /// A configuration file is wrong. What ran by its former text goes on as it was.
        ConfigurationBroken = "the configuration is broken", "addfd2a5f1f04e3082106f0d1d42afba", ERROR;
        /// The configuration was read anew.
        ConfigurationReloaded = "the configuration is reloaded", "e3ba308627d1406fb454bb6e319f48be", INFO;
        /// The store holds a record that no putexd would write.
        OddRecord = "the lock's record is not believed", "5f1de39cf4f74b2f9d8c4a60f1f3f7d2", ERROR;
        /// A later version has written the lock's record in a format that this one does not know.
        NewerRecord = "the lock's record is of a later version", "5afb23aa2b3a49cb997c794c4cc25461", WARN;
        /// Somebody else has answered a write of this host in the store's place.
        ForgedAnswer = "the store's answers are forged", "ba1c6ff2c1934ad5a9fb7b5b7ed3a7c4", ERROR;
        /// Other logins can answer in the store's place.
        Forgeable = "the store's answers can be forged", "6a1f9c3de54f4d4f8b0f6a7f3f3c0f1e", ERROR;
        /// An operator has stopped the service everywhere, and the store does not say so any more.
        StopLost = "the store has lost an operator's stop", "0d5c6f0b7f6e4a0fb3a6a2d3f0c7e8a1", ERROR;
        /// A previous holder could not be fenced.
        FenceFailed = "fencing has failed", "ed2b988e00da4c9aa1becce287448c2a", ERROR;
        /// The health check has failed `fall` times in a row.
        CheckFailed = "the health check has failed", "35fea88bae6546ea8c01b69e47aab897", WARN;
        /// The health check has passed `rise` times in a row again.
        CheckRecovered = "the health check passes again", "c58af35dbe704b1cb4302365e384402f", INFO;
        /// The unit is run under another key or in another store than this host's configuration says.
        OtherLock = "the unit is not run under this lock", "75fa00572ce64f6d817c697473ef501c", ERROR;
        /// The unit is run under this host's key again, or an operator has said that this key is meant.
        OneLock = "the unit is run under this lock", "4f90ec9c41694e669d9d4c18c6e66804", INFO;
        /// The record asks for a host to be fenced that must not be.
        NotToBeFenced = "a former holder is not fenced", "6755d565f6ea456087aa950741bac930", WARN;
        /// An operator knows that a host is off, and no fencing of it is waited for.
        ConfirmedDead = "a host is taken for dead", "9d484331d9cd46b4b8a89a32ef607da1", WARN;
        /// An operator has this host hand everything over, and take nothing.
        Drained = "this host is drained", "d4bca3a6382e4959a6fa8c265305599f", WARN;
        /// This host is not drained any more.
        Undrained = "this host takes part again", "dfb8574b7d284764a1e40d92672e0148", INFO;
        /// The unit has failed here again and again, or has failed and nobody runs it since.
        ServiceFails = "the service fails on this host", "a3f13eb9ca454ccfbd466124f42333bd", ERROR;
        /// Somebody has frozen the unit, which holds the lock and serves nobody.
        Frozen = "the unit is frozen", "61c83ab2ba5540e4a37ed6e6b2a7a4bb", ERROR;
        /// The guard does not answer putexd.
        GuardGone = "the guard does not answer", "d1d1f9b4ee014057a53f4cd15a7f1764", ERROR;
        /// PID 1 of this host does not answer.
        SystemdSilent = "systemd does not answer", "6f0f3b7f2f0b4a54a8c4b6a8f7e3d912", ERROR;
        /// putexd can open no more files.
        NoDescriptors = "file descriptors have run out", "5d0a4f6c2b7e4a1f9c83e6b1d27f40a9", ERROR;
        /// The lease of a running unit has ended without a renewal. The change of state has an entry of its own.
        Lapsed = "the lease has lapsed", "bf53fe8cad78499295e38045a6cac98e", ERROR;
        /// What an earlier alarm told of is over.
        Over = "an alarm is over", "bb914f9d48d840aab5a87c4519852bc2", INFO;
    }
}

messages! {
    /// What the guard tells. It writes these entries itself, because it must never wait for the journal.
    GuardAlarm {
        /// A deadline has passed, and the units are being stopped.
        Lapsed = "the guard ends a lease", "4a643004e762413aa973b1bc26fe995c", ERROR;
        /// Processes of the units have got SIGKILL.
        Killed = "the guard kills what is left", "46e3f753f6424acfba5461ae0c5a3375", ERROR;
        /// The units of a lapsed lease are not proven dead.
        Unproven = "the guard cannot prove the stop", "24a0319c4aee464d99864b26afd7c847", ERROR;
        /// Nothing of the units of a lapsed lease runs any more.
        Dead = "the guard sees nothing of the unit any more", "d1ce948942cd4c3b90464882e5daab2c", INFO;
        /// The guard ends, or is killed because it was silent, and every lease of this host ends with it.
        Ends = "the guard ends", "9acff56abc044705b817cf898761873d", ERROR;
        /// The hardware watchdog cannot be served, so that no lease is armed.
        Unserved = "the watchdog is not served", "5c967c43883541ddb8e5ffcc1f8bacb1", ERROR;
        /// The guard cannot write to /run, so that no lease is armed.
        NoRoom = "the guard has no room", "523dea5dcbf94f2cb7101766ba910f5b", ERROR;
        /// The guard or its watcher takes this host down.
        TakesDown = "the guard takes this host down", "7e736abfd3484d31a67ded9968280d6a", ERROR;
    }
}

/// The fields of an entry. Those that are `None` are left out of it.
struct Entry<'a> {
    level: Level,
    message: fmt::Arguments<'a>,
    message_id: Option<&'a str>,
    service: Option<&'a str>,
    unit: Option<&'a str>,
    from: Option<&'a str>,
    to: Option<&'a str>,
    reason: &'a str,
    holder: Option<&'a str>,
    revision: Option<u64>,
    token: Option<u64>,
    /// The name of the alarm that is over.
    over: Option<&'a str>,
}

fn write(entry: &Entry<'_>) {
    // journalctl hides a message that has control characters.
    let message = printable_lines(&entry.message.to_string());
    let reason = printable_lines(entry.reason);
    let holder = entry.holder.map(printable);
    // The level is part of a tracing call site, and there are no more than these three.
    macro_rules! at {
        ($level:expr) => {
            tracing::event!(
                target: "putexd",
                $level,
                MESSAGE_ID = entry.message_id,
                PUTEX_SERVICE = entry.service,
                PUTEX_FROM = entry.from,
                PUTEX_TO = entry.to,
                PUTEX_REASON = reason,
                PUTEX_HOLDER = holder.as_deref(),
                PUTEX_REVISION = entry.revision,
                PUTEX_TOKEN = entry.token,
                PUTEX_ALARM = entry.over,
                OBJECT_SYSTEMD_UNIT = entry.unit,
                "{message}"
            )
        };
    }
    match entry.level {
        Level::ERROR => at!(Level::ERROR),
        Level::WARN => at!(Level::WARN),
        _ => at!(Level::INFO),
    }
}

/// The layer that writes to the journal, if stderr is the journal and the journal answers.
fn journal_layer(program: &str) -> Option<tracing_journald::Layer> {
    if !stderr_is_the_journal() {
        return None;
    }
    let layer = tracing_journald::layer().ok()?;
    Some(
        layer
            // With a prefix the field MESSAGE_ID would have another name.
            .with_field_prefix(None)
            .with_syslog_identifier(program.to_owned())
            // `notice` stands out from the informational lines of PID 1: a transition is normal, but worth seeing.
            .with_priority_mappings(PriorityMappings {
                error: Priority::Error,
                warn: Priority::Warning,
                info: Priority::Notice,
                debug: Priority::Debug,
                trace: Priority::Debug,
            }),
    )
}

/// Whether stderr is the journal. systemd gives device and inode of the stream to the journal in JOURNAL_STREAM. stderr may have
/// been redirected since.
#[must_use]
pub fn stderr_is_the_journal() -> bool {
    let Ok(stream) = env::var("JOURNAL_STREAM") else { return false };
    rustix::fs::fstat(io::stderr().as_fd()).is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Fields for people: the journal's own fields, whose names are in capitals, repeat what the message says, and are left out.
struct PlainFields;

impl<'writer> FormatFields<'writer> for PlainFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut visitor = PlainVisitor { writer, first: true, result: Ok(()) };
        fields.record(&mut visitor);
        visitor.result
    }
}

struct PlainVisitor<'writer> {
    writer: Writer<'writer>,
    first: bool,
    result: fmt::Result,
}

impl tracing::field::Visit for PlainVisitor<'_> {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
        let name = field.name();
        if self.result.is_err() || name.chars().all(|character| !character.is_ascii_lowercase()) {
            return;
        }
        let space = if self.first { "" } else { " " };
        self.first = false;
        self.result = if name == "message" {
            write!(self.writer, "{space}{value:?}")
        } else {
            write!(self.writer, "{space}{name}={value:?}")
        };
    }
}

/// Has this thread write to another journal, until the guard is dropped.
///
/// While that is the only journal of the process, tracing asks nobody but the thread that comes to a message first whether it is
/// wanted, and remembers the answer for all threads. So that a thread without a journal does not answer "by nobody", all other
/// threads have one that wants everything, and keeps nothing.
#[cfg(test)]
pub(crate) fn replaced_by(journal: impl tracing::Subscriber + Send + Sync) -> tracing::subscriber::DefaultGuard {
    static OF_OTHERS: std::sync::Once = std::sync::Once::new();
    OF_OTHERS.call_once(|| {
        tracing::subscriber::set_global_default(tracing_subscriber::registry()).expect("no test sets another");
    });
    tracing::subscriber::set_default(journal)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::{Context, Layer};

    use super::*;

    type Fields = BTreeMap<String, String>;

    /// Keeps what tracing-journald would send.
    #[derive(Clone, Default)]
    struct Recorder(Arc<Mutex<Vec<(Level, Fields)>>>);

    struct Collect<'a>(&'a mut Fields);

    impl tracing::field::Visit for Collect<'_> {
        fn record_str(&mut self, field: &tracing::field::Field, value: &str) {
            self.0.insert(field.name().to_owned(), value.to_owned());
        }
        fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
            self.0.insert(field.name().to_owned(), format!("{value:?}"));
        }
    }

    impl<S: tracing::Subscriber> Layer<S> for Recorder {
        fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
            let mut fields = Fields::new();
            event.record(&mut Collect(&mut fields));
            self.0.lock().expect("nobody panics with it").push((*event.metadata().level(), fields));
        }
    }

    fn recorded(write: impl FnOnce()) -> Vec<(Level, Fields)> {
        let recorder = Recorder::default();
        let _guard = replaced_by(tracing_subscriber::registry().with(recorder.clone()));
        write();
        recorder.0.lock().expect("nobody panics with it").clone()
    }

    fn names() -> (ServiceName, UnitName) {
        (ServiceName::new("db").expect("a good name"), UnitName::new("database.service").expect("a good name"))
    }

    #[test]
    fn a_transition_has_all_its_fields() {
        let (service, unit) = names();
        let entries = recorded(|| {
            let complete = Transition {
                from: State::Starting,
                to: State::Active,
                reason: "the unit has started".to_owned(),
                holder: "h1".to_owned(),
                revision: Revision(7),
                token: FencingToken(42),
            };
            transition(&service, &unit, &complete);
        });
        let expected = [
            ("MESSAGE_ID", "8393ed64d4eb429fb2b6001fe2bde5cf"),
            ("OBJECT_SYSTEMD_UNIT", "database.service"),
            ("PUTEX_FROM", "starting"),
            ("PUTEX_HOLDER", "h1"),
            ("PUTEX_REASON", "the unit has started"),
            ("PUTEX_REVISION", "7"),
            ("PUTEX_SERVICE", "db"),
            ("PUTEX_TO", "active"),
            ("PUTEX_TOKEN", "42"),
            ("message", "db: active (was starting): the unit has started"),
        ];
        let expected: Fields = expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        assert_eq!(entries, [(Level::INFO, expected)]);
    }

    /// Keeps everything that is recorded in spans, as tracing-journald does.
    #[derive(Clone, Default)]
    struct Spans(Arc<Mutex<Vec<(String, String)>>>);

    struct All<'a>(&'a mut Vec<(String, String)>);

    impl tracing::field::Visit for All<'_> {
        fn record_str(&mut self, field: &tracing::field::Field, value: &str) {
            self.0.push((field.name().to_owned(), value.to_owned()));
        }
        fn record_debug(&mut self, _: &tracing::field::Field, _: &dyn fmt::Debug) {}
    }

    impl<S: tracing::Subscriber> Layer<S> for Spans {
        fn on_record(&self, _: &tracing::span::Id, values: &tracing::span::Record<'_>, _: Context<'_, S>) {
            values.record(&mut All(&mut self.0.lock().expect("nobody panics with it")));
        }
    }

    #[test]
    fn a_transition_of_many_services_is_one_entry_that_each_of_them_is_found_by() {
        let many: Vec<(ServiceName, UnitName)> = (0..SERVICES_LIMIT + 2)
            .map(|number| {
                let unit = UnitName::new(&format!("s{number}.service")).expect("a good name");
                (ServiceName::new(&format!("s{number}")).expect("a good name"), unit)
            })
            .collect();
        let of_all: Vec<_> = many.iter().map(|(service, unit)| (service, unit)).collect();
        let (spans, recorder) = (Spans::default(), Recorder::default());
        let subscriber = tracing_subscriber::registry().with(spans.clone()).with(recorder.clone());
        let guard = replaced_by(subscriber);
        transitions(&of_all, State::Standby, State::NoStore, "it is away");
        drop(guard);
        let entries = recorder.0.lock().expect("nobody panics with it").clone();
        let messages: Vec<_> = entries.iter().map(|(level, fields)| (*level, fields["message"].as_str())).collect();
        let expected = [
            (Level::WARN, "s0, s1, s2 and 253 more: no-store (was standby): it is away"),
            (Level::WARN, "s256, s257: no-store (was standby): it is away"),
        ];
        assert_eq!(messages, expected);
        for (_, fields) in &entries {
            let fields: Vec<_> = fields.keys().map(String::as_str).collect();
            assert_eq!(fields, ["MESSAGE_ID", "PUTEX_FROM", "PUTEX_REASON", "PUTEX_TO", "message"]);
        }
        let found = spans.0.lock().expect("nobody panics with it").clone();
        let expected: Vec<_> = many
            .iter()
            .flat_map(|(service, unit)| {
                let own = [("PUTEX_SERVICE", service.as_str()), ("OBJECT_SYSTEMD_UNIT", unit.as_str())];
                own.map(|(name, value)| (name.to_owned(), value.to_owned()))
            })
            .collect();
        assert_eq!(found, expected);
    }

    /// As the tests of one process do, which run beside each other.
    #[test]
    fn a_message_that_a_thread_without_a_journal_came_to_first_is_heard() {
        let say = || tracing::info!("said");
        let entries = recorded(|| {
            std::thread::spawn(say).join().expect("does not panic");
            say();
        });
        assert_eq!(entries.len(), 1, "{entries:?}");
    }

    #[test]
    fn what_is_unknown_is_left_out() {
        let (service, unit) = names();
        let unknown = Transition {
            from: State::NoStore,
            to: State::Standby,
            reason: "the store answered".to_owned(),
            holder: String::new(),
            revision: Revision(0),
            token: FencingToken(0),
        };
        let entries = recorded(|| transition(&service, &unit, &unknown));
        let fields: Vec<_> = entries[0].1.keys().map(String::as_str).collect();
        let expected =
            ["MESSAGE_ID", "OBJECT_SYSTEMD_UNIT", "PUTEX_FROM", "PUTEX_REASON", "PUTEX_SERVICE", "PUTEX_TO", "message"];
        assert_eq!(fields, expected);
        let entries = recorded(|| alarm(Alarm::StoreLost, &Subject::default(), "connection refused"));
        let (level, fields) = &entries[0];
        assert_eq!(*level, Level::WARN);
        assert_eq!(fields.keys().collect::<Vec<_>>(), ["MESSAGE_ID", "PUTEX_REASON", "message"]);
        assert_eq!(fields["message"], "the store is lost: connection refused");
    }

    #[test]
    fn text_for_people_leaves_out_the_fields_of_the_journal() {
        #[derive(Clone, Default)]
        struct Sink(Arc<Mutex<Vec<u8>>>);
        impl io::Write for Sink {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().expect("nobody panics with it").extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let sink = Sink::default();
        let writer = sink.clone();
        let layer = tracing_subscriber::fmt::layer()
            .compact()
            .without_time()
            .with_target(false)
            .with_ansi(false)
            .fmt_fields(PlainFields)
            .with_writer(move || writer.clone());
        let (service, unit) = names();
        let guard = replaced_by(tracing_subscriber::registry().with(layer));
        let subject = Subject { service: Some((&service, &unit)), ..Subject::default() };
        alarm(Alarm::CheckFailed, &subject, "3 in a row");
        tracing::info!(attempt = 2, "connecting");
        drop(guard);
        let text = String::from_utf8(sink.0.lock().expect("nobody panics with it").clone()).expect("it is text");
        assert_eq!(text, " WARN db: the health check has failed: 3 in a row\n INFO connecting attempt=2\n");
    }
}

//! The journal: each change of state is one entry, with its MESSAGE_ID and fields.
//!
//! Three kinds of entries have a MESSAGE_ID, and so an explanation in `packaging/usr/lib/systemd/catalog/putexd.catalog` that
//! `journalctl -x` shows: that a service has entered a state ([`transition`]), an [`Alarm`] or a [`Notice`], and a [`GuardAlarm`], which the
//! guard writes. All carry OBJECT_SYSTEMD_UNIT.
//! Where root has written such an entry, journalctl counts it as the unit's own, so that all that has happened is shown by
//! `journalctl -u database.service`.
//!
//! tracing-journald turns a field's name into upper case and, without a prefix, leaves it otherwise alone. So the fields
//! of *any* tracing event of the program become journal fields: do not name one `priority`, `message_id` or like another
//! [field that the journal knows](https://www.freedesktop.org/software/systemd/man/systemd.journal-fields.html).

use std::{
    env,
    io::{self, IsTerminal},
    os::fd::AsFd,
};

use tracing::Level;
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::{
    EnvFilter,
    fmt::format::{FormatFields, debug_fn},
    layer::SubscriberExt,
    util::{SubscriberInitExt, TryInitError},
};

use crate::{
    election::{State, Transition},
    facts::alarm::{Alarm, Urgency},
    types::{FencingToken, Revision, ServiceName, UnitName, printable, printable_lines},
};

/// The environment variable with a filter such as `debug` or `info,putexd::store=trace`.
const FILTER_VARIABLE: &str = "PUTEX_LOG";
/// The libraries log what putexd itself logs better. That of NATS tells an administrator of each failed attempt to connect as
/// "max reconnection attempts reached".
const DEFAULT_FILTER: &str = "info,async_nats=off,zbus=warn";

/// Sends the program's messages to the journal when stderr is the journal, else as text to stderr.
///
/// Call it once, at the beginning of a main function; `program` becomes SYSLOG_IDENTIFIER.
pub fn init(program: &str) -> Result<(), TryInitError> {
    let filter =
        EnvFilter::try_from_env(FILTER_VARIABLE).unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    let registry = tracing_subscriber::registry().with(filter);
    // A journal that does not answer is no reason to be silent: stderr is used then.
    match journal_layer(program) {
        Some(layer) => registry.with(layer).try_init(),
        None => registry
            .with(
                tracing_subscriber::fmt::layer()
                    .compact()
                    .with_target(false)
                    .fmt_fields(plain_fields())
                    .with_ansi(io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none())
                    .with_writer(io::stderr),
            )
            .try_init(),
    }
}

/// The level and the MESSAGE_ID of the entry that a service has entered `state`, by the same rule as those of an alarm. The catalog
/// explains the id.
pub const fn entry(state: State) -> (Level, &'static str) {
    match state {
        State::NoStore => (Level::WARN, "0b419e0b897f411093b83a4a1cc49268"),
        State::Standby => (Level::INFO, "416ecee12d854ed3898ca6fdb1d107bb"),
        State::Confirming => (Level::INFO, "85b862624bec4320aca9ba407eccd3af"),
        State::Fencing => (Level::INFO, "6ecb8cf8d5b14aefa0e2fa9168ad1e43"),
        State::Starting => (Level::INFO, "572f07d3dbbb4c5d8748e1b11528180a"),
        State::Active => (Level::INFO, "8393ed64d4eb429fb2b6001fe2bde5cf"),
        State::Releasing => (Level::INFO, "be8bad596007420c801dfa778bf686ef"),
        State::Lapsing => (Level::ERROR, "8b4034494734414dba01b5ec3d9fb529"),
        State::Retired => (Level::INFO, "8a6bd094bf304c76aae9d889c3fbc83f"),
    }
}

/// Messages, with the MESSAGE_ID of each.
macro_rules! messages {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $id:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Its MESSAGE_ID.
            pub const fn message_id(self) -> &'static str {
                match self {
                    $(Self::$variant => $id,)*
                }
            }
        }
    };
}

messages! {
    /// What an operator has done to the host, and that an alarm is over.
    Notice {
        /// The host hands everything over, and takes nothing.
        Drained = "d4bca3a6382e4959a6fa8c265305599f",
        /// It is not drained any more.
        Undrained = "dfb8574b7d284764a1e40d92672e0148",
        /// The configuration was read anew.
        Reloaded = "e3ba308627d1406fb454bb6e319f48be",
        /// An alarm is over.
        Over = "bb914f9d48d840aab5a87c4519852bc2",
    }
}

messages! {
    /// What the guard tells. It writes these entries itself, because it must never wait for the journal.
    GuardAlarm {
        /// A deadline has passed, and the units are being stopped.
        Lapsed = "4a643004e762413aa973b1bc26fe995c",
        /// Processes of the units have got SIGKILL.
        Killed = "46e3f753f6424acfba5461ae0c5a3375",
        /// The units of a lapsed lease are not proven dead.
        Unproven = "24a0319c4aee464d99864b26afd7c847",
        /// Nothing of the units of a lapsed lease runs any more.
        Dead = "d1ce948942cd4c3b90464882e5daab2c",
        /// The guard ends, or is killed because it was silent, and every lease of this host ends with it.
        Ends = "9acff56abc044705b817cf898761873d",
        /// The hardware watchdog cannot be served, so that no lease is armed.
        Unserved = "5c967c43883541ddb8e5ffcc1f8bacb1",
        /// The guard cannot write to /run, so that no lease is armed.
        NoRoom = "523dea5dcbf94f2cb7101766ba910f5b",
        /// The guard or its watcher takes this host down.
        TakesDown = "7e736abfd3484d31a67ded9968280d6a",
    }
}

/// Writes the entry of a transition of `service`. A holder, revision or token that is not known is left out of it.
pub fn transition(service: &ServiceName, unit: &UnitName, entered: &Transition) {
    let (from, to, reason) = (entered.from, entered.to, &*entered.reason);
    let (level, id) = entry(to);
    let fields = Fields {
        service: Some(service),
        lock: LockFields {
            unit: Some(unit),
            holder: &entered.holder,
            revision: entered.revision,
            token: entered.token,
        },
        states: Some((from, to)),
        ..Fields::default()
    };
    let message = format!("{to} (was {from}): {reason}");
    write(level, id, &message, reason, &fields);
}

/// The lock that an entry is about, as far as it is known.
#[derive(Clone, Copy, Default)]
pub struct LockFields<'a> {
    /// The unit that runs under it.
    pub unit: Option<&'a UnitName>,
    /// Its holder; empty = nobody, or not known.
    pub holder: &'a str,
    /// Its revision; 0 = not known.
    pub revision: Revision,
    /// The fencing token; 0 = none.
    pub token: FencingToken,
}

/// Writes the entry of an alarm.
pub fn alarm(alarm: &Alarm, lock: LockFields<'_>) {
    let (kind, message) = (alarm.kind(), alarm.problem.to_string());
    let level = match kind.urgency() {
        Urgency::Warn => Level::WARN,
        Urgency::Error => Level::ERROR,
    };
    write_alarm(level, kind.message_id(), &message, alarm, lock);
}

/// Writes the entry that an alarm is over.
pub fn over(alarm: &Alarm, unit: Option<&UnitName>) {
    let lock = LockFields {
        unit,
        ..LockFields::default()
    };
    let message = format!("the alarm {} is over", alarm.kind());
    write_alarm(
        Level::INFO,
        Notice::Over.message_id(),
        &message,
        alarm,
        lock,
    );
}

fn write_alarm(level: Level, id: &str, message: &str, alarm: &Alarm, lock: LockFields<'_>) {
    let fields = Fields {
        alarm: Some(alarm.kind().to_string()),
        service: alarm.about.as_ref(),
        lock,
        ..Fields::default()
    };
    write(level, id, message, message, &fields);
}

/// Writes the entry of a notice.
pub fn notice(notice: Notice, reason: &str) {
    let (level, what) = match notice {
        Notice::Drained => (Level::WARN, "this host is drained"),
        Notice::Undrained => (Level::INFO, "this host takes part again"),
        Notice::Reloaded => (Level::INFO, "the configuration is reloaded"),
        Notice::Over => (Level::INFO, "an alarm is over"),
    };
    let message = format!("{what}: {reason}");
    write(
        level,
        notice.message_id(),
        &message,
        reason,
        &Fields::default(),
    );
}

/// The fields of an entry. Those that are not known are left out of it.
#[derive(Default)]
struct Fields<'a> {
    service: Option<&'a ServiceName>,
    lock: LockFields<'a>,
    states: Option<(State, State)>,
    alarm: Option<String>,
}

/// Writes an entry whose message begins with the service, if there is one.
fn write(level: Level, id: &str, message: &str, reason: &str, fields: &Fields<'_>) {
    // journalctl hides a message that has control characters.
    let message = printable_lines(message);
    let service = fields.service.map(ServiceName::as_str);
    let subject = service.map_or_else(String::new, |service| format!("{service}: "));
    let reason = Some(printable_lines(reason)).filter(|reason| !reason.is_empty());
    let lock = &fields.lock;
    let holder = Some(printable(lock.holder)).filter(|holder| !holder.is_empty());
    // The level is part of a tracing call site, and there are no more than these three.
    macro_rules! at {
        ($level:expr) => {
            tracing::event!(
                target: "putexd",
                $level,
                MESSAGE_ID = id,
                PUTEX_SERVICE = service,
                PUTEX_FROM = fields.states.map(|(from, _)| from.to_string()),
                PUTEX_TO = fields.states.map(|(_, to)| to.to_string()),
                PUTEX_REASON = reason.as_deref(),
                PUTEX_HOLDER = holder.as_deref(),
                PUTEX_REVISION = Some(lock.revision.0).filter(|revision| *revision != 0),
                PUTEX_TOKEN = Some(lock.token.0).filter(|token| *token != 0),
                PUTEX_ALARM = fields.alarm.as_deref(),
                OBJECT_SYSTEMD_UNIT = lock.unit.map(UnitName::as_str),
                "{subject}{message}"
            )
        };
    }
    match level {
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
pub fn stderr_is_the_journal() -> bool {
    let Ok(stream) = env::var("JOURNAL_STREAM") else {
        return false;
    };
    rustix::fs::fstat(io::stderr().as_fd())
        .is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Fields for people: the journal's own fields, whose names are in capitals, repeat what the message says, and are left out.
fn plain_fields() -> impl for<'writer> FormatFields<'writer> + 'static {
    debug_fn(|writer, field, value| match field.name() {
        "message" => write!(writer, "{value:?}"),
        name if name.chars().any(|character| character.is_ascii_lowercase()) => {
            write!(writer, " {name}={value:?}")
        }
        _ => Ok(()),
    })
}

/// Has this thread write to another journal, until the guard is dropped.
///
/// While that is the only journal of the process, tracing asks nobody but the thread that comes to a message first whether it is
/// wanted, and remembers the answer for all threads. So that a thread without a journal does not answer "by nobody", all other
/// threads have one that wants everything, and keeps nothing.
#[cfg(test)]
pub(crate) fn replaced_by(
    journal: impl tracing::Subscriber + Send + Sync,
) -> tracing::subscriber::DefaultGuard {
    static OF_OTHERS: std::sync::Once = std::sync::Once::new();
    OF_OTHERS.call_once(|| {
        tracing::subscriber::set_global_default(tracing_subscriber::registry())
            .expect("no test sets another");
    });
    tracing::subscriber::set_default(journal)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fmt;
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::{Context, Layer};

    use super::*;
    use crate::facts::alarm::Problem;

    type Recorded = BTreeMap<String, String>;

    /// Keeps what tracing-journald would send.
    #[derive(Clone, Default)]
    struct Recorder(Arc<Mutex<Vec<(Level, Recorded)>>>);

    struct Collect<'a>(&'a mut Recorded);

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
            let mut fields = Recorded::new();
            event.record(&mut Collect(&mut fields));
            self.0
                .lock()
                .expect("nobody panics with it")
                .push((*event.metadata().level(), fields));
        }
    }

    fn recorded(write: impl FnOnce()) -> Vec<(Level, Recorded)> {
        let recorder = Recorder::default();
        let _guard = replaced_by(tracing_subscriber::registry().with(recorder.clone()));
        write();
        recorder.0.lock().expect("nobody panics with it").clone()
    }

    fn names() -> (ServiceName, UnitName) {
        (
            ServiceName::new("db").expect("a good name"),
            UnitName::new("database.service").expect("a good name"),
        )
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
        let expected: Recorded = expected
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        assert_eq!(entries, [(Level::INFO, expected)]);
    }

    /// As the tests of one process do, which run beside each other.
    #[test]
    fn a_message_that_a_thread_without_a_journal_came_to_first_is_logged() {
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
        let expected = [
            "MESSAGE_ID",
            "OBJECT_SYSTEMD_UNIT",
            "PUTEX_FROM",
            "PUTEX_REASON",
            "PUTEX_SERVICE",
            "PUTEX_TO",
            "message",
        ];
        assert_eq!(fields, expected);
        let lost = Problem::StoreLost {
            error: "connection refused".into(),
        };
        let entries = recorded(|| alarm(&Alarm::new(None, lost, 7), LockFields::default()));
        let (level, fields) = &entries[0];
        assert_eq!(*level, Level::WARN);
        assert_eq!(
            fields.keys().collect::<Vec<_>>(),
            ["MESSAGE_ID", "PUTEX_ALARM", "PUTEX_REASON", "message"]
        );
        assert_eq!(fields["message"], "the store is lost: connection refused");
    }

    #[test]
    fn text_for_people_leaves_out_the_fields_of_the_journal() {
        #[derive(Clone, Default)]
        struct Sink(Arc<Mutex<Vec<u8>>>);
        impl io::Write for Sink {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0
                    .lock()
                    .expect("nobody panics with it")
                    .extend_from_slice(bytes);
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
            .fmt_fields(plain_fields())
            .with_writer(move || writer.clone());
        let (service, unit) = names();
        let guard = replaced_by(tracing_subscriber::registry().with(layer));
        let lock = LockFields {
            unit: Some(&unit),
            ..LockFields::default()
        };
        let failed = Problem::CheckFailed {
            error: "3 in a row".into(),
            unit: None,
        };
        alarm(&Alarm::new(Some(service), failed, 7), lock);
        tracing::info!(attempt = 2, "connecting");
        drop(guard);
        let text = String::from_utf8(sink.0.lock().expect("nobody panics with it").clone())
            .expect("it is text");
        assert_eq!(
            text,
            " WARN db: the health check has failed: 3 in a row\n INFO connecting attempt=2\n"
        );
    }
}

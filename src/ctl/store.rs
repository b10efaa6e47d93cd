//! The subcommands that work on the store itself, with or without a running putexd.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::timeout;

use super::canary;
use super::clear::{self, Subject};
use super::doctor;
use super::output::{Screen, Style, Surface, print_json};
use super::view::enumerated;
use super::{Failure, abstains, described, print};
use crate::audit;
use crate::command_line::exit;
use crate::config::{self, ServiceSettings, Settings};
use crate::dbus::{Description, ServiceStatus, StoreStatus};
use crate::election::{Odd, Record, Registration, Timings};
use crate::frames::{Socket, Units};
use crate::store::{self, Administer, Creation, Examination, Link, Snapshot, StoreError, sealed};
use crate::systemd::bond::{self, KEPT_DIR};
use crate::types::span::{date, rounded};
use crate::types::{Key, NET_SOCKET, NodeId, ServiceName, UnitName, Value, printable_lines};

/// How long an operator is kept waiting for a server.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long one call may take.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// What the kernel says where nothing listens at an address.
const CONNECTION_REFUSED: &str = "Connection refused";
/// Reads of the store that are under way at once.
const READS: usize = 64;
/// How long a lock is watched for which neither its record nor the configuration gives a lease.
const FOREIGN_LEASE: Duration = Duration::from_secs(60);
/// How many units and services `doctor` names one by one.
const UNITS_NAMED: usize = 6;
/// The longest silence that an election or a restart of the store explains.
const LONGEST_ELECTION: Duration = Duration::from_secs(15);

/// What `init` has made, as `--json` prints it.
#[derive(Debug, Serialize)]
pub(super) struct StoreMade {
    /// Whether it was made now; otherwise it was there already, and is left as it is.
    made: bool,
    /// What it is.
    store: String,
    /// What is doubtful about it.
    warnings: Vec<String>,
}

/// Makes the store that the configuration names. `is_local`: the operator knows that only this machine sees its folder.
pub(super) async fn init(root: &Path, is_local: bool, json: bool) -> Result<(), Failure> {
    let settings = load(root)?;
    if !is_local {
        refuse_local(&settings).await?;
    }
    let store = open(&settings).await?;
    let (made, what) = match store.init().await {
        Ok(Creation::Created(what)) => (true, what),
        Ok(Creation::Existed(what)) => (false, what),
        Err(error @ StoreError::Misconfigured(_)) => return Err(Failure::new(exit::CONFIGURATION, error.to_string())),
        Err(error) => {
            let remedy = Some(settings.store.rights_to_make()).filter(|_| matches!(error, StoreError::Denied(_)));
            let remedy = remedy.map_or_else(String::new, |remedy| format!("{remedy}: "));
            return Err(Failure::unavailable(format!("{remedy}failed to make the store: {error}")));
        }
    };
    // An error is ignored: the store is made, and `doctor` also tells what is doubtful about it.
    let mut warnings = store.examine().await.map(|examination| examination.warnings).unwrap_or_default();
    warnings.extend(seal(root, &settings, made));
    let told = StoreMade { made, store: what, warnings };
    if json {
        return print_json(&told);
    }
    let StoreMade { store, warnings, .. } = told;
    print(&if made {
        format!(
            "made {store}\nsee that [store] is the same on all hosts before putexd runs there: each store has locks of its own\n"
        )
    } else {
        format!("{store} was there already and is left as it is\n")
    })?;
    warnings.iter().try_for_each(|warning| print(&format!("warning: {warning}\n")))
}

/// The key that `init` makes.
const SEAL_KEY: &str = "/etc/putex/seal.key";

/// Makes a key that seals records, if there is none, where others than root of the hosts can write to the store. Returns what is to
/// be done with it.
fn seal(root: &Path, settings: &Settings, made: bool) -> Option<String> {
    if settings.seal_key.is_some() || !settings.store.has_servers() {
        return None;
    }
    let path = root.join(SEAL_KEY.trim_start_matches('/'));
    if !made && !path.exists() {
        // Another host may have the key already.
        return Some(format!(
            "if the other hosts have a seal-key, copy it to {SEAL_KEY}, and name it below [store]: records are not sealed here"
        ));
    }
    let made = match make_key(&path) {
        Ok(()) => "made the key ",
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => "",
        Err(error) => {
            return Some(format!("make a seal-key, see putexd.toml(5): {SEAL_KEY} could not be made: {error}"));
        }
    };
    Some(format!(
        "{made}{SEAL_KEY}: copy it to the same place on the other hosts, for root alone, and write seal-key = \"{SEAL_KEY}\" below \
         [store] on all of them before putexd runs; without it whoever may write to the store can give orders in any name"
    ))
}

/// A key in a new file that only root may read.
fn make_key(path: &Path) -> io::Result<()> {
    let key = sealed::new_key()?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(format!("{key}\n").as_bytes())?;
    file.sync_all()
}

/// Refuses to make a store where only this machine would see it: each host would get locks of its own, and run the services.
async fn refuse_local(settings: &Settings) -> Result<(), Failure> {
    let of_store = settings.store.clone();
    let look = tokio::task::spawn_blocking(move || of_store.local_file_system());
    // A folder that hangs is told of by the store itself.
    let Ok(Ok(Some(local))) = timeout(CALL_LIMIT, look).await else { return Ok(()) };
    Err(Failure::new(
        exit::REFUSED,
        format!(
            "mount the share on {}, or say --local-folder if all hosts of the cluster mount this very file system: it is {local}, \
             which only this machine sees, so that each host would have locks of its own, and run the services",
            settings.store
        ),
    ))
}

/// Prints what is wrong with the store now, then what it is and how, then what there is to know of the services of this
/// host.
pub(super) async fn doctor(root: &Path, json: bool) -> Result<(), Failure> {
    let (settings, broken) = loaded(root)?;
    let of_metrics = settings.metrics.and_then(config::exposure).map(|text| ("warning", text));
    let of_silences = described().await.map_or_else(|_| Vec::new(), |told| silences(&settings.services, &told.store));
    let of_services = services(&settings).await;
    let mut of_units = Vec::new();
    let examination = match open(&settings).await {
        Ok(store) => {
            let examination = store.examine().await.map_err(|error| Failure::unavailable(error.to_string()));
            if examination.is_ok() {
                // Before everything is read, because many reads at once are paced.
                let of_canary = canary::look(&*store, &settings).await;
                of_units = seals(&*store, &settings).await;
                of_units.extend(fences(&*store, &settings).await);
                of_units.extend(registrations(&*store, &settings).await);
                of_units.extend(of_canary);
            }
            examination
        }
        Err(failure) => Err(failure),
    };
    // The present fault is printed before all advice.
    of_units.extend(observed(&settings));
    let (found, fault) = match examination {
        Ok(mut found) => {
            let fault = found.fault.take().map(Failure::unavailable);
            (found, fault)
        }
        Err(failure) => (Examination::default(), Some(failure)),
    };
    if let Some(fault) = fault.as_ref().filter(|_| !json) {
        fault.tell();
    }
    let of_store = found.facts.into_iter().map(|(label, text)| Line { label, text: text.replace('\n', " ") });
    let forgeable = found.forgeable.filter(|_| settings.seal_key.is_some());
    let degraded =
        found.warnings.into_iter().chain(found.degraded).chain(forgeable).map(|warning| ("warning", warning));
    let lines = of_silences.into_iter().map(|text| ("warning", text));
    let mut host = doctor::host(root, &settings).await;
    host.findings.splice(0..0, broken);
    let (of_host, is_found) = host.lines();
    let lines = lines.chain(degraded).chain(of_units).chain(of_services).chain(of_metrics).chain(of_host);
    let lines = lines.map(|(label, text)| Line { label: label.into(), text: text.replace('\n', " ") });
    let mut lines: Vec<Line> = of_store.chain(lines).collect();
    // What somebody has to do something about is not to be looked for among the rest.
    lines.sort_by_key(|line| match &*line.label {
        "finding" => 0,
        "warning" => 1,
        _ => 2,
    });
    if json {
        let fault = fault.as_ref().map(|fault| fault.message.clone()).unwrap_or_default();
        print_json(&Examined { fault, lines })?;
    } else {
        let mut screen = Screen::new(Surface::of_output());
        for Line { label, text } in &lines {
            let style = if matches!(&**label, "warning" | "finding") { Style::Notable } else { Style::Plain };
            screen.sentence(&format!("{label:<12} "), text, style);
        }
        screen.show(false)?;
    }
    match fault {
        Some(fault) => Err(Failure::new(fault.status, "")),
        None if is_found => Err(Failure::new(exit::REFUSED, "")),
        None => Ok(()),
    }
}

/// What `doctor` has found, as `--json` prints it.
#[derive(Debug, Serialize)]
pub(super) struct Examined {
    /// What is wrong with the store now; empty = nothing.
    fault: String,
    /// All that was looked at.
    lines: Vec<Line>,
}

/// One line of `doctor`.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    /// What it is about; `warning` for what should not be so, `finding` for what is wrong with this host.
    label: Cow<'static, str>,
    /// What was found; with a warning or a finding, what to do comes first.
    text: String,
}

/// The services that this host only observes.
fn observed(settings: &Settings) -> Vec<(&'static str, String)> {
    let observed = settings.services.iter().filter(|service| service.observes());
    let names: Vec<String> = observed.map(|service| service.name.to_string()).collect();
    if names.is_empty() {
        return Vec::new();
    }
    let are = if names.len() == 1 { "is" } else { "are" };
    vec![(
        "observed",
        format!("{} {are} not run on this host: mode = \"observe\" says so", enumerated(&names, UNITS_NAMED)),
    )]
}

/// What the store has under each of `keys`. Many are asked for at once, because a store answers reads that come together
/// together, and one after another each would wait for its turn.
pub(super) async fn read_all(store: &dyn Administer, keys: &[Key]) -> Vec<Result<Snapshot, StoreError>> {
    stream::iter(keys).map(|key| store.read(key, None)).buffered(READS).collect().await
}

/// Whether records are sealed, and warnings about locks whose record has no valid seal.
async fn seals(store: &dyn Administer, settings: &Settings) -> Vec<(&'static str, String)> {
    let Some(key_file) = &settings.seal_key else {
        let text = "copy the seal-key of the other hosts, or make one for all, see putexd.toml(5): this host seals no records, so that \
                    whoever may write to the store can give orders in any name, and make two hosts run a unit";
        return vec![("warning", text.to_owned())];
    };
    let mut lines = vec![("seal", format!("records are sealed with the key in {}", key_file.display()))];
    let keys: Vec<Key> = settings.services.iter().map(|service| service.key.clone()).collect();
    for (ServiceSettings { name, key, .. }, found) in settings.services.iter().zip(read_all(store, &keys).await) {
        // A record that cannot be read is reported elsewhere.
        let found = found.ok().and_then(|snapshot| snapshot.entry?.value);
        if found.is_some_and(|value| value.is_unsealed()) {
            let text = format!("{name}: the record of the lock {:?} is not believed: {}", key.as_str(), Odd::Seal);
            lines.push(("warning", text));
        }
    }
    lines
}

/// Warns of services that fence whichever host is named in the record, and of hosts that are not fenced although they
/// have held a lock.
async fn fences(store: &dyn Administer, settings: &Settings) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    let fencing: Vec<&ServiceSettings> =
        settings.services.iter().filter(|service| service.fence.others.is_some()).collect();
    let keys: Vec<Key> = fencing.iter().map(|service| service.key.clone()).collect();
    for (service, found) in fencing.into_iter().zip(read_all(store, &keys).await) {
        // A record that cannot be read is reported elsewhere.
        let found = found.ok().and_then(|snapshot| snapshot.entry?.value);
        let record = found.as_ref().map(Record::decode);
        lines.extend(fence_doubt(service, &settings.node, record.as_ref()).map(|text| ("warning", text)));
    }
    lines
}

/// What is doubtful about the hosts that a service's fence may be started for.
fn fence_doubt(service: &ServiceSettings, node: &NodeId, record: Option<&Record>) -> Option<String> {
    let (name, hosts) = (&service.name, &service.fence.hosts);
    if hosts.is_empty() {
        return Some(format!(
            "{name}: set hosts in [fence] to all hosts that may hold the lock; without it whoever can write to the store can have \
             any host fenced whose name he writes there as the holder's"
        ));
    }
    let details = record.and_then(|record| record.details.as_ref());
    let held = details.into_iter().flat_map(|details| details.holders.iter().chain(&details.unfenced)).cloned();
    let known: BTreeSet<NodeId> =
        held.chain(record.and_then(|record| record.holder.node())).chain([node.clone()]).collect();
    let left: Vec<&str> = known.iter().filter(|host| !hosts.contains(host)).map(NodeId::as_str).collect();
    (!left.is_empty()).then(|| {
        format!(
            "{name}: add {} to hosts in [fence] on all hosts, unless it has left the cluster for good: it has held the lock or is \
             this host, and is not fenced before the service starts elsewhere",
            left.join(" and ")
        )
    })
}

/// The entries of the units of this host's services: under which key each unit is run (the unit's entry, N1).
async fn registrations(store: &dyn Administer, settings: &Settings) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    let (mut assigned, mut unsaid) = (Vec::new(), Vec::new());
    let units: Vec<(&ServiceSettings, &UnitName)> =
        settings.services.iter().flat_map(|service| service.units().map(move |unit| (service, unit))).collect();
    let keys: Vec<Key> = units.iter().map(|(_, unit)| Key::of_unit(settings.cluster.as_ref(), unit)).collect();
    for ((ServiceSettings { name, key, .. }, unit), snapshot) in units.into_iter().zip(read_all(store, &keys).await) {
        let snapshot = match snapshot {
            Ok(snapshot) => snapshot,
            Err(error) => {
                lines.push(("warning", format!("under which key {unit} is run is not known: {error}")));
                continue;
            }
        };
        let value = snapshot.entry.and_then(|entry| entry.value);
        if value.as_ref().is_some_and(Value::is_unsealed) {
            let text = format!("{unit}: its entry is not believed, so this host does not run it: {}", Odd::Seal);
            lines.push(("warning", text));
            continue;
        }
        let registration = value.and_then(|value| Registration::decode(&value, unit));
        match registration {
            None => unsaid.push(unit.to_string()),
            Some(registration) if registration.key != *key => {
                let text = format!(
                    "two keys share {unit}: it is run under {:?} in this store, and {name} has {:?} for it on this host, \
                     which does not contend; see \"putexctl status {name}\" and putexd-operations(7)",
                    registration.key.as_str(),
                    key.as_str()
                );
                lines.push(("warning", text));
            }
            Some(registration) if !registration.former.is_empty() => {
                let former: Vec<&str> = registration.former.iter().map(Key::as_str).collect();
                let text = format!(
                    "two keys share {unit}: it is run under {:?}, and was under {} before, which has not been seen free",
                    key.as_str(),
                    former.join(", ")
                );
                lines.push(("warning", text));
            }
            Some(_) => assigned.push((unit.to_string(), key.as_str())),
        }
    }
    lines.extend(assignments(&assigned, &unsaid).into_iter().map(|text| ("unit", text)));
    lines
}

/// The units of which all is as it should be: each by itself where they are few, and their number where they are many.
fn assignments(assigned: &[(String, &str)], unsaid: &[String]) -> Vec<String> {
    let mut lines: Vec<String> = match assigned {
        few if few.len() <= UNITS_NAMED => {
            few.iter().map(|(unit, key)| format!("{unit}: assigned to the key {key:?} in this store")).collect()
        }
        many => vec![format!("{} units are assigned to the keys of their services in this store", many.len())],
    };
    if !unsaid.is_empty() {
        lines.push(format!("{}: no host has said under which key it runs it", enumerated(unsaid, UNITS_NAMED)));
    }
    lines
}

/// What the operator should know of the services of this host: which of them have no fence, which of them this host would
/// not run, and what putexd remarks on their units.
async fn services(settings: &Settings) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    let unfenced = settings.services.iter().filter(|service| service.fence.others.is_none());
    let unfenced: Vec<String> = unfenced.map(|service| service.name.to_string()).collect();
    if !unfenced.is_empty() {
        let text = format!(
            "{}: where several hosts can write to the same data, set [fence] others or have the data refuse an older \
             fencing token; a host that stood still for longer than its lease runs its copy for some milliseconds more \
             when it goes on",
            enumerated(&unfenced, UNITS_NAMED)
        );
        lines.push(("unfenced", text));
    }
    match described().await {
        Ok(Description { services, .. }) => {
            let doubts =
                services.iter().flat_map(|status| doubts(status).into_iter().map(|doubt| (&*status.service, doubt)));
            lines.extend(summed(doubts).into_iter().map(|text| ("warning", text)));
        }
        Err(failure) => {
            lines.push(("services", format!("their units were not looked at: {}", failure.message)));
            lines.extend(left_bound(settings, Path::new(KEPT_DIR)).into_iter().map(|text| ("warning", text)));
        }
    }
    lines
}

/// Units that a putexd which does not run any more has left bound to a lease, although no service names them.
fn left_bound(settings: &Settings, directory: &Path) -> Vec<String> {
    let names = |unit: &UnitName| {
        settings.services.iter().any(|service| service.units().chain(&service.contains).any(|named| named == unit))
    };
    let left = bond::kept_units(directory).unwrap_or_default().into_iter().filter(|unit| !names(unit));
    let text = |unit: UnitName| {
        format!(
            "start putexd once, or remove {} and run \"systemctl daemon-reload\": {unit} cannot be started without a lease, and \
             no file that is good names it",
            bond::kept_path(directory, &unit).display()
        )
    };
    left.map(text).collect()
}

/// Why this host would not run the service, and what putexd remarks on its units.
fn doubts(status: &ServiceStatus) -> Vec<String> {
    let abstains = abstains(status).map(|hindrance| format!("does not contend: {hindrance}"));
    let doubts = abstains.iter().chain(&status.remarks);
    // It may contain text that other hosts wrote into the store.
    doubts.map(|doubt| printable_lines(doubt).replace('\n', " ")).collect()
}

/// A line for each text, with the names of all services of which it is told.
fn summed<'a>(told: impl Iterator<Item = (&'a str, String)>) -> Vec<String> {
    let mut texts: Vec<(String, Vec<String>)> = Vec::new();
    for (service, text) in told {
        match texts.iter_mut().find(|(other, _)| *other == text) {
            Some((_, services)) => services.push(service.to_owned()),
            None => texts.push((text, vec![service.to_owned()])),
        }
    }
    texts.into_iter().map(|(text, services)| format!("{}: {text}", enumerated(&services, UNITS_NAMED))).collect()
}

/// Warnings about the times for which the store gave this host no answer. While such a time lasts nobody knows how long
/// it will be, and another lease would not end it.
fn silences(services: &[ServiceSettings], store: &StoreStatus) -> Vec<String> {
    store.trouble().map_or_else(|| too_short(services, store), |trouble| vec![trouble])
}

/// Advice for leases that do not ride through the longest time for which the store gave this host no answer. No lease is
/// advised that would ride through more than an election or a restart of the store.
fn too_short(services: &[ServiceSettings], store: &StoreStatus) -> Vec<String> {
    let silence = Duration::from_millis(store.longest_ms);
    let short: Vec<&ServiceSettings> =
        services.iter().filter(|service| silence > service.timings.rides_through()).collect();
    if short.is_empty() {
        return Vec::new();
    }
    let silent = format!("did not answer this host for {silence:.1?} from {} on", date(store.longest_began));
    let anew = "putexd counts anew when it is restarted";
    if silence > LONGEST_ELECTION {
        return vec![format!(
            "look for the cause, in the store, in the network, or on this host, which may have been cut off or have stood still: \
             the store {silent}, and no sensible lease rides through that ({anew})"
        )];
    }
    let advice = |service: &&ServiceSettings| {
        let timings = &service.timings;
        let failures = timings.failures_to_ride_through(silence);
        let longer = Timings { failures, ..*timings };
        format!(
            "the store {silent}, and with failures = {} the lease rides through {:.1?}; if this was an election or a \
             restart of the store, and not this host that was cut off or stood still, failures = {failures} on all hosts (see \
             \"Change R, F or C\" in putexd-operations(7)) rides through it, and a failover takes up to T + C·R = {:.1?} then \
             instead of {:.1?} ({anew})",
            timings.failures,
            timings.rides_through(),
            longer.lease() + longer.confirm(),
            timings.lease() + timings.confirm(),
        )
    };
    summed(short.iter().map(|service| (service.name.as_str(), advice(service))))
}

/// Clears a lock that nobody renews, named by its service or by its key.
pub(super) async fn clear(
    root: &Path,
    service: Option<ServiceName>,
    key: Option<Key>,
    json: bool,
) -> Result<(), Failure> {
    let settings = load(root)?;
    let (subject, key, lease) = match (service, key) {
        (Some(name), _) => {
            let service = settings.services.iter().find(|service| service.name == name).ok_or_else(|| {
                let text = format!("no service called {name} is configured here; name its lock with --key instead");
                Failure::new(exit::REFUSED, text)
            })?;
            (Subject::Service(name), service.key.clone(), service.timings.lease())
        }
        (None, Some(key)) => (Subject::Key(key.clone()), key, FOREIGN_LEASE),
        (None, None) => return Err(Failure::new(exit::USAGE, "a service or --key is needed")),
    };
    clear::clear(&*open(&settings).await?, &key, &subject, lease, json).await
}

pub(super) fn load(root: &Path) -> Result<Settings, Failure> {
    loaded(root).map(|(settings, _)| settings)
}

/// The settings, and what is wrong with the files of services, which do not keep others from being read.
fn loaded(root: &Path) -> Result<(Settings, Vec<String>), Failure> {
    let loaded = config::load(root);
    let shown = loaded.to_string();
    let errors = loaded.diagnostics.iter().filter(|found| found.severity == config::Severity::Error);
    let broken = errors.map(|error| format!("mend {}: {}", error.location(), error.message)).collect();
    loaded.settings.map(|settings| (settings, broken)).ok_or_else(|| Failure::new(exit::CONFIGURATION, shown))
}

pub(super) async fn open(settings: &Settings) -> Result<Arc<dyn Administer>, Failure> {
    let mut settings = settings.clone();
    // Even where putexd may make the bucket: a command that looks at a store does not make one, and `init` needs no such
    // permission.
    settings.store.make_nothing();
    let store = store::open(&settings.store, CALL_LIMIT, Socket::new(NetUnits));
    let store = sealed::as_configured(store, settings.seal_key.as_deref(), settings.cluster.as_ref())
        .map_err(|error| Failure::unavailable(error.to_string()))?;
    let mut link = store.link();
    match timeout(CONNECT_LIMIT, connected(&*store, &mut link)).await {
        Ok(Ok(())) => return Ok(store),
        Ok(Err(StoreError::Unreachable(refused))) => {
            return Err(Failure::unavailable(format!(
                "start the store ({}), or mend its address: {refused}",
                settings.store
            )));
        }
        Ok(Err(denied)) => {
            return Err(Failure::unavailable(format!("mend the login in putexd.toml, or its rights: {denied}")));
        }
        Err(_) => {}
    }
    let reason = match &*link.borrow() {
        Link::Up => String::new(),
        Link::Down(reason) => reason.clone(),
    };
    Err(Failure::unavailable(format!(
        "see that the store ({}) is up, that this host reaches it, and that its address in putexd.toml is right: it has not answered \
         within {}{}",
        settings.store,
        rounded(CONNECT_LIMIT),
        if reason.is_empty() { String::new() } else { format!(": {reason}") }
    )))
}

/// The units of the processes that have the network. A command ends soon, and leaves the watchdog to end what stands still.
struct NetUnits;

impl Units for NetUnits {
    fn start_socket(&self) {
        // Where putexd runs, it is there already, and where systemd does not answer, the store says what is missing.
        tokio::spawn(async { audit::connect().await.ok()?.queue_start(NET_SOCKET).await.ok() });
    }

    fn kill_all(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {})
    }
}

/// Whether every server that was tried has refused the connection: nothing listens there, and the answer came at once. The
/// reasons of several servers are joined.
fn is_refused(reason: &str) -> bool {
    reason.split("; ").all(|of_server| of_server.contains(CONNECTION_REFUSED))
}

/// Waits for the connection. `Err`: the store refuses the login, or its servers the connection, which no waiting changes.
async fn connected(store: &dyn Administer, link: &mut watch::Receiver<Link>) -> Result<(), StoreError> {
    loop {
        match &*link.borrow_and_update() {
            Link::Up => return Ok(()),
            Link::Down(reason) if is_refused(reason) => return Err(StoreError::Unreachable(reason.clone())),
            Link::Down(_) => {}
        }
        // Without a connection the store answers at once with the reason.
        if let Ok(key) = Key::new("x")
            && let Err(denied @ StoreError::Denied(_)) = store.read(&key, None).await
        {
            return Err(denied);
        }
        if link.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Holder, OnStopFailure, UnitName};

    fn silent(seconds: u64) -> StoreStatus {
        StoreStatus {
            store: "a store".to_owned(),
            silent_ms: 0,
            unwritten_ms: 0,
            error: String::new(),
            silences: 1,
            longest_ms: seconds * 1000,
            longest_began: 1_763_787_182,
            returned_ms: None,
        }
    }

    fn service(name: &str, failures: u32) -> ServiceSettings {
        let unit = UnitName::new("x.service").expect("a unit");
        let name = ServiceName::new(name).expect("a name");
        let key = Key::new(name.as_str()).expect("a key");
        let timings = Timings::new(Duration::from_secs(3), failures, 2);
        ServiceSettings::without_file(name, (unit, Vec::new()), key, Some(timings), OnStopFailure::Alert)
    }

    #[test]
    fn what_is_printed_as_json_is_described() {
        use super::super::fixture::assert_described;
        let made = StoreMade { made: true, store: "the store".to_owned(), warnings: vec!["look".to_owned()] };
        assert_described("init", &made);
        let lines = vec![Line { label: "warning".into(), text: "do this: it is so".to_owned() }];
        assert_described("doctor", &Examined { fault: String::new(), lines });
    }

    #[test]
    fn nobody_waits_for_servers_that_all_refuse_the_connection() {
        assert!(is_refused("IO error: Connection refused (os error 111)"));
        assert!(is_refused("a:1: Connection refused (os error 111); b:1: Connection refused (os error 111)"));
        assert!(!is_refused("a:1: Connection refused (os error 111); b:1 does not answer within 5.0s"));
        assert!(!is_refused("not connected yet"));
    }

    #[test]
    fn a_longer_lease_is_advised_only_for_an_election() {
        let services = [service("db", 3), service("web", 6)];
        assert_eq!(too_short(&services, &silent(5)), Vec::<String>::new());
        let [advice] = &too_short(&services, &silent(9))[..] else { panic!("one lease is too short") };
        assert!(
            advice.starts_with("db: the store did not answer this host for 9.0s from 2025-11-22T04:53:02Z on"),
            "{advice}"
        );
        for part in [
            "with failures = 3 the lease rides through 5.7s",
            "failures = 5 on all hosts",
            "T + C·R = 21.0s then instead of 15.0s",
            "cut off",
            "anew",
        ] {
            assert!(advice.contains(part), "{advice}\nlacks {part:?}");
        }
        let [cause] = &too_short(&services, &silent(127))[..] else { panic!("one store was silent") };
        assert!(cause.contains("look for the cause") && !cause.contains("failures"), "{cause}");
    }

    /// An outage that goes on is no reason to advise another lease.
    #[test]
    fn a_store_that_is_silent_now_is_what_there_is_to_look_at() {
        let services = [service("db", 3)];
        let now = StoreStatus { silent_ms: 9000, error: "no leader".to_owned(), ..silent(9) };
        let [cause] = &silences(&services, &now)[..] else { panic!("one cause") };
        assert!(cause.starts_with("see that the store (a store) is up") && cause.contains("no leader"), "{cause}");
        assert_eq!(silences(&services, &silent(9)), too_short(&services, &silent(9)));
    }

    #[test]
    fn a_fence_without_its_hosts_is_told_of() {
        let node = |name: &str| NodeId::new(name).expect("a node name");
        let told = |service: &ServiceSettings, record: &Record| fence_doubt(service, &node("h1"), Some(record));
        let mut record = Record::new(Holder::decode(b"h2"), None);
        let mut service = service("db", 3);
        service.fence.others = Some("fence@.service".to_owned());
        let text = told(&service, &record).expect("anybody may be fenced");
        assert!(text.starts_with("db: set hosts in [fence]"), "{text}");
        service.fence.hosts = ["h1", "h2"].map(node).to_vec();
        assert_eq!(told(&service, &record), None);
        let fields = [
            ("machine", "00000000000000000000000000000002"),
            ("instance", "0000000000000000000000000000000a"),
            ("write", "0000000000000000000000000000000b"),
            ("state", "confirming"),
            ("lease-ms", "3000"),
            ("hold-ms", "3900"),
            ("token", "1767225600"),
            ("holders", "h3 h2"),
            ("unfenced", "h4"),
        ];
        let fields = fields.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
        record = Record::decode(&Value { body: b"h5".to_vec(), fields });
        let text = told(&service, &record).expect("it does not name all");
        assert!(text.starts_with("db: add h3 and h4 and h5 to hosts in [fence]"), "{text}");
        service.fence.hosts = ["h2", "h3", "h4", "h5"].map(node).to_vec();
        let text = told(&service, &record).expect("it does not name this host");
        assert!(text.starts_with("db: add h1 to hosts"), "{text}");
        service.fence.hosts.push(node("h1"));
        assert_eq!(told(&service, &record), None);
        assert_eq!(fence_doubt(&service, &node("h1"), None), None);
    }

    #[test]
    fn what_keeps_a_service_from_running_here_is_told() {
        let status = |state: &str| ServiceStatus {
            service: "db".to_owned(),
            unit: "database.service".to_owned(),
            key: "db".to_owned(),
            state: state.to_owned(),
            holder: String::new(),
            revision: 0,
            token: 0,
            hindrance: "it is\ndrained".to_owned(),
            waits: String::new(),
            remarks: vec!["Its stop is not proven.".to_owned()],
            ..ServiceStatus::default()
        };
        let told = ["does not contend: it is drained", "Its stop is not proven."];
        assert_eq!(doubts(&status("standby")), told);
        assert_eq!(doubts(&status("broken")), told);
        assert_eq!(doubts(&status("active")), told[1..]);
    }

    /// With two hundred services nobody reads two hundred lines.
    #[test]
    fn what_is_alike_for_many_services_is_one_line() {
        let names: Vec<String> = (0..203).map(|number| format!("app-{number:03}")).collect();
        let doubts = names.iter().map(|name| (name.as_str(), "the host is drained".to_owned()));
        assert_eq!(
            summed(doubts.chain([("db", "it fails".to_owned())])),
            ["app-000, app-001, app-002, app-003, app-004 and 198 more: the host is drained", "db: it fails"]
        );
        let units: Vec<(String, &str)> = names.iter().map(|name| (format!("{name}.service"), name.as_str())).collect();
        assert_eq!(
            assignments(&units, &names[..1]),
            [
                "203 units are assigned to the keys of their services in this store",
                "app-000: no host has said under which key it runs it"
            ]
        );
        assert_eq!(assignments(&units[..1], &[]), ["app-000.service: assigned to the key \"app-000\" in this store"]);
    }
}

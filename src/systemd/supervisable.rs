//! Admission: which units can be run on one host at a time. These are bound to their lease, and their stop can be proven.

use futures_util::future::try_join;

use super::Systemd;
use super::belongings::Unnamed;
use super::by_itself;
use super::conflicts;
use super::elsewhere;
use super::error::BusError;
use super::gate::{self, Trouble};
use super::properties::Properties;
use super::remedy::drop_in;
use super::stranger;
use super::units::SIGKILL;
use crate::types::{ServiceName, UnitName};

/// The properties that only admission looks at.
const ADMISSION: [&str; 8] = [
    "Before",
    "FailureAction",
    "SuccessAction",
    "StartLimitAction",
    "JobTimeoutAction",
    "OnFailureJobMode",
    "OnSuccessJobMode",
    "StopWhenUnneeded",
];

/// What the service around a unit has configured that the admission of the unit depends on.
#[derive(Debug, Clone, Copy, Default)]
pub struct Surroundings<'a> {
    /// The service whose lease the unit has to be bound to; `None`: the gate of the unit is not checked.
    pub service: Option<&'a ServiceName>,
    /// The service whose file names the unit, where it is not known whether the unit has to be bound to its lease.
    pub named_in: Option<&'a ServiceName>,
    /// Whether `on-stop-failure` takes the host down.
    pub self_fence: bool,
    /// All units of the service: each is stopped, and proven dead, with the others.
    pub bound: &'a [UnitName],
    /// Units that the service brings along and that may run on several hosts.
    pub beside: &'a [UnitName],
    /// The slices and scopes in which the unit's work may run beside its own control group. They are stopped, and proven
    /// to have ended, with the unit.
    pub contains: &'a [UnitName],
    /// Whether the administrator answers for work that the unit has others do (`stop-proof = "unit-only"`).
    pub unit_only: bool,
    /// Whether the unit may end by itself, because another unit is the main one of the service.
    pub may_end: bool,
}

/// Why a unit cannot be supervised, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unsupervisable {
    /// systemd did not answer, so nothing is known against the unit.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// systemd has not loaded the unit.
    #[error("{unit} is {load_state}: {remedy}")]
    NotLoaded {
        /// The unit.
        unit: String,
        /// Its LoadState.
        load_state: String,
        /// What the operator should do.
        remedy: String,
        /// Whether systemd, should the unit still run, has forgotten what binds it to its lease.
        is_ungated: bool,
    },
    /// Something can start the unit, or keep it running, without the lease.
    #[error("{unit} {trouble}; {remedy}")]
    Ungated {
        /// The unit.
        unit: String,
        /// What is wrong with the unit.
        trouble: String,
        /// What the operator should do.
        remedy: String,
    },
    /// The service has units that its file does not name.
    #[error("{0}")]
    Unnamed(Box<Unnamed>),
    /// The stop of the unit could not be proven, or the unit could never be started.
    #[error("{unit} {trouble}: {remedy}")]
    Unprovable {
        /// The unit.
        unit: String,
        /// What is wrong with the unit.
        trouble: String,
        /// What the operator should do.
        remedy: String,
    },
}

impl Unsupervisable {
    /// Whether the unit, should it run, is not bound to its lease.
    #[must_use]
    pub fn is_ungated(&self) -> bool {
        match self {
            Self::Ungated { .. } => true,
            Self::NotLoaded { is_ungated, .. } => *is_ungated,
            Self::Bus(_) | Self::Unnamed(_) | Self::Unprovable { .. } => false,
        }
    }
}

impl Systemd {
    /// Whether the unit is bound to its lease, can pass the gate, and can be proven dead. If so, returns what the
    /// operator should know of it all the same, in whole sentences.
    pub async fn supervisable(&self, unit: &UnitName, around: Surroundings<'_>) -> Result<Vec<String>, Unsupervisable> {
        let properties = self.read_for_admission(unit.as_str()).await?;
        check_loaded(&properties, unit, around.service)?;
        if let Some(service) = around.service {
            gate::check(&properties, service).map_err(|Trouble { trouble, remedy }| Unsupervisable::Ungated {
                unit: unit.to_string(),
                trouble,
                remedy,
            })?;
        }
        let triggers = self.triggers_of(&properties).await?;
        let unprovable =
            |Trouble { trouble, remedy }| Unsupervisable::Unprovable { unit: unit.to_string(), trouble, remedy };
        check_own_name(&properties, unit).and_then(|()| check_has_file(&properties, unit)).map_err(unprovable)?;
        let belongings = if around.may_end { None } else { Some(self.belongings(unit, &properties, around).await?) };
        if let Some(belongings) = &belongings {
            // What only stands for others is told of as such, whatever else is wrong with it.
            belongings.check_umbrella(&properties, around).map_err(unprovable)?;
        }
        check_settings(&properties, around, &triggers).map_err(unprovable)?;
        if let Some(belongings) = &belongings {
            belongings.check_end(unit).map_err(unprovable)?;
            self.check_named(unit, belongings, around).await?;
        }
        self.check_order(&properties).await?.map_err(unprovable)?;
        if around.service.is_some() && !properties.state().may_run() {
            self.running_rival(&properties).await?.map_or(Ok(()), |rival| Err(unprovable(rival.trouble())))?;
        }
        if let Some(service) = around.service
            && !around.may_end
        {
            self.check_contained(service, around.contains).await?;
        }
        Ok(remarks(&properties, unit, around))
    }

    /// As `read_settings`, with what only admission looks at.
    pub(super) async fn read_for_admission(&self, unit: &str) -> Result<Properties, BusError> {
        let link = self.link().await?;
        let (settings, own) = try_join(self.read_settings(unit), link.common(unit, &ADMISSION)).await?;
        Ok(settings.with(own))
    }

    /// The units that start a oneshot. A timer that is not enabled may not be loaded, and is found by its name.
    async fn triggers_of(&self, properties: &Properties) -> Result<Vec<String>, BusError> {
        let mut triggers = properties.texts("TriggeredBy");
        if let Some(stem) = properties.text("Id").unwrap_or_default().strip_suffix(".service")
            && is_bare_oneshot(properties)
            && triggers.is_empty()
        {
            let timer = format!("{stem}.timer");
            let is_loaded = self.read_settings(&timer).await?.text("LoadState") == Some("loaded");
            triggers.extend(is_loaded.then_some(timer));
        }
        Ok(triggers)
    }

    /// Checks that what the service contains can be started only under the lease. A failure does not end a unit that
    /// runs: the bond of the unit ends it in time, and the look at what is contained ends the rest.
    async fn check_contained(&self, service: &ServiceName, contains: &[UnitName]) -> Result<(), Unsupervisable> {
        for name in contains {
            let properties = self.read_settings(name.as_str()).await?;
            gate::check_contained(&properties, service).map_err(|Trouble { trouble, remedy }| {
                Unsupervisable::Unprovable { unit: name.to_string(), trouble, remedy }
            })?;
        }
        Ok(())
    }
}

fn trouble(trouble: impl Into<String>, remedy: impl Into<String>) -> Result<(), Trouble> {
    Err(Trouble { trouble: trouble.into(), remedy: remedy.into() })
}

/// Refuses an alias. Hosts know a unit by its name alone: two that each had it by another name would not see each other
/// run it.
fn check_own_name(properties: &Properties, unit: &UnitName) -> Result<(), Trouble> {
    match properties.text("Id") {
        Some(id) if id != unit.as_str() => trouble(
            format!("is another name of {id}, under which another host may run it unseen"),
            format!("name {id} in the service's file instead"),
        ),
        Some(_) | None => Ok(()),
    }
}

/// Refuses a unit that systemd-run or the like has made: it hides a file of its name, also once it has failed, and is gone with the
/// next boot.
fn check_has_file(properties: &Properties, unit: &UnitName) -> Result<(), Trouble> {
    if properties.flag("Transient") == Some(true) {
        return trouble(
            "was made by systemd-run or the like, and hides the file of its name",
            format!("run \"systemctl stop {unit}; systemctl reset-failed {unit}; systemctl daemon-reload\""),
        );
    }
    Ok(())
}

fn check_loaded(properties: &Properties, unit: &UnitName, service: Option<&ServiceName>) -> Result<(), Unsupervisable> {
    let load_state = properties.text("LoadState").unwrap_or_default();
    let remedy = match load_state {
        "loaded" => return Ok(()),
        "not-found" => {
            "install the unit, or correct its name; the unit of a user's manager has to become one of the system, in \
                        /etc/systemd/system with User="
                .to_owned()
        }
        "masked" => format!("run \"systemctl unmask {unit}\""),
        _ => {
            let error = properties.state().load_error;
            format!("{error}; see \"systemctl status {unit}\" and \"systemd-analyze verify {unit}\"")
        }
    };
    let is_ungated = service.is_some_and(|service| gate::check(properties, service).is_err());
    Err(Unsupervisable::NotLoaded { unit: unit.to_string(), load_state: load_state.to_owned(), remedy, is_ungated })
}

pub(super) fn check_settings(
    properties: &Properties,
    around: Surroundings<'_>,
    triggers: &[String],
) -> Result<(), Trouble> {
    check_kind(properties, around, triggers)?;
    gate::check_reach(properties)?;
    // What cannot be mended by a setting comes first.
    check_elsewhere(properties, around)?;
    check_killing(properties)?;
    for name in ["RefuseManualStart", "RefuseManualStop"] {
        if properties.flag(name) == Some(true) {
            return trouble(
                format!("has {name}=yes, so that putexd cannot drive it"),
                changed(properties, "Unit", &format!("{name}=no")),
            );
        }
    }
    by_itself::check_isolates(properties)?;
    if around.service.is_some() {
        by_itself::check(properties)?;
    }
    conflicts::check_own(properties, around.bound)?;
    check_triggers(properties)?;
    check_effect(properties, around.self_fence)
}

/// The remedy that gives the unit a setting. `section` is empty for the section of the unit's type.
fn changed(properties: &Properties, section: &str, setting: &str) -> String {
    let own = properties.section();
    drop_in(properties.text("Id").unwrap_or_default(), if section.is_empty() { &own } else { section }, setting)
}

/// Whether it is a oneshot that has no effect once it has ended.
fn is_bare_oneshot(properties: &Properties) -> bool {
    properties.text("Type") == Some("oneshot") && properties.flag("RemainAfterExit") != Some(true)
}

fn check_kind(properties: &Properties, around: Surroundings<'_>, triggers: &[String]) -> Result<(), Trouble> {
    match properties.kind() {
        "service" if !around.may_end && is_bare_oneshot(properties) => trouble(
            "is a oneshot that has ended as soon as it is started",
            oneshot_remedy(properties, around, triggers),
        ),
        "target" | "slice" => {
            trouble("only groups other units, and its stop says nothing of them", "name the units themselves")
        }
        "automount" => trouble(
            "leaves its file system mounted when it is stopped",
            "take x-systemd.automount out of its line in /etc/fstab, and run \"systemctl daemon-reload\"",
        ),
        "scope" | "device" => trouble("is not started by systemd", "name a service or a mount instead"),
        _ => Ok(()),
    }
}

/// What to do about a oneshot: what starts it again and again is the unit that runs. One that nothing starts is an effect.
fn oneshot_remedy(properties: &Properties, around: Surroundings<'_>, triggers: &[String]) -> String {
    let id = properties.text("Id").unwrap_or_default();
    // A timer before a path or a socket.
    if let Some(trigger) = triggers.iter().find(|name| name.strip_suffix(".timer").is_some()).or(triggers.first()) {
        let others = around.bound.iter().map(UnitName::as_str).filter(|unit| *unit != id && unit != trigger);
        let bound: Vec<&str> = std::iter::once(id).chain(others).collect();
        return format!("name what starts it: unit = {trigger:?} and bound-units = {bound:?}");
    }
    let remains = changed(properties, "Service", "RemainAfterExit=yes");
    let fence = if around.self_fence { "" } else { ", and set on-stop-failure = \"reboot-force\"" };
    format!("if it leaves an effect that its ExecStop= takes back, {remains}{fence}")
}

/// Refuses settings with which a stop may leave processes behind. Units of types without processes lack these properties.
fn check_killing(properties: &Properties) -> Result<(), Trouble> {
    if let Some(mode @ ("process" | "none")) = properties.text("KillMode") {
        return trouble(
            format!("has KillMode={mode}, which leaves processes behind"),
            changed(properties, "", "KillMode=mixed"),
        );
    }
    if properties.flag("SendSIGKILL") == Some(false) {
        return trouble(
            "has SendSIGKILL=no, so that its stop may never end",
            changed(properties, "", "SendSIGKILL=yes"),
        );
    }
    match properties.signed("FinalKillSignal") {
        Some(signal) if signal != SIGKILL => trouble(
            format!("has FinalKillSignal={signal}, which can be ignored"),
            changed(properties, "", "FinalKillSignal=SIGKILL"),
        ),
        Some(_) | None => Ok(()),
    }
}

/// Refuses a socket that starts units which nobody can name.
fn check_triggers(properties: &Properties) -> Result<(), Trouble> {
    match properties.flag("Accept") {
        Some(true) => trouble(
            "has Accept=yes, and its instances cannot be named beforehand",
            "putexd cannot run it: a program that takes connections itself can have a socket with Accept=no",
        ),
        Some(false) | None => Ok(()),
    }
}

/// Checks that all of the unit's work is where a stop of the unit ends it, unless the administrator answers for it.
fn check_elsewhere(properties: &Properties, around: Surroundings<'_>) -> Result<(), Trouble> {
    match elsewhere::check(properties, around.bound, around.contains) {
        Some((words, remedy)) if !around.unit_only => {
            let answer = "set stop-proof = \"unit-only\" to answer for it yourself";
            trouble(words, format!("{remedy}; or {answer}"))
        }
        Some(_) | None => Ok(()),
    }
}

fn remarks(properties: &Properties, unit: &UnitName, around: Surroundings<'_>) -> Vec<String> {
    let found = elsewhere::check(properties, around.bound, around.contains).filter(|_| around.unit_only);
    let remark = |(words, _)| {
        format!(
            "{unit} {words}; stop-proof = \"unit-only\": nobody shows that it has ended before another host starts it"
        )
    };
    found.map(remark).into_iter().chain(stranger::remark(properties, unit.as_str())).collect()
}

/// A mount, a swap or a service that remains after exit is an effect: only an orderly stop shows that it is gone.
fn check_effect(properties: &Properties, self_fence: bool) -> Result<(), Trouble> {
    if !properties.is_effect() {
        return Ok(());
    }
    if !self_fence {
        let fence = "set on-stop-failure = \"reboot-force\" or \"kernel-panic\"";
        let is_optional = properties.kind() == "service" && properties.text("Type") != Some("oneshot");
        return trouble(
            "may be active without a process, so that a failed stop may leave its effect behind",
            if is_optional {
                format!("{fence}, or {}", changed(properties, "Service", "RemainAfterExit=no"))
            } else {
                fence.to_owned()
            },
        );
    }
    if properties.flag("LazyUnmount") == Some(true) {
        return trouble(
            "has LazyUnmount=yes, so that what is in use stays mounted, unseen",
            changed(properties, "", "LazyUnmount=no"),
        );
    }
    if properties.text("CollectMode") == Some("inactive-or-failed") {
        return trouble(
            "has CollectMode=inactive-or-failed, so that systemd forgets a failed stop",
            changed(properties, "Unit", "CollectMode=inactive"),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use zbus::Variant;

    use super::*;

    fn unit(name: &str) -> UnitName {
        UnitName::new(name).expect("a name")
    }

    /// What [`check_settings`] says of a unit with these settings; empty if it passes.
    fn said(id: &'static str, mut settings: Vec<(&str, Variant<'static>)>, around: Surroundings<'_>) -> String {
        settings.push(("Id", Variant::from(id)));
        match check_settings(&Properties::of(settings), around, &[]) {
            Ok(()) => String::new(),
            Err(Trouble { trouble, remedy }) => format!("{trouble}: {remedy}"),
        }
    }

    fn command(program: &'static str, arguments: Vec<&'static str>) -> Variant<'static> {
        Variant::from(vec![(program, arguments, false, 0_u64, 0_u64, 0_u64, 0_u64, 0_u32, 0_i32, 0_i32)])
    }

    #[test]
    fn what_cannot_be_proven_dead_is_refused_and_why() {
        let text = |text: &'static str| Variant::from(text);
        let with = |name, value| vec![(name, value)];
        let docker = || command("/usr/bin/docker", vec!["docker", "run", "db"]);
        let remains = |kind| vec![("Type", text(kind)), ("RemainAfterExit", Variant::from(true))];
        for (id, settings, wanted) in [
            ("a.service", with("Type", text("oneshot")), "RemainAfterExit=yes"),
            ("a.target", Vec::new(), "name the units themselves"),
            ("a.slice", Vec::new(), "name the units themselves"),
            ("a.scope", Vec::new(), "name a service or a mount"),
            ("a.device", Vec::new(), "name a service or a mount"),
            ("a.service", with("RootDirectory", text("/srv")), "hides /usr/bin/putex-guard"),
            ("a.service", with("KillMode", text("process")), "has KillMode=process"),
            ("a.service", with("KillMode", text("none")), "has KillMode=none"),
            ("a.service", with("SendSIGKILL", Variant::from(false)), "has SendSIGKILL=no"),
            ("a.service", with("FinalKillSignal", Variant::from(15_i32)), "has FinalKillSignal=15"),
            ("a.service", with("RefuseManualStart", Variant::from(true)), "has RefuseManualStart=yes"),
            ("a.service", with("RefuseManualStop", Variant::from(true)), "has RefuseManualStop=yes"),
            ("a.socket", with("Accept", Variant::from(true)), "putexd cannot run it"),
            ("a.automount", Vec::new(), "x-systemd.automount"),
            ("a.service", with("ExecStart", docker()), "has docker ask a daemon"),
            ("a.service", with("ExecStartPre", docker()), "has docker ask a daemon"),
            ("a.service", with("ExecStartPost", docker()), "contains = [\"db.slice\"]; or set stop-proof"),
            ("a.service", remains("exec"), "\"kernel-panic\", or run \"mkdir"),
            ("a.mount", Vec::new(), "set on-stop-failure ="),
        ] {
            let bound = [unit("b.service")];
            let said = said(id, settings, Surroundings { bound: &bound, ..Surroundings::default() });
            assert!(said.contains(wanted), "{id} {wanted}: {said}");
        }
        for (id, settings) in [("a.service", remains("oneshot")), ("a.mount", Vec::new())] {
            assert!(!said(id, settings, Surroundings::default()).contains("RemainAfterExit=no"), "{id} has to be one");
        }
        let fenced = Surroundings { self_fence: true, ..Surroundings::default() };
        let lazy = with("LazyUnmount", Variant::from(true));
        assert!(said("a.mount", lazy, fenced).contains("has LazyUnmount=yes"));
        let collected = with("CollectMode", text("inactive-or-failed"));
        assert!(said("a.mount", collected, fenced).contains("has CollectMode=inactive-or-failed"));
    }

    #[test]
    fn a_oneshot_is_named_by_what_starts_it() {
        let properties = Properties::of(vec![("Id", Variant::from("a.service"))]);
        let bound = ["a.service", "b.mount"].map(unit);
        let around = Surroundings { bound: &bound, ..Surroundings::default() };
        let said = |triggers: &[&str]| {
            oneshot_remedy(&properties, around, &triggers.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let timer = "name what starts it: unit = \"a.timer\" and bound-units = [\"a.service\", \"b.mount\"]";
        assert_eq!(said(&["a.path", "a.timer"]), timer);
        assert!(said(&["a.path"]).contains("unit = \"a.path\""));
        assert!(said(&[]).ends_with(", and set on-stop-failure = \"reboot-force\""));
    }

    #[test]
    fn what_can_be_proven_dead_is_supervised() {
        let text = |text: &'static str| Variant::from(text);
        let docker = || vec![("ExecStart", command("/usr/bin/docker", vec!["docker", "run", "db"]))];
        let bound = [unit("b.service")];
        let plain = Surroundings::default();
        for (id, settings, around) in [
            ("a.service", vec![("Type", text("exec")), ("KillMode", text("mixed"))], plain),
            ("a.service", vec![("SendSIGKILL", Variant::from(true)), ("FinalKillSignal", Variant::from(9_i32))], plain),
            ("a.service", vec![("Type", text("oneshot"))], Surroundings { may_end: true, ..plain }),
            (
                "a.service",
                vec![("Type", text("oneshot")), ("RemainAfterExit", Variant::from(true))],
                Surroundings { self_fence: true, ..plain },
            ),
            ("a.mount", vec![("CollectMode", text("inactive"))], Surroundings { self_fence: true, ..plain }),
            ("a.service", docker(), Surroundings { unit_only: true, ..plain }),
            ("a.service", docker(), Surroundings { contains: &bound, ..plain }),
            ("a.service", vec![("PAMName", text(""))], plain),
        ] {
            assert_eq!(said(id, settings, around), "", "{id}");
        }
    }

    #[test]
    fn whoever_answers_for_work_elsewhere_is_told_of_it() {
        let docker = || Properties::of(vec![("ExecStart", command("/usr/bin/docker", vec!["docker", "run", "db"]))]);
        let found = remarks(&docker(), &unit("a.service"), Surroundings { unit_only: true, ..Surroundings::default() });
        assert!(found.len() == 1 && found[0].starts_with("a.service has docker ask a daemon"), "{found:?}");
        assert_eq!(remarks(&docker(), &unit("a.service"), Surroundings::default()), [""; 0], "it is refused");
    }

    #[test]
    fn a_unit_goes_by_its_own_name() {
        let named = |id: &'static str| Properties::of(vec![("Id", Variant::from(id))]);
        check_own_name(&named("a.service"), &unit("a.service")).expect("its own");
        let Trouble { trouble, remedy } =
            check_own_name(&named("b.service"), &unit("a.service")).expect_err("an alias");
        assert!(
            trouble.contains("another name of b.service") && remedy.contains("name b.service"),
            "{trouble}: {remedy}"
        );
    }

    #[test]
    fn a_unit_that_systemd_run_has_made_is_refused_because_it_hides_the_file_of_its_name() {
        let of = |transient: bool| Properties::of(vec![("Transient", Variant::from(transient))]);
        check_has_file(&of(false), &unit("a.service")).expect("it has a file");
        let Trouble { trouble, remedy } = check_has_file(&of(true), &unit("a.service")).expect_err("it has none");
        assert!(trouble.contains("systemd-run") && remedy.contains("systemctl reset-failed a.service;"), "{remedy}");
    }

    #[test]
    fn a_unit_that_is_not_loaded_may_have_lost_its_gate() {
        let service = ServiceName::new("db").expect("a name");
        let state = |load: &'static str| Properties::of(vec![("LoadState", Variant::from(load))]);
        check_loaded(&state("loaded"), &unit("a.service"), Some(&service)).expect("loaded");
        for (load, remedy) in [
            ("not-found", "install the unit"),
            ("masked", "systemctl unmask a.service"),
            ("bad-setting", "systemd-analyze verify a.service"),
        ] {
            let error = check_loaded(&state(load), &unit("a.service"), Some(&service)).expect_err(load);
            assert!(error.to_string().starts_with(&format!("a.service is {load}: ")), "{error}");
            assert!(error.to_string().contains(remedy) && error.is_ungated(), "{error}");
            let error = check_loaded(&state(load), &unit("a.service"), None).expect_err(load);
            assert!(!error.is_ungated(), "nobody asked for one");
        }
        let ungated = |unprovable| {
            let (unit, trouble, remedy) = ("a.service".to_owned(), String::new(), String::new());
            if unprovable {
                Unsupervisable::Unprovable { unit, trouble, remedy }.is_ungated()
            } else {
                Unsupervisable::Ungated { unit, trouble, remedy }.is_ungated()
            }
        };
        assert!(ungated(false) && !ungated(true));
    }
}

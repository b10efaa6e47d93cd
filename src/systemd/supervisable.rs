//! Which units can be run on one host at a time: those whose stop can be proven.

use super::Systemd;
use super::link::BusError;
use super::properties::Properties;
use super::units::SIGKILL;
use crate::types::UnitName;

/// What the service around a unit offers for its proof.
#[derive(Debug, Clone, Copy, Default)]
pub struct Surroundings<'a> {
    /// Whether `on-stop-failure` takes the host down.
    pub self_fence: bool,
    /// All units of the service: each is stopped, and proven dead, with the others.
    pub bound: &'a [UnitName],
    /// Whether the unit may end by itself, because the life of another one is that of the service.
    pub may_end: bool,
}

/// Why a unit cannot be supervised, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unsupervisable {
    /// systemd did not answer, so nothing is known against the unit.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// systemd cannot use it.
    #[error("{unit} is {load_state}: {remedy}")]
    NotLoaded {
        /// The unit.
        unit: String,
        /// Its LoadState.
        load_state: String,
        /// What to do.
        remedy: String,
    },
    /// Its stop could not be proven.
    #[error("{unit} {trouble}: {remedy}")]
    Unprovable {
        /// The unit.
        unit: String,
        /// Why.
        trouble: String,
        /// What to do.
        remedy: String,
    },
}

impl Systemd {
    /// Whether the stop of the unit can be proven. If so, what the operator should know of it all the same, in whole
    /// sentences.
    pub async fn supervisable(&self, unit: &UnitName, around: Surroundings<'_>) -> Result<Vec<String>, Unsupervisable> {
        let properties = self.read(unit.as_str()).await?;
        check_loaded(&properties, unit)?;
        check_settings(&properties, around).map_err(|Trouble { trouble, remedy }| Unsupervisable::Unprovable {
            unit: unit.to_string(),
            trouble,
            remedy,
        })?;
        Ok(Vec::new())
    }
}

#[derive(Debug)]
struct Trouble {
    trouble: String,
    remedy: String,
}

fn trouble(trouble: impl Into<String>, remedy: impl Into<String>) -> Result<(), Trouble> {
    Err(Trouble { trouble: trouble.into(), remedy: remedy.into() })
}

fn check_loaded(properties: &Properties, unit: &UnitName) -> Result<(), Unsupervisable> {
    let load_state = properties.text("LoadState").unwrap_or_default();
    let remedy = match load_state {
        "loaded" => return Ok(()),
        "not-found" => "install the unit, or correct its name".to_owned(),
        "masked" => format!("run \"systemctl unmask {unit}\""),
        _ => {
            let error = properties.state().load_error;
            format!("{error}; see \"systemctl status {unit}\" and \"systemd-analyze verify {unit}\"")
        }
    };
    Err(Unsupervisable::NotLoaded { unit: unit.to_string(), load_state: load_state.to_owned(), remedy })
}

fn check_settings(properties: &Properties, around: Surroundings<'_>) -> Result<(), Trouble> {
    check_kind(properties, around.may_end)?;
    check_killing(properties)?;
    for name in ["RefuseManualStart", "RefuseManualStop"] {
        if properties.flag(name) == Some(true) {
            return trouble(format!("has {name}=yes"), "remove that line, so that it can be driven from outside");
        }
    }
    check_triggers(properties, around.bound)?;
    check_effect(properties, around.self_fence)
}

fn check_kind(properties: &Properties, may_end: bool) -> Result<(), Trouble> {
    match properties.kind() {
        "service"
            if !may_end
                && properties.text("Type") == Some("oneshot")
                && properties.flag("RemainAfterExit") != Some(true) =>
        {
            trouble("is a oneshot that has ended as soon as it is started", "add RemainAfterExit=yes")
        }
        "target" | "slice" => {
            trouble("only groups other units, and its stop says nothing of them", "name the units themselves")
        }
        "scope" | "device" => trouble("is not started by systemd", "name a service or a mount instead"),
        _ => Ok(()),
    }
}

/// Types without processes lack these properties.
fn check_killing(properties: &Properties) -> Result<(), Trouble> {
    if let Some(mode @ ("process" | "none")) = properties.text("KillMode") {
        return trouble(
            format!("has KillMode={mode}, which leaves processes behind"),
            "set KillMode=control-group or KillMode=mixed",
        );
    }
    if properties.flag("SendSIGKILL") == Some(false) {
        return trouble("has SendSIGKILL=no, so that its stop may never end", "remove that line");
    }
    match properties.signed("FinalKillSignal") {
        Some(signal) if signal != SIGKILL => {
            trouble(format!("has FinalKillSignal={signal}, which can be ignored"), "remove that line")
        }
        Some(_) | None => Ok(()),
    }
}

/// Sockets, timers, paths and automounts start another unit, which outlives them.
fn check_triggers(properties: &Properties, bound: &[UnitName]) -> Result<(), Trouble> {
    if properties.flag("Accept") == Some(true) {
        return trouble("has Accept=yes, and its instances cannot be named beforehand", "use Accept=no");
    }
    if !matches!(properties.kind(), "socket" | "timer" | "path" | "automount") {
        return Ok(());
    }
    let triggers = properties.texts("Triggers");
    match triggers.iter().find(|name| !bound.iter().any(|unit| unit.as_str() == name.as_str())) {
        None => Ok(()),
        Some(name) => trouble(
            format!("starts {name}, which would run on after it"),
            format!("add {name:?} to bound-units of this service"),
        ),
    }
}

/// A mount, a swap or a oneshot that remains after exit is an effect: only an orderly stop shows that it is gone.
fn check_effect(properties: &Properties, self_fence: bool) -> Result<(), Trouble> {
    if !properties.is_effect() {
        return Ok(());
    }
    if !self_fence {
        return trouble(
            "has no main process, so that a failed stop may leave its effect behind",
            "set on-stop-failure = \"reboot-force\" or \"kernel-panic\"",
        );
    }
    if properties.flag("LazyUnmount") == Some(true) {
        return trouble("has LazyUnmount=yes, so that what is in use stays mounted, unseen", "remove that line");
    }
    if properties.text("CollectMode") == Some("inactive-or-failed") {
        return trouble(
            "has CollectMode=inactive-or-failed, so that systemd forgets a failed stop",
            "remove that line",
        );
    }
    Ok(())
}

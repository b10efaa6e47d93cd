//! Admission: which units can be run on one host at a time. These are bound to their lease, and their stop can be proven.

use super::{
    Systemd,
    belongings::{Belongings, Surroundings},
    elsewhere,
    error::BusError,
    gate,
    interface::SIGKILL,
    properties::{ActiveState, LEASE_PREFIX, Properties},
    refusal::{Refusal, changed, refuse, refused},
};
use crate::types::{ServiceName, UnitName};

/// How many units are judged at a time. What systemd says of one takes 80 KiB until it is judged, and PID 1 answers one after the other.
pub const ADMISSIONS: usize = 16;

impl Systemd {
    /// Whether the unit is bound to its lease, can pass the gate, and can be proven dead.
    pub async fn supervisable(
        &self,
        unit: &UnitName,
        around: Surroundings<'_>,
    ) -> Result<(), Refusal> {
        let _turn = self.admissions.acquire().await;
        let properties = self.read_settings(unit.as_str()).await?;
        check_loaded(&properties, unit, around.service)?;
        if let Some(service) = around.service {
            gate::check(&properties, service)?;
        }
        check_own_file(&properties, unit)?;
        let belongings = if around.may_end {
            Belongings::default()
        } else {
            let found = self.belongings(unit, around).await?;
            // What only stands for others is told of as such, whatever else is wrong with it.
            found.check_umbrella(&properties, around)?;
            found
        };
        check_settings(&properties, around)?;
        belongings.check_named(unit, around)?;
        self.check_order(&properties).await?;
        if around.service.is_some() && !properties.state().may_run() {
            let rivals = Rivals::of(&properties);
            self.rival(unit, &rivals).await?.map_or(Ok(()), refused)?;
        }
        if let Some(service) = around.service
            && !around.may_end
        {
            // A failure does not end a unit that runs: its bond ends it in time, and the look at what is contained ends the rest.
            for name in around.contains {
                let contained = self.read_settings(name.as_str()).await?;
                gate::check(&contained, service).or_else(|refusal| refused(refusal.to_string()))?;
            }
        }
        Ok(())
    }

    /// Why a bound unit is not started whose start would end a unit of another service that runs on this host (`Conflicts=`, on whichever
    /// side it is written). Two such services can have a host each, and do not take turns in ending each other.
    pub async fn rival(
        &self,
        of: &UnitName,
        Rivals { own, others }: &Rivals,
    ) -> Result<Option<String>, BusError> {
        if own.is_empty() || others.is_empty() {
            return Ok(None);
        }
        let link = self.link().await?;
        let rows = link.rows(others.clone()).await?;
        for (unit, (_, _, _, state, _, _, _, job, job_type, _)) in others.iter().zip(rows) {
            let state = ActiveState::new(&state);
            let is_ending = state == ActiveState::Deactivating || job != 0 && job_type == "stop";
            if is_ending || state.is_stopped() && job == 0 {
                continue;
            }
            let theirs = link.common(unit, &["BindsTo"]).await?.leases();
            if let Some(lease) = theirs.iter().find(|lease| !own.contains(lease)) {
                let service = lease
                    .trim_start_matches(LEASE_PREFIX)
                    .trim_end_matches(".target");
                return Ok(Some(format!(
                    "{of} and {unit} of the service {service}, which runs on this host, end each other: run \"putexctl step-down \
                     {service}\", or remove Conflicts="
                )));
            }
        }
        Ok(None)
    }
}

/// The leases of a unit, and the units that end it or are ended by it.
#[derive(Debug)]
pub struct Rivals {
    own: Vec<String>,
    others: Vec<String>,
}

impl Rivals {
    pub fn of(properties: &Properties) -> Self {
        let mut others = properties.texts("Conflicts");
        others.extend(properties.texts("ConflictedBy"));
        others.retain(|name| !matches!(name.as_str(), "shutdown.target" | "umount.target"));
        Self {
            own: properties.leases(),
            others,
        }
    }
}

/// Refuses an alias, and what systemd-run or the like has made. Hosts know a unit by its name alone: two that each had it by another
/// name would not see each other run it. What systemd-run makes hides a file of its name, also once it has failed, and is gone with the
/// next boot.
fn check_own_file(properties: &Properties, unit: &UnitName) -> Result<(), Refusal> {
    let id = properties.id();
    if !id.is_empty() && id != unit.as_str() {
        return refused(format!(
            "{unit} is another name of {id}: name {id} in the service's file instead"
        ));
    }
    if properties.flag("Transient") == Some(true) {
        return refused(format!(
            "{unit} is of systemd-run and hides the file of its name: run \"systemctl stop {unit}; systemctl reset-failed {unit}; \
             systemctl daemon-reload\""
        ));
    }
    Ok(())
}

pub fn check_loaded(
    properties: &Properties,
    unit: &UnitName,
    service: Option<&ServiceName>,
) -> Result<(), Refusal> {
    let load_state = properties.text("LoadState").unwrap_or_default();
    let remedy = match load_state {
        "loaded" => return Ok(()),
        "not-found" => {
            "install the unit for the system (a user's own with User=), or correct its name"
                .to_owned()
        }
        "masked" => format!("run \"systemctl unmask {unit}\""),
        _ => {
            let error = properties.get::<(String, String)>("LoadError");
            let error = error.map(|(_, error)| error).unwrap_or_default();
            format!("{error}; see \"systemd-analyze verify {unit}\"")
        }
    };
    let text = format!("{unit} is {load_state}: {remedy}");
    // Should the unit still run, systemd may have forgotten what binds it.
    let is_ungated = service.is_some_and(|service| gate::check(properties, service).is_err());
    Err(if is_ungated {
        Refusal::Ungated(text)
    } else {
        Refusal::Other(text)
    })
}

/// Settings that are refused: their names and values, what is wrong with them, the section (empty for that of the unit's type), and
/// the value in their place.
const REFUSED: [(&str, &str, &str, &str, &str); 8] = [
    ("KillMode", "process", LEAVES, "", "mixed"),
    ("KillMode", "none", LEAVES, "", "mixed"),
    (
        "SendSIGKILL",
        "no",
        "so that its stop may never end",
        "",
        "yes",
    ),
    ("RefuseManualStart", "yes", UNDRIVEN, "Unit", "no"),
    ("RefuseManualStop", "yes", UNDRIVEN, "Unit", "no"),
    ("OnFailureJobMode", "isolate", ENDS_HOST, "Unit", "replace"),
    ("OnSuccessJobMode", "isolate", ENDS_HOST, "Unit", "fail"),
    (
        "LazyUnmount",
        "yes",
        "so that what is in use stays mounted, unseen",
        "",
        "no",
    ),
];
const LEAVES: &str = "which leaves processes behind";
const UNDRIVEN: &str = "so that putexd cannot drive it";
const ENDS_HOST: &str = "so that its end stops all else on the host";

fn check_settings(properties: &Properties, around: Surroundings<'_>) -> Result<(), Refusal> {
    let is_oneshot = properties.text("Type") == Some("oneshot");
    if is_oneshot && properties.flag("RemainAfterExit") != Some(true) && !around.may_end {
        let remains = changed(properties, "", "RemainAfterExit=yes");
        return refuse(
            properties,
            "is a oneshot that has ended as soon as it is started",
            format!(
                "name what starts it, such as its timer, as unit, and itself in bound-units; if its ExecStop= takes an effect back, \
                 {remains}"
            ),
        );
    }
    gate::check_reach(properties)?;
    // What cannot be mended by a setting comes first.
    if !around.unit_only {
        check_elsewhere(properties, around)?;
    }
    check_effect(properties, around.self_fence)?;
    for (name, value, why, section, instead) in REFUSED {
        if properties.setting(name).as_deref() == Some(value) {
            return refuse(
                properties,
                format!("has {name}={value}, {why}"),
                changed(properties, section, &format!("{name}={instead}")),
            );
        }
    }
    if let Some(signal) = properties.get::<i32>("FinalKillSignal")
        && signal != SIGKILL
    {
        return refuse(
            properties,
            format!("has FinalKillSignal={signal}, which can be ignored"),
            changed(properties, "", "FinalKillSignal=SIGKILL"),
        );
    }
    if properties.flag("Accept") == Some(true) {
        return refuse(
            properties,
            "has Accept=yes, and its instances cannot be named beforehand",
            "use Accept=no and a program that takes connections itself",
        );
    }
    Ok(())
}

/// Refuses a unit whose work is certain to be, or by PAM may be, where no stop of the unit reaches.
fn check_elsewhere(properties: &Properties, around: Surroundings<'_>) -> Result<(), Refusal> {
    let pam = properties.text("PAMName").filter(|name| !name.is_empty());
    let (words, remedy) = if let Some(name) = pam {
        let words = format!(
            "has PAMName={name}, which may move its processes to a session that outlives it"
        );
        (words, changed(properties, "Service", "PAMName="))
    } else if around.contains.is_empty()
        && let Some((words, remedy)) =
            elsewhere::begun(&elsewhere::commands(properties), around.bound)
    {
        (words, remedy.to_owned())
    } else {
        // Where the configuration says in which slice the work runs, the look at the running unit checks whether that is true.
        return Ok(());
    };
    let answer = "set stop-proof = \"unit-only\" to answer for it yourself";
    refuse(properties, words, format!("{remedy}; or {answer}"))
}

/// A mount or a service that remains after exit is an effect: only an orderly stop shows that it is gone, and systemd has to
/// remember one that failed.
fn check_effect(properties: &Properties, self_fence: bool) -> Result<(), Refusal> {
    if !properties.is_effect() {
        return Ok(());
    }
    if self_fence {
        if properties.text("CollectMode") != Some("inactive-or-failed") {
            return Ok(());
        }
        return refuse(
            properties,
            "has CollectMode=inactive-or-failed, so that systemd forgets a failed stop",
            changed(properties, "Unit", "CollectMode=inactive"),
        );
    }
    let mut remedy = "set on-stop-failure = \"reboot-force\" or \"kernel-panic\"".to_owned();
    if properties.kind() == "service" && properties.text("Type") != Some("oneshot") {
        remedy += ", or ";
        remedy += &changed(properties, "", "RemainAfterExit=no");
    }
    refuse(
        properties,
        "may be active without a process, so that a failed stop proves nothing",
        remedy,
    )
}

#[cfg(test)]
mod tests {
    use zbus::Variant;

    use super::*;

    fn unit(name: &str) -> UnitName {
        UnitName::new(name).expect("a name")
    }

    /// What [`check_settings`] says of a unit with these settings; empty if it passes.
    fn said(
        id: &'static str,
        mut settings: Vec<(&str, Variant<'static>)>,
        around: Surroundings<'_>,
    ) -> String {
        settings.push(("Id", Variant::from(id)));
        match check_settings(&Properties::of(settings), around) {
            Ok(()) => String::new(),
            Err(refusal) => refusal.to_string(),
        }
    }

    fn command(program: &'static str, arguments: Vec<&'static str>) -> Variant<'static> {
        Variant::from(vec![(
            program, arguments, false, 0_u64, 0_u64, 0_u64, 0_u64, 0_u32, 0_i32, 0_i32,
        )])
    }

    #[test]
    fn what_cannot_be_proven_dead_is_refused_and_why() {
        let text = |text: &'static str| Variant::from(text);
        let with = |name, value| vec![(name, value)];
        let docker = || command("/usr/bin/docker", vec!["docker", "run", "db"]);
        let remains = |kind| {
            vec![
                ("Type", text(kind)),
                ("RemainAfterExit", Variant::from(true)),
            ]
        };
        for (id, settings, wanted) in [
            (
                "a.service",
                with("Type", text("oneshot")),
                "RemainAfterExit=yes",
            ),
            (
                "a.service",
                with("RootDirectory", text("/srv")),
                "RootDirectoryStartOnly=yes",
            ),
            (
                "a.service",
                with("KillMode", text("process")),
                "has KillMode=process",
            ),
            (
                "a.service",
                with("KillMode", text("none")),
                "has KillMode=none",
            ),
            (
                "a.service",
                with("SendSIGKILL", Variant::from(false)),
                "has SendSIGKILL=no",
            ),
            (
                "a.service",
                with("FinalKillSignal", Variant::from(15_i32)),
                "has FinalKillSignal=15",
            ),
            (
                "a.service",
                with("RefuseManualStart", Variant::from(true)),
                "has RefuseManualStart=yes",
            ),
            (
                "a.service",
                with("RefuseManualStop", Variant::from(true)),
                "has RefuseManualStop=yes",
            ),
            (
                "a.socket",
                with("Accept", Variant::from(true)),
                "use Accept=no",
            ),
            (
                "a.service",
                with("ExecStart", docker()),
                "has docker begin work",
            ),
            (
                "a.service",
                with("ExecStartPre", docker()),
                "has docker begin work",
            ),
            (
                "a.service",
                with("ExecStartPost", docker()),
                "contains = [\"db.slice\"]; or set stop-proof",
            ),
            (
                "a.service",
                remains("exec"),
                "\"kernel-panic\", or run \"mkdir",
            ),
            ("a.mount", Vec::new(), "set on-stop-failure ="),
        ] {
            let bound = [unit("b.service")];
            let said = said(
                id,
                settings,
                Surroundings {
                    bound: &bound,
                    ..Surroundings::default()
                },
            );
            assert!(said.contains(wanted), "{id} {wanted}: {said}");
        }
        for (id, settings) in [("a.service", remains("oneshot")), ("a.mount", Vec::new())] {
            assert!(
                !said(id, settings, Surroundings::default()).contains("RemainAfterExit=no"),
                "{id} has to be one"
            );
        }
        let fenced = Surroundings {
            self_fence: true,
            ..Surroundings::default()
        };
        let lazy = with("LazyUnmount", Variant::from(true));
        assert!(said("a.mount", lazy, fenced).contains("has LazyUnmount=yes"));
        let collected = with("CollectMode", text("inactive-or-failed"));
        assert!(said("a.mount", collected, fenced).contains("has CollectMode=inactive-or-failed"));
    }

    #[test]
    fn what_can_be_proven_dead_is_supervised() {
        let text = |text: &'static str| Variant::from(text);
        let docker = || {
            vec![(
                "ExecStart",
                command("/usr/bin/docker", vec!["docker", "run", "db"]),
            )]
        };
        let bound = [unit("b.service")];
        let plain = Surroundings::default();
        for (id, settings, around) in [
            (
                "a.service",
                vec![("Type", text("exec")), ("KillMode", text("mixed"))],
                plain,
            ),
            (
                "a.service",
                vec![
                    ("SendSIGKILL", Variant::from(true)),
                    ("FinalKillSignal", Variant::from(9_i32)),
                ],
                plain,
            ),
            (
                "a.service",
                vec![("Type", text("oneshot"))],
                Surroundings {
                    may_end: true,
                    ..plain
                },
            ),
            (
                "a.service",
                vec![
                    ("Type", text("oneshot")),
                    ("RemainAfterExit", Variant::from(true)),
                ],
                Surroundings {
                    self_fence: true,
                    ..plain
                },
            ),
            (
                "a.mount",
                vec![("CollectMode", text("inactive"))],
                Surroundings {
                    self_fence: true,
                    ..plain
                },
            ),
            (
                "a.service",
                docker(),
                Surroundings {
                    unit_only: true,
                    ..plain
                },
            ),
            (
                "a.service",
                docker(),
                Surroundings {
                    contains: &bound,
                    ..plain
                },
            ),
            ("a.service", vec![("PAMName", text(""))], plain),
        ] {
            assert_eq!(said(id, settings, around), "", "{id}");
        }
    }

    #[test]
    fn a_unit_goes_by_its_own_name() {
        let named = |id: &'static str| Properties::of(vec![("Id", Variant::from(id))]);
        check_own_file(&named("a.service"), &unit("a.service")).expect("its own");
        let said = check_own_file(&named("b.service"), &unit("a.service"))
            .expect_err("an alias")
            .to_string();
        assert!(
            said.contains("another name of b.service") && said.contains(": name b.service"),
            "{said}"
        );
    }

    #[test]
    fn a_unit_that_systemd_run_has_made_is_refused_because_it_hides_the_file_of_its_name() {
        let of = |transient: bool| Properties::of(vec![("Transient", Variant::from(transient))]);
        check_own_file(&of(false), &unit("a.service")).expect("it has a file");
        let said = check_own_file(&of(true), &unit("a.service"))
            .expect_err("it has none")
            .to_string();
        assert!(
            said.contains("systemd-run") && said.contains("systemctl reset-failed a.service;"),
            "{said}"
        );
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
            let error =
                check_loaded(&state(load), &unit("a.service"), Some(&service)).expect_err(load);
            assert!(
                error
                    .to_string()
                    .starts_with(&format!("a.service is {load}: ")),
                "{error}"
            );
            assert!(
                error.to_string().contains(remedy) && matches!(error, Refusal::Ungated(_)),
                "{error}"
            );
            let error = check_loaded(&state(load), &unit("a.service"), None).expect_err(load);
            assert!(matches!(error, Refusal::Other(_)), "nobody asked for one");
        }
    }

    #[test]
    fn an_end_that_stops_the_host_is_refused() {
        let of = |name, mode| {
            let id = ("Id", Variant::from("a.service"));
            check_settings(
                &Properties::of([id, (name, Variant::from(mode))]),
                Surroundings::default(),
            )
            .map_err(|found| found.to_string())
        };
        assert_eq!(
            (
                of("OnFailureJobMode", "replace"),
                of("OnSuccessJobMode", "fail")
            ),
            (Ok(()), Ok(()))
        );
        let remedy = of("OnFailureJobMode", "isolate").expect_err("it isolates");
        assert!(
            remedy.contains("'[Unit]' OnFailureJobMode=replace"),
            "{remedy}"
        );
        assert!(
            of("OnSuccessJobMode", "isolate")
                .expect_err("it isolates")
                .contains("OnSuccessJobMode=fail")
        );
    }
}

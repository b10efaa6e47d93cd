//! Health checks. Each service has a task that runs them at an interval and counts their rise and fall.
//!
//! A check never holds up a renewal: only its verdict reaches the election.

use std::sync::Arc;

use tokio::{
    sync::OnceCell,
    time::{Instant, sleep_until, timeout},
};

use super::{
    Host, Service,
    inbox::{Inbox, Message},
};
use crate::{
    config::{HealthSettings, Probe},
    election::{Event, State},
    facts::{Health, alarm::Problem},
    http::{CheckError, Target},
    systemd::{CheckCommand, CheckUser, RunAs, RunResult},
    task::OwnedTask,
    types::{ServiceName, span::rounded},
};

/// What a check has found. `Err`: why it has failed, in words.
type Verdict = Result<(), String>;

/// What a health check has to find out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum CheckRole {
    /// Whether the service works on this host, which runs it.
    Active,
    /// Whether the service would work on this host if it were started.
    Standby,
}

impl CheckRole {
    /// The role that is checked in `state`. `None`: nothing is checked, because the unit is changing its host.
    pub fn of(state: State) -> Option<Self> {
        match state {
            State::Active => Some(Self::Active),
            State::NoStore | State::Standby | State::Confirming => Some(Self::Standby),
            State::Fencing
            | State::Starting
            | State::Releasing
            | State::Lapsing
            | State::Retired => None,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Standby => "standby",
        }
    }

    /// Whether a host in this role is asked. Where a standby is not, it has no verdict, because one without a check would say that
    /// something passed.
    fn is_asked(self, health: &HealthSettings) -> bool {
        self == Self::Active || health.probe.asks_standby()
    }
}

/// The health checks of a service.
#[derive(Default)]
pub struct Checks {
    /// The role that is checked.
    role: Option<CheckRole>,
    task: Option<OwnedTask>,
    /// The user of the health command; it outlives a change of the settings, so that the command keeps its files.
    user: Arc<OnceCell<CheckUser>>,
    /// The last verdict.
    pub verdict: Option<Health>,
}

impl Checks {
    /// Whether the last verdict was good, or there is none.
    pub fn are_good(&self) -> bool {
        !matches!(self.verdict, Some(Health::Fails(_)))
    }
}

impl Service {
    /// Has the checks go on as those of the present role, with the present settings if those have `changed`.
    pub fn check_health(&mut self, changed: bool) {
        let role = CheckRole::of(self.election.state());
        let checks = &mut self.checks;
        if std::mem::replace(&mut checks.role, role) == role && !changed {
            return;
        }
        checks.task = None;
        if changed {
            checks.verdict = None;
        }
        let health = self.settings.health.as_ref();
        let health = health.filter(|_| !self.settings.observes()).zip(role);
        let Some((settings, role)) = health.filter(|(health, role)| role.is_asked(health)) else {
            if role == Some(CheckRole::Standby) {
                // What a check has found ends with the lease.
                checks.verdict = None;
            }
            return;
        };
        let checker = Checker {
            service: self.settings.name.clone(),
            host: self.host.clone(),
            settings: settings.clone(),
            user: Arc::clone(&checks.user),
            role,
            inbox: self.inbox.clone(),
        };
        checks.task = Some(self.host.machine.spawn(Box::pin(checker.run())).into());
    }

    /// Notes a health check's verdict, and raises the alarm when it becomes bad.
    pub fn note_verdict(&mut self, role: CheckRole, verdict: &Result<(), String>) {
        // That of a former role comes too late.
        if CheckRole::of(self.election.state()) != Some(role) {
            return;
        }
        if let (Err(error), true) = (verdict, self.checks.are_good()) {
            let probe = self.settings.health.as_ref().map(|health| &health.probe);
            let unit = probe.and_then(|probe| probe.unit(&self.settings.name, role.as_str()));
            let error = error.clone();
            self.raise(Problem::CheckFailed { error, unit });
        }
        let fails = verdict.clone().err();
        self.checks.verdict = Some(fails.map_or(Health::Passes, Health::Fails));
    }
}

/// Runs the health checks of one service in one role.
struct Checker {
    service: ServiceName,
    host: Host,
    settings: HealthSettings,
    /// The user of its commands that name no other one, taken when the first is run.
    user: Arc<OnceCell<CheckUser>>,
    role: CheckRole,
    inbox: Inbox,
}

/// Counts passes and failures in a row.
#[derive(Default)]
struct Tally {
    passes: u32,
    failures: u32,
}

impl Tally {
    /// The verdict that the election gets after this one, if any.
    fn count(
        &mut self,
        role: CheckRole,
        settings: &HealthSettings,
        verdict: Verdict,
    ) -> Option<Event> {
        let enough = if verdict.is_ok() {
            (self.passes, self.failures) = (self.passes.saturating_add(1), 0);
            // On the active host each pass counts, whatever `rise` is, because passes keep the renewals going (H1).
            role == CheckRole::Active || self.passes >= settings.rise
        } else {
            (self.passes, self.failures) = (0, self.failures.saturating_add(1));
            self.failures >= settings.fall
        };
        enough.then_some(match role {
            CheckRole::Active => Event::ActiveCheck(verdict),
            CheckRole::Standby => Event::StandbyCheck(verdict),
        })
    }
}

impl Checker {
    async fn run(self) {
        let mut tally = Tally::default();
        loop {
            let next = Instant::now() + self.settings.interval;
            if let Some(verdict) = self.probe().await
                && let Some(event) = tally.count(self.role, &self.settings, verdict)
            {
                self.inbox.send(Message::Event(event)).await;
            }
            sleep_until(next).await;
        }
    }

    /// Runs one check. `None`: no verdict, because PID 1, or the process for HTTP, could not be asked.
    async fn probe(&self) -> Option<Verdict> {
        match &self.settings.probe {
            Probe::Command { argv, user } => self.command(argv, user.as_deref()).await,
            Probe::Unit(_) => self.unit().await,
            Probe::Tcp(address) => self.net(Target::Tcp(address.clone()), address).await,
            Probe::Http(url) => self.net(Target::Http(url.clone()), url).await,
        }
    }

    async fn net(&self, target: Target, shown: &str) -> Option<Verdict> {
        let checked = self.host.http.check(target, self.settings.timeout).await?;
        Some(checked.map_err(|error| match error {
            CheckError::Late => format!("{shown}: {}", self.late()),
            CheckError::Status(_) | CheckError::Failed(_) => format!("{shown}: {error}"),
        }))
    }

    async fn command(&self, argv: &[String], user: Option<&str>) -> Option<Verdict> {
        let user = match user {
            Some(name) => RunAs::Named(name.to_owned()),
            None => match self.own_user().await {
                Ok(user) => user,
                Err(error) => return Some(Err(error)),
            },
        };
        let role = self.role.as_str();
        let check = CheckCommand {
            unit: self.settings.probe.unit(&self.service, role)?,
            description: format!("Health check of {} as {role}", self.service),
            argv: argv.iter().cloned().chain([role.to_owned()]).collect(),
            environment: vec![
                format!("PUTEX_SERVICE={}", self.service),
                format!("PUTEX_NODE={}", self.host.node),
            ],
            user,
            timeout: self.settings.timeout,
        };
        let result = self.host.systemd.run_check(&check).await.ok()?;
        Some(self.verdict(result))
    }

    async fn own_user(&self) -> Result<RunAs, String> {
        let take = || self.host.systemd.check_user(&self.service);
        let user = self.user.get_or_try_init(take);
        let user = timeout(self.settings.timeout, user).await;
        let user = user.map_err(|_| self.late())?;
        Ok(RunAs::Numbered(
            user.map_err(|error| error.to_string())?.uid(),
        ))
    }

    async fn unit(&self) -> Option<Verdict> {
        let (probe, limit) = (&self.settings.probe, self.settings.timeout);
        let unit = probe.unit(&self.service, self.role.as_str())?;
        let ended = self.host.systemd.run_unit_to_completion(&unit, limit).await;
        let verdict = self.verdict(ended.ok()?);
        Some(verdict.map_err(|why| format!("{unit}: {why}")))
    }

    fn verdict(&self, result: RunResult) -> Verdict {
        match result {
            RunResult::Passed => Ok(()),
            RunResult::Failed(reason) => Err(reason),
            RunResult::TimedOut => Err(self.late()),
        }
    }

    fn late(&self) -> String {
        format!("no answer within {}", rounded(self.settings.timeout))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::daemon::host_fake::host;
    use crate::daemon::local::machine::ThisMachine;
    use crate::store::memory::MemoryStore;

    fn settings(rise: u32, fall: u32) -> HealthSettings {
        let second = Duration::from_secs(1);
        HealthSettings {
            probe: Probe::Tcp("[::1]:1".to_owned()),
            interval: second,
            timeout: second,
            rise,
            fall,
        }
    }

    fn failure() -> Verdict {
        Err("no".to_owned())
    }

    #[test]
    fn a_standby_is_healthy_after_rise_passes_in_a_row() {
        let (settings, mut tally) = (settings(2, 2), Tally::default());
        assert_eq!(tally.count(CheckRole::Standby, &settings, Ok(())), None);
        assert_eq!(tally.count(CheckRole::Standby, &settings, failure()), None);
        assert_eq!(tally.count(CheckRole::Standby, &settings, Ok(())), None);
        assert_eq!(
            tally.count(CheckRole::Standby, &settings, Ok(())),
            Some(Event::StandbyCheck(Ok(())))
        );
    }

    #[test]
    fn a_standby_is_asked_only_where_the_probe_says_so() {
        let settings = settings(1, 1);
        assert!(CheckRole::Active.is_asked(&settings));
        assert!(!CheckRole::Standby.is_asked(&settings));
    }

    #[tokio::test]
    async fn a_command_for_which_no_user_is_left_has_failed() {
        let probe = Probe::Command {
            argv: vec!["/bin/true".to_owned()],
            user: None,
        };
        let checker = Checker {
            service: "db".parse().expect("a service's name"),
            host: host(
                "h1",
                Arc::new(MemoryStore::new(Duration::from_secs(1))),
                Arc::new(ThisMachine::new(Path::new("/nowhere"))),
            ),
            settings: HealthSettings {
                probe,
                ..settings(1, 1)
            },
            user: Arc::default(),
            role: CheckRole::Active,
            inbox: Inbox::new().0,
        };
        let why = checker.probe().await.expect("a verdict");
        let why = why.expect_err("there is no user");
        assert!(
            why.starts_with("end units with DynamicUser=, or set user in [health]"),
            "{why}"
        );
    }

    #[test]
    fn either_role_is_unhealthy_after_fall_failures_in_a_row() {
        let (active, standby) = (
            Event::ActiveCheck(failure()),
            Event::StandbyCheck(failure()),
        );
        for (role, event) in [(CheckRole::Active, active), (CheckRole::Standby, standby)] {
            let (settings, mut tally) = (settings(1, 2), Tally::default());
            assert_eq!(tally.count(role, &settings, failure()), None);
            assert_eq!(tally.count(role, &settings, failure()), Some(event));
        }
    }

    #[test]
    fn on_the_active_host_every_pass_counts() {
        let (settings, mut tally) = (settings(3, 2), Tally::default());
        assert_eq!(
            tally.count(CheckRole::Active, &settings, Ok(())),
            Some(Event::ActiveCheck(Ok(())))
        );
    }

    #[test]
    fn nothing_is_checked_while_the_unit_changes_hands() {
        let checked: Vec<State> = State::ALL
            .into_iter()
            .filter(|state| CheckRole::of(*state).is_some())
            .collect();
        assert_eq!(
            checked,
            [
                State::NoStore,
                State::Standby,
                State::Confirming,
                State::Active
            ]
        );
    }
}

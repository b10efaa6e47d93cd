//! Health checks. Each service has a task that runs them at an interval and counts their rise and fall.
//!
//! A check never holds up a renewal: only its verdict reaches the election.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OnceCell, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::inbox::{Inbox, Told};
use crate::config::{HealthSettings, Probe};
use crate::election::{Event, State};
use crate::http::{CheckError, Http, Target};
use crate::systemd::{Check, CheckUser, CheckUserError, Manager, RunAs, RunResult};
use crate::types::span::rounded;
use crate::types::{NodeId, ServiceName, UnitName};

/// What a health check has to find out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Whether the service works on this host, which runs it.
    Active,
    /// Whether the service would work on this host if it were started.
    Standby,
}

impl Role {
    /// The role that is checked in `state`. `None`: nothing is checked, because the unit is changing its host.
    pub(super) fn of(state: State) -> Option<Self> {
        match state {
            State::Active => Some(Self::Active),
            State::NoStore | State::Standby | State::Confirming => Some(Self::Standby),
            State::Fencing | State::Starting | State::Releasing | State::Lapsing | State::Retired => None,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Standby => "standby",
        }
    }

    fn event(self, verdict: Result<(), Failure>) -> Event {
        let verdict = verdict.map_err(|failure| failure.to_string());
        match self {
            Self::Active => Event::ActiveCheck(verdict),
            Self::Standby => Event::StandbyCheck(verdict),
        }
    }
}

/// Why a health check has failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The command failed; why, in words.
    #[error("{0}")]
    Command(String),
    /// The unit failed; why, in words.
    #[error("{unit}: {reason}")]
    Unit { unit: UnitName, reason: String },
    /// There is no user for the command.
    #[error(transparent)]
    User(CheckUserError),
    #[error("no answer within {0:?}")]
    Late(Duration),
    #[error("{target}: no answer within {}", rounded(*.limit))]
    LateNet { target: String, limit: Duration },
    #[error("{target}: {source}")]
    Net { target: String, source: CheckError },
}

/// Runs the health checks of one service.
pub(super) struct Checker {
    pub(super) service: ServiceName,
    pub(super) node: NodeId,
    pub(super) settings: HealthSettings,
    pub(super) systemd: Arc<dyn Manager>,
    pub(super) http: Http,
    /// The user of its commands that name no other one, taken when the first is run.
    pub(super) user: Arc<OnceCell<CheckUser>>,
    pub(super) role: watch::Receiver<Option<Role>>,
    pub(super) inbox: Inbox,
}

/// Counts passes and failures in a row.
#[derive(Debug, Default)]
struct Tally {
    passes: u32,
    failures: u32,
}

impl Tally {
    /// The verdict that the election gets after this result, if any.
    fn count(&mut self, role: Role, settings: &HealthSettings, result: Result<(), Failure>) -> Option<Event> {
        match result {
            Ok(()) => {
                self.failures = 0;
                self.passes = self.passes.saturating_add(1);
                // On the active host each pass counts, whatever `rise` is, because passes keep the renewals going (H1).
                let enough = role == Role::Active || self.passes >= settings.rise;
                enough.then(|| role.event(Ok(())))
            }
            Err(failure) => {
                self.passes = 0;
                self.failures = self.failures.saturating_add(1);
                (self.failures >= settings.fall).then(|| role.event(Err(failure)))
            }
        }
    }
}

impl Checker {
    /// Runs the checks until the service is gone.
    pub(super) async fn run(mut self) {
        loop {
            let role = *self.role.borrow_and_update();
            // Where the probe does not ask a standby there is no verdict, because one without a check would say that
            // something passed.
            let asked = role.filter(|role| *role == Role::Active || self.settings.probe.asks_standby());
            let Some(role) = asked else {
                if self.role.changed().await.is_err() {
                    return;
                }
                continue;
            };
            if !self.check_as(role).await {
                return;
            }
        }
    }

    /// Checks until the role changes. `false`: the service is gone.
    async fn check_as(&mut self, role: Role) -> bool {
        let mut tally = Tally::default();
        loop {
            let next = Instant::now() + self.settings.interval;
            let mut role_changes = self.role.clone();
            let outcome = tokio::select! {
                biased;
                changed = role_changes.changed() => return changed.is_ok(),
                outcome = self.probe(role) => outcome,
            };
            if let Some(event) = outcome.and_then(|result| tally.count(role, &self.settings, result))
                && self.inbox.tell(Told::Event(event)).await.is_err()
            {
                return false;
            }
            tokio::select! {
                biased;
                changed = self.role.changed() => return changed.is_ok(),
                () = sleep_until(next) => {}
            }
        }
    }

    /// Runs one check. `None`: no verdict, because PID 1, or the process for HTTP, could not be asked.
    async fn probe(&self, role: Role) -> Option<Result<(), Failure>> {
        match &self.settings.probe {
            Probe::Command { argv, user } => self.command(role, argv, user.as_deref()).await,
            Probe::Unit(_) => self.unit(role).await,
            Probe::Tcp(address) => self.net(Target::Tcp(address.clone()), address).await,
            Probe::Http(url) => self.net(Target::Http(url.clone()), url).await,
        }
    }

    async fn net(&self, target: Target, shown: &str) -> Option<Result<(), Failure>> {
        let limit = self.settings.timeout;
        let named = shown.to_owned();
        let checked = self.http.check(target, limit).await?;
        Some(checked.map_err(|error| match error {
            CheckError::Late => Failure::LateNet { target: named, limit },
            source @ (CheckError::Status(_) | CheckError::Failed(_)) => Failure::Net { target: named, source },
        }))
    }

    async fn command(&self, role: Role, argv: &[String], user: Option<&str>) -> Option<Result<(), Failure>> {
        let user = match user {
            Some(name) => RunAs::Named(name.to_owned()),
            None => match timeout(self.settings.timeout, self.own_user()).await {
                Ok(Ok(user)) => user,
                Ok(Err(error)) => return Some(Err(Failure::User(error))),
                Err(_) => return Some(Err(Failure::Late(self.settings.timeout))),
            },
        };
        let role = role.as_str();
        let unit = self.settings.probe.unit(&self.service, role)?;
        let check = Check {
            unit,
            description: format!("Health check of {} as {role}", self.service),
            argv: argv.iter().cloned().chain([role.to_owned()]).collect(),
            environment: vec![format!("PUTEX_SERVICE={}", self.service), format!("PUTEX_NODE={}", self.node)],
            user,
            timeout: self.settings.timeout,
        };
        let result = self.systemd.run_check(&check).await.ok()?;
        Some(self.verdict(result, Failure::Command))
    }

    async fn own_user(&self) -> Result<RunAs, CheckUserError> {
        let user = self.user.get_or_try_init(|| self.systemd.check_user(&self.service)).await?;
        Ok(RunAs::Numbered(user.uid()))
    }

    async fn unit(&self, role: Role) -> Option<Result<(), Failure>> {
        let unit = self.settings.probe.unit(&self.service, role.as_str())?;
        let result = self.systemd.run_unit_to_completion(&unit, self.settings.timeout).await.ok()?;
        Some(self.verdict(result, |reason| Failure::Unit { unit, reason }))
    }

    fn verdict(&self, result: RunResult, failed: impl FnOnce(String) -> Failure) -> Result<(), Failure> {
        match result {
            RunResult::Passed => Ok(()),
            RunResult::Failed(reason) => Err(failed(reason)),
            RunResult::TimedOut => Err(Failure::Late(self.settings.timeout)),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::daemon::fake::Fake;

    fn settings(rise: u32, fall: u32) -> HealthSettings {
        let second = Duration::from_secs(1);
        HealthSettings { probe: Probe::Tcp("[::1]:1".to_owned()), interval: second, timeout: second, rise, fall }
    }

    fn failure() -> Result<(), Failure> {
        Err(Failure::Command("no".to_owned()))
    }

    #[test]
    fn a_standby_is_healthy_after_rise_passes_in_a_row() {
        let (settings, mut tally) = (settings(2, 2), Tally::default());
        assert_eq!(tally.count(Role::Standby, &settings, Ok(())), None);
        assert_eq!(tally.count(Role::Standby, &settings, failure()), None);
        assert_eq!(tally.count(Role::Standby, &settings, Ok(())), None);
        assert_eq!(tally.count(Role::Standby, &settings, Ok(())), Some(Event::StandbyCheck(Ok(()))));
    }

    /// A checker that finds nobody, as a standby.
    fn checker(settings: HealthSettings) -> (Checker, watch::Sender<Option<Role>>, mpsc::Receiver<Box<Told>>) {
        let (role, shown) = watch::channel(Some(Role::Standby));
        let (inbox, told) = Inbox::new();
        let checker = Checker {
            service: "db".parse().expect("a service's name"),
            node: NodeId::new("h1").expect("a node name"),
            settings,
            systemd: Arc::new(Fake::default()),
            http: Http::within_this_process(),
            user: Arc::default(),
            role: shown,
            inbox,
        };
        (checker, role, told)
    }

    #[tokio::test]
    async fn a_standby_that_is_not_asked_has_no_verdict() {
        let (checker, role, mut told) =
            checker(HealthSettings { timeout: Duration::from_millis(50), ..settings(1, 1) });
        let checker = tokio::spawn(checker.run());
        tokio::task::yield_now().await;
        role.send_replace(Some(Role::Active));
        let first = *told.recv().await.expect("it is checked");
        assert!(matches!(first, Told::Event(Event::ActiveCheck(Err(_)))), "{first:?}");
        checker.abort();
    }

    #[tokio::test]
    async fn a_command_for_which_no_user_is_left_has_failed() {
        let probe = Probe::Command { argv: vec!["/bin/true".to_owned()], user: None };
        let (checker, _role, _told) = checker(HealthSettings { probe, ..settings(1, 1) });
        let result = checker.probe(Role::Active).await.expect("a verdict");
        let why = result.expect_err("there is no user").to_string();
        assert!(why.starts_with("end units with DynamicUser=, or set user in [health]"), "{why}");
    }

    #[test]
    fn either_role_is_unhealthy_after_fall_failures_in_a_row() {
        for role in [Role::Active, Role::Standby] {
            let (settings, mut tally) = (settings(1, 2), Tally::default());
            assert_eq!(tally.count(role, &settings, failure()), None);
            assert_eq!(tally.count(role, &settings, failure()), Some(role.event(failure())));
        }
    }

    #[test]
    fn on_the_active_host_every_pass_counts() {
        let (settings, mut tally) = (settings(3, 2), Tally::default());
        assert_eq!(tally.count(Role::Active, &settings, Ok(())), Some(Event::ActiveCheck(Ok(()))));
    }

    #[test]
    fn nothing_is_checked_while_the_unit_changes_hands() {
        let checked: Vec<State> = State::ALL.into_iter().filter(|state| Role::of(*state).is_some()).collect();
        assert_eq!(checked, [State::NoStore, State::Standby, State::Confirming, State::Active]);
    }
}

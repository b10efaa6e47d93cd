//! Units that run to their end: health checks, and the oneshots that fence and unfence.

use std::{path::Path, time::Duration};

use tokio::time::{Instant, sleep};
use zbus::{Connection, Structure, Variant};

use super::{
    Systemd,
    check_user::{CheckUser, CheckUserError},
    confinement::{RunAs, check_confinement},
    error::BusError,
    interface::{MANAGER, MANAGER_PATH, SIGKILL},
    job::{JobEnd, JobOrder},
    link::{Setting, ask, bounded},
    properties::{Invocation, UnitState},
    start::why,
};
use crate::{
    bus,
    types::{ServiceName, UnitName},
};

/// How long it may take until nothing is left of a unit that is killed at its limit.
const KILL_LIMIT: Duration = Duration::from_secs(3);

/// How much later than systemd putexd enforces the limit of a check, should systemd not do it.
const OWN_LIMIT_LATER: Duration = Duration::from_millis(500);

/// How many checks may run. PID 1 has two match rules of its own for each, and the bus allows it 512.
pub const CHECKS: usize = 48;

/// The interval at which a unit is looked at that should come to its end.
const POLL: Duration = Duration::from_millis(100);

/// How many lines of a run the journal keeps; it only counts the others. journald multiplies this number by a factor that
/// depends on the space that is left to it: by 2 with 16 MiB, by 4 with 4 GiB, which is usual.
const LOG_LINES: u32 = 5;

/// A command that is run as a unit of its own, and judged by its exit status.
pub struct CheckCommand {
    /// The unit, a `.service` that nothing else uses. One run at a time: an older one is killed.
    pub unit: UnitName,
    /// Shown by `systemctl status`.
    pub description: String,
    /// The command. Its first word is an absolute path; `$NAME` and `%` are taken as they are.
    pub argv: Vec<String>,
    /// `NAME=value` each.
    pub environment: Vec<String>,
    /// Whom it runs as.
    pub user: RunAs,
    /// The time after which all of it is killed.
    pub timeout: Duration,
}

/// How a run ended.
#[derive(Debug, PartialEq, Eq)]
pub enum RunResult {
    /// The run succeeded.
    Passed,
    /// The run failed; why, as a clause in which "it" is the unit.
    Failed(String),
    /// The run was killed at its limit.
    TimedOut,
}

impl Systemd {
    /// A user for the check of a service that nothing else on this host has.
    pub async fn check_user(&self, service: &ServiceName) -> Result<CheckUser, CheckUserError> {
        self.check_users.take(service).await
    }

    /// Runs a command in a unit of its own and waits for its end. On `Err` the outcome is unknown; systemd kills the
    /// command at its limit all the same.
    ///
    /// It is run once more, less apart from the host, if systemd could not keep it apart: that is no failure of
    /// the service. A command may itself exit with such a status, and gains nothing by it, because it still runs as the
    /// same user.
    pub async fn run_check(&self, check: &CheckCommand) -> Result<RunResult, BusError> {
        let _place = self.checks.acquire().await;
        let deadline = Instant::now() + check.timeout + OWN_LIMIT_LATER;
        match self.run_apart(check, true, deadline).await? {
            (_, state) if state.main_exit.is_not_set_up() => {
                Ok(self.run_apart(check, false, deadline).await?.0)
            }
            (result, _) => Ok(result),
        }
    }

    async fn run_apart(
        &self,
        check: &CheckCommand,
        apart: bool,
        deadline: Instant,
    ) -> Result<(RunResult, UnitState), BusError> {
        let settings = settings(check, apart)?;
        let bus = self.bus().await?;
        let order = JobOrder::Transient(check.unit.as_str(), &settings, &bus);
        let mut outcome = self.carry_out(&order, None, deadline).await;
        let exists = "org.freedesktop.systemd1.UnitExists";
        if outcome.as_ref().is_err_and(|error| error.is_named(exists)) {
            // There is an older run: of a daemon that is gone, or one whose reference is not yet given back.
            self.end(&check.unit).await?;
            outcome = self.carry_out(&order, None, deadline).await;
        }
        self.judge(&check.unit, None, outcome?, deadline).await
    }

    /// A connection to the bus. systemd keeps loaded for it what it has a reference to, so that the end of a run can be read,
    /// until it is closed.
    async fn bus(&self) -> Result<Connection, BusError> {
        bounded(self.keeper.call_limit, bus::system()).await
    }

    async fn keep_loaded(&self, unit: &UnitName) -> Result<Connection, BusError> {
        let bus = self.bus().await?;
        let name = (unit.as_str(),);
        let kept = ask(&bus, MANAGER_PATH, MANAGER, "RefUnit", &name);
        bounded::<()>(self.keeper.call_limit, kept).await?;
        Ok(bus)
    }

    /// Starts a unit that comes to an end by itself, and waits for that end. A run that is under way is killed first, so
    /// that the result is that of a new run. At the limit the unit is stopped and killed.
    pub async fn run_unit_to_completion(
        &self,
        unit: &UnitName,
        limit: Duration,
    ) -> Result<RunResult, BusError> {
        let deadline = Instant::now() + limit;
        if self.state(unit).await?.may_run() {
            self.end(unit).await?;
        }
        // Without the bus a good end may be gone before it is read, and counts as none.
        let _kept = self.keep_loaded(unit).await;
        let before = self.state(unit).await?;
        if before.load_state != "loaded" {
            return Ok(RunResult::Failed(format!("it is {}", before.load_state)));
        }
        self.reset_failed(unit).await?;
        let order = JobOrder::Start(unit.as_str());
        let end = self.carry_out(&order, before.invocation, deadline).await?;
        let judged = self.judge(unit, before.invocation, end, deadline);
        Ok(judged.await?.0)
    }

    /// Stops and kills a unit until nothing of it is left, or [`KILL_LIMIT`] is over.
    async fn end(&self, unit: &UnitName) -> Result<(), BusError> {
        let deadline = Instant::now() + KILL_LIMIT;
        loop {
            // The kill ends the unit, and its effect is waited for. The stop only keeps the unit from coming back.
            let _ = self.kill(unit).await;
            let soon = deadline.min(Instant::now() + POLL);
            self.carry_out(&JobOrder::Stop(unit.as_str()), None, soon)
                .await?;
            let left = self.prove_dead(unit).await.is_err();
            if !left || Instant::now() >= deadline {
                self.reset_failed(unit).await?;
                return Ok(());
            }
        }
    }

    /// Waits for the end of the run that a job began, and tells how it ended.
    async fn judge(
        &self,
        unit: &UnitName,
        before: Option<Invocation>,
        end: JobEnd,
        deadline: Instant,
    ) -> Result<(RunResult, UnitState), BusError> {
        loop {
            let state = self.state(unit).await?;
            let is_new = state.is_new(before);
            // While a service that remains after exit is `running`, it has not come to its end: its start did not wait
            // for its process.
            let remains = state.active_state.is_started()
                && is_new
                && state.is_effect
                && state.sub_state != "running";
            let result = match &end {
                JobEnd::Ended(_) if remains => RunResult::Passed,
                JobEnd::Ended(job) if !state.may_run() => {
                    let unmet = self.unmet(unit, is_new).await?;
                    verdict(&state, is_new, job, &unmet)
                }
                JobEnd::Ended(_) if Instant::now() < deadline => {
                    sleep(POLL).await;
                    continue;
                }
                JobEnd::Ended(_) | JobEnd::StillQueued => {
                    self.end(unit).await?;
                    RunResult::TimedOut
                }
            };
            return Ok((result, state));
        }
    }
}

fn settings(check: &CheckCommand, apart: bool) -> Result<Vec<Setting>, BusError> {
    let program = check.argv.first().map_or("", String::as_str);
    let name = Path::new(program)
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let mut settings: Vec<Setting> = vec![
        ("Description", check.description.clone().into()),
        ("Type", "oneshot".into()),
        ("ExecStartEx", command(&check.user.command(&check.argv))?),
        ("Environment", check.environment.clone().into()),
        ("TimeoutStartUSec", micros(check.timeout)),
        ("TimeoutStopUSec", micros(KILL_LIMIT)),
        // Processes that a check leaves behind, or that are left at the limit, are killed without a SIGTERM before.
        ("KillMode", "control-group".into()),
        ("KillSignal", SIGKILL.into()),
        ("SendSIGKILL", true.into()),
        ("CollectMode", "inactive-or-failed".into()),
        // systemd unloads the unit as soon as it ends; the reference keeps it until its end was read.
        ("AddRef", true.into()),
        // systemd would take the name of the program that gives the command its user.
        ("SyslogIdentifier", name.into()),
        ("StandardInput", "null".into()),
        ("StandardOutput", "journal".into()),
        ("StandardError", "journal".into()),
        // No run is longer, so that one interval covers all of it.
        ("LogRateLimitIntervalUSec", micros(check.timeout)),
        ("LogRateLimitBurst", LOG_LINES.into()),
    ];
    settings.extend(check_confinement(&check.user, apart));
    Ok(settings)
}

/// The value of `ExecStartEx`: `a(sasas)` of path, arguments, flags.
fn command(argv: &[String]) -> Result<Variant<'static>, BusError> {
    let path = argv.first().cloned().unwrap_or_default();
    let flags = vec!["no-env-expand".to_owned()];
    let one: Structure<'static> = (path, argv.to_vec(), flags).into();
    let mut all = zbus::Array::new(one.signature());
    all.append(Variant::Structure(one))?;
    Ok(Variant::Array(all))
}

fn micros(span: Duration) -> Variant<'static> {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX).into()
}

fn verdict(state: &UnitState, is_new: bool, job: &str, unmet: &[String]) -> RunResult {
    // The unit is unloaded already, if nothing held it. Only the end of the job is known then, and the job of a oneshot ends with its
    // process.
    let has_passed = if is_new {
        state.result.as_deref() == Some("success")
    } else {
        unmet.is_empty() && job == "done" && state.load_state == "not-found"
    };
    let end = state.result.as_deref().filter(|_| is_new).unwrap_or(job);
    if has_passed {
        RunResult::Passed
    } else if end == "timeout" {
        RunResult::TimedOut
    } else {
        RunResult::Failed(why(state, false, job, unmet))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_the_signature_that_systemd_wants() {
        let argv = ["/bin/true".to_owned(), "$HOME".to_owned()];
        assert_eq!(
            command(&argv)
                .expect("a command")
                .value_signature()
                .to_string(),
            "a(sasas)"
        );
    }
}

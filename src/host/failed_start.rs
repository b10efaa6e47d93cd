//! What a start that failed may have left behind, of a service that can be active without a process.
//!
//! The rule is in `src/core/election/protocol.md`, "The proof". putexd and the guard both go by it, each with what it has read of the
//! unit itself.

/// The exit status with which systemd ends a process whose program it could not execute, from systemd.exec(5).
pub const EXIT_EXEC: i32 = 203;
/// The exit status with which systemd ends a process that it could not give its user.
pub const EXIT_USER: i32 = 217;
/// The exit status with which systemd ends a process that it could not give its namespaces.
const EXIT_NAMESPACE: i32 = 226;

/// How a command of a unit has ended in the unit's last run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// The code as waitid(2) has it; 1: the command has exited, 2: it was killed, 3: it dumped core, 0: it has not been
    /// run.
    pub code: i32,
    /// The exit status for code 1, else the number of the signal.
    pub status: i32,
}

impl Exit {
    /// Whether the command was run and has exited with 0. Other exit statuses that systemd takes for success do not
    /// count.
    #[must_use]
    pub fn has_succeeded(self) -> bool {
        self == Self { code: 1, status: 0 }
    }

    /// Whether systemd could not give the process its user, or its namespaces, so that its program was not run; or
    /// whether the program itself has ended as if that were so.
    #[must_use]
    pub fn is_not_set_up(self) -> bool {
        self.code == 1 && [EXIT_USER, EXIT_NAMESPACE].contains(&self.status)
    }

    /// Whether systemd could not run its program at all; or whether the program itself has ended as if that were so.
    #[must_use]
    pub fn is_not_run(self) -> bool {
        self.is_not_set_up() || self == Self { code: 1, status: EXIT_EXEC }
    }

    /// How the command ended, in words; `None` if it has not been run, or runs.
    #[must_use]
    pub fn in_words(self) -> Option<String> {
        let status = self.status;
        match self.code {
            1 if status == EXIT_EXEC => Some(format!(
                "exit status {status}: the program is not there, or the user that it runs as may not execute it"
            )),
            1 if status == EXIT_USER => Some(format!("exit status {status}: this host does not have the user")),
            1 if status == EXIT_NAMESPACE => {
                Some(format!("exit status {status}: systemd cannot give it a view of its own on the file systems"))
            }
            1 => Some(format!("exit status {status}")),
            2 => Some(format!("killed by signal {status}")),
            3 => Some(format!("dumped core by signal {status}")),
            _ => None,
        }
    }
}

/// What PID 1 says of a unit whose last run did not come to an orderly end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedStart {
    /// Whether it has `Type=oneshot`: it is active only when all of its commands have succeeded.
    pub is_oneshot: bool,
    /// How the commands of `ExecStartPre=`, `ExecStart=` and `ExecStartPost=` ended.
    pub starts: Vec<Exit>,
    /// Whether it has an `ExecStop=`, which is not run after a start that failed.
    pub has_stop: bool,
    /// How the commands of `ExecStopPost=` ended, which is run after a start that failed.
    pub stop_posts: Vec<Exit>,
    /// When it became active last, in microseconds of `CLOCK_MONOTONIC`; 0: never since systemd has it loaded.
    pub active_since: u64,
    /// When the lease's target became active, which is started before the unit; in microseconds, too, and 0: not known.
    pub lease_since: u64,
}

impl FailedStart {
    /// Whether nothing of the run is left once its control groups are empty: one of the two cases of "The proof" holds.
    #[must_use]
    pub fn has_left_nothing(&self) -> bool {
        self.is_undone() || self.is_unbegun()
    }

    /// Whether the unit was active under this lease; `false` if the time of the unit or of the lease is not known.
    #[must_use]
    pub fn was_active(&self) -> bool {
        self.active_since != 0 && self.lease_since != 0 && self.active_since >= self.lease_since
    }

    /// Case (1): all that an orderly stop would have run was run, and has succeeded.
    fn is_undone(&self) -> bool {
        !self.has_stop && !self.stop_posts.is_empty() && self.stop_posts.iter().all(|exit| exit.has_succeeded())
    }

    /// Case (2): no command of the start has succeeded in this lease. The unit has only one, because with two an earlier
    /// run could have begun what the last one says nothing of.
    fn is_unbegun(&self) -> bool {
        let may_have_been_active = self.active_since != 0 && self.active_since >= self.lease_since;
        self.is_oneshot && !may_have_been_active && matches!(self.starts[..], [start] if !start.has_succeeded())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Exit = Exit { code: 1, status: 0 };
    const BAD: Exit = Exit { code: 1, status: 2 };
    const NOT_RUN: Exit = Exit { code: 0, status: 0 };
    const KILLED: Exit = Exit { code: 2, status: 15 };

    fn single(start: Exit) -> FailedStart {
        FailedStart {
            is_oneshot: true,
            starts: vec![start],
            has_stop: true,
            stop_posts: Vec::new(),
            active_since: 0,
            lease_since: 10,
        }
    }

    #[test]
    fn the_only_command_that_failed_has_begun_nothing() {
        for start in [BAD, NOT_RUN, KILLED] {
            assert!(single(start).has_left_nothing(), "{start:?}");
        }
        assert!(!single(GOOD).has_left_nothing(), "its start was interrupted");
        assert!(FailedStart { active_since: 9, ..single(BAD) }.has_left_nothing(), "that was under another lease");
        assert!(!FailedStart { active_since: 10, ..single(BAD) }.has_left_nothing(), "it was active under this one");
        assert!(!FailedStart { active_since: 9, lease_since: 0, ..single(BAD) }.has_left_nothing(), "nobody knows");
        assert!(!FailedStart { is_oneshot: false, ..single(BAD) }.has_left_nothing(), "it is active once it is begun");
        for starts in [vec![GOOD, BAD], vec![BAD, NOT_RUN], Vec::new()] {
            assert!(!FailedStart { starts, ..single(BAD) }.has_left_nothing());
        }
    }

    #[test]
    fn whoever_was_not_seen_to_be_active_under_this_lease_was_not() {
        for (active_since, lease_since, was_active) in
            [(0, 0, false), (0, 10, false), (9, 10, false), (9, 0, false), (10, 10, true)]
        {
            let start = FailedStart { active_since, lease_since, ..single(NOT_RUN) };
            assert_eq!(start.was_active(), was_active, "{active_since} {lease_since}");
        }
    }

    #[test]
    fn what_was_undone_as_a_stop_undoes_it_is_gone() {
        let undone = FailedStart { has_stop: false, stop_posts: vec![GOOD], starts: vec![GOOD, BAD], ..single(BAD) };
        assert!(undone.has_left_nothing());
        assert!(FailedStart { active_since: 11, ..undone.clone() }.has_left_nothing(), "whenever it failed");
        assert!(!FailedStart { has_stop: true, ..undone.clone() }.has_left_nothing(), "a stop does more");
        for stop_posts in [vec![GOOD, BAD], vec![NOT_RUN], vec![KILLED], Vec::new()] {
            assert!(!FailedStart { stop_posts, ..undone.clone() }.has_left_nothing());
        }
    }
}

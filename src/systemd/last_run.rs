//! What the last run of a unit may have left behind that has no process.
//!
//! The rule is in `src/core/election/protocol.md`, "The proof". putexd and the guard both go by it, each with what it has read of the
//! unit itself.

use super::properties::Properties;

impl Properties {
    /// Whether systemd shows that nothing is left of a unit that can be active without a process, but for a mount, of which the kernel
    /// has to say that. `is_begun`: its start was begun, and systemd may have forgotten how that went. `lease_since`: when the lease's
    /// target, which is started before the unit, became active last, in microseconds of `CLOCK_MONOTONIC`; 0: not known.
    pub fn has_left_nothing(&self, is_begun: bool, lease_since: u64) -> bool {
        let state = self.state();
        let was_active = lease_since != 0 && self.active_since() >= lease_since;
        match self.kind() {
            _ if !state.active_state.is_stopped() => false,
            "mount" => true,
            "service" if !state.is_orderly() || self.has_ended_early() => {
                self.is_undone() || self.is_unbegun(lease_since)
            }
            "service" => !is_begun || self.is_forgiven() || was_active,
            _ => state.is_orderly(),
        }
    }

    /// Whether the last run has ended without having been active, though it may have begun something, and nobody has said
    /// since that nothing of it is left.
    fn has_ended_early(&self) -> bool {
        self.started_at() > self.active_since() && !self.is_forgiven()
    }

    /// Whether somebody has said since the last run that nothing of it is left, by having systemd forget the failure.
    fn is_forgiven(&self) -> bool {
        let at = |name| self.get::<u64>(name).unwrap_or(0);
        at("StateChangeTimestampMonotonic") > at("InactiveEnterTimestampMonotonic")
    }

    /// Case (1): all that an orderly stop would have run was run, and has succeeded. `ExecStop=` is not run after a start that failed.
    fn is_undone(&self) -> bool {
        let stop_posts = self.exits("ExecStopPost");
        self.exits("ExecStop").is_empty()
            && !stop_posts.is_empty()
            && stop_posts.iter().all(|exit| exit.has_succeeded())
    }

    /// Case (2): no command of the start has succeeded in this lease, without which a oneshot is not active. The unit has only one,
    /// because with two an earlier run could have begun what the last one says nothing of.
    fn is_unbegun(&self, lease_since: u64) -> bool {
        let starts = ["ExecStartPre", "ExecStart", "ExecStartPost"].map(|name| self.exits(name));
        let may_have_been_active = self.active_since() != 0 && self.active_since() >= lease_since;
        self.text("Type") == Some("oneshot")
            && !may_have_been_active
            && matches!(starts.concat()[..], [start] if !start.has_succeeded())
    }
}

#[cfg(test)]
mod tests {
    use zbus::Variant;

    use super::*;
    use crate::host::exit::Exit;
    use crate::systemd::properties::START_AT;

    const GOOD: Exit = Exit { code: 1, status: 0 };
    const BAD: Exit = Exit { code: 1, status: 2 };
    const NOT_RUN: Exit = Exit { code: 0, status: 0 };
    const KILLED: Exit = Exit {
        code: 2,
        status: 15,
    };

    /// A service whose last run has failed.
    struct Failed {
        kind: &'static str,
        starts: Vec<Exit>,
        has_stop: bool,
        stop_posts: Vec<Exit>,
        active_since: u64,
        lease_since: u64,
    }

    impl Failed {
        fn has_left_nothing(&self) -> bool {
            let commands = |exits: &[Exit]| {
                let command = |Exit { code, status }: &Exit| {
                    let times = (0_u64, 0_u64, 0_u64, 0_u64);
                    let (program, words) = ("/bin/a", vec!["a"]);
                    (
                        program, words, false, times.0, times.1, times.2, times.3, 0_u32, *code,
                        *status,
                    )
                };
                Variant::from(exits.iter().map(command).collect::<Vec<_>>())
            };
            let stop: &[Exit] = if self.has_stop { &[NOT_RUN] } else { &[] };
            Properties::of([
                ("Id", Variant::from("a.service")),
                ("Type", Variant::from(self.kind)),
                ("ActiveState", Variant::from("failed")),
                ("Result", Variant::from("exit-code")),
                ("ExecStart", commands(&self.starts)),
                ("ExecStop", commands(stop)),
                ("ExecStopPost", commands(&self.stop_posts)),
                (
                    "ActiveEnterTimestampMonotonic",
                    Variant::from(self.active_since),
                ),
            ])
            .has_left_nothing(false, self.lease_since)
        }
    }

    fn single(start: Exit) -> Failed {
        Failed {
            kind: "oneshot",
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
        let of = |active_since, lease_since, kind| Failed {
            kind,
            active_since,
            lease_since,
            ..single(BAD)
        };
        for (failed, proven, why) in [
            (single(GOOD), false, "its start was interrupted"),
            (of(9, 10, "oneshot"), true, "that was under another lease"),
            (of(10, 10, "oneshot"), false, "it was active under this one"),
            (of(9, 0, "oneshot"), false, "nobody knows"),
            (of(0, 10, "exec"), false, "it is active once it is begun"),
        ] {
            assert_eq!(failed.has_left_nothing(), proven, "{why}");
        }
        for starts in [vec![GOOD, BAD], vec![BAD, NOT_RUN], Vec::new()] {
            let failed = Failed {
                starts,
                ..single(BAD)
            };
            assert!(!failed.has_left_nothing());
        }
    }

    #[test]
    fn what_was_undone_as_a_stop_undoes_it_is_gone() {
        let of = |has_stop, stop_posts: &[Exit], active_since| Failed {
            has_stop,
            stop_posts: stop_posts.to_vec(),
            active_since,
            starts: vec![GOOD, BAD],
            ..single(BAD)
        };
        assert!(of(false, &[GOOD], 0).has_left_nothing());
        assert!(
            of(false, &[GOOD], 11).has_left_nothing(),
            "whenever it failed"
        );
        assert!(!of(true, &[GOOD], 0).has_left_nothing(), "a stop does more");
        for stop_posts in [&[GOOD, BAD][..], &[NOT_RUN], &[KILLED], &[]] {
            assert!(
                !of(false, stop_posts, 0).has_left_nothing(),
                "{stop_posts:?}"
            );
        }
    }

    #[test]
    fn what_has_no_process_is_gone_after_a_good_end_and_not_after_one_that_may_be_forgotten() {
        let of = |unit: &'static str, state, result, times: [u64; 4]| {
            let [started, active, ended, changed] = times;
            Properties::of([
                ("Id", Variant::from(unit)),
                ("ActiveState", Variant::from(state)),
                ("Result", Variant::from(result)),
                (START_AT, Variant::from(started)),
                ("ActiveEnterTimestampMonotonic", Variant::from(active)),
                ("InactiveEnterTimestampMonotonic", Variant::from(ended)),
                ("StateChangeTimestampMonotonic", Variant::from(changed)),
            ])
        };
        let (orderly, early) = ([11, 12, 20, 20], [11, 5, 20, 20]);
        for (unit, state, result, times, begun, proven) in [
            ("a.service", "active", "success", orderly, false, false),
            ("a.service", "inactive", "success", orderly, false, true),
            ("a.service", "inactive", "success", orderly, true, true),
            // Before the lease began, or never since systemd has it loaded.
            (
                "a.service",
                "inactive",
                "success",
                [8, 9, 20, 20],
                true,
                false,
            ),
            (
                "a.service",
                "inactive",
                "success",
                [8, 9, 20, 21],
                true,
                true,
            ),
            (
                "a.service",
                "inactive",
                "success",
                [0, 0, 0, 0],
                true,
                false,
            ),
            (
                "a.service",
                "inactive",
                "success",
                [0, 0, 0, 0],
                false,
                true,
            ),
            ("a.service", "inactive", "success", early, false, false),
            (
                "a.service",
                "inactive",
                "success",
                [11, 5, 20, 21],
                false,
                true,
            ),
            ("a.service", "failed", "exit-code", orderly, false, false),
            ("a.mount", "failed", "exit-code", orderly, true, true),
            ("a.mount", "active", "success", orderly, false, false),
            ("a.swap", "inactive", "success", orderly, false, true),
            ("a.swap", "failed", "exit-code", orderly, false, false),
        ] {
            let found = of(unit, state, result, times).has_left_nothing(begun, 10);
            assert_eq!(found, proven, "{unit} {state} {times:?} {begun}");
        }
    }
}

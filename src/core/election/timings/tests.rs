use super::*;

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn is_refused(timings: &Timings, why: &str) -> bool {
    timings
        .validate()
        .is_err_and(|refused| refused.text.contains(why))
}

#[test]
fn the_defaults_of_the_protocol_are_safe() {
    for (r, f, c) in [(1.0, 3, 1), (3.0, 3, 2), (1.0, 15, 1), (0.5, 4, 2)] {
        let timings = Timings::new(seconds(r), f, c);
        assert_eq!(timings.validate(), Ok(()), "R={r} F={f} C={c}");
    }
}

#[test]
fn a_stop_slower_than_the_confirmation_is_refused_with_the_numbers() {
    let timings = Timings {
        stop_budget: seconds(1.2),
        ..Timings::new(seconds(1.0), 3, 1)
    };
    let error = timings.validate().expect_err("the unit outlives the wait");
    let text = error.text;
    for part in [
        "set stop-budget to at most 1071ms, ",
        " for 4.2s after ",
        " after 4s",
    ] {
        assert!(text.contains(part), "{text} lacks {part}");
    }
}

#[test]
fn the_remedy_is_safe_when_followed() {
    let timings = Timings {
        stop_budget: seconds(1.2),
        ..Timings::new(seconds(1.0), 3, 1)
    };
    let remedy = timings.remedy();
    let milliseconds: u64 = remedy
        .split("at most ")
        .nth(1)
        .and_then(|rest| rest.split("ms").next())
        .and_then(|number| number.parse().ok())
        .expect("the remedy names a budget");
    let followed = Timings {
        stop_budget: Duration::from_millis(milliseconds),
        ..timings
    };
    assert_eq!(followed.validate(), Ok(()));
}

#[test]
fn the_numbers_are_those_of_the_protocol() {
    // R = 1 s, F = 3, C = 1, and so T = 3 s, m = 100 ms, S = 1 s, with ρ = 10⁻³ and ε = 20 ms.
    let timings = Timings::new(seconds(1.0), 3, 1);
    assert_eq!(
        (timings.margin, timings.stop_budget, timings.kill_reserve),
        (seconds(0.1), seconds(1.0), seconds(0.25))
    );
    assert_eq!(
        (timings.lease(), timings.confirm(), timings.hold()),
        (seconds(3.0), seconds(1.0), seconds(3.9))
    );
    assert_eq!(timings.deadline_after(), seconds(2.897));
    assert_eq!(timings.renew_after(), seconds(1.0));
    assert_eq!(timings.call_limit(), Duration::from_nanos(966_666_666));
    assert_eq!(timings.takeover_wait(Duration::ZERO), seconds(3.003));
    assert_eq!(timings.takeover_wait(seconds(10.0)), seconds(10.01));
    // 60 s · 1.001/0.999 + 20 ms, times 1.001, each rounded up.
    assert_eq!(
        timings.wait(seconds(60.0)),
        Duration::from_nanos(60_200_260_242)
    );
    let one_renewal = Timings::new(seconds(1.0), 1, 1);
    assert_eq!(one_renewal.renew_after(), seconds(0.4495));
    assert_eq!(Timings::default_margin(seconds(0.1)), seconds(0.025));
}

#[test]
fn short_leases_are_safe_as_they_come_and_the_shortest_are_warned_of() {
    let timings =
        |milliseconds, failures| Timings::new(Duration::from_millis(milliseconds), failures, 1);
    for (renew_interval, failures, is_warned_of) in [
        (200, 3, false),
        (100, 3, false),
        (50, 3, true),
        (20, 4, true),
    ] {
        let timings = timings(renew_interval, failures);
        assert_eq!(timings.validate(), Ok(()), "{renew_interval} ms");
        let warnings = timings.warnings();
        assert_eq!(
            !warnings.is_empty(),
            is_warned_of,
            "{renew_interval} ms: {warnings:?}"
        );
    }
    assert!(
        timings(50, 3).warnings()[0]
            .text
            .starts_with("set renew-interval to at least 100ms")
    );
    // The margin, 25 ms at the least, is more than a third of this lease.
    assert!(is_refused(
        &timings(20, 3),
        "lower margin, or raise renew-interval or failures: 25ms"
    ));
}

#[test]
fn what_is_exactly_safe_is_accepted_and_a_nanosecond_more_is_not() {
    let timings = |clock_error_ppm, budget_ns| Timings {
        stop_budget: Duration::from_nanos(budget_ns),
        clock_error_ppm,
        ..Timings::new(seconds(1.0), 3, 1)
    };
    // 3 s − 100 ms + S + 20 ms = 4 s; a clock's error multiplies the hold by 1.001/0.999.
    assert_eq!(timings(0, 1_080_000_000).validate(), Ok(()));
    assert!(is_refused(
        &timings(0, 1_080_000_001),
        "the unit may live for 4.1s after"
    ));
    assert_eq!(timings(1000, 1_072_047_952).validate(), Ok(()));
    assert!(is_refused(
        &timings(1000, 1_072_047_953),
        "the unit may live for 4.1s after"
    ));
    let minimal = Timings {
        confirmation: Confirmation::Minimal,
        ..timings(1000, 5_000_000_000)
    };
    assert_eq!(minimal.validate(), Ok(()));
}

#[test]
fn each_number_has_its_limit_and_may_reach_it() {
    let good = Timings {
        confirmation: Confirmation::Minimal,
        ..Timings::new(seconds(1.0), 3, 1)
    };
    let (day, tick) = (seconds(86_400.0), Duration::from_nanos(1));
    let hour = seconds(3600.0);
    let slow = Timings {
        renew_interval: hour,
        failures: 1000,
        ..good
    };
    for (at_limit, above) in [
        (
            slow,
            Timings {
                renew_interval: hour + tick,
                ..slow
            },
        ),
        (
            Timings {
                stop_budget: day,
                ..good
            },
            Timings {
                stop_budget: day + tick,
                ..good
            },
        ),
        (
            Timings {
                margin: day,
                ..slow
            },
            Timings {
                margin: day + tick,
                ..slow
            },
        ),
        (
            Timings {
                longest_hold: Some(day * 7),
                ..good
            },
            Timings {
                longest_hold: Some(day * 7 + tick),
                ..good
            },
        ),
        (
            Timings {
                failures: 1000,
                ..good
            },
            Timings {
                failures: 1001,
                ..good
            },
        ),
        (
            Timings {
                confirmations: 1000,
                ..good
            },
            Timings {
                confirmations: 1001,
                ..good
            },
        ),
        (
            Timings {
                clock_error_ppm: 50_000,
                ..good
            },
            Timings {
                clock_error_ppm: 50_001,
                ..good
            },
        ),
    ] {
        assert_eq!(at_limit.validate(), Ok(()));
        assert!(is_refused(&above, "is more than the limit"), "{above:?}");
    }
    for zero in [
        Timings {
            renew_interval: Duration::ZERO,
            ..good
        },
        Timings {
            failures: 0,
            ..good
        },
        Timings {
            stop_budget: Duration::ZERO,
            ..good
        },
    ] {
        assert!(is_refused(&zero, "must be greater than zero"), "{zero:?}");
    }
}

#[test]
fn a_third_of_the_lease_is_too_much_for_the_margin_and_the_whole_budget_for_sigkill() {
    let good = Timings {
        confirmation: Confirmation::Minimal,
        ..Timings::new(seconds(1.0), 3, 1)
    };
    let (tick, just_below) = (Duration::from_nanos(1), Duration::from_nanos(999_999_999));
    let wide = Timings {
        margin: seconds(1.0),
        ..good
    };
    assert!(is_refused(&wide, "lower margin, "));
    assert_eq!(
        Timings {
            margin: just_below,
            ..good
        }
        .validate(),
        Ok(())
    );
    for kill_reserve in [Duration::ZERO, seconds(1.0)] {
        let refused = Timings {
            kill_reserve,
            ..good
        };
        assert!(
            is_refused(
                &refused,
                "set kill-reserve above zero and below stop-budget = 1s, not to "
            ),
            "{kill_reserve:?}"
        );
    }
    for kill_reserve in [tick, just_below] {
        assert_eq!(
            Timings {
                kill_reserve,
                ..good
            }
            .validate(),
            Ok(())
        );
    }
}

#[test]
fn a_lease_rides_through_what_is_left_of_it_after_r_and_the_margin() {
    let usual = Timings::new(seconds(3.0), 6, 2);
    assert_eq!(usual.rides_through(), seconds(14.682));
    assert_eq!(
        Timings::new(seconds(1.0), 1, 1).rides_through(),
        Duration::ZERO
    );
    for (silence, failures) in [
        (0.0, 6),
        (14.6, 6),
        (14.7, 7),
        (17.6, 7),
        (17.7, 8),
        (1e9, 1000),
    ] {
        assert_eq!(
            usual.failures_to_ride_through(seconds(silence)),
            failures,
            "{silence}"
        );
    }
}

#[test]
fn a_short_time_for_sigkill_is_warned_of_with_the_one_that_fits() {
    let with = |kill_reserve| Timings {
        kill_reserve,
        ..Timings::new(seconds(3.0), 3, 2)
    };
    let short = with(seconds(0.001)).warnings();
    assert!(
        short.len() == 1
            && short[0]
                .text
                .starts_with("set kill-reserve to at least 100ms: "),
        "{short:?}"
    );
    assert_eq!(with(seconds(0.1)).warnings(), Vec::new());
    let small = Timings {
        stop_budget: seconds(0.2),
        ..with(seconds(0.04))
    }
    .warnings();
    assert!(
        small[0]
            .text
            .starts_with("set kill-reserve to at least 50ms: "),
        "{small:?}"
    );
}

#[test]
fn few_renewals_are_warned_of() {
    assert_eq!(Timings::new(seconds(1.0), 3, 1).warnings(), Vec::new());
    let few = Timings::new(seconds(1.0), 2, 1).warnings();
    assert!(
        few.len() == 1
            && few[0]
                .text
                .starts_with("set failures to at least 3: with 2"),
        "{few:?}"
    );
}

#[test]
fn a_remedy_that_leaves_no_time_for_the_stop_is_none() {
    let margin = |milliseconds| Timings {
        margin: Duration::from_millis(milliseconds),
        clock_error_ppm: 0,
        ..Timings::new(seconds(1.0), 3, 0)
    };
    assert!(
        margin(31)
            .remedy()
            .starts_with("set stop-budget to at most 10ms"),
        "{}",
        margin(31).remedy()
    );
    assert_eq!(margin(30).remedy(), "raise confirmations or margin");
}

#[test]
fn wait_is_never_shorter_than_the_confirmation_or_the_published_hold() {
    let timings = Timings::new(seconds(1.0), 3, 1);
    assert_eq!(timings.wait(Duration::ZERO), seconds(4.004));
    assert!(timings.wait(seconds(60.0)) > seconds(60.0));
    let minimal = Timings {
        confirmation: Confirmation::Minimal,
        ..timings
    };
    assert!(minimal.wait(minimal.hold()) < seconds(4.0));
    assert!(minimal.wait(minimal.hold()) > minimal.hold());
}

#[test]
fn without_confirmations_it_is_these_that_are_wrong() {
    let none = Timings::new(Duration::from_secs(3), 3, 0);
    let wrong = none.validate().expect_err("it has no stop budget");
    assert_eq!(wrong.text, "confirmations must be greater than zero");
}

use super::*;
use crate::{
    facts::stop_causes::{lapse_causes, release_causes},
    types::{NodeId, OnStopFailure},
};

#[test]
fn a_wait_says_its_cause_and_what_is_left() {
    let at = |milliseconds| At(milliseconds);
    for (until, former, expected) in [
        (
            15_849,
            None,
            "starts in 14.8s: nothing shows that the last holder's unit is dead",
        ),
        (
            10_200,
            Some(("h3".to_owned(), Seen::Renewed(at(1000)))),
            "starts in 9.2s: h3 has not renewed for 0s, and its unit may live",
        ),
        (1000, None, "starts at once"),
    ] {
        let until = at(until);
        assert_eq!(
            wait(&Wait::Entitlement { until, former }, at(1000)),
            expected
        );
    }
    let holder = |runs, seen, take_at| {
        let holder = "h2".to_owned();
        let holder = Wait::Holder {
            holder,
            runs,
            seen,
            take_at,
        };
        wait(&holder, at(1400))
    };
    let (renewed, found) = (Seen::Renewed(at(1000)), Seen::Found(at(1000)));
    assert_eq!(
        holder(true, renewed, Some(at(4000))),
        "h2 holds the lock and last renewed 0.4s ago; it may be taken in 2.6s"
    );
    assert_eq!(
        holder(false, found, None),
        "h2 has claimed the lock, found 0.4s ago"
    );
    let renewal = Wait::Renewal {
        since: at(1000),
        deadline: at(16_200),
    };
    assert_eq!(
        wait(&renewal, at(12_700)),
        "last renewed 11.7s ago; stops in 3.5s unless the store takes a renewal before"
    );
    let store = |holder| wait(&Wait::Store { holder }, at(1400));
    let waits = "waits for the store, and starts nothing before";
    assert_eq!(store(None), waits);
    assert_eq!(
        store(Some(("h2".to_owned(), renewed))),
        format!("{waits}; h2 held the lock and last renewed 0.4s ago")
    );
    let pause = |failures| {
        let because = "it did".to_owned();
        let left = Duration::from_millis(4200);
        bar_and_pause(&Bar::BackOff { because, failures }, Some(left))
    };
    assert_eq!(
        pause(3),
        "tries again in 4.2s, at once after \"systemctl reload putexd\"; failed 3 times in a row: it did"
    );
    assert!(
        !pause(0).contains("reload"),
        "an operator asked for this one"
    );
}

#[test]
fn a_stop_says_what_happens_if_it_is_not_proven() {
    let proof = |cause, on_stop_failure, now| {
        let until = At(4000);
        let proof = Wait::Proof {
            cause,
            until,
            on_stop_failure,
        };
        wait(&proof, At(now))
    };
    let order = ReleaseCause::SteppedDown(StepDown::Order(Order {
        what: Asked::StepDown(None),
        word: Word::new("", "kernel update", 0, None),
    }));
    assert_eq!(
        proof(StopCause::Release(order), OnStopFailure::Alert, 1000),
        "waits until the unit is proven dead: step-down: kernel update"
    );
    let lapse = |now| {
        let cause = StopCause::Lapse(LapseCause::NotRenewed);
        proof(cause, OnStopFailure::RebootForce, now)
    };
    assert_eq!(
        lapse(1000),
        "waits until the unit is proven dead, or this host is rebooted in 3.0s: the lease was not renewed in time"
    );
    assert!(lapse(5000).contains("rebooted at once"));
}

const MANUAL: &str = include_str!("../../../packaging/usr/share/man/man8/putexd.8");

#[test]
fn the_manual_names_everything_that_stops_a_unit_and_nothing_else() {
    let (_, section) = MANUAL
        .split_once(".Sh WHAT STOPS A UNIT\n")
        .expect("the manual has the section");
    let (section, _) = section.split_once("\n.Sh ").expect("others follow");
    let quoted = |line: &str| {
        line.strip_prefix(".It \\(lq")
            .and_then(|line| line.strip_suffix("\\(rq"))
            .map(|line| line.replace("\\-", "-"))
    };
    let mut named: Vec<String> = section.lines().filter_map(quoted).collect();
    let word = Word::new("OPERATOR", "REASON", 0, None);
    let asked = Order {
        what: Asked::StepDown(NodeId::new("HOST").ok()),
        word: word.clone(),
    };
    let others = [
        StepDown::Order(asked),
        StepDown::Stopped(word),
        StepDown::UnitsChanged,
    ];
    let mut known: Vec<String> = release_causes()
        .into_iter()
        .chain(others.map(ReleaseCause::SteppedDown))
        .map(|cause| {
            let text = cause.to_string().replace("7.0s", "AGE");
            text.replace(retirement(Retirement::Stopped), "REASON")
        })
        .collect();
    known.extend(lapse_causes().iter().map(LapseCause::to_string));
    known.sort();
    known.dedup();
    named.sort();
    assert_eq!(named, known);
}

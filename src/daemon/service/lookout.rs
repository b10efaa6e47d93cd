//! The tasks that look at the units of a service, and for work of theirs outside of their control groups.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

use super::{Inbox, Looked, Message, UnitControl};
use crate::{
    config::ServiceSettings,
    daemon::local::timers::pace,
    election::ObservedUnit,
    systemd::{NotDead, OutsideWork},
};

/// Shortest time between two looks at the units. A look costs PID 1 about 10 ms, and a start or a stop, which waits for PID
/// 1 as well, is announced by several changes.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Shortest time between two looks for processes outside of their control groups.
const STRAY_INTERVAL: Duration = Duration::from_millis(500);
/// How old the table of parents and children may be, where this is more than half of R. So `/proc` is read at most so
/// often, however many services ask.
const FAMILY_AGE: Duration = Duration::from_millis(500);
/// The longest time between two looks at a unit without a hint is this for each unit of the host, where that is more than
/// R. So four units a second are asked for in all, however many there are.
const SHARE_OF_LOOKS: Duration = Duration::from_millis(250);
/// The same for looks for processes outside of their control groups, and for the age of the table of parents and children,
/// because `/proc` grows with the units.
pub const SHARE_OF_STRAYS: Duration = Duration::from_millis(10);
const SHARE_OF_FAMILIES: Duration = Duration::from_millis(5);

/// Tells what the units do when one of them may have changed, and every R where the host has few units.
pub async fn watch_units(
    units: UnitControl,
    settings: watch::Receiver<Arc<ServiceSettings>>,
    epoch: Arc<AtomicU64>,
    inbox: Inbox,
    looked: watch::Sender<bool>,
) {
    let mut changes = units.changes();
    let mut was_alive = false;
    loop {
        let look_again = Instant::now() + LOOK_INTERVAL;
        let before = epoch.load(Ordering::Acquire);
        let observed = units.look().await;
        let alive = observed.main == Some(ObservedUnit::Alive);
        // After the unit's end it is looked for once more, so that processes which were told of before and are gone are
        // told of as gone.
        let is_worth_a_look = was_alive || !observed.alive.is_empty();
        let host_stops = was_alive && !alive && units.systemd.is_stopping().await == Ok(true);
        was_alive = alive;
        let all_dead = matches!(observed.all, Some(ObservedUnit::Dead { .. }));
        let is_settled = observed.is_settled;
        let look = Looked {
            epoch: before,
            units: observed,
            host_stops,
        };
        inbox.send(Message::Looked(look)).await;
        looked.send_replace(is_worth_a_look);
        let renew_interval = settings.borrow().timings.renew_interval;
        let interval = if is_settled {
            pace(&*units.systemd, &units.main, renew_interval, SHARE_OF_LOOKS)
        } else {
            renew_interval
        };
        units.changed(&mut changes, all_dead, interval).await;
        sleep_until(look_again).await;
        units.rest(renew_interval).await;
    }
}

/// Tells which work of the units is outside of their control groups, when that changes: processes that have left them, and
/// clients that have their work done elsewhere. It looks after each look that
/// has shown running units, and every R where the host has few units. It has a task of its own, so that nothing waits for
/// it.
///
/// A process is told of only when it was seen twice, because a command that a shell runs by su may be gone a moment later.
/// The proof of a stop includes it from the first time on.
pub async fn watch_outside(
    units: UnitControl,
    settings: watch::Receiver<Arc<ServiceSettings>>,
    mut looked: watch::Receiver<bool>,
    inbox: Inbox,
) {
    let (mut before, mut reported): (Vec<OutsideWork>, Vec<OutsideWork>) = (Vec::new(), Vec::new());
    let age = || {
        let half = settings.borrow().timings.renew_interval / 2;
        pace(
            &*units.systemd,
            &units.main,
            half.max(FAMILY_AGE),
            SHARE_OF_FAMILIES,
        )
    };
    loop {
        let strays = if before
            .iter()
            .all(|work| reported.iter().any(|other| other.is(work)))
        {
            let interval = settings.borrow().timings.renew_interval;
            let interval = pace(&*units.systemd, &units.main, interval, SHARE_OF_STRAYS);
            let runs = *looked.borrow_and_update();
            tokio::select! {
                // The order is fixed and not random, so that a simulation can be repeated exactly.
                biased;
                seen = looked.changed() => match seen {
                    Ok(()) if *looked.borrow() => {}
                    Ok(()) => continue,
                    Err(_) => return,
                },
                () = sleep(interval), if runs => {}
            }
            units.find_strays(age()).await
        } else {
            units.find_strays_anew(age()).await
        };
        let clients = units.find_clients(age()).await.map_err(NotDead::from);
        // What is not known now is looked for again.
        if let Ok((strays, clients)) = strays.and_then(|strays| Ok((strays, clients?))) {
            let left = strays.into_iter().map(OutsideWork::left);
            let found: Vec<OutsideWork> = left.chain(clients).collect();
            let seen_twice = |work: &&OutsideWork| before.iter().any(|other| other.is(work));
            let lasting: Vec<OutsideWork> = found.iter().filter(seen_twice).cloned().collect();
            before = found;
            units.remember_client(&lasting);
            if lasting != reported {
                reported.clone_from(&lasting);
                inbox.send(Message::Outside(lasting)).await;
            }
        }
        sleep(STRAY_INTERVAL).await;
    }
}

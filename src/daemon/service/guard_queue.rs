//! The task that carries out a service's requests to the guard one after the other, because an `arm` must never overtake a
//! `close`.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, watch},
    time::sleep,
};

use super::{
    Host,
    inbox::{Inbox, Message},
};
use crate::{
    config::{BOUND_UNITS_LIMIT, CONTAINS_LIMIT, ServiceSettings},
    daemon::units::UnitControl,
    election::{Event, GuardRequest, Remembered, Timings},
    guard_client::{
        GuardClient, GuardError,
        frame::{CGROUP_LIMIT, Command, Lease, ListedLease, MEMBER_LIMIT},
    },
    host::processes::Members,
    types::{Extension, Instance, Key, NodeId, ServiceName},
};

/// Time before the guard is asked again whether it is there.
const RETRY: Duration = Duration::from_millis(100);

// The bound units and the unit itself have to fit into one lease.
const _: () = assert!(BOUND_UNITS_LIMIT < MEMBER_LIMIT);
// So have their control groups and those of the contained units, each counted twice, for a unit that moves from one group
// to another.
const _: () = assert!(2 * (1 + BOUND_UNITS_LIMIT + CONTAINS_LIMIT) <= CGROUP_LIMIT);

/// Carries out the requests, and adds what the election does not know: units and control groups.
pub struct GuardQueue {
    pub service: ServiceName,
    pub node: NodeId,
    pub guard: GuardClient,
    pub units: UnitControl,
    pub settings: watch::Receiver<Arc<ServiceSettings>>,
    /// The lease as the guard has it, as far as known. `closing` is set for a lapsed one, too.
    pub armed: Option<Lease>,
    /// The instance of the lease that was disarmed last.
    pub forgotten: Option<Instance>,
}

impl GuardQueue {
    /// Serves until the service is gone. The futures of rare work are boxed, because they would otherwise take memory while
    /// the queue is idle.
    pub async fn run(mut self, mut requests: mpsc::Receiver<Box<GuardRequest>>, inbox: Inbox) {
        let mut covered = self.units.covered();
        // The putexd before may not have told the guard of what was seen outside.
        covered.mark_changed();
        let mut link = self.guard.link();
        loop {
            let event = tokio::select! {
                biased;
                Ok(()) = link.changed() => {
                    if *link.borrow_and_update() {
                        // If the guard is gone again, it is asked when it comes back.
                        let _ = Box::pin(self.listed()).await;
                    }
                    continue;
                }
                request = requests.recv() => {
                    let Some(request) = request else { return };
                    Some(Box::pin(self.serve(*request)).await)
                }
                Ok(()) = covered.changed() => Box::pin(self.rearm()).await,
            };
            let Some(event) = event else { continue };
            let gone = event == Event::GuardDown;
            inbox.send(Message::Event(event)).await;
            if gone {
                Box::pin(self.wait_for_guard(&mut requests)).await;
                inbox.send(Message::Event(Event::GuardUp)).await;
            }
        }
    }

    /// Waits until the guard is back, and drops the requests that were queued meanwhile: the election repeats them.
    async fn wait_for_guard(&mut self, requests: &mut mpsc::Receiver<Box<GuardRequest>>) {
        let listed = loop {
            if let Ok(listed) = self.listed().await {
                break listed;
            }
            sleep(RETRY).await;
        };
        self.armed = listed.as_ref().map(armed);
        while requests.try_recv().is_ok() {}
    }

    /// The lease of the service as the guard has it.
    ///
    /// A guard that could not keep a `disarm` on the disk leaves the lease to its successor, which would refuse the next
    /// `arm`. So the lease is disarmed again here. Its units were proven dead behind a closed gate, and none could be
    /// started under that lease since.
    async fn listed(&self) -> Result<Option<ListedLease>, GuardError> {
        let listed = self.guard.lease_of(&self.service).await?;
        let kept = listed.as_ref().map(|listed| listed.lease.terms.instance);
        let Some(instance) = kept.filter(|kept| self.forgotten == Some(*kept)) else {
            return Ok(listed);
        };
        self.guard.disarm(&self.service, instance).await?;
        Ok(None)
    }

    async fn serve(&mut self, request: GuardRequest) -> Event {
        match self.ask(request).await {
            Ok(()) => Event::GuardDone(request),
            Err(GuardError::Refused(reason)) => Event::GuardRefused(request, reason),
            Err(GuardError::Gone) => Event::GuardDown,
        }
    }

    async fn ask(&mut self, request: GuardRequest) -> Result<(), GuardError> {
        match request {
            GuardRequest::Arm(terms) => {
                let known = self.units.known().await.map_err(|error| {
                    GuardError::Refused(format!("the units' control groups are not known: {error}"))
                })?;
                let lease = Lease {
                    service: self.service.clone(),
                    node: self.node.clone(),
                    terms,
                    units: known.iter().map(|unit| unit.name.clone()).collect(),
                    cgroups: self.units.groups().into_iter().collect(),
                    inactive: known
                        .iter()
                        .filter(|unit| unit.is_effect())
                        .map(|unit| unit.name.clone())
                        .collect(),
                    begun: self.units.begin(&known),
                    contains: self.units.contains.clone(),
                    outside: self.units.name_outside(Members::new()),
                    on_stop_failure: self.settings.borrow().on_stop_failure,
                    closing: false,
                };
                self.guard.arm(lease.clone()).await?;
                self.armed = Some(lease);
            }
            GuardRequest::Extend(terms) => {
                let extend = Command::Extend {
                    service: self.service.clone(),
                    instance: terms.instance,
                    extension: Extension::of(&terms),
                };
                self.guard.order(extend).await?;
                if let Some(lease) = &mut self.armed {
                    lease.terms = terms;
                }
            }
            GuardRequest::Shorten(terms) => {
                let open = self
                    .armed
                    .as_ref()
                    .filter(|lease| !lease.closing && lease.terms.instance == terms.instance);
                let Some(mut lease) = open.cloned() else {
                    return Err(GuardError::Refused(
                        "there is no open lease of this tenure".to_owned(),
                    ));
                };
                lease.terms = terms;
                let arm = Command::Arm {
                    lease: lease.clone(),
                    shorter: true,
                };
                self.guard.order(arm).await?;
                self.armed = Some(lease);
            }
            GuardRequest::Close(instance) => {
                self.guard.close(&self.service, instance).await?;
                if let Some(lease) = &mut self.armed {
                    lease.closing = true;
                }
            }
            GuardRequest::Disarm(instance) => {
                self.guard.disarm(&self.service, instance).await?;
                (self.armed, self.forgotten) = (None, Some(instance));
            }
        }
        Ok(())
    }

    /// Tells the guard where the processes of the units are by now, and which starts have come to their end. An open lease is
    /// armed anew with the same deadline. To a closed one the groups are added that it does not cover yet: nothing is ever taken
    /// away from it. If the guard refuses the control groups of an open lease it does not cover the units, so the lease has to
    /// be released (H5). In any other case a guard that refuses asks for more proof than it has to. `None`: there is nothing
    /// that the election has to know.
    async fn rearm(&mut self) -> Option<Event> {
        let mut lease = self.armed.clone()?;
        let covered: BTreeSet<String> = lease.cgroups.iter().cloned().collect();
        let (mut groups, mut known) = (self.units.groups(), Members::new());
        let count = lease.begun.len();
        if lease.closing {
            groups.extend(covered.iter().cloned());
            known.clone_from(&lease.outside);
        } else {
            lease.begun.retain(|unit| self.units.has_begun(unit));
        }
        let outside = self.units.name_outside(known);
        let has_moved = groups != covered;
        if !has_moved && lease.begun.len() == count && lease.outside == outside {
            return None;
        }
        (lease.cgroups, lease.outside) = (groups.into_iter().collect(), outside);
        let is_needed = has_moved && !lease.closing;
        match self.guard.arm(lease.clone()).await {
            Ok(()) => {
                self.armed = Some(lease);
                None
            }
            Err(GuardError::Refused(reason)) if is_needed => {
                let arm = GuardRequest::Arm(lease.terms);
                Some(Event::GuardRefused(arm, reason))
            }
            Err(GuardError::Refused(reason)) => {
                tracing::warn!(
                    "{}: the guard refuses a change of its lease: {reason}, ignoring",
                    self.service
                );
                None
            }
            Err(GuardError::Gone) => Some(Event::GuardDown),
        }
    }
}

/// A listed lease as the queue keeps it: a lapsed lease counts as closed.
pub fn armed(listed: &ListedLease) -> Lease {
    Lease {
        closing: listed.lease.closing || listed.lapsed,
        ..listed.lease.clone()
    }
}

/// What the election is told of a lease.
pub fn remembered(ListedLease { lease, lapsed, .. }: &ListedLease) -> Remembered {
    Remembered {
        terms: lease.terms,
        closing: lease.closing,
        lapsed: *lapsed,
        units: lease.units.clone(),
    }
}

/// What controls the units of a service: also those that only a lease of a former putexd covers, with the control groups that its
/// units have left. And whether that lease covers other units than the settings name.
pub fn control(
    host: &Host,
    settings: &ServiceSettings,
    armed: Option<&Lease>,
) -> (UnitControl, bool) {
    let groups = armed
        .iter()
        .flat_map(|lease| lease.cgroups.iter().cloned())
        .collect();
    let is_changed = armed.is_some_and(|lease| {
        lease.units.len() != settings.units().count()
            || settings.units().any(|unit| !lease.units.contains(unit))
    });
    let mut former = armed.map(|lease| lease.units.clone()).unwrap_or_default();
    former.retain(|unit| !settings.units().any(|other| other == unit));
    let units = UnitControl::new(
        settings,
        former,
        groups,
        Arc::clone(&host.systemd),
        Arc::clone(&host.machine),
    );
    units.take_over(armed.map_or(&[], |lease| &lease.begun));
    (units, is_changed)
}

/// Settings for a lease whose service has no file any more. `None`: the lease names no unit. The lease does not name the
/// lock: `last_held` is the key and the timings that this host has kept, if it has. Without them the record is left to age.
pub(crate) fn without_file(
    lease: &Lease,
    last_held: Option<(Key, Option<Timings>)>,
) -> Option<ServiceSettings> {
    let (unit, bound) = lease.units.split_first()?;
    let mut bound = bound.to_vec();
    bound.sort();
    let (key, timings) = match last_held {
        Some((key, timings)) => (key, timings),
        None => (Key::new(lease.service.as_str()).ok()?, None),
    };
    let units = (unit.clone(), bound);
    Some(ServiceSettings::without_file(
        lease.service.clone(),
        units,
        key,
        timings,
        lease.on_stop_failure,
    ))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};

    use super::*;
    use crate::daemon::fake::{Fake, lease, settings};
    use crate::daemon::local::machine::ThisMachine;
    use crate::guard_client::frame::{GuardState, Outcome, Reply, Request};
    use crate::types::LeaseTerms;

    const REFUSED: &str = "it has its reasons";

    /// A guard that reports in `asked` each lease that the queue arms or disarms. It grants or refuses every `arm`, and
    /// lists `listed`.
    async fn serve(
        stream: DuplexStream,
        refuses: bool,
        listed: Option<Lease>,
        asked: mpsc::UnboundedSender<Lease>,
    ) {
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        while let Ok(1..) = stream.read_line(&mut line).await {
            let Request { id, command, .. } = serde_json::from_str(&line).expect("a request");
            line.clear();
            let result = match command {
                Command::Arm { lease, .. } => {
                    asked.send(lease).expect("the test waits for it");
                    if refuses {
                        Outcome::Refused {
                            reason: REFUSED.to_owned(),
                        }
                    } else {
                        Outcome::Done
                    }
                }
                Command::Disarm { instance, .. } => {
                    let terms = LeaseTerms {
                        instance,
                        ..lease(true).terms
                    };
                    asked
                        .send(Lease {
                            terms,
                            ..lease(true)
                        })
                        .expect("the test waits for it");
                    Outcome::Done
                }
                Command::List(_)
                | Command::CheckUnmounted { .. }
                | Command::Extend { .. }
                | Command::Close { .. } => {
                    let leases = listed
                        .iter()
                        .map(|lease| ListedLease {
                            lease: lease.clone(),
                            lapsed: true,
                            stopped: false,
                        })
                        .collect();
                    Outcome::Leases(GuardState {
                        leases,
                        ..GuardState::default()
                    })
                }
            };
            let mut reply = serde_json::to_vec(&Reply { id, result }).expect("a reply");
            reply.push(b'\n');
            stream.write_all(&reply).await.expect("putexd reads");
        }
    }

    /// A queue whose guard has `armed`, and whose units are in `groups` now. The receiver gets what the queue asks of its
    /// guard.
    async fn guard_queue(
        armed: Lease,
        groups: &[&str],
        refuses: bool,
    ) -> (GuardQueue, mpsc::UnboundedReceiver<Lease>) {
        queue_of(armed, None, groups, refuses).await
    }

    async fn queue_of(
        armed: Lease,
        listed: Option<Lease>,
        groups: &[&str],
        refuses: bool,
    ) -> (GuardQueue, mpsc::UnboundedReceiver<Lease>) {
        let (asking, asked) = mpsc::unbounded_channel();
        let guard = GuardClient::served_by(Duration::from_secs(5), move |far| {
            serve(far, refuses, listed.clone(), asking.clone())
        })
        .await;
        let groups = groups.iter().map(|&group| group.to_owned()).collect();
        let machine = Arc::new(ThisMachine::new(Path::new("/nowhere")));
        let units = UnitControl::new(
            &settings(),
            Vec::new(),
            groups,
            Arc::new(Fake::default()),
            machine,
        );
        let (service, node) = (armed.service.clone(), armed.node.clone());
        let settings = watch::channel(Arc::new(settings())).1;
        (
            GuardQueue {
                service,
                node,
                guard,
                units,
                settings,
                armed: Some(armed),
                forgotten: None,
            },
            asked,
        )
    }

    #[tokio::test]
    async fn an_open_lease_covers_what_the_units_have_and_a_closed_one_that_as_well() {
        for (closing, groups, sent) in [
            (false, &["/b", "/c"][..], Some(&["/b", "/c"][..])),
            (false, &["/a", "/b"], None),
            (true, &["/b", "/c"], Some(&["/a", "/b", "/c"])),
            (true, &["/b"], None),
        ] {
            let (mut guard_queue, mut asked) = guard_queue(lease(closing), groups, false).await;
            for _ in 0..2 {
                assert_eq!(guard_queue.rearm().await, None);
            }
            let wanted = sent.map(|sent| Lease {
                cgroups: sent.iter().map(ToString::to_string).collect(),
                ..lease(closing)
            });
            assert_eq!(asked.try_recv().ok(), wanted, "{closing} {groups:?}");
            asked.try_recv().expect_err("it is told once");
            assert_eq!(guard_queue.armed, wanted.or(Some(lease(closing))));
        }
    }

    #[tokio::test]
    async fn a_refusal_ends_an_open_lease_alone() {
        let (mut open, _asked) = guard_queue(lease(false), &["/c"], true).await;
        let arm = GuardRequest::Arm(lease(false).terms);
        let refused = Event::GuardRefused(arm, REFUSED.to_owned());
        assert_eq!(open.rearm().await, Some(refused));
        let (mut closed, _asked) = guard_queue(lease(true), &["/c"], true).await;
        assert_eq!(closed.rearm().await, None);
        assert_eq!(
            closed.armed,
            Some(lease(true)),
            "it is told again at the next change"
        );
        closed.armed = None;
        assert_eq!(closed.rearm().await, None, "nothing is armed");
    }

    #[tokio::test]
    async fn an_open_lease_alone_learns_that_a_start_has_come_to_its_end() {
        for (closing, refuses, is_sent) in [
            (false, false, true),
            (false, true, true),
            (true, false, false),
        ] {
            let begun = Lease {
                begun: vec![settings().unit],
                ..lease(closing)
            };
            let (mut guard_queue, mut asked) =
                guard_queue(begun.clone(), &["/a", "/b"], refuses).await;
            guard_queue.units.take_over(&begun.begun);
            assert_eq!(guard_queue.rearm().await, None);
            asked.try_recv().expect_err("it is not at its end");
            guard_queue.units.main_is_up();
            assert_eq!(guard_queue.rearm().await, None, "a refusal ends no lease");
            assert_eq!(
                asked.try_recv().ok(),
                is_sent.then(|| lease(closing)),
                "{closing} {refuses}"
            );
            let wanted = if is_sent && !refuses {
                lease(closing)
            } else {
                begun
            };
            assert_eq!(guard_queue.armed, Some(wanted));
        }
    }

    #[tokio::test]
    async fn a_guard_that_has_not_kept_what_it_was_asked_to_forget_is_asked_again() {
        for (forgotten, sent) in [
            (Some(Instance(1)), true),
            (Some(Instance(2)), false),
            (None, false),
        ] {
            let (mut guard_queue, mut asked) =
                queue_of(lease(true), Some(lease(true)), &[], false).await;
            guard_queue.forgotten = forgotten;
            let listed = guard_queue.listed().await.expect("an answer");
            assert_eq!(
                (listed.is_none(), asked.try_recv().is_ok()),
                (sent, sent),
                "{forgotten:?}"
            );
        }
    }

    #[test]
    fn a_lease_that_has_lapsed_is_closed() {
        for (closing, lapsed) in [(false, false), (false, true), (true, false), (true, true)] {
            let listed = ListedLease {
                lease: lease(closing),
                lapsed,
                stopped: false,
            };
            assert_eq!(armed(&listed), lease(closing || lapsed));
        }
    }
}

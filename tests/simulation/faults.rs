//! The faults of a scene: what each does when it begins, and when it is over.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use putexd::{
    daemon::service::{OperatorRequest, ServiceOrder},
    election::{self, Asked, Memory, Record, Registration, Standing, Timings, Word},
    facts::Retirement,
    store::{Link as StoreLink, Snapshot, Store as _},
    types::{Holder, Incarnation, Instance, Key, Revision, Value},
};

use crate::{
    guard::Life,
    memory_store::{Backup, MemoryStore},
    scene::{Fault, HostFault, HostScene, Kind, StoreFault, UnitFault, WireFault, span},
    world::{FENCING, World},
};

/// The lease and the hold of a record that somebody has made short.
const SHORT: Duration = Duration::from_millis(100);

impl World {
    /// What the holder is to do, by this host if it is not that.
    fn ask(&mut self, h: usize, what: Asked, word: Word) {
        let (answer, _) = tokio::sync::oneshot::channel();
        let order = election::Order { what, word };
        self.order(
            h,
            ServiceOrder::Request(OperatorRequest::Ask(order), answer),
        );
    }

    pub fn strike(&mut self, fault: Fault) {
        let Fault {
            host, kind, lasts, ..
        } = fault;
        if host.is_some_and(|h| !self.hosts[h].powered) {
            self.note(host, &format!("no FAULT {}: the host is off", kind.word()));
            return;
        }
        self.note(host, &format!("FAULT {} {}", kind.word(), span(lasts)));
        match (kind, host.unwrap_or_default()) {
            (Kind::Wire(kind), h) => self.strike_wire(h, kind, lasts),
            (Kind::Host(kind), h) => self.strike_host(h, kind, lasts),
            (Kind::Unit(kind), h) => self.strike_unit(h, kind, lasts),
            (Kind::Store(kind), _) => self.strike_store(kind, lasts),
        }
    }

    fn strike_host(&mut self, h: usize, kind: HostFault, lasts: Duration) {
        match kind {
            // Assumption (c): guard and putexd are not both gone while a unit runs.
            HostFault::PauseDaemon | HostFault::KillDaemon if !self.is_guarded(h) => {}
            HostFault::PauseDaemon => {
                self.pause_daemon(h, true);
                self.later(h, lasts, move |world| world.pause_daemon(h, false));
            }
            HostFault::KillDaemon => {
                self.kill_daemon(h);
                self.on_host(h, lasts, move |world| {
                    world.note(Some(h), "putexd starts");
                    world.start_daemon(h);
                });
            }
            HostFault::Forget => self.hosts[h].memory = Memory::default(),
            HostFault::Freeze => {
                let HostScene {
                    boot_rate,
                    raw_rate,
                    ..
                } = self.hosts[h].scene;
                self.freeze(h, boot_rate, raw_rate);
                self.later(h, lasts, move |world| world.thaw(h));
            }
            HostFault::Suspend => {
                self.freeze(h, self.hosts[h].scene.boot_rate, 0);
                self.later(h, lasts, move |world| world.thaw(h));
            }
            HostFault::StopClocks => {
                self.freeze(h, 0, 0);
                self.later(h, lasts, move |world| world.thaw(h));
            }
            HostFault::PowerLoss => {
                self.power_off(h);
                self.after(lasts, move |world| world.power_on(h));
            }
            HostFault::CutAndGoBack => {
                self.copy_and_go_back(lasts);
                self.strike_wire(h, WireFault::Cut, lasts);
            }
            HostFault::FreezeAndGoBack => {
                self.copy_and_go_back(lasts);
                self.strike_host(h, HostFault::Freeze, lasts);
            }
            HostFault::KillGuard => self.kill_guard(h),
            HostFault::HangGuard => {
                self.hang_guard(h);
                self.on_host(h, lasts, move |world| world.unhang_guard(h));
            }
            HostFault::StepDown => {
                let word = Word {
                    reason: "the operator asked".to_owned(),
                    until: None,
                    ..self.word_of(h, lasts)
                };
                self.ask(h, Asked::StepDown(None), word);
            }
            HostFault::Stop => {
                let (answer, _) = tokio::sync::oneshot::channel();
                let request = OperatorRequest::Stop(self.word_of(h, lasts));
                self.order(h, ServiceOrder::Request(request, answer));
            }
            HostFault::Start => {
                let (answer, _) = tokio::sync::oneshot::channel();
                let request = OperatorRequest::Start("root".to_owned());
                self.order(h, ServiceOrder::Request(request, answer));
            }
            HostFault::Pause => self.ask(h, Asked::Pause, self.word_of(h, lasts)),
            HostFault::Resume => self.ask(h, Asked::Resume, self.word_of(h, lasts)),
            HostFault::Retire => {
                self.hosts[h].retired = true;
                self.order(h, ServiceOrder::Retire(Retirement::Stopped));
                self.after(lasts, move |world| world.take_up(h));
            }
            HostFault::Reload => {
                let host = &mut self.hosts[h];
                host.timings = (host.timings + 1) % self.palette.len();
                let settings = self.settings(h);
                self.order(h, ServiceOrder::Reconfigure(Arc::new(settings)));
            }
            HostFault::WallForward | HostFault::WallBack => {
                self.wall_was_wrong = true;
                let by = i64::try_from(lasts.as_millis()).expect("short");
                self.hosts[h].wall_offset_ms += if kind == HostFault::WallForward {
                    by
                } else {
                    -by
                };
            }
        }
    }

    fn is_guarded(&self, h: usize) -> bool {
        let guard = &self.hosts[h].guard;
        guard.life == Life::Up || guard.covered || !self.hosts[h].unit.alive
    }

    fn strike_wire(&mut self, h: usize, kind: WireFault, lasts: Duration) {
        let stale_until = self.now() + lasts;
        let wire = &mut self.hosts[h].wire;
        match kind {
            WireFault::LagReads => {
                let replica = MemoryStore::new(lasts);
                replica.restore(self.store.backup());
                wire.replica = Some(replica);
                self.stale_until = self.stale_until.max(stale_until);
            }
            WireFault::Disconnect => {
                wire.link
                    .send_replace(StoreLink::lost("the connection is lost"));
            }
            WireFault::Cut => {
                (wire.loses_requests, wire.loses_answers, wire.deaf) = (true, true, true)
            }
            WireFault::LoseRequests => wire.loses_requests = true,
            WireFault::LoseAnswers => wire.loses_answers = true,
            WireFault::HoldWrites => wire.holds_writes = lasts,
            WireFault::HoldAnswers => wire.holds_answers = lasts,
            WireFault::Deafen => wire.deaf = true,
        }
        self.after(lasts, move |world| world.hosts[h].wire.heal(kind));
    }

    fn strike_unit(&mut self, h: usize, kind: UnitFault, lasts: Duration) {
        let scene = self.hosts[h].scene.clone();
        let host = &mut self.hosts[h];
        match kind {
            UnitFault::CrashUnit => self.unit_crashes(h),
            UnitFault::MoveUnit => host.unit.next_slice += 1,
            UnitFault::RunStray => self.run_stray(h),
            UnitFault::Misconfigure => {
                self.misconfigure(h, true);
                self.after(lasts, move |world| world.misconfigure(h, false));
            }
            UnitFault::StartByHand => self.start_by_hand(h, lasts),
            UnitFault::StopByHand => drop(self.stop_unit(h)),
            UnitFault::LoseBus => {
                host.bus_up = false;
                self.after(lasts, move |world| world.hosts[h].bus_up = true);
            }
            UnitFault::SlowBus => {
                host.bus_latency = lasts / 10;
                self.after(lasts, move |world| {
                    world.hosts[h].bus_latency = Duration::ZERO
                });
            }
            UnitFault::CrowdBus => {
                host.pid1.crowd = lasts / 2;
                self.after(lasts, move |world| {
                    world.hosts[h].pid1.crowd = Duration::ZERO
                });
            }
            UnitFault::HangPid1 => {
                host.pid1.hangs = true;
                self.later(h, lasts, move |world| world.pid1_goes_on(h));
            }
            UnitFault::FailStarts => {
                host.starts_fail = true;
                self.after(lasts, move |world| world.hosts[h].starts_fail = false);
            }
            UnitFault::SlowStarts => {
                host.start_takes = lasts;
                self.after(lasts, move |world| {
                    world.hosts[h].start_takes = scene.start_takes
                });
            }
            UnitFault::SlowStops => {
                host.stop_takes = Some(lasts);
                self.after(lasts, move |world| {
                    world.hosts[h].stop_takes = scene.stop_takes
                });
            }
            UnitFault::IgnoreSigterm => {
                host.stop_takes = None;
                self.after(lasts, move |world| {
                    world.hosts[h].stop_takes = scene.stop_takes
                });
            }
            UnitFault::IgnoreSigkill => {
                host.ignores_sigkill = true;
                self.after(lasts, move |world| world.heed_sigkill(h));
            }
            UnitFault::LeaveProcesses => {
                host.leaves = lasts;
                self.after(lasts, move |world| world.hosts[h].leaves = Duration::ZERO);
            }
            UnitFault::Sicken => {
                host.healthy = false;
                self.after(lasts, move |world| world.hosts[h].healthy = true);
            }
            UnitFault::HangChecks => {
                host.checks_hang = true;
                self.after(lasts, move |world| world.hosts[h].checks_hang = false);
            }
            UnitFault::SlowFencing => {
                host.fence_takes = lasts;
                self.after(lasts, move |world| world.hosts[h].fence_takes = FENCING);
            }
            UnitFault::FailFencing => {
                host.fence_works = false;
                self.after(lasts, move |world| world.hosts[h].fence_works = true);
            }
        }
    }

    fn strike_store(&mut self, kind: StoreFault, lasts: Duration) {
        let (copy, key) = (self.store.backup(), self.key.clone());
        match kind {
            StoreFault::Wipe | StoreFault::WipeAnew => {
                self.made_anew += 1;
                self.store.wipe(kind == StoreFault::WipeAnew);
            }
            StoreFault::RollBack => self.after(lasts, |world| world.go_back(copy)),
            StoreFault::Restore => self.after(lasts, |world| world.make_anew(copy)),
            StoreFault::RollBackToProven
            | StoreFault::RestoreProven
            | StoreFault::BringBackProven => match self.proven.clone() {
                Some(proven) if kind == StoreFault::RollBackToProven => self.go_back(proven),
                Some(proven) if kind == StoreFault::RestoreProven => self.make_anew(proven),
                Some(proven) => self.store.bring_back(&key, &proven),
                None => {}
            },
            StoreFault::RepeatProven => {
                if let Some(value) = self.proven.as_ref().and_then(|proven| proven.latest(&key)) {
                    self.store.put(&key, value);
                }
            }
            StoreFault::Delete => self.store.delete(&key),
            StoreFault::Purge => self.store.purge(&key),
            StoreFault::Blank => _ = self.store.put(&key, Value::default()),
            StoreFault::Overwrite => {
                _ = self.store.put(
                    &key,
                    Record::new(Holder::decode(b"elsewhere"), None).encode(),
                );
            }
            StoreFault::ForgeProven => self.forge(|replaced, record| {
                _ = std::mem::take(&mut record.holder);
                if let Some(details) = &mut record.details {
                    (details.standing, details.prev) =
                        (Standing::Proven, Some((replaced, Some(details.instance))));
                    details.write.0 ^= 1;
                }
            }),
            StoreFault::ForgeShortLease => self.forge(|_, record| {
                if let Some(details) = &mut record.details {
                    (details.lease, details.hold) = (SHORT, SHORT);
                }
            }),
            StoreFault::NameOtherKey => self.name_other_key(lasts),
            StoreFault::KeepBothWrites => {
                self.keeps_both_writes = true;
                self.after(lasts, |world| world.keeps_both_writes = false);
            }
            StoreFault::KeepLateWrites => {
                self.keeps_late_writes = true;
                self.after(lasts, |world| world.keeps_late_writes = false);
            }
            StoreFault::StaleReads => {
                self.store.read_from(Some(copy));
                self.stale_until = self.stale_until.max(self.now() + lasts);
                self.after(lasts, |world| world.store.read_from(None));
            }
        }
        self.lock_was_lost |= kind != StoreFault::StaleReads;
    }

    /// A word that is over after `lasts`, by the wall clock of host `h`.
    fn word_of(&self, h: usize, lasts: Duration) -> Word {
        let at = self.wall(h);
        Word::new(
            "root",
            "the operator asked",
            at.as_secs(),
            Some((at + lasts).as_secs()),
        )
    }

    fn go_back(&mut self, copy: Backup) {
        self.note(None, "goes back to the copy");
        self.store.restore(copy);
    }

    fn make_anew(&mut self, copy: Backup) {
        self.note(None, "is made anew from the copy");
        self.made_anew += 1;
        self.store.make_anew(copy);
    }

    /// Somebody without the key for seals writes the lock's record again, with changes.
    fn forge(&mut self, change: impl FnOnce(Revision, &mut Record)) {
        let Some(entry) = self.latest(&self.key).and_then(|latest| latest.entry) else {
            return;
        };
        let Some(value) = entry.value else { return };
        let mut record = Record::decode(&value);
        change(entry.revision, &mut record);
        self.store.put(&self.key, record.encode());
    }

    /// The unit's entry names another key, and later what it named before.
    fn name_other_key(&mut self, lasts: Duration) {
        let entry = Key::of_unit(None, &self.unit);
        let before = self
            .latest(&entry)
            .and_then(|latest| latest.entry)
            .and_then(|entry| entry.value);
        let other = Registration {
            key: Key::new("other").expect("a key"),
            former: Vec::new(),
        };
        self.store.put(&entry, other.encode(&self.unit));
        self.after(lasts, move |world| match before {
            Some(value) => _ = world.store.put(&entry, value),
            None => world.store.purge(&entry),
        });
    }

    fn latest(&self, key: &Key) -> Option<Snapshot> {
        self.store.read(key, None).now_or_never()?.ok()
    }

    /// The store goes back to its present content later, and does not say so. The protocol promises to cope with that if all
    /// that is lost, except renewals, is older than the gap that counts as watching: a host that saw nothing of it was away.
    fn copy_and_go_back(&mut self, lasts: Duration) {
        let gap = |timings: &Timings| {
            timings
                .watch_gap()
                .mul_f64(1_000_000.0 / f64::from(1_000_000 - timings.clock_error_ppm))
        };
        let gap = self.palette.iter().map(gap).max().unwrap_or_default() + Duration::from_millis(1);
        let (copy, copied, taken, went_back) =
            (self.store.backup(), self.held(), self.now(), self.went_back);
        let Some(settles) = lasts.checked_sub(gap) else {
            return;
        };
        self.after(settles, move |world| {
            let settled = world.held();
            world.after(gap, move |world| {
                let (Some(copied), Some(settled), Some(held)) = (copied, settled, world.held())
                else {
                    return;
                };
                let same_store =
                    copied.0 == settled.0 && settled.0 == held.0 && world.went_back == went_back;
                let is_settled = settled.1 > copied.1 && settled.2 == held.2;
                if same_store && is_settled && world.stale_until <= taken {
                    (world.went_back, world.lock_was_lost) = (went_back + 1, true);
                    world.go_back(copy);
                }
            });
        });
    }

    /// The incarnation of the store, and revision and instance of the lock's record. `None`: nobody holds the lock.
    fn held(&self) -> Option<(Incarnation, Revision, Instance)> {
        let latest = self.latest(&self.key)?;
        let entry = latest.entry?;
        let record = Record::decode(&entry.value?);
        let instance = record.instance().filter(|_| record.is_held())?;
        Some((latest.incarnation, entry.revision, instance))
    }

    /// Ends all faults.
    pub fn calm(&mut self) {
        self.store.read_from(None);
        (self.keeps_both_writes, self.keeps_late_writes) = (false, false);
        for h in 0..self.hosts.len() {
            self.power_on(h);
            self.thaw(h);
            self.unhang_guard(h);
            self.pause_daemon(h, false);
            self.start_daemon(h);
            self.take_up(h);
            self.pid1_goes_on(h);
            self.misconfigure(h, false);
            self.heed_sigkill(h);
            let host = &mut self.hosts[h];
            for kind in WireFault::ALL {
                host.wire.heal(*kind);
            }
            (host.bus_up, host.healthy, host.fence_works) = (true, true, true);
            (host.checks_hang, host.fence_takes) = (false, FENCING);
            (host.starts_fail, host.leaves) = (false, Duration::ZERO);
            (host.bus_latency, host.pid1.crowd) = (Duration::ZERO, Duration::ZERO);
            (host.start_takes, host.stop_takes) = (host.scene.start_takes, host.scene.stop_takes);
        }
    }
}

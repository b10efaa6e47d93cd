use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::{net::UnixListener, process::ExitStatusExt as _},
    process::Command,
};

use super::*;
use crate::{
    host::processes,
    types::{FencingToken, Instance, LeaseTerms, NodeId, OnStopFailure, Revision, WriteId},
};

const RESERVE: Duration = Duration::from_secs(2);

fn db() -> ServiceName {
    ServiceName::new("db").expect("a name")
}

/// A control group that is a folder of the test, a socket of PID 1 that nobody answers on, and a lease that is past its
/// time for SIGKILL.
struct Bench {
    folder: tempfile::TempDir,
    systemd: UnixListener,
}

impl Bench {
    fn new(events: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let group = folder.path().join("a.service");
        fs::create_dir(&group).expect("a folder");
        for directory in [folder.path(), &group] {
            fs::write(directory.join("cgroup.procs"), "").expect("a file");
        }
        fs::write(group.join("cgroup.kill"), "").expect("a file");
        let systemd = UnixListener::bind(folder.path().join("systemd")).expect("a socket");
        let bench = Self { folder, systemd };
        bench.set(events);
        bench
    }

    fn set(&self, events: &str) {
        fs::write(self.folder.path().join("a.service/cgroup.events"), events).expect("a file");
    }

    fn wait_for_a_call(&self, enforcer: &Enforcer) {
        self.systemd.set_nonblocking(true).expect("can be set");
        wait_until(enforcer, || self.systemd.accept().is_ok());
    }

    fn killed(&self) -> bool {
        fs::read_to_string(self.folder.path().join("a.service/cgroup.kill"))
            .is_ok_and(|text| text == "1")
    }

    fn enforcer(&self) -> Enforcer {
        let hierarchy = Arc::new(Hierarchy::at(self.folder.path()));
        Enforcer::start(hierarchy, self.folder.path().join("systemd")).expect("threads")
    }

    fn begin(&self) -> Enforcer {
        let enforcer = self.enforcer();
        enforcer.begin(Self::lease("a.service"));
        enforcer
    }

    fn lease(group: &str) -> Lease {
        Lease {
            service: db(),
            node: NodeId::new("h1").expect("a name"),
            terms: LeaseTerms {
                instance: Instance(1),
                write: WriteId(1),
                revision: Revision(1),
                token: FencingToken(1),
                deadline: Time::default(),
                stop_budget: RESERVE,
                kill_reserve: RESERVE,
            },
            units: Vec::new(),
            cgroups: vec![format!("/{group}")],
            inactive: Vec::new(),
            begun: Vec::new(),
            contains: Vec::new(),
            outside: [].into(),
            on_stop_failure: OnStopFailure::Alert,
            closing: false,
        }
    }
}

/// A PID 1 that confirms every call. Returns the number of calls in each connection.
fn obedient(systemd: UnixListener) -> Arc<Mutex<Vec<usize>>> {
    let stops = Arc::new(Mutex::new(Vec::new()));
    let counted = Arc::clone(&stops);
    thread::spawn(move || {
        for mut stream in systemd.incoming().flatten() {
            let mut hello = Vec::new();
            while !hello.ends_with(b"BEGIN\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).expect("it says hello");
                hello.extend(byte);
            }
            stream
                .write_all(b"OK 0123456789abcdef0123456789abcdef\r\n")
                .expect("it listens");
            counted.lock().expect("a list").push(0);
            let mut head = [0_u8; 16];
            while stream.read_exact(&mut head).is_ok() {
                let number = |at: usize| {
                    u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
                };
                let rest = number(12).next_multiple_of(8) + number(4);
                let mut body = vec![0; usize::try_from(rest).expect("a length")];
                stream.read_exact(&mut body).expect("the rest");
                // A method return with the path of a job. Its fields are the serial number of the call and the type of the body.
                let mut answer = vec![
                    b'l', 2, 0, 1, 6, 0, 0, 0, 1, 0, 0, 0, 15, 0, 0, 0, 5, 1, b'u', 0,
                ];
                answer.extend(&head[8..12]);
                answer.extend([8, 1, b'g', 0, 1, b'o', 0, 0]);
                answer.extend([1, 0, 0, 0, b'/', 0]);
                // A caller whose time is over asks again over another connection.
                if stream.write_all(&answer).is_err() {
                    break;
                }
                if let Some(stops) = counted.lock().expect("a list").last_mut() {
                    *stops += 1;
                }
            }
        }
    });
    stops
}

/// Looks again and again, as the main loop does.
fn wait_until(enforcer: &Enforcer, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while {
        enforcer.look(|| ());
        !holds()
    } {
        assert!(Instant::now() < end, "waited in vain");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn whoever_is_late_asks_for_a_stop_only_when_the_units_are_dead_or_half_of_k_is_over() {
    let bench = Bench::new("populated 1\n");
    let begun = Instant::now();
    let enforcer = bench.begin();
    bench.wait_for_a_call(&enforcer);
    let asked = begun.elapsed();
    assert!(asked >= RESERVE / 2, "their ExecStop= would run: {asked:?}");
    assert!(
        asked < RESERVE * 3 / 2,
        "systemd is not to be kept waiting: {asked:?}"
    );
    assert!(bench.killed() && !enforcer.is(&db(), Case::is_stopped));
}

#[test]
fn only_what_is_known_to_be_empty_is_stopped() {
    let bench = Bench::new("no such line\n");
    let enforcer = bench.begin();
    bench.wait_for_a_call(&enforcer);
    assert!(!enforcer.is(&db(), Case::is_stopped), "nobody knows");
    bench.set("populated 1\n");
    wait_until(&enforcer, || bench.killed());
    assert!(!enforcer.is(&db(), Case::is_stopped));
    bench.set("populated 0\n");
    wait_until(&enforcer, || enforcer.is(&db(), Case::is_stopped));
    bench.set("populated 1\n");
    wait_until(&enforcer, || !enforcer.is(&db(), Case::is_stopped));
}

#[test]
fn the_dead_are_proven_once_systemd_has_taken_on_their_stop_and_for_as_long_as_they_are_dead() {
    let bench = Bench::new("populated 0\n");
    let socket = bench.folder.path().join("systemd");
    fs::remove_file(&socket).expect("removed");
    let enforcer = bench.begin();
    wait_until(&enforcer, || enforcer.is(&db(), Case::is_stopped));
    assert!(
        !enforcer.is(&db(), Case::is_proven),
        "systemd may be in the middle of a start"
    );
    let _stops = obedient(UnixListener::bind(&socket).expect("a socket"));
    wait_until(&enforcer, || enforcer.is(&db(), Case::is_proven));
    bench.set("populated 1\n");
    wait_until(&enforcer, || !enforcer.is(&db(), Case::is_proven));
}

#[test]
fn what_is_outside_of_the_groups_is_killed_and_has_to_be_dead() {
    let bench = Bench::new("populated 0\n");
    let [mut left, mut other] = [(), ()].map(|()| {
        let mut sleep = Command::new("sleep");
        sleep.arg("1000").spawn().expect("it runs")
    });
    let mut lease = Bench::lease("a.service");
    for (process, later) in [(&left, 0), (&other, 1)] {
        let pid = i32::try_from(process.id()).expect("a number");
        let found = processes::with_pid(pid).expect("/proc can be read");
        let began = found.expect("it runs").began;
        // The number of the other one was that of a process which has ended.
        lease.outside.insert(pid, began + later);
    }
    let enforcer = bench.enforcer();
    enforcer.begin(lease);
    wait_until(&enforcer, || enforcer.is(&db(), Case::is_stopped));
    let ended = left.try_wait().expect("it is ours");
    assert_eq!(ended.and_then(|ended| ended.signal()), Some(9));
    assert_eq!(other.try_wait().expect("it is ours"), None);
    other.kill().expect("it runs");
    other.wait().expect("it is ours");
}

#[test]
fn systemd_stops_many_units_over_few_connections() {
    const MANY: usize = 300;
    let bench = Bench::new("populated 1\n");
    let enforcer = bench.enforcer();
    let stops = obedient(bench.systemd.try_clone().expect("a socket"));
    // Every second lease has lapsed just now. The others are late, and dead already.
    let services: Vec<ServiceName> = (0..MANY)
        .map(|number| {
            let mut lease = Bench::lease("gone.service");
            lease.service = ServiceName::new(&format!("s{number}")).expect("a name");
            if number % 2 == 0 {
                (lease.terms.deadline, lease.terms.stop_budget) =
                    (clock::now(), Duration::from_secs(600));
            }
            let service = lease.service.clone();
            enforcer.begin(lease);
            service
        })
        .collect();
    let is_asked = |service: &ServiceName| enforcer.is(service, Case::is_asked);
    wait_until(&enforcer, || services.iter().all(is_asked));
    // The calls are counted once they are answered.
    let counted = || stops.lock().expect("a list").iter().sum::<usize>();
    wait_until(&enforcer, || counted() >= MANY);
    assert_eq!(counted(), MANY, "each is asked for once");
    let stops = stops.lock().expect("a list");
    assert!(stops.len() < MANY / 10, "{stops:?}");
}

#[test]
fn an_enforcement_that_has_ended_is_forgotten() {
    let bench = Bench::new("populated 0\n");
    let enforcer = bench.begin();
    wait_until(&enforcer, || enforcer.is(&db(), Case::is_stopped));
    wait_until(&enforcer, || enforcer.stopped() == [db()]);
    enforcer.end(&db());
    bench.set("populated 1\n");
    thread::sleep(WATCH_INTERVAL * 2);
    assert!(enforcer.look(|| ()).is_empty() && enforcer.look_at().is_none());
    assert!(!bench.killed(), "a disarmed lease kills nothing");
    assert!(enforcer.stopped().is_empty());
}

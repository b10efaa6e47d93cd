//! What putexd serves to machines: the metrics, and the leases, over HTTP; and the checks by HTTP and TCP.

#[path = "support/net_process.rs"]
mod net_process;

use std::{
    collections::BTreeSet,
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::Mutex,
    time::{Duration, Instant},
};

use putexd::{
    election::{State, WriteResult},
    facts::{LockState, ServiceState, TimingsState, Word, alarm::AlarmKind},
    frames::Role,
    guard_client::{GuardClient, frame::Lease, grant},
    host::clock,
    http::{CheckError, Http, Target},
    metrics::{Answers, HostFacts, Metrics, Sources},
    types::{
        FencingToken, Instance, LeaseTerms, NodeId, OnStopFailure, Revision, ServiceName, Time,
        WriteId,
    },
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::watch;

const SOON: Duration = Duration::from_secs(20);

struct Bench {
    server: Http,
    address: SocketAddr,
    metrics: Metrics,
    leases: tempfile::TempDir,
}

/// A server on a free port. It must be called within a runtime, which the server does not need any more afterwards.
fn serve() -> Bench {
    let bench = idle();
    bench.server.listen(Some(bench.address));
    bench
}

fn idle() -> Bench {
    // No other test of this process may take the port before the server has it.
    static TAKEN: Mutex<BTreeSet<SocketAddr>> = Mutex::new(BTreeSet::new());
    let address = loop {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = free.local_addr().expect("its address");
        if TAKEN.lock().expect("nobody panics").insert(address) {
            break address;
        }
    };
    let (metrics, leases) = (Metrics::default(), tempfile::tempdir().expect("a folder"));
    let answers = Answers::new(Sources {
        node: NodeId::new("h1").expect("a node's name"),
        leases: leases.path().to_owned(),
        metrics: metrics.clone(),
        guard: GuardClient::new(&leases.path().join("no-guard"), Duration::from_millis(100)),
        host: Box::new(|| HostFacts {
            store_silent: Duration::from_millis(1500),
            drained: true,
            alarms: vec![
                AlarmKind::ClockJump,
                AlarmKind::CheckFailed,
                AlarmKind::ClockJump,
                AlarmKind::CheckFailed,
            ],
        }),
    });
    let server = Http::over(answers, |_| {
        net_process::start(env!("CARGO_BIN_EXE_putex-net"), Role::Http)
    });
    Bench {
        server,
        address,
        metrics,
        leases,
    }
}

impl Bench {
    /// Connects as soon as the server listens.
    fn connect(&self) -> TcpStream {
        let end = Instant::now() + SOON;
        loop {
            match TcpStream::connect(self.address) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(SOON)).expect("a time limit");
                    return stream;
                }
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What the server answers to these bytes.
    fn say(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).expect("it is sent");
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    fn get(&self, path: &str) -> String {
        self.say(&format!("GET {path} HTTP/1.1\r\nHost: h1\r\n\r\n"))
    }

    fn grant(&self, service: &str, deadline: Time) {
        fs::write(
            self.leases.path().join(service),
            grant::render(&lease(service, deadline)),
        )
        .expect("writes");
    }

    /// What the service says is shown while this is there.
    fn service(&self, name: &str, said: ServiceState) -> watch::Sender<ServiceState> {
        let (status, shown) = watch::channel(ServiceState {
            service: name.to_owned(),
            ..said
        });
        let name = ServiceName::new(name).expect("a service's name");
        self.metrics.show(&name, shown);
        status
    }
}

fn lease(service: &str, deadline: Time) -> Lease {
    Lease {
        service: ServiceName::new(service).expect("a service's name"),
        node: NodeId::new("h1").expect("a node's name"),
        terms: LeaseTerms {
            instance: Instance(1),
            write: WriteId(2),
            revision: Revision(3),
            token: FencingToken(42),
            deadline,
            stop_budget: Duration::from_secs(4),
            kill_reserve: Duration::from_secs(1),
        },
        units: Vec::new(),
        cgroups: Vec::new(),
        inactive: Vec::new(),
        begun: Vec::new(),
        contains: Vec::new(),
        outside: [].into(),
        on_stop_failure: OnStopFailure::Alert,
        closing: false,
    }
}

fn active() -> ServiceState {
    ServiceState {
        state: Some(State::Active),
        serves: Some(true),
        paused: Some(Word::default()),
        lock: Some(LockState {
            holder: Some("h1".to_owned()),
            ..LockState::default()
        }),
        timings: Some(TimingsState {
            lease_ms: 9000,
            ..TimingsState::default()
        }),
        ..ServiceState::default()
    }
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

/// The runtime is entered, but runs nothing: the server must need nothing of it.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

#[test]
fn a_lease_is_shown_for_as_long_as_the_grant_lasts_even_if_nothing_else_runs() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let bench = serve();
    bench.grant("db", clock::now().plus(Duration::from_secs(3600)));
    bench.grant("old", clock::now());
    fs::write(bench.leases.path().join("torn"), "# 1").expect("writes");

    let answer = bench.get("/lease/db");
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n")
            && answer.contains("content-type: application/json"),
        "{answer}"
    );
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    let printed: serde_json::Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(
        (&printed["service"], &printed["node"], &printed["token"]),
        (&"db".into(), &"h1".into(), &42.into())
    );
    assert!(
        printed["left_ms"]
            .as_u64()
            .is_some_and(|left| (3_500_000..=3_600_000).contains(&left)),
        "{printed}"
    );

    for (service, reason) in [
        ("web", "this host does not hold the lease"),
        ("old", "its lease has passed its deadline"),
        ("torn", "its grant has no valid deadline"),
    ] {
        let answer = bench.get(&format!("/lease/{service}"));
        assert!(
            status(&answer) == "503" && answer.contains(&format!("\"reason\":\"{reason}\"")),
            "{answer}"
        );
    }
    // As HAProxy (HTTP/1.0 without Host, by OPTIONS unless another method is set), nginx and others ask.
    for (request, wanted, has_body) in [
        ("OPTIONS /lease/db HTTP/1.0\r\n\r\n", "200", false),
        ("OPTIONS /lease/web HTTP/1.0\r\n\r\n", "503", false),
        ("HEAD /lease/db HTTP/1.1\r\nHost: h1\r\n\r\n", "200", false),
        ("HEAD /lease/old HTTP/1.0\r\n\r\n", "503", false),
        ("GET /lease/db?from=lb HTTP/1.0\r\n\r\n", "200", true),
        (
            "GET http://h1/lease/db HTTP/1.1\r\nHost: h1\r\nConnection: keep-alive\r\n\r\n",
            "200",
            true,
        ),
        // What every host would answer alike says nothing of a lease, so that a check without a path finds no server.
        ("OPTIONS / HTTP/1.0\r\n\r\n", "404", false),
        ("OPTIONS * HTTP/1.0\r\n\r\n", "404", false),
        ("GET /lease/ HTTP/1.0\r\n\r\n", "404", true),
        ("GET /lease/../db HTTP/1.0\r\n\r\n", "404", true),
        ("GET /lease/%64b HTTP/1.0\r\n\r\n", "404", true),
        (
            "POST /lease/db HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi",
            "405",
            true,
        ),
    ] {
        let answer = bench.say(request);
        assert_eq!(status(&answer), wanted, "{request}: {answer}");
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        assert_eq!(!body.is_empty(), has_body, "{request}: {answer}");
    }
}

#[test]
fn the_metrics_say_what_the_services_do() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let bench = serve();
    bench.grant("db", clock::now().plus(Duration::from_secs(3600)));
    let _db = bench.service("db", active());
    let rests = ServiceState {
        state: Some(State::Standby),
        stopped: Some(Word::default()),
        paused: None,
        lock: None,
        ..active()
    };
    let web = bench.service("web", rests);
    for result in [WriteResult::Won(Revision(1)), WriteResult::Unknown] {
        bench.metrics.renewed(Instant::now(), &result);
    }
    let answer = bench.get("/metrics");
    assert_eq!(status(&answer), "200");
    assert!(
        answer.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"),
        "{answer}"
    );
    assert!(answer.ends_with("# EOF\n"), "{answer}");
    for line in [
        "# TYPE putexd_build info",
        "putexd_services 2.0",
        "putexd_guard_connected 0.0",
        "putexd_state{service=\"db\",state=\"active\"} 1.0",
        "putexd_state{service=\"db\",state=\"standby\"} 0.0",
        "putexd_state{service=\"web\",state=\"standby\"} 1.0",
        "putexd_holder{service=\"db\"} 1.0",
        "putexd_lease_duration_seconds{service=\"db\"} 9.0",
        "putexd_renewals_total{result=\"won\"} 1",
        "putexd_renewals_total{result=\"unknown\"} 1",
        "putexd_renewal_duration_seconds_count 1",
        "putexd_drained 1.0",
        "putexd_stopped{service=\"web\"} 1.0",
        "putexd_paused{service=\"db\"} 1.0",
        "putexd_standing_alarms{kind=\"check-failed\",level=\"warn\"} 2.0",
        "putexd_standing_alarms{kind=\"clock-jump\",level=\"warn\"} 2.0",
        "putexd_standing_alarms{kind=\"stop-failed\",level=\"error\"} 0.0",
        "putexd_standing_alarms{kind=\"lapsed\",level=\"warn\"} 0.0",
    ] {
        assert!(
            answer.lines().any(|found| found == line),
            "{line:?} is missing in {answer}"
        );
    }
    assert!(
        answer.contains("putexd_store_silent_seconds 1.5"),
        "{answer}"
    );
    assert!(
        !answer.contains("putexd_lease_left_seconds{service=\"web\"}"),
        "it has no grant"
    );
    drop(web);
    std::thread::sleep(Duration::from_millis(1100));
    assert!(
        !bench.get("/metrics").contains("\"web\""),
        "a service that has ended is not shown"
    );
}

/// The names in the text, without those of the samples of a family.
fn families(text: &str) -> Vec<(String, String)> {
    let types = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let sample = |(name, kind): (&str, &str)| match kind {
        "counter" => format!("{name}_total"),
        "info" => format!("{name}_info"),
        "histogram" => format!("{name}_bucket"),
        _ => name.to_owned(),
    };
    types
        .map(|family| (family.0.to_owned(), sample(family)))
        .collect()
}

#[test]
fn manual_and_dashboard_have_each_metric_and_the_alerts_no_other() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let bench = serve();
    // A family without a sample is not in the text.
    bench.grant("db", clock::now().plus(Duration::from_secs(3600)));
    let _db = bench.service("db", active());
    bench
        .metrics
        .renewed(Instant::now(), &WriteResult::Won(Revision(1)));
    let families = families(&bench.get("/metrics"));
    assert!(families.len() >= 12, "{families:?}");
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging");
    let read = |path: &str| fs::read_to_string(top.join(path)).expect("it is shipped");
    let manual = read("usr/share/man/man7/putexd-operations.7");
    let dashboard: serde_json::Value =
        serde_json::from_str(&read("monitoring/putexd-dashboard.json"))
            .expect("the dashboard is JSON");
    let panels = dashboard["panels"].as_array().expect("it has panels");
    let asked: Vec<&str> = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten())
        .filter_map(|target| target["expr"].as_str())
        .collect();
    for (family, sample) in &families {
        let printed = sample
            .trim_start_matches("putexd_")
            .trim_end_matches("_bucket");
        assert!(
            manual
                .lines()
                .any(|line| line == format!(".It Ic {printed}")),
            "putexd-operations(7) lacks {printed}"
        );
        assert!(
            asked.iter().any(|query| query.contains(sample.as_str())),
            "the dashboard lacks {sample} of {family}"
        );
    }
    let alerts = read("monitoring/putexd-alerts.yaml");
    let named =
        alerts.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
    for word in named.filter(|word| word.starts_with("putexd_")).chain(
        asked
            .iter()
            .flat_map(|query| {
                query
                    .split(|character: char| !character.is_ascii_alphanumeric() && character != '_')
            })
            .filter(|word| word.starts_with("putexd_")),
    ) {
        assert!(
            families.iter().any(|(_, sample)| sample == word),
            "there is no metric {word}"
        );
    }
}

#[test]
fn a_thousand_services_take_a_moment_and_a_few_megabytes() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let bench = serve();
    let service = |number| bench.service(&format!("service-{number}"), active());
    let services: Vec<_> = (0..1000).map(service).collect();
    for number in 0..services.len() {
        bench.grant(
            &format!("service-{number}"),
            clock::now().plus(Duration::from_secs(3600)),
        );
    }
    bench.connect();
    let began = Instant::now();
    let text = bench.get("/metrics");
    println!("{} bytes in {:?}", text.len(), began.elapsed());
    assert!(
        text.ends_with("# EOF\n") && text.len() < 4 << 20,
        "{} bytes",
        text.len()
    );
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
}

#[test]
fn whoever_asks_badly_is_answered_or_dropped_and_keeps_nobody_out() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let bench = serve();
    bench.grant("db", clock::now().plus(Duration::from_secs(3600)));
    let many = "X-A: b\r\n".repeat(100);
    for (request, wanted) in [
        (
            format!("GET /lease/db HTTP/1.1\r\nHost: h1\r\n{many}\r\n"),
            "431",
        ),
        (
            format!(
                "GET /lease/db HTTP/1.1\r\nX-Long: {}\r\n\r\n",
                "x".repeat(100_000)
            ),
            "",
        ),
        (format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(100_000)), ""),
        ("\u{0}\u{1}\u{2} nonsense\r\n\r\n".to_owned(), "400"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), ""),
    ] {
        // The server may close the connection before it has read everything, and the answer is lost then.
        let mut stream = bench.connect();
        let _ = stream.write_all(request.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(
            wanted.is_empty() || status(&answer) == wanted,
            "{wanted}: {answer}"
        );
    }
    // Clients that send nothing, or one byte, are closed when there are too many of them, oldest first.
    let mut slow: Vec<TcpStream> = (0..64).map(|_| bench.connect()).collect();
    for stream in &mut slow {
        let _ = stream.write_all(b"G");
    }
    assert_eq!(status(&bench.get("/lease/db")), "200");
    let mut closed = Vec::new();
    let _ = slow[0].read_to_end(&mut closed);
    // A client that has closed its own end is answered.
    let mut stream = bench.connect();
    stream
        .write_all(b"GET /lease/db HTTP/1.0\r\n\r\n")
        .expect("it is sent");
    stream.shutdown(Shutdown::Write).expect("it is closed");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert_eq!(status(&answer), "200");
    // A client that hangs alone is closed after a while, too.
    let mut alone = bench.connect();
    alone.write_all(b"GET /lease/db HTT").expect("it is sent");
    let began = Instant::now();
    let _ = alone.read_to_end(&mut closed);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[test]
fn a_taken_port_is_tried_again_and_another_address_is_taken_at_once() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let mut bench = idle();
    let other = TcpListener::bind(bench.address).expect("the port is free");
    bench.server.listen(Some(bench.address));
    std::thread::sleep(Duration::from_millis(200));
    drop(other);
    assert_eq!(status(&bench.get("/lease/db")), "503");

    let moved = idle().address;
    bench.server.listen(Some(moved));
    bench.address = moved;
    assert_eq!(status(&bench.get("/lease/db")), "503");
    bench.server.listen(None);
    let end = Instant::now() + SOON;
    while TcpStream::connect(bench.address).is_ok() {
        assert!(Instant::now() < end, "it does not listen any more");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(Path::new(bench.leases.path()).exists());
}

#[test]
fn a_process_that_ends_or_is_killed_is_replaced_and_until_then_a_check_has_no_verdict() {
    let runtime = runtime();
    let (pids, started) = std::sync::mpsc::channel();
    let http = Http::over((), move |_| {
        let pids = pids.clone();
        async move {
            let program = env!("CARGO_BIN_EXE_putex-net");
            net_process::start_and_tell(program, Role::Http, move |pid| {
                pids.send(pid).expect("the test waits")
            })
            .await
        }
    });
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let target = Target::Tcp(listener.local_addr().expect("its address").to_string());
    let check = || runtime.block_on(http.check(target.clone(), Duration::from_secs(5)));
    assert_eq!(check(), Some(Ok(())));
    let nobody = Target::Tcp("127.0.0.1:1".to_owned());
    let refused = runtime.block_on(http.check(nobody, Duration::from_secs(5)));
    assert!(
        matches!(&refused, Some(Err(CheckError::Failed(why))) if why.contains("refused")),
        "{refused:?}"
    );
    for signal in [Signal::KILL, Signal::STOP] {
        let pid = started.recv_timeout(SOON).expect("it was started");
        let pid = Pid::from_raw(pid.try_into().expect("a process id")).expect("a process id");
        kill_process(pid, signal).expect("it is there");
        let began = Instant::now();
        // A service whose checks nobody makes must not be taken for a sick one.
        loop {
            match check() {
                None => assert!(began.elapsed() < SOON, "no other process"),
                Some(verdict) => break assert_eq!(verdict, Ok(())),
            }
        }
        let _ = kill_process(pid, Signal::KILL);
    }
}

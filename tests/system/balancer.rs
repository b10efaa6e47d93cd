//! What putexd serves to machines: a load balancer that follows the lease, the metrics as Prometheus' own tool judges them, and
//! clients that ask badly.

use std::{
    collections::VecDeque,
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use serde_json::Value;

use crate::{
    cluster::Host,
    command::{EndsAtDrop, now, run_with_input, wait_for, wait_until},
    fixture::{Fixture, Plan, SOON, TAKE_OVER, WAIT, entries_of, wait_for_line, wait_for_standby},
    lockstore::Lockstore,
    server::ADDRESS,
    watch::Event,
};

const LISTEN: &str = "[metrics]\nlisten = \"0.0.0.0:9190\"\n";
const PORT: u16 = 9190;
const BALANCED: u16 = 5000;

/// S is 2 s, which has to be longer than an interval and the time limit of a check; the rest is for a machine that is busy.
const SERVICE: &str = "unit = \"database.service\"\nrenew-interval = \"1s\"\nfailures = 5\nconfirmations = 1\nstop-budget = \"1s\"\n";
const HAPROXY: &str = "global
    log stdout format raw local0
defaults
    log global
    mode tcp
    timeout connect 500ms
    timeout client 5s
    timeout server 5s
listen db
    bind :5000
    retries 0
    option httpchk
    http-check send meth OPTIONS uri /lease/db
    http-check expect status 200
    timeout check 400ms
    default-server check port 9190 inter 300ms fall 1 rise 1 on-marked-down shutdown-sessions
    server h1 10.77.0.11:7000
    server h2 10.77.0.12:7000
";

/// Something else that listens on a port.
const TAKEN: &str = "defaults\n    mode tcp\n    timeout connect 1s\n    timeout client 1s\n    timeout server 1s\n\
    listen taken\n    bind :9191\n";

/// What was answered through the load balancer: when it was asked, and the copy that has answered.
type Answers = Vec<(Duration, String)>;

fn connect(host: &Host, port: u16, limit: Duration) -> Option<TcpStream> {
    let address: SocketAddr = format!("{}:{port}", host.address)
        .parse()
        .expect("an address");
    let stream = TcpStream::connect_timeout(&address, limit).ok()?;
    stream.set_read_timeout(Some(limit)).ok()?;
    stream.set_write_timeout(Some(limit)).ok()?;
    Some(stream)
}

/// The answer to a GET. It is called in a network that reaches the host.
fn get(host: &Host, port: u16, path: &str) -> Option<String> {
    let mut stream = connect(host, port, Duration::from_secs(5))?;
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", host.name).as_bytes())
        .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.starts_with("HTTP/1.1 ").then_some(answer)
}

/// Asks through the load balancer on `balancer`, again and again, until `ends` is set.
fn ask_for_ever(balancer: &Host, ends: &AtomicBool, seen: &std::sync::Mutex<Answers>) {
    while !ends.load(Ordering::Relaxed) {
        let asked = now();
        let mut line = String::new();
        if let Some(mut stream) = connect(balancer, BALANCED, Duration::from_secs(1))
            && stream.read_to_string(&mut line).is_ok()
            && line.ends_with('\n')
        {
            seen.lock()
                .expect("nobody panics with it")
                .push((asked, line.trim_end().to_owned()));
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Cuts `host` off from the store beside the hosts, and from nothing else.
fn cut_off_from_store(host: &Host) {
    let table = format!(
        "table inet cut {{\nchain in {{ type filter hook input priority 0; ip saddr {ADDRESS} drop; }}\n\
         chain out {{ type filter hook output priority 0; ip daddr {ADDRESS} drop; }}\n}}\n"
    );
    host.in_network(|| run_with_input("nft", &["-f", "-"], &table));
}

#[test]
fn haproxy_follows_the_lease_and_drops_the_former_holder_before_the_next_one_starts() {
    let plan = Plan::hosts("balancer", 3, Lockstore::Nats)
        .oracle(&["ORACLE_LISTEN=7000"])
        .service("db", SERVICE.to_owned())
        .host_file(LISTEN)
        .file("/etc/haproxy/db.cfg", HAPROXY);
    let Some(fixture) = plan.prepare() else {
        return;
    };
    // The third host has the load balancer, and takes no part.
    let balancer = &fixture.hosts[2];
    balancer.remove_file("/etc/putex.d/db.toml");
    let since = now();
    fixture.start_putexd();
    let first = fixture.wait_for_start(since, TAKE_OVER);
    balancer.exec(&[
        "systemd-run",
        "--quiet",
        "--unit=balancer",
        "haproxy",
        "-db",
        "-f",
        "/etc/haproxy/db.cfg",
    ]);
    let (ends, seen) = (AtomicBool::new(false), std::sync::Mutex::new(Vec::new()));
    let takeovers = thread::scope(|scope| {
        let _ends = EndsAtDrop(&ends);
        scope.spawn(|| fixture.on_the_switch(|| ask_for_ever(balancer, &ends, &seen)));
        let answers_of = |event: &Event| {
            wait_until(SOON, "the balancer sends clients to the holder", || {
                seen.lock()
                    .expect("nobody panics with it")
                    .iter()
                    .any(|(_, id)| *id == event.id)
            });
        };
        answers_of(&first);
        judge_metrics(&fixture, balancer, &first);

        // The former copy answers until it is killed, which is long after the end of its lease.
        let holder = fixture.host_of(&first);
        holder.write_file("/var/lib/oracle-deaf", "");
        let since = now();
        cut_off_from_store(holder);
        let second = fixture.wait_for_takeover(
            &first,
            since,
            TAKE_OVER,
            "the store is lost behind a balancer",
        );
        answers_of(&second);
        assert_dropped_before(balancer, &first, &second);
        holder.remove_file("/var/lib/oracle-deaf");
        holder.heal();
        wait_for_standby(holder);

        let since = now();
        // The command fails if nobody has taken the lock when it has waited for that.
        fixture
            .host_of(&second)
            .output(&["putexctl", "step-down", "db"]);
        // A host whose lease has lapsed waits for longer before it contends again than one that has stepped down, so that either
        // of them may be next.
        let third = fixture.wait_for_start(since, TAKE_OVER);
        let end = fixture.oracle.wait_for_end(&second, SOON);
        assert!(
            end.at < third.at,
            "{} started before {} had ended",
            third.host,
            second.host
        );
        answers_of(&third);
        [(first.clone(), second.clone()), (second, third)]
    });
    let seen = seen.into_inner().expect("nobody panics with it");
    for (old, new) in &takeovers {
        let late: Vec<_> = seen
            .iter()
            .filter(|(asked, id)| *asked >= new.at && *id == old.id)
            .collect();
        assert!(
            late.is_empty(),
            "{} answered after {} had started: {late:?}",
            old.host,
            new.host
        );
        let last = seen
            .iter()
            .rev()
            .find(|(_, id)| *id == old.id)
            .map(|(asked, _)| new.after(*asked));
        let next = seen
            .iter()
            .find(|(_, id)| *id == new.id)
            .map(|(asked, _)| asked.saturating_sub(new.at));
        println!(
            "{} to {}: the last answer {last:?} before the start, the next {next:?} after it",
            old.host, new.host
        );
    }
    fixture.assert_no_violation();
}

/// Checks by the load balancer's own log that it had dropped the host of `old` before `new` was started, because of the answer.
fn assert_dropped_before(balancer: &Host, old: &Event, new: &Event) {
    let name = format!("Server db/{} is DOWN", old.host);
    let entries = entries_of(balancer, "balancer.service");
    let down = entries.iter().filter(|entry| {
        let text = entry["MESSAGE"].as_str().unwrap_or_default();
        text.contains(&name) && text.contains("code: 503")
    });
    let at = |entry: &Value| {
        let microseconds = entry["__MONOTONIC_TIMESTAMP"]
            .as_str()
            .and_then(|text| text.parse().ok());
        Duration::from_micros(microseconds.expect("the journal notes the time"))
    };
    let before = down.filter_map(|entry| new.at.checked_sub(at(entry))).min();
    println!(
        "{} was dropped {before:?} before {} started",
        old.host, new.host
    );
    assert!(
        before.is_some(),
        "{} was not dropped for its answer in time: {entries:?}",
        old.host
    );
}

/// Checks the metrics of all hosts by what is known of them, and with promtool, which judges the alert rules too.
fn judge_metrics(fixture: &Fixture, judge: &Host, active: &Event) {
    let text = |host: &Host| {
        let answer = wait_for(SOON, "metrics", || {
            fixture.on_the_switch(|| get(host, PORT, "/metrics"))
        });
        answer.split_once("\r\n\r\n").expect("a body").1.to_owned()
    };
    let holder = fixture.host_of(active);
    let found = wait_for(SOON, "the service is active", || {
        Some(text(holder))
            .filter(|text| text.contains("putexd_state{service=\"db\",state=\"active\"} 1.0"))
    });
    for line in [
        "putexd_holder{service=\"db\"} 1.0",
        "putexd_guard_connected 1.0",
        "putexd_store_silent_seconds 0.0",
        "putexd_lease_duration_seconds{service=\"db\"} 5.0",
    ] {
        assert!(
            found.lines().any(|known| known == line),
            "{line:?} is missing in {found}"
        );
    }
    let value = |name: &str| -> f64 {
        let line = found
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap_or_else(|| panic!("no {name}: {found}"));
        line.trim().parse().expect("a number")
    };
    assert!(
        (0.5..5.0).contains(&value("putexd_lease_left_seconds{service=\"db\"}")),
        "{found}"
    );
    assert!(
        value("putexd_renewals_total{result=\"won\"}") >= 1.0,
        "{found}"
    );
    let standby = fixture
        .others(active)
        .into_iter()
        .find(|host| host.name != judge.name)
        .expect("there are three");
    let other = text(standby);
    assert!(
        other.contains("putexd_state{service=\"db\",state=\"active\"} 0.0"),
        "{other}"
    );
    assert!(!other.contains("putexd_lease_left_seconds{"), "{other}");

    // promtool knows the older form of the text, in which the type of a counter names the whole name.
    let older: String = found
        .lines()
        .filter(|line| !line.starts_with("# UNIT ") && *line != "# EOF")
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["#", kind @ ("TYPE" | "HELP"), name, ..] => {
                    let all = found
                        .lines()
                        .any(|line| line.starts_with(&format!("{name}_total")));
                    let info = line.ends_with(" info") || name == "putexd_build";
                    let named = if all {
                        format!("{name}_total")
                    } else {
                        name.to_owned()
                    };
                    let named = if info { format!("{name}_info") } else { named };
                    let rest = line.splitn(4, ' ').nth(3).unwrap_or_default();
                    let rest = if info && kind == "TYPE" {
                        "gauge"
                    } else {
                        rest
                    };
                    format!("# {kind} {named} {rest}\n")
                }
                _ => format!("{line}\n"),
            }
        })
        .collect();
    judge.write_file("/root/metrics", &older);
    judge.sh("promtool check metrics </root/metrics");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/monitoring");
    for file in ["putexd-alerts.yaml", "putexd-alerts-test.yaml"] {
        judge.write_file(
            &format!("/root/{file}"),
            &fs::read_to_string(folder.join(file)).expect("it is shipped"),
        );
    }
    judge.sh("promtool check rules /root/putexd-alerts.yaml");
    judge.sh("promtool test rules /root/putexd-alerts-test.yaml");
}

#[test]
fn clients_that_ask_badly_cost_no_renewal_and_keep_nobody_out() {
    const THREADS: usize = 8;
    const EACH: usize = 1250;
    const KEPT: usize = 64;
    let plan = Plan::hosts("hostile-http", 1, Lockstore::Directory)
        .host_file(LISTEN)
        .file("/etc/haproxy/taken.cfg", TAKEN);
    let Some((fixture, first)) = plan.run() else {
        return;
    };
    let host = fixture.host_of(&first);
    let daemon = host
        .processes("putexd")
        .first()
        .copied()
        .expect("it runs")
        .as_raw_pid();
    let open = || fs::read_dir(format!("/proc/{daemon}/fd")).map_or(0, Iterator::count);
    wait_until(SOON, "it is served", || {
        fixture
            .on_the_switch(|| get(host, PORT, "/lease/db"))
            .is_some()
    });
    let before = open();
    let huge = format!(
        "GET /metrics HTTP/1.1\r\nX-Long: {}\r\n\r\n",
        "x".repeat(64 * 1024)
    );
    let requests = [
        "",
        "G",
        "\u{0}\u{1}nonsense\r\n\r\n",
        &huge,
        "GET /metrics HTTP/1.1\r\n\r\n",
        "GET /lease/db HTTP/1.0\r\n\r\n",
    ];
    fixture.uninterrupted(&first, WAIT, "10,000 connections", || {
        let (ends, most) = (
            AtomicBool::new(false),
            std::sync::atomic::AtomicUsize::new(0),
        );
        thread::scope(|scope| {
            let _ends = EndsAtDrop(&ends);
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    most.fetch_max(open(), Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(2));
                }
            });
            let flood = || {
                fixture.on_the_switch(|| {
                    let mut kept = VecDeque::new();
                    for number in 0..EACH {
                        let Some(mut stream) = connect(host, PORT, Duration::from_secs(1)) else {
                            continue;
                        };
                        let _ = stream.write_all(requests[number % requests.len()].as_bytes());
                        kept.push_back(stream);
                        if kept.len() > KEPT {
                            kept.pop_front();
                        }
                    }
                });
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(flood)).collect();
            for thread in threads {
                thread.join().expect("the flood ends");
            }
            let began = now();
            let answer = wait_for(SOON, "an answer", || {
                fixture.on_the_switch(|| get(host, PORT, "/lease/db"))
            });
            println!(
                "{:?} after the flood: {}",
                now().saturating_sub(began),
                answer.lines().next().unwrap_or_default()
            );
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        });
        let most = most.into_inner();
        println!("open files: {before} before, {most} at most");
        assert!(
            most <= before + 32,
            "{most} files were open, {before} before"
        );
    });
    wait_until(SOON, "the connections are closed", || open() <= before + 1);

    // Another port is taken at a reload; one that somebody else has is told once.
    host.exec(&[
        "systemd-run",
        "--quiet",
        "--unit=taken",
        "haproxy",
        "-db",
        "-f",
        "/etc/haproxy/taken.cfg",
    ]);
    let text = host
        .read_file("/etc/putex/putexd.toml")
        .expect("it is there");
    wait_until(SOON, "the port is taken", || {
        fixture
            .on_the_switch(|| connect(host, 9191, SOON))
            .is_some()
    });
    host.write_file("/etc/putex/putexd.toml", &text.replace("9190", "9191"));
    host.exec(&["systemctl", "reload", "putexd.service"]);
    wait_for_line(host, &["that is free", "failed to listen on 0.0.0.0:9191"]);
    fixture.assert_alone(&first);
    host.exec(&["systemctl", "stop", "taken.service"]);
    wait_for_line(
        host,
        &["metrics and leases are served at http://0.0.0.0:9191"],
    );
    let answer = wait_for(SOON, "an answer", || {
        fixture.on_the_switch(|| get(host, 9191, "/lease/db"))
    });
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(
        fixture
            .on_the_switch(|| connect(host, PORT, SOON))
            .is_none(),
        "the former port is not listened on"
    );
}

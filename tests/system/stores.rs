//! The manual page putexd-stores(7): its commands are run on hosts that have Debian's packages as they are installed. After that
//! putexd has all the rights that it needs, and no other login can read, list, write or delete a lock.

use std::{fs, path::PathBuf, process::Output, time::Duration};

use async_nats::{Client, ConnectOptions};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use crate::{
    cluster::Host,
    command::{now, said, wait_for, wait_until},
    fixture::{Fixture, HAND_OVER, Plan, SERVICE, SOON, TAKE_OVER, wait_for_standby},
    lockstore::Lockstore,
};

/// The exit status of putexctl when the store cannot be reached.
const UNAVAILABLE: i32 = 69;

const PAGE: &str = "packaging/usr/share/man/man7/putexd-stores.7";

/// Commands of one display that are run on the same hosts, one script for each host.
#[derive(Debug, PartialEq, Eq)]
struct Script {
    hosts: Vec<String>,
    text: String,
}

/// The hosts and the command of a line that begins with a prompt, such as `h1,h2# `.
fn prompt(line: &str) -> Option<(Vec<String>, &str)> {
    let (hosts, command) = line.split_once("# ")?;
    let hosts: Vec<String> = hosts.split(',').map(str::to_owned).collect();
    let is_host = |name: &String| {
        name.strip_prefix('h')
            .is_some_and(|number| number.parse::<u8>().is_ok())
    };
    hosts.iter().all(is_host).then_some((hosts, command))
}

/// The commands in the displays of a section.
fn scripts(page: &str, section: &str) -> Vec<Script> {
    let lines = page
        .lines()
        .skip_while(|line| *line != format!(".Sh {section}"))
        .skip(1);
    let mut scripts: Vec<Script> = Vec::new();
    let (mut displayed, mut begins) = (false, false);
    for line in lines.take_while(|line| !line.starts_with(".Sh ")) {
        if line == ".Bd -literal" || line == ".Ed" {
            displayed = line != ".Ed";
            begins = displayed;
        } else if displayed {
            let line = line.replace("\\-", "-").replace("\\e", "\\");
            match prompt(&line) {
                Some((hosts, command))
                    if begins || scripts.last().is_none_or(|last| last.hosts != hosts) =>
                {
                    scripts.push(Script {
                        hosts,
                        text: command.to_owned(),
                    });
                }
                Some((_, command)) => append(&mut scripts, command),
                None => append(&mut scripts, &line),
            }
            begins = false;
        }
    }
    assert!(
        !scripts.is_empty(),
        "the page has no section {section} with commands"
    );
    scripts
}

fn append(scripts: &mut [Script], line: &str) {
    let last = scripts.last_mut().expect("a display begins with a prompt");
    last.text.push('\n');
    last.text.push_str(line);
}

/// What stands in for scp: the folder that the hosts share. No test host runs an SSH server.
const SCP: &str = r#"#!/bin/sh
[ "$1" = -p ] && shift
for last; do :; done
place=/srv/shared/copied/${last%%:*}/${last#*:}
mkdir -p "$place"
while [ $# -gt 1 ]; do cp -p "$1" "$place"; shift; done
"#;

struct Rig {
    fixture: Fixture,
    page: String,
}

impl Rig {
    /// Three hosts, of which h3 has the packages of the stores as they are installed.
    fn prepare(name: &'static str) -> Option<Self> {
        // The folder is the store of one of the tests; the others replace putexd.toml.
        let fixture = Plan::hosts(name, 3, Lockstore::Directory)
            .service("db", SERVICE)
            .prepare()?;
        for host in &fixture.hosts {
            host.write_file("/usr/local/bin/scp", SCP);
            host.exec(&["chmod", "755", "/usr/local/bin/scp"]);
        }
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(PAGE);
        Some(Self {
            fixture,
            page: fs::read_to_string(path).expect("the page is there"),
        })
    }

    fn server(&self) -> &Host {
        &self.fixture.hosts[2]
    }

    /// Runs the commands of a section, each of which has to succeed.
    fn follow(&self, section: &str) {
        for Script { hosts, text } in scripts(&self.page, section) {
            for name in hosts {
                let host = self
                    .fixture
                    .hosts
                    .iter()
                    .find(|host| host.name == name)
                    .expect("the page names these hosts");
                // nats-server is not listening yet when systemd calls it started. A person takes longer to go on.
                let output = wait_for(SOON, "the server listens", || {
                    let output = host.output(&["sh", "-e", "-c", &text]);
                    (output.status.code() != Some(UNAVAILABLE)).then_some(output)
                });
                assert!(
                    output.status.success(),
                    "{section} of {PAGE}, on {name}:\n{text}\n{}",
                    said(&output)
                );
            }
            self.hand_out();
        }
    }

    /// Puts what was copied with scp into its place.
    fn hand_out(&self) {
        for host in &self.fixture.hosts {
            let copied = self.fixture.shared().join("copied").join(&host.name);
            if copied.is_dir() {
                host.sh(&format!(
                    "cp -a /srv/shared/copied/{}/. / && rm -r /srv/shared/copied/{0}",
                    host.name
                ));
            }
        }
    }

    /// Runs the section START, and shows that putexd can do all that it does: the service starts, moves by a request that was
    /// made on the other host, hears an operator's word, and is taken over after a power loss; `doctor` misses no right.
    fn serves(&self) {
        let fixture = &self.fixture;
        let began = now();
        for host in &fixture.hosts[..2] {
            host.exec(&["systemctl", "daemon-reload"]);
        }
        self.follow("START");
        let first = fixture.wait_for_start(began, TAKE_OVER);
        let other = |name: &str| {
            fixture.hosts[..2]
                .iter()
                .find(|host| host.name != name)
                .expect("there are two")
        };
        wait_for_standby(other(&first.host));
        let standby = other(&first.host);

        // A request to the holder, by way of the store. The holder refuses it until it has heard that the other host would take
        // the service.
        let asked = now();
        let moves = || {
            standby
                .output(&["putexctl", "move", "db", &standby.name])
                .status
                .success()
        };
        wait_until(TAKE_OVER, "the holder takes the request", moves);
        let second =
            fixture.wait_for_takeover(&first, asked, HAND_OVER, "asked for on the other host");
        let standby = other(&second.host);
        wait_for_standby(standby);

        // A word, and reports and history, which another host reads.
        standby.exec(&["putexctl", "stop", "db"]);
        wait_until(SOON, "it stops everywhere", || {
            fixture.oracle.live().is_empty()
        });
        let asked = now();
        standby.exec(&["putexctl", "start", "db"]);
        let third = fixture.wait_for_start(asked, TAKE_OVER);
        let watcher = other(&third.host);
        wait_for_standby(watcher);
        wait_until(SOON, "the history tells of it", || {
            let history = said(&watcher.output(&["putexctl", "history", "db"]));
            history.contains(&first.host) && history.contains(&second.host)
        });
        wait_until(SOON, "each host is heard of", || {
            let status = said(&watcher.output(&["putexctl", "status"]));
            fixture.hosts[..2]
                .iter()
                .all(|host| status.contains(&host.name))
                && !status.contains("allow putexd")
        });
        for host in &fixture.hosts[..2] {
            let doctor = said(&host.output(&["putexctl", "doctor"]));
            println!("{doctor}");
            assert!(
                doctor.contains("round trip") && !doctor.contains("give putexd the rights"),
                "{doctor}"
            );
            assert!(
                !doctor.contains("can answer in the server's place"),
                "{doctor}"
            );
            let journal = host.journal(&["putexd.service"]).to_lowercase();
            let refused = ["denied", "permission", "not permitted", "violation"];
            let line = journal
                .lines()
                .find(|line| refused.iter().any(|word| line.contains(word)));
            assert_eq!(line, None, "the store has refused something");
        }

        let lost = fixture.host_of(&third).power_off_hard();
        let fourth = fixture
            .oracle
            .wait_for_start_on(&[watcher], lost, TAKE_OVER);
        println!(
            "power loss: {} started {:?} after it",
            fourth.host,
            fourth.after(lost)
        );
        fixture.assert_alone(&fourth);
        fixture.assert_no_violation();
    }
}

/// Checks that each of `attempts` is refused, with one of `words` as the reason: a mistake in the attempt is no refusal.
fn refused(words: &[&str], attempts: impl IntoIterator<Item = (&'static str, Output)>) {
    for (what, output) in attempts {
        let printed = said(&output);
        let by_rights = words
            .iter()
            .any(|word| printed.to_lowercase().contains(word));
        assert!(
            !output.status.success() && by_rights,
            "{what} is not refused: {printed}"
        );
        println!("{what}: {}", printed.trim());
    }
}

/// What `putexctl init` says once the store is gone, on a host whose login may not make it any more.
fn init(rig: &Rig) -> Output {
    let host = rig.fixture.hosts[..2]
        .iter()
        .find(|host| host.is_on())
        .expect("one is on");
    host.output(&["putexctl", "init"])
}

#[test]
#[cfg_attr(
    not(feature = "postgres"),
    ignore = "this putexd was built without the store: --all-features"
)]
fn debians_postgresql_serves_with_the_least_rights() {
    let Some(rig) = Rig::prepare("debpostgres") else {
        return;
    };
    let server = rig.server();
    // The root of the hosts was made without what the package does at its end: a cluster, and units that start it.
    server.sh("rm /etc/postgresql-common/createcluster.d/tests.conf && \
         systemctl unmask postgresql && \
         pg_createcluster $(ls /usr/lib/postgresql) main && systemctl daemon-reload && systemctl start postgresql");
    rig.follow("CERTIFICATES AND PASSWORD");
    rig.follow("POSTGRESQL");
    rig.follow("SEAL THE RECORDS");
    server.sh(
        "cd / && echo 'hostssl all tenant samenet scram-sha-256' >>$(pg_conftool -s show hba_file) && \
         runuser -u postgres -- psql -qc \"CREATE ROLE tenant LOGIN PASSWORD 'other'\" -c 'CREATE DATABASE tenant OWNER tenant' && \
         systemctl reload postgresql",
    );
    rig.serves();

    let psql = |user: &str, password: &str, database: &str, statement: &str| {
        let line = format!(
            "PGPASSWORD={password} PGSSLMODE=verify-full PGSSLROOTCERT=/etc/putex/ca.crt \
             psql -h h3 -U {user} -d {database} -v ON_ERROR_STOP=1 -Atc \"{statement}\""
        );
        let host = rig
            .fixture
            .hosts
            .iter()
            .find(|host| host.is_on() && host.name != "h3")
            .expect("one is on");
        host.output(&["sh", "-c", &line])
    };
    let own = |statement: &str| psql("putexd", "$(cat /etc/putex/password)", "putex", statement);
    let listed = said(&own("SELECT name FROM putex_locks"));
    assert!(listed.lines().any(|line| line == "db"), "{listed}");
    let verbs = [
        ("read", "SELECT body FROM putex_locks WHERE name = 'db'"),
        ("list", "SELECT name FROM putex_locks"),
        (
            "write",
            "UPDATE putex_locks SET body = '', revision = revision + 1 WHERE name = 'db'",
        ),
        ("delete", "DELETE FROM putex_locks WHERE name = 'db'"),
    ];
    let denied = ["permission denied", "no pg_hba.conf entry"];
    refused(
        &denied,
        verbs.map(|(what, statement)| (what, psql("tenant", "other", "putex", statement))),
    );
    assert!(
        psql("tenant", "other", "tenant", "CREATE TABLE mine ()")
            .status
            .success(),
        "the login itself is well"
    );
    let more = [
        (
            "delete by putexd",
            "DELETE FROM putex_locks WHERE name = 'db'",
        ),
        ("truncate by putexd", "TRUNCATE putex_locks"),
        (
            "rename by putexd",
            "UPDATE putex_locks SET name = 'x' WHERE name = 'db'",
        ),
        (
            "another incarnation by putexd",
            "UPDATE putex_locks SET incarnation = 'x'",
        ),
        ("table by putexd", "CREATE TABLE x ()"),
    ];
    refused(
        &denied,
        more.map(|(what, statement)| (what, own(statement))),
    );
    let line = "psql 'host=h3 user=putexd dbname=putex sslmode=disable' -c 'SELECT 1'";
    refused(
        &["no encryption"],
        [("without TLS", server.output(&["sh", "-c", line]))],
    );

    server.sh("cd / && runuser -u postgres -- psql -qd putex -c 'DROP TABLE putex_locks'");
    let printed = said(&init(&rig));
    assert!(
        printed.contains("see putexd-stores(7)") && printed.contains("permission denied"),
        "{printed}"
    );
}

#[test]
#[cfg_attr(
    not(feature = "etcd"),
    ignore = "this putexd was built without the store: --all-features"
)]
fn debians_etcd_serves_with_the_least_rights() {
    let Some(rig) = Rig::prepare("debetcd") else {
        return;
    };
    let server = rig.server();
    server.sh("systemctl unmask etcd && systemctl start etcd");
    rig.follow("CERTIFICATES AND PASSWORD");
    rig.follow("ETCD");
    rig.follow("SEAL THE RECORDS");
    let etcdctl = |login: &str, order: &str| {
        let line = format!(
            "etcdctl --endpoints https://h3:2379 --cacert /root/putex/ca.crt --user \"{login}\" {order}"
        );
        server.output(&["sh", "-c", &line])
    };
    for order in [
        "role add tenant",
        "role grant-permission tenant --prefix=true readwrite /tenant/",
        "user add tenant:other",
        "user grant-role tenant tenant",
    ] {
        let output = etcdctl("root:$(cat /root/putex/root-password)", order);
        assert!(output.status.success(), "{order}: {}", said(&output));
    }
    rig.serves();

    let own = |order: &str| etcdctl("putexd:$(cat /root/putex/password)", order);
    let listed = said(&own("get --prefix --keys-only /putex/locks/"));
    assert!(
        listed.lines().any(|line| line == "/putex/locks/db"),
        "{listed}"
    );
    let verbs = [
        ("read", "get /putex/locks/db"),
        ("read of the incarnation", "get /putex/incarnation"),
        ("list", "get --prefix --keys-only /putex/"),
        ("write", "put /putex/locks/db x"),
        ("delete", "del /putex/locks/db"),
    ];
    refused(
        &["permission denied"],
        verbs.map(|(what, order)| (what, etcdctl("tenant:other", order))),
    );
    let without = |order: &str| {
        let line =
            format!("etcdctl --endpoints https://h3:2379 --cacert /root/putex/ca.crt {order}");
        server.output(&["sh", "-c", &line])
    };
    refused(
        &["user name is empty"],
        verbs.map(|(what, order)| (what, without(order))),
    );
    assert!(
        etcdctl("tenant:other", "put /tenant/x y").status.success(),
        "the login itself is well"
    );
    let more = [
        ("another incarnation by putexd", "put /putex/incarnation x"),
        ("no incarnation by putexd", "del /putex/incarnation"),
        ("a user by putexd", "user add x:y"),
        ("elsewhere by putexd", "put /other x"),
    ];
    refused(
        &["permission denied"],
        more.map(|(what, order)| (what, own(order))),
    );

    let root = |order: &str| etcdctl("root:$(cat /root/putex/root-password)", order);
    assert!(root("del /putex/incarnation").status.success());
    let printed = said(&init(&rig));
    let right = "role grant-permission putexd readwrite /putex/incarnation";
    assert!(
        printed.contains("putexd-stores(7)") && printed.contains("permission denied"),
        "{printed}"
    );
    assert!(root(right).status.success());
    let printed = init(&rig);
    assert!(printed.status.success(), "{}", said(&printed));
    assert!(
        root("role grant-permission putexd read /putex/incarnation")
            .status
            .success()
    );
    assert!(
        !own("put /putex/incarnation x").status.success(),
        "the right is taken back"
    );
}

/// A request to the interface of JetStream. `None`: no answer.
async fn ask(client: &Client, verb: &str, question: Value) -> Option<Value> {
    let asked = client.request(format!("$JS.API.{verb}"), question.to_string().into());
    let answer = tokio::time::timeout(Duration::from_secs(1), asked)
        .await
        .ok()?
        .ok()?;
    serde_json::from_slice(&answer.payload).ok()
}

#[test]
fn debians_nats_server_serves_with_the_least_rights() {
    let Some(rig) = Rig::prepare("debnats") else {
        return;
    };
    let server = rig.server();
    server.sh("systemctl unmask nats-server && systemctl start nats-server");
    rig.follow("CERTIFICATES AND PASSWORD");
    rig.follow("NATS");
    assert_eq!(
        rig.fixture.hosts[0]
            .sh("stat --format='%a %s' /etc/putex/seal.key")
            .trim(),
        "600 65",
        "init has made a key"
    );
    rig.follow("SEAL THE RECORDS");
    let tenant = "TENANT { jetstream: enabled, users: [ { user: tenant, password: other } ] }";
    server.sh(&format!("sed -i 's/^accounts {{/&\\n{tenant}/' /etc/nats-server.conf && systemctl reload nats-server"));
    rig.serves();

    let read =
        |path: &str| fs::read_to_string(server.root().join(path)).expect("the page makes it");
    let password = read("root/putex/password").trim().to_owned();
    let ca = server.root().join("root/putex/ca.crt");
    let connect = |login: Option<(&str, String)>| {
        let options = ConnectOptions::new()
            .require_tls(true)
            .add_root_certificates(ca.clone())
            .max_reconnects(1);
        let options = match login {
            Some((user, password)) => {
                let options = options.custom_inbox_prefix(format!("_INBOX.{user}.test"));
                options.user_and_password(user.to_owned(), password)
            }
            None => options,
        };
        options.connect(format!("nats://{}:4222", server.address))
    };
    rig.fixture.ask_on_the_switch(async || {
        let own = connect(Some(("putexd", password.clone())))
            .await
            .expect("the login is well");
        let tenant = connect(Some(("tenant", "other".to_owned())))
            .await
            .expect("the login is well");
        assert!(
            connect(None).await.is_err(),
            "nobody connects without a login"
        );
        assert!(
            connect(Some(("putexd", "other".to_owned()))).await.is_err(),
            "nor without the password"
        );

        let get = (
            "STREAM.MSG.GET.KV_putex",
            json!({ "last_by_subj": "$KV.putex.db" }),
        );
        let lock = async || {
            ask(&own, get.0, get.1.clone())
                .await
                .expect("putexd may read")["message"]
                .clone()
        };
        assert_eq!(lock().await["subject"], "$KV.putex.db");

        // The other account: it may do everything with what it sees, and sees nothing.
        let mut messages = tenant.subscribe(">").await.expect("it may listen");
        let answer = ask(&tenant, get.0, get.1.clone())
            .await
            .expect("it may ask");
        assert_eq!(answer["error"]["err_code"], 10059, "read: {answer}");
        let listed = ask(&tenant, "STREAM.NAMES", json!({}))
            .await
            .expect("it may ask");
        assert_eq!(listed["total"], 0, "list: {listed}");
        let written = tenant.request("$KV.putex.db", "forged".into()).await;
        assert!(written.is_err(), "write: nobody takes it");
        for verb in ["STREAM.DELETE.KV_putex", "STREAM.PURGE.KV_putex"] {
            let answer = ask(&tenant, verb, json!({})).await.expect("it may ask");
            assert_eq!(answer["error"]["err_code"], 10059, "delete: {answer}");
        }
        // Meanwhile the holder renews.
        let own_prefixes = ["_INBOX.", "$KV.putex.db", "$JS."];
        while let Ok(Some(message)) =
            tokio::time::timeout(Duration::from_secs(2), messages.next()).await
        {
            let subject = message.subject.as_str();
            assert!(
                own_prefixes
                    .iter()
                    .any(|prefix| subject.starts_with(prefix)),
                "it hears of {subject}"
            );
            assert!(
                !subject.starts_with("$KV.") || message.payload == "forged",
                "it hears a lock: {message:?}"
            );
        }

        // What putexd's user does not need, it may not do either.
        for verb in [
            "STREAM.DELETE.KV_putex",
            "STREAM.PURGE.KV_putex",
            "STREAM.CREATE.KV_putex",
            "STREAM.CREATE.KV_x",
        ] {
            assert_eq!(ask(&own, verb, json!({})).await, None, "{verb} by putexd");
        }
        assert_eq!(lock().await["subject"], "$KV.putex.db");
        // Whoever may do this can answer in the server's place.
        let inbox = "_INBOX.putexd.other";
        let mut answers = own.subscribe(inbox).await.expect("it may subscribe");
        own.publish(inbox, "forged".into())
            .await
            .expect("it is sent");
        own.flush().await.expect("the server answers");
        let forged = tokio::time::timeout(Duration::from_secs(1), answers.next()).await;
        assert!(
            forged.is_err(),
            "putexd may publish to an inbox: {forged:?}"
        );
    });
    assert_eq!(rig.fixture.oracle.live().len(), 1);

    server.sh("systemctl stop nats-server && rm -r /var/lib/nats/jetstream && systemctl start nats-server");
    wait_until(SOON, "the server denies it", || {
        let printed = said(&init(&rig));
        printed.contains("putexd-stores(7)") && printed.contains("$JS.API.STREAM.CREATE.KV_putex")
    });
    server.sh("cp /usr/share/putexd/permissions/nats-account.conf /etc/nats/ && systemctl reload nats-server");
    wait_until(SOON, "the bucket is made", || init(&rig).status.success());
}

#[test]
fn a_shared_directory_serves_when_it_belongs_to_root_alone() {
    let Some(rig) = Rig::prepare("debshare") else {
        return;
    };
    rig.follow("A SHARED DIRECTORY");
    rig.serves();
    let host = rig.fixture.hosts[..2]
        .iter()
        .find(|host| host.is_on())
        .expect("one is on");
    let found = host.sh("find /srv/putex -perm /077 2>/dev/null || true");
    assert_eq!(found, "", "others have rights to these");
    let attempts = [
        ("read", "cat /srv/putex/lock-db/*/*/value"),
        ("list", "ls /srv/putex"),
        ("write", "mkdir /srv/putex/lock-db/r-99999999999999999999"),
        ("delete", "rm -r /srv/putex/lock-db"),
    ];
    let by = |who: &str, line: &str| host.output(&["runuser", "-u", who, "--", "sh", "-c", line]);
    refused(
        &["permission denied"],
        attempts.map(|(what, line)| (what, by("nobody", line))),
    );
    // What is read may be replaced while it is read.
    wait_until(SOON, "there is something to read", || {
        by("root", attempts[0].1).status.success()
    });
}

#[test]
fn the_scripts_of_a_page_are_found() {
    let page = ".Sh A\n.Bd -literal\nh1# no\n.Ed\n.Sh B\ntext\n.Bd -literal\nh1# a \\-b \\e\n  c\nh1# d\nh1,h2# e\n.Ed\n\
                .Bd -literal\nh1,h2# f\n.Ed\n.Sh C\n.Bd -literal\nh1# no\n.Ed\n";
    let script = |hosts: &[&str], text: &str| Script {
        hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
        text: text.to_owned(),
    };
    let expected = [
        script(&["h1"], "a -b \\\n  c\nd"),
        script(&["h1", "h2"], "e"),
        script(&["h1", "h2"], "f"),
    ];
    assert_eq!(scripts(page, "B"), expected);
}

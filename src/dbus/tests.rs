//! The whole of what is served, over connections without a bus. The test takes the place of the bus, of polkit, and of the daemon.

use std::{
    collections::HashMap,
    os::unix::fs::PermissionsExt as _,
    sync::{
        Mutex,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt as _, future::join_all, stream::FuturesUnordered};
use serde_json::{Value as Json, json};
use tokio::{net::UnixStream, time::timeout};
use zbus::{
    Connection, Guid, Message, MessageStream, OwnedVariant, Variant,
    connection::Builder,
    fdo,
    message::{Flags, Type},
};

use super::*;
use crate::{bus::Plain, facts::ServiceSummary};

/// What polkit is asked.
type Asked = (
    (String, HashMap<String, OwnedVariant>),
    String,
    HashMap<String, String>,
    u32,
    String,
);

/// What `PropertiesChanged` tells.
type Body = (String, HashMap<String, OwnedVariant>, Vec<String>);

/// A socket, and a client at its other end.
fn pair() -> (Plain, impl Future<Output = zbus::Result<Connection>>) {
    let (one, other) = UnixStream::pair().expect("a pair of sockets");
    let client = async {
        let client = Builder::socket(Plain(other)).p2p().build().await?;
        client.set_unique_name(":1.7")?;
        Ok(client)
    };
    (Plain(one), client)
}

/// What polkit answers in a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Polkit {
    Absent,
    Says(bool),
    Challenges,
    Hangs,
}

/// A putexd with services, and all that it asks.
struct Stage {
    client: Connection,
    daemon: Daemon,
    shown: watch::Sender<Shown>,
    uid: Arc<AtomicU32>,
    /// How often the bus says who the client is, before the client has gone.
    stays: Arc<AtomicUsize>,
    polkit: Arc<Mutex<Polkit>>,
    /// The verbs that came, and who asked for them.
    done: Arc<Mutex<Vec<(String, Verb)>>>,
    /// What the daemon answers to them. `None`: it takes its time.
    answer: Arc<Mutex<Option<Result<String, Unmet>>>>,
    /// The actions and flags of the calls of polkit.
    asked: Arc<Mutex<Vec<(String, u32)>>>,
}

fn shown(names: &[&str]) -> Shown {
    let service = |name: &&str| {
        let (unit, state) = (format!("{name}.service"), "standby".to_owned());
        (
            (*name).to_owned(),
            ShownService {
                unit,
                state,
                ..ShownService::default()
            },
        )
    };
    Shown {
        drained: false,
        services: names.iter().map(service).collect(),
    }
}

impl Stage {
    async fn new() -> Self {
        let (asks, asked) = mpsc::channel(16);
        let (on_bus, shown) = watch::channel(shown(&["db-1", "db-2"]));
        let daemon = Daemon::new("h1".parse().expect("a name"), asks, shown);
        let (asking, bus) = pair();
        let asking = Builder::socket(asking)
            .server(Guid::generate())
            .p2p()
            .build();
        let (asking, bus) = tokio::join!(asking, bus);
        let authority = Authority::new(asking.expect("a connection"));
        let (socket, client) = pair();
        let (socket, refusals) = Limit::limited(socket, authority.clone());
        let server = Builder::socket(socket)
            .server(Guid::generate())
            .p2p()
            .build();
        let (server, client) = tokio::join!(server, client);
        let stage = Self {
            client: client.expect("a connection"),
            daemon: daemon.clone(),
            shown: on_bus,
            uid: Arc::default(),
            stays: Arc::new(AtomicUsize::new(usize::MAX)),
            polkit: Arc::new(Mutex::new(Polkit::Absent)),
            done: Arc::default(),
            answer: Arc::new(Mutex::new(Some(Ok("begun".to_owned())))),
            asked: Arc::default(),
        };
        stage.be_the_bus(bus.expect("a connection"));
        stage.be_the_daemon(asked);
        let server = server.expect("a connection");
        let (ready, is_ready) = oneshot::channel();
        tokio::spawn(async move {
            let caller = Caller::OnBus(authority);
            let signalling = signals::serve(&server, &daemon, caller, async || {
                let _ = ready.send(());
                Ok(())
            });
            tokio::select! {
                _ = signalling => {}
                () = refusals.send(&server) => {}
            }
        });
        is_ready.await.expect("the objects are there");
        stage
    }

    fn be_the_bus(&self, bus: Connection) {
        let (uid, polkit, asked) = (
            Arc::clone(&self.uid),
            Arc::clone(&self.polkit),
            Arc::clone(&self.asked),
        );
        let left = Arc::clone(&self.stays);
        tokio::spawn(async move {
            let mut calls = MessageStream::from(&bus);
            while let Some(Ok(call)) = calls.next().await {
                let header = call.header();
                if header
                    .member()
                    .is_some_and(|member| member.as_str() == "GetConnectionUnixUser")
                {
                    let _ = match left.load(Ordering::Relaxed).checked_sub(1) {
                        Some(more) => {
                            left.store(more, Ordering::Relaxed);
                            bus.reply(&header, &uid.load(Ordering::Relaxed)).await
                        }
                        None => {
                            bus.reply_dbus_error(
                                &header,
                                fdo::Error::NameHasNoOwner("gone".to_owned()),
                            )
                            .await
                        }
                    };
                    continue;
                }
                assert_eq!(
                    header.member().map(ToString::to_string).as_deref(),
                    Some("CheckAuthorization")
                );
                let body = call.body();
                let (subject, action, _, flags, _): Asked =
                    body.deserialize().expect("what polkit takes");
                assert_eq!(subject.0, "system-bus-name");
                asked.lock().expect("a lock").push((action, flags));
                let says = *polkit.lock().expect("a lock");
                let details = HashMap::<String, String>::new();
                let _ = match says {
                    Polkit::Absent => {
                        bus.reply_dbus_error(
                            &header,
                            fdo::Error::ServiceUnknown("no polkit".to_owned()),
                        )
                        .await
                    }
                    Polkit::Says(yes) => bus.reply(&header, &((yes, false, details),)).await,
                    Polkit::Challenges => bus.reply(&header, &((false, true, details),)).await,
                    Polkit::Hangs => Ok(()),
                };
            }
        });
    }

    fn be_the_daemon(&self, mut asks: mpsc::Receiver<Ask>) {
        let (done, begun) = (Arc::clone(&self.done), Arc::clone(&self.answer));
        tokio::spawn(async move {
            let mut kept = Vec::new();
            while let Some(ask) = asks.recv().await {
                match ask {
                    Ask::Describe(answer) => {
                        let services = vec![ServiceSummary {
                            unit: "\u{9b}31m\u{1b}\n\"\\\u{202e}".to_owned(),
                            ..ServiceSummary::default()
                        }];
                        drop(answer.send(ClusterState {
                            services,
                            ..ClusterState::default()
                        }));
                    }
                    Ask::Service { service, answer } => {
                        drop(answer.send(Some(ServiceState {
                            service,
                            ..ServiceState::default()
                        })));
                    }
                    Ask::History { answer, .. } => {
                        drop(answer.send(Err(fdo::Error::IOError("no history".to_owned()))))
                    }
                    Ask::Do { verb, by, answer } => {
                        done.lock().expect("a lock").push((by, verb));
                        match begun.lock().expect("a lock").clone() {
                            Some(begun) => drop(answer.send(begun)),
                            None => kept.push(answer),
                        }
                    }
                }
            }
        });
    }

    async fn call<B>(
        &self,
        path: &str,
        interface: &str,
        member: &str,
        body: &B,
    ) -> Result<Message, String>
    where
        B: serde::Serialize + zbus::DynamicType,
    {
        let call = self
            .client
            .call_method(None::<&str>, path, Some(interface), member, body);
        timeout(Duration::from_secs(30), call)
            .await
            .expect("an answer")
            .map_err(|error| error.to_string())
    }

    /// A verb, as `busctl` would call it: the client does not wait for passwords.
    async fn carry_out(&self, verb: &str) -> Result<Json, String> {
        let answer = self
            .call(PATH, "org.putexd.Putexd1.Manager", "Do", &verb)
            .await?;
        Ok(
            serde_json::from_str(&answer.body().deserialize::<String>().expect("a text"))
                .expect("JSON"),
        )
    }

    fn say(&self, uid: u32, polkit: Polkit) {
        self.uid.store(uid, Ordering::Relaxed);
        *self.polkit.lock().expect("a lock") = polkit;
    }
}

const DRAIN: &str = r#"{"verb":"drain"}"#;

#[tokio::test]
async fn the_objects_are_found_and_read_by_the_standard_interfaces_alone() {
    let stage = Stage::new().await;
    let path = "/org/putexd/Putexd1/service/db_2d1";
    let xml = stage
        .call(
            "/",
            "org.freedesktop.DBus.Introspectable",
            "Introspect",
            &(),
        )
        .await
        .expect("an answer");
    let xml: String = xml.body().deserialize().expect("a text");
    for part in [
        "<node name=\"db_2d1\">",
        "<property name=\"State\"",
        "name=\"Do\"",
    ] {
        assert!(xml.contains(part), "{part}: {xml}");
    }
    let all = stage
        .call(
            path,
            "org.freedesktop.DBus.Properties",
            "GetAll",
            &"org.putexd.Putexd1.Service",
        )
        .await;
    let all = all
        .expect("an answer")
        .body()
        .deserialize::<HashMap<String, OwnedVariant>>()
        .expect("properties");
    assert_eq!(*all["Unit"], Variant::from("db-1.service"));
    assert_eq!(all.len(), 5);
    let set = ("org.putexd.Putexd1.Service", "Unit", Variant::from("x"));
    assert!(
        stage
            .call(path, "org.freedesktop.DBus.Properties", "Set", &set)
            .await
            .is_err()
    );
    let objects = stage
        .call(
            PATH,
            "org.freedesktop.DBus.ObjectManager",
            "GetManagedObjects",
            &(),
        )
        .await;
    let objects = objects
        .expect("an answer")
        .body()
        .deserialize::<fdo::ManagedObjects>()
        .expect("objects");
    assert!(
        objects.keys().any(|object| object.as_str() == path),
        "{objects:?}"
    );

    let manager = ManagerProxy::new(&stage.client).await.expect("a proxy");
    assert_eq!(
        (manager.node().await, manager.drained().await),
        (Ok("h1".to_owned()), Ok(false))
    );
    let described = manager.describe().await.expect("an answer");
    let read: ClusterState = serde_json::from_str(&described).expect("it is JSON");
    assert_eq!(
        read.services[0].unit, "\\u{9b}31m\\u{1b}\n\"\\\\u{202e}",
        "nothing goes over the bus that a terminal would obey"
    );
    let service = ServiceObjectProxy::builder(&stage.client)
        .path(path)
        .build()
        .await
        .expect("a proxy");
    let described = service.describe().await.expect("an answer");
    assert_eq!(
        serde_json::from_str::<ServiceState>(&described)
            .expect("it is JSON")
            .service,
        "db-1"
    );
    let error = manager
        .describe_history("db-1")
        .await
        .expect_err("the store does not answer");
    assert!(matches!(error, fdo::Error::IOError(_)), "{error}");
    // A verb that is not understood says what is wrong with it.
    for (verb, words) in [
        ("nonsense", "is no verb"),
        (r#"{"verb":"step-down"}"#, "service"),
        (
            r#"{"verb":"undrain","force":true}"#,
            "unknown field `force`",
        ),
        (
            r#"{"verb":"pause","service":"db-1","until":0}"#,
            "give a later time",
        ),
    ] {
        let error = stage.carry_out(verb).await.expect_err("it is refused");
        assert!(
            error.contains("InvalidArgs") && error.contains(words),
            "{verb}: {error}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn who_may_act_is_said_by_root_or_by_polkit_and_everybody_may_look() {
    let denied = "org.freedesktop.DBus.Error.AccessDenied";
    let cases = [
        (0, Polkit::Hangs, None),
        (1000, Polkit::Says(true), None),
        (1000, Polkit::Says(false), Some(denied)),
        (1000, Polkit::Absent, Some(denied)),
        (1000, Polkit::Hangs, Some(denied)),
        (
            1000,
            Polkit::Challenges,
            Some("org.freedesktop.DBus.Error.InteractiveAuthorizationRequired"),
        ),
    ];
    for (uid, polkit, refused) in cases {
        let stage = Stage::new().await;
        stage.say(uid, polkit);
        let answer = stage.carry_out(DRAIN).await;
        let done = stage.done.lock().expect("a lock").clone();
        match refused {
            None => {
                assert_eq!(answer, Ok(json!({ "begun": "begun", "needless": false })));
                let (by, verb) = &done[0];
                assert!(by.ends_with("@h1") && (uid != 0 || by == "root@h1"), "{by}");
                assert_eq!(
                    *verb,
                    Verb::Drain {
                        reason: None,
                        until: None,
                        force: false,
                        removal: false,
                    }
                );
            }
            Some(name) => {
                let error = answer.expect_err("it is refused");
                assert!(error.contains(name), "{polkit:?}: {error}");
                assert!(done.is_empty());
            }
        }
        assert!(
            stage
                .call(PATH, "org.putexd.Putexd1.Manager", "Describe", &())
                .await
                .is_ok(),
            "{polkit:?}"
        );
    }
}

#[tokio::test]
async fn putexctl_lets_polkit_ask_for_a_password_and_a_dead_host_is_another_matter() {
    let stage = Stage::new().await;
    stage.say(1000, Polkit::Says(true));
    let manager = ManagerProxy::new(&stage.client).await.expect("a proxy");
    let node = "h2".parse().expect("a name");
    for verb in [Verb::Undrain {}, Verb::ConfirmDead { node, yes: false }] {
        manager
            .carry_out(&serde_json::to_string(&verb).expect("JSON"))
            .await
            .expect("it is begun");
        assert_eq!(
            stage
                .done
                .lock()
                .expect("a lock")
                .pop()
                .expect("it was asked for")
                .1,
            verb
        );
    }
    let actions = ["manage-services", "confirm-dead"]
        .map(|action| (format!("org.putexd.Putexd1.{action}"), 1));
    assert_eq!(*stage.asked.lock().expect("a lock"), actions);
}

/// As a client that has waited too long for a putexd that stood still, and has told its user that nothing is known.
#[tokio::test(start_paused = true)]
async fn nothing_is_done_for_a_client_that_has_gone_meanwhile() {
    for (uid, polkit) in [(0, Polkit::Absent), (1000, Polkit::Says(true))] {
        let stage = Stage::new().await;
        stage.say(uid, polkit);
        // The limit has asked once.
        stage.stays.store(2, Ordering::Relaxed);
        let error = stage
            .carry_out(DRAIN)
            .await
            .expect_err("nobody waits for it");
        assert!(error.contains("the bus does not say who asks"), "{error}");
        assert!(stage.done.lock().expect("a lock").is_empty());
        stage.stays.store(2, Ordering::Relaxed);
        assert!(stage.carry_out(DRAIN).await.is_ok());
        assert_eq!(stage.done.lock().expect("a lock").len(), 1);
    }
}

/// putexctl tells by the error whether anything was changed.
#[tokio::test(start_paused = true)]
async fn what_may_have_begun_has_another_error_than_what_was_refused() {
    let stage = Stage::new().await;
    for (answer, name) in [
        (
            Unmet::Refused("say it there".to_owned()),
            "org.freedesktop.DBus.Error.Failed",
        ),
        (
            Unmet::Open("h2 may do it".to_owned()),
            "org.freedesktop.DBus.Error.NoReply",
        ),
    ] {
        *stage.answer.lock().expect("a lock") = Some(Err(answer));
        let error = stage.carry_out(DRAIN).await.expect_err("it is not begun");
        assert!(error.contains(name), "{error}");
    }
}

#[tokio::test]
async fn more_calls_than_a_user_may_have_are_refused_at_once_and_root_has_no_limit() {
    let stage = Stage::new().await;
    *stage.answer.lock().expect("a lock") = None;
    stage.say(1000, Polkit::Says(true));
    let ping = Message::method_call("/", "Ping").interface("org.freedesktop.DBus.Peer");
    let ping = ping.sender(":1.7").with_flags(Flags::NO_REPLY_EXPECTED);
    let ping = ping.build(&()).expect("a message");
    for _ in 0..100 {
        stage.client.send(&ping).await.expect("it is sent");
    }
    let mut flood: FuturesUnordered<_> = (0..100).map(|_| stage.call_drain()).collect();
    for answered in 0..100 - limit::CALLS {
        let answer = timeout(Duration::from_secs(30), flood.next()).await;
        let answer = answer.unwrap_or_else(|_| panic!("{answered} are refused at once"));
        let error = answer.expect("a call").expect_err("it is refused");
        assert!(
            error.contains("org.freedesktop.DBus.Error.LimitsExceeded"),
            "{error}"
        );
    }
    let more = timeout(Duration::from_millis(400), flood.next()).await;
    assert!(more.is_err(), "the others wait: {more:?}");
    assert_eq!(stage.done.lock().expect("a lock").len(), limit::CALLS);

    let stage = Stage::new().await;
    assert!(
        join_all((0..100).map(|_| stage.carry_out(DRAIN)))
            .await
            .iter()
            .all(Result::is_ok)
    );
}

impl Stage {
    async fn call_drain(&self) -> Result<Json, String> {
        self.carry_out(DRAIN).await
    }
}

#[tokio::test(start_paused = true)]
async fn what_changes_is_signalled() {
    let stage = Stage::new().await;
    // What was told before is over then.
    stage
        .call("/", "org.freedesktop.DBus.Peer", "Ping", &())
        .await
        .expect("an answer");
    let mut signals = MessageStream::from(&stage.client);
    let mut next = async || loop {
        let message = timeout(Duration::from_secs(10), signals.next())
            .await
            .ok()??
            .ok()?;
        if message.message_type() == Type::Signal {
            let header = message.header();
            let (path, member) = (header.path()?.to_string(), header.member()?.to_string());
            return Some((path, member, message.clone()));
        }
    };
    stage.shown.send_modify(|shown| {
        shown.services.get_mut("db-1").expect("it is there").state = "active".to_owned()
    });
    let (path, member, message) = next().await.expect("a signal");
    assert_eq!(
        (path.as_str(), member.as_str()),
        ("/org/putexd/Putexd1/service/db_2d1", "PropertiesChanged")
    );
    let (_, changed, _): Body = message.body().deserialize().expect("changes");
    assert!(changed.contains_key("State") && !changed.contains_key("Unit"));

    // A service goes, and another comes.
    stage.shown.send_replace(shown(&["db-1", "web"]));
    assert_eq!(next().await.expect("a signal").1, "InterfacesRemoved");
    assert_eq!(next().await.expect("a signal").1, "PropertiesChanged");
    assert_eq!(next().await.expect("a signal").1, "InterfacesAdded");
    stage.shown.send_modify(|shown| shown.drained = true);
    assert_eq!(next().await.expect("a signal").0, PATH);
    assert!(next().await.is_none());
}

#[tokio::test]
async fn root_has_a_socket_of_his_own() {
    let stage = Stage::new().await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("control");
    assert_eq!(control::server(&path).await, None);
    control::serve(&path, stage.daemon.clone());
    assert_eq!(
        std::fs::metadata(&path)
            .expect("it is there")
            .permissions()
            .mode()
            & 0o777,
        0o600
    );
    let process = i32::try_from(std::process::id()).expect("a process id");
    assert_eq!(control::server(&path).await, Some(process));
    let client = control::connect(&path).await.expect("a connection");
    let manager = ManagerProxy::new(&client).await.expect("a proxy");
    assert!(manager.describe().await.is_ok());
    manager.carry_out(DRAIN).await.expect("it is begun");
    assert_eq!(stage.done.lock().expect("a lock")[0].0, "root@h1");
    drop(manager);
    // A client that has gone is seen to have.
    let (one, other) = UnixStream::pair().expect("a pair of sockets");
    let one = std::os::fd::OwnedFd::from(one.into_std().expect("a socket"));
    assert!(authority::is_there(&one));
    drop(other);
    assert!(!authority::is_there(&one));
}

/// The items of the manual page in bold, by their heading.
fn items() -> Vec<(String, String)> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/packaging/usr/share/man/man5/org.putexd.Putexd1.5"
    );
    let page = std::fs::read_to_string(path).expect("the page can be read");
    let mut heading = "";
    let mut all = Vec::new();
    for line in page.lines() {
        if let Some(title) = line.strip_prefix(".Ss org.putexd.Putexd1.") {
            heading = title;
        } else if line.starts_with(".S") {
            heading = "";
        } else if let Some(item) = line
            .strip_prefix(".It \\fB")
            .filter(|_| !heading.is_empty())
        {
            all.push((
                heading.to_owned(),
                item.split("\\fR").next().unwrap_or_default().to_owned(),
            ));
        }
    }
    all.sort();
    all
}

#[tokio::test]
async fn the_page_names_every_method_signal_and_property() {
    let stage = Stage::new().await;
    let mut served = Vec::new();
    for (path, of) in [
        (PATH, "Manager"),
        ("/org/putexd/Putexd1/service/db_2d1", "Service"),
    ] {
        let xml = stage
            .call(
                path,
                "org.freedesktop.DBus.Introspectable",
                "Introspect",
                &(),
            )
            .await
            .expect("an answer");
        let xml: String = xml.body().deserialize().expect("a text");
        let begin = xml
            .find(&format!("<interface name=\"org.putexd.Putexd1.{of}\">"))
            .expect("it has the interface");
        let xml = xml[begin..]
            .split("</interface>")
            .next()
            .unwrap_or_default();
        for kind in ["method", "signal", "property"] {
            let begin = format!("<{kind} name=\"");
            let names = xml
                .split(&begin)
                .skip(1)
                .filter_map(|rest| rest.split('"').next());
            served.extend(names.map(|name| (of.to_owned(), name.to_owned())));
        }
    }
    served.sort();
    assert_eq!(items(), served);
}

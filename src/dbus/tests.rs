//! The whole of what is served, over connections without a bus. The test takes the place of the bus, of polkit, and of the daemon.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use zbus::connection::Builder;
use zbus::message::Type;
use zbus::{Connection, Guid, Message, MessageStream, OwnedVariant, Variant, fdo};

use super::authority::Authority;
use super::desk::Desk;
use super::teller::Teller;
use super::*;

/// What polkit is asked, and what it says at last.
type Asked = ((String, HashMap<String, OwnedVariant>), String, HashMap<String, String>, u32, String);
/// The answer of `GetManagedObjects`.
type Objects = HashMap<zbus::OwnedObjectPath, BTreeMap<String, Dictionary>>;
/// What `PropertiesChanged` tells.
type Body = (String, Dictionary, Vec<String>);

/// Both ends of a connection.
async fn pair() -> (Connection, Connection) {
    let (one, other) = UnixStream::pair().expect("a pair of sockets");
    let server = Builder::unix_stream(one).server(Guid::generate()).p2p().build();
    let client = Builder::unix_stream(other).p2p().build();
    let (server, client) = tokio::join!(server, client);
    (server.expect("a connection"), client.expect("a connection"))
}

/// What polkit answers in a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Polkit {
    Absent,
    /// PID 1 does not start it, with this error.
    NotStarted(&'static str),
    Says(bool),
    Challenges,
    Hangs,
}

/// A putexd with three services, and all that it asks.
struct Stage {
    client: Connection,
    services: Arc<Mutex<Vec<ServiceStatus>>>,
    bulletin: Bulletin,
    uid: Arc<AtomicU32>,
    /// How often the bus says who the client is, before the client has gone.
    stays: Arc<AtomicUsize>,
    polkit: Arc<Mutex<Polkit>>,
    /// The verbs that came, and who asked for them.
    done: Arc<Mutex<Vec<(String, Verb)>>>,
    /// What the daemon answers to them.
    answer: Arc<Mutex<Result<String, Unmet>>>,
    /// How often the daemon was asked for all services, and for changes.
    asked: Arc<[AtomicUsize; 2]>,
    /// The flags of the calls of polkit.
    flags: Arc<Mutex<Vec<u32>>>,
}

fn service(name: &str) -> ServiceStatus {
    ServiceStatus {
        service: name.to_owned(),
        unit: format!("{name}.service"),
        state: "standby".to_owned(),
        ..ServiceStatus::default()
    }
}

impl Stage {
    async fn new(count: usize) -> Self {
        let (server, client) = pair().await;
        let (asking, bus) = pair().await;
        let services = (1..=count).map(|number| service(&format!("db-{number}"))).collect();
        let (asks, asked) = mpsc::channel(16);
        let stage = Self {
            client,
            services: Arc::new(Mutex::new(services)),
            bulletin: Bulletin::default(),
            uid: Arc::default(),
            stays: Arc::new(AtomicUsize::new(usize::MAX)),
            polkit: Arc::new(Mutex::new(Polkit::Absent)),
            done: Arc::default(),
            answer: Arc::new(Mutex::new(Ok("begun".to_owned()))),
            asked: Arc::default(),
            flags: Arc::default(),
        };
        stage.be_the_bus(bus);
        stage.be_the_daemon(asked);
        let node = "h1".parse().expect("a name");
        let desk = Desk::new(server.clone(), asks.clone(), Authority::new(asking, node));
        let teller = Teller::new(server.clone(), asks, stage.bulletin.clone());
        tokio::spawn(async move { answer(&server, desk).await });
        tokio::spawn(teller.run());
        stage
    }

    fn be_the_bus(&self, bus: Connection) {
        let (uid, polkit, flags) = (Arc::clone(&self.uid), Arc::clone(&self.polkit), Arc::clone(&self.flags));
        let left = Arc::clone(&self.stays);
        tokio::spawn(async move {
            let mut calls = MessageStream::from(&bus);
            while let Some(Ok(call)) = calls.next().await {
                let header = call.header();
                if header.member().is_some_and(|member| member.as_str() == "GetConnectionCredentials") {
                    let Some(more) = left.load(Ordering::Relaxed).checked_sub(1) else {
                        let gone = fdo::Error::NameHasNoOwner("it has gone".to_owned());
                        let _ = bus.reply_dbus_error(&header, gone).await;
                        continue;
                    };
                    left.store(more, Ordering::Relaxed);
                    let uid = Variant::from(uid.load(Ordering::Relaxed));
                    let _ = bus.reply(&header, &HashMap::from([("UnixUserID", uid)])).await;
                    continue;
                }
                assert_eq!(header.member().map(ToString::to_string).as_deref(), Some("CheckAuthorization"));
                let body = call.body();
                let (subject, _, _, flag, _): Asked = body.deserialize().expect("what polkit takes");
                assert_eq!(subject.0, "system-bus-name");
                flags.lock().expect("a lock").push(flag);
                let says = *polkit.lock().expect("a lock");
                let details = HashMap::<String, String>::new();
                let _ = match says {
                    Polkit::Absent => {
                        bus.reply_dbus_error(&header, fdo::Error::ServiceUnknown("no polkit".to_owned())).await
                    }
                    Polkit::NotStarted(name) => bus.reply_error(&header, name, &"it is not started").await,
                    Polkit::Says(yes) => bus.reply(&header, &((yes, false, details),)).await,
                    Polkit::Challenges => bus.reply(&header, &((false, true, details),)).await,
                    Polkit::Hangs => Ok(()),
                };
            }
        });
    }

    fn be_the_daemon(&self, mut asks: mpsc::Receiver<Ask>) {
        let (services, done, asked) = (Arc::clone(&self.services), Arc::clone(&self.done), Arc::clone(&self.asked));
        let begun = Arc::clone(&self.answer);
        tokio::spawn(async move {
            while let Some(ask) = asks.recv().await {
                let all = services.lock().expect("a lock").clone();
                match ask {
                    Ask::List(answer) => {
                        asked[0].fetch_add(1, Ordering::Relaxed);
                        let _ = answer.send(all);
                    }
                    Ask::Changes { all: whole, answer, .. } => {
                        asked[1].fetch_add(1, Ordering::Relaxed);
                        let names: BTreeSet<String> = all.iter().map(|status| status.service.clone()).collect();
                        let _ = answer.send(Changes { services: all, names: whole.then_some(names) });
                    }
                    Ask::Store(answer) => drop(answer.send(StoreStatus::default())),
                    Ask::Cluster(answer) => drop(answer.send(ClusterStatus::default())),
                    Ask::History { answer, .. } => drop(answer.send(Err(Unread::Store("no history".to_owned())))),
                    Ask::Do { verb, by, answer } => {
                        done.lock().expect("a lock").push((by, verb));
                        let _ = answer.send(begun.lock().expect("a lock").clone());
                    }
                }
            }
        });
    }

    async fn call<B>(&self, path: &str, interface: &str, member: &str, body: &B) -> Result<Message, String>
    where
        B: serde::Serialize + zbus::DynamicType,
    {
        let call = self.client.call_method(None::<&str>, path, Some(interface), member, body);
        timeout(Duration::from_secs(30), call).await.expect("an answer").map_err(|error| error.to_string())
    }

    /// A verb, as `busctl` would call it: the client does not wait for passwords.
    async fn drain(&self) -> Result<Dictionary, String> {
        let none = Dictionary::new();
        let answer = self.call(PATH, "org.putexd.Putexd1.Manager", "Drain", &none).await?;
        Ok(answer.body().deserialize().expect("a dictionary"))
    }
}

#[tokio::test]
async fn the_objects_are_found_and_read_by_the_standard_interfaces_alone() {
    let stage = Stage::new(2).await;
    let introspect = async |path: &str| {
        let answer = stage.call(path, "org.freedesktop.DBus.Introspectable", "Introspect", &()).await;
        answer.map(|answer| answer.body().deserialize::<String>().expect("a text"))
    };
    let mut path = String::new();
    for part in ["org", "putexd", "Putexd1", "service", "db_2d1"] {
        let at = if path.is_empty() { "/" } else { &path };
        let xml = introspect(at).await.expect("it is there");
        assert!(xml.contains(&format!("<node name=\"{part}\"/>")), "{at}: {xml}");
        path = format!("{path}/{part}");
    }
    let xml = introspect(&path).await.expect("it is there");
    assert!(xml.contains("<signal name=\"Transition\">") && xml.contains("<property name=\"State\""), "{xml}");
    assert!(introspect("/org/putexd/Putexd1/service/none").await.is_err());

    let all = stage.call(&path, "org.freedesktop.DBus.Properties", "GetAll", &"org.putexd.Putexd1.Service").await;
    let all = all.expect("an answer");
    let all: Dictionary = all.body().deserialize().expect("a dictionary");
    assert_eq!(all.len(), object::PROPERTIES.len());
    let get = ("org.putexd.Putexd1.Service", "Unit");
    let unit = stage.call(&path, "org.freedesktop.DBus.Properties", "Get", &get).await.expect("an answer");
    let unit: OwnedVariant = unit.body().deserialize().expect("a variant");
    assert_eq!(*unit, Variant::from("db-1.service"));
    let set = (get.0, get.1, Variant::from("x"));
    assert!(stage.call(&path, "org.freedesktop.DBus.Properties", "Set", &set).await.is_err());
    let managed = stage.call(PATH, "org.freedesktop.DBus.ObjectManager", "GetManagedObjects", &()).await;
    let managed = managed.expect("an answer").body().deserialize::<Objects>().expect("objects");
    assert_eq!(managed.len(), 2);

    let described = stage.call(PATH, "org.putexd.Putexd1.Status", "DescribeService", &"db-2").await.expect("an answer");
    let mut described: Dictionary = described.body().deserialize().expect("a dictionary");
    described.insert("of-a-later-version".to_owned(), OwnedVariant::from(true));
    let read: ServiceStatus = dictionary::from_dictionary(described).expect("it is read by an older program");
    assert_eq!(read, service("db-2"));
    // A call that is not understood says what is wrong with it.
    let error =
        stage.call(PATH, "org.putexd.Putexd1.Manager", "StepDown", &"db-1").await.expect_err("it lacks options");
    assert!(error.contains("sa{sv}"), "{error}");
    let error = stage.call(PATH, "org.putexd.Putexd1.Status", "Nothing", &()).await.expect_err("there is none");
    assert!(error.contains("no method"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn who_may_act_is_said_by_root_or_by_polkit() {
    let denied = "org.freedesktop.DBus.Error.AccessDenied";
    let cases = [
        (0, Polkit::Hangs, None),
        (1000, Polkit::Says(true), None),
        (1000, Polkit::Says(false), Some(denied)),
        (1000, Polkit::Absent, Some(denied)),
        (1000, Polkit::NotStarted("org.freedesktop.systemd1.UnitMasked"), Some(denied)),
        (1000, Polkit::NotStarted("org.freedesktop.systemd1.NoSuchUnit"), Some(denied)),
        (1000, Polkit::NotStarted("org.freedesktop.systemd1.LoadFailed"), Some(denied)),
        (1000, Polkit::Hangs, Some(denied)),
        (1000, Polkit::Challenges, Some("org.freedesktop.DBus.Error.InteractiveAuthorizationRequired")),
    ];
    for (uid, polkit, refused) in cases {
        let stage = Stage::new(1).await;
        stage.uid.store(uid, Ordering::Relaxed);
        *stage.polkit.lock().expect("a lock") = polkit;
        let answer = stage.drain().await;
        let done = stage.done.lock().expect("a lock").clone();
        match refused {
            None => {
                assert_eq!(*answer.expect("it is begun")["begun"], Variant::from("begun"));
                let (by, verb) = &done[0];
                assert!(by.ends_with("@h1") && (uid != 0 || by == "root@h1"), "{by}");
                assert_eq!(*verb, Verb::Drain { reason: String::new(), until: None, force: false });
            }
            Some(name) => {
                let error = answer.expect_err("it is refused");
                assert!(error.contains(name), "{polkit:?}: {error}");
                assert!(done.is_empty());
            }
        }
        // Whoever may not act may look, unless polkit is there and does not say so.
        let looks = stage.call(PATH, "org.putexd.Putexd1.Status", "ListServices", &()).await;
        let is_absent = match polkit {
            Polkit::Absent => true,
            Polkit::NotStarted(error) => !error.ends_with("LoadFailed"),
            Polkit::Says(_) | Polkit::Challenges | Polkit::Hangs => false,
        };
        let may = uid == 0 || is_absent || polkit == Polkit::Says(true);
        assert_eq!(looks.is_ok(), may, "{polkit:?}: {looks:?}");
    }
}

/// As a client that has waited too long for a putexd that stood still, and has told its user that nothing is known.
#[tokio::test(start_paused = true)]
async fn nothing_is_done_for_a_client_that_has_gone_meanwhile() {
    for (uid, polkit) in [(0, Polkit::Absent), (1000, Polkit::Says(true))] {
        let stage = Stage::new(1).await;
        stage.uid.store(uid, Ordering::Relaxed);
        *stage.polkit.lock().expect("a lock") = polkit;
        stage.stays.store(1, Ordering::Relaxed);
        let error = stage.drain().await.expect_err("nobody waits for it");
        assert!(error.contains("the bus does not say who asks"), "{error}");
        assert!(stage.done.lock().expect("a lock").is_empty());
        stage.stays.store(2, Ordering::Relaxed);
        assert!(stage.drain().await.is_ok());
        assert_eq!(stage.done.lock().expect("a lock").len(), 1);
    }
}

/// putexctl tells by the error whether anything was changed.
#[tokio::test(start_paused = true)]
async fn what_may_have_begun_has_another_error_than_what_was_refused() {
    let stage = Stage::new(1).await;
    for (answer, name) in [
        (Unmet::Refused("say it there".to_owned()), "org.freedesktop.DBus.Error.Failed"),
        (Unmet::Open("h2 may do it".to_owned()), "org.freedesktop.DBus.Error.NoReply"),
    ] {
        *stage.answer.lock().expect("a lock") = Err(answer);
        let error = stage.drain().await.expect_err("it is not begun");
        assert!(error.contains(name), "{error}");
    }
}

#[tokio::test]
async fn putexctl_lets_polkit_ask_for_a_password() {
    let stage = Stage::new(1).await;
    stage.uid.store(1000, Ordering::Relaxed);
    *stage.polkit.lock().expect("a lock") = Polkit::Says(true);
    let manager = ManagerProxy::new(&stage.client).await.expect("a proxy");
    let options = Options { reason: Some("a disk".to_owned()), to: Some("h2".to_owned()), ..Options::default() };
    manager.step_down("db-1", options.into()).await.expect("it is begun");
    assert_eq!(*stage.flags.lock().expect("a lock"), [1]);
    let verb = Verb::StepDown {
        service: "db-1".parse().expect("a name"),
        reason: "a disk".to_owned(),
        to: Some("h2".parse().expect("a name")),
    };
    assert_eq!(stage.done.lock().expect("a lock")[0].1, verb);
}

#[tokio::test(start_paused = true)]
async fn changes_are_told_once_and_not_too_often() {
    let stage = Stage::new(3).await;
    let mut signals = MessageStream::from(&stage.client);
    // Until the teller has looked for the first time.
    while stage.asked[1].load(Ordering::Relaxed) == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let change = |what: &dyn Fn(&mut ServiceStatus)| {
        what(&mut stage.services.lock().expect("a lock")[0]);
        stage.bulletin.changed();
    };
    let mut next = async || loop {
        let message = timeout(Duration::from_secs(10), signals.next()).await.ok()??.ok()?;
        if message.message_type() == Type::Signal {
            let header = message.header();
            let (path, member) = (header.path()?.to_string(), header.member()?.to_string());
            return Some((path, member, message.clone()));
        }
    };
    let began = Instant::now();
    change(&|status| status.state = "active".to_owned());
    stage.bulletin.transition(TransitionStatus { service: "db-1".to_owned(), ..TransitionStatus::default() });
    let (path, member, message) = next().await.expect("a signal");
    assert_eq!((path.as_str(), member.as_str()), ("/org/putexd/Putexd1/service/db_2d1", "PropertiesChanged"));
    let (_, changed, _): Body = message.body().deserialize().expect("changes");
    assert_eq!(changed.keys().collect::<Vec<_>>(), ["State"]);
    assert_eq!(next().await.expect("a signal").1, "Transition");
    assert!(began.elapsed() < Duration::from_millis(500), "a change of state does not wait");

    // What changes without a change of state waits for the second to pass, and what has changed back is never told.
    change(&|status| status.holder = "h7".to_owned());
    tokio::time::sleep(Duration::from_millis(300)).await;
    change(&|status| status.holder.clear());
    change(&|status| status.revision += 1);
    change(&|status| status.health = "passes".to_owned());
    let (_, _, message) = next().await.expect("a signal");
    let (_, changed, _): Body = message.body().deserialize().expect("changes");
    assert_eq!(changed.keys().collect::<Vec<_>>(), ["Health"]);
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());

    // A service goes, and another comes.
    stage.services.lock().expect("a lock")[2] = service("web");
    stage.bulletin.all_changed();
    assert_eq!(next().await.expect("a signal").1, "InterfacesRemoved");
    assert_eq!(next().await.expect("a signal").1, "InterfacesAdded");

    // Where nothing changes nobody is asked.
    let asked = stage.asked[1].load(Ordering::Relaxed);
    assert!(next().await.is_none());
    assert_eq!(stage.asked[1].load(Ordering::Relaxed), asked);
}

#[tokio::test(start_paused = true)]
async fn looks_are_answered_at_a_bounded_pace_from_one_picture() {
    let stage = Stage::new(300).await;
    let looks = StatusProxy::new(&stage.client).await.expect("a proxy");
    let began = Instant::now();
    let mut at_once = 0;
    for _ in 0..300 {
        assert_eq!(looks.list_services().await.expect("an answer").len(), 300);
        at_once += usize::from(began.elapsed() < Duration::from_millis(100));
    }
    let took = began.elapsed();
    let pace = Duration::from_micros(800 + 300 * 100);
    assert!(took > pace * 280 && took < pace * 330, "{took:?}");
    assert!(at_once > 2, "an operator's few looks do not wait: {at_once}");
    let asked = stage.asked[0].load(Ordering::Relaxed);
    assert!(asked as u128 <= took.as_millis() / 100 + 1, "the daemon was asked {asked} times in {took:?}");
}

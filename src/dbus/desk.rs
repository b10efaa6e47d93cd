//! Takes the calls of clients and answers them.
//!
//! Clients that look, however often, must cost no service anything. Looks, which include the standard interfaces of D-Bus, are
//! answered one after the other, at a bounded pace, from a picture that is taken anew after [`FRESH`]. Calls beyond the
//! queue of 64 wait in the bus, which limits them for each of its clients. What may take longer, as acting does, and
//! asking polkit, is done in tasks of which there is a limited number.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::{Mutex, Semaphore, mpsc, oneshot};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};
use zbus::message::{Flags, Header};
use zbus::{Connection, DynamicType, Message, ObjectPath, Variant, fdo};

use super::authority::Authority;
use super::dictionary::{Dictionary, to_dictionary};
use super::interfaces::{
    self, INTROSPECTABLE, MANAGER, OBJECT_MANAGER, OF_MANAGER, OF_SERVICE, OF_STATUS, PEER, PROPERTIES_OF, STATUS,
};
use super::options::{self, Options};
use super::status::{Begun, ServiceStatus};
use super::{Ask, PATH, SERVICE, Unread, object};
use crate::cluster::request::{Unmet, Verb};
use crate::host::clock;
use crate::types::{ServiceName, printable};

/// The least age at which the picture that looks are answered from is taken anew.
const FRESH: Duration = Duration::from_millis(100);
/// The picture also stays for so many times the time that it took, so that taking it costs a small share of a processor.
const FRESH_SHARE: u32 = 20;
/// The time between two looks, once more of them have come than [`BURST`] allows for: the time that an answer takes, and
/// three times as much for others.
const PACE: Duration = Duration::from_micros(800);
/// What is added to [`PACE`] for each service in the answer.
const PACE_OF_SERVICE: Duration = Duration::from_micros(100);
/// For how many times the processor time of an answer no other look is answered, so that looks cost an eighth of a processor at
/// most, however slow the host is.
const REST_SHARE: u32 = 7;
/// For how much time the looks may come at once.
const BURST: Duration = Duration::from_millis(100);
/// How many services are put into words before others get a turn.
const STEP: usize = 16;
/// The longest body of a call that is read.
const BODY_LIMIT: usize = 64 * 1024;
/// How many operators are served at once.
const ACTING: usize = 32;
/// How many clients other than root are asked about at once.
const ASKING: usize = 8;
/// How many histories are read at once: each is read from the store.
const READING: usize = 4;

/// Answers calls, each on its own.
pub(super) struct Desk {
    bus: Connection,
    asks: mpsc::Sender<Ask>,
    authority: Authority,
    cache: Mutex<Cache>,
    reading: Arc<Semaphore>,
    acting: Arc<Semaphore>,
    asking: Arc<Semaphore>,
}

/// All services at one time.
struct Picture {
    services: Vec<ServiceStatus>,
    dictionaries: Vec<Dictionary>,
}

/// What all clients that look share.
#[derive(Default)]
struct Cache {
    services: Option<(Instant, Arc<Picture>)>,
    store: Option<(Instant, Dictionary)>,
    cluster: Option<(Instant, Dictionary)>,
    next_look: Option<Instant>,
}

impl Cache {
    /// When the next look may be answered, whose answer has so many services in it.
    fn turn(&mut self, now: Instant, services: usize) -> Instant {
        let pace = PACE + PACE_OF_SERVICE * u32::try_from(services).unwrap_or(u32::MAX);
        let turn = self.next_look.map_or(now, |next| next.max(now - BURST));
        self.next_look = Some(turn + pace);
        turn
    }

    /// Puts off the next look for what an answer has cost.
    fn rest(&mut self, cost: Duration) {
        let rested = Instant::now() + cost * REST_SHARE;
        self.next_look = Some(self.next_look.map_or(rested, |next| next.max(rested)));
    }

    fn count(&self) -> usize {
        self.services.as_ref().map_or(0, |(_, picture)| picture.services.len())
    }
}

/// The beginning of an answer.
struct Answering {
    at: Instant,
    used: Duration,
}

impl Answering {
    fn now() -> Self {
        Self { at: Instant::now(), used: clock::used() }
    }

    /// The processor time since then. What other tasks used meanwhile is in it, and no more than the time that has passed. On a
    /// host that is busy with other programs it is much less than that.
    fn cost(&self) -> Duration {
        clock::used().saturating_sub(self.used).min(self.at.elapsed())
    }
}

/// What is kept, if it is not too old.
fn fresh<T: Clone>(kept: Option<&(Instant, T)>) -> Option<T> {
    kept.filter(|(until, _)| Instant::now() < *until).map(|(_, kept)| kept.clone())
}

/// Until when something may be kept that was asked for at `began`.
fn kept_until(began: Instant) -> Instant {
    let now = Instant::now();
    now + FRESH + (now - began) * FRESH_SHARE
}

/// What a client may want to see.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    Ping,
    Machine,
    Introspect,
    Managed,
    List,
    Describe(ServiceName),
    Store,
    Cluster,
    History(ServiceName, Option<u64>),
    /// The property of a service's object.
    Get(String),
    /// All properties of a service's object.
    GetAll,
    /// Those of another object, which has none.
    GetNothing,
}

/// A call that is understood.
#[derive(Debug, PartialEq, Eq)]
enum Call {
    Look(Look),
    Do(Verb),
}

impl Call {
    fn of(message: &Message) -> fdo::Result<Self> {
        let header = message.header();
        let path = header.path().map_or("", |path| path.as_str());
        let member = header.member().map_or("", |member| member.as_str());
        let interface = header.interface().map_or("", |interface| interface.as_str());
        if message.body().len() > BODY_LIMIT {
            return Err(fdo::Error::InvalidArgs(format!("what is sent is longer than {BODY_LIMIT} bytes")));
        }
        let at = |offered: &str, wanted: &str| (interface.is_empty() || interface == offered) && member == wanted;
        let is_manager = path == PATH;
        if at(PEER, "Ping") {
            return Ok(Self::Look(Look::Ping));
        } else if at(PEER, "GetMachineId") {
            return Ok(Self::Look(Look::Machine));
        } else if at(INTROSPECTABLE, "Introspect") {
            return Ok(Self::Look(Look::Introspect));
        } else if at(OBJECT_MANAGER, "GetManagedObjects") && is_manager {
            return Ok(Self::Look(Look::Managed));
        } else if at(PROPERTIES_OF, "Get") {
            let (interface, name): (String, String) = arguments(message)?;
            let is_known = interface == OF_SERVICE && is_of_service(path);
            let unknown = || fdo::Error::UnknownInterface(format!("{path} has no properties of {interface:?}"));
            return if is_known { Ok(Self::Look(Look::Get(name))) } else { Err(unknown()) };
        } else if at(PROPERTIES_OF, "GetAll") {
            let of: String = arguments(message)?;
            let has_some = is_of_service(path) && [OF_SERVICE, ""].contains(&of.as_str());
            return Ok(Self::Look(if has_some { Look::GetAll } else { Look::GetNothing }));
        } else if at(PROPERTIES_OF, "Set") {
            return Err(fdo::Error::PropertyReadOnly("no property can be set".to_owned()));
        }
        let has =
            |interface: &interfaces::Interface| interface.methods.iter().any(|method| at(interface.name, method.name));
        if is_manager && has(&OF_STATUS) {
            Look::of(message, member).map(Self::Look)
        } else if is_manager && has(&OF_MANAGER) {
            verb(message, member).map(Self::Do)
        } else {
            Err(fdo::Error::UnknownMethod(format!("{path} has no method {member:?} of {interface:?}")))
        }
    }
}

impl Look {
    /// Reads a call of [`STATUS`].
    fn of(message: &Message, member: &str) -> fdo::Result<Self> {
        Ok(match member {
            "ListServices" => Self::List,
            "DescribeService" => Self::Describe(named(&arguments::<String>(message)?)?),
            "DescribeStore" => Self::Store,
            "DescribeCluster" => Self::Cluster,
            "DescribeHistory" => {
                let (service, options): (String, Dictionary) = arguments(message)?;
                let options = read(options, &OF_STATUS, member)?;
                Self::History(named(&service)?, options.limit)
            }
            _ => return Err(fdo::Error::UnknownMethod(format!("{STATUS} has no method {member:?}"))),
        })
    }
}

/// Reads a call of [`MANAGER`].
fn verb(message: &Message, member: &str) -> fdo::Result<Verb> {
    let of_host = ["Drain", "Undrain"].contains(&member);
    let (subject, options): (String, Dictionary) =
        if of_host { (String::new(), arguments(message)?) } else { arguments(message)? };
    let options = read(options, &OF_MANAGER, member)?;
    let service = || named(&subject);
    let reason = options.reason();
    let verb = match member {
        "StepDown" => Verb::StepDown { service: service()?, reason, to: options.to()? },
        "Stop" => Verb::Stop { service: service()?, reason, until: options.until },
        "Start" => Verb::Start { service: service()? },
        "Pause" => Verb::Pause { service: service()?, reason, seconds: options.seconds(member)? },
        "Resume" => Verb::Resume { service: service()? },
        "Adopt" => Verb::Adopt { service: service()? },
        "Drain" => Verb::Drain { reason, until: options.until, force: options.force.unwrap_or_default() },
        "Undrain" => Verb::Undrain,
        "ConfirmDead" => Verb::ConfirmDead { node: options::node(&subject)? },
        _ => return Err(fdo::Error::UnknownMethod(format!("{MANAGER} has no method {member:?}"))),
    };
    verb.check(clock::wall().as_secs()).map_err(fdo::Error::InvalidArgs)?;
    Ok(verb)
}

fn read(options: Dictionary, interface: &interfaces::Interface, member: &str) -> fdo::Result<Options> {
    let known = interface.methods.iter().find(|method| method.name == member).map_or(&[][..], |method| method.options);
    Options::read(options, member, known)
}

fn arguments<T: serde::de::DeserializeOwned + zbus::Type>(message: &Message) -> fdo::Result<T> {
    let body = message.body();
    let wrong = |_| {
        let (wanted, sent) = (T::SIGNATURE.to_string_no_parens(), body.signature().to_string_no_parens());
        fdo::Error::InvalidArgs(format!("it takes arguments of the types {wanted:?} and was sent {sent:?}"))
    };
    body.deserialize().map_err(wrong)
}

fn is_of_service(path: &str) -> bool {
    label_in(path).is_some()
}

/// The last part of the path of a service's object.
fn label_in(path: &str) -> Option<&str> {
    path.strip_prefix(PATH)?.strip_prefix('/')?.strip_prefix(SERVICE)?.strip_prefix('/')
}

fn named(service: &str) -> fdo::Result<ServiceName> {
    service.parse().map_err(|error: crate::types::NameError| fdo::Error::InvalidArgs(error.to_string()))
}

/// The error when the daemon no longer takes questions, or dropped one unanswered.
fn gone<T>(_: T) -> fdo::Error {
    fdo::Error::Failed("putexd is about to end".to_owned())
}

/// The error where too many are served at once.
fn crowd() -> fdo::Error {
    fdo::Error::LimitsExceeded("try it again in a moment: others are being served".to_owned())
}

impl Desk {
    pub(super) fn new(bus: Connection, asks: mpsc::Sender<Ask>, authority: Authority) -> Arc<Self> {
        let (acting, asking) = (Arc::new(Semaphore::new(ACTING)), Arc::new(Semaphore::new(ASKING)));
        let reading = Arc::new(Semaphore::new(READING));
        Arc::new(Self { bus, asks, authority, cache: Mutex::default(), reading, acting, asking })
    }

    /// Takes one call. What can take long goes on after this returns.
    pub(super) async fn take(self: &Arc<Self>, message: Message) {
        self.turn(0).await;
        let sender = message.header().sender().map(ToString::to_string).unwrap_or_default();
        let taken = async {
            let call = Call::of(&message)?;
            let uid = self.authority.uid(&sender).await?;
            // Users wait for polkit, and root must not wait for them.
            let asking = if uid == 0 { None } else { Some(&self.asking) };
            let asking = asking.map(|asking| Arc::clone(asking).try_acquire_owned().map_err(|_| crowd()));
            match call {
                Call::Do(verb) => {
                    let permit =
                        (Arc::clone(&self.acting).try_acquire_owned().map_err(|_| crowd())?, asking.transpose()?);
                    let (desk, message) = (Arc::clone(self), message.clone());
                    tokio::spawn(async move {
                        let answer = desk.act(&sender, &message, verb).await;
                        desk.reply(&message, answer).await;
                        drop(permit);
                    });
                }
                Call::Look(look) => {
                    if let Some(may) = self.authority.knows_of_look(&sender).await {
                        may?;
                        self.show(&message, look).await;
                        return Ok(());
                    }
                    let permit = asking.transpose()?;
                    let (desk, message) = (Arc::clone(self), message.clone());
                    tokio::spawn(async move {
                        match desk.authority.look(&sender).await {
                            Ok(()) => desk.show(&message, look).await,
                            Err(error) => desk.reply(&message, Err::<(), _>(error)).await,
                        }
                        drop(permit);
                    });
                }
            }
            Ok(())
        };
        if let Err(error) = taken.await {
            self.reply(&message, Err::<(), fdo::Error>(error)).await;
        }
    }

    async fn act(&self, sender: &str, message: &Message, verb: Verb) -> fdo::Result<Dictionary> {
        let may_ask = message.primary_header().flags().contains(Flags::ALLOW_INTERACTIVE_AUTH);
        let by = self.authority.act(sender, &verb, may_ask).await?;
        let (answer, result) = oneshot::channel();
        self.asks.send(Ask::Do { verb, by, answer }).await.map_err(gone)?;
        let told = match result.await.map_err(gone)? {
            Ok(begun) => Begun { begun, needless: false },
            Err(Unmet::Needless(begun)) => Begun { begun, needless: true },
            Err(Unmet::Refused(why) | Unmet::Unheard(why)) => {
                return Err(fdo::Error::Failed(printable(&why).into_owned()));
            }
            Err(Unmet::Open(known)) => return Err(fdo::Error::NoReply(printable(&known).into_owned())),
        };
        Ok(to_dictionary(&told))
    }

    async fn show(self: &Arc<Self>, message: &Message, look: Look) {
        let header = message.header();
        let path = header.path().map_or("", |path| path.as_str());
        match look {
            Look::Ping => self.reply(message, Ok(())).await,
            Look::GetNothing => self.reply(message, Ok(Dictionary::new())).await,
            Look::Machine => self.reply(message, machine_id().await).await,
            Look::Introspect => self.reply(message, self.introspect(path).await).await,
            Look::List => {
                let picture = self.picture(1).await;
                let began = Answering::now();
                self.reply(message, picture.as_ref().map(|picture| &picture.dictionaries).map_err(Clone::clone)).await;
                self.cache.lock().await.rest(began.cost());
            }
            Look::Managed => match self.picture(2).await {
                Ok(picture) => {
                    let began = Answering::now();
                    self.reply(message, Ok(managed(&picture.services).await)).await;
                    self.cache.lock().await.rest(began.cost());
                }
                Err(error) => self.reply(message, Err::<(), _>(error)).await,
            },
            Look::Describe(service) => self.reply(message, self.described(&service).await).await,
            Look::Store => self.reply(message, self.store().await).await,
            Look::Cluster => self.reply(message, self.cluster().await).await,
            Look::History(service, limit) => self.show_history(message.clone(), service, limit).await,
            Look::Get(name) => self.reply(message, self.property(path, &name).await).await,
            Look::GetAll => self.reply(message, self.properties(path).await).await,
        }
    }

    /// The store may take long over a history, and other clients do not wait for it.
    async fn show_history(self: &Arc<Self>, message: Message, service: ServiceName, limit: Option<u64>) {
        self.turn(crate::cluster::history::KEPT / 4).await;
        let Ok(permit) = Arc::clone(&self.reading).try_acquire_owned() else {
            return self.reply(&message, Err::<(), _>(crowd())).await;
        };
        let desk = Arc::clone(self);
        tokio::spawn(async move {
            let history = desk.history(service, limit).await;
            desk.reply(&message, history).await;
            drop(permit);
        });
    }

    /// Waits for the turn of a look whose answer has so many services in it.
    async fn turn(&self, services: usize) {
        let turn = self.cache.lock().await.turn(Instant::now(), services);
        sleep_until(turn).await;
    }

    /// All services. `times`: how often each of them goes into the answer.
    async fn picture(&self, times: usize) -> fdo::Result<Arc<Picture>> {
        let mut cache = self.cache.lock().await;
        if times > 0 {
            let count = times * cache.count();
            let turn = cache.turn(Instant::now(), count);
            sleep_until(turn).await;
        }
        if let Some(picture) = fresh(cache.services.as_ref()) {
            return Ok(picture);
        }
        let began = Instant::now();
        let (answer, list) = oneshot::channel();
        self.asks.send(Ask::List(answer)).await.map_err(gone)?;
        let services = list.await.map_err(gone)?;
        let mut dictionaries = Vec::with_capacity(services.len());
        for some in services.chunks(STEP) {
            dictionaries.extend(some.iter().map(to_dictionary));
            yield_now().await;
        }
        let picture = Arc::new(Picture { services, dictionaries });
        cache.services = Some((kept_until(began), Arc::clone(&picture)));
        Ok(picture)
    }

    async fn described(&self, service: &ServiceName) -> fdo::Result<Dictionary> {
        let picture = self.picture(0).await?;
        let at = picture.services.iter().position(|status| status.service == service.as_str());
        let unknown = || fdo::Error::Failed(format!("putexd runs no service called {service}"));
        at.and_then(|at| picture.dictionaries.get(at).cloned()).ok_or_else(unknown)
    }

    async fn property(&self, path: &str, name: &str) -> fdo::Result<Variant<'static>> {
        let property = object::PROPERTIES.iter().find(|property| property.name == name);
        let unknown = || fdo::Error::UnknownProperty(format!("there is no property {name:?}"));
        let property = property.ok_or_else(unknown)?;
        self.at(path, |status| property.of(status)).await
    }

    async fn properties(&self, path: &str) -> fdo::Result<BTreeMap<&'static str, Variant<'static>>> {
        self.at(path, object::properties).await
    }

    /// What `show` makes of the service whose object has this path.
    async fn at<T>(&self, path: &str, show: impl FnOnce(&ServiceStatus) -> T) -> fdo::Result<T> {
        let picture = self.picture(0).await?;
        let label = label_in(path).unwrap_or_default();
        let unknown = || fdo::Error::UnknownObject(format!("there is no object {path}"));
        picture.services.iter().find(|status| object::label(&status.service) == label).map(show).ok_or_else(unknown)
    }

    async fn introspect(&self, path: &str) -> fdo::Result<String> {
        if path == PATH {
            return Ok(interfaces::xml(&interfaces::of_manager(), [SERVICE].into_iter()));
        }
        if path == object::folder() {
            let picture = self.picture(1).await?;
            let labels: Vec<String> = picture.services.iter().map(|status| object::label(&status.service)).collect();
            return Ok(interfaces::xml(&[], labels.iter().map(String::as_str)));
        }
        if is_of_service(path) {
            return self.at(path, |_| interfaces::xml(&interfaces::of_service(), std::iter::empty())).await;
        }
        let below = PATH.strip_prefix(path.trim_end_matches('/')).and_then(|below| below.strip_prefix('/'));
        let child = below.and_then(|below| below.split('/').next());
        let unknown = || fdo::Error::UnknownObject(format!("there is no object {path}"));
        child.map(|child| interfaces::xml(&[], [child].into_iter())).ok_or_else(unknown)
    }

    async fn store(&self) -> fdo::Result<Dictionary> {
        let mut cache = self.cache.lock().await;
        if let Some(store) = fresh(cache.store.as_ref()) {
            return Ok(store);
        }
        let began = Instant::now();
        let (answer, status) = oneshot::channel();
        self.asks.send(Ask::Store(answer)).await.map_err(gone)?;
        let store = to_dictionary(&status.await.map_err(gone)?);
        cache.store = Some((kept_until(began), store.clone()));
        Ok(store)
    }

    async fn cluster(&self) -> fdo::Result<Dictionary> {
        let mut cache = self.cache.lock().await;
        let count = cache.count();
        let turn = cache.turn(Instant::now(), count);
        sleep_until(turn).await;
        if let Some(cluster) = fresh(cache.cluster.as_ref()) {
            return Ok(cluster);
        }
        let began = Instant::now();
        let (answer, status) = oneshot::channel();
        self.asks.send(Ask::Cluster(answer)).await.map_err(gone)?;
        let cluster = to_dictionary(&status.await.map_err(gone)?);
        cache.cluster = Some((kept_until(began), cluster.clone()));
        Ok(cluster)
    }

    async fn history(&self, service: ServiceName, limit: Option<u64>) -> fdo::Result<Vec<Dictionary>> {
        let (answer, history) = oneshot::channel();
        self.asks.send(Ask::History { service, answer }).await.map_err(gone)?;
        let runs = history.await.map_err(gone)?.map_err(|unread| match unread {
            Unread::Unknown(reason) => fdo::Error::Failed(printable(&reason).into_owned()),
            Unread::Store(reason) => fdo::Error::IOError(printable(&reason).into_owned()),
        })?;
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        Ok(runs[runs.len().saturating_sub(limit)..].iter().map(to_dictionary).collect())
    }

    async fn reply<T: Serialize + DynamicType>(&self, call: &Message, answer: fdo::Result<T>) {
        if call.primary_header().flags().contains(Flags::NO_REPLY_EXPECTED) {
            return;
        }
        let header: Header<'_> = call.header();
        // The client may be gone, and a bus that is gone is noticed elsewhere.
        let _ = match answer {
            Ok(body) => self.bus.reply(&header, &body).await,
            Err(error) => self.bus.reply_dbus_error(&header, error).await,
        };
    }
}

type Managed = BTreeMap<ObjectPath<'static>, BTreeMap<&'static str, BTreeMap<&'static str, Variant<'static>>>>;

async fn managed(services: &[ServiceStatus]) -> Managed {
    let mut objects = Managed::new();
    for some in services.chunks(STEP) {
        let object = |status: &ServiceStatus| {
            (object::path(&status.service), BTreeMap::from([(OF_SERVICE, object::properties(status))]))
        };
        objects.extend(some.iter().map(object));
        yield_now().await;
    }
    objects
}

async fn machine_id() -> fdo::Result<String> {
    let id = tokio::fs::read_to_string("/etc/machine-id").await;
    id.map(|id| id.trim().to_owned()).map_err(|error| fdo::Error::Failed(format!("no machine id: {error}")))
}

//! The connection to PID 1, kept up by a task of its own, and the calls over it.
//!
//! It is PID 1's private socket, which only root can reach. No bus has to be up, each call costs half as much as over the bus, and
//! PID 1 does not track who asked for a job there.
//!
//! zbus does not reconnect, and a re-execution of PID 1 drops its clients. So the task builds a new connection after
//! each loss, and callers see only two cases: there is a link, or PID 1 is unreachable and the state of every unit is
//! unknown.
//!
//! Properties are always read by `Get` and `GetAll`, and never from a cache, which may be outdated without a sign of it.

use std::{
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, future::try_join_all};
use serde::Serialize;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, timeout, timeout_at},
};
use zbus::{
    Connection, DynamicType, MatchRule, MessageStream, OwnedVariant, Variant,
    wire::DynamicDeserialize,
};

use super::{
    changes::Board,
    error::BusError,
    interface::{DESTINATION, MANAGER, MANAGER_PATH, PROPERTIES, SIGKILL, UNIT, object, of_type},
    private,
    properties::{Properties, UnitRow},
};
use crate::task::{OwnedTask, lock};

/// The pause between two attempts to connect.
const RETRY: Duration = Duration::from_millis(200);

/// How many calls may wait for their answer: more would only make each of them late.
const CALLS: usize = 64;

/// A property and its value, as StartTransientUnit takes them.
pub type Setting = (&'static str, Variant<'static>);

/// One connection, while it lasts. Clones share it.
#[derive(Debug, Clone)]
pub struct Pid1Link {
    connection: Connection,
    /// The path of the control group that all units' groups are in; empty where it is the kernel's own root.
    pub root: Arc<str>,
    limiter: Limiter,
    call_limit: Duration,
}

/// Bounds the calls that wait for their answer, the first to come first.
#[derive(Debug, Clone)]
struct Limiter {
    places: Arc<Semaphore>,
    answered: Arc<AtomicU64>,
}

impl Limiter {
    fn new() -> Self {
        Self {
            places: Arc::new(Semaphore::new(CALLS)),
            answered: Arc::default(),
        }
    }

    /// Waits for a place as long as PID 1 answers any call within `limit`.
    async fn place(&self, limit: Duration) -> Result<OwnedSemaphorePermit, BusError> {
        let mut place = pin!(Arc::clone(&self.places).acquire_owned());
        loop {
            let answered = self.answered.load(Ordering::Relaxed);
            match timeout(limit, &mut place).await {
                Ok(place) => {
                    return place.map_err(|closed| BusError::Unreachable(closed.to_string()));
                }
                Err(_) if self.answered.load(Ordering::Relaxed) == answered => {
                    return Err(BusError::no_answer_within(limit));
                }
                Err(_) => {}
            }
        }
    }
}

impl Pid1Link {
    /// Makes a call when its turn has come, and bounds it in time from then on. Over the limit the outcome is unknown. A call has
    /// its place until it is answered, even if nobody waits for the answer any more.
    async fn call<A, T>(
        &self,
        path: String,
        interface: &'static str,
        method: &'static str,
        body: A,
    ) -> Result<T, BusError>
    where
        A: Serialize + DynamicType + Send + Sync + 'static,
        T: for<'d> DynamicDeserialize<'d> + Send + 'static,
    {
        let place = self.limiter.place(self.call_limit).await?;
        let (connection, answered) = (self.connection.clone(), Arc::clone(&self.limiter.answered));
        let call = tokio::spawn(async move {
            let answer = ask(&connection, &path, interface, method, &body).await;
            answered.fetch_add(1, Ordering::Relaxed);
            drop(place);
            answer
        });
        match timeout(self.call_limit, call).await {
            Ok(Ok(answer)) => Ok(answer?),
            Ok(Err(ended)) => Err(BusError::Unreachable(ended.to_string())),
            Err(_) => Err(BusError::no_answer_within(self.call_limit)),
        }
    }

    /// Calls a method of PID 1's manager.
    pub async fn manager<A, T>(&self, method: &'static str, body: A) -> Result<T, BusError>
    where
        A: Serialize + DynamicType + Send + Sync + 'static,
        T: for<'d> DynamicDeserialize<'d> + Send + 'static,
    {
        self.call(MANAGER_PATH.to_owned(), MANAGER, method, body)
            .await
    }

    /// Has PID 1 read all unit files again, within `limit`.
    pub async fn reload(&self, limit: Duration) -> Result<(), BusError> {
        bounded(
            limit,
            ask(&self.connection, MANAGER_PATH, MANAGER, "Reload", &()),
        )
        .await
    }

    /// Sends SIGKILL to all processes of a unit.
    pub async fn kill_unit(&self, unit: &str) -> Result<(), BusError> {
        self.manager("KillUnit", (unit.to_owned(), "all", SIGKILL))
            .await
    }

    /// The line of each unit in PID 1's list, in the order of `units`. PID 1 loads those that are not loaded; a unit that does not
    /// exist says so by its LoadState.
    pub async fn rows(&self, units: Vec<String>) -> Result<Vec<UnitRow>, BusError> {
        self.manager("ListUnitsByNames", (units,)).await
    }

    /// The names of the loaded units that fit a pattern.
    pub async fn names_like(&self, pattern: &str) -> Result<Vec<String>, BusError> {
        let body = (Vec::<String>::new(), vec![pattern.to_owned()]);
        let rows: Vec<UnitRow> = self.manager("ListUnitsByPatterns", body).await?;
        Ok(rows.into_iter().map(|(unit, ..)| unit).collect())
    }

    /// The line of one unit.
    pub async fn row(&self, unit: &str) -> Result<UnitRow, BusError> {
        self.rows(vec![unit.to_owned()])
            .await?
            .pop()
            .ok_or_else(|| BusError::Malformed(format!("no line of {unit}")))
    }

    /// One property of an object.
    pub async fn property(
        &self,
        path: &str,
        interface: &'static str,
        name: &'static str,
    ) -> Result<OwnedVariant, BusError> {
        self.call(path.to_owned(), PROPERTIES, "Get", (interface, name))
            .await
    }

    /// Some of the properties that all units have, by their names. They are not read all together, because for some of
    /// them PID 1 would read every folder of unit files.
    pub async fn common(
        &self,
        unit: &str,
        names: &'static [&'static str],
    ) -> Result<Properties, BusError> {
        let path = object(unit);
        let values = names.iter().map(|name| self.property(&path, UNIT, name));
        let values = try_join_all(values).await?;
        Ok(names
            .iter()
            .map(|&name| name.to_owned())
            .zip(values)
            .collect())
    }

    /// The properties that only units of its type have, read at one moment.
    pub async fn of_its_type(&self, unit: &str) -> Result<Properties, BusError> {
        self.call(object(unit), PROPERTIES, "GetAll", (of_type(unit),))
            .await
    }

    /// Connects. The signals that PID 1 sends come with the link: it sends all of them here.
    async fn open(call_limit: Duration) -> Result<(Self, MessageStream), BusError> {
        bounded(call_limit, async {
            let connection = private::connect(private::PATH).await?;
            let asked = (MANAGER, "ControlGroup");
            let group: OwnedVariant =
                ask(&connection, MANAGER_PATH, PROPERTIES, "Get", &asked).await?;
            // They are read as soon as the link is there: an answer is behind what is not read.
            let signals = MatchRule::builder().msg_type(zbus::message::Type::Signal);
            let signals =
                MessageStream::for_match_rule(signals.build()?, &connection, None).await?;
            let link = Self {
                connection,
                root: Arc::from(<&str>::try_from(&group)?.trim_end_matches('/')),
                limiter: Limiter::new(),
                call_limit,
            };
            Ok((link, signals))
        })
        .await
    }
}

pub async fn ask<A, T>(
    connection: &Connection,
    path: &str,
    interface: &str,
    method: &str,
    body: &A,
) -> zbus::Result<T>
where
    A: Serialize + DynamicType,
    T: for<'d> DynamicDeserialize<'d>,
{
    connection
        .call_method(Some(DESTINATION), path, Some(interface), method, body)
        .await?
        .body()
        .deserialize()
}

/// The newest link, and the task that replaces it. The task ends with the last clone.
#[derive(Debug, Clone)]
pub struct Keeper {
    /// `None`: there is none.
    pub newest: watch::Receiver<Option<Pid1Link>>,
    pub call_limit: Duration,
    pub board: Arc<Mutex<Board>>,
    _task: Arc<OwnedTask>,
}

impl Keeper {
    pub fn new(call_limit: Duration) -> Self {
        let (publish, newest) = watch::channel(None);
        let board = Arc::<Mutex<Board>>::default();
        let task = OwnedTask::spawn(keep(call_limit, publish, Arc::clone(&board)));
        Self {
            newest,
            call_limit,
            board,
            _task: Arc::new(task),
        }
    }

    /// The newest link; waits for one until `deadline`.
    pub async fn link_by(&self, deadline: Instant) -> Result<Pid1Link, BusError> {
        let mut newest = self.newest.clone();
        let found = timeout_at(deadline, newest.wait_for(Option::is_some)).await;
        found
            .ok()
            .and_then(|found| found.ok()?.clone())
            .ok_or_else(|| BusError::Unreachable("no connection".to_owned()))
    }
}

pub async fn bounded<T>(
    limit: Duration,
    call: impl Future<Output = zbus::Result<T>>,
) -> Result<T, BusError> {
    match timeout(limit, call).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(BusError::no_answer_within(limit)),
    }
}

async fn keep(
    call_limit: Duration,
    publish: watch::Sender<Option<Pid1Link>>,
    board: Arc<Mutex<Board>>,
) {
    loop {
        if let Ok((link, mut signals)) = Pid1Link::open(call_limit).await {
            publish.send_replace(Some(link));
            lock(&board).hint_all();
            while let Some(Ok(signal)) = signals.next().await {
                lock(&board).handle(&signal);
            }
            publish.send_replace(None);
            lock(&board).hint_all();
        }
        tokio::time::sleep(RETRY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_named_as_systemd_names_them() {
        let object = |unit| {
            object(unit)
                .trim_start_matches("/org/freedesktop/systemd1/unit/")
                .to_owned()
        };
        assert_eq!(object("database.service"), "database_2eservice");
        assert_eq!(object("db@a-1.service"), "db_40a_2d1_2eservice");
        assert_eq!(object("1_a\\x2d.mount"), "_31_5fa_5cx2d_2emount");
        assert_eq!(object("-.slice"), "_2d_2eslice");
    }

    const LIMIT: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_place_is_waited_for_as_long_as_others_are_answered() {
        let limiter = Limiter::new();
        let mut calls = Vec::new();
        for _ in 0..CALLS {
            calls.push(limiter.place(LIMIT).await.expect("a place"));
        }
        let answering = async {
            for _ in 0..10 {
                tokio::time::sleep(LIMIT * 3 / 4).await;
                limiter.answered.fetch_add(1, Ordering::Relaxed);
            }
            drop(calls.pop());
        };
        let (place, ()) = tokio::join!(limiter.place(LIMIT), answering);
        assert!(place.is_ok(), "PID 1 answered all the time");
        let began = Instant::now();
        let error = limiter.place(LIMIT).await.expect_err("no answer");
        assert!(
            error.is_unreachable() && began.elapsed() == LIMIT,
            "{error}"
        );
    }
}

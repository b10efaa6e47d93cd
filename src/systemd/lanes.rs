//! The limit of calls that are with PID 1 at once.
//!
//! The bus refuses a client more than 128 calls that wait for their answer, and counts a call until it is answered, even
//! if nobody waits for the answer any more. So a call keeps its place here until it is answered, too, and a caller that
//! finds no place free waits for one: no call fails because there are too many.
//!
//! Calls that stop a unit, calls that start one and calls that only look have places of their own, a lane each, so that
//! none waits for the others. In each lane it is first come, first served.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use super::error::BusError;
use crate::types::span::rounded;

/// The number of places of each lane. Together they are well below the limit of the bus, because zbus makes calls, too.
const STOPS: usize = 32;
const STARTS: usize = 24;
const LOOKS: usize = 24;

/// What a call is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To stop a unit, or to show that it is stopped.
    Stop,
    /// To start a unit.
    Start,
    /// To read a state, and nothing else.
    Look,
}

/// The lanes of one connection. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Lanes(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    stops: Arc<Semaphore>,
    starts: Arc<Semaphore>,
    looks: Arc<Semaphore>,
    answered: Mutex<Instant>,
}

/// A place that a call has until it is answered.
#[derive(Debug)]
pub(super) struct Place {
    lanes: Lanes,
    _permit: OwnedSemaphorePermit,
}

impl Lanes {
    pub(super) fn new() -> Self {
        let lane = |places| Arc::new(Semaphore::new(places));
        let (stops, starts, looks) = (lane(STOPS), lane(STARTS), lane(LOOKS));
        Self(Arc::new(Shared { stops, starts, looks, answered: Mutex::new(Instant::now()) }))
    }

    /// Waits for a place as long as PID 1 answers any call. Fails once it has answered none for `limit`.
    pub(super) async fn enter(&self, purpose: Purpose, limit: Duration) -> Result<Place, BusError> {
        let lane = match purpose {
            Purpose::Stop => &self.0.stops,
            Purpose::Start => &self.0.starts,
            Purpose::Look => &self.0.looks,
        };
        let came = Instant::now();
        let mut permit = std::pin::pin!(Arc::clone(lane).acquire_owned());
        loop {
            match timeout_at(came.max(self.answered()) + limit, &mut permit).await {
                Ok(Ok(permit)) => return Ok(Place { lanes: self.clone(), _permit: permit }),
                Ok(Err(closed)) => return Err(BusError::Unreachable(closed.to_string())),
                Err(_) if Instant::now() < came.max(self.answered()) + limit => {}
                Err(_) => {
                    let why = format!("it has answered no call for {}, and too many wait for it", rounded(limit));
                    return Err(BusError::Unreachable(why));
                }
            }
        }
    }

    /// Makes a call when its turn has come, and bounds it in time from then on. Over the limit the outcome is unknown. The
    /// call has its place until PID 1 has answered it, or the connection has ended, though nobody waits for it any more.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        purpose: Purpose,
        limit: Duration,
        call: impl Future<Output = zbus::Result<T>> + Send + 'static,
    ) -> Result<T, BusError> {
        let place = self.enter(purpose, limit).await?;
        let answer = tokio::spawn(async move {
            let answer = call.await;
            drop(place);
            answer
        });
        match timeout(limit, answer).await {
            Ok(Ok(answer)) => Ok(answer?),
            Ok(Err(ended)) => Err(BusError::Unreachable(ended.to_string())),
            Err(_) => Err(BusError::no_answer_within(limit)),
        }
    }

    fn answered(&self) -> Instant {
        *self.0.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    /// The answer is there, or the connection has ended.
    fn drop(&mut self) {
        *self.lanes.0.answered.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);

    async fn fill(lanes: &Lanes, purpose: Purpose, places: usize) -> Vec<Place> {
        let mut all = Vec::new();
        for _ in 0..places {
            all.push(lanes.enter(purpose, LIMIT).await.expect("a place"));
        }
        all
    }

    #[test]
    fn all_lanes_together_are_well_below_the_limit_of_the_bus() {
        const { assert!(STOPS + STARTS + LOOKS <= 96) }
    }

    #[tokio::test(start_paused = true)]
    async fn what_looks_takes_no_place_from_what_stops() {
        let lanes = Lanes::new();
        let _looks = fill(&lanes, Purpose::Look, LOOKS).await;
        let began = Instant::now();
        fill(&lanes, Purpose::Stop, 1).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_is_waited_for_as_long_as_others_are_answered() {
        let lanes = Lanes::new();
        let mut looks = fill(&lanes, Purpose::Look, LOOKS).await;
        let mut starts = fill(&lanes, Purpose::Start, 10).await;
        let answering = async {
            while starts.pop().is_some() {
                tokio::time::sleep(LIMIT * 3 / 4).await;
            }
            drop(looks.pop());
        };
        let began = Instant::now();
        let (place, ()) = tokio::join!(lanes.enter(Purpose::Look, LIMIT), answering);
        place.expect("PID 1 answered all the time");
        assert!(began.elapsed() > LIMIT * 7);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_pid_1_is_unreachable_for_who_waits() {
        let lanes = Lanes::new();
        let _stops = fill(&lanes, Purpose::Stop, STOPS).await;
        let began = Instant::now();
        let error = lanes.enter(Purpose::Stop, LIMIT).await.expect_err("no answer");
        assert!(error.is_unreachable(), "{error}");
        assert_eq!(began.elapsed(), LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_to_come_is_the_first_to_enter() {
        let lanes = Lanes::new();
        let mut looks = fill(&lanes, Purpose::Look, LOOKS).await;
        let order = Mutex::new(Vec::new());
        let enter = async |who| {
            let place = lanes.enter(Purpose::Look, LIMIT).await.expect("a place");
            order.lock().expect("not poisoned").push(who);
            drop(place);
        };
        let leave = async { drop(looks.pop()) };
        tokio::join!(enter(1), enter(2), enter(3), leave);
        assert_eq!(*order.lock().expect("not poisoned"), [1, 2, 3]);
    }
}

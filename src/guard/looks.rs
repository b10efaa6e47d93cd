//! Looks at mounts and block devices, each in a thread of its own, because a device may hang: then that thread alone waits for it.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc, OnceLock,
        mpsc::{Receiver, Sender, TryRecvError, channel},
    },
    thread,
};

use crate::{
    guard_client::frame::Outcome,
    host::{
        mountinfo::mount_at,
        mounts::{check_unmounted, place_of},
    },
    types::{
        UnitName,
        mount::{Mount, MountUnit},
    },
};

/// Stack size of each thread: more than enough for what the guard does in one.
pub const STACK_BYTES: usize = 256 * 1024;
/// The most questions of putexd that are not answered yet. It asks once for each mount, and asks again what was refused.
const QUESTIONS_LIMIT: usize = 256;

/// A bounded number of looks.
pub struct LookThreads {
    /// Each look has a clone until it ends.
    running: Arc<()>,
    limit: usize,
}

impl LookThreads {
    pub fn new(limit: usize) -> Self {
        Self {
            running: Arc::default(),
            limit,
        }
    }

    fn begin(&self, look: impl FnOnce() + Send + 'static) -> io::Result<()> {
        if Arc::strong_count(&self.running) > self.limit {
            return Err(io::Error::other(format!(
                "{} looks at mounts have not ended",
                self.limit
            )));
        }
        let running = Arc::clone(&self.running);
        let look = move || {
            look();
            drop(running);
        };
        thread::Builder::new()
            .name("look".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(look)
            .map(drop)
    }

    /// Whether a look has not ended.
    pub fn is_under_way(&self) -> bool {
        Arc::strong_count(&self.running) > 1
    }
}

/// Shows that the mounts of a lease are unmounted.
pub struct LeaseMounts {
    places: Vec<String>,
    /// How they were mounted when the enforcement began, by their mount points.
    were: Arc<OnceLock<HashMap<String, Mount>>>,
    look: Option<MountLook>,
    /// What the last look that has ended has found.
    why: String,
}

struct MountLook {
    found: Receiver<Result<(), String>>,
    /// A unit was seen active since.
    is_stale: bool,
}

impl LeaseMounts {
    /// Begins to read how the mounts among `units` are mounted now. `None`: there is no mount among them.
    pub fn of(looks: &LookThreads, units: &[UnitName]) -> Option<Self> {
        let mounts = Self {
            places: units.iter().filter_map(place_of).collect(),
            were: Arc::default(),
            look: None,
            why: "the kernel has not told what is mounted".to_owned(),
        };
        if mounts.places.is_empty() {
            return None;
        }
        // If no thread can be had now, the first look tries again.
        let _ = mounts.read(looks);
        Some(mounts)
    }

    fn read(&self, looks: &LookThreads) -> io::Result<()> {
        if self.were.get().is_some() || Arc::strong_count(&self.were) > 1 {
            return Ok(());
        }
        let (places, were) = (self.places.clone(), Arc::clone(&self.were));
        looks.begin(move || {
            // A mount that cannot be read now is checked later by its configuration alone.
            let mounted = |place: String| Some((place.clone(), mount_at(&place).ok()??));
            let _ = were.set(places.into_iter().filter_map(mounted).collect());
        })
    }

    /// Is called when a unit was seen active: what a look that is under way finds does not count.
    pub fn doubt(&mut self) {
        if let Some(look) = &mut self.look {
            look.is_stale = true;
        }
    }

    /// Shows that none of `mounts` is mounted, by the look that an earlier call began. `Err`: why that is not known.
    pub fn check(&mut self, looks: &LookThreads, mounts: Vec<MountUnit>) -> Result<(), String> {
        let shown = match self.look.take() {
            None => Err(self.why.clone()),
            Some(look) => match look.found.try_recv() {
                Ok(found) if !look.is_stale => found,
                Ok(_) | Err(TryRecvError::Disconnected) => Err("it is looked at again".to_owned()),
                Err(TryRecvError::Empty) => {
                    self.look = Some(look);
                    return Err(self.why.clone());
                }
            },
        };
        let Err(why) = &shown else { return shown };
        self.why.clone_from(why);
        let (tell, found) = channel();
        let were = Arc::clone(&self.were);
        let look = move || {
            let found = match were.get() {
                Some(were) => mounts.iter().try_for_each(|mount| {
                    check_unmounted(mount, were.get(&mount.place))
                        .map_err(|error| format!("{}: {error}", mount.place))
                }),
                None => Err("what was mounted is still being looked at".to_owned()),
            };
            // The enforcement that asked may have ended.
            let _ = tell.send(found);
        };
        self.read(looks)
            .and_then(|()| looks.begin(look))
            .map_err(|error| error.to_string())?;
        self.look = Some(MountLook {
            found,
            is_stale: false,
        });
        shown
    }
}

/// The number of a request, and what is answered.
type Answer = (u64, Outcome);

/// What putexd asks about mounts, whose block devices it cannot open itself. The looks are not those of the enforcement, which waits for none
/// of these.
pub struct Inquiries {
    looks: LookThreads,
    tell: Sender<Answer>,
    found: Receiver<Answer>,
    /// How many questions of the present connection are not answered.
    unanswered: usize,
}

impl Inquiries {
    pub fn new() -> Self {
        let (tell, found) = channel();
        Self {
            looks: LookThreads::new(QUESTIONS_LIMIT),
            tell,
            found,
            unanswered: 0,
        }
    }

    /// Whether [`Inquiries::answers`] may have something soon: nothing announces it.
    pub fn are_open(&self) -> bool {
        self.unanswered > 0
    }

    /// Begins to look at what a request with the number `id` asks about. An error is the reason of a refusal.
    pub fn ask(&mut self, id: u64, unit: MountUnit, was: Option<Mount>) -> io::Result<()> {
        let tell = self.tell.clone();
        self.looks.begin(move || {
            let answer = match check_unmounted(&unit, was.as_ref()) {
                Ok(()) => Outcome::Done,
                Err(reason) => Outcome::Refused { reason },
            };
            // Nobody takes it when the connection has ended.
            let _ = tell.send((id, answer));
        })?;
        self.unanswered += 1;
        Ok(())
    }

    /// What was found since the last call.
    pub fn answers(&mut self) -> Vec<Answer> {
        let answers: Vec<Answer> = self.found.try_iter().collect();
        self.unanswered -= answers.len();
        answers
    }

    pub fn is_under_way(&self) -> bool {
        self.looks.is_under_way()
    }

    /// Is called when there is another connection: what was asked over the one before is answered to nobody.
    pub fn forget(&mut self) {
        (self.tell, self.found) = channel();
        self.unanswered = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn wait_until(mut holds: impl FnMut() -> bool) {
        let end = Instant::now() + LIMIT;
        while !holds() {
            assert!(Instant::now() < end, "waited in vain");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn an_answer_to_a_question_from_before_a_doubt_does_not_count() {
        let unit = |name| UnitName::new(name).expect("a unit's name");
        let looks = LookThreads::new(2);
        assert!(LeaseMounts::of(&looks, &[unit("a.service")]).is_none());
        let mut mounts =
            LeaseMounts::of(&looks, &[unit("nowhere.mount")]).expect("there is a mount");
        let configured = |place: &str| {
            vec![MountUnit {
                place: place.to_owned(),
                what: "/dev/nowhere".to_owned(),
                options: String::new(),
            }]
        };
        mounts.doubt();
        wait_until(|| mounts.check(&looks, configured("/nowhere")).is_ok());
        mounts
            .check(&looks, configured("/nowhere"))
            .expect_err("it is looked at anew");
        mounts.doubt();
        wait_until(|| {
            let said = mounts.check(&looks, configured("/nowhere"));
            said.expect_err("it may have been mounted since")
                .contains("again")
        });
        wait_until(|| mounts.check(&looks, configured("/nowhere")).is_ok());
        let mut trouble = String::new();
        wait_until(|| {
            trouble = mounts
                .check(&looks, configured("/"))
                .expect_err("it is mounted");
            trouble.starts_with("/: ")
        });
        assert!(trouble.contains("something is mounted"), "{trouble}");
    }

    #[test]
    fn each_question_has_its_answer_and_that_of_a_former_connection_goes_to_nobody() {
        let unit = || MountUnit {
            place: "/nowhere".to_owned(),
            what: "/".to_owned(),
            options: String::new(),
        };
        let mut inquiries = Inquiries::new();
        assert!(inquiries.answers().is_empty() && !inquiries.is_under_way());
        inquiries.ask(7, unit(), None).expect("there is room");
        let mut answers = Vec::new();
        wait_until(|| {
            answers = inquiries.answers();
            !answers.is_empty()
        });
        assert_eq!(answers, [(7, Outcome::Done)]);
        wait_until(|| !inquiries.is_under_way());

        // Whatever hangs, there is a limit, and nobody waits for the answer.
        let holds: Vec<_> = (0..QUESTIONS_LIMIT)
            .map(|_| {
                let (hold, end) = channel::<()>();
                let looks = &inquiries.looks;
                let hangs = looks.begin(move || {
                    let _ = end.recv();
                });
                hangs.expect("there is room");
                hold
            })
            .collect();
        inquiries.ask(0, unit(), None).expect_err("there is none");
        assert!(inquiries.answers().is_empty() && inquiries.is_under_way());
        drop(holds);
        wait_until(|| !inquiries.is_under_way());
        inquiries.ask(8, unit(), None).expect("there is room again");
        inquiries.forget();
        wait_until(|| !inquiries.is_under_way());
        assert_eq!(inquiries.answers(), [], "there is another connection");
        inquiries.ask(9, unit(), None).expect("there is room");
        wait_until(|| inquiries.answers().len() == 1);
    }
}

//! A run as data: the hosts, the faults and their times, and what is expected. It is printed and parsed in one format.

use std::{
    collections::BTreeSet,
    fmt::{self, Write as _},
    time::Duration,
};

use putexd::election::{Confirmation, Timings};

use crate::clocks::TRUE_RATE;

/// The usual time of one way between a host and the store.
pub const NETWORK: Duration = Duration::from_millis(8);

/// Everything that determines a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Scene {
    /// Seeds what the scene does not fix: latencies, and the randomness of the daemons. `None`: latencies are always the same,
    /// and all daemons renew at the whole interval, so that times can be foreseen.
    pub seed: Option<u64>,
    /// The timings of the hosts. A host begins with one of them, and each reload goes on to the next.
    pub palette: Vec<Timings>,
    /// The time of one way between a host and the store; with a seed, the longest.
    pub network: Duration,
    pub words: BTreeSet<Word>,
    pub hosts: Vec<HostScene>,
    pub faults: Vec<Fault>,
    pub expectations: Vec<Expectation>,
}

/// One host, and how its unit behaves.
#[derive(Debug, Clone, PartialEq)]
pub struct HostScene {
    /// The host whose name it has, by its index. `None`: it has a name of its own.
    pub named_as: Option<usize>,
    /// The index of its timings in the palette.
    pub timings: usize,
    pub start_takes: Duration,
    /// How long the unit takes to stop at SIGTERM. `None`: it ignores SIGTERM.
    pub stop_takes: Option<Duration>,
    pub kill_takes: Duration,
    /// systemd's TimeoutStopSec=, after which it sends SIGKILL.
    pub stop_timeout: Duration,
    /// systemd's RestartSec= of a unit with Restart=always. `None`: the unit is not restarted.
    pub restart: Option<Duration>,
    pub boot_rate: u64,
    pub raw_rate: u64,
    /// When the host is switched on.
    pub begins: Duration,
}

impl Default for HostScene {
    fn default() -> Self {
        Self {
            named_as: None,
            timings: 0,
            start_takes: Duration::from_millis(50),
            stop_takes: Some(Duration::from_millis(50)),
            kill_takes: Duration::from_millis(10),
            stop_timeout: Duration::from_secs(90),
            restart: None,
            boot_rate: TRUE_RATE,
            raw_rate: TRUE_RATE,
            begins: Duration::ZERO,
        }
    }
}

/// One fault of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    pub at: Duration,
    /// The host that it befalls. `None`: the store, for all hosts.
    pub host: Option<usize>,
    pub kind: Kind,
    /// The time until the fault is over. Some faults are over at once.
    pub lasts: Duration,
}

macro_rules! words {
    ($(#[$about:meta])* $name:ident: $($(#[$doc:meta])* $variant:ident = $word:literal,)*) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name { $($(#[$doc])* $variant,)* }

        impl $name {
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }
    };
}

words! {
    /// What holds for a whole scene.
    Word:
    /// The service has a health check.
    Checked = "checked",
    /// The previous holder is fenced, and the new one unfenced, before each start.
    Fenced = "fenced",
    /// `stop-limit` is S, and a host whose stop is not proven reboots.
    Hurried = "hurried",
    /// Records are sealed.
    Sealed = "sealed",
    /// Hosts with different timings do not set the same `longest-hold`, as assumption (e) wants it.
    Unshared = "unshared",
    /// Hosts that have seen each token reach the store before the next start, so that tokens grow whatever it forgets.
    Witnessed = "witnessed",
    /// An assumption of the protocol is broken, and has to lead to an overlap. The run goes on after it.
    Broken = "broken",
}

words! {
    /// Faults between a host and the store.
    WireFault:
    /// Requests, answers and hints are lost.
    Cut = "cut",
    /// There is no connection to the store, and the client knows that.
    Disconnect = "disconnect",
    /// Requests are lost.
    LoseRequests = "lose-requests",
    /// Requests are executed, and their answers are lost.
    LoseAnswers = "lose-answers",
    /// Writes are delayed by the duration of the fault.
    HoldWrites = "hold-writes",
    /// Answers are delayed by the duration of the fault.
    HoldAnswers = "hold-answers",
    /// Hints are lost.
    Deafen = "deafen",
    /// Reads show the store as it was when the fault began.
    LagReads = "lag-reads",
}

words! {
    /// Faults of a host, of its daemon and of its guard.
    HostFault:
    /// The daemon gets SIGSTOP, and SIGCONT when the fault is over.
    PauseDaemon = "pause-daemon",
    /// The daemon gets SIGKILL, and another one starts when the fault is over.
    KillDaemon = "kill-daemon",
    /// What the daemon keeps on the disk for its successor is lost.
    Forget = "forget",
    /// The whole host stands still, and its clocks go on.
    Freeze = "freeze",
    /// As `Freeze`, but CLOCK_MONOTONIC_RAW stands still too.
    Suspend = "suspend",
    /// As `Freeze`, but both clocks stand still.
    StopClocks = "stop-clocks",
    PowerLoss = "power-loss",
    /// A copy of the store is taken, and the host is cut off. When the fault is over the host is connected again. The store
    /// goes back to the copy, if the promise of the protocol covers that.
    CutAndGoBack = "cut-and-go-back",
    /// As `CutAndGoBack`, but the host stands still instead of being cut off.
    FreezeAndGoBack = "freeze-and-go-back",
    /// The guard is killed, and systemd starts another within 0.4 s.
    KillGuard = "kill-guard",
    /// The guard hangs, and its watcher or systemd replaces it when its patience is over.
    HangGuard = "hang-guard",
    StepDown = "step-down",
    /// An operator stops the service everywhere, for as long as the fault lasts.
    Stop = "stop",
    /// An operator takes the word of `Stop` back.
    Start = "start",
    /// An operator pauses the service, for as long as the fault lasts.
    Pause = "pause",
    /// An operator takes the word of `Pause` back.
    Resume = "resume",
    /// The service is retired, and taken up again when the fault is over.
    Retire = "retire",
    /// The host is reconfigured with the next timings of the palette.
    Reload = "reload",
    /// CLOCK_REALTIME is set forward by the duration of the fault.
    WallForward = "wall-forward",
    /// CLOCK_REALTIME is set back by the duration of the fault.
    WallBack = "wall-back",
}

words! {
    /// Faults of the unit, and of what PID 1 does with it.
    UnitFault:
    /// Calls of the daemon do not reach PID 1.
    LoseBus = "lose-bus",
    /// Calls of the daemon reach PID 1 late.
    SlowBus = "slow-bus",
    /// Calls wait behind those of many other services, and some are refused because too many wait.
    CrowdBus = "crowd-bus",
    /// PID 1 stands still. When it goes on, it executes what was sent to it, although nobody waits for the answers any more.
    HangPid1 = "hang-pid-1",
    CrashUnit = "crash-unit",
    /// A daemon-reload with another `Slice=`: the unit is started in another control group from now on.
    MoveUnit = "move-unit",
    /// A daemon-reload with settings of the unit by which its stop could not be proven.
    Misconfigure = "misconfigure",
    /// The unit's program is started outside of systemd's control.
    RunStray = "run-stray",
    FailStarts = "fail-starts",
    /// A start takes as long as the fault lasts.
    SlowStarts = "slow-starts",
    /// A stop takes as long as the fault lasts.
    SlowStops = "slow-stops",
    IgnoreSigterm = "ignore-sigterm",
    /// SIGKILL has no effect before the fault is over.
    IgnoreSigkill = "ignore-sigkill",
    /// Processes stay in the control group after the main process ended, for the duration of the fault.
    LeaveProcesses = "leave-processes",
    /// Health checks fail.
    Sicken = "sicken",
    /// Health checks do not end.
    HangChecks = "hang-checks",
    FailFencing = "fail-fencing",
    /// Fencing takes as long as the fault lasts.
    SlowFencing = "slow-fencing",
    /// Somebody runs `systemctl start` again and again.
    StartByHand = "start-by-hand",
    /// Somebody runs `systemctl stop` once.
    StopByHand = "stop-by-hand",
}

words! {
    /// Faults of the store, which all hosts see.
    StoreFault:
    Wipe = "wipe",
    /// The store is replaced by a new one, whose revisions begin anew.
    WipeAnew = "wipe-anew",
    /// A copy is taken, and the store goes back to it when the fault is over.
    RollBack = "roll-back",
    /// A copy is taken, and a new store is made from it when the fault is over.
    Restore = "restore",
    /// The store goes back to what it was when a `proven` was last written.
    RollBackToProven = "roll-back-to-proven",
    /// A new store is made from what the store was when a `proven` was last written.
    RestoreProven = "restore-proven",
    /// The last `proven` is written again over the lock, without a comparison.
    RepeatProven = "repeat-proven",
    /// What was written since the last `proven` is deleted, and that is written again where it was.
    BringBackProven = "bring-back-proven",
    /// The holder's record is changed to a `proven` that replaces it.
    ForgeProven = "forge-proven",
    /// The lease and the hold in the holder's record are changed to 100 ms.
    ForgeShortLease = "forge-short-lease",
    /// The unit's entry names another key.
    NameOtherKey = "name-other-key",
    /// Of two writes from one base that come within 10 ms, the store keeps both, and answers the second as a conflict.
    KeepBothWrites = "keep-both-writes",
    /// Writes that were under way when the store was made anew count as writes to the new store.
    KeepLateWrites = "keep-late-writes",
    /// The key is deleted, which leaves a tombstone.
    Delete = "delete",
    /// The key is purged, which leaves nothing.
    Purge = "purge",
    /// An empty value is written over the lock.
    Blank = "blank",
    /// A record of another program is written over the lock.
    Overwrite = "overwrite",
    /// Reads show the store as it was when the fault began.
    StaleReads = "stale-reads",
}

/// The kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Wire(WireFault),
    Host(HostFault),
    Unit(UnitFault),
    Store(StoreFault),
}

impl Kind {
    pub fn all() -> Vec<Self> {
        let wire = WireFault::ALL.iter().copied().map(Self::Wire);
        let host = HostFault::ALL.iter().copied().map(Self::Host);
        let unit = UnitFault::ALL.iter().copied().map(Self::Unit);
        let store = StoreFault::ALL.iter().copied().map(Self::Store);
        wire.chain(host).chain(unit).chain(store).collect()
    }

    /// Whether the fault is drawn for random scenes. Not drawn are faults that break an assumption of the protocol, and those
    /// that keep the service from coming back by itself.
    pub fn is_drawn(self) -> bool {
        !matches!(
            self,
            Self::Host(
                HostFault::StopClocks
                    | HostFault::Stop
                    | HostFault::Start
                    | HostFault::Pause
                    | HostFault::Resume
            ) | Self::Unit(UnitFault::MoveUnit | UnitFault::RunStray | UnitFault::IgnoreSigkill)
                | Self::Store(
                    StoreFault::RollBack
                        | StoreFault::RollBackToProven
                        | StoreFault::BringBackProven
                        | StoreFault::ForgeProven
                        | StoreFault::ForgeShortLease
                        | StoreFault::NameOtherKey
                        | StoreFault::KeepBothWrites
                )
        )
    }

    pub fn word(self) -> &'static str {
        match self {
            Self::Wire(fault) => fault.word(),
            Self::Host(fault) => fault.word(),
            Self::Unit(fault) => fault.word(),
            Self::Store(fault) => fault.word(),
        }
    }

    pub fn is_of_the_store(self) -> bool {
        matches!(self, Self::Store(_))
    }
}

/// What has to hold at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expectation {
    pub at: Duration,
    pub what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = self.host.map_or("store".to_owned(), host_name);
        write!(
            f,
            "{} {whose} {} {}",
            span(self.at),
            self.kind.word(),
            span(self.lasts)
        )
    }
}

impl fmt::Display for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(seed) = self.seed {
            writeln!(f, "seed {seed}")?;
        }
        for timings in &self.palette {
            let full = timings.confirmation == Confirmation::Full;
            writeln!(
                f,
                "timings R={} F={} C={} S={} rho={} {}",
                span(timings.renew_interval),
                timings.failures,
                timings.confirmations,
                span(timings.stop_budget),
                timings.clock_error_ppm,
                if full { "full" } else { "minimal" }
            )?;
        }
        if self.network != NETWORK {
            writeln!(f, "network {}", span(self.network))?;
        }
        for word in &self.words {
            writeln!(f, "{}", word.word())?;
        }
        for host in &self.hosts {
            writeln!(f, "host{}", host.words())?;
        }
        for fault in &self.faults {
            writeln!(f, "{fault}")?;
        }
        for Expectation { at, what } in &self.expectations {
            writeln!(f, "{} expect {what}", span(*at))?;
        }
        Ok(())
    }
}

impl HostScene {
    /// The settings of the host that differ from the default ones.
    fn words(&self) -> String {
        let usual = Self::default();
        let mut words = String::new();
        let mut say = |name: &str, text: String, usual: String| {
            if text != usual {
                write!(words, " {name}={text}").expect("text");
            }
        };
        let name = |other: Option<usize>| other.map_or(String::new(), host_name);
        let stop = |takes: Option<Duration>| takes.map_or("never".to_owned(), span);
        let restart = |after: Option<Duration>| after.map_or("no".to_owned(), span);
        say("named-as", name(self.named_as), name(usual.named_as));
        say(
            "timings",
            self.timings.to_string(),
            usual.timings.to_string(),
        );
        say("start", span(self.start_takes), span(usual.start_takes));
        say("stop", stop(self.stop_takes), stop(usual.stop_takes));
        say("kill", span(self.kill_takes), span(usual.kill_takes));
        say(
            "stop-timeout",
            span(self.stop_timeout),
            span(usual.stop_timeout),
        );
        say("restart", restart(self.restart), restart(usual.restart));
        say(
            "boot",
            self.boot_rate.to_string(),
            usual.boot_rate.to_string(),
        );
        say("raw", self.raw_rate.to_string(), usual.raw_rate.to_string());
        say("begins", span(self.begins), span(usual.begins));
        words
    }

    fn read(words: &[&str]) -> Option<Self> {
        let mut host = Self::default();
        for word in words {
            let (name, text) = word.split_once('=')?;
            match name {
                "named-as" => host.named_as = Some(host_index(text)?),
                "timings" => host.timings = text.parse().ok()?,
                "start" => host.start_takes = parse_span(text)?,
                "stop" => {
                    host.stop_takes = if text == "never" {
                        None
                    } else {
                        Some(parse_span(text)?)
                    }
                }
                "kill" => host.kill_takes = parse_span(text)?,
                "stop-timeout" => host.stop_timeout = parse_span(text)?,
                "restart" => {
                    host.restart = if text == "no" {
                        None
                    } else {
                        Some(parse_span(text)?)
                    }
                }
                "boot" => host.boot_rate = text.parse().ok()?,
                "raw" => host.raw_rate = text.parse().ok()?,
                "begins" => host.begins = parse_span(text)?,
                _ => return None,
            }
        }
        Some(host)
    }
}

impl Scene {
    /// Parses what `Display` prints. Lines that begin with `#` are comments.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut scene = Self {
            seed: None,
            palette: Vec::new(),
            network: NETWORK,
            words: BTreeSet::new(),
            hosts: Vec::new(),
            faults: Vec::new(),
            expectations: Vec::new(),
        };
        for line in text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            let words: Vec<&str> = line.split_whitespace().collect();
            scene
                .read(&words)
                .ok_or_else(|| format!("not understood: {line}"))?;
        }
        if !scene.words.contains(&Word::Unshared) {
            share_the_longest_hold(&mut scene.palette);
        }
        Ok(scene)
    }

    fn read(&mut self, words: &[&str]) -> Option<()> {
        match words {
            ["seed", number] => self.seed = Some(number.parse().ok()?),
            ["network", time] => self.network = parse_span(time)?,
            ["timings", words @ ..] => self.palette.push(read_timings(words)?),
            ["host", words @ ..] => self.hosts.push(HostScene::read(words)?),
            [at, "expect", what @ ..] => {
                self.expectations.push(Expectation {
                    at: parse_span(at)?,
                    what: what.join(" "),
                });
            }
            [word] => {
                let word = Word::ALL.iter().find(|known| known.word() == *word)?;
                self.words.insert(*word);
            }
            [at, whose, word, lasts] => {
                let kind = Kind::all().into_iter().find(|kind| kind.word() == *word)?;
                let host = match *whose {
                    "store" => None,
                    name => Some(host_index(name)?),
                };
                let fits = kind.is_of_the_store() == host.is_none()
                    && host.is_none_or(|h| h < self.hosts.len());
                let fault = Fault {
                    at: parse_span(at)?,
                    host,
                    kind,
                    lasts: parse_span(lasts)?,
                };
                self.faults.push(Some(fault).filter(|_| fits)?);
            }
            _ => return None,
        }
        Some(())
    }
}

/// Assumption (e): hosts with different timings are configured with the same `longest-hold`.
pub fn share_the_longest_hold(palette: &mut [Timings]) {
    let longest = palette
        .iter()
        .map(Timings::hold)
        .max()
        .filter(|_| palette.len() > 1);
    for timings in palette {
        timings.longest_hold = longest;
    }
}

/// The name of the host with this index: the first is h1.
pub fn host_name(h: usize) -> String {
    format!("h{}", h + 1)
}

pub fn host_index(name: &str) -> Option<usize> {
    name.strip_prefix('h')?
        .parse::<usize>()
        .ok()?
        .checked_sub(1)
}

fn read_timings(words: &[&str]) -> Option<Timings> {
    let [
        renew,
        failures,
        confirmations,
        budget,
        error,
        confirmation,
        rest @ ..,
    ] = words
    else {
        return None;
    };
    let renew = parse_span(renew.strip_prefix("R=")?)?;
    let failures = failures.strip_prefix("F=")?.parse().ok()?;
    let confirmations = confirmations.strip_prefix("C=")?.parse().ok()?;
    let mut timings = Timings::new(renew, failures, confirmations);
    timings.stop_budget = parse_span(budget.strip_prefix("S=")?)?;
    timings.kill_reserve = Timings::default_kill_reserve(timings.stop_budget);
    timings.clock_error_ppm = error.strip_prefix("rho=")?.parse().ok()?;
    timings.confirmation = match *confirmation {
        "full" => Confirmation::Full,
        "minimal" => Confirmation::Minimal,
        _ => return None,
    };
    // A script may show what the loader's check is there for.
    let is_unsafe = *rest == ["unsafe"];
    (timings.validate().is_err() == is_unsafe).then_some(timings)
}

/// A span in milliseconds, or in seconds if it is a whole number of them.
pub fn span(span: Duration) -> String {
    let millis = span.as_millis();
    if millis.is_multiple_of(1000) {
        format!("{}s", millis / 1000)
    } else {
        format!("{millis}ms")
    }
}

fn parse_span(text: &str) -> Option<Duration> {
    if let Some(millis) = text.strip_suffix("ms") {
        return millis.parse().ok().map(Duration::from_millis);
    }
    text.strip_suffix('s')?
        .parse()
        .ok()
        .map(Duration::from_secs)
}

//! What putexd says to do about a unit that it refuses, done literally as it is said.

use crate::{
    cluster::Host,
    command::{said, wait_until},
    fixture::{Plan, TAKE_OVER},
    lockstore::Lockstore,
};

const TIMINGS: &str = "renew-interval = \"1s\"\nfailures = 3\nconfirmations = 1\n";
const SLEEP: &str = "ExecStart=/usr/bin/sleep infinity\n";

/// A unit that is refused.
struct Refused {
    /// The unit.
    unit: &'static str,
    /// Its lines.
    text: &'static str,
    /// Words of the refusal.
    words: &'static str,
    /// Lines of the service's file, if a remedy is not said in the form `key = value`.
    by_hand: &'static str,
    /// Whether it runs then.
    runs: bool,
}

const NONE: Refused = Refused {
    unit: "",
    text: "",
    words: "",
    by_hand: "",
    runs: false,
};

const REFUSED: &[Refused] = &[
    Refused {
        unit: "sigkill.service",
        text: "[Service]\nSendSIGKILL=no\n",
        words: "has SendSIGKILL=no",
        ..NONE
    },
    Refused {
        unit: "final@a:b.service",
        text: "[Service]\nFinalKillSignal=SIGTERM\n",
        words: "has FinalKillSignal=15",
        ..NONE
    },
    Refused {
        unit: "killed.service",
        text: "[Service]\nKillMode=process\n",
        words: "has KillMode=process",
        ..NONE
    },
    Refused {
        unit: "manual.service",
        text: "[Unit]\nRefuseManualStart=yes\nRefuseManualStop=yes\n[Service]\n",
        words: "has RefuseManualSt",
        runs: true,
        ..NONE
    },
    Refused {
        unit: "job.service",
        text: "[Service]\nType=oneshot\n",
        words: "name what starts it, such as its timer, as unit",
        by_hand: "unit = \"job.timer\"\nbound-units = [\"job.service\"]\n",
        ..NONE
    },
    Refused {
        unit: "once.service",
        text: "[Service]\nType=oneshot\n",
        words: "is a oneshot",
        ..NONE
    },
    Refused {
        unit: "remains.service",
        text: "[Service]\nRemainAfterExit=yes\n",
        words: "may be active without a process",
        ..NONE
    },
    Refused {
        unit: "rooted.service",
        text: "[Service]\nRootDirectory=/srv/rooted\nBindReadOnlyPaths=/usr /lib -/lib64\n",
        words: "has RootDirectory=/srv/rooted",
        runs: true,
        ..NONE
    },
    Refused {
        unit: "bare.service",
        text: "[Service]\nTemporaryFileSystem=/\nBindReadOnlyPaths=/usr/bin/sleep\n",
        words: "has TemporaryFileSystem=/, which keeps",
        runs: true,
        ..NONE
    },
    Refused {
        unit: "hidden.service",
        text: "[Service]\nInaccessiblePaths=-/run/putex /etc/putex.d\n",
        words: "has InaccessiblePaths=-/run/putex",
        runs: true,
        ..NONE
    },
    // The generator reads the unit's own files, and not those of its prefix.
    Refused {
        unit: "no-exec.service",
        text: "[Service]\n",
        words: "has NoExecPaths=/",
        runs: true,
        ..NONE
    },
    Refused {
        unit: "session.service",
        text: "[Service]\nPAMName=login\n",
        words: "has PAMName=login",
        runs: true,
        ..NONE
    },
    Refused {
        unit: "engine.service",
        text: "[Service]\nExecStartPre=/usr/bin/timeout 9 sh -c 'cd / && docker run db'\n",
        words: "has docker begin work",
        ..NONE
    },
    Refused {
        unit: "starts.service",
        text: "[Service]\nExecStartPost=-/usr/bin/systemctl start worker\n",
        words: "list the unit that it starts in bound-units",
        by_hand: "bound-units = [\"worker.service\"]\n",
        ..NONE
    },
    Refused {
        unit: r"srv-a\x2db.mount",
        text: "[Unit]\nCollectMode=inactive-or-failed\n[Mount]\nWhat=tmpfs\nWhere=/srv/a-b\nType=tmpfs\nLazyUnmount=yes\n",
        words: "so that ",
        runs: true,
        ..NONE
    },
    Refused {
        unit: "patient.service",
        text: "[Service]\nTimeoutStopSec=infinity\n",
        words: "for ever",
        ..NONE
    },
    Refused {
        unit: "slow.service",
        text: "[Service]\nTimeoutStopSec=1h\n",
        words: "systemd waits",
        ..NONE
    },
    Refused {
        unit: "masked.service",
        text: "",
        words: "masked.service is masked",
        ..NONE
    },
];

fn service_of(unit: &str) -> String {
    unit.split_once('.')
        .map_or(unit, |(name, _)| name)
        .replace(['@', ':', '\\'], "-")
}

/// How often what is said is done: a unit may have several faults, of which one is said first.
pub const ROUNDS: usize = 5;

/// What is said of a service, each with the file's name before it.
pub fn found<'a>(check: &'a str, service: &str) -> Vec<&'a str> {
    let file = format!("/etc/putex.d/{service}.toml");
    check
        .lines()
        .filter(|line| line.starts_with(&file))
        .collect()
}

/// Does what a sentence says: runs its commands, as far as nobody has to type in them, and puts its keys into the service's
/// file. Where it offers alternatives, that is the first; where it tells what a service brings along, all of it is to be done.
pub fn obey(host: &Host, service: &str, sentence: &str, by_hand: &str) {
    let is_all = sentence.contains(" brings along, or ");
    let first = if is_all {
        sentence
    } else {
        sentence.split(", or ").next().unwrap_or(sentence)
    };
    let commands = first
        .split("run \"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next());
    for command in commands
        .take(if is_all { usize::MAX } else { 1 })
        .filter(|command| !command.contains(" edit "))
    {
        host.sh(command);
    }
    let mut lines: Vec<String> = by_hand.lines().map(str::to_owned).collect();
    for key in [
        "unit",
        "bound-units",
        "beside",
        "contains",
        "on-stop-failure",
        "stop-limit",
    ] {
        let begin = format!(" {key} = ");
        let value = first
            .split(&begin)
            .skip(1)
            .find(|value| value.starts_with("[\"") || value.starts_with('"'));
        let Some(value) = value else { continue };
        let close = if value.starts_with('[') { "]" } else { "\"" };
        let end = value[1..].find(close).expect("the value ends") + 2;
        lines.push(format!("{key} = {}", &value[..end]));
    }
    let path = format!("/etc/putex.d/{service}.toml");
    let before = host.read_file(&path).expect("it is there");
    let key_of = |line: &str| line.split(" = ").next().unwrap_or(line).to_owned();
    let kept = before
        .lines()
        .filter(|line| !lines.iter().any(|new| key_of(new) == key_of(line)));
    let text: Vec<String> = kept
        .map(str::to_owned)
        .chain(lines.iter().cloned())
        .collect();
    host.write_file(&path, &(text.join("\n") + "\n"));
}

#[test]
fn what_is_said_to_do_about_a_unit_admits_it_when_done_literally() {
    let mut plan = Plan::hosts("remedies", 1, Lockstore::Directory)
        .unit("worker", &format!("[Service]\n{SLEEP}"))
        .file("/etc/systemd/system/job.timer", "[Timer]\nOnActiveSec=1h\n")
        .file(
            "/etc/systemd/system/no-.service.d/prefix.conf",
            "[Service]\nNoExecPaths=/\nExecPaths=/usr/bin/sleep\n",
        )
        .file("/srv/rooted/here", "");
    for Refused { unit, text, .. } in REFUSED {
        let command = if unit.ends_with(".service") {
            SLEEP
        } else {
            ""
        };
        if !text.is_empty() {
            plan = plan.file(
                &format!("/etc/systemd/system/{unit}"),
                &format!("{text}{command}"),
            );
        }
        let fence = if unit.strip_suffix(".mount").is_some() {
            "on-stop-failure = \"reboot-force\"\n"
        } else {
            ""
        };
        let name: &'static str = Box::leak(service_of(unit).into_boxed_str());
        plan = plan.service(name, format!("unit = '{unit}'\n{fence}{TIMINGS}"));
    }
    let Some(fixture) = plan.prepare() else {
        return;
    };
    let host = &fixture.hosts[0];
    host.sh(&format!("mkdir -p /usr/local/lib/systemd/system && printf '[Service]\\n{}' >/usr/local/lib/systemd/system/masked.service", SLEEP.replace('\n', "\\n")));
    host.exec(&["systemctl", "mask", "masked.service"]);
    host.exec(&["systemctl", "daemon-reload"]);
    let check = || said(&host.output(&["putexd", "--check"]));
    let first = check();
    for Refused { unit, words, .. } in REFUSED {
        let lines = found(&first, &service_of(unit));
        assert!(
            lines.iter().any(|line| line.contains(words)),
            "{unit}: {lines:?} of {first}"
        );
    }
    // A unit may have two faults, of which one is said first.
    for _ in 0..3 {
        let said = check();
        for Refused { unit, by_hand, .. } in REFUSED {
            let service = service_of(unit);
            for line in found(&said, &service) {
                println!("{line}");
                obey(host, &service, line, by_hand);
            }
        }
    }
    let last = check();
    for Refused { unit, .. } in REFUSED {
        let lines = found(&last, &service_of(unit));
        assert!(
            lines.is_empty(),
            "{unit} is not admitted when all was done that was said: {lines:?}"
        );
    }
    fixture.start_putexd();
    for Refused { unit, .. } in REFUSED.iter().filter(|refused| refused.runs) {
        wait_until(TAKE_OVER, &format!("{unit} runs"), || {
            host.property(unit, "ActiveState") == "active"
        });
    }
}

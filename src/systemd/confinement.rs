//! What a health command may reach: a command that asks whether a service is well needs the network and local sockets, and
//! neither secrets nor root.
//!
//! What is absent here is absent for a reason, because a check that fails without need stops a healthy service:
//!
//! - No `DynamicUser=`: it forces `ProtectSystem=strict`. putexd takes such a user itself, see `check_user.rs`.
//! - No `ProtectSystem=strict` and no `ProtectHome=`: systemd then looks at every mount of the host, or at /home, and would wait
//!   there for a share that hangs, so that each check of each service failed.
//! - No `PrivateTmp=`: PID 1 itself makes folders on disk for it, and would wait for a disk that hangs. A service may have its
//!   socket in /tmp, too.
//! - No `RemoveIPC=`: at the end of a check it would remove the shared memory of a service with the same user.
//! - No `MemoryDenyWriteExecute=`: a check may be written in a language that compiles as it runs.

use std::fmt;

use rustix::thread::CapabilitySet;
use zbus::{Structure, Variant};

use super::gate::PROGRAM;
use super::proxy::Setting;

/// The value of a setting, which can be written for the bus and for a unit file.
#[derive(Debug, Clone, Copy)]
enum Value {
    Yes,
    No,
    Word(&'static str),
    Words(&'static [&'static str]),
    /// A list: only these are allowed.
    Allowed(&'static [&'static str]),
    /// A list: of what is allowed, all but these.
    Refused(&'static [&'static str]),
    /// A set that is empty: no capability.
    Nothing,
    /// The capabilities to become another user, and to give up the right to that.
    UserChange,
    /// A set of exceptions that is empty: no namespace of any kind may be made.
    NoException,
    Number(u64),
    Mode(u32),
    /// EPERM, as the number that it has on every architecture.
    NotPermitted,
}

type Property = (&'static str, Value);

const MIB: u64 = 1 << 20;

/// Settings of every check, whatever user it runs as.
const ALWAYS: &[Property] = &[
    ("NoNewPrivileges", Value::Yes),
    ("LockPersonality", Value::Yes),
    ("RestrictRealtime", Value::Yes),
    ("RestrictSUIDSGID", Value::Yes),
    ("SystemCallArchitectures", Value::Words(&["native"])),
    ("UMask", Value::Mode(0o077)),
    ("KeyringMode", Value::Word("private")),
    // The same for every user: the program that gives a command its user does not hand on that this signal is ignored.
    ("IgnoreSIGPIPE", Value::No),
    // A core file is a copy of the memory of the command. The soft limit is set first: it may never be above the hard
    // one.
    ("LimitCORESoft", Value::Number(0)),
    ("LimitCORE", Value::Number(0)),
    ("LimitFSIZE", Value::Number(64 * MIB)),
    ("MemoryMax", Value::Number(512 * MIB)),
    ("TasksMax", Value::Number(512)),
];

/// More settings of every check, for hosts where systemd can give it file systems of its own.
const ALWAYS_APART: &[Property] = &[
    ("PrivateMounts", Value::Yes),
    ("ProtectSystem", Value::Word("full")),
    // With "-", because each of these paths may be missing.
    ("InaccessiblePaths", Value::Words(&["-/etc/putex", "-/etc/putex.d", "-/var/lib/putex", "-/run/credentials"])),
    ("ProtectKernelTunables", Value::Yes),
    ("ProtectKernelModules", Value::Yes),
    ("ProtectKernelLogs", Value::Yes),
    ("ProtectControlGroups", Value::Yes),
];

/// Settings of a check that does not run as root.
const WITHOUT_ROOT: &[Property] = &[
    ("SystemCallFilter", Value::Allowed(&["@system-service"])),
    ("SystemCallFilter", Value::Refused(&["@privileged", "@resources"])),
    // A system call that is not allowed fails, and does not end the command.
    ("SystemCallErrorNumber", Value::NotPermitted),
    ("RestrictAddressFamilies", Value::Allowed(&["AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"])),
    ("RestrictNamespaces", Value::NoException),
    ("DevicePolicy", Value::Word("closed")),
    ("ProtectClock", Value::Yes),
];

/// More settings of a check that does not run as root, for hosts where systemd can give it namespaces.
const WITHOUT_ROOT_APART: &[Property] =
    &[("PrivateDevices", Value::Yes), ("ProtectProc", Value::Word("invisible")), ("ProtectHostname", Value::Yes)];

/// Whom a check runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunAs {
    /// A user that the host knows by this name.
    Named(String),
    /// A user of this number: see `check_user.rs`. systemd gives a unit no user that has no name, and not every host knows a name for
    /// it. So the unit begins as root with the capabilities for this change alone, and the guard's program makes the change, gives up
    /// the capabilities, and executes the command. That asks no name service either, which may hang.
    Numbered(u32),
}

impl RunAs {
    /// What the unit of a check executes, where `argv` is the check's command.
    #[must_use]
    pub fn command(&self, argv: &[String]) -> Vec<String> {
        let before = match self {
            Self::Named(_) => Vec::new(),
            Self::Numbered(uid) => vec![PROGRAM.to_owned(), "run-as".to_owned(), uid.to_string()],
        };
        before.into_iter().chain(argv.iter().cloned()).collect()
    }

    fn is_root(&self) -> bool {
        matches!(self, Self::Named(name) if name == "root")
    }
}

/// More settings of a check whose user has a name, and is not root.
const NAMED: &[Property] = &[("CapabilityBoundingSet", Value::Nothing)];

/// The same on hosts where systemd can give it namespaces. In a user namespace the users without a name cannot be had.
const NAMED_APART: &[Property] = &[("PrivateUsers", Value::Yes)];

/// More settings of a check whose user has no name.
const NUMBERED: &[Property] = &[
    ("CapabilityBoundingSet", Value::UserChange),
    ("SystemCallFilter", Value::Allowed(&["@setuid", "capset"])),
    // As systemd sets it for users with a name.
    ("Environment", Value::Words(&["HOME=/"])),
];

/// How far a check is kept apart from the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Apart {
    /// As far as possible.
    Whole,
    /// Without a view of its own on file systems, processes and users: for a host where systemd cannot make one, such as
    /// one whose /tmp is full, or that forbids user namespaces.
    Bare,
}

/// The settings of a check that runs as `user`, in the order in which systemd is to take them.
fn properties(user: &RunAs, apart: Apart) -> Vec<Property> {
    let without_root = !user.is_root();
    let is_named = without_root && matches!(user, RunAs::Named(_));
    let is_numbered = matches!(user, RunAs::Numbered(_));
    let whole = apart == Apart::Whole;
    let parts = [
        (ALWAYS, true),
        (ALWAYS_APART, whole),
        (WITHOUT_ROOT, without_root),
        (WITHOUT_ROOT_APART, without_root && whole),
        (NAMED, is_named),
        (NAMED_APART, is_named && whole),
        (NUMBERED, is_numbered),
    ];
    parts.iter().filter(|(_, applies)| *applies).flat_map(|(part, _)| part.iter().copied()).collect()
}

/// The settings for the transient unit of a check, beginning with its user.
pub(super) fn settings(user: &RunAs, apart: Apart) -> Vec<Setting> {
    let mut settings = Vec::new();
    if let RunAs::Named(name) = user {
        settings.push(("User", name.clone().into()));
    }
    settings.extend(properties(user, apart).into_iter().map(|(name, value)| (name, value.on_the_bus())));
    settings
}

/// The same settings, with the check kept apart as far as possible, as lines of a unit's `[Service]`.
#[must_use]
pub fn check_confinement(user: &RunAs) -> String {
    let lines = properties(user, Apart::Whole);
    // A unit file has both limits in one line.
    let lines = lines.iter().filter(|(name, _)| !name.ends_with("Soft"));
    let begin = match user {
        RunAs::Named(name) => format!("User={name}\n"),
        RunAs::Numbered(_) => String::new(),
    };
    lines.fold(begin, |text, (name, value)| format!("{text}{name}={value}\n"))
}

impl Value {
    fn on_the_bus(self) -> Variant<'static> {
        let list = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<String>>();
        match self {
            Self::Yes => true.into(),
            Self::No => false.into(),
            Self::Word(word) => word.into(),
            Self::Words(words) => list(words).into(),
            Self::Allowed(words) => Structure::from((true, list(words))).into(),
            Self::Refused(words) => Structure::from((false, list(words))).into(),
            Self::Nothing | Self::NoException => 0_u64.into(),
            Self::UserChange => (CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::SETPCAP).bits().into(),
            Self::Number(number) => number.into(),
            Self::Mode(mode) => mode.into(),
            Self::NotPermitted => 1_i32.into(),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Yes | Self::NoException => f.write_str("yes"),
            Self::No => f.write_str("no"),
            Self::Word(word) => f.write_str(word),
            Self::Words(words) | Self::Allowed(words) => f.write_str(&words.join(" ")),
            Self::Refused(words) => write!(f, "~{}", words.join(" ")),
            Self::Nothing => Ok(()),
            Self::UserChange => f.write_str("CAP_SETUID CAP_SETGID CAP_SETPCAP"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Mode(mode) => write!(f, "{mode:04o}"),
            Self::NotPermitted => f.write_str("EPERM"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> RunAs {
        RunAs::Named(name.to_owned())
    }

    #[test]
    fn each_setting_has_the_signature_that_systemd_wants() {
        let settings = settings(&named("postgres"), Apart::Whole);
        let signature = |wanted: &str| {
            let found = settings.iter().find(|(name, _)| *name == wanted).expect("it is set");
            found.1.value_signature().to_string()
        };
        assert_eq!(signature("User"), "s");
        assert_eq!(signature("NoNewPrivileges"), "b");
        assert_eq!(signature("InaccessiblePaths"), "as");
        assert_eq!(signature("SystemCallFilter"), "(bas)");
        assert_eq!(signature("CapabilityBoundingSet"), "t");
        assert_eq!(signature("RestrictNamespaces"), "t");
        assert_eq!(signature("MemoryMax"), "t");
        assert_eq!(signature("UMask"), "u");
        assert_eq!(signature("SystemCallErrorNumber"), "i");
    }

    #[test]
    fn root_and_a_host_that_offers_less_keep_what_they_can() {
        let names = |user: &RunAs, apart| properties(user, apart).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        let bare = names(&named("postgres"), Apart::Bare);
        assert!(bare.contains(&"CapabilityBoundingSet") && bare.contains(&"LimitCORE"));
        assert!(!bare.contains(&"ProtectSystem") && !bare.contains(&"PrivateUsers"));
        let root = names(&named("root"), Apart::Whole);
        assert!(root.contains(&"InaccessiblePaths") && root.contains(&"LimitCORE"));
        assert!(!root.contains(&"CapabilityBoundingSet") && !root.contains(&"PrivateDevices"));
    }

    /// A check with a dynamic user could not reach the service. With some of the other settings a share or a disk that
    /// hangs would stop every service.
    #[test]
    fn what_would_stop_a_healthy_service_is_left_out() {
        let text = check_confinement(&RunAs::Numbered(61184));
        for absent in ["DynamicUser", "=strict", "ProtectHome", "PrivateTmp", "RemoveIPC", "PrivateNetwork"] {
            assert!(!text.contains(absent), "{text}");
        }
    }
}

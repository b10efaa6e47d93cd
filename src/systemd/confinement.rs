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

use zbus::{Structure, Variant};

use super::{gate::PROGRAM, link::Setting};

const MIB: u64 = 1 << 20;
/// CAP_SETGID, CAP_SETUID and CAP_SETPCAP: to become another user, and to give up the right to that.
const USER_CHANGE: u64 = 0b111 << 6;
/// EPERM, as the number that it has on every architecture.
const NOT_PERMITTED: i32 = 1;

/// Whom a check runs as.
#[derive(Debug)]
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
    pub fn command(&self, argv: &[String]) -> Vec<String> {
        let before = match self {
            Self::Named(_) => Vec::new(),
            Self::Numbered(uid) => vec![PROGRAM.to_owned(), "run-as".to_owned(), uid.to_string()],
        };
        before.into_iter().chain(argv.iter().cloned()).collect()
    }
}

/// The settings for the transient unit of a check that runs as `user`, in the order in which systemd is to take them. `apart`: with a
/// view of its own on file systems, processes and users, which systemd cannot make everywhere: /tmp may be full, or user namespaces
/// forbidden.
pub fn check_confinement(user: &RunAs, apart: bool) -> Vec<Setting> {
    let words = |words: &str| -> Vec<String> { words.split(' ').map(str::to_owned).collect() };
    let only = |list| Variant::from(Structure::from((true, words(list))));
    let all_but = |list| Variant::from(Structure::from((false, words(list))));
    let on = |names: &'static str| names.split(' ').map(|name| (name, Variant::from(true)));
    let mut settings: Vec<Setting> =
        on("NoNewPrivileges LockPersonality RestrictRealtime RestrictSUIDSGID").collect();
    settings.extend([
        ("SystemCallArchitectures", words("native").into()),
        ("UMask", 0o077_u32.into()),
        ("KeyringMode", "private".into()),
        // The same for every user: the program that gives a command its user does not hand on that this signal is ignored.
        ("IgnoreSIGPIPE", false.into()),
        // A core file is a copy of the memory of the command. The soft limit is set first: it may never be above the hard
        // one.
        ("LimitCORESoft", 0_u64.into()),
        ("LimitCORE", 0_u64.into()),
        ("LimitFSIZE", (64 * MIB).into()),
        ("MemoryMax", (512 * MIB).into()),
        ("TasksMax", 512_u64.into()),
    ]);
    if apart {
        // With "-", because each of these paths may be missing.
        let hidden = "-/etc/putex -/etc/putex.d -/var/lib/putex -/run/credentials";
        settings.extend([
            ("ProtectSystem", "full".into()),
            ("InaccessiblePaths", words(hidden).into()),
        ]);
        settings.extend(on(
            "PrivateMounts ProtectKernelTunables ProtectKernelModules ProtectKernelLogs ProtectControlGroups",
        ));
    }
    if let RunAs::Named(name) = user {
        settings.push(("User", name.clone().into()));
        if name == "root" {
            return settings;
        }
    }
    settings.extend([
        ("SystemCallFilter", only("@system-service")),
        ("SystemCallFilter", all_but("@privileged @resources")),
        // A system call that is not allowed fails, and does not end the command.
        ("SystemCallErrorNumber", NOT_PERMITTED.into()),
        (
            "RestrictAddressFamilies",
            only("AF_UNIX AF_INET AF_INET6 AF_NETLINK"),
        ),
        ("RestrictNamespaces", 0_u64.into()),
        ("DevicePolicy", "closed".into()),
        ("ProtectClock", true.into()),
    ]);
    if apart {
        settings.extend(on("PrivateDevices ProtectHostname"));
        settings.push(("ProtectProc", "invisible".into()));
    }
    if let RunAs::Named(_) = user {
        settings.push(("CapabilityBoundingSet", 0_u64.into()));
        if apart {
            // In a user namespace the users without a name cannot be had.
            settings.push(("PrivateUsers", true.into()));
        }
    } else {
        settings.extend([
            ("CapabilityBoundingSet", USER_CHANGE.into()),
            ("SystemCallFilter", only("@setuid capset")),
            // As systemd sets it for users with a name.
            ("Environment", words("HOME=/").into()),
        ]);
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(user: &RunAs, apart: bool) -> Vec<&'static str> {
        let settings = check_confinement(user, apart);
        settings.into_iter().map(|(name, _)| name).collect()
    }

    fn named(name: &str) -> RunAs {
        RunAs::Named(name.to_owned())
    }

    #[test]
    fn root_and_a_host_that_offers_less_keep_what_they_can() {
        let bare = names(&named("postgres"), false);
        assert!(bare.contains(&"CapabilityBoundingSet") && bare.contains(&"LimitCORE"));
        assert!(!bare.contains(&"ProtectSystem") && !bare.contains(&"PrivateUsers"));
        let root = names(&named("root"), true);
        assert!(root.contains(&"InaccessiblePaths") && root.contains(&"LimitCORE"));
        assert!(!root.contains(&"CapabilityBoundingSet") && !root.contains(&"PrivateDevices"));
    }

    /// A check with a dynamic user could not reach the service. With some of the other settings a share or a disk that
    /// hangs would stop every service.
    #[test]
    fn what_would_stop_a_healthy_service_is_left_out() {
        let settings = check_confinement(&RunAs::Numbered(61184), true);
        for (name, value) in settings {
            assert!(
                ![
                    "DynamicUser",
                    "ProtectHome",
                    "PrivateTmp",
                    "RemoveIPC",
                    "PrivateNetwork",
                ]
                .contains(&name)
                    && value != Variant::from("strict"),
                "{name}"
            );
        }
    }
}

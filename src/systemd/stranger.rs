//! A main process that is not the unit's. systemd believes a PID file of root's whatever process it names, and one on a file system
//! that hosts share may have been written on another host.

use std::fmt;

use super::Systemd;
use super::properties::Properties;
use super::remedy::drop_in;
use crate::host::processes::{self, Process};

/// A process that systemd takes for the main process of a unit, and that began before the unit was started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stranger {
    unit: String,
    file: String,
    process: Process,
}

impl Stranger {
    /// Its process id.
    pub(super) fn pid(&self) -> i32 {
        self.process.pid
    }
}

impl fmt::Display for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unit, file, process: Process { pid, command, group, .. } } = self;
        write!(
            f,
            "remove {file}, which {unit} names in PIDFile=: its PID {pid} ({command}) in {group} began before {unit} was started, and \
             systemd takes it for the main process, which it ends with the unit; to prevent it, {}",
            in_run(unit)
        )
    }
}

impl Systemd {
    /// The main process of a unit that has a PID file, if it cannot be the unit's. A process that began later counts as the
    /// unit's, wherever it is: it may have left the unit's control group.
    pub(super) async fn stranger(&self, properties: &Properties) -> Option<Stranger> {
        let file = properties.pid_file()?.to_owned();
        let unit = properties.text("Id")?.to_owned();
        let pid = i32::try_from(properties.number("MainPID")?).ok().filter(|pid| *pid > 1)?;
        let since = properties.started_at();
        // A process that cannot be looked at counts as the unit's, too.
        let process = self.blocking(move || processes::with_pid(pid)).await.ok()??;
        process.began_before(since).then_some(Stranger { unit, file, process })
    }
}

/// What the operator should know of a unit whose PID file is where hosts may share it.
pub(super) fn remark(properties: &Properties, unit: &str) -> Option<String> {
    let file = properties.pid_file().filter(|file| !file.starts_with("/run/"))?;
    Some(format!(
        "{unit} has PIDFile={file}, outside of /run: where hosts share that folder, it may hold the number of a process of another \
         host, and a start fails where that number is of a process here; to prevent it, {}",
        in_run(unit)
    ))
}

fn in_run(unit: &str) -> String {
    let stem = unit.strip_suffix(".service").unwrap_or(unit).replace('\\', "-");
    let file = format!("/run/{stem}/{stem}.pid");
    let setting = format!("PIDFile={file}\nRuntimeDirectory={stem}");
    format!("have its program write {file}, and {}", drop_in(unit, "Service", &setting))
}

#[cfg(test)]
mod tests {
    use zbus::Variant;

    use super::*;

    #[test]
    fn a_pid_file_is_remarked_on_unless_it_is_the_hosts_own() {
        let said = |file: &'static str| remark(&Properties::of([("PIDFile", Variant::from(file))]), "a.service");
        for own in ["", "/run/a.pid", "/run/a/a.pid"] {
            assert_eq!(said(own), None, "{own}");
        }
        let said = said("/srv/a/a.pid").expect("another host may write there");
        insta::assert_snapshot!(said, @r#"a.service has PIDFile=/srv/a/a.pid, outside of /run: where hosts share that folder, it may hold the number of a process of another host, and a start fails where that number is of a process here; to prevent it, have its program write /run/a/a.pid, and run "mkdir -p /etc/systemd/system/a.service.d && printf '%s\n' '[Service]' PIDFile=/run/a/a.pid RuntimeDirectory=a >/etc/systemd/system/a.service.d/zz-PIDFile.conf && systemctl daemon-reload""#);
        let stranger = Stranger {
            unit: "a.service".to_owned(),
            file: "/srv/a/a.pid".to_owned(),
            process: Process {
                pid: 36,
                began: 7,
                group: "/system.slice/cron.service".to_owned(),
                command: "/usr/sbin/cron -f".to_owned(),
            },
        };
        insta::assert_snapshot!(stranger.to_string(), @r#"remove /srv/a/a.pid, which a.service names in PIDFile=: its PID 36 (/usr/sbin/cron -f) in /system.slice/cron.service began before a.service was started, and systemd takes it for the main process, which it ends with the unit; to prevent it, have its program write /run/a/a.pid, and run "mkdir -p /etc/systemd/system/a.service.d && printf '%s\n' '[Service]' PIDFile=/run/a/a.pid RuntimeDirectory=a >/etc/systemd/system/a.service.d/zz-PIDFile.conf && systemctl daemon-reload""#);
    }
}

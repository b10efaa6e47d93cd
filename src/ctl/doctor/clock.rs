//! The clocks of the host: what the kernel counts time with, and whether the time of day is kept right.

use std::fs;
use std::time::Duration;

use tokio::time::timeout;
use zbus::OwnedVariant;

use super::Host;

const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
/// How long timedated may take, which is started when it is asked.
const LIMIT: Duration = Duration::from_secs(5);

const TIMEDATED: &str = "org.freedesktop.timedate1";
const TIMEDATED_PATH: &str = "/org/freedesktop/timedate1";

pub(super) async fn look(host: &mut Host) {
    let source = fs::read_to_string(CLOCK_SOURCE).ok();
    let is_kept = timeout(LIMIT, synchronized()).await.ok().flatten();
    judge(source.as_deref().map(str::trim), is_kept, host);
}

/// Judges the clock source, and whether the time of day is synchronised; `None`: that is not known.
fn judge(source: Option<&str>, is_kept: Option<bool>, host: &mut Host) {
    host.facts.push(match source {
        None => ("clock", format!("the clock source is not known: {CLOCK_SOURCE} cannot be read")),
        Some(source) => ("clock", format!("the kernel counts time with {source}")),
    });
    // Without a hardware clock the kernel counts its own ticks, and loses those that a hypervisor or a long interrupt takes.
    if let Some(source @ ("jiffies" | "refined-jiffies")) = source {
        host.findings.push(format!(
            "give this host a hardware clock, such as tsc, kvm-clock or hpet: its clock source is {source}, which may be off by more \
             than clock-error allows, so that two hosts could run a unit at once"
        ));
    }
    match is_kept {
        // This is no fault that the exit status has to tell, as leases do not depend on it.
        Some(false) => host.facts.push((
            "warning",
            "run a time service, such as chrony or systemd-timesyncd: the time of day is not synchronised; leases do not depend on \
             it, but fencing tokens count from it, and the journals of the hosts cannot be compared"
                .to_owned(),
        )),
        Some(true) => host.facts.push(("clock", "the time of day is synchronised".to_owned())),
        None => host.facts.push((
            "clock",
            "whether the time of day is synchronised is not known: systemd-timedated did not answer".to_owned(),
        )),
    }
}

/// Whether the kernel's time of day is kept right by any time service, as timedated knows.
async fn synchronized() -> Option<bool> {
    let connection = crate::bus::system().await.ok()?;
    let answer = connection
        .call_method(
            Some(TIMEDATED),
            TIMEDATED_PATH,
            Some("org.freedesktop.DBus.Properties"),
            "Get",
            &(TIMEDATED, "NTPSynchronized"),
        )
        .await
        .ok()?;
    let value: OwnedVariant = answer.body().deserialize().ok()?;
    bool::try_from(&value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(source: Option<&str>, is_kept: Option<bool>) -> Host {
        let mut host = Host::default();
        judge(source, is_kept, &mut host);
        host
    }

    #[test]
    fn a_clock_that_may_be_wrong_is_found() {
        assert_eq!(judged(Some("tsc"), Some(true)).findings, Vec::<String>::new());
        assert_eq!(judged(None, None).findings, Vec::<String>::new(), "what is not known is no fault");
        assert_eq!(judged(None, None).facts.len(), 2);
        let Host { facts, findings } = judged(Some("refined-jiffies"), Some(false));
        assert!(findings.len() == 1 && findings[0].starts_with("give this host a hardware clock"), "{findings:?}");
        assert!(
            facts.iter().any(|(name, text)| *name == "warning" && text.starts_with("run a time service")),
            "{facts:?}"
        );
    }
}

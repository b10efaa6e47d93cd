//! The host's side of `putexctl doctor`: what on this host keeps services from being run or taken over, with its remedy. systemd
//! and the kernel are asked, and nothing is changed.

mod clock;
mod others;
mod parts;

use std::path::Path;

use super::described;
use crate::audit::{self, Finding};
use crate::config::Settings;
use crate::host::cgroup::Hierarchy;
use crate::types::span::rounded;

/// What is known of the host.
#[derive(Debug, Default)]
pub(super) struct Host {
    /// What is as it is, each with the word that its line begins with, which is `warning` where it should not be so.
    pub(super) facts: Vec<(&'static str, String)>,
    /// What is wrong, as sentences without a full stop that begin with the remedy.
    pub(super) findings: Vec<String>,
}

impl Host {
    /// The lines to print, and whether something was found.
    pub(super) fn lines(self) -> (Vec<(&'static str, String)>, bool) {
        let is_found = !self.findings.is_empty();
        let is_well = !is_found && self.facts.iter().all(|(name, _)| *name != "warning");
        let well = is_well.then(|| ("host", "nothing was found that is wrong with this host".to_owned()));
        let findings = self.findings.into_iter().map(|text| ("finding", text));
        (findings.chain(self.facts).chain(well).collect(), is_found)
    }
}

/// Looks at this host. With another root than `/` the configuration is that of another host, and nothing is looked at.
pub(super) async fn host(root: &Path, settings: &Settings) -> Host {
    let mut host = Host::default();
    if root != Path::new("/") {
        host.facts.push(("host", "not looked at: --root names the files of another host".to_owned()));
        return host;
    }
    host.facts.push(("version", format!("putexctl {}", env!("CARGO_PKG_VERSION"))));
    match audit::connect().await {
        Err(reason) => host.findings.push(format!("run putexctl where systemd can be asked: {reason}")),
        Ok(systemd) => {
            parts::look(&systemd, &mut host).await;
            match audit::units(&systemd, settings, true).await {
                Ok(found) => host.findings.extend(untold(found).await),
                Err(reason) => host.findings.push(format!("run this again: the units were not looked at: {reason}")),
            }
        }
    }
    others::look(settings, &mut host).await;
    watchdog(settings, &mut host);
    if let Err(error) = Hierarchy::that_kills() {
        host.findings.push(format!("{error}; no lease can be held on this host"));
    }
    clock::look(&mut host).await;
    host
}

/// What putexd, if it runs, does not tell of the same units itself.
async fn untold(found: Vec<Finding>) -> Vec<String> {
    let running = described().await.unwrap_or_default().services;
    let is_told = |Finding { service, text, .. }: &Finding| {
        running.iter().any(|status| {
            status.service == service.as_str() && (status.hindrance == *text || status.remarks.contains(text))
        })
    };
    let untold = found.into_iter().filter(|finding| !is_told(finding));
    untold.map(|Finding { service, text, .. }| format!("{service}: {text}")).collect()
}

fn watchdog(settings: &Settings, host: &mut Host) {
    let Some(watchdog) = &settings.watchdog else {
        host.facts.push(("watchdog", "none is configured; see watchdog-device in putexd.toml(5)".to_owned()));
        return;
    };
    let (device, timeout) = (watchdog.device.display(), rounded(watchdog.timeout));
    host.facts.push(("watchdog", format!("{device}, which resets this host after {timeout} without a keep-alive")));
    if let Err(error) = watchdog.device.metadata() {
        host.findings.push(format!("load the driver of {device}, or correct watchdog-device in putexd.toml: {error}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_a_fault_says_so_and_a_fault_comes_first() {
        let facts = vec![("version", "putexctl 1".to_owned())];
        let host = |findings: &[&str]| Host {
            facts: facts.clone(),
            findings: findings.iter().map(|text| (*text).to_owned()).collect(),
        };
        let well = ("host", "nothing was found that is wrong with this host".to_owned());
        assert_eq!(host(&[]).lines(), ([facts.clone(), vec![well]].concat(), false));
        let (lines, is_found) = host(&["do this: it is wrong"]).lines();
        assert_eq!((lines[0].clone(), is_found), (("finding", "do this: it is wrong".to_owned()), true));
        assert_eq!(lines.len(), 2);
    }
}

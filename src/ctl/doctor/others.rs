//! What the reports of the hosts say against each other: settings that differ, and versions.

use std::collections::{BTreeMap, BTreeSet};

use super::Host;
use crate::cluster::view::Life;
use crate::config::Settings;
use crate::ctl::ask::described;
use crate::ctl::view::enumerated;
use crate::dbus::{ClusterStatus, Description, ServiceStatus};

/// How many services a line names.
const NAMED: usize = 6;

pub(super) async fn look(settings: &Settings, host: &mut Host) {
    // That putexd does not run is told elsewhere.
    if let Ok(Description { services, cluster, .. }) = described().await {
        let names: BTreeSet<String> = settings.services.iter().map(|service| service.name.to_string()).collect();
        host.findings.extend(unread(&names, &services));
        compare(&agreements(settings), &cluster, host);
    }
}

/// The hash of what must agree, of each service that this host's files have it run.
fn agreements(settings: &Settings) -> BTreeMap<String, String> {
    let run = settings.services.iter().filter(|service| !service.observes());
    run.map(|service| (service.name.to_string(), service.agreement())).collect()
}

/// What the putexd of this host has not read: `files` that came since, and services whose files are gone. systemd binds and unbinds the
/// units at each of its own reloads, whether putexd has read the files or not.
fn unread(files: &BTreeSet<String>, services: &[ServiceStatus]) -> Vec<String> {
    let added =
        files.iter().filter(|name| !services.iter().any(|service| service.service == **name)).cloned().collect();
    let is_left = |service: &&ServiceStatus| !files.contains(&service.service) && service.state != "broken";
    let removed = services.iter().filter(is_left).map(|service| service.service.clone()).collect();
    let found: [(Vec<String>, &str); 2] = [
        (added, "have files that putexd has not read, and their units are stopped by the next reload of systemd"),
        (removed, "have no file any more, and putexd still runs them"),
    ];
    let found = found.into_iter().filter(|(names, _)| !names.is_empty());
    found
        .map(|(names, what)| format!("run \"systemctl reload putexd\": {} {what}", enumerated(&names, NAMED)))
        .collect()
}

fn compare(files: &BTreeMap<String, String>, cluster: &ClusterStatus, host: &mut Host) {
    let mut versions: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for other in cluster.hosts.iter().filter(|other| !other.report.version.is_empty()) {
        let is_here = other.report.node == cluster.node;
        if is_here || other.life() == Life::Reports {
            versions.entry(&other.report.version).or_default().push(other.report.node.clone());
        }
        let differs = |(name, hash): &(&String, &String)| {
            let reported = other.services.iter().find(|service| service.service == **name);
            reported.is_some_and(|service| !service.settings.is_empty() && service.settings != **hash)
        };
        let differing: Vec<String> = files.iter().filter(differs).map(|(name, _)| name.clone()).collect();
        // Nobody can mend the files of a host that is gone, or of one under its former name.
        let is_gone =
            !is_here && (cluster.renamed(other).is_some() || matches!(other.life(), Life::Silent | Life::Lost));
        if differing.is_empty() || is_gone {
            continue;
        }
        let names = enumerated(&differing, NAMED);
        host.findings.push(if is_here {
            format!(
                "run \"systemctl reload putexd\": the settings of {names} were changed in the files since putexd has read them, \
                 or it could not take them up"
            )
        } else {
            let node = &other.report.node;
            format!(
                "make the settings of {names} the same here and on {node}, and compare the files for that: what must agree differs, \
                 as the key, the unit or the timings, so that a failover may take another time than is told"
            )
        });
    }
    if versions.len() > 1 {
        let all: Vec<String> =
            versions.iter().map(|(version, nodes)| format!("{} {version}", enumerated(nodes, NAMED))).collect();
        let text = format!("end the upgrade on all hosts: they run different versions of putexd: {}", all.join(", "));
        host.facts.push(("warning", text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctl::fixture::small;

    #[test]
    fn files_that_were_not_read_are_found() {
        let mut told = small();
        let files = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(unread(&files(&["db", "mail", "web"]), &told.services), Vec::<String>::new());
        let [added, removed] = &unread(&files(&["cache", "db", "mail"]), &told.services)[..] else { panic!("two") };
        assert!(added.contains(": cache have files that putexd has not read"), "{added}");
        assert!(removed.contains(": web have no file any more"), "{removed}");
        // A file that cannot be read is told of elsewhere.
        told.service("web").state = "broken".to_owned();
        assert_eq!(unread(&files(&["db", "mail"]), &told.services), Vec::<String>::new());
    }

    #[test]
    fn settings_and_versions_that_differ_are_found() {
        let mut told = small();
        let files: BTreeMap<String, String> =
            ["db", "mail", "web"].map(|name| (name.to_owned(), "5e1f".to_owned())).into();
        let look = |cluster: &ClusterStatus| {
            let mut host = Host::default();
            compare(&files, cluster, &mut host);
            (host.findings, host.facts)
        };
        assert_eq!(look(&told.cluster), (vec![], vec![]));
        told.report("h2", "db").settings = "0bad".to_owned();
        told.report("h2", "web").settings = "0bad".to_owned();
        told.report("h1", "mail").settings = "0bad".to_owned();
        told.host("h3").report.version = "0.2.0".to_owned();
        let (findings, facts) = look(&told.cluster);
        assert!(findings[0].starts_with("run \"systemctl reload putexd\": the settings of mail"), "{findings:#?}");
        assert!(findings[1].starts_with("make the settings of db and web the same here and on h2"), "{findings:#?}");
        assert_eq!(
            facts,
            [(
                "warning",
                "end the upgrade on all hosts: they run different versions of putexd: h1 and h2 0.1.0, h3 0.2.0"
                    .to_owned()
            )]
        );
        // What a host said before it was gone is compared, and its version does not count.
        told.host("h3").silent_ms = Some(60_000);
        assert_eq!(look(&told.cluster).1, vec![]);
    }
}

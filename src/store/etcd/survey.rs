//! What `putexctl doctor` shows of the cluster. Every configured endpoint is asked, over a connection of its own.

use std::collections::BTreeMap;

use etcd_client::{Member, StatusResponse};
use futures_util::future::join_all;

use super::EtcdSettings;
use super::connection::Connection;
use crate::store::files::Files;
use crate::store::{Examination, StoreError, version_numbers};

/// The state of a member, as its endpoint reports it.
struct Answer {
    version: String,
    leader: u64,
    size_bytes: i64,
    used_bytes: i64,
    /// Alarms, such as that of a full database or of a missing leader, in etcd's words.
    errors: Vec<String>,
}

/// Surveys the cluster. Takes as long as the slowest endpoint, each step of which is bounded by the call limit.
pub(super) async fn examine(
    settings: &EtcdSettings,
    files: &Files,
    connection: &Connection,
) -> Result<Examination, StoreError> {
    let asking = settings.endpoints.iter().map(|endpoint| ask(settings, files, endpoint, connection));
    let answers: BTreeMap<&String, Result<Answer, StoreError>> =
        settings.endpoints.iter().zip(join_all(asking).await).collect();
    let listing =
        async { connection.client.cluster_client().member_list().await.map_err(|error| connection.fails(&error)) };
    let members = connection.bounded(listing).await.map(|list| list.members().to_vec());

    let mut examination = Examination::default();
    for (endpoint, answer) in &answers {
        let text = match answer {
            Ok(Answer { version, size_bytes, used_bytes, .. }) => {
                format!(
                    "{endpoint}, etcd {version}, database {} kB, {} kB in use",
                    size_bytes / 1024,
                    used_bytes / 1024
                )
            }
            Err(error) => format!("{endpoint}, {}", reason(error)),
        };
        examination.facts.push(("endpoint".into(), text));
        match answer {
            Ok(answer) => {
                examination
                    .warnings
                    .extend(defects(version_numbers(&answer.version), members.as_ref().map_or(0, Vec::len)));
                examination.warnings.extend(answer.errors.iter().map(|error| complaint(endpoint, error)));
            }
            Err(error) => {
                examination.warnings.push(format!("The endpoint {endpoint} gives no answer: {}.", reason(error)));
            }
        }
    }
    let leader = answers.values().flatten().map(|answer| answer.leader).find(|leader| *leader != 0);
    match &members {
        Ok(members) => {
            examination.facts.push(("members".into(), named(members.iter())));
            let leads = members.iter().filter(|member| Some(member.id()) == leader);
            examination.facts.push(("leader".into(), named(leads)));
            examination.warnings.extend(sparse(members.len()));
        }
        // From etcd 3.6 on, not every user may list the members.
        Err(error) => examination.facts.push(("members".into(), format!("unknown: {error}"))),
    }
    examination.warnings.sort();
    examination.warnings.dedup();
    Ok(examination)
}

async fn ask(
    settings: &EtcdSettings,
    files: &Files,
    endpoint: &str,
    connection: &Connection,
) -> Result<Answer, StoreError> {
    let own = Connection::open(settings, files, endpoint, connection.call_limit).await?;
    let asking = async { own.client.maintenance_client().status().await.map_err(|error| own.fails(&error)) };
    own.bounded(asking).await.map(|status| Answer::from(&status))
}

impl From<&StatusResponse> for Answer {
    fn from(status: &StatusResponse) -> Self {
        Self {
            version: status.version().to_owned(),
            leader: status.leader(),
            size_bytes: status.db_size(),
            used_bytes: status.raft_used_db_size(),
            errors: status.errors().to_vec(),
        }
    }
}

fn reason(error: &StoreError) -> String {
    if let StoreError::Unreachable(reason) = error { reason.clone() } else { error.to_string() }
}

fn named<'a>(members: impl Iterator<Item = &'a Member>) -> String {
    let names: Vec<&str> = members.map(|member| if member.name().is_empty() { "?" } else { member.name() }).collect();
    if names.is_empty() { "-".to_owned() } else { names.join(", ") }
}

fn sparse(members: usize) -> Option<String> {
    match members {
        1 => Some("The cluster has one member: while it is away, no service is started; three are advised.".to_owned()),
        2 => Some("The cluster has two members, and stands still when either is away; three are advised.".to_owned()),
        _ => None,
    }
}

fn complaint(endpoint: &str, error: &str) -> String {
    if error.contains("NOSPACE") {
        return format!(
            "The database at {endpoint} is full and takes no writes: compact and defragment it, raise its quota, and \
             disarm the alarm with `etcdctl alarm disarm`."
        );
    }
    format!("The member at {endpoint} reports: {error}.")
}

/// The warning of a known defect by which a member may lose or change acknowledged writes; `None` if this version has
/// none.
fn defects(version: (u64, u64, u64), members: usize) -> Option<String> {
    let what = if version < (3, 4, 0) {
        "etcd before 3.4 is not tested with putexd: upgrade it."
    } else if version < (3, 4, 8) {
        "etcd before 3.4.8 can let its members differ when users and roles are on (etcd#11651): upgrade it."
    } else if ((3, 5, 0)..(3, 5, 3)).contains(&version) {
        "etcd 3.5.0 to 3.5.2 can let its members differ after a crash (etcd#13766), and two hosts see different locks \
         then: upgrade it before use."
    } else if members == 1 && (version < (3, 4, 21) || ((3, 5, 0)..(3, 5, 5)).contains(&version)) {
        "A single member of etcd before 3.4.21 or of 3.5.0 to 3.5.4 can lose acknowledged writes when it crashes \
         (etcd#14370): upgrade it."
    } else {
        return None;
    };
    Some(what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_known_defect_has_its_warning() {
        let of = |text, members| defects(version_numbers(text), members).unwrap_or_default();
        assert!(of("3.3.27", 3).contains("before 3.4 "));
        assert!(of("3.4.3", 3).contains("#11651"));
        assert!(of("3.5.2", 3).contains("#13766"));
        assert!(of("3.4.20", 1).contains("#14370"));
        assert!(of("3.5.4", 1).contains("#14370"));
        assert!(of("nonsense", 3).contains("before 3.4 "));
        for (good, members) in [("3.4.20", 3), ("3.4.23", 1), ("3.5.4", 3), ("3.5.16", 1), ("3.6.0-rc.1", 1)] {
            assert_eq!(of(good, members), "", "{good}");
        }
    }

    #[test]
    fn a_full_database_has_its_remedy() {
        let text = complaint("http://h1:2379", "memberID:10501334649042878790 alarm:NOSPACE ");
        assert!(text.contains("alarm disarm"), "{text}");
    }
}

//! What scripts ask: `putexctl is-active` and `putexctl token`.

use std::path::Path;

use clap::Args;

use super::{
    ask::Bus,
    output::{Failure, print},
    texts::unknown,
};
use crate::{
    command_line::exit,
    config::below,
    facts::{Activity, ClusterState, ServiceSummary},
    guard_client::grant,
    types::{LEASES_DIR, ServiceName},
};

/// What `putexctl is-active` is called with.
#[derive(Args)]
pub struct IsActiveArguments {
    /// The service
    service: ServiceName,
    /// Print nothing
    #[arg(long, short)]
    quiet: bool,
}

/// Prints the host that runs the service, and ends with a status that tells where it runs.
pub async fn is_active(arguments: IsActiveArguments) -> Result<(), Failure> {
    let cluster = Bus::described().await?;
    let service = arguments.service.as_str();
    let found = cluster.service(service).ok_or_else(|| unknown(service))?;
    if !arguments.quiet {
        let holder = found.holder.clone().filter(|_| found.activity.runs());
        let word = holder.unwrap_or_else(|| found.activity.to_string());
        print(&format!("{word}\n"))?;
    }
    Failure::end(verdict(found, &cluster))
}

/// The exit status: 0 where the unit runs here, and others for elsewhere, nowhere and unknown.
fn verdict(service: &ServiceSummary, cluster: &ClusterState) -> u8 {
    match service.activity {
        Activity::Running | Activity::Paused if service.holder.as_ref() == Some(&cluster.node) => 0,
        Activity::Running | Activity::Paused => exit::ELSEWHERE,
        // A holder that does not renew its lease runs the unit until the lease ends, and nobody knows how far it is.
        Activity::Unknown | Activity::Silent | Activity::Held => exit::UNAVAILABLE,
        Activity::Starting
        | Activity::Stopping
        | Activity::Lapsed
        | Activity::Stopped
        | Activity::NoHolder
        | Activity::Observed
        | Activity::Broken => exit::NOWHERE,
    }
}

/// Prints the fencing token of the grant. The grant is the authority, and not what putexd remembers: the grant is gone,
/// or its deadline is over, before another host can have a lease.
pub fn token(service: &ServiceName, root: &Path) -> Result<(), Failure> {
    let held = grant::held(&below(root, LEASES_DIR), service);
    let held = held.map_err(|error| Failure::refused(format!("{service}: {error}")))?;
    print(&format!("{}\n", held.token))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{service, small};
    use super::*;

    #[test]
    fn where_it_runs_is_an_exit_status() {
        let status = |cluster: &ClusterState, name: &str| {
            verdict(cluster.service(name).expect("it is there"), cluster)
        };
        let mut cluster = small();
        assert_eq!(
            (status(&cluster, "db"), status(&cluster, "web")),
            (0, exit::ELSEWHERE)
        );
        for (activity, expected) in [
            (Activity::Starting, exit::NOWHERE),
            (Activity::Lapsed, exit::NOWHERE),
            (Activity::NoHolder, exit::NOWHERE),
            (Activity::Silent, exit::UNAVAILABLE),
            (Activity::Unknown, exit::UNAVAILABLE),
            (Activity::Paused, exit::ELSEWHERE),
            (Activity::Held, exit::UNAVAILABLE),
        ] {
            service(&mut cluster, "web").activity = activity;
            assert_eq!(status(&cluster, "web"), expected, "{activity:?}");
        }
    }
}

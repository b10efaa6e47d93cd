//! `putexctl watch`: the cluster live on a terminal, and each change as a line of JSON elsewhere.

use std::{collections::BTreeMap, convert::Infallible, time::Duration};

use clap::Args;
use tokio::time::sleep;

use super::{
    ask::Bus,
    output::{Failure, print_json, redraw, rows, width},
    status::{pick, screen},
    texts::known,
};
use crate::{
    command_line::exit,
    facts::{Activity, ClusterState, ServiceSummary},
    types::printable_lines,
};

/// How often all is looked at, and tried again where putexd is away, as while it is restarted.
const INTERVAL: Duration = Duration::from_millis(500);

/// What `putexctl watch` is called with.
#[derive(Args)]
pub struct WatchArguments {
    /// Only these services: names, or patterns with * and ?
    #[arg(value_name = "SERVICE")]
    services: Vec<String>,
    /// Print a line of JSON for each change, also on a terminal
    #[arg(long)]
    json: bool,
}

/// What of each service was seen last: what is done about it, the holder, and the fencing token.
type LastSeen = BTreeMap<String, (Activity, Option<String>, Option<u64>)>;

/// Shows it for ever.
pub async fn run(arguments: WatchArguments) -> Result<(), Failure> {
    let rows = rows().filter(|_| !arguments.json);
    let mut seen = None;
    loop {
        let Err(failure) = follow(&arguments, rows, &mut seen).await;
        // A putexd that is restarted is back in a moment; one that was never there is an error.
        if seen.is_none() || failure.status != exit::UNAVAILABLE {
            return Err(failure);
        }
        if let Some(rows) = rows {
            redraw(&printable_lines(&failure.message), rows)?;
        }
        sleep(INTERVAL).await;
    }
}

/// Shows the cluster and what changes, as long as putexd answers. `seen`: the services as they were shown last.
async fn follow(
    arguments: &WatchArguments,
    rows: Option<usize>,
    seen: &mut Option<LastSeen>,
) -> Result<Infallible, Failure> {
    let bus = Bus::connect().await?;
    let names = &arguments.services;
    loop {
        let mut cluster = bus.describe().await?;
        if seen.is_none() {
            known(names, &cluster)?;
        }
        let findings = pick(&mut cluster, names);
        let changed = changed(seen.get_or_insert_default(), &cluster);
        if let Some(rows) = rows {
            let screen = screen(&cluster, &findings, !names.is_empty(), width());
            redraw(&screen.text(), rows)?;
        } else {
            changed.into_iter().try_for_each(print_json)?;
        }
        sleep(INTERVAL).await;
    }
}

/// The services that have changed since the last look, which `seen` has. At first these are all.
fn changed<'a>(seen: &mut LastSeen, cluster: &'a ClusterState) -> Vec<&'a ServiceSummary> {
    let mut services: Vec<&ServiceSummary> = cluster.services.iter().collect();
    services.retain(|one| {
        let now = (one.activity, one.holder.clone(), one.token);
        seen.insert(one.service.clone(), now.clone()) != Some(now)
    });
    services
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{assert_described, service, small};
    use super::*;

    #[test]
    fn each_change_is_reported_once() {
        let mut cluster = small();
        let mut seen = LastSeen::new();
        let first = changed(&mut seen, &cluster);
        assert_eq!(first.len(), 3);
        assert_described("watch", first[0]);
        assert!(changed(&mut seen, &cluster).is_empty());
        service(&mut cluster, "mail").activity = Activity::Stopping;
        let [stops] = changed(&mut seen, &cluster)[..] else {
            panic!("one change")
        };
        assert_eq!(
            (&*stops.service, stops.activity),
            ("mail", Activity::Stopping)
        );
    }
}

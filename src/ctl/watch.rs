//! `putexctl watch`: the cluster live on a terminal, and each change as a line of JSON elsewhere.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::time::sleep;

use super::ask::Bus;
use super::output::{Failure, Surface, print_json_line, redraw};
use super::status::{is_named, picture, screen, unknown_is_refused};
use super::view::View;
use crate::host::clock;
use crate::types::printable_lines;

/// How often it is looked for changes.
const INTERVAL: Duration = Duration::from_millis(500);
/// How often a terminal is written anew: often enough for the rest of a lease to be seen.
const REDRAWN_EVERY: u32 = 2;

/// What `putexctl watch` is called with.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Only these services: names, or patterns with * and ?
    #[arg(value_name = "SERVICE")]
    services: Vec<String>,
    /// Print a line of JSON for each change, also on a terminal
    #[arg(long)]
    json: bool,
}

/// One change of a service in the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Change {
    /// When it was seen, in seconds since 1970.
    at: u64,
    /// The service.
    service: String,
    /// The state before; empty = the service was not seen before.
    from: String,
    /// The state after; `gone` = the service is not there any more.
    to: String,
    /// The holder before; empty = nobody.
    from_holder: String,
    /// The holder after.
    holder: String,
    /// The fencing token after; 0 = not known.
    token: u64,
}

/// What of a service counts as a change, and what is told with it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Seen {
    state: String,
    holder: String,
    token: u64,
}

/// Shows it for ever.
pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let surface = Surface::of_output();
    let draws = surface.height.is_some() && !arguments.json;
    let mut seen = BTreeMap::new();
    let mut bus = None;
    let mut round = 0_u32;
    loop {
        let view = look(&mut bus).await;
        match view {
            Ok(mut view) => {
                if round == 0 {
                    unknown_is_refused(
                        &arguments.services,
                        &view.services.iter().map(|service| service.service.as_str()),
                    )?;
                }
                view.services.retain(|service| is_named(&arguments.services, &service.service));
                let now = clock::wall().as_secs();
                if !draws {
                    for change in changes(&mut seen, &view, now) {
                        print_json_line(&change)?;
                    }
                } else if round.is_multiple_of(REDRAWN_EVERY) {
                    let all = !arguments.services.is_empty();
                    redraw(screen(&view, all, now, Surface::of_output()).as_text(), surface.height)?;
                }
            }
            // A putexd that is restarted is back in a moment; one that was never there is an error.
            Err(failure) if seen.is_empty() && round == 0 => return Err(failure),
            Err(failure) if draws => redraw(&printable_lines(&failure.message), surface.height)?,
            Err(_) => {}
        }
        round = round.wrapping_add(1);
        sleep(INTERVAL).await;
    }
}

/// Looks over the connection that there is, or over a new one after an error.
async fn look(bus: &mut Option<Bus>) -> Result<View, Failure> {
    let connection = match bus.take() {
        Some(connection) => connection,
        None => Bus::connect().await?,
    };
    let services = connection.services().await?;
    let view = picture(&connection, services).await?;
    *bus = Some(connection);
    Ok(view)
}

/// What has changed since the last look. At first each service is told of as it stands.
fn changes(seen: &mut BTreeMap<String, Seen>, view: &View, at: u64) -> Vec<Change> {
    let now: BTreeMap<String, Seen> = view
        .services
        .iter()
        .map(|service| {
            let (state, holder) = (service.state.clone(), service.holder.clone());
            (service.service.clone(), Seen { state, holder, token: service.token })
        })
        .collect();
    let mut found = Vec::new();
    for (service, after) in &now {
        let before = seen.get(service).cloned().unwrap_or_default();
        if (&before.state, &before.holder) != (&after.state, &after.holder) {
            found.push(change(at, service, before, after.clone()));
        }
    }
    for (service, before) in seen.iter().filter(|(service, _)| !now.contains_key(*service)) {
        found.push(change(at, service, before.clone(), Seen { state: "gone".to_owned(), ..Seen::default() }));
    }
    *seen = now;
    found
}

fn change(at: u64, service: &str, before: Seen, after: Seen) -> Change {
    Change {
        at,
        service: service.to_owned(),
        from: before.state,
        to: after.state,
        from_holder: before.holder,
        holder: after.holder,
        token: after.token,
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{assert_described, small};
    use super::*;

    #[test]
    fn each_change_is_told_once() {
        let mut told = small();
        let mut seen = BTreeMap::new();
        let first = changes(&mut seen, &told.view(), 1);
        assert_eq!(first.iter().map(|change| change.to.as_str()).collect::<Vec<_>>(), ["running"; 3]);
        assert_described("watch", &first[0]);
        assert_eq!(changes(&mut seen, &told.view(), 2), Vec::new());
        told.service("db").state = "releasing".to_owned();
        let [stops] = &changes(&mut seen, &told.view(), 3)[..] else { panic!("one change") };
        assert_eq!((stops.from.as_str(), stops.to.as_str(), stops.holder.as_str()), ("running", "stopping", "h1"));
        told.services.retain(|status| status.service != "db");
        told.cluster.hosts.iter_mut().for_each(|host| host.services.retain(|report| report.service != "db"));
        let [gone] = &changes(&mut seen, &told.view(), 4)[..] else { panic!("one change") };
        assert_eq!((gone.to.as_str(), gone.from_holder.as_str()), ("gone", "h1"));
    }
}

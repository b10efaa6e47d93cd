//! `putexctl explain SERVICE`: how long each kind of failover takes, from the files of this host: "How long it takes" in protocol.md,
//! with the numbers of one service.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use super::output::{Cell, Failure, Screen, Style, width};
use crate::{
    command_line::exit,
    config::{self, ServiceSettings},
    types::{OnStopFailure, ServiceName, span::rounded},
};

/// What `putexctl explain` is called with.
#[derive(Args)]
pub struct ExplainArguments {
    /// The service
    service: ServiceName,
    /// Show beside it what another value of a key would change, such as renew-interval=1s
    #[arg(long, value_name = "KEY=VALUE")]
    what_if: Option<String>,
    /// Look for the configuration below this directory
    #[arg(long, value_name = "DIRECTORY", default_value = "/")]
    root: PathBuf,
}

/// One kind of failover: what happens, and what its time is made of. The start of the unit, which has no bound, comes to those in which
/// another host starts it.
type Bound = (&'static str, Vec<(&'static str, Duration)>);

/// All kinds of failover of a service: from the last renewal of a holder that falls silent, from the return of the store, from the
/// loss of what the lease needs, or from the order on.
fn bounds(service: &ServiceSettings) -> [Bound; 5] {
    let timings = &service.timings;
    let mut silence = vec![
        ("wait", timings.wait(timings.usual_hold())),
        ("2 calls", timings.call_limit() * 2),
    ];
    if service.fence.others.is_some() {
        silence.push(("fence", service.fence.timeout));
    }
    let lapse = vec![
        ("lease", timings.deadline_after()),
        ("stop", timings.stop_budget),
    ];
    let planned = vec![
        ("stop-limit", service.stop_limit),
        ("4 calls", timings.call_limit() * 4),
        ("renew", timings.renew_interval),
    ];
    [
        ("planned hand-over", planned),
        ("power loss, partition", silence.clone()),
        ("store away", lapse.clone()),
        ("putexd or guard gone", lapse),
        ("store and holder lost", silence),
    ]
}

/// Explains it.
pub fn run(arguments: &ExplainArguments) -> Result<(), Failure> {
    let loaded = config::load(&arguments.root);
    let name = &arguments.service;
    let mut services = loaded.settings.iter().flat_map(|all| &all.services);
    let Some(found) = services.find(|known| known.name == *name) else {
        return Err(match loaded.broken.get(name).or(loaded.for_all.as_ref()) {
            Some(error) => Failure::new(exit::CONFIGURATION, error.to_string()),
            None => Failure::refused(format!(
                "see /etc/putex.d: no file there is for a service called {name}"
            )),
        });
    };
    let Some(assumed) = arguments.what_if.as_deref() else {
        return screen(found, None, width()).show();
    };
    let service = config::load_assuming(&arguments.root, found, assumed)
        .map_err(|why| Failure::refused(format!("putexd would refuse {assumed}: {why}")))?;
    screen(&service, Some((assumed, found)), width()).show()
}

/// `assumed`: what differs from the file, and the service as it is in there.
fn screen(
    service: &ServiceSettings,
    assumed: Option<(&str, &ServiceSettings)>,
    width: Option<usize>,
) -> Screen {
    let mut screen = Screen::new(width);
    let timings = &service.timings;
    let interval = timings.renew_interval;
    let condition = assumed.map_or_else(String::new, |(assumed, _)| format!(", if {assumed}"));
    screen
        .put(service.name.as_str(), Style::Bold)
        .line(&format!(
            "{condition}: lease {} = failures {} × {interval:?}, confirmations {} × {interval:?}",
            rounded(timings.lease()),
            timings.failures,
            timings.confirmations
        ));
    let at_most = |(_, terms): &Bound| rounded(terms.iter().map(|(_, span)| *span).sum());
    let former = bounds(assumed.map_or(service, |(_, former)| former));
    let row = |(bound, former): (Bound, Bound)| {
        let mut sum = at_most(&bound);
        if assumed.is_some() {
            sum = format!("{} → {sum}", at_most(&former));
        }
        let (event, terms) = bound;
        let terms = terms
            .iter()
            .map(|(name, span)| format!("{name} {}", rounded(*span)));
        let terms = terms.collect::<Vec<_>>().join(" + ");
        [Cell::from(event), sum.into(), terms.into()]
    };
    let header = ["EVENT", "AT MOST", "MADE OF"];
    let both = bounds(service).into_iter().zip(former);
    screen.table(0, header, both.map(row));
    screen.line(&format!(
        "wait: until a lost host's unit is certainly dead. call: of the store.\n\
         The start comes on top. A store that is away for less than {} stops nothing.",
        rounded(timings.rides_through())
    ));
    if service.on_stop_failure == OnStopFailure::Alert {
        screen
            .line("A stop that takes longer than stop-limit is bounded by TimeoutStopSec= alone.");
    }
    for caution in timings.warnings() {
        screen.sentence("! ", &caution.text, Style::Notable);
    }
    screen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn db(file: &str) -> ServiceSettings {
        let root = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        };
        let host = "node = \"h1\"\n[store]\ntype = \"directory\"\npath = \"/srv/putex\"\n";
        write("etc/putex/putexd.toml", host);
        write("etc/putex.d/db.toml", file);
        let loaded = config::load(root.path());
        loaded
            .settings
            .expect("good settings")
            .services
            .into_iter()
            .next()
            .expect("a service")
    }

    #[test]
    fn the_bounds_of_the_usual_timings_are_explained() {
        let service = db("unit = \"database.service\"\n");
        insta::assert_snapshot!(screen(&service, None, Some(80)).text());
        let assumed = db("unit = \"database.service\"\nrenew-interval = \"1s\"\n");
        let assumed = screen(&assumed, Some(("renew-interval=1s", &service)), Some(80));
        insta::assert_snapshot!(assumed.text());
    }

    /// "How long it takes" in protocol.md: T + W − x, round trips, fencing.
    #[test]
    fn the_bound_of_a_silence_is_that_of_the_protocol() {
        let service = db("unit = \"database.service\"\n[fence]\nothers = \"fence@.service\"\n");
        let timings = &service.timings;
        let [_, (_, terms), ..] = bounds(&service);
        let bound: Duration = terms.iter().map(|(_, span)| *span).sum();
        let fencing = Duration::from_secs(30);
        let whole = timings.lease() + timings.confirm() + timings.call_limit() * 2 + fencing;
        let (least, most) = (whole, whole + (timings.lease() + timings.confirm()) / 100);
        assert!((least..=most).contains(&bound), "{bound:?}");
    }
}

//! From `putexd.toml` to the host's validated settings.

use std::ops::Range;
use std::path::Path;

use toml::Spanned;

use super::diagnostic::Report;
use super::fragment::{DefaultsFragment, Field, HostFragment, Tuning, take};
use super::service::{check_stop_limit, check_timings};
use super::store;
use crate::types::NodeId;
use crate::types::store::StoreSettings;

/// What a good `putexd.toml` says, but for the defaults.
pub(super) struct Host {
    pub(super) node: NodeId,
    pub(super) store: StoreSettings,
}

/// Validates `putexd.toml`. What is `None`, or marked as bad in the defaults, has been reported. Secrets are looked for
/// below `root`.
pub(super) fn check(
    root: &Path,
    host_name: &str,
    fragment: HostFragment,
    report: &mut Report,
) -> (Option<Host>, Tuning) {
    let node = check_node(fragment.node, host_name, report);
    let given_store = fragment.store.is_some();
    let store =
        take(fragment.store, report).and_then(|store| store::check(root, &store.span(), store.into_inner(), report));
    if !given_store {
        report.file_error(
            "the table [store] is missing: say where the locks are, such as type = \"directory\" and path = \
             \"/srv/putex\" below [store]",
        );
    }
    let given_defaults = fragment.defaults.is_some();
    let defaults = match take(fragment.defaults, report) {
        Some(defaults) => check_defaults(&defaults.span(), defaults.into_inner(), report),
        None => Tuning { bad: given_defaults, ..Tuning::default() },
    };
    let host = match (node, store) {
        (Some(node), Some(store)) if !report.has_errors() => Some(Host { node, store }),
        _ => None,
    };
    (host, defaults)
}

fn check_node(field: Field<NodeId>, host_name: &str, report: &mut Report) -> Option<NodeId> {
    if field.is_some() {
        return take(field, report).map(Spanned::into_inner);
    }
    // These are what a host is called that nobody has named, so that the next one has the same.
    if ["", "(none)", "localhost", "localhost.localdomain"].contains(&host_name) {
        report.file_error(format!(
            "the host name is {host_name:?}, which other hosts may have too, and each must have a name of its own in \
             the locks: set node = \"…\" at the top of the file, or the host name"
        ));
        return None;
    }
    NodeId::new(host_name)
        .inspect_err(|error| report.file_error(format!("the host name will not do: {error}; set node = \"…\"")))
        .ok()
}

/// The defaults have to be safe by themselves: then a service's file that is not has itself to blame.
fn check_defaults(span: &Range<usize>, mut fragment: DefaultsFragment, report: &mut Report) -> Tuning {
    let mut tuning = fragment.take_tuning(report);
    let none = Tuning::default();
    let safe = check_timings(&tuning, &none, span, report)
        .and_then(|timings| check_stop_limit(&tuning, &none, timings, report))
        .is_some();
    tuning.bad = !safe;
    tuning
}

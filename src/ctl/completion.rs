//! What a shell completes: clap knows the verbs and options, and putexd the names of services and hosts.

use clap::{Arg, Command, CommandFactory as _};
use clap_complete::{
    CompleteEnv,
    engine::{ArgValueCandidates, CompletionCandidate},
};

use super::{Cli, ask::Bus, finished};
use crate::facts::ClusterState;

/// Answers a shell that has called this program to complete a word; `false` if it was called for something else.
pub fn answered() -> bool {
    CompleteEnv::with_factory(|| Cli::command().mut_subcommands(completed))
        .try_complete(std::env::args_os(), None)
        .unwrap_or(true)
}

fn completed(verb: Command) -> Command {
    let services = || names(|known| known.services.into_iter().map(|one| one.service).collect());
    let hosts = || names(|known| known.hosts.into_iter().map(|one| one.state.node).collect());
    verb.mut_args(|argument: Arg| match argument.get_id().as_str() {
        "service" | "services" => argument.add(ArgValueCandidates::new(services)),
        "node" | "to" => argument.add(ArgValueCandidates::new(hosts)),
        _ => argument,
    })
}

/// Names of what the running putexd knows; none where it does not answer.
fn names(of: fn(ClusterState) -> Vec<String>) -> Vec<CompletionCandidate> {
    let names = finished(Bus::described()).map(of).unwrap_or_default();
    // A name with a character that a shell might take for something else is not offered.
    let is_plain = |each: char| each.is_ascii_alphanumeric() || "-_.:@".contains(each);
    let names = names.into_iter().filter(|name| name.chars().all(is_plain));
    names.map(CompletionCandidate::new).collect()
}

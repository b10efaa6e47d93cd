//! `[store]` with `type = "nats"`.

use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;

use super::{Secrecy, check_file, required, take_certificates, take_login};
use crate::config::address::{is_host, is_host_and_port};
use crate::config::diagnostic::Report;
use crate::config::fragment::{StoreFragment, take};
use crate::types::store::{Login, NatsCredentials, NatsSettings};

/// Replicas, if nothing is said: the fewest that survive the death of one server.
const REPLICAS: u32 = 3;
/// NATS has no more.
const MOST_REPLICAS: u32 = 5;

pub(super) fn check(
    root: &Path,
    table: &Range<usize>,
    fragment: &mut StoreFragment,
    report: &mut Report,
) -> Option<NatsSettings> {
    let servers = required(fragment.servers.take(), "servers", "[\"nats://h1:4222\"]", table, report)
        .map(|servers| check_servers(servers, report));
    let bucket = required(fragment.bucket.take(), "bucket", "\"locks\"", table, report)
        .and_then(|bucket| check_bucket(bucket, report));
    let replicas = match take(fragment.replicas.take(), report) {
        Some(replicas) => check_replicas(replicas.span(), replicas.get_ref().0, report),
        None => REPLICAS,
    };
    let create_bucket = take(fragment.create_bucket.take(), report).is_some_and(Spanned::into_inner);
    let user = fragment.user.as_ref().map(Spanned::span);
    let ways = Ways {
        creds: take(fragment.creds.take(), report),
        nkey_seed: take(fragment.nkey_seed.take(), report),
        user,
        login: take_login(root, fragment, report),
    };
    let credentials = ways.check(root, report);
    let tls_required = take(fragment.tls_required.take(), report).is_some_and(Spanned::into_inner);
    let tls = take_certificates(root, fragment, report);
    Some(NatsSettings {
        servers: servers?,
        bucket: bucket?,
        replicas: usize::try_from(replicas).ok()?,
        create_bucket,
        credentials,
        tls_required,
        tls,
    })
}

fn check_servers(servers: Spanned<Vec<Spanned<String>>>, report: &mut Report) -> Vec<String> {
    let span = servers.span();
    let servers = servers.into_inner();
    if servers.is_empty() {
        report.error(&span, "servers is empty: name at least one, such as \"nats://h1:4222\"");
    }
    let mut good: Vec<String> = Vec::new();
    for server in servers {
        match server_problem(server.get_ref()) {
            Some(problem) => report.error(&server.span(), problem),
            None if good.contains(server.get_ref()) => {
                report.warning(&server.span(), format!("{:?} is named twice", server.get_ref()));
            }
            None => good.push(server.into_inner()),
        }
    }
    good
}

fn server_problem(url: &str) -> Option<String> {
    const EXAMPLE: &str = "write it like \"nats://h1:4222\" or \"tls://h1:4222\"";
    if url.contains('@') {
        // The message must not repeat the secret into the journal.
        return Some(
            "a server's URL must not carry a user or a password: use user and password-file, creds or nkey-seed"
                .to_owned(),
        );
    }
    let Some((scheme, rest)) = url.split_once("://") else {
        return Some(format!("the server {url:?} has no scheme: {EXAMPLE}"));
    };
    if !["nats", "tls"].contains(&scheme) {
        return Some(format!("the server {url:?} has the unknown scheme {scheme:?}: {EXAMPLE}"));
    }
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    if is_host(authority) || is_host_and_port(authority) {
        return None;
    }
    Some(format!("the server {url:?} is not a host with a port: {EXAMPLE}"))
}

fn check_bucket(bucket: Spanned<String>, report: &mut Report) -> Option<String> {
    let span = bucket.span();
    let name = bucket.into_inner();
    let good = !name.is_empty()
        && name.chars().all(|character| character.is_ascii_alphanumeric() || matches!(character, '-' | '_'));
    if !good {
        report.error(&span, format!("the bucket {name:?} will not do: letters, digits, '-' and '_' are accepted"));
        return None;
    }
    Some(name)
}

fn check_replicas(span: Range<usize>, replicas: u32, report: &mut Report) -> u32 {
    if replicas == 0 || replicas > MOST_REPLICAS {
        report.error(&span, format!("replicas = {replicas} is out of range: set 1 to {MOST_REPLICAS}, 3 is usual"));
    } else if replicas.is_multiple_of(2) {
        report.warning(
            &span,
            format!(
                "replicas = {replicas} survives no more lost servers than {} would: an odd number is usual",
                replicas - 1
            ),
        );
    }
    replicas
}

/// The ways to log in, of which one may be used.
struct Ways {
    creds: Option<Spanned<PathBuf>>,
    nkey_seed: Option<Spanned<PathBuf>>,
    user: Option<Range<usize>>,
    login: Option<Login>,
}

impl Ways {
    fn check(self, root: &Path, report: &mut Report) -> NatsCredentials {
        let ways = [
            ("creds", self.creds.as_ref().map(Spanned::span)),
            ("nkey-seed", self.nkey_seed.as_ref().map(Spanned::span)),
            ("user", self.user),
        ];
        let ways: Vec<_> = ways.iter().filter_map(|(key, span)| Some((*key, span.clone()?))).collect();
        if let [(first, _), (second, span), ..] = ways.as_slice() {
            report.error(span, format!("{first} and {second} are two ways to log in: keep one of them"));
        }
        for file in [&self.creds, &self.nkey_seed].into_iter().flatten() {
            check_file(root, file, Secrecy::Secret, report);
        }
        if let Some(login) = self.login {
            return NatsCredentials::UserPassword(login);
        }
        if let Some(creds) = self.creds {
            return NatsCredentials::Creds(creds.into_inner());
        }
        self.nkey_seed.map_or(NatsCredentials::None, |seed| NatsCredentials::NkeySeed(seed.into_inner()))
    }
}

//! `[store]` with `type = "nats"`.

use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;

use super::{refuse_plaintext, required, take_certificates, take_login, take_secret};
use crate::config::address::{host_of, is_host, is_host_and_port, is_loopback};
use crate::config::diagnostic::Report;
use crate::config::fragment::{StoreFragment, take};
use crate::types::store::{Login, NatsCredentials, NatsSettings, Tls};

/// The default number of replicas: the smallest that survives the loss of one server.
const REPLICAS: u32 = 3;
/// The most replicas that NATS supports.
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
        creds: take_secret(root, fragment.creds.take(), report),
        nkey_seed: take_secret(root, fragment.nkey_seed.take(), report),
        user,
        login: take_login(root, fragment, report),
    };
    let login = ways.given().into_iter().next();
    let credentials = ways.check(report);
    let tls_required = take(fragment.tls_required.take(), report);
    let tls = take_certificates(root, fragment, report);
    let has_certificates = tls != Tls::default();
    if let Some(said) = tls_required.as_ref().filter(|said| has_certificates && !said.get_ref()) {
        report.error(&said.span(), "certificates require TLS: remove tls-required = false, or tls-ca and tls-cert");
    }
    let tls_required = has_certificates || tls_required.is_some_and(Spanned::into_inner);
    let is_allowed = take(fragment.allow_plaintext.take(), report).is_some_and(Spanned::into_inner);
    let servers = servers?;
    let far = servers.iter().find(|server| !tls_required && is_far(server));
    refuse_plaintext(login, far.map(String::as_str), "set tls-required = true", is_allowed, report);
    Some(NatsSettings {
        servers,
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

/// Whether traffic to this server may leave this host unencrypted. With the scheme `tls` the client waits for TLS.
fn is_far(server: &str) -> bool {
    let authority = server.strip_prefix("nats://").map(|rest| rest.strip_suffix('/').unwrap_or(rest));
    authority.is_some_and(|authority| !is_loopback(host_of(authority)))
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
    /// The ways to log in that the file sets, with their places.
    fn given(&self) -> Vec<(&'static str, Range<usize>)> {
        let ways = [
            ("creds", self.creds.as_ref().map(Spanned::span)),
            ("nkey-seed", self.nkey_seed.as_ref().map(Spanned::span)),
            ("user", self.user.clone()),
        ];
        ways.into_iter().filter_map(|(key, span)| Some((key, span?))).collect()
    }

    fn check(self, report: &mut Report) -> NatsCredentials {
        if let [(first, _), (second, span), ..] = self.given().as_slice() {
            report.error(span, format!("{first} and {second} are two ways to log in: keep one of them"));
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

//! `[store]` with `type = "etcd"`.

use std::ops::Range;
use std::path::Path;

use toml::Spanned;

use super::{refuse_plaintext, required, take_certificates, take_login};
use crate::config::address::{host_of, is_host_and_port, is_loopback};
use crate::config::diagnostic::Report;
use crate::config::fragment::{StoreFragment, take};
use crate::types::store::{EtcdSettings, Tls};

/// The default of the prefix of putexd's keys.
const PREFIX: &str = "/putex";

pub(super) fn check(
    root: &Path,
    table: &Range<usize>,
    fragment: &mut StoreFragment,
    report: &mut Report,
) -> Option<EtcdSettings> {
    let endpoints = required(fragment.endpoints.take(), "endpoints", "[\"http://h1:2379\"]", table, report);
    let prefix = match take(fragment.prefix.take(), report) {
        Some(prefix) => check_prefix(prefix, report),
        None => Some(PREFIX.to_owned()),
    };
    let user = fragment.user.as_ref().map(|user| ("user", user.span()));
    let login = take_login(root, fragment, report);
    let is_allowed = take(fragment.allow_plaintext.take(), report).is_some_and(Spanned::into_inner);
    let certificates = [&fragment.tls_ca, &fragment.tls_cert].map(|field| field.as_ref().map(Spanned::span));
    let tls = take_certificates(root, fragment, report);
    let endpoints = check_endpoints(endpoints?, report);
    let encrypted = endpoints.first().is_some_and(|endpoint| endpoint.starts_with("https://"));
    if let Some(span) = certificates.into_iter().flatten().next().filter(|_| !encrypted && tls != Tls::default()) {
        report.error(&span, "certificates need endpoints that begin with \"https://\"");
    }
    let far = endpoints.iter().find(|endpoint| is_far(endpoint));
    refuse_plaintext(user, far.map(String::as_str), "write https:// in endpoints", is_allowed, report);
    Some(EtcdSettings { endpoints, prefix: prefix?, login, tls })
}

fn check_endpoints(endpoints: Spanned<Vec<Spanned<String>>>, report: &mut Report) -> Vec<String> {
    if endpoints.get_ref().is_empty() {
        report.error(&endpoints.span(), "endpoints is empty: name at least one, such as \"http://h1:2379\"");
    }
    let mut good: Vec<String> = Vec::new();
    for endpoint in endpoints.into_inner() {
        let text = endpoint.get_ref().strip_suffix('/').unwrap_or(endpoint.get_ref()).to_owned();
        match endpoint_problem(&text, good.first()) {
            Some(problem) => report.error(&endpoint.span(), problem),
            None if good.contains(&text) => report.warning(&endpoint.span(), format!("{text:?} is named twice")),
            None => good.push(text),
        }
    }
    good
}

/// What is wrong with an endpoint; `None` if it is accepted. `first` is the first endpoint that was accepted before it.
fn endpoint_problem(url: &str, first: Option<&String>) -> Option<String> {
    const EXAMPLE: &str = "write it like \"http://h1:2379\" or \"https://h1:2379\"";
    if url.contains('@') {
        // The message must not repeat the secret into the journal.
        return Some("an endpoint must not carry a user or a password: use user and password-file".to_owned());
    }
    let Some((scheme, authority)) = url.split_once("://").filter(|(scheme, _)| ["http", "https"].contains(scheme))
    else {
        return Some(format!("the endpoint {url:?} does not begin with http:// or https://: {EXAMPLE}"));
    };
    if !is_host_and_port(authority) {
        return Some(format!("the endpoint {url:?} is not a host with a port: {EXAMPLE}"));
    }
    let other = first.is_some_and(|first| !first.starts_with(&format!("{scheme}://")));
    other.then(|| "some endpoints are http and some https: make all of them the same".to_owned())
}

/// Whether traffic to this endpoint leaves this host unencrypted.
fn is_far(endpoint: &str) -> bool {
    endpoint.strip_prefix("http://").is_some_and(|authority| !is_loopback(host_of(authority)))
}

fn check_prefix(prefix: Spanned<String>, report: &mut Report) -> Option<String> {
    let span = prefix.span();
    let prefix = prefix.into_inner();
    let good = prefix.starts_with('/') && prefix.len() > 1 && !prefix.ends_with('/') && !prefix.contains('\0');
    if !good {
        report.error(&span, format!("the prefix {prefix:?} will not do: write it like {PREFIX:?}"));
        return None;
    }
    Some(prefix)
}

//! `[store]` with `type = "postgres"`.

use std::ops::Range;
use std::path::Path;

use toml::Spanned;

use super::{Secrecy, check_file, required, take_certificates};
use crate::config::diagnostic::Report;
use crate::config::fragment::{StoreFragment, take};
use crate::types::store::PostgresSettings;

/// The table if nothing is said.
const TABLE: &str = "putex_locks";
/// PostgreSQL cuts longer names off.
const NAME_LIMIT_BYTES: usize = 63;

pub(super) fn check(
    root: &Path,
    table: &Range<usize>,
    fragment: &mut StoreFragment,
    report: &mut Report,
) -> Option<PostgresSettings> {
    const EXAMPLE: &str = "\"host=h1,h2 dbname=putex user=putex\"";
    let connection = required(fragment.connection.take(), "connection", EXAMPLE, table, report)
        .and_then(|connection| check_connection(connection, report));
    let name = match take(fragment.table.take(), report) {
        Some(name) => check_table(name, report),
        None => Some(TABLE.to_owned()),
    };
    let password_file = take(fragment.password_file.take(), report);
    if let Some(file) = &password_file {
        check_file(root, file, Secrecy::Secret, report);
    }
    let tls = take_certificates(root, fragment, report);
    Some(PostgresSettings {
        connection: connection?,
        password_file: password_file.map(Spanned::into_inner),
        table: name?,
        tls,
    })
}

/// A password is refused, and the message does not repeat it. The rest is for the library that connects to judge.
fn check_connection(connection: Spanned<String>, report: &mut Report) -> Option<String> {
    let span = connection.span();
    let text = connection.into_inner();
    let authority = text.split_once("://").map_or("", |(_, rest)| rest.split(['/', '?']).next().unwrap_or_default());
    let in_url = authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'));
    if in_url || text.to_ascii_lowercase().contains("password") {
        report.error(&span, "the connection must not carry a password: use password-file");
        return None;
    }
    Some(text)
}

/// `table` or `schema.table`, of names that need no quotes.
fn check_table(table: Spanned<String>, report: &mut Report) -> Option<String> {
    let span = table.span();
    let name = table.into_inner();
    let parts: Vec<&str> = name.split('.').collect();
    let good = parts.len() <= 2
        && parts.iter().all(|part| {
            part.len() <= NAME_LIMIT_BYTES
                && part.starts_with(|first: char| first.is_ascii_lowercase() || first == '_')
                && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        });
    if !good {
        report.error(
            &span,
            format!("the table {name:?} will not do: lower case letters, digits and '_' are accepted, with a schema before a '.' or without"),
        );
        return None;
    }
    Some(name)
}

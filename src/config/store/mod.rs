//! `[store]`: a file for each type, and here what they share.

mod directory;
mod etcd;
mod nats;
#[cfg(feature = "postgres")]
mod postgres;

use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use toml::Spanned;

use super::diagnostic::Report;
use super::fragment::{Field, StoreFragment, take};
use crate::types::store::{Login, StoreSettings, Tls};

/// Validates the table at `span`. Secrets and certificates are looked for below `root`.
pub(super) fn check(
    root: &Path,
    span: &Range<usize>,
    mut fragment: StoreFragment,
    report: &mut Report,
) -> Option<StoreSettings> {
    let kind = required(fragment.r#type.take(), "type", "\"nats\"", span, report)?;
    let name = kind.get_ref().as_str();
    if !StoreSettings::BUILT_IN.contains(&name) {
        report.error(&kind.span(), unknown_type(name));
        return None;
    }
    let settings = match name {
        "directory" => directory::check(span, &mut fragment, report).map(StoreSettings::Directory),
        "etcd" => etcd::check(root, span, &mut fragment, report).map(StoreSettings::Etcd),
        #[cfg(feature = "postgres")]
        "postgres" => postgres::check(root, span, &mut fragment, report).map(StoreSettings::Postgres),
        _ => nats::check(root, span, &mut fragment, report).map(StoreSettings::Nats),
    };
    // Each type has taken what is its own.
    for (key, span) in fragment.given() {
        report.error(&span, format!("the key {key:?} has no meaning for the store type {name:?}: remove it"));
    }
    settings
}

fn unknown_type(name: &str) -> String {
    if StoreSettings::FEATURES.contains(&name) {
        return format!("this putexd was built without {name}: build it with \"cargo build --features {name}\"");
    }
    let known: Vec<String> = StoreSettings::BUILT_IN.iter().map(|known| format!("{known:?}")).collect();
    format!("the store type {name:?} is unknown: {} are known", known.join(", "))
}

fn required<T>(
    field: Field<T>,
    key: &str,
    example: &str,
    table: &Range<usize>,
    report: &mut Report,
) -> Option<Spanned<T>> {
    if field.is_none() {
        report.error(table, format!("the key {key:?} is missing in [store]: add {key} = {example}"));
    }
    take(field, report)
}

/// `user` and `password-file`.
fn take_login(root: &Path, fragment: &mut StoreFragment, report: &mut Report) -> Option<Login> {
    let user = take(fragment.user.take(), report);
    let password_file = take(fragment.password_file.take(), report);
    if let Some(file) = &password_file {
        check_file(root, file, Secrecy::Secret, report);
    }
    match (user, password_file) {
        (Some(user), Some(file)) => Some(Login { user: user.into_inner(), password_file: file.into_inner() }),
        (Some(user), None) => {
            report.error(&user.span(), "user needs password-file, the path of a file with the password");
            None
        }
        (None, Some(file)) => {
            report.error(&file.span(), "password-file needs user, the name to log in with");
            None
        }
        (None, None) => None,
    }
}

/// `tls-ca`, `tls-cert` and `tls-key`.
fn take_certificates(root: &Path, fragment: &mut StoreFragment, report: &mut Report) -> Tls {
    let ca = take(fragment.tls_ca.take(), report);
    let certificate = take(fragment.tls_cert.take(), report);
    let key = take(fragment.tls_key.take(), report);
    for file in [&ca, &certificate].into_iter().flatten() {
        check_file(root, file, Secrecy::Public, report);
    }
    if let Some(key) = &key {
        check_file(root, key, Secrecy::Secret, report);
    }
    let client = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate.into_inner(), key.into_inner())),
        (Some(certificate), None) => {
            report.error(&certificate.span(), "tls-cert needs tls-key, the path of its private key");
            None
        }
        (None, Some(key)) => {
            report.error(&key.span(), "tls-key needs tls-cert, the path of its certificate");
            None
        }
        (None, None) => None,
    };
    Tls { ca_file: ca.map(Spanned::into_inner), client }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Secrecy {
    Secret,
    Public,
}

/// Looks at a named file without reading it: the store reads it anew at each connection.
fn check_file(root: &Path, path: &Spanned<PathBuf>, secrecy: Secrecy, report: &mut Report) {
    let span = path.span();
    let path = path.get_ref();
    let Ok(below) = path.strip_prefix("/") else {
        report.error(&span, format!("{:?} is not a full path: write it from the root", path.display().to_string()));
        return;
    };
    let shown = path.display();
    match root.join(below).metadata() {
        Err(error) => report.error(&span, format!("{shown} cannot be used: {error}; make it, or mend the path")),
        Ok(metadata) if !metadata.is_file() => report.error(&span, format!("{shown} is not a file")),
        Ok(metadata) if secrecy == Secrecy::Secret && metadata.permissions().mode() & 0o004 != 0 => {
            report.warning(&span, format!("{shown} is a secret that every user can read: chmod 0600 {shown}"));
        }
        Ok(_) => {}
    }
}

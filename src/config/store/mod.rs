//! `[store]`: a module for each type, and here what they share.

mod directory;
mod etcd;
mod nats;
#[cfg(feature = "postgres")]
mod postgres;

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;

use super::diagnostic::Report;
use super::fragment::{Field, StoreFragment, take};
use crate::host::identity;
use crate::types::store::{Login, SEAL_KEY_BYTES, StoreSettings, Tls};
use crate::types::trust::{self, Rights};

/// The prefix of a credential's name, for a file that systemd's `LoadCredential=` provides.
const CREDENTIAL: &str = "credential:";
/// The environment variable by which systemd tells a service where its credentials are.
const CREDENTIALS_VARIABLE: &str = "CREDENTIALS_DIRECTORY";
/// Where systemd keeps the credentials of the running putexd, for a program that checks the configuration or accesses
/// the store by hand.
const CREDENTIALS_OF_PUTEXD: &str = "run/credentials/putexd.service";

/// Validates the table at `span`. Returns the store's settings, and the path of the key that seals records, if there is
/// one. Secrets and certificates are searched for below `root`.
pub(super) fn check(
    root: &Path,
    span: &Range<usize>,
    mut fragment: StoreFragment,
    report: &mut Report,
) -> Option<(StoreSettings, Option<PathBuf>)> {
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
    let seal_key = take_seal_key(root, fragment.seal_key.take(), report);
    // Each type has taken its own keys, so the remaining ones are not for this type.
    for (key, span) in fragment.given() {
        report.error(&span, format!("the key {key:?} has no meaning for the store type {name:?}: remove it"));
    }
    settings.map(|settings| (settings, seal_key))
}

/// Takes the path of the seal key, and checks the length of the key as the store does when it is opened. A user who may not
/// read the key, and only checks the configuration, hears nothing of it.
fn take_seal_key(root: &Path, field: Field<PathBuf>, report: &mut Report) -> Option<PathBuf> {
    let key = take_secret(root, field, report)?;
    let (least, most) = (*SEAL_KEY_BYTES.start() as u64, *SEAL_KEY_BYTES.end() as u64);
    let shown = key.get_ref().display();
    let path = key.get_ref().strip_prefix("/").ok().map(|below| root.join(below)).filter(|path| path.is_file());
    let length = match path.map(|path| key_length(&path, most)) {
        None => None,
        Some(Ok(length)) => Some(length),
        Some(Err(error)) => {
            if error.kind() != io::ErrorKind::PermissionDenied || identity::user() == 0 {
                report.error(&key.span(), format!("{shown} cannot be read: {error}; mend it, or name another file"));
            }
            None
        }
    };
    if let Some(length) = length.filter(|length| !(least..=most).contains(length)) {
        report.error(
            &key.span(),
            format!("make the key with \"head -c 32 /dev/urandom | base64\": {shown} has {length} bytes without the newline at its end, and {least} to {most} are accepted"),
        );
    }
    Some(key.into_inner())
}

/// The number of bytes of the key in a file. A newline at the end is not part of the key. Of a longer file than a key of `most`
/// bytes may be in, only so much is read as shows that.
fn key_length(path: &Path, most: u64) -> io::Result<u64> {
    let mut text = Vec::new();
    File::open(path)?.take(most + 2).read_to_end(&mut text)?;
    Ok(text.strip_suffix(b"\n").unwrap_or(&text).len() as u64)
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

/// Takes `user` and `password-file`, of which either needs the other.
fn take_login(root: &Path, fragment: &mut StoreFragment, report: &mut Report) -> Option<Login> {
    let user = take(fragment.user.take(), report);
    let password_file = take_secret(root, fragment.password_file.take(), report);
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

/// Takes `tls-ca`, `tls-cert` and `tls-key`. The last two need each other.
fn take_certificates(root: &Path, fragment: &mut StoreFragment, report: &mut Report) -> Tls {
    let ca = take(fragment.tls_ca.take(), report);
    let certificate = take(fragment.tls_cert.take(), report);
    let key = take_secret(root, fragment.tls_key.take(), report);
    for file in [&ca, &certificate].into_iter().flatten() {
        check_file(root, file, |_, _, _| None, report);
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

/// Takes the path of a secret's file, which is given as a path or as the name of a credential.
fn take_secret(root: &Path, field: Field<PathBuf>, report: &mut Report) -> Option<Spanned<PathBuf>> {
    let named = take(field, report)?;
    let credential = named.get_ref().to_str().and_then(|text| text.strip_prefix(CREDENTIAL));
    let Some(name) = credential else {
        check_file(root, &named, trust::why_no_secret, report);
        return Some(named);
    };
    let span = named.span();
    let remedy = format!("add LoadCredential={name}:/etc/putex/{name} to [Service] of putexd.service, and restart it");
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        report.error(&span, format!("{name:?} is not the name of a credential: write it like \"credential:password\""));
        return None;
    }
    let folder = std::env::var_os(CREDENTIALS_VARIABLE).map(PathBuf::from).filter(|folder| folder.is_absolute());
    let (path, found) = match folder {
        Some(folder) => (folder.join(name), folder.join(name).metadata()),
        None => (
            Path::new("/").join(CREDENTIALS_OF_PUTEXD).join(name),
            root.join(CREDENTIALS_OF_PUTEXD).join(name).metadata(),
        ),
    };
    match found {
        Err(error) => report.error(&span, format!("{remedy}: {} cannot be used: {error}", path.display())),
        Ok(found) if !found.is_file() => report.error(&span, format!("{} is not a file", path.display())),
        Ok(found) => {
            if let Some(why) = trust::why_no_credential(&path, &found, identity::user()) {
                report.unsafe_secret(&span, why);
            }
        }
    }
    Some(Spanned::new(span, path))
}

/// Checks that a named file exists and is safe, without reading it: the store reads it anew at each connection.
fn check_file(
    root: &Path,
    path: &Spanned<PathBuf>,
    objection: fn(&Path, Rights, u32) -> Option<String>,
    report: &mut Report,
) {
    let span = path.span();
    let path = path.get_ref();
    let Ok(below) = path.strip_prefix("/") else {
        report.error(&span, format!("{:?} is not a full path: write it from the root", path.display().to_string()));
        return;
    };
    let shown = path.display();
    match root.join(below).metadata() {
        Err(error) => {
            report.error(&span, format!("put the file there, or mend the path: {shown} cannot be used: {error}"));
        }
        Ok(found) if !found.is_file() => report.error(&span, format!("{shown} is not a file")),
        Ok(found) => {
            if let Some(why) = objection(path, (&found).into(), identity::user()) {
                report.unsafe_secret(&span, why);
            }
        }
    }
}

/// Refuses a login that an attacker on the network could read, or take over, on its way to the `far` server.
fn refuse_plaintext(
    login: Option<(&str, Range<usize>)>,
    far: Option<&str>,
    remedy: &str,
    is_allowed: bool,
    report: &mut Report,
) {
    if let (Some((key, span)), Some(far), false) = (login, far, is_allowed) {
        let message = format!(
            "{remedy}, or say allow-plaintext = true: with {key} the login to {far} would go over the network without TLS"
        );
        report.unsafe_secret(&span, message);
    }
}

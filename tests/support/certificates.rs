//! Certificates for tests, made with openssl.

use std::{path::Path, process::Command};

/// Makes `NAME.pem` and `NAME.key`, signed by itself or by `issuer`.
pub fn certificate(folder: &Path, name: &str, extension: &str, issuer: Option<&str>) {
    let mut openssl = Command::new("openssl");
    openssl
        .current_dir(folder)
        .args(["req", "-x509", "-nodes", "-days", "2", "-newkey", "ec"]);
    openssl.args([
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-subj",
        &format!("/CN=test {name}"),
    ]);
    openssl.args([
        "-keyout",
        &format!("{name}.key"),
        "-out",
        &format!("{name}.pem"),
        "-addext",
        extension,
    ]);
    if let Some(issuer) = issuer {
        openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
        openssl.args([
            "-CA",
            &format!("{issuer}.pem"),
            "-CAkey",
            &format!("{issuer}.key"),
        ]);
    }
    let output = openssl
        .output()
        .expect("openssl runs: install the Debian package openssl");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

//! The examples that tests run.

use std::{path::Path, process::Command};

/// Builds examples into the folder of the programs, because `cargo test --test NAME` alone does not.
pub fn build(bin_dir: &Path, examples: &[&str]) {
    let target_dir = bin_dir
        .parent()
        .expect("the profile's folder lies in the target folder");
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["build", "--quiet", "--target-dir"])
        .arg(target_dir);
    for example in examples {
        cargo.args(["--example", example]);
    }
    cargo.args([
        "--manifest-path",
        concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
    ]);
    if bin_dir.ends_with("release") {
        cargo.arg("--release");
    }
    // The features with which the programs were built. With others everything beside the examples would be built anew.
    for (feature, enabled) in [
        ("etcd", cfg!(feature = "etcd")),
        ("postgres", cfg!(feature = "postgres")),
    ] {
        if enabled {
            cargo.args(["--features", feature]);
        }
    }
    // These variables, which `cargo test` set for this process, would make build scripts run again, and half of the
    // dependencies be built anew.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| {
            name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
        }) {
            cargo.env_remove(name);
        }
    }
    let built = cargo
        .output()
        .expect("cargo started this test, so it can be run");
    assert!(
        built.status.success(),
        "failed to build the examples: {}",
        String::from_utf8_lossy(&built.stderr)
    );
}

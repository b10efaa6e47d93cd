//! `packaging/release` in a throw-away repository with these sources and a tag: what it refuses, and what it makes. What takes a build,
//! the packages and the bill of materials, is left out.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

const VERSION: &str = env!("CARGO_PKG_VERSION");

struct Repository {
    folder: tempfile::TempDir,
}

impl Repository {
    /// These sources, committed, with a tag, as if the version was to be released today.
    fn new() -> Self {
        let repository = Self {
            folder: tempfile::tempdir().expect("a folder"),
        };
        let from = env!("CARGO_MANIFEST_DIR");
        let copied = Command::new("bash")
            .args(["-c", "set -o pipefail; tar -c -C \"$0\" --exclude=./target --exclude=./.git --exclude=./tests/fuzz/target . | tar -x -C \"$1\""])
            .arg(from)
            .arg(repository.sources())
            .status();
        assert!(copied.expect("tar starts").success());
        repository.git(&["init", "--quiet"]);
        let log = repository.path("packaging/CHANGELOG.md");
        let text = fs::read_to_string(&log).expect("the log of changes");
        let is_heading = |line: &&str| line.starts_with(&format!("## {VERSION} "));
        let heading = text.lines().find(is_heading).expect("the version is in it");
        fs::write(
            &log,
            text.replace(heading, &format!("## {VERSION} (2026-01-01)")),
        )
        .expect("written");
        // Copies of what is shipped may have fallen behind while the version is not released.
        for line in fs::read_to_string(repository.path("tests/compat/copies"))
            .expect("the list")
            .lines()
        {
            let (kind, file) = line.split_once(' ').expect("a kind and a file");
            let name = Path::new(file).file_name().expect("a name");
            let sample = repository
                .path("tests/compat")
                .join(VERSION)
                .join(kind)
                .join(name);
            fs::copy(repository.path(file), sample).expect("copied");
        }
        repository.commit();
        repository.tag();
        repository
    }

    fn sources(&self) -> &Path {
        self.folder.path()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.sources().join(name)
    }

    fn git(&self, arguments: &[&str]) -> String {
        let mut git = Command::new("git");
        git.current_dir(self.sources())
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_SYSTEM", "/dev/null");
        let output = git
            .args(["-c", "user.name=test", "-c", "user.email=test@example.org"])
            .args(arguments)
            .output();
        let output = output.expect("git starts");
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn commit(&self) {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message", "a release"]);
    }

    fn tag(&self) {
        self.git(&["tag", "--force", &format!("v{VERSION}")]);
    }

    fn change(&self, file: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.path(file)).expect("a file");
        assert!(text.contains(from), "{file} has no {from:?}");
        fs::write(self.path(file), text.replace(from, to)).expect("written");
    }

    fn release(&self, arguments: &[&str]) -> Output {
        let mut release = Command::new(self.path("packaging/release"));
        release
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .args(arguments)
            .output()
            .expect("it starts")
    }

    /// What the script says when it refuses to release the version.
    fn refusal(&self) -> String {
        let output = self.release(&[&format!("v{VERSION}"), "check"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(!self.path("target/dist").exists(), "nothing was begun");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn again(&self) {
        self.git(&["reset", "--quiet", "--hard", "HEAD~"]);
        self.tag();
    }
}

#[test]
fn what_is_not_to_be_released_is_refused_with_the_remedy() {
    let repository = Repository::new();
    let check = |tag: &str| repository.release(&[tag, "check"]);
    assert!(
        check(&format!("v{VERSION}")).status.success(),
        "{:?}",
        check(&format!("v{VERSION}"))
    );
    assert!(String::from_utf8_lossy(&check("v9.9.9").stderr).contains("there is no tag v9.9.9"));
    repository.git(&["tag", "v9.9.9"]);
    let other = String::from_utf8_lossy(&check("v9.9.9").stderr).into_owned();
    assert!(
        other.contains(&format!(
            "the version in Cargo.toml is {VERSION}, so its tag is v{VERSION}"
        )),
        "{other}"
    );
    fs::remove_dir_all(repository.path("target")).expect("removed");

    fs::write(repository.path("more"), "").expect("written");
    assert!(
        repository
            .refusal()
            .contains("commit or remove the changes first: ?? more")
    );
    repository.commit();
    assert!(
        repository
            .refusal()
            .contains("another commit than the one that is here")
    );
    repository.again();

    let (entry, samples) = (
        format!("## {VERSION} (2026-01-01)"),
        format!("tests/compat/{VERSION}"),
    );
    for (to, remedy) in [
        (
            "## 0.0.0 (2026-01-01)".to_owned(),
            "write into packaging/CHANGELOG.md what",
        ),
        (
            format!("## {VERSION} (unreleased)"),
            "write the date into the heading",
        ),
    ] {
        repository.change("packaging/CHANGELOG.md", &entry, &to);
        repository.commit();
        repository.tag();
        assert!(
            repository.refusal().contains(remedy),
            "{}",
            repository.refusal()
        );
        repository.again();
    }
    fs::rename(
        repository.path(&samples),
        repository.path("tests/compat/0.0.0"),
    )
    .expect("renamed");
    repository.commit();
    repository.tag();
    assert!(
        repository.refusal().contains("run \"tests/compat/record\""),
        "{}",
        repository.refusal()
    );
    repository.again();
    repository.change("config/examples/database.toml", "unit", "unit ");
    repository.commit();
    repository.tag();
    assert!(
        repository
            .refusal()
            .contains("config/examples/database.toml as it is"),
        "{}",
        repository.refusal()
    );
}

#[test]
fn the_same_tag_gives_the_same_tarball_which_says_its_commit_and_is_summed_up() {
    let repository = Repository::new();
    let tag = format!("v{VERSION}");
    let tarball = |folder: &str| {
        let output = repository.path(folder);
        let made = repository.release(&[
            "--output",
            &output.to_string_lossy(),
            &tag,
            "tarball",
            "checksums",
        ]);
        assert!(made.status.success(), "{made:?}");
        let name = format!("putexd-{VERSION}.tar.gz");
        (
            fs::read(output.join(&name)).expect("it is there"),
            fs::read_to_string(output.join("SHA256SUMS")).expect("sums"),
        )
    };
    let first = tarball("target/one");
    assert!(first == tarball("target/two"), "the same bytes");
    let (bytes, sums) = first;
    assert!(
        sums.ends_with(&format!("  putexd-{VERSION}.tar.gz\n")) && sums.lines().count() == 1,
        "{sums}"
    );

    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("sources.tar.gz");
    fs::write(&file, bytes).expect("written");
    let unpacked = Command::new("tar")
        .arg("-xf")
        .arg(&file)
        .arg("-C")
        .arg(folder.path())
        .status();
    assert!(unpacked.expect("tar starts").success());
    let sources = folder.path().join(format!("putexd-{VERSION}"));
    let commit = fs::read_to_string(sources.join("packaging/commit")).expect("it is there");
    assert_eq!(commit.trim(), repository.git(&["rev-parse", "HEAD"]));
    assert!(sources.join("Cargo.lock").exists() && sources.join("src/lib.rs").exists());
    // What is built from it says that commit. The build itself is put aside.
    let bin = folder.path().join("bin");
    fs::create_dir(&bin).expect("made");
    let rust =
        fs::read_to_string(sources.join("packaging/rust-toolchain.toml")).expect("it is there");
    let rust = rust
        .lines()
        .find_map(|line| line.strip_prefix("channel = "))
        .expect("a version")
        .trim_matches('"');
    for (name, script) in [
        ("rustc", format!("echo \"rustc {rust} (a test)\"")),
        ("cargo", "echo \"$PUTEX_COMMIT: $*\"".to_owned()),
    ] {
        use std::os::unix::fs::PermissionsExt as _;
        fs::write(bin.join(name), format!("#!/bin/sh\n{script}\n")).expect("written");
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).expect("set");
    }
    let build = |sources: &Path| {
        let path = format!(
            "{}:{}",
            bin.display(),
            std::env::var("PATH").expect("a path")
        );
        let mut build = Command::new(sources.join("packaging/build"));
        build
            .arg("--bins")
            .env("PATH", path)
            .env("HOME", folder.path())
            .env_remove("PUTEX_COMMIT");
        let output = build.output().expect("it starts");
        String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr)
    };
    let cargo = "build --release --locked --bins\n";
    assert_eq!(build(&sources), format!("{}: {cargo}", commit.trim()));
    assert_eq!(
        build(repository.sources()),
        format!("{}: {cargo}", commit.trim()),
        "in a clone"
    );
    fs::write(repository.path("more"), "").expect("written");
    assert_eq!(
        build(repository.sources()),
        format!("{} with changes: {cargo}", commit.trim())
    );
    fs::remove_file(repository.path("more")).expect("removed");
    fs::remove_dir_all(repository.path(".git")).expect("removed");
    assert_eq!(
        build(repository.sources()),
        format!(": {cargo}"),
        "nobody knows the commit"
    );
}

#[test]
fn the_checksums_are_signed_with_the_key_that_is_named() {
    if Command::new("gpg").arg("--version").output().is_err() {
        eprintln!("SKIPPED: there is no gpg (Debian: gnupg), so no checksums are signed here");
        return;
    }
    let repository = Repository::new();
    let home = tempfile::tempdir().expect("a folder");
    let gpg = |arguments: &[&str]| {
        let output = Command::new("gpg")
            .env("GNUPGHOME", home.path())
            .args(arguments)
            .output()
            .expect("gpg starts");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    let name = "releases@example.org";
    gpg(&[
        "--batch",
        "--passphrase",
        "",
        "--quick-generate-key",
        name,
        "ed25519",
        "sign",
    ]);
    let output = repository.path("target/dist");
    let tag = format!("v{VERSION}");
    let made = Command::new(repository.path("packaging/release"))
        .env("GNUPGHOME", home.path())
        .args([
            "--output",
            &output.to_string_lossy(),
            "--key",
            name,
            &tag,
            "tarball",
            "checksums",
        ])
        .output()
        .expect("it starts");
    assert!(made.status.success(), "{made:?}");
    gpg(&[
        "--verify",
        &output.join("SHA256SUMS.asc").to_string_lossy(),
        &output.join("SHA256SUMS").to_string_lossy(),
    ]);
    // Its agent would go on, and its folder is about to be removed.
    let _ = Command::new("gpgconf")
        .env("GNUPGHOME", home.path())
        .args(["--kill", "all"])
        .status();
}

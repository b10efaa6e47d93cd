//! How much of a host the units can reach, as `systemd-analyze security` counts it.

#[path = "support/confinement.rs"]
mod confinement;

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use putexd::systemd::RunAs;

/// The highest exposure level permitted for each unit, in tenths. What remains of putexd's is needed for its work: root
/// and the control groups. Of putex-net's it is the network. SECURITY.md has the table.
const LIMITS: [(&str, u32); 4] = [
    ("putexd", 19),
    ("putex-guard", 27),
    ("putex-guard-watch", 23),
    ("putex-net@", 13),
];

/// The same limits for a health command, by the user that runs it. Root keeps its capabilities and all system calls,
/// because that is what it is used for. Of a user of its own is counted with what it begins: that is root's, with three capabilities,
/// until the command itself is executed.
const CHECKS: [(&str, u32); 3] = [("a user of its own", 25), ("postgres", 15), ("root", 76)];

#[test]
fn no_unit_may_reach_more_of_the_host_than_it_needs() {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("units");
    for (unit, limit) in LIMITS {
        assert_exposure(&units.join(format!("{unit}.service")), unit, limit);
    }
}

#[test]
fn nor_may_a_health_command() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (user, limit) in CHECKS {
        let file = folder
            .path()
            .join(format!("check-{}.service", user.replace(' ', "-")));
        let run_as = if user == CHECKS[0].0 {
            RunAs::Numbered(61184)
        } else {
            RunAs::Named(user.to_owned())
        };
        let text = format!(
            "[Service]\nType=oneshot\nExecStart=/bin/true\n{}\n",
            confinement::lines(&run_as).join("\n")
        );
        fs::write(&file, text).expect("the folder can be written to");
        assert_exposure(&file, &format!("a health command as {user}"), limit);
    }
}

#[test]
fn nor_may_a_fence_that_is_written_as_its_sample_is() {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/examples");
    assert_exposure(
        &samples.join("fence-power@.service"),
        "the sample of a fence",
        15,
    );
}

/// Checks that the exposure of a unit is within `limit` and close to it, and that SECURITY.md has a row with it for
/// `what`.
fn assert_exposure(file: &Path, what: &str, limit: u32) {
    if Command::new("systemd-analyze")
        .arg("--version")
        .output()
        .is_err()
    {
        assert!(
            std::env::var_os("CI").is_none(),
            "systemd-analyze has to be there (Debian: systemd)"
        );
        eprintln!("SKIPPED: systemd-analyze is not there (Debian: systemd)");
        return;
    }
    let mut analyze = Command::new("systemd-analyze");
    analyze
        .args([
            "security",
            "--offline=true",
            "--no-pager",
            &format!("--threshold={limit}"),
        ])
        .arg(file);
    let output = analyze.output().expect("runs");
    let table = String::from_utf8_lossy(&output.stdout);
    let level = table
        .lines()
        .find(|line| line.contains("Overall exposure level"))
        .unwrap_or_default();
    println!("{level}");
    assert!(output.status.success(), "{table}");
    // A setting that systemd does not understand protects nothing.
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !said.contains("Unknown key") && !said.contains("ailed to parse"),
        "{said}"
    );
    // A limit that is far above the level protects nothing.
    let level = level
        .split_whitespace()
        .find_map(|word| word.parse::<f64>().ok())
        .expect("a level");
    assert!(
        level * 10.0 + 1.5 > f64::from(limit),
        "{what} has {level} only: lower its limit"
    );
    let row = format!("\n| {what} | {level:.1} |");
    assert!(
        security().contains(&row),
        "packaging/SECURITY.md lacks {row:?}"
    );
}

fn security() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/SECURITY.md");
    fs::read_to_string(path).expect("packaging/SECURITY.md")
}

/// The table has a column for each unit, in the order of [`LIMITS`].
#[test]
fn each_capability_has_its_reason_for_the_administrator() {
    let text = security();
    let rows = text.lines().filter(|line| line.starts_with("| CAP_"));
    let rows: Vec<Vec<&str>> = rows
        .map(|row| row.split('|').map(str::trim).collect())
        .collect();
    for (column, (unit, _)) in LIMITS.iter().enumerate() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("units/{unit}.service"));
        let text = fs::read_to_string(file).expect("a unit");
        let set = text
            .lines()
            .find_map(|line| line.strip_prefix("CapabilityBoundingSet="))
            .expect("a bounding set");
        let has: BTreeSet<&str> = set.split_whitespace().collect();
        let listed = rows
            .iter()
            .filter(|row| row[column + 2] == "yes")
            .map(|row| row[1]);
        assert_eq!(
            listed.collect::<BTreeSet<_>>(),
            has,
            "{unit} in packaging/SECURITY.md"
        );
    }
    assert!(
        rows.iter().all(|row| !row[LIMITS.len() + 2].is_empty()),
        "each has a reason"
    );
}

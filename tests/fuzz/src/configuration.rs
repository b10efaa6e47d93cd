//! The files of the host and of its services, read as the daemon reads them.

use std::{collections::BTreeSet, fs, path::Path};

use putexd::{
    config::{
        BOUND_UNITS_LIMIT, CONTAINS_LIMIT, Diagnostic, Loaded, ServiceSettings, Severity,
        load_keeping,
    },
    election::Confirmation,
};
use tempfile::TempDir;

/// Between two files.
const DIVIDER: &[u8] = b"\n====\n";
const HOST_FILE: &str = "etc/putex/putexd.toml";
/// The services' files, in the order of the input; `b` is hidden in another directory by its second file.
const SERVICE_FILES: [&str; 4] = [
    "etc/putex.d/a.toml",
    "etc/putex.d/b.toml",
    "run/putex.d/b.toml",
    "usr/lib/putex.d/c.toml",
];

/// The host's file, then up to four of services, between lines of `====`.
pub fn configuration(input: &[u8]) {
    let root = folder();
    let mut rest = Some(input);
    let mut files = Vec::new();
    for name in std::iter::once(HOST_FILE).chain(SERVICE_FILES) {
        let Some(text) = rest else { break };
        let end = text
            .windows(DIVIDER.len())
            .position(|window| window == DIVIDER);
        let (text, after) = match end {
            Some(end) => (&text[..end], Some(&text[end + DIVIDER.len()..])),
            None => (text, None),
        };
        rest = after;
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().expect("a file has a directory"))
            .expect("directories can be made");
        fs::write(&path, text).expect("files can be written");
        files.push((name, text));
    }
    let loaded = load_keeping(root.path(), "named-by-the-host", None, &BTreeSet::new());
    assert_eq!(
        load_keeping(root.path(), "named-by-the-host", None, &BTreeSet::new()),
        loaded,
        "the same files say the same"
    );
    for diagnostic in &loaded.diagnostics {
        check_diagnostic(root.path(), diagnostic);
    }
    let shown = loaded.to_string();
    assert!(
        shown
            .lines()
            .last()
            .is_some_and(|line| line.contains(" warning")),
        "{shown}"
    );
    check_services(root.path(), &loaded, &files);
}

/// In memory where there is such a place.
fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("a folder")
}

/// It points into its file, says something, and can be shown in the journal.
fn check_diagnostic(root: &Path, diagnostic: &Diagnostic) {
    let Diagnostic {
        path,
        place,
        message,
        ..
    } = diagnostic;
    assert!(
        path.starts_with(root) && path.is_file(),
        "{}",
        path.display()
    );
    assert!(
        !message.trim().is_empty() && !message.ends_with('.'),
        "{message:?}"
    );
    assert!(
        !message
            .chars()
            .any(|character| character.is_control() && character != '\n'),
        "control characters in {message:?}"
    );
    let shown = diagnostic.to_string();
    assert!(!shown.ends_with('\n'));
    let Some(place) = place else { return };
    let text = fs::read(path).expect("what has places can be read");
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.split('\n').collect();
    assert!(
        (1..=lines.len()).contains(&place.line),
        "line {} of {}",
        place.line,
        lines.len()
    );
    let length = lines[place.line - 1].chars().count();
    assert!(
        (1..=length + 1).contains(&place.column),
        "column {} of {length}",
        place.column
    );
    assert!(
        !shown.contains(":hunter2@"),
        "a password is shown: {shown:?}"
    );
    assert!(
        shown.contains(&format!(":{}:{}: ", place.line, place.column)),
        "{shown}"
    );
}

/// Each service's file is either good, or said to be broken and why, or masked.
fn check_services(root: &Path, loaded: &Loaded, files: &[(&str, &[u8])]) {
    let host_errors = errors(root, loaded, HOST_FILE);
    assert_eq!(loaded.settings.is_none(), host_errors > 0, "{loaded}");
    let services = loaded
        .settings
        .as_ref()
        .map_or(&[][..], |settings| &settings.services);
    for (name, file, hidden) in [
        ("a", 1, None),
        ("b", 2, None),
        ("b", 3, Some(2)),
        ("c", 4, None),
    ] {
        let Some((path, text)) = files.get(file) else {
            continue;
        };
        let hidden = hidden.is_some_and(|by| files.len() > by);
        let broken = !hidden && loaded.broken.keys().any(|broken| broken.as_str() == name);
        let good = services
            .iter()
            .any(|service| service.source.0 == root.join(path));
        let masked = text.is_empty();
        assert_eq!(errors(root, loaded, path) > 0, broken, "{path}: {loaded}");
        let expected = !hidden && !broken && !masked && loaded.settings.is_some();
        assert_eq!(good, expected, "{path}: {loaded}");
    }
    let mut units = BTreeSet::new();
    let mut keys = BTreeSet::new();
    for service in services {
        check_service(service);
        assert!(
            service.units().all(|unit| units.insert(unit.clone())),
            "two services have one unit"
        );
        assert!(
            keys.insert(service.key.clone()),
            "two services have one lock"
        );
    }
}

fn errors(root: &Path, loaded: &Loaded, name: &str) -> usize {
    let of_file =
        |found: &&Diagnostic| found.severity == Severity::Error && found.path == root.join(name);
    loaded.diagnostics.iter().filter(of_file).count()
}

/// What is accepted is safe, whatever else is said.
fn check_service(service: &ServiceSettings) {
    let timings = &service.timings;
    assert_eq!(timings.validate(), Ok(()));
    if timings.confirmation == Confirmation::Full {
        let error = f64::from(timings.clock_error_ppm) / 1e6;
        let dead_by = timings.hold().as_secs_f64() * (1.0 + error) / (1.0 - error)
            + timings.slack.as_secs_f64();
        let successor = (timings.lease() + timings.confirm()).as_secs_f64();
        assert!(
            dead_by <= successor + 1e-6,
            "the unit may live for {dead_by}, another starts after {successor}"
        );
    }
    assert!(timings.wait(timings.hold()) > timings.hold());
    assert!(!timings.renew_after().is_zero() && timings.renew_after() < timings.deadline_after());
    assert!(
        timings
            .longest_hold
            .is_none_or(|longest| longest >= timings.hold())
    );
    assert!(service.stop_limit >= timings.stop_budget);
    assert!(service.bound_units.len() <= BOUND_UNITS_LIMIT);
    assert!(service.contains.len() <= CONTAINS_LIMIT);
    assert!(
        service
            .contains
            .iter()
            .all(|unit| matches!(unit.kind(), "slice" | "scope"))
    );
    assert!(service.units().all(|unit| !unit.is_part_of_putexd()));
    if let Some(health) = &service.health {
        assert!(
            !health.interval.is_zero()
                && !health.timeout.is_zero()
                && health.rise > 0
                && health.fall > 0
        );
        assert!(health.interval <= timings.lease() && health.timeout <= timings.lease());
    }
}

//! What the files of a unit say, where PID 1 tells only what they add up to: which file a setting comes from, and what a
//! drop-in of putex has put it in the place of.

use std::path::{Path, PathBuf};

use super::Systemd;
use super::bond;
use super::error::BusError;

/// The directories of unit files that belong to a package or a generator: what is changed there does not last.
const NOT_THE_ADMINISTRATORS: [&str; 6] = [
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/usr/local/lib/systemd/system",
    "/run/systemd/generator.early",
    "/run/systemd/generator.late",
    "/run/systemd/generator",
];
/// The directory of the administrator's unit files, which take the place of those of the same name.
const ADMINISTRATORS: &str = "/etc/systemd/system";

/// An assignment in section `[Unit]` of a unit's files.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// The file.
    pub(super) path: PathBuf,
    /// What the setting is assigned there.
    pub(super) value: String,
}

impl Systemd {
    /// What the files of a unit assign to `key` in section `[Unit]`, in the order in which systemd reads them, but for the
    /// drop-ins of putex. A file that cannot be read counts as empty.
    pub(super) async fn lines(&self, unit: &str, key: &str) -> Result<Vec<Line>, BusError> {
        let files = self.link().await?.common(unit, &["FragmentPath", "DropInPaths"]).await?;
        let fragment = files.text("FragmentPath").filter(|path| !path.is_empty()).map(str::to_owned);
        let mut lines = Vec::new();
        for path in fragment.into_iter().chain(files.texts("DropInPaths")).map(PathBuf::from) {
            if bond::is_drop_in(&path) {
                continue;
            }
            let text = tokio::fs::read_to_string(&path).await.unwrap_or_default();
            lines.extend(assigned(&text, key).into_iter().map(|value| Line { path: path.clone(), value }));
        }
        Ok(lines)
    }
}

/// What `text` assigns to `key` in section `[Unit]`.
fn assigned(text: &str, key: &str) -> Vec<String> {
    let (mut is_unit, mut joined, mut values) = (false, String::new(), Vec::new());
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', ';'])) {
        if let Some(part) = line.strip_suffix('\\') {
            joined.push_str(part);
            joined.push(' ');
            continue;
        }
        joined.push_str(line);
        let whole = std::mem::take(&mut joined);
        if whole.starts_with('[') {
            is_unit = whole == "[Unit]";
        } else if let Some((name, value)) = whole.split_once('=')
            && is_unit
            && name.trim_end() == key
        {
            values.push(value.trim().to_owned());
        }
    }
    values
}

/// The commands that take `name` away from what the file `path` assigns to the list `key`. A list of dependencies cannot be
/// emptied by a drop-in, so a file that is not the administrator's own is replaced as a whole.
pub(super) fn without(path: &Path, key: &str, name: &str) -> String {
    let name = name.replace('\\', "\\\\").replace('.', "\\.");
    let take = format!("'/^{key}=/s/(=|\\s){name}(\\s|$)/\\1\\2/'");
    let from = path.display();
    let inner = NOT_THE_ADMINISTRATORS.iter().find_map(|place| path.strip_prefix(place).ok());
    let Some(inner) = inner else { return format!("run \"sed -Ei {take} '{from}' && systemctl daemon-reload\"") };
    let to = Path::new(ADMINISTRATORS).join(inner);
    let folder = to.parent().filter(|folder| *folder != Path::new(ADMINISTRATORS));
    let make = folder.map(|folder| format!("mkdir -p '{}' && ", folder.display())).unwrap_or_default();
    format!("run \"{make}sed -E {take} '{from}' >'{}' && systemctl daemon-reload\"", to.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_assigns_is_read_as_systemd_reads_it() {
        let text = "# Before=no.target\n[Unit]\nBefore = a.target b.target\nBefore=\\\n; between\n  c.target\nAfter=d.target\n\
                    [Service]\nBefore=e.target\n[Unit]\nBefore=f.target";
        assert_eq!(assigned(text, "Before"), ["a.target b.target", "c.target", "f.target"]);
        assert_eq!(assigned(text, "After"), ["d.target"]);
        assert_eq!(assigned("Before=a.target", "Before"), [""; 0], "outside of all sections");
    }

    #[test]
    fn a_dependency_is_taken_from_the_file_or_from_a_copy_of_it() {
        let told = |path: &str| without(Path::new(path), "Before", "network-online.target");
        insta::assert_snapshot!(told("/etc/systemd/system/a.service"), @r#"run "sed -Ei '/^Before=/s/(=|\s)network-online\.target(\s|$)/\1\2/' '/etc/systemd/system/a.service' && systemctl daemon-reload""#);
        insta::assert_snapshot!(told("/lib/systemd/system/a@.service"), @r#"run "sed -E '/^Before=/s/(=|\s)network-online\.target(\s|$)/\1\2/' '/lib/systemd/system/a@.service' >'/etc/systemd/system/a@.service' && systemctl daemon-reload""#);
        insta::assert_snapshot!(told("/usr/lib/systemd/system/a.service.d/b.conf"), @r#"run "mkdir -p '/etc/systemd/system/a.service.d' && sed -E '/^Before=/s/(=|\s)network-online\.target(\s|$)/\1\2/' '/usr/lib/systemd/system/a.service.d/b.conf' >'/etc/systemd/system/a.service.d/b.conf' && systemctl daemon-reload""#);
        let escaped = without(Path::new("/etc/systemd/system/a.service"), "After", "srv-my\\x2ddata.mount");
        assert!(escaped.contains("srv-my\\\\x2ddata\\.mount"), "{escaped}");
    }
}

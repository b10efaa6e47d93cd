//! What an operator is to do about a setting of a unit, as text to paste.

use std::iter;

/// The command, in quotation marks, that gives `unit` the lines `setting` in a drop-in. A unit's file belongs to its package,
/// whose next upgrade would bring back what was changed there. Lines that begin with an empty assignment (`A=\nA=b`) replace a
/// list.
pub fn drop_in(unit: &str, section: &str, setting: &str) -> String {
    let folder = quoted(&format!("/etc/systemd/system/{unit}.d"));
    let section = format!("[{section}]");
    let lines = iter::once(&*section)
        .chain(setting.lines())
        .map(quoted)
        .collect::<Vec<_>>()
        .join(" ");
    // systemd reads drop-ins in the order of their names, and an administrator's own is often called override.conf.
    let name = setting.split('=').next().unwrap_or(setting);
    format!(
        "run \"mkdir -p {folder} && printf '%s\\n' {lines} >{folder}/zz-{name}.conf && systemctl daemon-reload\""
    )
}

/// `word` as a shell takes it literally, also between the quotation marks of a sentence.
pub fn quoted(word: &str) -> String {
    let is_plain =
        |character: char| character.is_ascii_alphanumeric() || "/_.:=@%+,-".contains(character);
    if word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// The command that has fstab's mount at `place` neither started at boot (`noauto`) nor when it is used, nor ordered before a target
/// (`nofail`, whatever other options there are: systemd-fstab-generator(8)).
pub fn mounted_by_putexd_alone(place: &str) -> String {
    let line = line_of(place);
    format!(
        "sed -i -E 's|^({line}\\S+)|\\1,noauto,nofail|; s|^({line}\\S*)x-systemd.automount,|\\1|' /etc/fstab && systemctl daemon-reload"
    )
}

/// The beginning of the line of a mount point in fstab, up to its options, as a regular expression.
fn line_of(place: &str) -> String {
    let mut pattern = String::new();
    for character in place.chars() {
        match character {
            ' ' => pattern.push_str("\\\\040"),
            '\t' => pattern.push_str("\\\\011"),
            '\\' => pattern.push_str("\\\\134"),
            _ if ".*[]^$+?(){}|".contains(character) => pattern.extend(['\\', character]),
            _ => pattern.push(character),
        }
    }
    format!("\\s*[^#[:space:]]\\S*\\s+{pattern}/?\\s+\\S+\\s+")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drop_in_is_text_to_paste() {
        insta::assert_snapshot!(
            drop_in("mariadb.service", "Service", "SendSIGKILL=yes"),
            @r#"run "mkdir -p /etc/systemd/system/mariadb.service.d && printf '%s\n' '[Service]' SendSIGKILL=yes >/etc/systemd/system/mariadb.service.d/zz-SendSIGKILL.conf && systemctl daemon-reload""#
        );
        insta::assert_snapshot!(
            drop_in(r"srv-a\x2db@1:2.mount", "Mount", "A=\nA=b c"),
            @r#"run "mkdir -p '/etc/systemd/system/srv-a\x2db@1:2.mount.d' && printf '%s\n' '[Mount]' A= 'A=b c' >'/etc/systemd/system/srv-a\x2db@1:2.mount.d'/zz-A.conf && systemctl daemon-reload""#
        );
    }

    #[test]
    fn the_line_of_a_mount_is_found_whatever_it_is_called() {
        insta::assert_snapshot!(
            mounted_by_putexd_alone("/srv/data.d"),
            @r"sed -i -E 's|^(\s*[^#[:space:]]\S*\s+/srv/data\.d/?\s+\S+\s+\S+)|\1,noauto,nofail|; s|^(\s*[^#[:space:]]\S*\s+/srv/data\.d/?\s+\S+\s+\S*)x-systemd.automount,|\1|' /etc/fstab && systemctl daemon-reload"
        );
        assert!(mounted_by_putexd_alone("/srv/my data").contains(r"\s+/srv/my\\040data/?\s+"));
    }
}

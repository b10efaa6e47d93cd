//! What an operator is to do about a setting of a unit, as text to paste.

/// The commands that give `unit` a setting in a drop-in. A unit's file belongs to its package, whose next upgrade would bring
/// back what was changed there.
#[must_use]
pub fn drop_in(unit: &str, section: &str, setting: &str) -> String {
    format!(
        "run \"mkdir -p /etc/systemd/system/{unit}.d && printf '[{section}]\\n{setting}\\n' \
         >/etc/systemd/system/{unit}.d/{}.conf && systemctl daemon-reload\"",
        setting.split('=').next().unwrap_or(setting)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drop_in_is_text_to_paste() {
        insta::assert_snapshot!(
            drop_in("mariadb.service", "Service", "SendSIGKILL=yes"),
            @r#"run "mkdir -p /etc/systemd/system/mariadb.service.d && printf '[Service]\nSendSIGKILL=yes\n' >/etc/systemd/system/mariadb.service.d/SendSIGKILL.conf && systemctl daemon-reload""#
        );
    }
}

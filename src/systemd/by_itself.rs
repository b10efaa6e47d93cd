//! What systemd does by itself when a unit starts, ends or is not needed: restarting the host, and stopping the unit.
//!
//! Under a lease putexd decides when a unit starts and ends, so what the administrator has meant by such a setting does not
//! hold any more: a step-down is no success that the host is to be shut down for, and a SIGKILL at a lapse is no failure that
//! all other services of the host are to pay for. The drop-in that binds a unit turns these settings off.

use super::Systemd;
use super::error::BusError;
use super::gate::{self, Trouble};
use super::properties::Properties;
use super::remedy;
use crate::types::UnitName;

/// The settings in section `[Unit]`, and the value with which systemd does nothing.
pub(super) const TURNED_OFF: [(&str, &str); 5] = [
    ("FailureAction", "none"),
    ("SuccessAction", "none"),
    ("StartLimitAction", "none"),
    ("JobTimeoutAction", "none"),
    ("StopWhenUnneeded", "no"),
];

impl Systemd {
    /// The settings of `unit` that the drop-in of its lease turns off, one sentence for each, which begins with what to do.
    pub async fn turned_off(&self, unit: &UnitName) -> Result<Vec<String>, BusError> {
        let mut found = Vec::new();
        for (name, off) in TURNED_OFF {
            let last = self.lines(unit.as_str(), name).await?.pop();
            found.extend(last.filter(|line| !is_off(&line.value, off)).map(|line| {
                let setting = format!("{name}={off}");
                format!(
                    "{}, to say the same as putexd, which turns {name}={} of {} off: systemd would act on what putexd does",
                    remedy::drop_in(unit.as_str(), "Unit", &setting),
                    line.value,
                    line.path.display()
                )
            }));
        }
        Ok(found)
    }
}

fn is_off(value: &str, off: &str) -> bool {
    value == off || off == "no" && matches!(value, "" | "n" | "0" | "f" | "false" | "off")
}

/// Refuses a unit at whose end systemd stops everything else on the host, putexd and all other services too.
pub(super) fn check_isolates(properties: &Properties) -> Result<(), Trouble> {
    for (name, usual) in [("OnFailureJobMode", "replace"), ("OnSuccessJobMode", "fail")] {
        if properties.text(name) == Some("isolate") {
            let unit = properties.text("Id").unwrap_or_default();
            return Err(Trouble {
                trouble: format!("has {name}=isolate, so that its end stops everything else on the host"),
                remedy: remedy::drop_in(unit, "Unit", &format!("{name}={usual}")),
            });
        }
    }
    Ok(())
}

/// Checks that PID 1 has loaded what the drop-in of the lease says.
pub(super) fn check(properties: &Properties) -> Result<(), Trouble> {
    let acts = TURNED_OFF.iter().find_map(|(name, off)| match properties.flag(name) {
        Some(flag) => flag.then(|| format!("{name}=yes")),
        None => properties.text(name).filter(|value| value != off).map(|value| format!("{name}={value}")),
    });
    acts.map_or(Ok(()), |acts| {
        let trouble = format!("has {acts} as systemd has loaded it, which acts on what putexd does");
        Err(Trouble { trouble, remedy: gate::remedy(&properties.texts("DropInPaths")) })
    })
}

#[cfg(test)]
mod tests {
    use zbus::Variant;

    use super::*;

    #[test]
    fn what_is_still_loaded_is_found() {
        let later =
            vec!["/run/systemd/generator/a.service.d/zzzz-putex.conf", "/etc/systemd/system/a.service.d/zzzzz.conf"];
        let said = |name, value| {
            check(&Properties::of([(name, value), ("DropInPaths", Variant::from(later.clone()))]))
                .map_err(|Trouble { trouble, remedy }| format!("{trouble}: {remedy}"))
        };
        for name in ["FailureAction", "SuccessAction", "StartLimitAction", "JobTimeoutAction"] {
            assert_eq!(said(name, Variant::from("none")), Ok(()));
            let told = said(name, Variant::from("reboot")).expect_err("it acts");
            assert!(
                told.starts_with(&format!("has {name}=reboot")) && told.contains("give /etc/systemd/system/a"),
                "{told}"
            );
        }
        assert_eq!(said("StopWhenUnneeded", Variant::from(false)), Ok(()));
        let told = said("StopWhenUnneeded", Variant::from(true)).expect_err("it acts");
        assert!(told.starts_with("has StopWhenUnneeded=yes"), "{told}");
    }

    #[test]
    fn an_end_that_stops_the_host_is_refused() {
        let of = |name, mode| {
            let id = ("Id", Variant::from("a.service"));
            check_isolates(&Properties::of([id, (name, Variant::from(mode))])).map_err(|found| found.remedy)
        };
        assert_eq!((of("OnFailureJobMode", "replace"), of("OnSuccessJobMode", "fail")), (Ok(()), Ok(())));
        let remedy = of("OnFailureJobMode", "isolate").expect_err("it isolates");
        assert!(remedy.contains("'[Unit]' OnFailureJobMode=replace"), "{remedy}");
        assert!(of("OnSuccessJobMode", "isolate").expect_err("it isolates").contains("OnSuccessJobMode=fail"));
    }

    #[test]
    fn off_is_written_in_several_ways() {
        assert!(["no", "false", "0", ""].iter().all(|value| is_off(value, "no")) && !is_off("yes", "no"));
        assert!(is_off("none", "none") && !is_off("reboot-force", "none"));
    }
}

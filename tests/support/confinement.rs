//! The confinement of a health command as lines of a unit's file, for programs that read those.

use putexd::systemd::{RunAs, check_confinement};
use zbus::Variant;

pub fn lines(user: &RunAs) -> Vec<String> {
    let settings = check_confinement(user, true).into_iter();
    // A unit's file has both limits in one line.
    let settings = settings.filter(|(name, _)| !name.ends_with("Soft"));
    settings
        .map(|(name, value)| format!("{name}={}", text(name, value)))
        .collect()
}

fn text(name: &str, value: Variant<'static>) -> String {
    if name == "RestrictNamespaces" {
        return "yes".to_owned();
    }
    if name == "CapabilityBoundingSet" {
        let bits = u64::try_from(value).expect("a set");
        let names = ["CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP"];
        assert!(
            [0, 1 << 6 | 1 << 7 | 1 << 8].contains(&bits),
            "{bits:x} has a name here"
        );
        return if bits == 0 {
            String::new()
        } else {
            names.join(" ")
        };
    }
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "a setting of another type needs a text here first"
    )]
    match value {
        Variant::Bool(flag) => if flag { "yes" } else { "no" }.to_owned(),
        Variant::Str(text) => text.to_string(),
        Variant::U32(mode) => format!("{mode:04o}"),
        Variant::U64(number) => number.to_string(),
        Variant::I32(1) => "EPERM".to_owned(),
        Variant::Array(_) => words(value),
        Variant::Structure(filter) => {
            let [Variant::Bool(allows), list] = filter.fields() else {
                panic!("{name}")
            };
            let list = words(list.try_clone().expect("no descriptors"));
            if *allows { list } else { format!("~{list}") }
        }
        other => panic!("{name}={other:?} has a text here"),
    }
}

fn words(list: Variant<'static>) -> String {
    Vec::<String>::try_from(list).expect("words").join(" ")
}

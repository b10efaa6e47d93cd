//! Mounts that are in use by processes which do not belong to their service, such as an administrator's shell: an orderly stop cannot
//! unmount them, and the host goes down for that.

use crate::{
    config::ServiceSettings,
    systemd::Manager,
    types::{UnitName, span::rounded},
};

/// How many processes are told of.
const SHOWN: usize = 8;

/// What to do about processes that keep a mount of the service from being unmounted, and what happens otherwise. `None`: none is
/// known.
pub async fn in_use(systemd: &dyn Manager, settings: &ServiceSettings) -> Option<String> {
    let lease = settings.name.lease_target();
    let own: Vec<UnitName> = settings
        .units()
        .chain(&settings.contains)
        .chain([&lease])
        .cloned()
        .collect();
    for mount in &own {
        // A stop that cannot unmount it says so as well.
        if let Some(words) = users_of(systemd, mount, &own).await {
            return Some(format!(
                "{words}, and after stop-limit = {} {}",
                rounded(settings.stop_limit),
                settings.on_stop_failure.consequence()
            ));
        }
    }
    None
}

/// What to do about the processes that use a mount and do not belong to `own`. `None`: none is known, or it is no mount.
pub async fn users_of(systemd: &dyn Manager, mount: &UnitName, own: &[UnitName]) -> Option<String> {
    if mount.kind() != "mount" {
        return None;
    }
    let users = systemd.users_of_mount(mount, own).await.ok()?;
    let shown = users.iter().take(SHOWN);
    let (listed, pids): (Vec<String>, Vec<String>) = shown
        .map(|user| {
            let pid = user.pid.to_string();
            (format!("{pid} ({})", user.command), pid)
        })
        .unzip();
    (!users.is_empty()).then(|| {
        format!(
            "have process {} leave it, or run \"kill -KILL {}\": {mount} cannot be unmounted while it is in use",
            listed.join(", "),
            pids.join(" ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::fake::{Fake, process, settings, unit};
    use crate::types::OnStopFailure;

    #[tokio::test]
    async fn whoever_uses_a_mount_is_named_with_the_command_that_ends_it() {
        let fake = Fake::default();
        fake.with(|state| state.users = vec![process(7)]);
        assert_eq!(in_use(&fake, &settings()).await, None, "it has no mount");
        let mut settings = settings();
        settings.bound_units = vec![unit("srv-data.mount")];
        settings.on_stop_failure = OnStopFailure::RebootForce;
        assert_eq!(
            in_use(&fake, &settings).await.as_deref(),
            Some(
                "have process 7 (worker) leave it, or run \"kill -KILL 7\": srv-data.mount cannot be unmounted while it is \
                 in use, and after stop-limit = 90s this host is rebooted"
            )
        );
        fake.with(|state| state.users = (1..=10).map(process).collect());
        let many = in_use(&fake, &settings).await.expect("they use it");
        assert!(
            many.contains("8 (worker) leave") && many.contains("\"kill -KILL 1 2 3 4 5 6 7 8\""),
            "{many}"
        );
        fake.with(|state| state.users.clear());
        assert_eq!(in_use(&fake, &settings).await, None);
    }
}

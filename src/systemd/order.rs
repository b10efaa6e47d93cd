//! The order at boot and shutdown: no unit of a service comes before putexd.
//!
//! putexd starts the units of a service, so at boot they come after all that putexd itself comes after: local file systems,
//! the bus, the network that the store is reached by. At shutdown systemd stops units in the reverse order, and putexd waits
//! for the units' end to release the lock. A unit that is ordered before one of those would be stopped after putexd, which
//! waits for it. No order of putexd.service can mend that, because what it comes after is what it needs to release the lock.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::try_join_all;
use tokio::sync::Mutex;

use super::Systemd;
use super::bond;
use super::error::BusError;
use super::gate::Trouble;
use super::link::Link;
use super::properties::Properties;
use super::remedy;
use super::unit_files;

/// The unit of putexd.
const PUTEXD: &str = "putexd.service";

/// The targets that units are ordered before by default. They are reached when the host goes down, long after putexd has
/// ended.
const AT_SHUTDOWN: [&str; 2] = ["shutdown.target", "umount.target"];

/// How many units are asked about at once.
const BATCH: usize = 32;

/// All that putexd comes after, as PID 1 had it loaded when its files were read last. Clones share it. All services of a
/// host have the same, so it is read once for all of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Order(Arc<Mutex<Known>>);

/// What was read, and after which reload of PID 1. `None`: nothing yet.
type Known = Option<(u64, Arc<Earlier>)>;

/// The units that putexd comes after, each with the one that comes after it on the shortest way to putexd.
#[derive(Debug, Default)]
struct Earlier(HashMap<String, String>);

impl Earlier {
    async fn read(link: &Link) -> Result<Self, BusError> {
        let (mut earlier, mut latest) = (Self::default(), vec![PUTEXD.to_owned()]);
        while !latest.is_empty() {
            let mut found = Vec::new();
            for batch in latest.chunks(BATCH) {
                let asked = try_join_all(batch.iter().map(|unit| link.common(unit, &["After"]))).await?;
                for (unit, properties) in batch.iter().zip(asked) {
                    found.extend(earlier.add(unit, properties.texts("After")));
                }
            }
            latest = found;
        }
        Ok(earlier)
    }

    /// Adds what `unit` comes after, and returns what was not known before.
    fn add(&mut self, unit: &str, after: Vec<String>) -> Vec<String> {
        let is_new = |other: &String| other != PUTEXD && !self.0.contains_key(other);
        let new: Vec<String> = after.into_iter().filter(is_new).collect();
        self.0.extend(new.iter().map(|other| (other.clone(), unit.to_owned())));
        new
    }

    /// The ways to putexd from each of `before` that putexd comes after, the shortest first.
    fn ways(&self, before: &[String]) -> Vec<Vec<String>> {
        let way = |first: &String| {
            let rest = std::iter::successors(Some(first), |unit| self.0.get(*unit));
            (first == PUTEXD || self.0.contains_key(first)).then(|| rest.cloned().collect::<Vec<_>>())
        };
        let mut ways: Vec<_> = before.iter().filter_map(way).collect();
        ways.sort_by_key(Vec::len);
        ways
    }
}

/// What puts a unit before another one.
#[derive(Debug, PartialEq, Eq)]
enum Origin {
    /// The line of a mount in /etc/fstab.
    Fstab,
    /// `Before=` in a file of the unit.
    Before(PathBuf),
    /// `After=` in a file of the other one.
    After(PathBuf),
    /// The other one is a target, and pulls the unit in.
    PulledIn,
    /// A default of systemd, or a dependency of another kind.
    Other,
}

impl Origin {
    fn is_written(&self) -> bool {
        matches!(self, Self::Fstab | Self::Before(_) | Self::After(_))
    }
}

impl Systemd {
    /// Checks that a unit of a service, with these properties, does not come before putexd.
    pub(super) async fn check_order(&self, properties: &Properties) -> Result<Result<(), Trouble>, BusError> {
        let unit = properties.text("Id").unwrap_or_default();
        let mut before = properties.texts("Before");
        before.retain(|other| !AT_SHUTDOWN.contains(&other.as_str()));
        if before.is_empty() {
            return Ok(Ok(()));
        }
        // The drop-in that binds the unit takes systemd's defaults away from units that would have too early ones.
        let is_bound = properties.texts("DropInPaths").iter().any(|path| bond::is_drop_in(path.as_ref()));
        for way in self.earlier().await?.ways(&before) {
            let origin = self.origin(unit, &way[0]).await?;
            if is_bound || origin.is_written() {
                return Ok(Err(trouble(properties, unit, &way, &origin)));
            }
        }
        Ok(Ok(()))
    }

    async fn earlier(&self) -> Result<Arc<Earlier>, BusError> {
        let mut known = self.order.0.lock().await;
        let rounds = self.watched.rounds();
        match &*known {
            Some((at, earlier)) if *at == rounds => Ok(Arc::clone(earlier)),
            Some(_) | None => {
                let earlier = Arc::new(Earlier::read(&self.link().await?).await?);
                *known = Some((rounds, Arc::clone(&earlier)));
                Ok(earlier)
            }
        }
    }

    async fn origin(&self, unit: &str, other: &str) -> Result<Origin, BusError> {
        // A specifier may stand for anything.
        let names =
            |value: &str, wanted: &str| value.split_whitespace().any(|word| word == wanted || word.contains('%'));
        let link = self.link().await?;
        if let Some(line) = self.lines(unit, "Before").await?.into_iter().find(|line| names(&line.value, other)) {
            let source = link.common(unit, &["SourcePath"]).await?;
            let is_fstab = source.text("SourcePath") == Some("/etc/fstab");
            let is_for_all_mounts = matches!(other, "local-fs.target" | "remote-fs.target");
            return Ok(if is_fstab && is_for_all_mounts { Origin::Fstab } else { Origin::Before(line.path) });
        }
        if let Some(line) = self.lines(other, "After").await?.into_iter().find(|line| names(&line.value, unit)) {
            return Ok(Origin::After(line.path));
        }
        let pulls = link.common(other, &["Wants", "Requires"]).await?;
        let is_pulled = ["Wants", "Requires"].iter().any(|name| pulls.texts(name).iter().any(|name| name == unit));
        Ok(if is_pulled { Origin::PulledIn } else { Origin::Other })
    }
}

fn trouble(properties: &Properties, unit: &str, way: &[String], origin: &Origin) -> Trouble {
    let remedy = match origin {
        Origin::Fstab => {
            let command = remedy::mounted_by_putexd_alone(properties.text("Where").unwrap_or_default());
            format!("run \"{command}\"")
        }
        Origin::Before(path) => unit_files::without(path, "Before", &way[0]),
        Origin::After(path) => unit_files::without(path, "After", unit),
        Origin::PulledIn => format!("run \"systemctl disable {unit}\", so that {} no longer pulls it in", way[0]),
        Origin::Other => format!("leave {unit} out of the service, because this host needs it for {}", way[0]),
    };
    let trouble = format!(
        "is ordered before putexd ({unit} → {}), which has to stop it first, so that each reboot of its holder would hang",
        way.join(" → ")
    );
    Trouble { trouble, remedy }
}

#[cfg(test)]
mod tests {
    use zbus::Variant;

    use super::*;

    fn earlier() -> Earlier {
        let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let mut earlier = Earlier::default();
        for (unit, after) in [
            (PUTEXD, &["basic.target", "network-online.target", "system.slice"][..]),
            ("basic.target", &["sysinit.target", "system.slice"]),
            ("network-online.target", &["network.target"]),
            ("sysinit.target", &["local-fs.target", PUTEXD]),
        ] {
            earlier.add(unit, own(after));
        }
        earlier
    }

    #[test]
    fn the_shortest_way_to_putexd_is_told_first() {
        let ways = |before: &[&str]| {
            let before: Vec<String> = before.iter().map(|name| (*name).to_owned()).collect();
            earlier().ways(&before).into_iter().map(|way| way.join(" ")).collect::<Vec<_>>()
        };
        assert_eq!(ways(&["multi-user.target", "web.service"]), [""; 0]);
        assert_eq!(
            ways(&["local-fs.target", "multi-user.target", "network-online.target", PUTEXD]),
            [
                "putexd.service",
                "network-online.target putexd.service",
                "local-fs.target sysinit.target basic.target putexd.service"
            ]
        );
        assert_eq!(ways(&["system.slice"]), ["system.slice putexd.service"], "what is found twice has the shorter way");
    }

    #[test]
    fn each_origin_has_its_remedy() {
        let way = ["local-fs.target".to_owned(), PUTEXD.to_owned()];
        let told = |place: &'static str, origin| {
            let properties = Properties::of([("Where", Variant::from(place))]);
            trouble(&properties, "srv-data.mount", &way, &origin).remedy
        };
        assert!(told("/srv/data", Origin::Fstab).contains(",noauto,nofail|' /etc/fstab"));
        assert!(told("/srv/data", Origin::Before("/etc/a".into())).contains("/^Before=/s/(=|\\s)local-fs"));
        assert!(told("/srv/data", Origin::After("/etc/a".into())).contains("/^After=/s/(=|\\s)srv-data"));
        assert!(told("/srv/data", Origin::PulledIn).contains("systemctl disable srv-data.mount"));
        assert!(told("/srv/data", Origin::Other).contains("leave srv-data.mount out of the service"));
    }
}

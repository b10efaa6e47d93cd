//! Reads the configuration anew, and touches only the services that have changed.

use std::{collections::BTreeSet, sync::Arc};

use super::{Supervisor, log, notify};
use crate::{
    config::Settings,
    daemon::service::ServiceOrder,
    facts::Retirement,
    journal::{self, Notice},
    types::ServiceName,
};

impl Supervisor {
    /// Reads the configuration anew, and touches only the services that have changed. A service whose file is broken now
    /// goes on as it was.
    pub async fn reload(&mut self) {
        notify::reloading();
        let mut loaded = self.reader.read(None, &BTreeSet::new()).await;
        log(&loaded);
        if loaded.settings.is_some() && !loaded.broken.is_empty() {
            // A service that runs has the better right to its unit and its key, whatever its own file says now.
            let running = self.services.keys().cloned().collect();
            loaded = self
                .reader
                .read(self.in_force.settings.as_ref(), &running)
                .await;
        }
        self.broken.update(&loaded);
        let mut done = Vec::new();
        if let Some(settings) = loaded.settings {
            let former = self.in_force.settings.as_ref().map(|former| former.metrics);
            if former != Some(settings.metrics) {
                done.push("[metrics] changed".to_owned());
            }
            let settings = self.in_force_until_restart(settings);
            self.in_force.replace(settings.clone());
            done.extend(self.apply(settings).await);
        }
        self.alarm_of_broken_files();
        if done.is_empty() {
            done.push("nothing changed".to_owned());
        }
        journal::notice(Notice::Reloaded, &done.join("; "));
        notify::ready();
        self.shown.clear();
    }

    /// The settings of the services, with those of the host that only a restart can change.
    fn in_force_until_restart(&self, settings: Settings) -> Settings {
        let Some(former) = self.in_force.settings.clone() else {
            return settings;
        };
        let in_force = Settings {
            metrics: settings.metrics,
            services: settings.services.clone(),
            ..former
        };
        if in_force != settings {
            tracing::warn!(
                "run \"systemctl restart putexd\" for the new node name, store, seal-key, cluster or watchdog in putexd.toml"
            );
        }
        in_force
    }

    /// Applies new settings. Returns what was done, in words.
    async fn apply(&mut self, settings: Settings) -> Vec<String> {
        self.host.http.listen(settings.metrics);
        self.keep_for_boot(&settings.services).await;
        self.gate(&settings.services).await;
        let mut done = Vec::new();
        self.coming.retain(|service| self.broken.has(&service.name));
        let wanted: BTreeSet<&ServiceName> = settings
            .services
            .iter()
            .map(|service| &service.name)
            .collect();
        let is_gone = |name: &&ServiceName| !self.broken.has(name) && !wanted.contains(name);
        let gone: Vec<ServiceName> = self.services.keys().filter(is_gone).cloned().collect();
        for name in gone {
            done.push(format!("{name} removed"));
            self.retire(&name, Retirement::Removed);
        }
        for service in settings.services {
            let name = &service.name;
            match self.services.get_mut(name) {
                None => done.push(format!("{name} added")),
                Some(_) if self.broken.has(name) => continue,
                Some(handle) => {
                    let former = &handle.settings;
                    if **former != service {
                        done.push(format!("{name} changed"));
                    }
                    if former.has_same_units(&service)
                        && (&former.key, former.observes()) == (&service.key, service.observes())
                    {
                        handle.settings = Arc::new(service);
                        let order = ServiceOrder::Reconfigure(Arc::clone(&handle.settings));
                        handle.orders.give(order);
                        continue;
                    }
                    self.retire(name, Retirement::Changed);
                }
            }
            self.coming.push(service);
        }
        match self.host.guard.list().await {
            Ok(leases) => self.retire_unclaimed(&leases),
            Err(error) => {
                tracing::warn!(
                    "failed to ask the guard for leases that no service claims: {error}, ignoring"
                );
            }
        }
        done
    }
}

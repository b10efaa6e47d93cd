//! Reads the configuration anew, and touches only the services that have changed.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::notify;
use super::{Supervisor, tell};
use crate::config::{ServiceSettings, Settings};
use crate::daemon::service::Order;
use crate::facts::Retirement;
use crate::journal::{self, Notice};
use crate::types::ServiceName;

impl Supervisor {
    /// Reads the configuration anew, and touches only the services that have changed. A service whose file is broken now
    /// goes on as it was.
    pub async fn reload(&mut self) {
        notify::reloading();
        let mut loaded = self.reader.read(None, &BTreeSet::new()).await;
        tell(&loaded);
        if loaded.settings.is_some() && !loaded.broken.is_empty() {
            // A service that runs has the better right to its unit and its key, whatever its own file says now.
            let running = self.services.keys().cloned().collect();
            loaded = self
                .reader
                .read(self.in_force.settings.as_ref(), &running)
                .await;
        }
        self.broken.update(&loaded);
        let mut told = Vec::new();
        if let Some(settings) = loaded.settings {
            self.keep(settings.clone());
            told = self.apply(settings).await;
        }
        self.tell_of_broken_files();
        told.extend(self.broken.advice(|name| self.goes_on(name)));
        let told = if told.is_empty() {
            "nothing changed".to_owned()
        } else {
            told.join("; ")
        };
        journal::notice(Notice::Reloaded, &told);
        notify::ready();
        self.shown.clear();
    }

    /// Keeps the settings that are in force after a reload. A service whose file is broken keeps its former ones, and so does the
    /// host where only a restart can change them.
    fn keep(&mut self, mut settings: Settings) {
        let is_other = self.has_other_host(&settings);
        let Some(former) = self.in_force.settings.take() else {
            return self.in_force.replace(settings);
        };
        let known: BTreeSet<ServiceName> = settings
            .services
            .iter()
            .map(|service| service.name.clone())
            .collect();
        let is_kept = |service: &ServiceSettings| {
            self.broken.has(&service.name) && !known.contains(&service.name)
        };
        let kept = former.services.iter().filter(|service| is_kept(service));
        settings.services.extend(kept.cloned());
        if is_other {
            let services = settings.services;
            settings = Settings { services, ..former };
        }
        self.in_force.replace(settings);
    }

    /// Whether `putexd.toml` has settings that take effect only at a restart.
    fn has_other_host(&self, settings: &Settings) -> bool {
        let of_host = |settings: &Settings| Settings {
            metrics: None,
            services: Vec::new(),
            ..settings.clone()
        };
        self.in_force.settings.as_ref().map(of_host) != Some(of_host(settings))
    }

    /// Applies new settings. Returns what was done, in words.
    async fn apply(&mut self, settings: Settings) -> Vec<String> {
        if self.has_other_host(&settings) {
            tracing::warn!(
                "putexd.toml: a new node name, store, seal-key, cluster or watchdog takes effect at \"systemctl restart putexd\""
            );
        }
        self.host.http.listen(settings.metrics);
        self.keep_for_boot(&settings.services).await;
        self.gate(&settings.services).await;
        let mut told = Vec::new();
        self.coming.retain(|service| self.broken.has(&service.name));
        let wanted: BTreeSet<&ServiceName> = settings
            .services
            .iter()
            .map(|service| &service.name)
            .collect();
        let is_gone = |name: &&ServiceName| !self.broken.has(name) && !wanted.contains(name);
        let gone: Vec<ServiceName> = self.services.keys().filter(is_gone).cloned().collect();
        for name in gone {
            told.push(format!("{name} removed"));
            self.retire(&name, Retirement::Removed);
        }
        for service in settings.services {
            let name = &service.name;
            match self.services.get_mut(name) {
                None => told.push(format!("{name} added")),
                Some(_) if self.broken.has(name) => continue,
                Some(handle) if *handle.settings == service => {
                    handle.orders.give(Order::Reconsider);
                    continue;
                }
                Some(handle) => {
                    told.push(format!("{name} changed"));
                    let former = &handle.settings;
                    if former.has_same_units(&service)
                        && (&former.key, former.observes()) == (&service.key, service.observes())
                    {
                        handle.settings = Arc::new(service);
                        let order = Order::Reconfigure(Arc::clone(&handle.settings));
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
        told
    }
}

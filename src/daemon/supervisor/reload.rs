//! Reads the configuration anew, and touches only the services that have changed.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Supervisor;
use super::retire::{CHANGED, OBSERVED, REMOVED};
use crate::config::{Settings, Texts};
use crate::daemon::service::Order;
use crate::daemon::{notify, observer};
use crate::journal;
use crate::types::ServiceName;

impl Supervisor {
    /// Reads the configuration anew, and touches only the services that have changed. A service whose file is broken now
    /// goes on as it was.
    pub(super) async fn reload(&mut self) {
        notify::reloading();
        let mut loaded = self.reader.load().await;
        if loaded.settings.is_some() && !loaded.broken.is_empty() {
            // A service that runs has the better right to its unit and its key, whatever its own file says now.
            let running = self.services.keys().cloned().collect();
            loaded = self.reader.read(self.texts.texts(), &running).await;
        }
        let mended = self.broken.update(&loaded);
        let mut told = Vec::new();
        if let Some(settings) = loaded.settings {
            told.extend(mended.in_words(|name| settings.services.iter().any(|service| service.name == *name)));
            self.keep(self.texts_in_force(loaded.texts, &settings));
            told.extend(self.apply(settings).await);
        }
        self.tell_of_broken_files();
        told.extend(self.broken.in_words(|name| self.goes_on(name)));
        let told = if told.is_empty() { "nothing changed".to_owned() } else { told.join("; ") };
        journal::alarm(journal::Alarm::ConfigurationReloaded, &journal::Subject::default(), &told);
        notify::ready();
        self.shown.clear();
    }

    pub(super) fn keep(&mut self, texts: Texts) {
        self.texts.replace(texts);
    }

    /// The texts to keep after a reload. A service whose file is broken keeps its former text, and so do the host's own
    /// settings if only a restart can change them.
    fn texts_in_force(&self, mut texts: Texts, settings: &Settings) -> Texts {
        let former = self.texts.texts();
        for (name, made) in former.services.iter().filter(|(name, _)| self.broken.has(name)) {
            texts.services.entry(name.clone()).or_insert_with(|| made.clone());
        }
        if self.has_other_host(settings) {
            texts.host.clone_from(&former.host);
        }
        texts
    }

    /// Whether `putexd.toml` has settings that take effect only at a restart.
    fn has_other_host(&self, settings: &Settings) -> bool {
        settings.node != self.host.node
            || settings.store != self.store_settings
            || settings.seal_key != self.seal_key
            || settings.cluster != self.host.cluster
            || settings.watchdog != self.host.watchdog
    }

    /// Applies new settings. Returns what was done, in words.
    async fn apply(&mut self, mut settings: Settings) -> Vec<String> {
        if self.has_other_host(&settings) {
            tracing::warn!(
                "putexd.toml: a new node name, store, seal-key, cluster or watchdog takes effect at \"systemctl restart putexd\""
            );
        }
        let (services, observed) = observer::apart(std::mem::take(&mut settings.services));
        settings.services = services;
        self.host.http.listen(settings.metrics);
        self.keep_for_boot(&settings.services).await;
        self.gate(&settings.services).await;
        let looked_at: BTreeSet<ServiceName> = observed.iter().map(|service| service.name.clone()).collect();
        let mut told = self.observers.replace(&self.host, observed, |name| self.broken.has(name), &self.changed);
        for retiring in &mut self.retiring {
            // A successor that is still wanted is set again below.
            retiring.successor = None;
        }
        self.coming.retain(|service| self.broken.has(&service.name));
        let wanted: BTreeSet<&ServiceName> = settings.services.iter().map(|service| &service.name).collect();
        let is_gone = |name: &&ServiceName| !self.broken.has(name) && !wanted.contains(name);
        let gone: Vec<ServiceName> = self.services.keys().filter(is_gone).cloned().collect();
        for name in gone {
            if looked_at.contains(&name) {
                self.retire(&name, OBSERVED, None);
            } else {
                told.push(format!("{name} removed"));
                self.retire(&name, REMOVED, None);
            }
        }
        for service in settings.services {
            let name = service.name.clone();
            let Some(handle) = self.services.get_mut(&name) else {
                told.push(format!("{name} added"));
                match self.retiring.iter_mut().find(|retiring| retiring.handle.settings.name == name) {
                    Some(retiring) => retiring.successor = Some(service),
                    None => self.coming.push(service),
                }
                continue;
            };
            if self.broken.has(&name) {
                continue;
            }
            if *handle.settings == service {
                // A full channel would mean a loop that stands still, which the watchdog ends.
                let _ = handle.orders.give(Order::Reconsider);
                continue;
            }
            told.push(format!("{name} changed"));
            if handle.settings.has_same_units(&service) && handle.settings.key == service.key {
                handle.settings = Arc::new(service);
                // A full channel would mean a loop that stands still, which the watchdog ends.
                let _ = handle.orders.give(Order::Reconfigure(Arc::clone(&handle.settings)));
            } else {
                self.retire(&name, CHANGED, Some(service));
            }
        }
        match self.host.guard.list().await {
            Ok(leases) => self.retire_unclaimed(&leases),
            Err(error) => {
                tracing::warn!("failed to ask the guard for leases that no service claims: {error}, ignoring");
            }
        }
        told
    }
}

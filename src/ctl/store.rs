//! The way to the store without a running putexd, and `putexctl init`, which makes it.

use std::{
    fs::File,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use tokio::time::{sleep, timeout};

use super::output::{Failure, print};
use crate::{
    audit,
    command_line::exit,
    config::{self, BrokenFiles, Settings, below},
    frames::Units,
    store::{self, Creation, Store, StoreError, sealed},
    types::{Key, NET_SOCKET},
};

/// How long an operator is kept waiting for a server.
const CONNECT_LIMIT: Duration = Duration::from_secs(6);
/// How often it is looked whether the store is connected.
const INTERVAL: Duration = Duration::from_millis(50);
/// How long one call may take.
const CALL_LIMIT: Duration = Duration::from_secs(5);

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::unavailable(error.to_string())
    }
}

/// Makes the store that the configuration names. `is_local`: the operator knows that only this machine sees its folder.
pub async fn init(root: &Path, is_local: bool) -> Result<(), Failure> {
    let (settings, _) = load(root)?;
    if !is_local {
        refuse_local(&settings).await?;
    }
    let Creation { what, is_new } = open(&settings).await?.init().await.map_err(|error| {
        let status = if matches!(error, StoreError::Unfit(_)) {
            exit::CONFIGURATION
        } else {
            exit::UNAVAILABLE
        };
        let text = format!("see putexd-stores(7): failed to make the store: {error}");
        Failure::new(status, text)
    })?;
    let mut text = if is_new {
        format!("made {what}; have the same [store] on all hosts before putexd runs there\n")
    } else {
        format!("{what} was there already and is left as it is\n")
    };
    let advice = seal(root, &settings, is_new);
    text.extend(advice.iter().flat_map(|advice| ["! ", advice, "\n"]));
    print(&text)
}

/// The key that `init` makes.
const SEAL_KEY: &str = "/etc/putex/seal.key";

/// Makes a key that seals records, if there is none, where others than root of the hosts can write to the store. Returns what is to
/// be done with it.
fn seal(root: &Path, settings: &Settings, made: bool) -> Option<String> {
    if settings.seal_key.is_some() || !settings.store.has_servers() {
        return None;
    }
    let path = below(root, SEAL_KEY);
    // If the store was there, another host may have the key already.
    let written = if made { make_key(&path) } else { Ok(()) };
    Some(match written {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            format!("make a seal-key, see putexd.toml(5): {SEAL_KEY} could not be made: {error}")
        }
        _ => format!(
            "copy {SEAL_KEY} of the host that made the store to all hosts, for root alone, and write seal-key = \"{SEAL_KEY}\" below [store]"
        ),
    })
}

/// A key in a new file that only root may read.
fn make_key(path: &Path) -> io::Result<()> {
    let key = sealed::new_key()?;
    let mut options = File::options();
    let options = options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(path)?;
    file.write_all(format!("{key}\n").as_bytes())?;
    file.sync_all()
}

/// Refuses to make a store where only this machine would see it: each host would get locks of its own, and run the services.
async fn refuse_local(settings: &Settings) -> Result<(), Failure> {
    let of_store = settings.store.clone();
    let look = tokio::task::spawn_blocking(move || of_store.local_file_system());
    // A folder that hangs is told of by the store itself.
    let Ok(Ok(Some(local))) = timeout(CALL_LIMIT, look).await else {
        return Ok(());
    };
    let store = &settings.store;
    let text = format!(
        "mount the share on {store}: it is {local}, which only this machine sees; --local-folder makes it all the same"
    );
    Err(Failure::refused(text))
}

/// The settings, and which files of services are broken.
pub fn load(root: &Path) -> Result<(Settings, BrokenFiles), Failure> {
    let loaded = config::load(root);
    let shown = loaded.to_string();
    let failure = || Failure::new(exit::CONFIGURATION, shown);
    Ok((loaded.settings.ok_or_else(failure)?, loaded.broken))
}

pub async fn open(settings: &Settings) -> Result<Arc<dyn Store>, Failure> {
    let store = store::open(&settings.store, CALL_LIMIT, Arc::new(NetUnits));
    let store = sealed::as_configured(
        store,
        settings.seal_key.as_deref(),
        settings.cluster.as_ref(),
    )
    .map_err(|error| Failure::unavailable(error.to_string()))?;
    let key = Key::new("x").map_err(|error| Failure::unavailable(error.to_string()))?;
    let end = Instant::now() + CONNECT_LIMIT;
    while !store.link().borrow().is_up() {
        // Without a connection the store answers at once with the reason. No waiting changes a login that it refuses.
        let Err(error) = store.read(&key, None).await else {
            break;
        };
        if matches!(error, StoreError::Denied(_)) || Instant::now() >= end {
            return Err(Failure::unavailable(format!(
                "see that the store ({}) is up, and its address and login in putexd.toml right: {error}",
                settings.store
            )));
        }
        sleep(INTERVAL).await;
    }
    Ok(store)
}

/// The units of the processes that have the network. A command ends soon, and leaves the watchdog to end what stands still.
struct NetUnits;

#[async_trait]
impl Units for NetUnits {
    fn start_socket(&self) {
        // Where putexd runs, it is there already, and where systemd does not answer, the store says what is missing.
        tokio::spawn(async {
            audit::connect()
                .await
                .ok()?
                .queue_start(NET_SOCKET)
                .await
                .ok()
        });
    }
}

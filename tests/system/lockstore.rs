//! The kinds of lock store, and how each of them is lost and comes back.

use std::time::{Duration, Instant};

use putexd::store::StoreSettings;

use crate::{
    cluster::{Cluster, Host},
    environment::utf8,
    on_hosts::{OnHosts, etcd_leads},
    server::{ADDRESS, Server},
    share::PLACE,
};

/// Until servers that were just started have elected a leader.
const MADE: Duration = Duration::from_secs(60);

/// The store that holds the locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lockstore {
    Nats,
    /// A folder that all hosts share.
    Directory,
    Etcd,
    Postgres,
}

impl Lockstore {
    pub const NATS_PORT: u16 = 4222;
    pub const ETCD_PORT: u16 = 2379;
}

/// Makes a test of each function for each store, as `store::function`. The functions of the first list are for the
/// three stores that the whole fault suite runs on, the others for the stores that they are listed with.
macro_rules! on_each_store {
    (
        $($every:ident),* $(,)?
        $(; nats: $($nats:ident),+)?
        $(; directory: $($directory:ident),+)?
        $(; etcd: $($etcd:ident),+)?
        $(; postgres: $($postgres:ident),+)?
        $(;)?
    ) => {
        mod nats {
            $(crate::lockstore::on_store!($every, Nats);)*
            $($(crate::lockstore::on_store!($nats, Nats);)+)?
        }
        mod directory {
            $(crate::lockstore::on_store!($every, Directory);)*
            $($(crate::lockstore::on_store!($directory, Directory);)+)?
        }
        mod etcd {
            $(crate::lockstore::on_store!($every, Etcd, "etcd");)*
            $($(crate::lockstore::on_store!($etcd, Etcd, "etcd");)+)?
        }
        $(mod postgres {
            $(crate::lockstore::on_store!($postgres, Postgres, "postgres");)+
        })?
    };
}
pub(crate) use on_each_store;

/// Makes the test of a function for a store. It is ignored when the Cargo feature of that store is off.
macro_rules! on_store {
    ($test:ident, $store:ident $(, $feature:literal)?) => {
        #[test]
        $(#[cfg_attr(not(feature = $feature), ignore = "this putexd was built without the store: --all-features")])?
        fn $test() {
            super::$test(crate::lockstore::Lockstore::$store);
        }
    };
}
pub(crate) use on_store;

/// The lock store of a cluster.
pub struct Locks {
    store: Lockstore,
    place: Place,
}

/// Where the store's servers are.
pub enum Place {
    /// A server beside the hosts.
    Beside(Server),
    /// A server on each host, which is lost with it.
    OnHosts(OnHosts),
    /// No servers: the hosts share a folder.
    Nowhere,
}

impl Locks {
    /// Starts the store's servers for a cluster that has booted. With `on_hosts` they run on the hosts, if they form
    /// clusters.
    pub fn start(store: Lockstore, cluster: &Cluster, on_hosts: bool) -> Self {
        let place = match store {
            Lockstore::Directory => Place::Nowhere,
            Lockstore::Nats if on_hosts => Place::OnHosts(OnHosts::Nats),
            Lockstore::Etcd if on_hosts => Place::OnHosts(OnHosts::Etcd),
            Lockstore::Nats | Lockstore::Etcd | Lockstore::Postgres => {
                Place::Beside(cluster.server_beside(store))
            }
        };
        if let Place::OnHosts(servers) = place {
            servers.start(cluster);
        }
        Self { store, place }
    }

    /// The section `[store]` of putexd.toml.
    pub fn configuration(&self, cluster: &Cluster) -> String {
        let urls = |scheme: &str, port: u16| match self.place {
            Place::OnHosts(servers) => servers.urls(cluster),
            Place::Beside(_) | Place::Nowhere => vec![format!("{scheme}://{ADDRESS}:{port}")],
        };
        match self.store {
            Lockstore::Nats => {
                let servers = urls("nats", Lockstore::NATS_PORT);
                let replicas = servers.len();
                format!(
                    "[store]\ntype = \"nats\"\nservers = {servers:?}\nbucket = \"locks\"\nreplicas = {replicas}\n"
                )
            }
            Lockstore::Directory => format!("[store]\ntype = \"directory\"\npath = \"{PLACE}\"\n"),
            Lockstore::Etcd => {
                format!(
                    "[store]\ntype = \"etcd\"\nendpoints = {:?}\n",
                    urls("http", Lockstore::ETCD_PORT)
                )
            }
            Lockstore::Postgres => {
                format!(
                    "[store]\ntype = \"postgres\"\nservers = [\"postgres://{ADDRESS}\"]\nconnection = \"user=postgres dbname=postgres\"\n"
                )
            }
        }
    }

    /// As [`configuration`](Self::configuration), parsed, for a client that reads the store from the switch.
    pub fn settings(&self, cluster: &Cluster) -> StoreSettings {
        let folder = tempfile::tempdir().expect("a folder");
        let etc = folder.path().join("etc/putex");
        std::fs::create_dir_all(&etc).expect("the folder can be written to");
        let configuration = self
            .configuration(cluster)
            .replace(PLACE, utf8(&cluster.putex()));
        std::fs::write(
            etc.join("putexd.toml"),
            format!("node = \"reader\"\n{configuration}"),
        )
        .expect("the folder can be written to");
        putexd::config::load(folder.path())
            .settings
            .expect("the hosts take it too")
            .store
    }

    /// Runs `putexctl init` on a host that runs, as an administrator does, until the servers have a leader.
    pub fn init(&self, cluster: &Cluster) {
        let host = cluster.hosts.iter().find(|host| host.is_running());
        let host = host.expect("a host that runs");
        let end = Instant::now() + MADE;
        loop {
            let output = host.output(&["putexctl", "init"]);
            if output.status.success() {
                return;
            }
            assert!(
                Instant::now() < end,
                "{:?} is not made: {output:?}",
                self.store
            );
        }
    }

    /// Takes the store away from all hosts: its servers end, or the shared folder hangs.
    pub fn lose(&self, cluster: &Cluster) {
        match &self.place {
            Place::Beside(server) => server.kill(),
            Place::OnHosts(_) => OnHosts::down(cluster),
            Place::Nowhere => cluster.hosts.iter().for_each(|host| host.share().hang()),
        }
    }

    /// Makes the store hang: connections to it stay, but it answers no host.
    pub fn hang(&self, cluster: &Cluster) {
        match &self.place {
            Place::Beside(server) => server.hang(),
            Place::OnHosts(_) => unreachable!("no test asks for it"),
            Place::Nowhere => self.lose(cluster),
        }
    }

    pub fn go_on(&self, cluster: &Cluster) {
        match &self.place {
            Place::Beside(server) => server.go_on(),
            Place::OnHosts(_) => unreachable!("no test asks for it"),
            Place::Nowhere => self.regain(cluster),
        }
    }

    /// Brings the store back, with what it held.
    pub fn regain(&self, cluster: &Cluster) {
        match &self.place {
            Place::Beside(server) => server.up(),
            Place::OnHosts(servers) => servers.up(cluster),
            Place::Nowhere => cluster.hosts.iter().for_each(|host| host.share().go_on()),
        }
    }

    /// All that was stored is lost, and an administrator makes the store anew.
    pub fn make_anew(&self, cluster: &Cluster) {
        self.empty(cluster);
        self.init(cluster);
    }

    /// Brings the store back empty: all that was stored is lost.
    pub fn empty(&self, cluster: &Cluster) {
        match &self.place {
            Place::Beside(server) => {
                server.wipe();
                server.up();
            }
            Place::OnHosts(_) => unreachable!("no test asks for it"),
            // The folder hangs meanwhile, because a host must not make a lock of the former store beside what is
            // deleted.
            Place::Nowhere => {
                self.lose(cluster);
                cluster.empty_share();
                self.regain(cluster);
            }
        }
    }

    /// From now on everybody may publish these subjects of NATS, and no others.
    pub fn permit(&self, subjects: &[&str]) {
        match &self.place {
            Place::Beside(server) => server.permit(subjects),
            Place::OnHosts(_) | Place::Nowhere => unreachable!("no test asks for it"),
        }
    }

    /// Makes the server of `host` the leader of the servers on the hosts, if there are any and the leader can be
    /// chosen.
    pub fn have_lead(&self, cluster: &Cluster, host: &Host) {
        match self.place {
            Place::OnHosts(OnHosts::Etcd) => etcd_leads(cluster, host),
            Place::OnHosts(OnHosts::Nats) | Place::Beside(_) | Place::Nowhere => {}
        }
    }

    /// The servers on the hosts. Panics if the plan did not ask for them.
    pub fn on_hosts(&self) -> OnHosts {
        self.servers().expect("there are servers on the hosts")
    }

    /// The servers on the hosts, or `None` if the servers are elsewhere.
    pub fn servers(&self) -> Option<OnHosts> {
        match self.place {
            Place::OnHosts(servers) => Some(servers),
            Place::Beside(_) | Place::Nowhere => None,
        }
    }
}

//! NATS or etcd servers on the hosts: one on each host as its unit `locks.service`, which is lost with the host.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, Host},
    command::{wait_for, wait_until},
    lockstore::Lockstore,
    server::{get_json, post_json},
};

pub const UNIT: &str = "locks.service";
/// The folder in which the servers keep their data.
pub const DATA: &str = "/var/lib/locks";

/// An election takes seconds, and longer on a busy machine.
const ELECTION_LIMIT: Duration = Duration::from_secs(60);

/// The servers of one store, which form a cluster with a member on each host.
#[derive(Debug, Clone, Copy)]
pub enum OnHosts {
    Nats,
    Etcd,
}

impl OnHosts {
    /// Starts the servers, now and at each boot, and waits until the cluster accepts writes.
    pub fn start(self, cluster: &Cluster) {
        for host in &cluster.hosts {
            let command = match self {
                Self::Nats => {
                    let route = |host: &Host| format!("\"nats://{}:6222\"", host.address);
                    let routes: Vec<String> = cluster.hosts.iter().map(route).collect();
                    host.write_file(
                        "/etc/nats.conf",
                        &nats_configuration(&host.name, DATA, &routes),
                    );
                    "/usr/sbin/nats-server -c /etc/nats.conf".to_owned()
                }
                Self::Etcd => {
                    let member =
                        |host: &Host| format!("{}=http://{}:2380", host.name, host.address);
                    let members: Vec<String> = cluster.hosts.iter().map(member).collect();
                    let etcd = etcd_command(&host.name, DATA, &host.address, &members);
                    format!("/usr/bin/{etcd}")
                }
            };
            // nats-server does not end in order while its disk is full.
            let unit = format!(
                "[Unit]\nDescription=Lock server of the tests\nStartLimitIntervalSec=0\n\n\
                 [Service]\nExecStart={command}\nRestart=always\nRestartSec=100ms\nTimeoutStopSec=5s\nStateDirectory=locks\n\n\
                 [Install]\nWantedBy=multi-user.target\n"
            );
            host.write_file(&format!("/etc/systemd/system/{UNIT}"), &unit);
            host.exec(&["systemctl", "daemon-reload"]);
            host.exec(&["systemctl", "enable", "--now", UNIT]);
        }
        self.wait_for_leader(cluster);
    }

    /// Stops the servers on all hosts.
    pub fn down(cluster: &Cluster) {
        for host in &cluster.hosts {
            Self::stop(host);
        }
    }

    /// Starts the servers again and waits until the cluster accepts writes.
    pub fn up(self, cluster: &Cluster) {
        for host in &cluster.hosts {
            host.exec(&["systemctl", "start", UNIT]);
        }
        self.wait_for_leader(cluster);
    }

    /// Stops the server of one host.
    pub fn stop(host: &Host) {
        host.exec(&["systemctl", "stop", UNIT]);
    }

    /// Kills the server of one host with SIGKILL. systemd starts it again at once.
    pub fn kill(host: &Host) {
        host.exec(&["systemctl", "kill", "--signal=KILL", UNIT]);
    }

    /// The addresses that a client connects to.
    pub fn urls(self, cluster: &Cluster) -> Vec<String> {
        let (scheme, port) = match self {
            Self::Nats => ("nats", Lockstore::NATS_PORT),
            Self::Etcd => ("http", Lockstore::ETCD_PORT),
        };
        cluster
            .hosts
            .iter()
            .map(|host| format!("{scheme}://{}:{port}", host.address))
            .collect()
    }

    /// Waits for a leader that all running hosts agree on, and that runs itself: for seconds after a leader's end the
    /// others still agree on it. With NATS it is the leader of the servers (the meta group), not of a bucket.
    #[track_caller]
    pub fn wait_for_leader(self, cluster: &Cluster) -> &Host {
        let running: Vec<&Host> = cluster.hosts.iter().filter(|host| host.is_on()).collect();
        wait_for(ELECTION_LIMIT, "the servers have a leader", || {
            let seen: Option<Vec<Leader>> = running
                .iter()
                .map(|host| self.leader_seen_by(cluster, host))
                .collect();
            let seen = seen?;
            let leader = seen.iter().position(|leader| leader.itself)?;
            seen.iter()
                .all(|leader| leader.name == seen[0].name)
                .then(|| running[leader])
        })
    }

    /// Whether the server of `host` answers, and has caught up with the others.
    pub fn is_well(self, cluster: &Cluster, host: &Host) -> bool {
        let (port, path) = match self {
            Self::Nats => (8222, "/healthz"),
            Self::Etcd => (Lockstore::ETCD_PORT, "/health"),
        };
        let health = cluster.on_the_switch(|| get_json(&host.address, port, path));
        health.is_some_and(|health| matches!(self, Self::Nats) || health["health"] == "true")
    }

    /// The leader according to the server of `host`.
    pub fn leader_seen_by(self, cluster: &Cluster, host: &Host) -> Option<Leader> {
        match self {
            Self::Nats => {
                let state = cluster.on_the_switch(|| get_json(&host.address, 8222, "/jsz"))?;
                let name = state.pointer("/meta_cluster/leader")?.as_str()?.to_owned();
                Some(Leader {
                    itself: name == host.name,
                    name,
                })
            }
            Self::Etcd => {
                let status = etcd_asked(cluster, host, "status", &json!({}))?;
                let name = status.get("leader")?.as_str()?.to_owned();
                Some(Leader {
                    itself: status.pointer("/header/member_id")?.as_str()? == name,
                    name,
                })
            }
        }
    }
}

/// Makes the etcd server of `host` the leader. The leader of a NATS bucket cannot be chosen like this.
pub fn etcd_leads(cluster: &Cluster, host: &Host) {
    let leader = OnHosts::Etcd.wait_for_leader(cluster);
    if leader.name != host.name {
        let status = etcd_asked(cluster, host, "status", &json!({})).expect("the server answers");
        let order = json!({ "targetID": status["header"]["member_id"] });
        etcd_asked(cluster, leader, "transfer-leadership", &order)
            .expect("the leader takes the order");
    }
    wait_until(ELECTION_LIMIT, "the host's server leads", || {
        OnHosts::Etcd.wait_for_leader(cluster).name == host.name
    });
}

/// The leader that a server follows.
pub struct Leader {
    /// Its name among the servers.
    pub name: String,
    /// Whether it is the server that was asked.
    pub itself: bool,
}

fn etcd_asked(cluster: &Cluster, host: &Host, what: &str, order: &Value) -> Option<Value> {
    let path = format!("/v3/maintenance/{what}");
    cluster.on_the_switch(|| post_json(&host.address, Lockstore::ETCD_PORT, &path, order))
}

/// The configuration of a NATS server that keeps its data in `store`. With more than one of `routes` it is a member of
/// a cluster.
pub fn nats_configuration(name: &str, store: &str, routes: &[String]) -> String {
    let mut text = format!(
        "server_name: {name}\nlisten: \"0.0.0.0:4222\"\nhttp: \"0.0.0.0:8222\"\n\
         jetstream {{ store_dir: \"{store}\", max_memory_store: 64M, max_file_store: 512M }}\n"
    );
    if routes.len() > 1 {
        let cluster = format!(
            "cluster {{ name: putexd, listen: \"0.0.0.0:6222\", routes: [{}], connect_retries: 10 }}\n",
            routes.join(", ")
        );
        text.push_str(&cluster);
    }
    text
}

/// The command of an etcd server that keeps its data in `store` and is one of `members`, each of which is `NAME=URL`.
pub fn etcd_command(name: &str, store: &str, address: &str, members: &[String]) -> String {
    format!(
        "etcd --name {name} --data-dir {store} --listen-client-urls http://0.0.0.0:2379 \
         --advertise-client-urls http://{address}:2379 --listen-peer-urls http://{address}:2380 \
         --initial-advertise-peer-urls http://{address}:2380 --initial-cluster {}",
        members.join(",")
    )
}

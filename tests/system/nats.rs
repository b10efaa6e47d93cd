//! NATS: a server on each host as its unit `nats.service`, or one server beside the hosts.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::cluster::{Cluster, Host};
use crate::command::wait_for;

const UNIT: &str = "\
[Unit]
Description=NATS server of the tests

[Service]
ExecStart=/usr/sbin/nats-server -c /etc/nats.conf
Restart=always
RestartSec=100ms
StateDirectory=nats

[Install]
WantedBy=multi-user.target
";

/// Elections of the meta leader take seconds; a busy machine adds to them.
const ELECTION_LIMIT: Duration = Duration::from_secs(60);

impl Cluster {
    /// Starts a NATS cluster over all hosts, and waits until JetStream can be written to. Its servers:
    /// [`Cluster::nats_servers`].
    pub fn nats_up(&self) {
        let routes: Vec<String> = self.hosts.iter().map(|host| format!("\"nats://{}:6222\"", host.address)).collect();
        for host in &self.hosts {
            host.write_file("/etc/nats.conf", &configuration(&host.name, "/var/lib/nats", &routes));
            host.write_file("/etc/systemd/system/nats.service", UNIT);
            host.exec(&["systemctl", "daemon-reload"]);
            host.exec(&["systemctl", "enable", "--now", "nats.service"]);
        }
        self.wait_for_nats();
    }

    /// `nats://10.77.0.11:4222` and so on.
    pub fn nats_servers(&self) -> Vec<String> {
        self.hosts.iter().map(|host| format!("nats://{}:4222", host.address)).collect()
    }

    /// Stops the servers on all hosts.
    pub fn nats_down_all(&self) {
        for host in &self.hosts {
            host.exec(&["systemctl", "stop", "nats.service"]);
        }
    }

    /// Starts the servers again and waits until JetStream can be written to.
    pub fn nats_up_all(&self) {
        for host in &self.hosts {
            host.exec(&["systemctl", "start", "nats.service"]);
        }
        self.wait_for_nats();
    }

    /// Waits for a meta leader that all running hosts agree on, and that is one of them: for seconds after its end they
    /// still agree on the old one. Its name.
    #[track_caller]
    pub fn wait_for_nats(&self) -> String {
        let running: Vec<&Host> = self.hosts.iter().filter(|host| host.is_on()).collect();
        wait_for(ELECTION_LIMIT, "NATS has a meta leader", || {
            let mut leaders = running.iter().map(|host| self.nats_leader_seen_by(host));
            let first = leaders.next()??;
            running.iter().find(|host| host.name == first)?;
            leaders.all(|leader| leader.as_deref() == Some(&first)).then_some(first)
        })
    }

    /// The meta leader in the eyes of one server. A single server leads itself.
    pub fn nats_leader_seen_by(&self, host: &Host) -> Option<String> {
        let state = self.on_the_switch(|| get_json(&host.address, "/jsz"))?;
        match state.get("meta_cluster") {
            Some(meta) => Some(meta.get("leader")?.as_str()?.to_owned()),
            None => Some(host.name.clone()),
        }
    }
}

impl Host {
    /// SIGKILL for the server; systemd starts it again at once.
    pub fn nats_kill(&self) {
        self.exec(&["systemctl", "kill", "--signal=KILL", "nats.service"]);
    }
}

/// A server beside the hosts: their power losses do not touch it.
pub struct Outside {
    network: String,
    dir: PathBuf,
    process: Option<Child>,
}

impl Outside {
    pub const SERVER: &str = "nats://10.77.0.5:4222";

    pub(crate) fn start(network: &str, dir: &Path) -> Self {
        fs::create_dir_all(dir).expect("the cluster's folder can be written to");
        let text = configuration("outside", &dir.join("store").display().to_string(), &[]);
        fs::write(dir.join("nats.conf"), text).expect("the cluster's folder can be written to");
        let mut outside = Self { network: network.to_owned(), dir: dir.to_owned(), process: None };
        outside.up();
        outside
    }

    /// Starts the server, on what it had stored, and waits until it answers.
    pub fn up(&mut self) {
        let log = fs::File::create(self.dir.join("log")).expect("the cluster's folder can be written to");
        let process = Command::new("ip")
            .args(["netns", "exec", &self.network, "nats-server", "-c"])
            .arg(self.dir.join("nats.conf"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file can be shared"))
            .stderr(log)
            .spawn();
        self.process = Some(process.expect("ip can be run"));
        let network = &self.network;
        wait_for(ELECTION_LIMIT, "the NATS server beside the hosts answers", || {
            crate::cluster::in_network(network, || get_json("10.77.0.5", "/healthz"))
        });
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("the server is a child of this process");
            process.wait().expect("the server is a child of this process");
        }
    }

    /// Throws away what is stored, as a disk that was replaced.
    pub fn wipe(&mut self) {
        self.kill();
        fs::remove_dir_all(self.dir.join("store")).expect("the server has stored something");
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        self.kill();
    }
}

fn configuration(name: &str, store: &str, routes: &[String]) -> String {
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

/// A GET of the monitoring port in the network of this thread; `None` when it is not answered with 200 and JSON.
fn get_json(address: &str, path: &str) -> Option<Value> {
    let limit = Duration::from_secs(1);
    let address: SocketAddr = format!("{address}:8222").parse().expect("addresses of the tests are addresses");
    let mut stream = TcpStream::connect_timeout(&address, limit).ok()?;
    stream.set_read_timeout(Some(limit)).ok()?;
    // HTTP/1.0, so that the answer comes in one piece and the server closes.
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.lines().next()?.contains(" 200 ").then(|| serde_json::from_str(body).ok())?
}

//! Real etcd servers on free loopback ports, with all their files in a temporary folder. They are killed on drop.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    sync::Arc,
    time::Duration,
};

use etcd_client::{Client, DeleteOptions};
use putexd::{
    store::{
        Store, StoreSettings,
        etcd::{EtcdSettings, EtcdStore},
        files::Files,
        settings::Access,
    },
    types::Key,
};
use tempfile::TempDir;

use super::{
    CALL_LIMIT, Rig,
    process::{ServerProcess, free_port},
    remote::remote,
    up,
};

/// One member, running or not.
pub struct EtcdServer {
    port: u16,
    health_port: u16,
    process: ServerProcess,
    folder: TempDir,
}

impl EtcdServer {
    /// A single member, with `extra` among its arguments.
    pub fn start(extra: &[&str]) -> Self {
        Self::start_in(TempDir::new().expect("a temporary folder"), "http", extra)
    }

    /// As [`start`](Self::start), in a folder that has files already. `@` in `extra` stands for that folder. Clients
    /// use `scheme`.
    pub fn start_in(folder: TempDir, scheme: &str, extra: &[&str]) -> Self {
        let peer = format!("http://127.0.0.1:{}", free_port());
        let mut server = Self::member(folder, scheme, "n0", &peer, &format!("n0={peer}"), extra);
        server.come_back();
        server
    }

    /// Three members of a cluster, with `extra` among their arguments.
    pub fn cluster(extra: &[&str]) -> Vec<Self> {
        let peers: Vec<String> = (0..3)
            .map(|_| format!("http://127.0.0.1:{}", free_port()))
            .collect();
        let all: Vec<String> = peers
            .iter()
            .enumerate()
            .map(|(index, peer)| format!("n{index}={peer}"))
            .collect();
        let member = |(index, peer): (usize, &String)| {
            let folder = TempDir::new().expect("a temporary folder");
            Self::member(
                folder,
                "http",
                &format!("n{index}"),
                peer,
                &all.join(","),
                extra,
            )
        };
        let mut members: Vec<Self> = peers.iter().enumerate().map(member).collect();
        // All members are launched first, because none of them is healthy alone.
        for member in &mut members {
            member.process.launch();
        }
        members.iter().for_each(Self::wait_until_healthy);
        members
    }

    fn member(
        folder: TempDir,
        scheme: &str,
        name: &str,
        peer: &str,
        cluster: &str,
        extra: &[&str],
    ) -> Self {
        let (port, health_port) = (free_port(), free_port());
        let path = folder.path().display().to_string();
        let urls = [
            ("--name", name.to_owned()),
            ("--data-dir", format!("{path}/data")),
            (
                "--listen-client-urls",
                format!("{scheme}://127.0.0.1:{port}"),
            ),
            (
                "--advertise-client-urls",
                format!("{scheme}://127.0.0.1:{port}"),
            ),
            (
                "--listen-metrics-urls",
                format!("http://127.0.0.1:{health_port}"),
            ),
            ("--listen-peer-urls", peer.to_owned()),
            ("--initial-advertise-peer-urls", peer.to_owned()),
            ("--initial-cluster", cluster.to_owned()),
            ("--logger", "zap".to_owned()),
            ("--log-level", "warn".to_owned()),
        ];
        let mut arguments: Vec<String> = urls
            .into_iter()
            .flat_map(|(flag, text)| [flag.to_owned(), text])
            .collect();
        // Servers die in these tests, but the machine does not, so nothing has to be synced.
        arguments.push("--unsafe-no-fsync".to_owned());
        arguments.extend(extra.iter().map(|text| text.replace('@', &path)));
        let process =
            ServerProcess::new("etcd", "etcd-server", arguments, folder.path().join("log"));
        Self {
            port,
            health_port,
            process,
            folder,
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Settings for this member alone.
    pub fn settings(&self) -> EtcdSettings {
        settings(vec![self.url()])
    }

    pub async fn admin(&self) -> Client {
        Client::connect([self.url()], None)
            .await
            .expect("the administrator connects")
    }

    /// Kills the server with SIGKILL.
    pub fn die(&mut self) {
        self.process.die();
    }

    /// Kills the server and deletes its data, as if it had never run.
    pub fn forget(&mut self) {
        self.die();
        fs::remove_dir_all(self.folder.path().join("data")).expect("the data is deleted");
    }

    /// Starts the server again on the same port with the same data, and waits until it has a leader.
    pub fn come_back(&mut self) {
        self.process.launch();
        self.wait_until_healthy();
    }

    fn wait_until_healthy(&self) {
        self.process.wait_until(|| is_healthy(self.health_port));
    }

    /// Stops the server with SIGSTOP: it keeps its connections and answers nothing.
    pub fn hang(&self) {
        self.process.hang();
    }

    /// Continues the server with SIGCONT.
    pub fn release(&self) {
        self.process.release();
    }
}

/// Settings without a login.
pub fn settings(endpoints: Vec<String>) -> EtcdSettings {
    EtcdSettings {
        endpoints,
        prefix: "/putex".to_owned(),
        access: Access::default(),
    }
}

/// Makes the store, as `putexctl init` does.
pub async fn init(settings: &EtcdSettings) {
    let store = EtcdStore::new(settings.clone(), CALL_LIMIT, Files::of_this_host());
    up(&store).await;
    store.init().await.expect("the store is made");
}

/// Whether the member has a leader and answers reads.
fn is_healthy(port: u16) -> bool {
    let asked = || {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| answer)
    };
    asked().is_ok_and(|answer| answer.contains("\"health\":\"true\""))
}

pub struct EtcdRig(EtcdServer);

impl Rig for EtcdRig {
    async fn start() -> Self {
        let server = EtcdServer::start(&[]);
        init(&server.settings()).await;
        Self(server)
    }
    fn open(&self, call_limit: Duration) -> Arc<dyn Store> {
        Arc::new(remote(StoreSettings::Etcd(self.0.settings()), call_limit))
    }
    async fn delete(&self, key: &Key) {
        self.0
            .admin()
            .await
            .delete(format!("/putex/locks/{key}"), None)
            .await
            .expect("the key is deleted");
    }
    async fn put_too_large(&self, key: &Key) {
        super::too_large::etcd(&self.0.url(), &format!("/putex/locks/{key}")).await;
    }
    async fn put_malformed(&self, key: &Key) -> bool {
        super::malformed::etcd(&self.0.url(), &format!("/putex/locks/{key}")).await;
        true
    }
    async fn wipe(&self) {
        let all = DeleteOptions::new().with_prefix();
        self.0
            .admin()
            .await
            .delete("/putex/", Some(all))
            .await
            .expect("everything is deleted");
        init(&self.0.settings()).await;
    }
    fn hang(&self) {
        self.0.hang();
    }
    fn release(&self) {
        self.0.release();
    }
    fn die(&mut self) {
        self.0.die();
    }
    fn come_back(&mut self) {
        self.0.come_back();
    }
}

//! Real nats-servers on free loopback ports, with all their files in a temporary folder. They are killed on drop.

use std::{fs, io::Read, net::TcpStream, path::Path, time::Duration};

use putexd::store::nats::NatsSettings;
use tempfile::TempDir;

use super::process::{ServerProcess, free_port};

/// One server, running or not.
pub struct NatsServer {
    port: u16,
    process: ServerProcess,
    folder: TempDir,
}

impl NatsServer {
    /// Starts a server with JetStream, and with `extra` in its configuration, where `@` stands for its folder.
    pub fn start(extra: &str) -> Self {
        Self::start_in(TempDir::new().expect("a temporary folder"), extra)
    }

    /// As [`start`](Self::start), in a folder that has files already.
    pub fn start_in(folder: TempDir, extra: &str) -> Self {
        let port = free_port();
        let (path, config) = (folder.path().display(), folder.path().join("nats.conf"));
        let text = format!(
            "listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: \"{path}/data\" }}\n{}\n",
            extra.replace('@', &path.to_string())
        );
        fs::write(&config, text).expect("the configuration is written");
        let arguments = vec!["-c".to_owned(), config.display().to_string()];
        let process = ServerProcess::new(
            "nats-server",
            "nats-server",
            arguments,
            folder.path().join("log"),
        );
        let mut server = Self {
            port,
            process,
            folder,
        };
        server.come_back();
        server
    }

    /// Three servers that form a cluster.
    pub fn cluster() -> Vec<Self> {
        let routes: Vec<u16> = (0..3).map(|_| free_port()).collect();
        let urls: Vec<String> = routes
            .iter()
            .map(|port| format!("\"nats://127.0.0.1:{port}\""))
            .collect();
        let start = |(index, port): (usize, &u16)| {
            Self::start(&format!(
                "server_name: n{index}\ncluster {{ name: test, listen: \"127.0.0.1:{port}\", routes: [{}] }}",
                urls.join(",")
            ))
        };
        routes.iter().enumerate().map(start).collect()
    }

    /// What an administrator uses.
    pub async fn admin(&self) -> async_nats::jetstream::Context {
        async_nats::jetstream::new(
            async_nats::connect(self.url())
                .await
                .expect("the administrator connects"),
        )
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn tls_url(&self) -> String {
        format!("tls://127.0.0.1:{}", self.port)
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Settings for this server alone.
    pub fn settings(&self) -> NatsSettings {
        settings(vec![self.url()])
    }

    /// Kills the server with SIGKILL.
    pub fn die(&mut self) {
        self.process.die();
    }

    /// Starts the server again on the same port with the same data, and waits until it answers.
    pub fn come_back(&mut self) {
        self.process.launch();
        self.process.wait_until(|| greets(self.port));
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

/// Settings without credentials, for the bucket `locks`.
pub fn settings(servers: Vec<String>) -> NatsSettings {
    NatsSettings {
        servers,
        bucket: "locks".to_owned(),
        replicas: 1,
        ..NatsSettings::default()
    }
}

/// Whether the server greets with INFO, as one does that is ready.
fn greets(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else {
        return false;
    };
    let mut greeting = [0; 4];
    let greeted = stream
        .set_read_timeout(Some(Duration::from_secs(1)))
        .and_then(|()| stream.read_exact(&mut greeting));
    greeted.is_ok() && &greeting == b"INFO"
}

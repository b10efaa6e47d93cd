//! How a store is reached, as the configuration says it and the store takes it: the words that both share, so that
//! neither imports the other.

use std::path::PathBuf;

/// `[store]` with `type = "nats"`.
#[derive(Debug, Clone, PartialEq)]
pub struct NatsSettings {
    /// `nats://host:4222` or `tls://host:4222`, at least one.
    pub servers: Vec<String>,
    /// The bucket's name.
    pub bucket: String,
    /// Replicas of a bucket that putexd or `putexctl init` creates.
    pub replicas: usize,
    /// Whether putexd may create the bucket.
    pub create_bucket: bool,
    /// How to log in.
    pub credentials: NatsCredentials,
    /// TLS beyond what `tls://` asks for.
    pub tls: NatsTls,
}

/// How to log in to NATS. Secrets are in files, never in the configuration itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum NatsCredentials {
    /// No credentials.
    #[default]
    None,
    /// A `.creds` file.
    Creds(PathBuf),
    /// A file with an nkey seed.
    NkeySeed(PathBuf),
    /// A user, and a file with the password.
    UserPassword {
        /// The user's name.
        user: String,
        /// The file; a newline at its end is not part of the password.
        password_file: PathBuf,
    },
}

/// TLS to the NATS servers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NatsTls {
    /// Refuse to talk without TLS.
    pub required: bool,
    /// Roots instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Client certificate and key.
    pub client: Option<(PathBuf, PathBuf)>,
}

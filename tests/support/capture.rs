//! A relay that keeps every byte that goes over the network, and the forms that a secret may have in these bytes.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex, PoisonError},
};

use data_encoding::{BASE64, HEXLOWER};
use putexd::{config::load_keeping, store::StoreSettings};
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::certificates::certificate;

/// A password that is long enough never to appear in other bytes by chance.
pub const PASSWORD: &str = "correct horse battery";

/// A relay in front of a server on this machine. It ends with the test's runtime.
pub struct Capture {
    pub port: u16,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Capture {
    pub async fn before(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a loopback port");
        let port = listener.local_addr().expect("the port's address").port();
        let bytes = Arc::<Mutex<Vec<u8>>>::default();
        let kept = Arc::clone(&bytes);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(upstream) = TcpStream::connect(("127.0.0.1", server)).await else {
                    continue;
                };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = upstream.into_split();
                tokio::spawn(relay(Arc::clone(&kept), from_client, to_server));
                tokio::spawn(relay(Arc::clone(&kept), from_server, to_client));
            }
        });
        Self { port, bytes }
    }

    /// The forms of `secrets` that went in either direction. Panics if no byte went at all.
    pub fn seen(&self, secrets: &[&str]) -> Vec<String> {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(!bytes.is_empty(), "nobody was connected");
        let forms = secrets.iter().flat_map(|secret| forms(secret));
        forms
            .filter(|form| {
                bytes
                    .windows(form.len())
                    .any(|window| window == form.as_bytes())
            })
            .collect()
    }
}

/// Passes one direction on, and keeps it. Both directions go into one buffer, but no secret is so long that it comes in
/// two pieces with the other direction's bytes in between.
async fn relay(
    kept: Arc<Mutex<Vec<u8>>>,
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        kept.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend_from_slice(&buffer[..length]);
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
    // Tells the other end that the connection is closed.
    let _ = to.shutdown().await;
}

/// The forms of a text: as it is, in base64 at each of three offsets, in hexadecimal digits, and its MD5.
fn forms(secret: &str) -> Vec<String> {
    let bytes = secret.as_bytes();
    let base64 = (0..3_usize).flat_map(|before| {
        let text = BASE64.encode(&[&vec![0; before], bytes].concat());
        // Only the digits that depend on the secret alone.
        let own = text[(before * 4).div_ceil(3)..(before + bytes.len()) * 4 / 3].to_owned();
        [own.clone(), own.replace('+', "-").replace('/', "_")]
    });
    let hexadecimal = HEXLOWER.encode(bytes);
    [
        secret.to_owned(),
        hexadecimal.to_uppercase(),
        hexadecimal,
        md5(secret),
    ]
    .into_iter()
    .chain(base64)
    .collect()
}

fn md5(text: &str) -> String {
    let output = Command::new("openssl")
        .args(["dgst", "-md5", "-r", "/dev/stdin"])
        .stdin(piped(text))
        .output();
    let output = output.expect("openssl runs: install the Debian package openssl");
    let digits = String::from_utf8_lossy(&output.stdout)
        .chars()
        .take(32)
        .collect::<String>();
    assert!(digits.len() == 32, "{output:?}");
    digits
}

/// A file with `text`, to be used as standard input.
fn piped(text: &str) -> fs::File {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), text).expect("the file is written");
    fs::File::open(file.path()).expect("it is there")
}

/// The settings that putexd reads from this `[store]` section. `@` in it stands for `folder`, which has the files that
/// it names.
pub fn configured(folder: &Path, store: &str) -> StoreSettings {
    let root = TempDir::new().expect("a temporary folder");
    // Files are looked for below the root first, and then opened by their full paths, so both must lead to the same
    // file.
    let top = folder.components().nth(1).expect("a path from the root");
    symlink(Path::new("/").join(top), root.path().join(top)).expect("a link");
    fs::create_dir_all(root.path().join("etc/putex")).expect("a folder");
    let text = format!(
        "node = \"h1\"\n[store]\n{}\n",
        store.replace('@', &folder.display().to_string())
    );
    fs::write(root.path().join("etc/putex/putexd.toml"), text).expect("the file is written");
    let loaded = load_keeping(root.path(), "h1", None, &BTreeSet::new());
    assert!(loaded.diagnostics.is_empty(), "{loaded}");
    loaded.settings.expect("there are no errors").store
}

/// Makes a file with [`PASSWORD`] in `folder`, which only its owner may read.
pub fn password_in(folder: &Path) {
    let path = folder.join("password");
    fs::write(&path, format!("{PASSWORD}\n")).expect("the file is written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
}

/// Runs the test `name` again in another process, where the system trusts a certificate authority, and returns the folder
/// with its `public.pem` in that process. A process of its own is needed because the environment belongs to the whole
/// process.
pub fn with_public_authority(name: &str) -> Option<PathBuf> {
    const AGAIN: &str = "PUTEX_TEST_AUTHORITY";
    if let Some(folder) = std::env::var_os(AGAIN) {
        return Some(folder.into());
    }
    let folder = TempDir::new().expect("a temporary folder");
    // Servers that run as other users read the files in it.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("its mode");
    for authority in ["public", "own"] {
        certificate(
            folder.path(),
            authority,
            "basicConstraints=critical,CA:TRUE",
            None,
        );
    }
    let mut again = Command::new(std::env::current_exe().expect("this test"));
    again
        .args(["--exact", name])
        .env(AGAIN, folder.path())
        .env("SSL_CERT_FILE", folder.path().join("public.pem"));
    let ended = again.output().expect("it runs");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(
        ended.status.success() && said.contains("1 passed"),
        "{said}"
    );
    None
}

#[test]
fn a_secret_is_recognized_in_each_of_its_forms() {
    let found = |bytes: &[u8]| {
        let capture = Capture {
            port: 0,
            bytes: Arc::new(Mutex::new(bytes.to_vec())),
        };
        capture.seen(&[PASSWORD]).len()
    };
    for around in ["", "a", "ab", "abc"] {
        let text = format!("{around}{PASSWORD}{around}");
        for form in [
            text.clone(),
            BASE64.encode(text.as_bytes()),
            HEXLOWER.encode(text.as_bytes()),
        ] {
            assert!(found(form.as_bytes()) > 0, "{form}");
        }
    }
    assert!(found(md5(PASSWORD).as_bytes()) > 0);
    assert_eq!(md5("abc"), "900150983cd24fb0d6963f7d28e17f72");
    assert_eq!(found(b"correct horse Battery"), 0);
}

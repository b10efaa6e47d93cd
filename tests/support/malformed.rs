//! Content in a form in which putexd never keeps a value, put into a store by other means than putexd's own.

/// Headers of a message as some NATS client may send them. The server keeps them as they are.
const HEADERS: &[u8] = b"MAINPID=1\n\xff\x1b[2J\r\n\r\n";

/// Publishes the message as a client does that does not check what it sends. `url` is that of a server without a login.
pub async fn nats(url: &str, bucket: &str, key: &str) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let address = url
        .strip_prefix("nats://")
        .expect("the address of a server");
    let mut stream = tokio::net::TcpStream::connect(address)
        .await
        .expect("the administrator connects");
    let greeting = "CONNECT {\"verbose\":false,\"headers\":true}\r\nSUB inbox 1\r\n";
    let length = HEADERS.len();
    let put = format!("HPUB $KV.{bucket}.{key} inbox {length} {}\r\n", length + 2);
    let message = [greeting.as_bytes(), put.as_bytes(), HEADERS, b"h2\r\n"].concat();
    stream.write_all(&message).await.expect("it is sent");
    let mut said = Vec::new();
    while !String::from_utf8_lossy(&said).contains("\"seq\":") {
        let length = stream
            .read_buf(&mut said)
            .await
            .expect("the server answers");
        assert!(
            length > 0 && !said.starts_with(b"-ERR"),
            "{}",
            String::from_utf8_lossy(&said)
        );
    }
}

#[cfg(feature = "etcd")]
pub async fn etcd(endpoint: &str, key: &str) {
    let mut admin = etcd_client::Client::connect([endpoint], None)
        .await
        .expect("the administrator connects");
    admin
        .put(key, b"{\"body\": MAINPID=1\n\xff\x1b[2J", None)
        .await
        .expect("the server takes it");
}

/// The SQL statement for an administrator's session.
#[cfg(feature = "postgres")]
pub fn postgres(table: &str, key: &str) -> String {
    let fields = r#"{"state": "active", "lease-ms": 3000, "\u001b[2J"#;
    format!("UPDATE {table} SET fields = '{fields}', revision = revision + 1 WHERE name = '{key}'")
}

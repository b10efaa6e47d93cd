//! Values that are larger than putexd accepts, put into a store by other means than putexd's own. Each is as large as the
//! store accepts, except for PostgreSQL, where that would take too long.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Puts the value over the JetStream API. An administrator has to lift the limit of putexd's bucket first.
pub async fn nats(url: &str, bucket: &str, key: &str) {
    let client = async_nats::connect(url)
        .await
        .expect("the administrator connects");
    let largest = client.server_info().max_payload;
    let jetstream = async_nats::jetstream::new(client);
    let mut config = jetstream
        .get_stream(format!("KV_{bucket}"))
        .await
        .expect("the bucket")
        .cached_info()
        .config
        .clone();
    assert!(
        (1..largest).contains(&usize::try_from(config.max_message_size).expect("there is a limit"))
    );
    config.max_message_size = -1;
    jetstream
        .update_stream(config)
        .await
        .expect("the limit is lifted");
    let put = jetstream
        .publish(format!("$KV.{bucket}.{key}"), vec![b'x'; largest].into())
        .await
        .expect("it is sent");
    put.await.expect("the server takes it");
}

#[cfg(feature = "etcd")]
pub async fn etcd(endpoint: &str, key: &str) {
    let mut admin = etcd_client::Client::connect([endpoint], None)
        .await
        .expect("the administrator connects");
    // The server's limit applies to the whole request.
    let largest = 1_500 * 1024;
    admin
        .put(key, vec![b'x'; largest], None)
        .await
        .expect("the server takes it");
}

/// The SQL statement for an administrator's session.
#[cfg(feature = "postgres")]
pub fn postgres(table: &str, key: &str) -> String {
    let bytes = 128 << 20;
    format!(
        "UPDATE {table} SET body = repeat('x', {bytes}), revision = revision + 1 WHERE name = '{key}'"
    )
}

/// The file with the value of the latest revision, below the folder `lock` of a lock.
pub fn file(lock: &Path) -> PathBuf {
    let latest = |folder: &Path, prefix: &str| {
        let entries = fs::read_dir(folder)
            .expect("a folder")
            .map(|entry| entry.expect("an entry").path());
        let named = |path: &PathBuf| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(prefix))
        };
        entries.filter(named).max().expect("there is one")
    };
    latest(&latest(lock, "r-"), "n-").join("value")
}

//! What the process with the store's client sends to putexd.

use std::time::Duration;

use putexd::{
    store::{Store as _, StoreSettings, directory::DirectorySettings, remote::RemoteStore},
    types::{Key, is_printable},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};

use super::record;

/// How long calls wait for answers that do not come.
const LIMIT: Duration = Duration::from_millis(20);

/// Frames, each behind a byte with its length.
pub fn process(input: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let ours = std::sync::Mutex::new(Some(ours));
        let settings = StoreSettings::Directory(DirectorySettings::default());
        let store = RemoteStore::new(settings, Duration::from_secs(60), move |_| {
            let ours = ours.lock().expect("nobody panics").take();
            async { ours.ok_or_else(|| std::io::Error::other("there is one process")) }
        });
        tokio::spawn(answer(theirs, input.to_vec()));
        // The stream is there after the first turn.
        tokio::task::yield_now().await;
        let key = Key::new("db").expect("a key");
        let read = tokio::time::timeout(LIMIT, store.read(&key, None));
        let examine = tokio::time::timeout(LIMIT, store.examine());
        let (read, examination) = tokio::join!(read, examine);
        if let Ok(Ok(snapshot)) = read
            && let Some(value) = snapshot.entry.and_then(|entry| entry.value)
        {
            assert!(
                !value.is_unsealed(),
                "a mark of putexd's own comes from outside"
            );
            record::check(&value);
        }
        let found = examination.ok().and_then(Result::ok).unwrap_or_default();
        let texts = [found.what]
            .into_iter()
            .chain(found.warnings)
            .chain(found.fault);
        for text in texts {
            assert!(text.chars().all(is_printable), "{text:?} would be shown");
        }
    });
}

/// Answers as soon as both calls are there.
async fn answer(mut stream: UnixStream, input: Vec<u8>) {
    for _ in 0..3 {
        let Ok(length) = stream.read_u32().await else {
            return;
        };
        let mut frame = vec![0; length as usize];
        if stream.read_exact(&mut frame).await.is_err() {
            return;
        }
    }
    let mut rest = &input[..];
    while let Some((length, behind)) = rest.split_first() {
        let (frame, after) = behind.split_at(behind.len().min(usize::from(*length)));
        let head = u32::try_from(frame.len()).unwrap_or_default().to_be_bytes();
        if stream
            .write_all(&[&head[..], frame].concat())
            .await
            .is_err()
        {
            return;
        }
        rest = after;
    }
}

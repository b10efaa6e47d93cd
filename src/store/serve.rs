//! The other end of [`remote`](super::remote): the client of the store's servers, in a process of its own.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{fs, io};

use futures_util::StreamExt as _;
use tokio::sync::oneshot;

use super::exchange::{Answer, Call, Reply, Request};
use super::files::Files;
use super::{Administer, Link, StoreError, StoreSettings};
use crate::frames::{Frames, Hello, Sender};
use crate::host::clock;
use crate::task::{OwnedTask, lock};

/// How many keys are in a page of a listing. A page with the longest names is within the limit of a frame.
const PAGE_KEYS: usize = 64;

/// A younger process sees the resolver as it is.
const RESOLVER_AGE: Duration = Duration::from_secs(5);

/// How a store is made of its settings, its call limit and the means to read its files.
pub type Opening = fn(&StoreSettings, Duration, Files) -> Arc<dyn Administer>;

/// Carries out what comes over this stream, until it ends, on the store that `opening` makes.
pub async fn serve(stream: Frames<(), Hello>, opening: Opening) -> io::Result<()> {
    let mut frames: Frames<Reply, Request> = stream.of();
    let Some(Request::Open { settings, call_limit }) = frames.next().await? else { return Ok(()) };
    let sender = frames.sender.clone();
    let asked = Asked::default();
    let store = opening(&settings, call_limit, asked.files(&sender));
    let following = follow(Arc::clone(&store), sender.clone());
    tokio::pin!(following);
    let mut watches = HashMap::new();
    loop {
        let request = tokio::select! {
            request = frames.next() => request?,
            why = &mut following => return Err(io::Error::other(why)),
        };
        let Some(request) = request else { return Ok(()) };
        match request {
            // A caller that has given up hears nothing.
            Request::Call { latest, .. } if clock::now().boot > latest => {}
            Request::Call { call: Call::Watch(number), number: of_call, .. } => {
                let watching = watch(Arc::clone(&store), sender.clone(), of_call, number);
                watches.insert(number, OwnedTask::spawn(watching));
            }
            Request::Call { number, call, .. } => {
                let (store, sender) = (Arc::clone(&store), sender.clone());
                tokio::spawn(async move {
                    let answer = answer(&*store, call, number, &sender).await;
                    // Where putexd has gone, the process ends.
                    let _ = sender.send(&Reply::Answer { number, answer }).await;
                });
            }
            Request::Unwatch(number) => drop(watches.remove(&number)),
            Request::File { path, text } => asked.answered(&path, &text),
            Request::Ping => drop(sender.send(&Reply::Pong).await),
            Request::Open { .. } => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

async fn answer(store: &dyn Administer, call: Call, number: u64, sender: &Sender<Reply>) -> Answer {
    match call {
        Call::Read { key, before } => Answer::Read(store.read(&key, before).await),
        Call::CompareAndSet { key, attempt } => Answer::Written(store.compare_and_set(&key, &attempt).await),
        Call::Watch(_) => Answer::Watching(Ok(())),
        Call::Init => Answer::Made(store.init().await),
        Call::Examine => Answer::Examined(store.examine().await),
        Call::List => Answer::Listed(list(store, number, sender).await),
        Call::Mend(key) => Answer::Mended(store.mend(&key).await),
    }
}

async fn list(store: &dyn Administer, number: u64, sender: &Sender<Reply>) -> Result<bool, StoreError> {
    let listing = store.list().await?;
    for keys in listing.keys.chunks(PAGE_KEYS) {
        let page = Reply::Page { number, keys: keys.to_vec() };
        sender.send(&page).await.map_err(|error| StoreError::Unreachable(error.to_string()))?;
    }
    Ok(listing.is_cut)
}

async fn watch(store: Arc<dyn Administer>, sender: Sender<Reply>, of_call: u64, number: u64) {
    let (watching, mut hints) = match store.watch().await {
        Ok(hints) => (Ok(()), Some(hints)),
        Err(error) => (Err(error), None),
    };
    let answer = Reply::Answer { number: of_call, answer: Answer::Watching(watching) };
    if sender.send(&answer).await.is_err() {
        return;
    }
    let Some(hints) = &mut hints else { return };
    while let Some(key) = hints.next().await {
        if sender.send(&Reply::Hint { number, key }).await.is_err() {
            return;
        }
    }
    let _ = sender.send(&Reply::HintsEnd(number)).await;
}

/// Tells of each change of the connection, and of forged answers before the end of the connection that they cause. It ends, with the
/// reason, when another process would do better.
async fn follow(store: Arc<dyn Administer>, sender: Sender<Reply>) -> &'static str {
    let (mut forgeries, mut link, began) = (store.forgeries().changes(), store.link(), Instant::now());
    loop {
        let reply = tokio::select! {
            biased;
            Ok(()) = forgeries.changed() => Reply::Forged,
            Ok(()) = link.changed() => Reply::Link(link.borrow_and_update().clone()),
            else => return "the store is closed",
        };
        let is_down = matches!(reply, Reply::Link(Link::Down(_)));
        if sender.send(&reply).await.is_err() {
            return "putexd has gone";
        }
        if is_down && began.elapsed() >= RESOLVER_AGE && is_out_of_reach(Path::new("/etc/resolv.conf")) {
            return "what /etc/resolv.conf leads to is not what it was: the next process looks names up by it";
        }
    }
}

/// Whether a link leads out of what this process can see, or into a folder that was removed. What is below /run was mounted for it
/// when it was started, and a name service that was set up or restarted since has a folder of its own.
fn is_out_of_reach(link: &Path) -> bool {
    let folder = fs::canonicalize(link).and_then(|file| fs::metadata(file.parent().unwrap_or(Path::new("/"))));
    fs::symlink_metadata(link).is_ok_and(|link| link.is_symlink()) && !folder.is_ok_and(|folder| folder.nlink() > 0)
}

/// The text of a file, or why it cannot be read.
type Text = Result<String, String>;

/// The files whose text putexd is asked for, and who waits for it.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<HashMap<PathBuf, Vec<oneshot::Sender<Text>>>>>);

impl Asked {
    fn files(&self, sender: &Sender<Reply>) -> Files {
        let (asked, sender) = (self.clone(), sender.clone());
        Files::through(Arc::new(move |path| {
            let (asked, sender) = (asked.clone(), sender.clone());
            Box::pin(async move {
                let gone = || "putexd has gone".to_owned();
                let (tell, told) = oneshot::channel();
                let is_first = {
                    let mut asked = lock(&asked.0);
                    let waiting = asked.entry(path.clone()).or_default();
                    waiting.push(tell);
                    waiting.len() == 1
                };
                if is_first {
                    sender.send(&Reply::File(path)).await.map_err(|_| gone())?;
                }
                told.await.unwrap_or_else(|_| Err(gone()))
            })
        }))
    }

    fn answered(&self, path: &PathBuf, text: &Text) {
        for waiting in lock(&self.0).remove(path).unwrap_or_default() {
            // Whoever has asked may have given up.
            let _ = waiting.send(text.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_is_out_of_reach_when_its_folder_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let (link, inner) = (folder.path().join("resolv.conf"), folder.path().join("run"));
        assert!(!is_out_of_reach(&link), "there is none, and no process would have one");
        fs::write(&link, "nameserver 192.0.2.1\n").expect("a file");
        assert!(!is_out_of_reach(&link), "a file is where it is");
        fs::remove_file(&link).expect("it is there");
        symlink(inner.join("resolv.conf"), &link).expect("a link");
        assert!(is_out_of_reach(&link));
        fs::create_dir(&inner).expect("a folder");
        fs::write(inner.join("resolv.conf"), "nameserver 192.0.2.1\n").expect("a file");
        assert!(!is_out_of_reach(&link));
    }
}

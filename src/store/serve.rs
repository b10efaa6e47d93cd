//! The other end of [`remote`](super::remote): the client of the store's servers, in a process of its own.

use std::{
    io,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::StreamExt as _;
use tokio::net::UnixStream;

use super::{
    Store, StoreError, StoreSettings,
    exchange::{Call, StoreEvent, StoreRequest},
    files::Files,
};
use crate::{
    frames::{Frames, Peer, ReplyTo},
    host::clock,
    task::OwnedTask,
};

const RESOLVER: &str = "/etc/resolv.conf";

/// A younger process sees the resolver as it is.
const RESOLVER_AGE: Duration = Duration::from_secs(5);

/// How a store is made of its settings, its call limit and the means to read its files.
pub type Opening = fn(&StoreSettings, Duration, Files) -> Arc<dyn Store>;

/// Carries out what comes over this stream, until it ends, on the store that `opening` makes.
pub async fn serve(stream: UnixStream, opening: Opening) -> io::Result<()> {
    let mut frames = Frames::new(stream);
    let Some((
        StoreRequest::Open {
            settings,
            call_limit,
        },
        _,
    )) = frames.next().await?
    else {
        return Ok(());
    };
    let peer = frames.peer.clone();
    let store = opening(&settings, call_limit, Files::through(peer.clone()));
    let following = follow(Arc::clone(&store), peer.clone());
    tokio::pin!(following);
    let mut _watch = None;
    loop {
        let incoming = tokio::select! {
            incoming = frames.next() => incoming?,
            why = &mut following => return Err(io::Error::other(why)),
        };
        let Some((request, reply_to)) = incoming else {
            return Ok(());
        };
        let store = Arc::clone(&store);
        match request {
            // A caller that has given up hears nothing.
            StoreRequest::Call { latest, .. } if clock::now().boot > latest => {}
            StoreRequest::Call { call, .. } => {
                tokio::spawn(async move {
                    // Where putexd has gone, the process ends.
                    let _ = carry_out(&*store, call, &reply_to).await;
                });
            }
            StoreRequest::Watch => {
                let watching = give_hints(store, peer.clone(), reply_to);
                _watch = Some(OwnedTask::spawn(watching));
            }
            StoreRequest::Open { .. } => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

async fn carry_out(store: &dyn Store, call: Call, reply_to: &ReplyTo) -> io::Result<()> {
    match call {
        Call::Read { key, before } => reply_to.answer(&store.read(&key, before).await).await,
        Call::CompareAndSet { key, attempt } => {
            let outcome = store.compare_and_set(&key, &attempt).await;
            reply_to.answer(&Ok::<_, StoreError>(outcome)).await
        }
        Call::Init => reply_to.answer(&store.init().await).await,
        Call::Examine => reply_to.answer(&store.examine().await).await,
    }
}

/// Answers the call for a watch, and sends its hints.
async fn give_hints(store: Arc<dyn Store>, peer: Peer, reply_to: ReplyTo) {
    let begun = store.watch().await;
    // Where putexd has gone, the process ends.
    let _ = reply_to.answer(&begun.as_ref().map(|_| ())).await;
    let Ok(mut hints) = begun else { return };
    while let Some(key) = hints.next().await {
        let _ = peer.tell(&StoreEvent::Hint(Some(key))).await;
    }
    let _ = peer.tell(&StoreEvent::Hint(None)).await;
}

/// Tells of each change of the connection. It ends, with the reason, when another process would do better.
async fn follow(store: Arc<dyn Store>, putexd: Peer) -> &'static str {
    let (mut changes, began) = (store.link(), Instant::now());
    while changes.changed().await.is_ok() {
        let link = changes.borrow_and_update().clone();
        let is_up = link.is_up();
        if putexd.tell(&StoreEvent::Link(link)).await.is_err() {
            return "putexd has gone";
        }
        // What is below /run was mounted for this process when it was started, and a name service that was set up or restarted since has
        // a folder of its own.
        if !is_up && began.elapsed() >= RESOLVER_AGE && leads_nowhere(Path::new(RESOLVER)) {
            return "/etc/resolv.conf leads to another place now: the next process looks names up by it";
        }
    }
    "the store is closed"
}

fn leads_nowhere(link: &Path) -> bool {
    link.is_symlink() && !link.exists()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_leads_nowhere_when_its_folder_is_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let (link, inner) = (folder.path().join("resolv.conf"), folder.path().join("run"));
        assert!(
            !leads_nowhere(&link),
            "there is none, and no process would have one"
        );
        fs::write(&link, "nameserver 192.0.2.1\n").expect("a file");
        assert!(!leads_nowhere(&link), "a file is where it is");
        fs::remove_file(&link).expect("it is there");
        symlink(inner.join("resolv.conf"), &link).expect("a link");
        assert!(leads_nowhere(&link));
        fs::create_dir(&inner).expect("a folder");
        fs::write(inner.join("resolv.conf"), "nameserver 192.0.2.1\n").expect("a file");
        assert!(!leads_nowhere(&link));
    }
}

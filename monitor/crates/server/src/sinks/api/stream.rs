//! Feeds the body of a stream: missed events first, then events as they occur.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc;

use super::memory::{Memory, Next, Subscription};

/// Missed lines in one chunk.
const BATCH: usize = 16;
/// Bytes after which no further line is added to a chunk.
const CHUNK: usize = 16 * 1024;

/// Sends missed lines, then new ones, as fast as the reader takes them.
pub(super) async fn feed(
    missed: Vec<Arc<str>>,
    memory: Arc<Memory>,
    subscription: Subscription,
    chunks: mpsc::Sender<Bytes>,
) {
    let Subscription { reader, mut changed, .. } = subscription;
    for lines in missed.chunks(BATCH) {
        if chunks.send(chunk(lines)).await.is_err() {
            return;
        }
    }
    drop(missed);
    loop {
        match memory.next(&reader, CHUNK) {
            // Its filter rejected many in a row: other readers get their turn.
            Next::Lines(lines) if lines.is_empty() => tokio::task::yield_now().await,
            Next::Lines(lines) => {
                if chunks.send(chunk(&lines)).await.is_err() {
                    return;
                }
            }
            Next::Wait => {
                let changed = tokio::select! {
                    changed = changed.changed() => changed.is_ok(),
                    () = chunks.closed() => false,
                };
                if !changed {
                    return;
                }
            }
            Next::End => return,
        }
    }
}

fn chunk(lines: &[Arc<str>]) -> Bytes {
    let mut chunk = BytesMut::with_capacity(lines.iter().map(|line| line.len() + 1).sum());
    for line in lines {
        chunk.extend_from_slice(line.as_bytes());
        chunk.extend_from_slice(b"\n");
    }
    chunk.freeze()
}

//! The body of an answer: a whole, or events as they come.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::{Notify, mpsc};

use super::memory::{Memory, Next, Subscription};

/// Missed lines that are sent in one go.
const BATCH: usize = 16;
/// Bytes after which no further line is added to a chunk.
const CHUNK: usize = 16 * 1024;

/// What connection and body know of each other.
#[derive(Debug, Default)]
pub(super) struct Link {
    slow: Notify,
    stream: AtomicBool,
}

impl Link {
    /// The reader fell behind: the connection is to end.
    pub(super) fn cut(&self) {
        self.slow.notify_one();
    }

    /// Ends once [`Self::cut`] was called.
    pub(super) async fn too_slow(&self) {
        self.slow.notified().await;
    }

    /// The answer is a stream, which has no time limit.
    pub(super) fn set_stream(&self) {
        self.stream.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stream(&self) -> bool {
        self.stream.load(Ordering::Relaxed)
    }
}

/// The body of an answer.
#[derive(Debug)]
pub(super) enum Body {
    /// All there is.
    Whole(Option<Bytes>),
    /// Chunks of lines, until [`feed`] ends.
    Stream(mpsc::Receiver<Bytes>),
}

/// A body for lines, and the end that they are put into.
pub(super) fn stream() -> (mpsc::Sender<Bytes>, Body) {
    // One that is sent, one that waits: more would only be memory.
    let (chunks, body) = mpsc::channel(1);
    (chunks, Body::Stream(body))
}

/// Hands over what was missed, then what comes, as fast as the reader takes it.
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
            // It wants nothing of many: others go on meanwhile.
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

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let chunk = match self.get_mut() {
            Self::Whole(whole) => whole.take(),
            Self::Stream(chunks) => ready!(chunks.poll_recv(cx)),
        };
        Poll::Ready(chunk.map(|chunk| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(whole) => SizeHint::with_exact(whole.as_ref().map_or(0, |whole| whole.len() as u64)),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}

//! The body of a response: complete, or chunks as they become available.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::mpsc;

/// The body of a response.
#[derive(Debug)]
pub enum Body {
    /// Complete; `None` once it was sent.
    Whole(Option<Bytes>),
    /// Chunks, until the sender is dropped.
    Stream(mpsc::Receiver<Bytes>),
}

pub fn whole(bytes: impl Into<Bytes>) -> Body {
    Body::Whole(Some(bytes.into()))
}

/// A body of chunks, and the sender of the chunks.
pub fn stream_body() -> (mpsc::Sender<Bytes>, Body) {
    // One that is being sent, one that waits: more would only take memory.
    let (chunks, body) = mpsc::channel(1);
    (chunks, Body::Stream(body))
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

//! A connection whose writes time out when the client does not read.
//!
//! Owns the time that a write may stall.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// A client that does not read a plain answer is disconnected after this, to make room for others.
pub(crate) const PLAIN: Duration = Duration::from_secs(30);
/// A follower of a log may pause reading; upstream's write timeout.
pub(in crate::serve) const STREAM: Duration = Duration::from_secs(4 * 60 * 60);

/// How long a write may stall. The handler of a request may change it. hyper requires that what it serves is
/// `Send`.
#[derive(Clone)]
pub(crate) struct Patience(Arc<AtomicU64>);

impl Default for Patience {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(PLAIN.as_secs())))
    }
}

impl Patience {
    /// Takes effect for the next write, in whole seconds.
    pub(crate) fn set(&self, limit: Duration) {
        self.0.store(limit.as_secs(), Ordering::Relaxed);
    }
}

/// A stream that fails when a write stalls for too long.
pub(in crate::serve) struct Patient<S> {
    inner: S,
    patience: Patience,
    /// Armed while a write waits.
    waits: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    pub(in crate::serve) fn new(inner: S, patience: Patience) -> Self {
        Self { inner, patience, waits: None }
    }

    fn check_timeout<T>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.waits = None;
            return polled;
        }
        let limit = Duration::from_secs(self.patience.0.load(Ordering::Relaxed));
        let waits =
            self.waits.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + limit)));
        match waits.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client does not read the response",
            ))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.inner).poll_write(context, bytes);
        this.check_timeout(context, polled)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.inner).poll_write_vectored(context, bytes);
        this.check_timeout(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.inner).poll_flush(context);
        this.check_timeout(context, polled)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.inner).poll_shutdown(context);
        this.check_timeout(context, polled)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn stalled_reader_times_out_and_a_slow_one_does_not() {
        let patience = Patience::default();
        let (near, mut far) = tokio::io::duplex(8);
        let mut near = Patient::new(near, patience.clone());
        let slow = async {
            for _ in 0..10 {
                tokio::time::sleep(PLAIN / 2).await;
                far.read_exact(&mut [0; 8]).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(near.write_all(&[7; 80]), slow);
        written.unwrap();
        let began = Instant::now();
        assert_eq!(near.write_all(&[7; 80]).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(began.elapsed(), PLAIN);
        patience.set(STREAM);
        let (near, _far) = tokio::io::duplex(8);
        let mut near = Patient::new(near, patience);
        let began = Instant::now();
        assert!(near.write_all(&[7; 80]).await.is_err());
        assert_eq!(began.elapsed(), STREAM);
    }
}

//! What streams are coupled with: programs, connections, and what they are called.
//!
//! Owns shapes and the time limits that both protocols share.

use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

/// A client that asked for streams opens them within this, upstream's default.
pub const CREATION_TIMEOUT: Duration = Duration::from_secs(30);
/// A connection over which nothing goes is closed after this, upstream's default.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(4 * 60 * 60);
/// A port of a WebSocket takes two of its channels; 255 has another meaning.
pub const MAX_PORTS: usize = 127;

/// What will be there.
pub type Pending<T> = Pin<Box<dyn Future<Output = T>>>;
/// Where a program writes.
pub type OutputReader = Box<dyn AsyncRead + Unpin>;
/// Where a program reads.
pub type Writer = Box<dyn AsyncWrite + Unpin>;

/// Both directions of a connection.
pub trait Duplex: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Duplex for T {}

/// The same, of a client: what hyper hands over may go to another thread.
pub trait Wire: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Wire for T {}

/// Connects to a port of a pod; the error is for people.
pub type Dialer = Rc<dyn Fn(u16) -> Pending<Result<Box<dyn Duplex>, String>>>;

/// Of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalSize {
    pub width: u16,
    pub height: u16,
}

/// A program that runs and its streams, those that were asked for. Dropped when its client is gone.
pub struct Session {
    /// What it reads; dropped when the client closes its side.
    pub stdin: Option<Writer>,
    /// What it writes; with a terminal, all of it.
    pub stdout: Option<OutputReader>,
    /// What it writes as errors.
    pub stderr: Option<OutputReader>,
    /// Changes the size of its terminal.
    pub resize: Option<Box<dyn Fn(TerminalSize)>>,
    /// Its exit code; 0 when an attach is over. The error is for people.
    pub exit: Pending<Result<i32, String>>,
}

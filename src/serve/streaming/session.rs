//! The local ends of streams: programs, connections and their types.
//!
//! Owns types and the timeouts that both protocols share.

use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

/// A client has to open the streams it asked for within this time, upstream's default.
pub const CREATION_TIMEOUT: Duration = Duration::from_secs(30);
/// A connection without traffic is closed after this time, upstream's default.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(4 * 60 * 60);
/// A port takes two of WebSocket's channels; channel 255 has another meaning.
pub const MAX_PORTS: usize = 127;

pub type Pending<T> = Pin<Box<dyn Future<Output = T>>>;
pub type OutputReader = Box<dyn AsyncRead + Unpin>;
/// A program's input.
pub type Writer = Box<dyn AsyncWrite + Unpin>;

/// Both directions of a connection.
pub trait Duplex: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Duplex for T {}

/// A client's connection: hyper may hand it over to another thread.
pub trait Wire: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Wire for T {}

/// Connects to a port of a pod. The error is a message for the user.
pub type Dialer = Rc<dyn Fn(u16) -> Pending<Result<Box<dyn Duplex>, String>>>;

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalSize {
    pub width: u16,
    pub height: u16,
}

/// A running program and those of its streams that were requested. Dropped when its client disconnects.
pub struct Session {
    /// Its standard input; dropped when the client closes its side.
    pub stdin: Option<Writer>,
    /// Its standard output; with a terminal, all of its output.
    pub stdout: Option<OutputReader>,
    /// Its standard error.
    pub stderr: Option<OutputReader>,
    pub resize: Option<Box<dyn Fn(TerminalSize)>>,
    /// Its exit code; 0 when an attach ends. The error is a message for the user.
    pub exit: Pending<Result<i32, String>>,
}

//! The process's runtime: the single-threaded tokio runtime, named tasks, the blocking pool, signals, systemd
//! notification.
//!
//! Owns how things run. Timers and sleeps use tokio, so that a simulation can pause time.

pub mod changes;
pub mod child;
pub mod connections;
pub mod live;
pub mod notify;
pub mod shutdown;
pub mod turns;

use std::any::Any;
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::task::{JoinHandle, LocalSet};
use tokio::time::{Instant, sleep, sleep_until};

use crate::platform::sys::memory;

/// Threads of the blocking pool: file work of pods (directories, hosts files, volumes) is short; two keep one
/// slow disk operation from holding up everything else.
const BLOCKING_THREADS: usize = 2;
/// An idle blocking thread ends so that its stack does not count against the memory budget.
const BLOCKING_KEEP_ALIVE: Duration = Duration::from_secs(2);
/// A slower blocking job is logged.
const SLOW_JOB: Duration = Duration::from_secs(1);

/// Runs `main` to its end on a current-thread runtime, with local tasks available.
pub fn run<F: Future>(main: F) -> std::io::Result<F::Output> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(BLOCKING_KEEP_ALIVE)
        .thread_name("blocking")
        .build()?;
    let tasks = LocalSet::new();
    let main: Pin<Box<dyn Future<Output = F::Output> + '_>> = Box::pin(main);
    let output = tasks.block_on(&runtime, main);
    // A blocking job that hangs (a dead NFS server) must not keep the process from ending.
    runtime.shutdown_background();
    Ok(output)
}

/// Spawns a task of this thread. The name is logged when it panics; the caller owns the handle. The task is boxed:
/// tokio's own part of a task, some 2 kB, is compiled once for each type of future otherwise.
pub fn spawn<F>(name: &'static str, task: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    log::trace!(task = name; "Started task");
    tokio::task::spawn_local(Box::pin(task) as Pin<Box<dyn Future<Output = F::Output>>>)
}

thread_local! {
    /// Set by [`run_jobs_inline`] only.
    static INLINE: Cell<bool> = const { Cell::new(false) };
}

/// From now on, blocking jobs of this thread run on it. For simulations only: how long a job of the pool
/// takes differs from run to run, and the same seed must give the same run.
pub fn run_jobs_inline() {
    INLINE.set(true);
}

/// True when blocking jobs run in this thread, and so must all work that would wait for another thread.
#[must_use]
pub(crate) fn jobs_run_inline() -> bool {
    INLINE.get()
}

/// The times of a periodic check. While its task waits for the next one, the program text that a check has
/// touched is released: the kernel maps sixteen pages for each one touched, so that a rescan of a directory is
/// two megabytes otherwise.
#[derive(Debug)]
pub(crate) struct Periodic {
    period: Duration,
    /// `None` from the time that a check is due until the task waits again.
    next: Option<Instant>,
}

impl Periodic {
    /// The first check is due after one period.
    pub(crate) fn every(period: Duration) -> Self {
        Self { period, next: Some(Instant::now() + period) }
    }

    /// Waits until a check is due. The period begins when the previous check is done and this is called.
    /// Dropping it is safe: the time is kept.
    pub(crate) async fn due(&mut self) {
        if self.next.is_none() {
            forget_text();
        }
        sleep_until(*self.next.get_or_insert_with(|| Instant::now() + self.period)).await;
        self.next = None;
    }
}

/// Waits for the next turn of something that comes every few seconds, without the program text that the last one touched.
pub(crate) async fn rest(time: Duration) {
    forget_text();
    sleep(time).await;
}

fn forget_text() {
    if !jobs_run_inline() {
        memory::forget_pages();
    }
}

/// Runs blocking work on the small pool and names it when it is slow.
///
/// A panic in the job is a panic here.
pub(crate) async fn blocking<T: Send + 'static>(
    name: &'static str,
    job: impl FnOnce() -> T + Send + 'static,
) -> T {
    if INLINE.get() {
        // Lets other tasks run, as they would while the pool works.
        tokio::task::yield_now().await;
        return job();
    }
    let result = pooled(name, Box::new(|| Box::new(job()))).await;
    *result.downcast().unwrap_or_else(|_| unreachable!("the job returns this type"))
}

type JobResult = Box<dyn Any + Send>;

/// Of one type for all jobs, so that the pool's part of a job is compiled once.
async fn pooled(name: &'static str, job: Box<dyn FnOnce() -> JobResult + Send>) -> JobResult {
    let started = std::time::Instant::now();
    let result = tokio::task::spawn_blocking(job).await;
    let took = started.elapsed();
    if took > SLOW_JOB {
        log::warn!(job = name, tookMs = took.as_millis(); "Blocking job was slow");
    }
    result.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// The only function that starts the named threads of blocking components (SQLite, HTTP).
pub fn spawn_thread(
    name: &'static str,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    // 256 KiB: SQLite and TLS need well under half of it, and untouched pages cost nothing.
    std::thread::Builder::new().name(name.to_owned()).stack_size(256 * 1024).spawn(body)
}

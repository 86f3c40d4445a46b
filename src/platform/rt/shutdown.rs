//! SIGTERM and SIGINT: the first requests a shutdown (pods keep running), the second ends the process at
//! once.
//!
//! Owns the shutdown flag. Tasks wait for it through a `Shutdown`.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Becomes true once and stays so.
#[derive(Clone, Debug)]
pub struct Shutdown {
    requested: watch::Receiver<bool>,
}

#[derive(Clone, Debug)]
pub struct ShutdownTrigger {
    requested: watch::Sender<bool>,
}

#[must_use]
pub fn channel() -> (ShutdownTrigger, Shutdown) {
    let (sender, receiver) = watch::channel(false);
    (ShutdownTrigger { requested: sender }, Shutdown { requested: receiver })
}

impl ShutdownTrigger {
    pub fn request(&self) {
        self.requested.send_replace(true);
    }
}

impl Shutdown {
    /// Returns when a shutdown is requested; never if the trigger is dropped without a request.
    pub(crate) async fn requested(&self) {
        let mut asked = self.requested.clone();
        if asked.wait_for(|asked| *asked).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Turns signals into the flag; runs until the process ends.
pub(crate) fn watch_signals(trigger: ShutdownTrigger) -> std::io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        let mut asked_before = false;
        loop {
            let name = tokio::select! {
                biased;
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            };
            if asked_before {
                exit_now(name);
            }
            asked_before = true;
            log::info!(signal = name; "Shutting down");
            trigger.request();
        }
    })
}

/// Waits for the first SIGINT or SIGTERM, for commands that then clean up and end by themselves. Further ones
/// are ignored from then on: a terminal's Ctrl-C and `timeout` may send several, and cleaning up must not be
/// cut short by them.
pub(crate) fn first_signal() -> std::io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "upstream: a second signal ends the process with status 1, cleanly or not"
)]
fn exit_now(signal: &str) -> ! {
    log::error!(signal = signal; "Received second signal, exiting immediately");
    std::process::exit(1)
}

//! Pods that wait for missing devices: woken when the device paths appear.
//!
//! Owns one inotify instance and one task while a pod waits, and nothing otherwise.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use tokio::sync::Notify;

use crate::platform::logging::chain;
use crate::platform::rt;
use crate::platform::sys::inotify::{InotifyError, Interest, Watcher};
use crate::pod::inbox::Inbox;

/// Paths and the mailboxes of the pods that wait for them.
#[derive(Clone, Default)]
pub(super) struct DeviceWaits(Rc<DeviceWaitsInner>);

#[derive(Default)]
struct DeviceWaitsInner {
    waiting: RefCell<Vec<(PathBuf, Rc<Inbox>)>>,
    runs: RefCell<bool>,
    more: Notify,
}

impl DeviceWaits {
    /// Notifies the mailbox once when the path exists; immediately if it exists already.
    ///
    /// # Errors
    /// When no inotify instance is available; then the mailbox is never notified.
    pub(super) fn wait(&self, path: &Path, inbox: &Rc<Inbox>) -> Result<(), InotifyError> {
        let entry = (path.to_owned(), Rc::clone(inbox));
        let mut waiting = self.0.waiting.borrow_mut();
        let is_it = |other: &(PathBuf, Rc<Inbox>)| other.0 == entry.0 && Rc::ptr_eq(&other.1, inbox);
        if !waiting.iter().any(is_it) {
            waiting.push(entry);
        }
        if *self.0.runs.borrow() {
            self.0.more.notify_one();
            return Ok(());
        }
        let watcher = Watcher::new().inspect_err(|_| waiting.clear())?;
        *self.0.runs.borrow_mut() = true;
        rt::spawn("device waits", Rc::clone(&self.0).watch(watcher));
        Ok(())
    }
}

impl DeviceWaitsInner {
    async fn watch(self: Rc<Self>, watcher: Watcher) {
        let mut events = Vec::new();
        loop {
            // The watch is added before the check, so a path that appears in between is not missed.
            for (path, _) in &*self.waiting.borrow() {
                watch_nearest_parent(&watcher, path);
            }
            self.notify_present().await;
            if self.waiting.borrow().is_empty() {
                *self.runs.borrow_mut() = false;
                return;
            }
            events.clear();
            // Cancel safe: events stay in the kernel's queue, and a notification is kept.
            let read = tokio::select! {
                biased;
                () = self.more.notified() => Ok(()),
                read = watcher.read(&mut events) => read,
            };
            if let Err(error) = read {
                log::warn!(err:% = chain(&error); "Failed to watch for devices; waiting pods are only \
                     retried when they change");
                self.waiting.borrow_mut().clear();
            }
        }
    }

    async fn notify_present(&self) {
        // Drops mailboxes whose worker has ended: no other reference is left.
        self.waiting.borrow_mut().retain(|(_, inbox)| Rc::strong_count(inbox) > 1);
        let paths: Vec<PathBuf> = self.waiting.borrow().iter().map(|(path, _)| path.clone()).collect();
        let there = move || paths.into_iter().filter(|path| path.exists()).collect::<Vec<_>>();
        let there = rt::blocking("check devices", there).await;
        self.waiting.borrow_mut().retain(|(path, inbox)| {
            let is_there = there.contains(path);
            if is_there {
                inbox.device_appeared();
            }
            !is_there
        });
    }
}

/// Watches the deepest existing directory above the path: its next component appears there.
fn watch_nearest_parent(watcher: &Watcher, path: &Path) {
    let is_watched = |directory: &Path| watcher.watch(directory, Interest::Names).is_ok();
    if !path.ancestors().skip(1).any(is_watched) {
        log::warn!(path:% = path.display(); "Failed to watch for device; it is only checked when its pod \
             changes");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiter_is_woken_when_a_nested_path_appears() {
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                let root = std::env::temp_dir().join(format!("edge-agent-waits-{}", std::process::id()));
                let _ = std::fs::remove_dir_all(&root);
                std::fs::create_dir_all(&root).unwrap();
                let (waits, inbox, other) =
                    (DeviceWaits::default(), Rc::new(Inbox::default()), Rc::new(Inbox::default()));
                let path = root.join("serial/by-id/modem");
                waits.wait(&path, &inbox).unwrap();
                waits.wait(&root.join("never"), &other).unwrap();
                waits.wait(&path, &inbox).unwrap();
                assert_eq!(waits.0.waiting.borrow().len(), 2, "once is enough");
                tokio::task::yield_now().await;
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                tokio::task::yield_now().await;
                // A link that leads nowhere is no device yet.
                std::os::unix::fs::symlink(root.join("ttyUSB0"), &path).unwrap();
                std::fs::write(root.join("ttyUSB0"), "").unwrap();
                inbox.arrived().await;
                assert!(inbox.take().device);
                drop(other);
                std::fs::write(root.join("anything"), "").unwrap();
                while *waits.0.runs.borrow() {
                    tokio::task::yield_now().await;
                }
                // There already.
                waits.wait(&path, &inbox).unwrap();
                inbox.arrived().await;
                std::fs::remove_dir_all(&root).unwrap();
            })
            .await;
    }
}

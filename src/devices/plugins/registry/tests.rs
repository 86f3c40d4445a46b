use std::cell::RefCell;
use std::pin::Pin;

use super::*;
use crate::platform::grpc::{self, GrpcReply, Handler, serve_connection};
use crate::platform::testing::TempDir;

/// What a registrar was told, and what the plugin.
#[derive(Default)]
struct RecordingCsi {
    registered: RefCell<Vec<String>>,
    removed: RefCell<Vec<String>>,
    statuses: RefCell<Vec<bool>>,
}

impl CsiPlugins for RecordingCsi {
    fn register(
        self: Rc<Self>,
        name: String,
        versions: Vec<String>,
        endpoint: PathBuf,
    ) -> Pin<Box<dyn Future<Output = Result<(), String>>>> {
        self.registered.borrow_mut().push(format!("{name} {versions:?} {}", endpoint.display()));
        Box::pin(std::future::ready(if name == "good" { Ok(()) } else { Err("refused".to_owned()) }))
    }

    fn remove(&self, name: &str) {
        self.removed.borrow_mut().push(name.to_owned());
    }
}

fn serve(seen: &Rc<RecordingCsi>, name: &'static str, socket: &Path) {
    let listener = tokio::net::UnixListener::bind(socket).unwrap();
    let seen = Rc::clone(seen);
    tokio::task::spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let seen = Rc::clone(&seen);
            let handler: Handler = Rc::new(move |request| {
                let seen = Rc::clone(&seen);
                Box::pin(async move {
                    let is_info = request.uri().path().ends_with("GetInfo");
                    let message = grpc::message(request).await.unwrap();
                    let info = wire::PluginInfo {
                        r#type: CSI.to_owned(),
                        name: name.to_owned(),
                        endpoint: "/csi.sock".to_owned(),
                        supported_versions: vec!["1.0.0".to_owned()],
                    };
                    if !is_info {
                        let status = wire::RegistrationStatus::decode(message).unwrap();
                        seen.statuses.borrow_mut().push(status.plugin_registered);
                    }
                    let reply = if is_info { info.encode_to_vec() } else { Vec::new() };
                    grpc::response(Ok(GrpcReply::One(reply)))
                })
            });
            tokio::task::spawn_local(serve_connection(stream, handler));
        }
    });
}

async fn until(what: impl Fn() -> bool) {
    for _ in 0..400 {
        if what() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it does not come");
}

#[test]
fn csi_drivers_are_registered_and_removed_with_their_socket() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    rt::run_jobs_inline();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let (scratch, seen) = (TempDir::new(), Rc::new(RecordingCsi::default()));
        let directory = scratch.join("plugins_registry");
        std::fs::create_dir_all(&directory).unwrap();
        serve(&seen, "good", &directory.join("good.sock"));
        serve(&seen, "bad", &directory.join("bad.sock"));
        let (devices, csi) = (DeviceManager::open(&scratch), Rc::clone(&seen) as Rc<dyn CsiPlugins>);
        let task = tokio::task::spawn_local(watch(directory.clone(), devices, Some(csi)));
        until(|| seen.statuses.borrow().len() == 2).await;
        let mut registered = seen.registered.borrow().clone();
        registered.sort();
        assert_eq!(registered, ["bad [\"1.0.0\"] /csi.sock", "good [\"1.0.0\"] /csi.sock"]);
        assert_eq!(seen.statuses.borrow().iter().filter(|is_registered| **is_registered).count(), 1);
        std::fs::remove_file(directory.join("bad.sock")).unwrap();
        std::fs::remove_file(directory.join("good.sock")).unwrap();
        until(|| !seen.removed.borrow().is_empty()).await;
        assert_eq!(*seen.removed.borrow(), ["good"], "the other one never was");
        task.abort();
    });
}

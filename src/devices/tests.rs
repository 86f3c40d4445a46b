//! Disconnected plugins, on paused time.

use super::*;

const RESOURCE: &str = "example.com/thing";

fn run(test: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    rt::run_jobs_inline();
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

fn directory(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("edge-agent-devices-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

/// A manager with two healthy devices of a plugin that never answers.
async fn with_two(directory: &Path) -> DeviceManager {
    let manager = DeviceManager::open(directory);
    let good = || PluginDevice { healthy: true, ..PluginDevice::default() };
    manager.change(|state| {
        state
            .resources
            .insert(RESOURCE.to_owned(), [("a".to_owned(), good()), ("b".to_owned(), good())].into());
    });
    manager.write().await.unwrap();
    manager
}

/// Capacity and allocatable devices of the node.
fn counts(manager: &DeviceManager) -> [Option<String>; 2] {
    let (capacity, allocatable) = manager.totals();
    [capacity, allocatable].map(|list| list.get(RESOURCE).map(ToString::to_string))
}

fn there(capacity: &str, allocatable: &str) -> [Option<String>; 2] {
    [Some(capacity.to_owned()), Some(allocatable.to_owned())]
}

/// A registered plugin that never sends anything.
fn silent_plugin(manager: &DeviceManager, directory: &Path) {
    let client = PluginClient::new(directory.join("nobody.sock"));
    manager.add_plugin(RESOURCE, client, wire::DevicePluginOptions::default());
}

/// Long enough for everything but the grace.
async fn after(time: Duration) {
    tokio::time::sleep(time).await;
}

#[test]
fn devices_of_a_plugin_that_ended_leave_zero_after_five_minutes() {
    let directory = directory("ended");
    run(async {
        let manager = with_two(&directory).await;
        assert_eq!(counts(&manager), there("2", "2"));
        silent_plugin(&manager, &directory);
        after(Duration::from_secs(1)).await;
        assert_eq!(counts(&manager), there("2", "0"), "it cannot be heard");
        after(Duration::from_secs(298)).await;
        assert_eq!(counts(&manager), there("2", "0"), "it may return");
        after(Duration::from_secs(2)).await;
        assert_eq!(counts(&manager), there("0", "0"), "the Node says that there was such a thing");
        assert_eq!(counts(&DeviceManager::open(&directory)), there("0", "0"), "also after a restart");
    });
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn plugin_reregistration_restarts_its_grace_period() {
    let directory = directory("anew");
    run(async {
        let manager = with_two(&directory).await;
        silent_plugin(&manager, &directory);
        after(Duration::from_secs(299)).await;
        silent_plugin(&manager, &directory);
        after(Duration::from_secs(299)).await;
        assert_eq!(counts(&manager), there("2", "0"), "the first one's time is over, the second's is not");
        after(Duration::from_secs(2)).await;
        assert_eq!(counts(&manager), there("0", "0"));
    });
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn what_an_earlier_process_knew_is_zero_until_it_returns() {
    let directory = directory("earlier");
    run(async {
        with_two(&directory).await;
        let manager = DeviceManager::open(&directory);
        assert_eq!(counts(&manager), there("0", "0"), "how many there are is for the plugin to say");
    });
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_plugin_that_does_not_tell_its_options_is_refused() {
    let directory = directory("mute");
    run(async {
        let manager = DeviceManager::open(&directory);
        let versions = [API_VERSION.to_owned()];
        let refused = manager.register(RESOURCE, &versions, directory.join("nobody.sock")).await;
        assert!(refused.unwrap_err().starts_with("failed to get device plugin options: "));
        assert_eq!(counts(&manager), [None, None], "the node has no such resource");
    });
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_node_remembers_so_many_resources_and_no_more() {
    let directory = directory("many");
    run(async {
        let manager = DeviceManager::open(&directory);
        manager.change(|state| {
            let names = (0..MAX_RESOURCES).map(|number| format!("example.com/r{number}"));
            state.resources.extend(names.map(|name| (name, Devices::new())));
        });
        let versions = [API_VERSION.to_owned()];
        let register = |name: &str| {
            let (manager, name, versions) = (manager.clone(), name.to_owned(), versions.clone());
            let socket = directory.join("nobody.sock");
            async move { manager.register(&name, &versions, socket).await.unwrap_err() }
        };
        assert!(register("example.com/another").await.contains("limit of 256 device plugin resources"));
        assert!(register("example.com/r0").await.contains("options"), "one that is known may return");
    });
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_plugin_that_registers_and_ends_in_turn_is_awaited_once() {
    let directory = directory("in-turn");
    run(async {
        let manager = with_two(&directory).await;
        for _ in 0..100 {
            silent_plugin(&manager, &directory);
            after(Duration::from_secs(1)).await;
        }
        // Each waiting task holds the manager and the plugin's connection.
        assert_eq!(Rc::strong_count(&manager.0), 2, "this one and the last plugin's");
        after(GRACE).await;
        assert_eq!(counts(&manager), there("0", "0"));
    });
    std::fs::remove_dir_all(&directory).unwrap();
}

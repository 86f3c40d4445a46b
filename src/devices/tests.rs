//! Plugins that are gone, on a clock of the test's own.

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

/// A manager that knows two good devices, of a plugin that nobody hears from.
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

/// What the node has, and what of it is healthy.
fn counts(manager: &DeviceManager) -> [Option<String>; 2] {
    let (capacity, allocatable) = manager.totals();
    [capacity, allocatable].map(|list| list.get(RESOURCE).map(ToString::to_string))
}

fn there(capacity: &str, allocatable: &str) -> [Option<String>; 2] {
    [Some(capacity.to_owned()), Some(allocatable.to_owned())]
}

/// Long enough for everything but the grace.
async fn after(time: Duration) {
    tokio::time::sleep(time).await;
}

#[test]
fn devices_of_a_plugin_that_ended_are_nobodys_and_forgotten_after_five_minutes() {
    let directory = directory("ended");
    run(async {
        let manager = with_two(&directory).await;
        assert_eq!(counts(&manager), there("2", "2"));
        manager.register(RESOURCE, &[API_VERSION.to_owned()], directory.join("nobody.sock"), None).unwrap();
        after(Duration::from_secs(1)).await;
        assert_eq!(counts(&manager), there("2", "0"), "it cannot be heard");
        after(Duration::from_secs(298)).await;
        assert_eq!(counts(&manager), there("2", "0"), "it may return");
        after(Duration::from_secs(2)).await;
        assert_eq!(counts(&manager), [None, None]);
        assert_eq!(counts(&DeviceManager::open(&directory)), [None, None], "also on disk");
    });
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_plugin_that_registers_anew_has_its_time_anew() {
    let directory = directory("anew");
    run(async {
        let manager = with_two(&directory).await;
        let register =
            || manager.register(RESOURCE, &[API_VERSION.to_owned()], directory.join("nobody.sock"), None);
        register().unwrap();
        after(Duration::from_secs(299)).await;
        register().unwrap();
        after(Duration::from_secs(299)).await;
        assert_eq!(counts(&manager), there("2", "0"), "the first one's time is over, the second's is not");
        after(Duration::from_secs(2)).await;
        assert_eq!(counts(&manager), [None, None]);
    });
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn what_an_earlier_process_knew_waits_five_minutes_for_its_plugin() {
    let directory = directory("earlier");
    run(async {
        with_two(&directory).await;
        let manager = DeviceManager::open(&directory);
        assert_eq!(counts(&manager), there("0", "0"), "how many there are is for the plugin to say");
        rt::spawn("forget", manager.clone().forget_absent());
        after(Duration::from_secs(299)).await;
        assert_eq!(counts(&manager), there("0", "0"));
        after(Duration::from_secs(2)).await;
        assert_eq!(counts(&manager), [None, None]);
        assert_eq!(counts(&DeviceManager::open(&directory)), [None, None], "also on disk");
    });
    std::fs::remove_dir_all(&directory).unwrap();
}

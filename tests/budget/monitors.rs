//! What the embedded runtime's helpers cost: one monitor a pod, and everything together.

use std::fs;

use super::{MANY, PATIENCE, Table, pss_megabytes};
use crate::support::agent::AgentProcess;
use crate::support::image::STAMP;
use crate::support::wait::wait_for;

/// The promise for the static binary that ships; linked with a shared C library, as here, there is that library's own data besides.
const MONITOR_MB: f64 = 0.2;

/// Waits until the test images have been imported; a node's first start is not what is measured.
pub fn wait_for_images(agent: &AgentProcess) {
    wait_for("the images to be imported", PATIENCE, || {
        let list = agent.image_cli(&["ls"])?;
        let (name, _) = STAMP.rsplit_once(':').expect("it has a tag");
        if list.contains(name) { Ok(()) } else { Err(list) }
    });
}

/// The monitors of an agent that has [`MANY`] pods, if it has any; `own` is what the agent needs itself, in megabytes.
pub fn measure(agent: &AgentProcess, own: f64, table: &mut Table) {
    let monitors = monitors_of(agent.pid());
    if monitors.is_empty() {
        return;
    }
    assert_eq!(monitors.len(), MANY, "one a pod");
    let sizes: Vec<f64> = monitors.iter().map(|pid| pss_megabytes(*pid)).collect();
    let largest = sizes.iter().copied().fold(0.0, f64::max);
    table.hard("PSS of a pod's monitor, the largest of 50", largest, MONITOR_MB, "MB");
    let all = sizes.iter().sum::<f64>() + own;
    table.hard("PSS of everything we run for 50 pods", all, 15.0, "MB");
}

/// Children of the agent that are monitors.
fn monitors_of(agent: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("read /proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_monitor = |pid: &u32| {
        let file = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let arguments = file("cmdline");
        let mut words = arguments.split(|byte| *byte == 0);
        let status = String::from_utf8_lossy(&file("status")).into_owned();
        let parent = format!("PPid:\t{agent}");
        words.nth(1) == Some(b"monitor") && status.lines().any(|line| line == parent)
    };
    pids.filter(is_monitor).collect()
}

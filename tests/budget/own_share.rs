//! Our own share of a pod's start: from the manifest's rename to the call that starts its container, on a runtime that takes
//! no time.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{MANY, PATIENCE, Table, millis, stamping_pod};
use crate::support::agent::AgentProcess;
use crate::support::fake_cri::FakeCri;
use crate::support::image::STAMP;
use crate::support::scratch::Scratch;
use crate::support::wait::{pause, wait_for};

/// Single starts, of which the middle one counts.
const SINGLE: usize = 21;
/// Our share of one pod's start, in milliseconds.
const LIMIT: f64 = 15.0;
/// Between two single starts, so that one does not pay for the other.
const BREATH: Duration = Duration::from_millis(200);

/// Adds the rows.
pub fn measure(program: &Path, table: &mut Table) {
    let scratch = Scratch::new();
    let runtime = FakeCri::start(&scratch.path().join("cri.sock"));
    runtime.add_image(STAMP);
    let mut agent = AgentProcess::new(scratch.path(), &runtime.endpoint()).with_program(program);
    agent.start();
    wait_for("the agent to answer", PATIENCE, || agent.status_json());

    let mut shares = Vec::new();
    for number in 0..SINGLE {
        pause(BREATH);
        shares.push(share(&agent, &runtime, &[format!("single{number}")]));
    }
    shares.sort_by(f64::total_cmp);
    table.time("our share of one pod's start, median of 21", shares[SINGLE / 2], Some(LIMIT), "ms");
    table.time("... the worst of them", shares[SINGLE - 1], None, "ms");

    pause(BREATH);
    let names: Vec<String> = (0..MANY).map(|number| format!("many{number}")).collect();
    let all = share(&agent, &runtime, &names);
    table.time("our share of each of 50 pods at once", all / 50.0, Some(LIMIT), "ms");
    agent.assert_alive();
}

/// Milliseconds from the first rename to the last of the starts that follow.
fn share(agent: &AgentProcess, runtime: &FakeCri, names: &[String]) -> f64 {
    let before = starts(runtime).len();
    let begin = Instant::now();
    for name in names {
        let pod = stamping_pod(name, Path::new("/tmp"));
        agent.write_manifest(&format!("{name}.yaml"), &pod.to_string());
    }
    let last = wait_for("the containers to be started", PATIENCE, || {
        let starts = starts(runtime);
        if starts.len() < before + names.len() {
            return Err(format!("{} of {} started", starts.len() - before, names.len()));
        }
        starts.last().copied().ok_or_else(|| "none".to_owned())
    });
    millis(last.saturating_duration_since(begin))
}

/// When containers were started, in order.
fn starts(runtime: &FakeCri) -> Vec<Instant> {
    let state = runtime.state();
    state.calls.iter().filter(|call| call.name == "StartContainer").map(|call| call.at).collect()
}

//! Grace periods of hooks and containers, on a simulated runtime and with paused time.

use tokio::task::LocalSet;

use super::*;
use crate::model::api::pod::{ExecAction, LifecycleHandler, SleepAction};
use crate::pod::executor::testing::Bench;
use crate::runtime::fake::{FakeRuntime, OnStop, Program, Run as ProgramRun};

const SECOND: Duration = Duration::from_secs(1);

/// A pod that is being taken down.
struct Ending {
    bench: Bench,
    end: watch::Sender<Instant>,
    patience: Patience,
    begun: Instant,
}

impl Ending {
    async fn within(seconds: u64) -> Self {
        let bench = Bench::new().await;
        let begun = Instant::now();
        let (end, ends) = watch::channel(begun + Duration::from_secs(seconds));
        Self { bench, end, patience: Patience::Until(ends), begun }
    }

    fn stopping(
        &self,
        site: &HookSite,
        grace: u64,
        pre_stop: Option<LifecycleHandler>,
    ) -> Stopping<FakeRuntime> {
        Stopping {
            runtime: Rc::new(self.bench.fake.clone()),
            hooks: Rc::clone(&self.bench.hooks),
            events: self.bench.events.clone(),
            site: site.clone(),
            field_path: String::new(),
            message: "Stopping container c".to_owned(),
            pre_stop: pre_stop.map(|handler| Hook { handler, ports: Vec::new() }),
            grace: Grace::new(Duration::from_secs(grace), &self.patience),
        }
    }

    /// Stops a container with this program and hook, and returns how long it took.
    async fn stop(
        &self,
        program: Program,
        grace: u64,
        pre_stop: Option<LifecycleHandler>,
    ) -> (Duration, HookSite) {
        let site = self.bench.start(program).await;
        self.bench.script_command(&site, "slow", 10 * SECOND, 0);
        self.bench.script_command(&site, "bad", SECOND, 1);
        let begun = Instant::now();
        let (_turn, turns) = watch::channel(0);
        self.stopping(&site, grace, pre_stop).run(0, turns).await.unwrap();
        (begun.elapsed(), site)
    }

    /// At this second after the beginning, this many are left.
    fn shorten(&self, at: u64, left: u64) -> JoinSet<()> {
        let (end, at) = (self.end.clone(), self.begun + Duration::from_secs(at));
        let mut tasks = JoinSet::new();
        tasks.spawn_local(async move {
            sleep_until(at).await;
            end.send_modify(|end| *end = (*end).min(Instant::now() + Duration::from_secs(left)));
        });
        tasks
    }

    fn reasons(&self) -> Vec<String> {
        self.bench
            .event_messages()
            .into_iter()
            .map(|(reason, _)| reason)
            .filter(|reason| reason != "Killing")
            .collect()
    }
}

fn exec(command: &str) -> LifecycleHandler {
    let command = vec![command.to_owned()];
    LifecycleHandler { exec: Some(ExecAction { command }), ..LifecycleHandler::default() }
}

fn sleep(seconds: i64) -> LifecycleHandler {
    LifecycleHandler { sleep: Some(SleepAction { seconds }), ..LifecycleHandler::default() }
}

fn ends_after(seconds: u64) -> Program {
    let after = Duration::from_secs(seconds);
    Program { run: ProgramRun::Forever, on_stop: OnStop::Exits { after, code: 0 } }
}

async fn local<T>(test: impl Future<Output = T>) -> T {
    LocalSet::new().run_until(test).await
}

#[tokio::test(start_paused = true)]
async fn hook_uses_up_the_grace_and_the_runtime_gets_two_seconds() {
    let failed: &[&str] = &["FailedPreStopHook"];
    let stubborn = Program::stubborn;
    let cases = [
        ("no hook", stubborn(), 30, None, 30, 137, &[][..]),
        ("a hook and a quick end", ends_after(1), 30, Some(exec("slow")), 11, 0, &[]),
        ("a hook and none", stubborn(), 30, Some(exec("slow")), 30, 137, &[]),
        ("a hook that takes all but a second", stubborn(), 11, Some(exec("slow")), 12, 137, &[]),
        ("a hook that takes too long", stubborn(), 6, Some(exec("slow")), 8, 137, failed),
        (
            "a hook that ends after the grace, before the kill",
            stubborn(),
            9,
            Some(exec("slow")),
            11,
            137,
            &[],
        ),
        ("a hook that fails", ends_after(1), 30, Some(exec("bad")), 2, 0, failed),
        ("sleep", ends_after(1), 30, Some(sleep(5)), 6, 0, &[]),
        ("sleep for the whole grace", stubborn(), 5, Some(sleep(5)), 7, 137, &[]),
        ("sleep for longer", stubborn(), 3, Some(sleep(5)), 5, 137, &[]),
        ("no grace, no hook", stubborn(), 0, Some(exec("slow")), 2, 137, &[]),
        ("what cannot be a hook", ends_after(0), 30, Some(LifecycleHandler::default()), 0, 0, failed),
    ];
    for (case, program, grace, hook, seconds, code, reasons) in cases {
        local(async {
            let end = Ending::within(1000).await;
            let (took, site) = end.stop(program, grace, hook).await;
            assert_eq!(took.as_secs(), seconds, "{case}");
            assert_eq!(end.bench.exit_code(&site.id), code, "{case}");
            assert_eq!(end.reasons(), reasons, "{case}");
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn shorter_grace_applies_at_once_and_longer_is_ignored() {
    // Grace, hook, when it is shortened, what is left from then on; when the container ends, how often it was
    // asked to.
    let cases = [
        ("during the stop", 30, None, 10, 5, 15, 2),
        ("forced", 30, None, 10, 0, 12, 2),
        ("forced with a second", 30, None, 10, 1, 12, 2),
        ("during the hook", 30, Some(exec("slow")), 4, 5, 9, 1),
        ("during a sleep", 30, Some(sleep(20)), 4, 0, 6, 1),
        ("not shorter", 30, None, 10, 25, 30, 1),
        ("with nothing to win", 3, None, 2, 0, 3, 1),
        ("all at the same time", 1, None, 0, 0, 2, 1),
    ];
    for (case, grace, hook, at, left, ends, asked) in cases {
        local(async {
            let end = Ending::within(grace).await;
            let _shortened = end.shorten(at, left);
            let (took, site) = end.stop(Program::stubborn(), 1000, hook).await;
            assert_eq!(took.as_secs(), ends, "{case}");
            assert_eq!(end.bench.calls("StopContainer", &site.id), asked, "{case}");
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn stop_groups_wait_within_the_grace_and_hooks_run_meanwhile() {
    // How the main container takes its stop; when it and the sidecar end.
    let cases = [(ends_after(4), 4, 12), (Program::stubborn(), 20, 22)];
    for (program, main_ends, sidecar_ends) in cases {
        local(async {
            let end = Ending::within(20).await;
            let main = end.bench.start(program).await;
            let sidecar = end.bench.start(ends_after(2)).await;
            end.bench.script_command(&sidecar, "slow", 10 * SECOND, 0);
            let (turn, turns) = watch::channel(0);
            let mut stops = JoinSet::new();
            for (group, stopping) in
                [end.stopping(&main, 20, None), end.stopping(&sidecar, 20, Some(exec("slow")))]
                    .into_iter()
                    .enumerate()
            {
                let (turns, begun) = (turns.clone(), end.begun);
                stops.spawn_local(async move {
                    stopping.run(group, turns).await.unwrap();
                    (group, begun.elapsed().as_secs())
                });
            }
            let mut ended = Vec::new();
            while let Some(Ok(stopped)) = stops.join_next().await {
                turn.send_replace(stopped.0 + 1);
                ended.push(stopped);
            }
            assert_eq!(ended, [(0, main_ends), (1, sidecar_ends)]);
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_does_not_answer_ends_the_stop_with_an_error() {
    local(async {
        let end = Ending::within(30).await;
        let site = end.bench.start(Program::stubborn()).await;
        end.bench.fake.faults().hang.insert("StopContainer");
        let _shortened = end.shorten(5, 1);
        let (_turn, turns) = watch::channel(0);
        let error = end.stopping(&site, 30, None).run(0, turns).await.unwrap_err();
        assert_eq!(error.kind, crate::runtime::ErrorKind::Timeout);
        assert_eq!(
            end.begun.elapsed().as_secs(),
            125,
            "the call's own limit, from the last time it was made"
        );
    })
    .await;
}

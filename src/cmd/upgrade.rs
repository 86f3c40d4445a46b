//! `agent upgrade`: replaces the agent's program. The old program watches the new one and is restored when
//! the new one fails.
//!
//! Expected flow: `candidate` proves the new program before anything is changed; it is put into place in the
//! steps of [`crate::store::upgrade::rules::INSTALL`]; then the kept old program watches as a service of its
//! own (`service`), so that neither a lost connection nor a power cut ends the watch, and commits or rolls
//! back (`machine`).
//!
//! Guarantees: at every moment the program is the old one or the new one, whole. An unfinished upgrade is
//! found by the next watch.
//!
//! Assumptions: the service starts the file that the agent's process runs.
//!
//! | module | what |
//! |---|---|
//! | `args` | the command line |
//! | `candidate` | whether a file may be the agent |
//! | `machine` | observations and effects |
//! | `service` | systemd, OpenRC, a command |

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::cmd::cli::{ClientError, EXIT_FAILED, EXIT_OK, EXIT_USAGE, Environment};
use crate::cmd::help;
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::platform::sys::lock::{self, FileLock};
use crate::platform::sys::node;
use crate::store::upgrade as records;
use crate::store::upgrade::rules::{
    Build, Effect, INSTALL, InPlace, Step, UpgradePhase, UpgradeRecord, Watch, effects, running, step,
    summary,
};

mod args;
mod candidate;
mod machine;
mod service;

use args::{UpgradeOptions, UsageError};
use candidate::{Candidate, CandidateError};
use machine::Machine;
use service::Service;

const EXIT_ROLLED_BACK: u8 = 3;
/// The interval between checks of an agent on trial.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The lock file of a process that replaces the program or watches the new one.
const LOCK: &str = "upgrade.lock";
/// The file that requests a rollback from the watching process.
const ASKED_BACK: &str = "upgrade.rollback";

/// The command failed. Nothing was changed unless the message says that something was.
#[derive(Debug, thiserror::Error)]
enum UpgradeError {
    #[error(transparent)]
    Usage(#[from] UsageError),
    #[error(transparent)]
    Candidate(#[from] CandidateError),
    #[error("{action} {}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("connect to the running agent (use --no-restart to replace the program of a stopped one)")]
    Agent(#[source] ClientError),
    #[error("the agent runs {0}: use that program to upgrade it ({0} upgrade ...)")]
    OtherProgram(String),
    #[error("the running agent's program is no longer at {0}: restart the agent first")]
    NotRestarted(String),
    #[error("{0}")]
    Service(String),
    #[error(
        "an upgrade is in progress: see `agent upgrade status`; `agent upgrade rollback` restores the old \
         program{0}"
    )]
    UnderWay(&'static str),
    #[error("there is no upgrade to roll back")]
    NoPrevious,
    #[error("cannot roll back: {0} is not the program that was replaced")]
    WrongPrevious(String),
    #[error("the upgrade was not completed in time: continue it with `agent upgrade watch`")]
    Unsettled,
    #[error(transparent)]
    Lock(#[from] lock::LockError),
    #[error("start the async runtime")]
    Runtime(#[source] io::Error),
    #[error("write the output")]
    Output(#[source] io::Error),
}

/// Runs the command and returns the exit code.
pub fn run(arguments: &[String], environment: Environment<'_>) -> u8 {
    let mut session = UpgradeSession { environment, json: false };
    let result = UpgradeOptions::parse(arguments).map_err(UpgradeError::from).and_then(|mut options| {
        // The watch has a different working directory.
        for path in [&mut options.socket, &mut options.root_dir] {
            *path = std::path::absolute(&*path).unwrap_or_else(|_| path.clone());
        }
        session.json = options.json;
        if options.help {
            session.print(&help::text("upgrade"))?;
            return Ok(EXIT_OK);
        }
        match options.what.as_str() {
            "facts" => session.print(&candidate::CandidateFacts::own().to_text()).map(|()| EXIT_OK),
            "status" => session.status(&options),
            _ => rt::run(session.act(&options)).map_err(UpgradeError::Runtime)?,
        }
    });
    let error = match result {
        Ok(code) => return code,
        Err(UpgradeError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => return EXIT_OK,
        Err(error) => error,
    };
    session.print_error(&["error: ", &chain(&error), "\n"].concat());
    if let UpgradeError::Usage(_) = error {
        session.print_error("See \"agent upgrade --help\".\n");
        return EXIT_USAGE;
    }
    EXIT_FAILED
}

struct UpgradeSession<'a> {
    environment: Environment<'a>,
    json: bool,
}

impl UpgradeSession<'_> {
    /// Prints to standard output at once.
    fn print(&mut self, text: &str) -> Result<(), UpgradeError> {
        let out = &mut self.environment.out;
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(UpgradeError::Output)
    }

    /// Prints progress for the user. A closed output is not an error.
    fn print_progress(&mut self, text: &str) {
        if !self.json {
            let _ = self.print(&["[upgrade] ", text, "\n"].concat());
        }
    }

    fn print_error(&mut self, text: &str) {
        let _ = self.environment.err.write_all(text.as_bytes());
    }

    fn status(&mut self, options: &UpgradeOptions) -> Result<u8, UpgradeError> {
        let record = records::read(&options.root_dir);
        let text = match &record {
            None if options.json => "{}\n".to_owned(),
            None => "No upgrade has been recorded.\n".to_owned(),
            Some(record) => shown(record, options.json),
        };
        self.print(&text)?;
        Ok(EXIT_OK)
    }

    async fn act(&mut self, options: &UpgradeOptions) -> Result<u8, UpgradeError> {
        let path = options.root_dir.join(LOCK);
        let held = lock::try_acquire(&path)?;
        match (options.what.as_str(), held) {
            ("rollback", held) => self.roll_back(options, held).await,
            (_, None) => Err(UpgradeError::UnderWay("")),
            ("watch", Some(held)) => {
                let record = self.watch(options, held).await?;
                if let Some(record) = &record {
                    self.print(&shown(record, self.json))?;
                }
                // Exit status 0 for a service manager: the upgrade is settled, whichever way.
                Ok(EXIT_OK)
            }
            (_, Some(held)) => self.upgrade(options, held).await,
        }
    }

    async fn upgrade(&mut self, options: &UpgradeOptions, held: FileLock) -> Result<u8, UpgradeError> {
        if let Some(earlier) = records::read(&options.root_dir).filter(|record| !record.phase.is_settled()) {
            // An upgrade that was interrupted before the new program was in place has changed nothing.
            if Machine::new(&options.root_dir, earlier).in_place() != InPlace::Old {
                return Err(UpgradeError::UnderWay(", if nothing watches it, run `agent upgrade watch`"));
            }
        }
        let file = Path::new(&options.what);
        let mut record = self.prepare(options).await?;
        let candidate = Candidate::read(file, options)?;
        record.to = Build { version: String::new(), digest: records::digest_of(candidate.bytes()) };
        if record.to.digest == record.from.digest {
            self.print_progress(&format!("{} is already this program", record.program));
            return Ok(EXIT_OK);
        }
        let machine = Machine::new(&options.root_dir, record.clone());
        // In the directory from which it will run: others may be mounted noexec. A dry run removes it.
        machine.stage(candidate.bytes())?;
        let facts = candidate.prove(&machine.staged(), options.allow_downgrade);
        let facts = facts.inspect_err(|_| machine.unstage())?;
        record.to.version.clone_from(&facts.version);
        self.print_progress(&format!(
            "upgrading: {} {} replaces {} ({})",
            file.display(),
            facts.version,
            record.program,
            record.from.version
        ));
        for warning in candidate.warnings(&record.program) {
            self.print_error(&["warning: ", &warning, "\n"].concat());
        }
        // Its bytes are not needed during the watch.
        drop(candidate);
        if options.dry_run {
            machine.unstage();
            self.print_progress("dry run: nothing was changed");
            return Ok(EXIT_OK);
        }
        let mut machine = Machine::new(&options.root_dir, record);
        if let Err(error) = self.install(&mut machine).await {
            machine.unstage();
            return Err(error);
        }
        if options.no_restart {
            "not restarted and not watched: --no-restart".clone_into(&mut machine.record.reason);
            machine.carry_out(Effect::Note(UpgradePhase::Upgraded)).await?;
            return self.end(&machine.record, EXIT_ROLLED_BACK);
        }
        self.print_progress(&format!("watching the new program for {} s", machine.record.window.as_secs()));
        let record = self.begin_watch(options, &machine, held).await?;
        self.end(&record, EXIT_ROLLED_BACK)
    }

    /// The steps until the new program is in place.
    async fn install(&mut self, machine: &mut Machine) -> Result<(), UpgradeError> {
        for effect in INSTALL {
            if let Err(error) = machine.carry_out(*effect).await {
                machine.record.reason = chain(&error);
                // The last step may fail after the rename: the old program is then restored, or the new one
                // watched.
                if machine.in_place() != InPlace::Old {
                    let put_back = machine.carry_out(Effect::PutBack).await;
                    if put_back.is_err() && machine.in_place() != InPlace::Old {
                        return Err(error);
                    }
                }
                for effect in effects(UpgradePhase::Trial, UpgradePhase::Abandoned) {
                    // A failed step is repeated by the next upgrade, or by the watch if there is one.
                    let _ = machine.carry_out(*effect).await;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// The record of the agent that runs now.
    async fn prepare(&mut self, options: &UpgradeOptions) -> Result<UpgradeRecord, UpgradeError> {
        let mut record = UpgradeRecord {
            since: self.environment.now,
            window: options.window,
            patience: options.patience,
            socket: options.socket.display().to_string(),
            boot: node::boot_id(),
            ..UpgradeRecord::default()
        };
        let own = fs::read_link("/proc/self/exe").unwrap_or_default();
        let pid =
            match crate::cmd::cli::fetch_report(&options.socket, crate::serve::server::ObjectDetail::Counted)
                .await
            {
                Ok(report) => {
                    record.containers = running(&report.pods);
                    record.was_ready = report.runtime.ready;
                    report.pid.to_string()
                }
                Err(ClientError::NotRunning { .. }) if options.no_restart => "self".to_owned(),
                Err(error) => return Err(UpgradeError::Agent(error)),
            };
        let exe = PathBuf::from(format!("/proc/{pid}/exe"));
        let program = fs::read_link(&exe).map_err(|source| UpgradeError::File {
            action: "read",
            path: exe.clone(),
            source,
        })?;
        record.program = program.display().to_string();
        if let Some(gone) = record.program.strip_suffix(" (deleted)") {
            return Err(UpgradeError::NotRestarted(gone.to_owned()));
        }
        if own != program {
            return Err(UpgradeError::OtherProgram(record.program));
        }
        record.service = match (&options.restart_command, options.no_restart) {
            (_, true) => Service::None,
            (Some(command), _) => Service::Command(command.clone()),
            (None, _) => Service::find(&pid).map_err(UpgradeError::Service)?,
        }
        .to_text();
        record.from = Build {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            digest: records::digest(&program).map_err(|source| UpgradeError::File {
                action: "read",
                path: program,
                source,
            })?,
        };
        Ok(record)
    }

    async fn roll_back(
        &mut self,
        options: &UpgradeOptions,
        held: Option<FileLock>,
    ) -> Result<u8, UpgradeError> {
        let mut record = records::read(&options.root_dir).ok_or(UpgradeError::NoPrevious)?;
        let asked = options.root_dir.join(ASKED_BACK);
        let record = match (record.phase, held) {
            (UpgradePhase::Trial | UpgradePhase::RollingBack, held) => {
                fs::write(&asked, "").map_err(|source| UpgradeError::File {
                    action: "write",
                    path: asked.clone(),
                    source,
                })?;
                match held {
                    Some(held) => self.watch(options, held).await?.unwrap_or(record),
                    None => self.follow(options, &record).await?,
                }
            }
            (UpgradePhase::Upgraded, Some(held)) => {
                "requested".clone_into(&mut record.reason);
                (record.watches, record.since) = (0, self.environment.now);
                if let Some(command) = &options.restart_command {
                    record.service = Service::Command(command.clone()).to_text();
                }
                if options.no_restart {
                    record.service = Service::None.to_text();
                }
                let mut machine = Machine::new(&options.root_dir, record);
                if !machine.has_previous() {
                    return Err(UpgradeError::WrongPrevious(machine.previous().display().to_string()));
                }
                for effect in [Effect::Note(UpgradePhase::RollingBack), Effect::Guard] {
                    machine.carry_out(effect).await?;
                }
                self.print_progress(&format!("restoring {}", machine.record.from.version));
                self.begin_watch(options, &machine, held).await?
            }
            (_, None) => return Err(UpgradeError::UnderWay("")),
            _ => return Err(UpgradeError::NoPrevious),
        };
        self.end(&record, EXIT_OK)
    }

    /// Starts the watch as a service, or otherwise in this process.
    async fn begin_watch(
        &mut self,
        options: &UpgradeOptions,
        machine: &Machine,
        held: FileLock,
    ) -> Result<UpgradeRecord, UpgradeError> {
        if let Some(commands) = machine.service.start_watch() {
            drop(held);
            match service::call(commands) {
                Ok(()) => return self.follow(options, &machine.record).await,
                // Then this process watches.
                Err(error) => self.print_error(&["warning: ", &error, "\n"].concat()),
            }
            let held = lock::try_acquire(&options.root_dir.join(LOCK))?.ok_or(UpgradeError::UnderWay(""))?;
            return Ok(self.watch(options, held).await?.unwrap_or_default());
        }
        Ok(self.watch(options, held).await?.unwrap_or_default())
    }

    /// Watches until the upgrade is settled. `None` when there is nothing to watch.
    async fn watch(
        &mut self,
        options: &UpgradeOptions,
        held: FileLock,
    ) -> Result<Option<UpgradeRecord>, UpgradeError> {
        let Some(mut record) = records::read(&options.root_dir) else { return Ok(None) };
        if !record.phase.is_settled() {
            record.watches += 1;
        }
        let mut machine = Machine::new(&options.root_dir, record);
        machine.save_record()?;
        let (begin, mut watch) = (Instant::now(), Watch::default());
        loop {
            let seen = machine.observe().await;
            match step(&mut watch, &machine.record, &seen, begin.elapsed()) {
                Step::CheckAgain => tokio::time::sleep(LOOK_AGAIN).await,
                Step::Restart => {
                    self.print_progress("restarting the agent");
                    // A failed restart is detected by the next checks.
                    if let Err(error) = machine.service.restart() {
                        self.print_error(&["warning: ", &error, "\n"].concat());
                    }
                }
                Step::Settle(phase, reason) => {
                    if !machine.record.phase.is_settled() {
                        machine.record.reason = reason;
                    }
                    if phase == UpgradePhase::RolledBack && machine.record.phase != UpgradePhase::RolledBack {
                        self.print_progress(
                            &["restoring the old program: ", &machine.record.reason].concat(),
                        );
                    }
                    for effect in effects(machine.record.phase, phase) {
                        machine.carry_out(*effect).await?;
                    }
                    break;
                }
            }
        }
        drop(held);
        Ok(Some(machine.record))
    }

    /// Waits for the watching process.
    async fn follow(
        &mut self,
        options: &UpgradeOptions,
        record: &UpgradeRecord,
    ) -> Result<UpgradeRecord, UpgradeError> {
        let longest = record.window * 3 + record.patience * 4;
        let begin = Instant::now();
        loop {
            match records::read(&options.root_dir) {
                // The upgrade is settled and cleaned up.
                Some(record)
                    if record.phase.is_settled()
                        && lock::try_acquire(&options.root_dir.join(LOCK))?.is_some() =>
                {
                    return Ok(record);
                }
                _ if begin.elapsed() > longest => return Err(UpgradeError::Unsettled),
                _ => tokio::time::sleep(LOOK_AGAIN).await,
            }
        }
    }

    fn end(&mut self, record: &UpgradeRecord, rolled_back: u8) -> Result<u8, UpgradeError> {
        self.print(&shown(record, self.json))?;
        Ok(match record.phase {
            UpgradePhase::Upgraded => EXIT_OK,
            UpgradePhase::RolledBack => rolled_back,
            _ => EXIT_FAILED,
        })
    }
}

/// The record as text or JSON.
fn shown(record: &UpgradeRecord, as_json: bool) -> String {
    if as_json {
        let time = |time: crate::model::types::Timestamp| {
            if time.is_zero() { Value::Null } else { Value::String(time.to_rfc3339()) }
        };
        let build = |build: &Build| json!({ "version": build.version, "sha256": build.digest });
        let value = json!({
            "phase": record.phase.as_str(),
            "reason": record.reason,
            "program": record.program,
            "from": build(&record.from),
            "to": build(&record.to),
            "since": time(record.since),
            "settled": time(record.settled),
            "windowSeconds": record.window.as_secs(),
            "containers": record.containers.len(),
        });
        return format!("{value:#}\n");
    }
    [summary(record).as_str(), "\n"].concat()
}

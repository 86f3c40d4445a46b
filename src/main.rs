//! `agent`: dispatches arguments to a subcommand and returns its exit code.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use edge_agent::agent::config::{self, CriFlags, Environment, Invocation, Resolved, VersionKind};
use edge_agent::agent::kubelet::run_once::RunOnceOutcome;
use edge_agent::agent::kubelet::setup::configs::logging as logging_config;
use edge_agent::agent::kubelet::setup::{self, DaemonEnvironment, Finished};
use edge_agent::cmd::{cli, control_plane, init, kubelet_alias, upgrade};
use edge_agent::platform::clock::Clock;
use edge_agent::platform::logging;
use edge_agent::platform::rt;
use edge_agent::runtime::embedded;

const FAILED: u8 = 1;

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_default();
    let arguments: Vec<OsString> = words.collect();
    // The agent's own helper processes, which only the agent starts: they take no command line options.
    match arguments.first().and_then(|argument| argument.to_str()) {
        Some("fork-server") => ExitCode::from(embedded::monitor::main()),
        Some("pull-helper") => ExitCode::from(embedded::registry::helper_main()),
        _ if kubelet_alias::is_kubelet(&name) => ExitCode::from(kubelet(&arguments)),
        _ => ExitCode::from(program(&arguments)),
    }
}

/// Not part of `main`, whose stack frame remains in every monitor process for as long as its pod lives.
#[inline(never)]
fn program(arguments: &[OsString]) -> u8 {
    match config::parse(arguments, &Environment::from_host()) {
        Ok(invocation) => run(invocation),
        Err(error) => {
            print_error(&error);
            error.exit_code()
        }
    }
}

/// The same under the name `kubelet`.
#[inline(never)]
fn kubelet(arguments: &[OsString]) -> u8 {
    let environment = Environment::from_host();
    let error = match config::parse(arguments, &environment) {
        Ok(Invocation::Version(VersionKind::Plain)) => return print(&kubelet_alias::version()),
        Ok(invocation) => return run(invocation),
        Err(error) => error,
    };
    let Some(missing) = kubelet_alias::missing_file(&error) else {
        print_error(&error);
        return error.exit_code();
    };
    let parsed = config::parse(&kubelet_alias::without_files(arguments), &environment);
    let Ok(Invocation::Run(resolved)) = parsed else {
        print_error(&error);
        return error.exit_code();
    };
    logging::init(&logging_config(&resolved.kubelet));
    let notify_socket = std::env::var("NOTIFY_SOCKET").ok();
    match rt::run(kubelet_alias::wait(&resolved, missing.to_owned(), notify_socket.as_deref())) {
        Ok(Ok(false)) => return 0,
        Ok(Ok(true)) => print_error(&kubelet_alias::restart(arguments)),
        Ok(Err(error)) => print_error(&error),
        Err(error) => print_error(&error),
    }
    FAILED
}

fn run(invocation: Invocation) -> u8 {
    if let Invocation::Run(resolved) | Invocation::Config { resolved, .. } = &invocation
        && let Err(error) = resolved.check_start()
    {
        print_error(&error);
        return error.exit_code();
    }
    match invocation {
        Invocation::Run(resolved) => run_kubelet(&resolved),
        Invocation::Cri { flags, resolved } => run_cri(&flags, &resolved),
        Invocation::Help(text) => print(&text),
        Invocation::Version(kind) => print(&version(kind)),
        Invocation::Config { explain, resolved } => {
            for line in &resolved.warnings {
                let _ = writeln!(std::io::stderr(), "warning: {line}");
            }
            print(&if explain { resolved.explain() } else { resolved.to_yaml() })
        }
        Invocation::Client { command, args } => run_cli(command, args),
    }
}

fn run_cli(command: &str, arguments: Vec<OsString>) -> u8 {
    let arguments: Vec<String> =
        arguments.into_iter().map(|argument| argument.to_string_lossy().into_owned()).collect();
    let stdout = std::io::stdout();
    let variable = |name: &str| std::env::var(name).ok();
    let wants_colour = cli::wants_colour(variable("NO_COLOR").as_deref(), variable("TERM").as_deref());
    let environment = cli::Environment {
        terminal: stdout.is_terminal(),
        colour: stdout.is_terminal() && wants_colour,
        out: &mut stdout.lock(),
        err: &mut std::io::stderr(),
        now: Clock::System.now(),
    };
    match command {
        "init" if control_plane::selects(&arguments) => control_plane::run(&arguments, environment),
        "preflight" if control_plane::is_check(&arguments) => control_plane::check(&arguments, environment),
        "join" if control_plane::join::is_wanted(&arguments) => {
            control_plane::join::run(&arguments, environment)
        }
        "preflight" | "init" | "join" | "leave" | "reset" => init::run(command, &arguments, environment),
        "token" => control_plane::tokens::command::run(&arguments, environment),
        "config" => control_plane::config_command::run(&arguments, environment),
        "kubeconfig" if arguments.first().is_some_and(|word| word == "user") => {
            control_plane::user_command::run(&arguments[1..], environment)
        }
        "certs" => control_plane::certs_command::run(&arguments, environment),
        "upgrade" if control_plane::upgrade::selects(&arguments) => {
            control_plane::upgrade::run(&arguments, environment)
        }
        "upgrade" => upgrade::run(&arguments, environment),
        _ => cli::run(command, &arguments, environment),
    }
}

fn run_kubelet(resolved: &Resolved) -> u8 {
    logging::init(&logging_config(&resolved.kubelet));
    for line in &resolved.warnings {
        log::warn!("{line}");
    }
    if resolved.kubelet.logging_verbosity >= 1 {
        for line in &resolved.flag_dump {
            log::info!("{line}");
        }
    }
    if resolved.kubelet.logging_verbosity >= 5 {
        log::info!(config = resolved.config_log(); "Configuration");
    }
    let environment = DaemonEnvironment {
        notify_socket: std::env::var("NOTIFY_SOCKET").ok(),
        watchdog_usec: std::env::var("WATCHDOG_USEC").ok(),
        watchdog_pid: std::env::var("WATCHDOG_PID").ok(),
        system_bus_address: std::env::var("DBUS_SYSTEM_BUS_ADDRESS").ok(),
        openrc_state: std::env::var("RC_SVCDIR").ok(),
        credentials_directory: std::env::var_os("CREDENTIALS_DIRECTORY").map(Into::into),
    };
    match rt::run(setup::run(resolved, &environment)) {
        Ok(Ok(Finished::Stopped)) => 0,
        Ok(Ok(Finished::RunOnce(outcome))) => report_run_once(&outcome),
        Ok(Err(error)) => {
            print_error(&error);
            FAILED
        }
        Err(error) => {
            print_error(&error);
            FAILED
        }
    }
}

fn run_cri(flags: &CriFlags, resolved: &Resolved) -> u8 {
    logging::init(&logging_config(&resolved.kubelet));
    for line in &resolved.warnings {
        log::warn!("{line}");
    }
    let notify_socket = std::env::var("NOTIFY_SOCKET").ok();
    match rt::run(setup::cri::run(resolved, flags, notify_socket.as_deref())) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => {
            print_error(&error);
            FAILED
        }
        Err(error) => {
            print_error(&error);
            FAILED
        }
    }
}

fn report_run_once(outcome: &RunOnceOutcome) -> u8 {
    if !outcome.pods.is_empty() {
        print(&cli::pods_table(&outcome.pods, Clock::System.now()));
    } else if outcome.failures.is_empty() {
        print("No pods to run.\n");
    }
    for failure in &outcome.failures {
        let _ = writeln!(std::io::stderr(), "error: {failure}");
    }
    if outcome.failures.is_empty() { 0 } else { FAILED }
}

fn version(kind: VersionKind) -> String {
    let version = env!("CARGO_PKG_VERSION");
    match kind {
        VersionKind::Plain => format!("agent v{version} (Kubernetes v1.36)\n"),
        VersionKind::Raw => format!(
            "version.Info{{Major:\"1\", Minor:\"36\", GitVersion:\"v1.36.0\", AgentVersion:\"v{version}\", Platform:\"linux/{}\"}}\n",
            std::env::consts::ARCH
        ),
    }
}

fn print(text: &str) -> u8 {
    // A closed reader (`agent --help | head`) is not an error.
    let _ = std::io::stdout().write_all(text.as_bytes());
    0
}

fn print_error(error: &dyn std::error::Error) {
    let _ = writeln!(std::io::stderr(), "error: {}", logging::chain(error));
}

//! `agent port-forward`: forwards local ports to a pod, as kubectl does.
//!
//! Owns the command and its listeners. Each connection resolves the pod again, so that a recreated pod is
//! found.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;

use tokio::net::{TcpListener, TcpStream};

use super::args::{Common, Has, Own, UsageError, text, value};
use super::{CliError, EXIT_OK, Environment, client, print, target};
use crate::cmd::help;
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::serve::streaming::client as streams;

struct ForwardArgs {
    common: Common,
    addresses: Vec<Vec<IpAddr>>,
    pod: Option<String>,
    ports: Vec<(Local, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Local {
    Same,
    Any,
    Given(u16),
}

fn parse(arguments: &[String]) -> Result<ForwardArgs, UsageError> {
    let mut wanted = ForwardArgs {
        common: Common::default(),
        addresses: addresses("localhost")?,
        pod: None,
        ports: Vec::new(),
    };
    wanted.common = Common::parse(arguments, Has::Namespace, &mut |own, parser| {
        match own {
            Own::Option("--address") => wanted.addresses = addresses(&text(value(parser)?))?,
            Own::Word(word) if wanted.pod.is_none() => wanted.pod = Some(word.to_owned()),
            Own::Word(word) => wanted.ports.push(ports(word)?),
            Own::Option(_) => return Ok(false),
        }
        Ok(true)
    })?;
    if !wanted.common.help && (wanted.pod.is_none() || wanted.ports.is_empty()) {
        let message = "pod and port are required: agent port-forward POD [LOCAL:]REMOTE".to_owned();
        return Err(UsageError::Option { message });
    }
    Ok(wanted)
}

/// Each entry is served if one of its addresses is available.
fn addresses(given: &str) -> Result<Vec<Vec<IpAddr>>, UsageError> {
    let one = |text: &str| match text {
        // kubectl's meaning of it.
        "localhost" => Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]),
        _ => text.parse().map(|address| vec![address]).map_err(|_| UsageError::Option {
            message: format!("--address {text:?}: must be a local IP address or localhost"),
        }),
    };
    given.split(',').map(str::trim).map(one).collect()
}

fn ports(given: &str) -> Result<(Local, String), UsageError> {
    let (local, remote) = match given.split_once(':') {
        None => (Some(Local::Same), given),
        Some(("" | "0", remote)) => (Some(Local::Any), remote),
        Some((local, remote)) => (local.parse().ok().map(Local::Given), remote),
    };
    match local {
        Some(local) if !remote.is_empty() && remote != "0" => Ok((local, remote.to_owned())),
        _ => Err(UsageError::Option {
            message: format!("invalid port {given:?}: must be a number, a name or LOCAL:REMOTE"),
        }),
    }
}

pub(super) fn run(arguments: &[String], environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let wanted = parse(arguments).map_err(CliError::Usage)?;
    if wanted.common.help {
        print(environment, &help::text("port-forward"))?;
        return Ok(EXIT_OK);
    }
    rt::run(forward(wanted, environment)).map_err(CliError::Runtime)?
}

async fn forward(wanted: ForwardArgs, environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let found = target::find(
        &wanted.common.socket,
        wanted.common.one_namespace(),
        wanted.pod.as_deref().unwrap_or_default(),
    )
    .await?;
    let resource = Rc::<str>::from(format!("/portForward/{}", found.path()));
    let socket = Rc::<std::path::Path>::from(wanted.common.socket);
    // Tasks send, this loop prints.
    let (tell, mut told) = tokio::sync::mpsc::channel::<Result<String, String>>(1);
    for (local, remote) in &wanted.ports {
        let port = remote.parse().ok().filter(|port| *port > 0).or_else(|| found.port(remote));
        let port: u16 =
            port.ok_or_else(|| CliError::Answer(format!("the pod has no port named {remote:?}")))?;
        for addresses in &wanted.addresses {
            for listener in listen(addresses, *local, port).await? {
                let at = listener.local_addr().map_err(CliError::Runtime)?;
                print(environment, &format!("Forwarding from {at} -> {port}\n"))?;
                let (socket, resource, tell) = (Rc::clone(&socket), Rc::clone(&resource), tell.clone());
                rt::spawn("listener", async move {
                    while let Ok((near, _)) = listener.accept().await {
                        let _ = tell.send(Ok(format!("Handling connection for {}\n", at.port()))).await;
                        let (socket, resource, tell) =
                            (Rc::clone(&socket), Rc::clone(&resource), tell.clone());
                        rt::spawn("forward", async move {
                            if let Err(words) = serve(&socket, &resource, port, near).await {
                                let words = format!(
                                    "an error occurred forwarding {} -> {port}: {words}\n",
                                    at.port()
                                );
                                let _ = tell.send(Err(words)).await;
                            }
                        });
                    }
                });
            }
        }
    }
    drop(tell);
    while let Some(words) = told.recv().await {
        match words {
            Ok(words) => print(environment, &words)?,
            Err(words) => drop(environment.err.write_all(words.as_bytes())),
        }
    }
    Err(CliError::Answer("all listeners were closed".to_owned()))
}

/// Listens on the available addresses, all with the same port.
async fn listen(addresses: &[IpAddr], local: Local, remote: u16) -> Result<Vec<TcpListener>, CliError> {
    let mut port = match local {
        Local::Same => remote,
        Local::Any => 0,
        Local::Given(port) => port,
    };
    let (mut listeners, mut trouble) = (Vec::new(), String::new());
    for address in addresses {
        let at = SocketAddr::new(*address, port);
        match TcpListener::bind(at).await {
            Ok(listener) => {
                port = listener.local_addr().map_or(port, |at| at.port());
                listeners.push(listener);
            }
            Err(error) => trouble = format!("unable to listen on {at}: {error}"),
        }
    }
    if listeners.is_empty() { Err(CliError::Answer(trouble)) } else { Ok(listeners) }
}

async fn serve(socket: &std::path::Path, resource: &str, port: u16, near: TcpStream) -> Result<(), String> {
    let io = client::upgrade(socket, resource, streams::FORWARD).await;
    let io = io.map_err(|error| chain(&error))?;
    streams::forward(io, port, near).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_written_as_for_kubectl() {
        assert_eq!(ports("80"), Ok((Local::Same, "80".to_owned())));
        assert_eq!(ports("8080:http"), Ok((Local::Given(8080), "http".to_owned())));
        assert_eq!(ports(":80"), Ok((Local::Any, "80".to_owned())));
        for bad in ["", ":", "0", "8080:", "x:80", "70000:80", "80:0"] {
            assert!(ports(bad).unwrap_err().to_string().contains("LOCAL:REMOTE"), "{bad}");
        }
        assert_eq!(addresses("localhost,10.0.0.1").unwrap().iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
        assert!(addresses("host").unwrap_err().to_string().contains("--address"));
    }
}

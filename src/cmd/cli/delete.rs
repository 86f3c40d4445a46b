//! `agent delete`: objects of the node's API, and the data of claims.
//!
//! Owns the command, and waiting until the objects are gone.

use std::path::PathBuf;
use std::time::Duration;

use hyper::Method;
use serde_json::Value;
use tokio::time::Instant;

use super::args::{Common, Has, Own, UsageError, duration, text, value};
use super::files::{self, Named};
use super::table::printable;
use super::{CliError, ClientError, EXIT_FAILED, EXIT_OK, Environment, api, claims, print, target, wait};
use crate::cmd::help;
use crate::model::objects::volumes::BIND_COMPLETED;
use crate::platform::logging::chain;
use crate::platform::rt;

/// kubectl waits a week.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

#[derive(Debug)]
struct DeleteArgs {
    common: Common,
    namespace: Option<String>,
    files: Vec<PathBuf>,
    selector: Option<String>,
    all: bool,
    grace: Option<u64>,
    ignore_missing: bool,
    wait: bool,
    timeout: Duration,
    data: bool,
    words: Vec<String>,
}

fn parse(arguments: &[String]) -> Result<DeleteArgs, UsageError> {
    let mut wanted = DeleteArgs {
        common: Common::default(),
        namespace: None,
        files: Vec::new(),
        selector: None,
        all: false,
        grace: None,
        ignore_missing: false,
        wait: true,
        timeout: LONGEST,
        data: false,
        words: Vec::new(),
    };
    let wrong = |message: String| UsageError::Option { message };
    wanted.common = Common::parse(arguments, Has::Socket, &mut |own, parser| {
        match own {
            Own::Option("-f" | "--filename") => wanted.files.push(value(parser)?.into()),
            Own::Option("-n" | "--namespace") => wanted.namespace = Some(text(value(parser)?)),
            Own::Option("-l" | "--selector") => wanted.selector = Some(text(value(parser)?)),
            Own::Option("--all") => wanted.all = true,
            Own::Option("--now") => wanted.grace = Some(1),
            Own::Option("--force") => wanted.grace = Some(0),
            Own::Option("--grace-period") => {
                let given = text(value(parser)?);
                let message = || wrong(format!("--grace-period {given:?}: must be a number of seconds"));
                wanted.grace = Some(given.parse().map_err(|_| message())?);
            }
            Own::Option("--ignore-not-found") => wanted.ignore_missing = true,
            Own::Option("--wait") => {
                let given = parser.optional_value().map(text);
                wanted.wait = match given.as_deref() {
                    None | Some("true") => true,
                    Some("false") => false,
                    Some(other) => return Err(wrong(format!("--wait={other}: must be true or false"))),
                };
            }
            Own::Option("--timeout") => wanted.timeout = duration(parser, "--timeout", "60s")?.to_std(),
            Own::Option("--yes") => wanted.data = true,
            // Of the data of claims.
            Own::Option("--root-dir") => drop(value(parser)?),
            Own::Word(word) => wanted.words.push(word.to_owned()),
            Own::Option(_) => return Ok(false),
        }
        Ok(true)
    })?;
    if wanted.common.help {
        return Ok(wanted);
    }
    match (wanted.words.is_empty(), wanted.files.is_empty()) {
        (true, true) => Err(UsageError::NothingToDelete),
        (false, false) => Err(wrong("-f and names cannot be used together".to_owned())),
        _ => Ok(wanted),
    }
}

pub(super) fn run(arguments: &[String], environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let wanted = parse(arguments).map_err(CliError::Usage)?;
    if wanted.common.help {
        print(environment, &help::text("delete"))?;
        return Ok(EXIT_OK);
    }
    if wanted.data {
        return claims::run(arguments, environment);
    }
    let (named, kind) = if wanted.files.is_empty() {
        let (named, kind) = wait::named(&wanted.words).map_err(CliError::Usage)?;
        let namespace = wanted.namespace.as_deref().unwrap_or("default");
        let objects = named.into_iter().map(|(resource, name)| {
            let namespace = if resource.namespaced { namespace.to_owned() } else { String::new() };
            Ok(Named { resource, namespace, name, value: Value::Null })
        });
        (objects.collect(), kind)
    } else {
        (files::read(&wanted.files, wanted.namespace.as_deref())?, None)
    };
    let claims_only = !named.is_empty()
        && named.iter().all(|named| named.as_ref().is_ok_and(|named| named.resource.plural == CLAIMS));
    let deleted = rt::run(delete_all(&wanted, named, kind, environment)).map_err(CliError::Runtime)?;
    match deleted {
        // Data of claims without a definition can also be deleted while the agent is not running.
        Ok(None) => claims::run(arguments, environment),
        Err(CliError::Client(ClientError::NotRunning { .. })) if claims_only => {
            claims::run(arguments, environment)
        }
        Ok(Some(code)) => Ok(code),
        Err(error) => Err(error),
    }
}

const CLAIMS: &str = "persistentvolumeclaims";

/// The exit code; `None` if these are claims that do not exist.
async fn delete_all(
    wanted: &DeleteArgs,
    mut objects: Vec<Result<Named, CliError>>,
    kind: Option<&'static crate::serve::localapi::resource::Resource>,
    environment: &mut Environment<'_>,
) -> Result<Option<u8>, CliError> {
    let is_selected = objects.is_empty();
    if let (true, Some(resource)) = (is_selected, kind) {
        if !wanted.all && wanted.selector.is_none() {
            let message = format!("no {} specified: give names, -l or --all", resource.plural);
            return Err(CliError::Usage(UsageError::Option { message }));
        }
        let namespace = wanted.namespace.as_deref().unwrap_or("default");
        let names = api::selected(&wanted.common.socket, resource, namespace, wanted.selector.as_deref());
        let names = names.await?;
        if names.is_empty() {
            let _ = writeln!(environment.err, "No resources found");
        }
        let place = if resource.namespaced { namespace } else { "" };
        objects.extend(
            names
                .into_iter()
                .map(|name| Ok(Named { resource, namespace: place.to_owned(), name, value: Value::Null })),
        );
    }
    let (mut going, mut code) = (Vec::new(), EXIT_OK);
    let mut absent_claims = 0;
    let all = objects.len();
    for object in objects {
        let deleted = match object {
            Ok(object) => delete(wanted, object, environment).await,
            Err(error) => Err(error),
        };
        match deleted {
            Ok(Some(gone)) => going.push(gone),
            Ok(None) => absent_claims += 1,
            Err(error @ (CliError::Client(_) | CliError::Output(_))) => return Err(error),
            Err(error) => {
                let _ = writeln!(environment.err, "error: {}", chain(&error));
                code = EXIT_FAILED;
            }
        }
    }
    if absent_claims > 0 && absent_claims == all && !wanted.ignore_missing {
        return Ok(None);
    }
    let deadline = Instant::now() + wanted.timeout;
    for Gone { resource, namespace, name, uid } in going.into_iter().filter(|_| wanted.wait) {
        let is_gone = |object: Option<&Value>| object.is_none_or(|object| object["metadata"]["uid"] != uid);
        let place = (namespace.as_str(), name.as_str());
        let gone = wait::until(&wanted.common.socket, resource, place, true, deadline, &is_gone).await;
        if !gone? {
            let _ = writeln!(
                environment.err,
                "error: timed out waiting for the deletion of {}/{name}",
                resource.plural
            );
            code = EXIT_FAILED;
        }
    }
    Ok(Some(code))
}

/// An object whose deletion was accepted.
struct Gone {
    resource: &'static crate::serve::localapi::resource::Resource,
    namespace: String,
    name: String,
    uid: Value,
}

/// Sends one deletion and prints its result. `None`: the claim does not exist.
async fn delete(
    wanted: &DeleteArgs,
    object: Named,
    environment: &mut Environment<'_>,
) -> Result<Option<Gone>, CliError> {
    let Named { resource, namespace, mut name, .. } = object;
    let socket = &wanted.common.socket;
    if resource.plural == "pods"
        && let Ok(found) = target::find(socket, &namespace, &name).await
    {
        if let Some(origin) = found.manifest() {
            return Err(CliError::Answer(format!(
                "pod {:?} is defined by {origin}: remove the manifest to delete it\n{}",
                found.name(),
                found.stop_hint()
            )));
        }
        found.name().clone_into(&mut name);
    }
    let path = api::path(resource, Some(&namespace), Some(&name));
    let before = api::request(socket, Method::GET, &path, None).await?;
    if before.code == 404 {
        if resource.plural == CLAIMS {
            return Ok(None);
        }
        if wanted.ignore_missing {
            return Ok(Some(Gone { resource, namespace, name, uid: Value::Null }));
        }
    }
    let before = before.accepted()?.object;
    let uid = before["metadata"]["uid"].clone();
    let mut options = vec![("propagationPolicy", "Background".to_owned())];
    options.extend(wanted.grace.map(|grace| ("gracePeriodSeconds", grace.to_string())));
    let reply = api::request(socket, Method::DELETE, &(path + &api::query(&options)), None).await?;
    reply.accepted()?.warn(environment);
    let place = if namespace.is_empty() { String::new() } else { format!(" from {namespace} namespace") };
    let shown = printable(&name);
    print(environment, &format!("{} \"{shown}\" deleted{place}\n", resource.singular))?;
    if resource.plural == CLAIMS && has_own_directory(&before) {
        let _ = writeln!(
            environment.err,
            "Its data is kept: delete it permanently with agent delete pvc {shown} -n {namespace} --yes"
        );
    }
    Ok(Some(Gone { resource, namespace, name, uid }))
}

/// The claim's data is in the node's directory for it, which outlives it. What becomes of a PersistentVolume is decided by
/// its reclaim policy.
fn has_own_directory(claim: &Value) -> bool {
    claim["status"]["phase"] == "Bound" && claim["metadata"]["annotations"][BIND_COMPLETED].is_null()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn data_of_a_claim_is_kept_if_it_is_in_its_directory() {
        let claim = |annotations: Value, phase: &str| json!({"metadata": {"annotations": annotations}, "status": {"phase": phase}});
        assert!(has_own_directory(&claim(Value::Null, "Bound")));
        assert!(
            !has_own_directory(&claim(json!({BIND_COMPLETED: "yes"}), "Bound")),
            "it has a PersistentVolume"
        );
        assert!(!has_own_directory(&claim(Value::Null, "Pending")), "it has no data yet");
    }

    #[test]
    fn graces_and_waiting_are_read_as_kubectl_reads_them() {
        let parsed = |line: &str| parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        let wanted = parsed("pod a b --now -n x --wait=false").unwrap();
        assert_eq!((wanted.grace, wanted.wait, wanted.words.len()), (Some(1), false, 3));
        assert_eq!(parsed("po/a --force").unwrap().grace, Some(0));
        assert_eq!(parsed("-f x.yaml --grace-period=7").unwrap().grace, Some(7));
        for (line, words) in [
            ("", "nothing to delete"),
            ("pod a -f x", "-f and names"),
            ("pod a --grace-period soon", "--grace-period"),
            ("pod a --wait=maybe", "--wait=maybe"),
        ] {
            let said = parsed(line).unwrap_err().to_string();
            assert!(said.contains(words), "{line}: {said}");
        }
    }
}

//! `agent apply`: objects of manifests, created or changed through the node's API.
//!
//! Owns the command and its output.

use std::path::PathBuf;

use hyper::Method;
use serde_json::Value;

use super::args::{Common, Has, Own, UsageError, text, value};
use super::files::{self, Named};
use super::table::printable;
use super::{CliError, EXIT_FAILED, EXIT_OK, Environment, api, print};
use crate::cmd::help;
use crate::platform::logging::chain;
use crate::platform::rt;

/// Media type of a server-side apply.
const APPLY: &str = "application/apply-patch+yaml";
pub(super) const MANAGER: &str = "agent";

struct ApplyArgs {
    common: Common,
    namespace: Option<String>,
    files: Vec<PathBuf>,
    dry_run: bool,
}

fn parse(arguments: &[String]) -> Result<ApplyArgs, UsageError> {
    let mut wanted =
        ApplyArgs { common: Common::default(), namespace: None, files: Vec::new(), dry_run: false };
    wanted.common = Common::parse(arguments, Has::Socket, &mut |own, parser| {
        match own {
            Own::Option("-f" | "--filename") => wanted.files.push(value(parser)?.into()),
            Own::Option("-n" | "--namespace") => wanted.namespace = Some(text(value(parser)?)),
            Own::Option("--dry-run") => {
                wanted.dry_run = parser.optional_value().is_none_or(|given| given == "server");
                if !wanted.dry_run {
                    let message = "--dry-run: only server-side dry run is supported: omit the value, or use \
                                   --dry-run=server";
                    return Err(UsageError::Option { message: message.to_owned() });
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    if wanted.files.is_empty() && !wanted.common.help {
        let message = "must specify -f: agent apply -f FILE".to_owned();
        return Err(UsageError::Option { message });
    }
    Ok(wanted)
}

pub(super) fn run(arguments: &[String], environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let wanted = parse(arguments).map_err(CliError::Usage)?;
    if wanted.common.help {
        print(environment, &help::text("apply"))?;
        return Ok(EXIT_OK);
    }
    let objects = files::read(&wanted.files, wanted.namespace.as_deref())?;
    rt::run(apply_all(&wanted, objects, environment)).map_err(CliError::Runtime)?
}

async fn apply_all(
    wanted: &ApplyArgs,
    objects: Vec<Result<Named, CliError>>,
    environment: &mut Environment<'_>,
) -> Result<u8, CliError> {
    let mut code = EXIT_OK;
    for object in objects {
        let applied = match object {
            Ok(object) => apply(wanted, &object, environment).await,
            Err(error) => Err(error),
        };
        match applied {
            Ok(line) => print(environment, &line)?,
            // The other objects cannot be applied either.
            Err(error @ (CliError::Client(_) | CliError::Output(_))) => return Err(error),
            Err(error) => {
                let _ = writeln!(environment.err, "error: {}", chain(&error));
                code = EXIT_FAILED;
            }
        }
    }
    Ok(code)
}

/// An object without the fields that the node changes itself: its status, and with it its version.
fn described(mut object: Value) -> Value {
    if let Some(members) = object.as_object_mut() {
        members.remove("status");
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
        metadata.remove("managedFields");
    }
    object
}

/// Applies an object and returns the line about the result, as kubectl's.
async fn apply(
    wanted: &ApplyArgs,
    object: &Named,
    environment: &mut Environment<'_>,
) -> Result<String, CliError> {
    let (socket, resource) = (&wanted.common.socket, object.resource);
    let path = api::path(resource, Some(&object.namespace), Some(&object.name));
    let before = api::request(socket, Method::GET, &path, None).await?;
    let existed = before.code == 200;
    let earlier = existed.then(|| described(before.object));
    let mut options = vec![
        ("fieldManager", MANAGER.to_owned()),
        // The latest manifest wins, as with `kubectl apply`, whichever manager owns the field.
        ("force", "true".to_owned()),
        ("fieldValidation", "Strict".to_owned()),
    ];
    if wanted.dry_run {
        options.push(("dryRun", "All".to_owned()));
    }
    let path = path + &api::query(&options);
    let reply = api::request(socket, Method::PATCH, &path, Some((APPLY, &object.value))).await?;
    let is_fixed = reply.code == 422 && existed && resource.plural == "pods";
    let reply = reply.accepted().map_err(|error| match error {
        CliError::Answer(words) if is_fixed => CliError::Answer(format!(
            "{words}\nTo replace the pod, run agent delete pod {} -n {} and apply it again",
            object.name, object.namespace
        )),
        error => error,
    })?;
    reply.warn(environment);
    let done = match earlier {
        None => "created",
        Some(earlier) if earlier == described(reply.object) => "unchanged",
        Some(_) => "configured",
    };
    let note = if wanted.dry_run { " (server dry run)" } else { "" };
    Ok(format!("{}/{} {done}{note}\n", resource.singular, printable(&object.name)))
}

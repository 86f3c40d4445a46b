//! `agent source accept`: accepts an empty answer of a source, or a cluster that was replaced, as intended.
//!
//! Owns the command.

use crate::cmd::help;
use hyper::Method;

use super::args::{Common, Has, Own, UsageError};
use super::{CliError, EXIT_OK, Environment, api, client, print};

pub(super) fn run(arguments: &[String], environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let mut words = Vec::new();
    let common = Common::parse(arguments, Has::Socket, &mut |own, _| match own {
        Own::Word(word) if words.len() < 2 => {
            words.push(word.to_owned());
            Ok(true)
        }
        _ => Ok(false),
    })
    .map_err(CliError::Usage)?;
    if common.help {
        print(environment, &help::text("source"))?;
        return Ok(EXIT_OK);
    }
    let [word, source] = words.as_slice() else {
        let message = "missing source name: agent source accept file, or agent source accept http".to_owned();
        return Err(CliError::Usage(UsageError::Option { message }));
    };
    if word != "accept" {
        return Err(CliError::Usage(UsageError::Unexpected { given: word.clone() }));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(CliError::Runtime)?;
    let resource = format!("/agent/v1/sources/{}/accept", client::escaped(source));
    let reply = runtime.block_on(api::request(&common.socket, Method::POST, &resource, None))?.accepted()?;
    let words = reply.object.as_str().unwrap_or_default();
    print(environment, &[words, "\n"].concat())?;
    Ok(EXIT_OK)
}

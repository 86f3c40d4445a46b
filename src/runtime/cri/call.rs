//! One gRPC call: its time limit and what its failure means.
//!
//! Owns the mapping of gRPC's errors.

use std::error::Error;
use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::time::error::Elapsed;
use tonic::{Code, Response, Status};

use crate::runtime::{ErrorKind, RuntimeError};

/// Waits at most `limit`. A timeout cancels the call at the runtime, if the runtime honours cancellation.
pub(super) async fn bounded<T>(
    call: &'static str,
    limit: Duration,
    answer: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, RuntimeError> {
    match tokio::time::timeout(limit, unbounded(call, answer)).await {
        Ok(answer) => answer,
        Err(_) => Err(RuntimeError::new(call, ErrorKind::Timeout, format!("no response within {limit:?}"))),
    }
}

/// Waits as long as the connection lives.
pub(super) async fn unbounded<T>(
    call: &'static str,
    answer: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, RuntimeError> {
    answer.await.map(Response::into_inner).map_err(|status| error_from_status(call, &status))
}

/// The result of a command in a container. The command has timed out when the runtime reports that, or does
/// not answer at all; a broken connection says nothing about the command.
pub(super) fn command_answer<T>(
    command: &[String],
    outcome: Result<Result<Response<T>, Status>, Elapsed>,
) -> Result<T, RuntimeError> {
    let call = "ExecSync";
    let status = match outcome {
        Ok(Ok(answer)) => return Ok(answer.into_inner()),
        Ok(Err(status)) => status,
        Err(_) => Status::deadline_exceeded("no response"),
    };
    let error = error_from_status(call, &status);
    Err(match error.kind {
        ErrorKind::Timeout if status.source().is_none() => {
            RuntimeError::new(call, ErrorKind::Timeout, format!("command {:?} timed out", command.join(" ")))
        }
        ErrorKind::Timeout => RuntimeError { kind: ErrorKind::Unavailable, ..error },
        _ => error,
    })
}

/// A field that every answer must have.
pub(super) fn answered<T>(call: &'static str, value: Option<T>) -> Result<T, RuntimeError> {
    value.ok_or_else(|| RuntimeError::new(call, ErrorKind::Refused, "the runtime's response is empty"))
}

/// For calls that want an object gone.
pub(super) fn forgive_not_found<T>(answer: Result<T, RuntimeError>) -> Result<(), RuntimeError> {
    match answer {
        Ok(_) => Ok(()),
        Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

pub(super) fn error_from_status(call: &'static str, status: &Status) -> RuntimeError {
    if let Some(cause) = status.source() {
        return transport_error(call, cause);
    }
    let kind = match status.code() {
        Code::Unavailable => ErrorKind::Unavailable,
        Code::DeadlineExceeded => ErrorKind::Timeout,
        Code::NotFound => ErrorKind::NotFound,
        Code::AlreadyExists => ErrorKind::AlreadyExists,
        // Runtimes report a reserved name as an error without code.
        Code::Unknown if status.message().contains("is reserved for") => ErrorKind::AlreadyExists,
        Code::Unimplemented => ErrorKind::Unimplemented,
        _ => ErrorKind::Refused,
    };
    RuntimeError::new(call, kind, status.message())
}

/// The server never answered: either there is no connection, or it broke during the call, which may have had
/// its effect by then.
fn transport_error(call: &'static str, cause: &(dyn Error + 'static)) -> RuntimeError {
    let chain: Vec<_> = std::iter::successors(Some(cause), |error| Error::source(*error)).collect();
    let never_sent = chain.iter().any(|error| error.is::<tonic::ConnectError>());
    let kind = if never_sent { ErrorKind::Unavailable } else { ErrorKind::Timeout };
    let told = chain.iter().find(|error| error.is::<io::Error>()).or(chain.last());
    RuntimeError::new(call, kind, told.map_or_else(String::new, ToString::to_string))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_codes_become_what_callers_tell_apart() {
        let reserved = "failed to reserve sandbox name \"a\": name \"a\" is reserved for \"1\"";
        for (status, kind) in [
            (Status::unavailable("x"), ErrorKind::Unavailable),
            (Status::deadline_exceeded("x"), ErrorKind::Timeout),
            (Status::not_found("x"), ErrorKind::NotFound),
            (Status::already_exists("x"), ErrorKind::AlreadyExists),
            (Status::unknown(reserved), ErrorKind::AlreadyExists),
            (Status::unimplemented("x"), ErrorKind::Unimplemented),
            (Status::unknown("x"), ErrorKind::Refused),
            (Status::invalid_argument("x"), ErrorKind::Refused),
            (Status::internal("x"), ErrorKind::Refused),
        ] {
            let error = error_from_status("Status", &status);
            assert_eq!(error.kind, kind, "{status}");
            assert_eq!(error.message, status.message(), "the runtime's own words");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn command_timeout_is_the_same_from_client_and_runtime() {
        let command = ["sleep".to_owned(), "60".to_owned()];
        let elapsed = tokio::time::timeout(Duration::ZERO, std::future::pending()).await;
        for outcome in [elapsed, Ok(Err(Status::deadline_exceeded("timeout 1s exceeded")))] {
            let error = command_answer::<()>(&command, outcome).unwrap_err();
            assert_eq!(
                (error.kind, error.message.as_str()),
                (ErrorKind::Timeout, "command \"sleep 60\" timed out")
            );
        }
        let broken = Status::from_error(Box::new(io::Error::other("broken pipe")));
        let error = command_answer::<()>(&command, Ok(Err(broken))).unwrap_err();
        assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Unavailable, "broken pipe"));
        let error = command_answer::<()>(&command, Ok(Err(Status::not_found("gone")))).unwrap_err();
        assert_eq!(error.kind, ErrorKind::NotFound);
    }

    #[test]
    fn only_calls_that_want_a_thing_gone_forgive_that_it_is() {
        let failed = |kind| forgive_not_found::<()>(Err(RuntimeError::new("StopContainer", kind, "x")));
        assert!(failed(ErrorKind::NotFound).is_ok());
        assert!(failed(ErrorKind::Unavailable).is_err());
    }
}

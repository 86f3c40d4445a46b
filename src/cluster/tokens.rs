//! Tokens of service accounts, bound to pods of this node: the task `cluster tokens`.
//!
//! Owns when each token is asked for. Decisions are in `rules`; the tokens are in [`Facts`].

pub(crate) mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use crate::cluster::client::Client;
use crate::cluster::client::error::{ApiError, ApiErrorKind};
use crate::cluster::client::request::ResourcePath;
use crate::cluster::client::transport::{Lane, Transport};
use crate::cluster::facts::{FactChange, Facts, GRAPH_LAG, TokenFact, token_gone, token_row};
use crate::cluster::tokens::rules::{
    NoToken, Token, after_failure, body, due, from_answer, is_written, renew_at,
};
use crate::model::back_off::Retry;
use crate::model::objects::{Absence, TokenRequest};
use crate::model::types::Timestamp;
use crate::platform::clock::Clock;
use crate::platform::dice::Dice;
use crate::platform::rt;

const FIRST_RETRY: Duration = Duration::from_millis(500);
const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// Answers that are not taken yet.
const ANSWERS: usize = 8;

pub(crate) struct TokensParts<T> {
    pub client: Rc<Client<T>>,
    pub clock: Clock,
    pub dice: Dice,
    pub facts: Rc<Facts>,
    pub on_row: Rc<dyn Fn(FactChange)>,
}

/// The pods that need tokens.
pub(crate) trait TokenUsers {
    fn wanted(&self) -> BTreeSet<TokenRequest>;
    /// An answer about a token has come.
    fn publish(&self);
}

/// When a token is asked for.
struct TokenTimes {
    /// `None` while a request is on its way.
    due: Option<Instant>,
    retry: Retry,
    has_failed: bool,
    /// The first 403 since the last answer.
    refused: Option<Instant>,
    /// When its row was written.
    written: Option<Timestamp>,
}

type TokenAnswer = (TokenRequest, Result<Value, ApiError>);

struct TokenTask<T> {
    parts: TokensParts<T>,
    times: BTreeMap<TokenRequest, TokenTimes>,
    answers: mpsc::Sender<TokenAnswer>,
}

/// Ends with `users`.
pub(crate) async fn run<T: Transport>(
    parts: TokensParts<T>,
    users: Weak<dyn TokenUsers>,
    mut needed: watch::Receiver<u64>,
) {
    let (answers, mut answered) = mpsc::channel(ANSWERS);
    let mut task = TokenTask { parts, times: BTreeMap::new(), answers };
    if needed.changed().await.is_err() {
        return;
    }
    loop {
        {
            let Some(users) = users.upgrade() else { return };
            task.begin_and_end(&*users);
        }
        task.ask();
        let due = task.times.values().filter_map(|times| times.due).min();
        tokio::select! {
            biased;
            // Cancel safe, all: an answer stays in the channel until it is taken.
            changed = needed.changed() => {
                if changed.is_err() {
                    return;
                }
                let failed = task.times.values_mut().filter(|times| times.has_failed && times.due.is_some());
                failed.for_each(|times| times.due = Some(Instant::now()));
            }
            Some((request, answer)) = answered.recv() => {
                task.take(&request, answer);
                if let Some(users) = users.upgrade() {
                    users.publish();
                }
            }
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
        }
    }
}

impl<T: Transport> TokenTask<T> {
    /// Drops the tokens that no pod needs any more; new ones are asked for now, restored ones at their times.
    fn begin_and_end(&mut self, users: &dyn TokenUsers) {
        let wanted = users.wanted();
        self.times.retain(|request, _| wanted.contains(request));
        let facts = &self.parts.facts;
        for request in facts.token_requests().into_iter().filter(|request| !wanted.contains(request)) {
            facts.set_token(&request, None);
            (self.parts.on_row)(token_gone(&request));
        }
        let now = self.parts.clock.now();
        for request in wanted {
            if self.times.contains_key(&request) {
                continue;
            }
            let known = facts.token_fact(&request).and_then(|fact| fact.token);
            let wait = known.as_ref().map(|token| self.wait(token, now)).unwrap_or_default();
            let times = TokenTimes {
                due: Some(Instant::now() + wait),
                retry: Retry::new(FIRST_RETRY, LONGEST_RETRY),
                has_failed: false,
                refused: None,
                written: known.map(|token| token.received),
            };
            self.times.insert(request, times);
        }
    }

    /// Until the token is renewed. Timers do not follow the wall clock when it is set.
    fn wait(&self, token: &Token, now: Timestamp) -> Duration {
        let unit = self.parts.dice.unit();
        if due(token, now, unit) { Duration::ZERO } else { renew_at(token, unit).saturating_since(now) }
    }

    /// Sends the requests that are due.
    fn ask(&mut self) {
        let now = Instant::now();
        for (request, times) in &mut self.times {
            if times.due.is_none_or(|due| due > now) {
                continue;
            }
            times.due = None;
            let (client, answers) = (Rc::clone(&self.parts.client), self.answers.clone());
            let request = request.clone();
            drop(rt::spawn("cluster token", async move {
                let path =
                    ResourcePath::namespaced("", "serviceaccounts", &request.namespace, &request.account);
                let answer = client.create(Lane::Main, &path.with_part("token"), &body(&request)).await;
                // The task may have ended.
                let _ = answers.send((request, answer)).await;
            }));
        }
    }

    fn take(&mut self, request: &TokenRequest, answer: Result<Value, ApiError>) {
        let now = self.parts.clock.now();
        let answer = answer.and_then(|answer| {
            from_answer(&answer, request, now).map_err(|why| ApiError::not_an_apiserver(201, &why))
        });
        let token = match answer {
            Ok(token) => token,
            Err(error) => return self.fail(request, &error, now),
        };
        let wait = self.wait(&token, now);
        // No pod needs it any more.
        let Some(times) = self.times.get_mut(request) else { return };
        times.retry.reset();
        (times.has_failed, times.refused, times.due) = (false, None, Some(Instant::now() + wait));
        if is_written(times.written, now) {
            times.written = Some(now);
            (self.parts.on_row)(token_row(request, &token));
        }
        let given = Ok(Rc::clone(&token.value));
        self.parts.facts.set_token(request, Some(TokenFact { token: Some(token), given }));
    }

    fn fail(&mut self, request: &TokenRequest, error: &ApiError, now: Timestamp) {
        let unit = self.parts.dice.unit();
        let Some(times) = self.times.get_mut(request) else { return };
        let has_failed_before = std::mem::replace(&mut times.has_failed, true);
        times.due = Some(Instant::now() + times.retry.delay_with(unit));
        let why = match error.kind {
            ApiErrorKind::NotFound => NoToken::Gone,
            ApiErrorKind::TooMany | ApiErrorKind::NoTurn => NoToken::Offline,
            _ if error.is_offline() => NoToken::Offline,
            _ => NoToken::Refused,
        };
        let fact = self.parts.facts.token_fact(request);
        let token = fact.and_then(|fact| fact.token);
        let is_lag = error.kind == ApiErrorKind::Forbidden
            && times.refused.get_or_insert_with(Instant::now).elapsed() < GRAPH_LAG;
        if is_lag && token.is_none() {
            return;
        }
        let given =
            after_failure(token.as_ref(), request, why, &error.message, now).map_err(Absence::Refused);
        if given.is_err() && !has_failed_before {
            log::warn!(pod = request.pod.to_string(), err = error.message.as_str(); "No token for pod");
        }
        let token = token.filter(|_| why != NoToken::Gone);
        if token.is_none() && times.written.take().is_some() {
            (self.parts.on_row)(token_gone(request));
        }
        self.parts.facts.set_token(request, Some(TokenFact { token, given }));
    }
}

#[cfg(test)]
mod tests;

//! Questions to the cluster about users of the kubelet's API: who they are, and what they may do.
//!
//! Expected flow: a question is answered from the cache, by the call of another caller that asks the same, or by a call
//! of its own. A call ends when its caller does; another one that waits for it then asks itself.
//!
//! Guarantees: without an answer of the cluster there is none, and who is not in the cache does not get in; answers about
//! a user are never replaced by what the node thinks of the user's groups.

pub(crate) mod rules;

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

use crate::cluster::client::Client;
use crate::cluster::client::error::ApiError;
use crate::cluster::client::request::ResourcePath;
use crate::cluster::client::transport::{Lane, Transport};
use crate::platform::clock::Clock;
use crate::platform::dice::Dice;
use rules::{Asked, QuestionKey, ReviewAnswer, ReviewCache, ReviewTimes, ReviewedUser};

/// As upstream: of a question with all its tries.
const LONGEST: Duration = Duration::from_secs(10);
/// Questions on the way to the server. Clients that make tokens up must not take the lease's connection.
const MOST_CALLS: usize = 32;

type ReviewCall = Box<dyn Fn(ResourcePath, Value) -> Pin<Box<dyn Future<Output = Result<Value, ApiError>>>>>;

/// An answer, or why there is none.
type Reviewed = Result<ReviewAnswer, String>;

/// Asks the cluster once [`connect`](Self::connect) has been called; until then it has no answer.
pub(crate) struct Reviews {
    node_name: String,
    /// Behind a pointer, so that servers do not depend on the transport.
    call: OnceCell<ReviewCall>,
    cache: RefCell<ReviewCache>,
    /// Where callers wait for the answer to another caller's question.
    asked: RefCell<BTreeMap<QuestionKey, watch::Receiver<Option<Reviewed>>>>,
    room: Semaphore,
    clock: Clock,
    dice: Dice,
    /// The last problem that was logged.
    trouble: RefCell<String>,
}

impl Reviews {
    #[must_use]
    pub(crate) fn new(node_name: &str, times: ReviewTimes, clock: Clock, dice: Dice) -> Rc<Self> {
        Rc::new(Self {
            node_name: node_name.to_owned(),
            call: OnceCell::new(),
            cache: RefCell::new(ReviewCache::new(times)),
            asked: RefCell::default(),
            room: Semaphore::new(MOST_CALLS),
            clock,
            dice,
            trouble: RefCell::default(),
        })
    }

    /// Asks with this client from now on, the node's own. The first one stays.
    pub(crate) fn connect<T: Transport>(&self, client: Rc<Client<T>>) {
        let call: ReviewCall = Box::new(move |path, body| {
            let client = Rc::clone(&client);
            Box::pin(async move { client.create(Lane::Heartbeat, &path, &body).await })
        });
        let _ = self.call.set(call);
    }

    /// The user of a token; `None` when it is of no user.
    ///
    /// # Errors
    /// The cluster did not say: the text is why.
    pub(crate) async fn user(&self, token: &str) -> Result<Option<Rc<ReviewedUser>>, String> {
        let path = ResourcePath::whole("authentication.k8s.io", "tokenreviews", "");
        let answer = self.answer(path, rules::token_review(token), rules::read_token_review).await?;
        Ok(if let ReviewAnswer::User(user) = answer { Some(user) } else { None })
    }

    /// Whether a user may do this to a subresource of the node.
    ///
    /// # Errors
    /// The cluster did not say: the text is why.
    pub(crate) async fn allows(
        &self,
        user: &ReviewedUser,
        verb: &str,
        subresource: &str,
    ) -> Result<bool, String> {
        let path = ResourcePath::whole("authorization.k8s.io", "subjectaccessreviews", "");
        let question = rules::access_review(user, verb, subresource, &self.node_name);
        Ok(self.answer(path, question, rules::read_access_review).await? == ReviewAnswer::Allowed)
    }

    async fn answer(&self, path: ResourcePath, question: Value, read: fn(&Value) -> Reviewed) -> Reviewed {
        let key = rules::key(&question);
        loop {
            let asked = self.cache.borrow_mut().ask(key, self.clock.since_boot());
            match asked {
                Asked::Known(answer) => return Ok(answer),
                Asked::Join => {
                    let waits = self.asked.borrow().get(&key).cloned();
                    let Some(mut waits) = waits else { return Err("the question is lost".to_owned()) };
                    let shared = waits.wait_for(Option::is_some).await.ok().and_then(|shared| shared.clone());
                    if let Some(shared) = shared {
                        return shared;
                    }
                    // The caller that asked is gone.
                }
                Asked::Ask => {
                    let (sender, receiver) = watch::channel(None);
                    self.asked.borrow_mut().insert(key, receiver);
                    let mut call = StartedCall { reviews: self, key, answer: None };
                    let limit = || Err(format!("no answer within {}s", LONGEST.as_secs()));
                    let asking = timeout(LONGEST, self.call(&path, &question, read)).await;
                    let reviewed = asking.unwrap_or_else(|_| limit());
                    call.answer = reviewed.as_ref().ok().cloned();
                    // The answer is in the cache before those that wait for it go on.
                    drop(call);
                    sender.send_replace(Some(reviewed.clone()));
                    return reviewed;
                }
            }
        }
    }

    /// Asks, and again as upstream does.
    async fn call(&self, path: &ResourcePath, question: &Value, read: fn(&Value) -> Reviewed) -> Reviewed {
        let Some(call) = self.call.get() else {
            return Err("the node is not connected to its cluster yet".to_owned());
        };
        let _room = self.room.acquire().await.map_err(|error| error.to_string())?;
        let mut tries = 0;
        loop {
            tries += 1;
            let error = match call(path.clone(), question.clone()).await {
                Ok(review) => {
                    self.trouble.borrow_mut().clear();
                    return read(&review);
                }
                Err(error) => error,
            };
            let status = (error.status > 0).then_some(error.status);
            let wait = rules::is_asked_again(status, error.retry_after.is_some())
                .then(|| rules::next_try(tries, self.dice.unit()))
                .flatten();
            let Some(wait) = wait else { return Err(self.report(&error)) };
            sleep(error.retry_after.map_or(wait, |asked| asked.max(wait))).await;
        }
    }

    /// Logs a problem once, until there is another one or an answer.
    fn report(&self, error: &ApiError) -> String {
        let text = error.to_string();
        let mut trouble = self.trouble.borrow_mut();
        if *trouble != text {
            log::warn!(err = text.as_str(); "The cluster does not answer who may use the kubelet's API: access denied");
            trouble.clone_from(&text);
        }
        text
    }
}

/// A question that is being asked. However that ends, it is asked no more.
struct StartedCall<'a> {
    reviews: &'a Reviews,
    key: QuestionKey,
    answer: Option<ReviewAnswer>,
}

impl Drop for StartedCall<'_> {
    fn drop(&mut self) {
        self.reviews.asked.borrow_mut().remove(&self.key);
        let now = self.reviews.clock.since_boot();
        self.reviews.cache.borrow_mut().answered(self.key, self.answer.as_ref(), now);
    }
}

#[cfg(test)]
mod tests;

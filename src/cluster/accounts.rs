//! Service accounts for programs that provide credentials for pulls: the accounts, and tokens bound to pods.
//!
//! Owns the tokens, which are in memory only. Accounts are read at each pull: nothing tells when they change.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Value, json};

use crate::cluster::client::Client;
use crate::cluster::client::request::ResourcePath;
use crate::cluster::client::transport::{Accept, Lane, Transport};
use crate::cluster::tokens::rules::{Token, body, due, from_answer};
use crate::model::objects::TokenRequest;
use crate::platform::clock::Clock;
use crate::pod::image::{AccountAnswer, ServiceAccounts};

/// Tokens that are kept: as many pods as a large node has.
const MOST_TOKENS: usize = 256;

type AccountCall = Box<dyn Fn(ResourcePath, Option<Value>) -> AccountAnswer<Value>>;

/// The way to the cluster.
struct Way {
    call: AccountCall,
    is_online: Rc<dyn Fn() -> bool>,
}

/// Asks the cluster once [`connect`](Self::connect) has been called; until then it has no answer.
pub(crate) struct Accounts {
    way: OnceCell<Way>,
    /// By request and the account's uid.
    tokens: RefCell<BTreeMap<(TokenRequest, String), Token>>,
    clock: Clock,
}

impl Accounts {
    #[must_use]
    pub(crate) fn new(clock: Clock) -> Rc<Self> {
        Rc::new(Self { way: OnceCell::new(), tokens: RefCell::default(), clock })
    }

    /// Asks with this client from now on, the node's own. The first one stays.
    pub(crate) fn connect<T: Transport>(&self, client: Rc<Client<T>>, is_online: Rc<dyn Fn() -> bool>) {
        let call: AccountCall = Box::new(move |path, body| {
            let client = Rc::clone(&client);
            Box::pin(async move {
                let answer = match body {
                    Some(body) => client.create(Lane::Main, &path, &body).await,
                    None => client.get(Lane::Main, &path, Accept::Json).await,
                };
                answer.map_err(|error| error.to_string())
            })
        });
        let _ = self.way.set(Way { call, is_online });
    }

    fn ask(&self, path: ResourcePath, body: Option<Value>) -> AccountAnswer<Value> {
        match self.way.get() {
            Some(way) => (way.call)(path, body),
            None => Box::pin(async { Err("the cluster has not been reached yet".to_owned()) }),
        }
    }
}

fn path(namespace: &str, name: &str) -> ResourcePath {
    ResourcePath::namespaced("", "serviceaccounts", namespace, name)
}

impl ServiceAccounts for Accounts {
    fn is_online(&self) -> bool {
        self.way.get().is_some_and(|way| (way.is_online)())
    }

    fn account(&self, namespace: &str, name: &str) -> AccountAnswer<Value> {
        self.ask(path(namespace, name), None)
    }

    fn token(self: Rc<Self>, request: TokenRequest, uid: &str) -> AccountAnswer<Rc<str>> {
        let key = (request, uid.to_owned());
        Box::pin(async move {
            let now = self.clock.now();
            self.tokens.borrow_mut().retain(|_, token| !due(token, now, 0.0));
            if let Some(token) = self.tokens.borrow().get(&key) {
                return Ok(Rc::clone(&token.value));
            }
            let (request, uid) = &key;
            let mut body = body(request);
            // A new account of the same name is refused.
            body["metadata"] = json!({"uid": uid});
            let path = path(&request.namespace, &request.account).with_part("token");
            let answer = self.ask(path, Some(body)).await?;
            let token = from_answer(&answer, request, self.clock.now())?;
            let value = Rc::clone(&token.value);
            let mut tokens = self.tokens.borrow_mut();
            if tokens.len() < MOST_TOKENS {
                tokens.insert(key, token);
            }
            Ok(value)
        })
    }
}

#[cfg(test)]
mod tests;

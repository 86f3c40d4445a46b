//! The servers of a running kubelet: the node's HTTPS API, the local API.
//!
//! Owns which parts each gets.

use std::rc::Rc;

use super::{AgentParts, Served, SetupError, configs, node_facts};
use crate::agent::config::Resolved;
use crate::agent::kubelet::joined::{self, Joined};
use crate::agent::kubelet::local_node;
use crate::agent::kubelet::node_service::{NodeService, SandboxStreams};
use crate::agent::kubelet::serving::{self, ServingParts};
use crate::platform::rt;
use crate::runtime::Runtime;
use crate::serve::localapi::ApiOptions;
use crate::serve::roles::Roles;
use crate::serve::server;
use crate::serve::server::node::SharedNode;

impl<R: Runtime> AgentParts<R> {
    /// Starts the servers. Run-once has none: it ends before a client could connect.
    pub(super) async fn start_servers(
        &self,
        resolved: &Resolved,
    ) -> Result<(Vec<tokio::task::JoinHandle<()>>, Option<Served>), SetupError>
    where
        R: SandboxStreams,
    {
        if resolved.kubelet.run_once {
            return Ok((Vec::new(), None));
        }
        let listener = server::bind(&resolved.flags.agent_socket).await.map_err(SetupError::Listen)?;
        let node: SharedNode = Rc::new(NodeService {
            name: resolved.node_name.clone(),
            configuration: self.configuration.clone(),
            flags: resolved.flag_values(),
            stream_idle_timeout: resolved.kubelet.streaming_connection_idle_timeout.to_std(),
            view: Rc::clone(&self.view),
            statuses: Rc::clone(&self.statuses),
            events: self.events.clone(),
            accepts: self.accepts.clone(),
            runtime: Rc::clone(&self.runtime),
            editor: self.editor.clone(),
            store: self.store.clone(),
            stats: self.stats(resolved),
        });
        let parts = (&self.view, &self.statuses, &self.objects, &self.events, &self.clock);
        let options = ApiOptions {
            is_alone: !joined::is_joined(resolved),
            keeps_unacted: resolved.flags.unacted_kinds != "refuse",
        };
        let writes = (&self.editor, &self.revisions, options);
        let executor = self.executor.as_ref();
        let state = node_facts::node_state(resolved, executor, self.clock.now());
        let images = usize::try_from(resolved.kubelet.node_status_max_images).ok();
        let devices = executor.map(|with| with.devices.clone());
        let in_use = self.joined.as_ref().map(Joined::volumes_in_use);
        let roles = Rc::new(Roles::new(self.accounts.as_ref().map(|_| Rc::clone(&self.objects))));
        let access = (self.accounts.clone(), Rc::clone(&roles));
        let (delegate, facts) =
            local_node::local_api(state, images, devices, in_use, &node, parts, writes, access);
        let reviews = serving::reviews(resolved, &self.clock);
        let config = configs::serving(resolved, reviews.as_ref());
        let parts = ServingParts {
            node: &node,
            delegate: &delegate,
            accounts: self.accounts.as_ref(),
            roles: &roles,
        };
        let mut tasks = serving::start(config, &parts, &self.view, &self.clock);
        let (begun, clock, shared) = (Rc::clone(&self.view), self.clock.clone(), Rc::clone(&node));
        tasks.push(rt::spawn("local API", async move {
            // Earlier clients wait in the socket's backlog.
            begun.wait_until_restored().await;
            server::serve(listener, node, Some(delegate), clock).await;
        }));
        Ok((tasks, Some(Served { node: shared, facts, reviews })))
    }
}

//! The commands that let machines join, and what is said when the first node is ready.
//!
//! Pure: the cluster's address, its authorities and the tokens in, text out. Words are kubeadm's; the agent's command stands first.

use crate::cluster::discovery::jws::shown_pin;
use crate::platform::x509::{CERTIFICATE, pem_blocks};

/// What stands in the place of a token or key that is not to be shown.
pub(crate) const WITHHELD: &str = "<value withheld>";

/// What a machine that joins has to know.
pub(crate) struct Join<'a> {
    /// `https://host:port`, of `admin.conf`.
    pub server: &'a str,
    /// The cluster's authorities, PEM.
    pub authorities: &'a str,
    pub token: &'a str,
}

impl Join<'_> {
    /// In kubeadm's lines: the words of `program`, a pin for each authority, and for a control-plane node its key.
    #[must_use]
    pub(crate) fn command(&self, program: &str, key: Option<&str>) -> String {
        let endpoint = self.server.trim_start_matches("https://");
        let mut command = format!("{program} join {endpoint} --token {} \\\n\t", self.token);
        for certificate in pem_blocks(self.authorities, CERTIFICATE) {
            command.push_str("--discovery-token-ca-cert-hash ");
            command.push_str(&shown_pin(&certificate));
            command.push(' ');
        }
        match key {
            None => {}
            Some("") => command.push_str("\\\n\t--control-plane "),
            Some(key) => {
                command.push_str("\\\n\t--control-plane --certificate-key ");
                command.push_str(key);
            }
        }
        command
    }

    /// In one line, without tabs and line breaks.
    #[must_use]
    pub(crate) fn line(&self, program: &str, key: Option<&str>) -> String {
        self.command(program, key).replace("\\\n", "").replace('\t', "")
    }
}

/// The agent's command, and kubeadm's.
fn both(join: &Join<'_>, key: Option<&str>) -> String {
    let command = |program| join.command(program, key);
    format!(
        "{}\n\nor, on a machine with the kubelet and kubeadm:\n\n{}\n",
        command("agent"),
        command("kubeadm")
    )
}

/// What `init` ends with. `control_plane`: what further control-plane nodes need: an endpoint that stays when this node is away, and
/// the key of uploaded certificates, empty if none were.
#[must_use]
pub(crate) fn done(join: &Join<'_>, admin: &str, control_plane: Option<&str>) -> String {
    let mut text = format!(
        "\nYour Kubernetes control-plane has initialized successfully!\n\n\
         To start using your cluster, you need to run the following as a regular user:\n\n  \
         mkdir -p $HOME/.kube\n  sudo cp -i {admin} $HOME/.kube/config\n  sudo chown $(id -u):$(id -g) $HOME/.kube/config\n\n\
         Alternatively, if you are the root user, you can run:\n\n  export KUBECONFIG={admin}\n\n\
         You should now deploy a pod network to the cluster.\n\
         Run \"kubectl apply -f [podnetwork].yaml\" with one of the options listed at:\n  \
         https://kubernetes.io/docs/concepts/cluster-administration/addons/\n\n"
    );
    if let Some(key) = control_plane {
        if key.is_empty() {
            text.push_str(
                "You can now join any number of control-plane nodes by copying certificate authorities\n\
                 and service account keys on each node and then running the following as root:\n\n",
            );
        } else {
            text.push_str("You can now join any number of control-plane nodes running the following command on each as root:\n\n");
        }
        text.push_str(&both(join, Some(key)));
        text.push('\n');
        if !key.is_empty() {
            text.push_str(
                "Please note that the certificate-key gives access to cluster sensitive data, keep it secret!\n\
                 As a safeguard, uploaded-certs will be deleted in two hours; If necessary, you can use\n\
                 \"agent init phase upload-certs --upload-certs\" to reload certs afterward.\n\n",
            );
        }
    }
    text.push_str(
        "Then you can join any number of worker nodes by running the following on each as root:\n\n",
    );
    text.push_str(&both(join, None));
    text
}

#[cfg(test)]
mod tests;

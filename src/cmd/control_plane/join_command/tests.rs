use rcgen::{CertificateParams, KeyPair};

use super::*;

fn authority() -> String {
    CertificateParams::new(Vec::new()).unwrap().self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
}

#[test]
fn commands_are_kubeadms() {
    let authority = authority();
    let join =
        Join { server: "https://192.0.2.10:6443", authorities: &authority, token: "abcdef.0123456789abcdef" };
    let pin = shown_pin(&pem_blocks(&authority, CERTIFICATE)[0]);
    let worker = format!(
        "kubeadm join 192.0.2.10:6443 --token abcdef.0123456789abcdef \\\n\t--discovery-token-ca-cert-hash {pin} "
    );
    assert_eq!(join.command("kubeadm", None), worker);
    assert_eq!(
        join.command("agent", Some("00ff")),
        format!("{}\\\n\t--control-plane --certificate-key 00ff", worker.replace("kubeadm", "agent"))
    );
    assert_eq!(join.command("kubeadm", Some("")), format!("{worker}\\\n\t--control-plane "));
    assert_eq!(
        join.line("kubeadm", None),
        format!(
            "kubeadm join 192.0.2.10:6443 --token abcdef.0123456789abcdef --discovery-token-ca-cert-hash {pin} "
        )
    );
    assert!(pin.starts_with("sha256:") && pin.len() == 71, "{pin}");
    let both = Join { authorities: &authority.repeat(2), ..join };
    assert_eq!(both.command("kubeadm", None).matches("--discovery-token-ca-cert-hash").count(), 2);
}

#[test]
fn the_last_words_tell_what_can_be_done_now() {
    let authority = authority();
    let join = Join { server: "https://edge:6443", authorities: &authority, token: WITHHELD };
    let text = done(&join, "/etc/kubernetes/admin.conf", None);
    assert!(text.contains("Your Kubernetes control-plane has initialized successfully!"));
    assert!(text.contains("export KUBECONFIG=/etc/kubernetes/admin.conf"), "{text}");
    assert!(text.contains("\nagent join edge:6443 --token <value withheld>"), "{text}");
    assert!(text.contains("\nkubeadm join edge:6443 --token <value withheld>"), "{text}");
    assert!(!text.contains("--control-plane"), "{text}");
    let text = done(&join, "a.conf", Some("00ff"));
    assert!(text.contains("--certificate-key 00ff") && text.contains("deleted in two hours"), "{text}");
    assert_eq!(text.matches("\\\n\t--control-plane --certificate-key 00ff\n").count(), 2, "{text}");
    let text = done(&join, "a.conf", Some(""));
    assert!(
        text.contains("--control-plane") && text.contains("by copying certificate authorities"),
        "{text}"
    );
}

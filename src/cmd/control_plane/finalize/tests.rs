use std::cell::RefCell;

use serde_json::json;

use super::*;

fn kubeconfig(user: &Value) -> Value {
    json!({
        "current-context": "x",
        "contexts": [{"name": "other", "context": {"user": "v"}}, {"name": "x", "context": {"user": "u"}}],
        "users": [{"name": "v", "user": {"client-key-data": "b"}}, {"name": "u", "user": user}],
    })
}

#[test]
fn the_current_users_certificate_is_named_and_no_others() {
    let embedded = json!({"client-certificate-data": "YQ==", "client-key-data": "Yg=="});
    let named = pointed(kubeconfig(&embedded), "/pki/current.pem").unwrap().unwrap();
    let expected = json!({"client-certificate": "/pki/current.pem", "client-key": "/pki/current.pem"});
    assert_eq!(named, kubeconfig(&expected));
    assert_eq!(pointed(named, "/pki/current.pem"), Ok(None));
    assert!(pointed(json!({"current-context": "x"}), "/p").unwrap_err().contains("\"x\""));
}

#[test]
fn a_kubelet_without_its_certificate_keeps_its_kubeconfig() {
    let directory = std::env::temp_dir().join(format!("edge-agent-finalize-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let (conf, pem) = (directory.join("kubelet.conf"), directory.join("kubelet-client-current.pem"));
    let said = RefCell::new(String::new());
    let say = |text: &str| said.borrow_mut().push_str(text);
    let before = kubeconfig(&json!({"client-key-data": "YQ=="})).to_string();
    fs::write(&conf, &before).unwrap();
    assert!(!run(&say, &conf, &pem).unwrap());
    assert_eq!(fs::read_to_string(&conf).unwrap(), before);
    fs::write(&pem, "").unwrap();
    assert!(run(&say, &conf, &pem).unwrap());
    assert!(said.borrow().contains("to point to a rotatable kubelet client certificate"), "{said:?}");
    let text = fs::read_to_string(&conf).unwrap();
    assert!(text.contains("client-key: ") && !text.contains("client-key-data: YQ"), "{text}");
    assert!(!run(&say, &conf, &pem).unwrap(), "once is enough");
    fs::remove_dir_all(&directory).unwrap();
}

use super::*;
use crate::codec::yaml::yaml_to_values;

/// A kubeconfig with these members of its cluster and its user.
fn with(cluster: &str, user: &str) -> Result<Kubeconfig, KubeconfigError> {
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
         clusters: [{{name: other, cluster: {{}}}}, {{name: k, cluster: {{{cluster}}}}}]\n\
         users: [{{name: u, user: {{{user}}}}}]"
    );
    let value = yaml_to_values(&text, false).unwrap().remove(0);
    Kubeconfig::parse(&value, Path::new("/etc/kubernetes"))
}

const SERVER: &str = "server: 'https://10.0.0.1:6443'";

fn refusal(parsed: Result<Kubeconfig, KubeconfigError>) -> String {
    parsed.err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn kubeadms_kubelet_conf_is_read() {
    let cluster = format!("certificate-authority-data: Y2E=, {SERVER}");
    let pem = "/var/lib/kubelet/pki/kubelet-client-current.pem";
    let config = with(&cluster, &format!("client-certificate: {pem}, client-key: {pem}")).ok().unwrap();
    assert_eq!((config.server.as_str(), config.prefix.as_str()), ("https://10.0.0.1:6443", ""));
    assert_eq!((config.host.as_str(), config.port, config.tls_name.as_str()), ("10.0.0.1", 6443, "10.0.0.1"));
    assert!(config.authorities == Some(PemSource::Data(b"ca".to_vec())) && !config.skip_verify);
    let file = PemSource::File(PathBuf::from(pem));
    assert!(config.client == Some((file.clone(), file)));
    assert!(config.exec.is_none() && config.token.is_empty() && config.basic.is_none());
}

#[test]
fn relative_paths_start_at_the_kubeconfig() {
    let cluster = format!("{SERVER}, certificate-authority: pki/ca.crt");
    let config =
        with(&cluster, "client-certificate: c.pem, client-key: /k.pem, tokenFile: ../token").ok().unwrap();
    let file = |path: &str| PemSource::File(PathBuf::from(path));
    assert!(config.authorities == Some(file("/etc/kubernetes/pki/ca.crt")));
    assert!(config.client == Some((file("/etc/kubernetes/c.pem"), file("/k.pem"))));
    assert_eq!(config.token_file, Some(PathBuf::from("/etc/kubernetes/../token")));
    for (command, wanted) in [("bin/p", "/etc/kubernetes/bin/p"), ("/bin/p", "/bin/p"), ("p", "p")] {
        let exec = format!("exec: {{command: {command}, apiVersion: client.authentication.k8s.io/v1beta1}}");
        assert_eq!(with(SERVER, &exec).ok().unwrap().exec.unwrap().command, wanted);
    }
}

#[test]
fn a_server_is_a_url_or_a_host_with_a_port() {
    for (server, wanted) in [
        ("https://API.example", Some(("https://api.example", "api.example", 443, ""))),
        ("api.example:6443", Some(("https://api.example:6443", "api.example", 6443, ""))),
        ("https://[fd00::1]:6443/", Some(("https://[fd00::1]:6443", "fd00::1", 6443, ""))),
        ("https://r.example/k8s/c-1/", Some(("https://r.example", "r.example", 443, "/k8s/c-1"))),
        ("https://h:port", None),
        ("ftp://h", None),
        ("http://127.0.0.1:8080", None),
    ] {
        let parsed = with(&format!("server: '{server}'"), "token: t").ok();
        let seen = parsed.as_ref().map(|config| {
            (config.server.as_str(), config.host.as_str(), config.port, config.prefix.as_str())
        });
        assert_eq!(seen, wanted, "{server}");
    }
}

#[test]
fn a_removed_auth_provider_is_an_error() {
    let error = refusal(with(SERVER, "auth-provider: {name: gcp}"));
    assert_eq!(error, "invalid configuration: no Auth Provider found for name \"gcp\": use an exec plugin");
}

#[test]
fn what_upstream_refuses_is_refused_in_its_words() {
    let exec =
        |rest: &str| format!("exec: {{command: p, apiVersion: client.authentication.k8s.io/v1{rest}}}");
    for (cluster, user, words) in [
        ("", "token: t", "no server found for cluster \"k\""),
        ("server: 5", "", "server is not a string"),
        (
            "server: 'https://h', insecure-skip-tls-verify: true, certificate-authority: ca",
            "",
            "specifying a root certificates file with the insecure flag is not allowed",
        ),
        (
            "server: 'https://h', certificate-authority-data: '*'",
            "",
            "certificate-authority-data: illegal base64 data",
        ),
        ("server: 'https://h', proxy-url: 'socks4://p'", "", "invalid 'proxy-url' for cluster \"k\""),
        (SERVER, "client-certificate: c", "client-key-data or client-key must be specified for u"),
        (SERVER, "token: t, username: me", "found [token basicAuth], only one is allowed"),
        (SERVER, "as-groups: [g]", "requesting uid, groups or user-extra for u without impersonating a user"),
        (SERVER, "exec: {apiVersion: x}", "command must be specified for u"),
        (SERVER, "exec: {command: p, apiVersion: x}", "exec plugin: invalid apiVersion \"x\""),
        (SERVER, &exec(""), "interactiveMode must be specified for u"),
        (SERVER, &exec(", interactiveMode: Always"), "standard input is not a terminal"),
    ] {
        let error = refusal(with(cluster, user));
        assert!(error.starts_with("invalid configuration: ") && error.contains(words), "{words}: {error:?}");
    }
    for (text, words) in [
        ("5", "no configuration has been provided"),
        ("{}", "no context chosen"),
        ("{current-context: c}", "context was not found for specified context: c"),
        ("{current-context: c, contexts: [{name: c, context: {user: u}}]}", "cluster was not specified"),
        (
            "{current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}]}",
            "cluster \"k\" was not found for context \"c\"",
        ),
        (
            "{current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}], \
              clusters: [{name: k, cluster: {}}]}",
            "user \"u\" was not found for context \"c\"",
        ),
    ] {
        let value = yaml_to_values(text, false).unwrap().remove(0);
        let error = refusal(Kubeconfig::parse(&value, Path::new("/")));
        assert!(error.contains(words), "{words}: {error:?}");
    }
}

#[test]
fn other_identities_and_exec_plugins_are_honoured() {
    let user = "username: me, password: p, as: system:admin, as-uid: '7', as-groups: [a, b], \
                as-user-extra: {Acme/Key: [v, w]}, \
                exec: {command: p, apiVersion: client.authentication.k8s.io/v1beta1}";
    let config = with(SERVER, user).ok().unwrap();
    assert_eq!(config.basic, Some(("me".to_owned(), "p".to_owned())));
    assert!(config.exec.is_none(), "a password makes the plugin superfluous");
    let headers: Vec<String> =
        config.impersonate.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let wanted = [
        "impersonate-user=system:admin",
        "impersonate-uid=7",
        "impersonate-group=a",
        "impersonate-group=b",
        "impersonate-extra-acme%2Fkey=v",
        "impersonate-extra-acme%2Fkey=w",
    ];
    assert_eq!(headers, wanted);

    let cluster = "server: 'https://h', tls-server-name: other, proxy-url: 'http://p', \
                   extensions: [{name: client.authentication.k8s.io/exec, extension: {audience: x}}]";
    let user = "exec: {command: p, args: [a], env: [{name: NAME, value: v}], provideClusterInfo: true, \
                interactiveMode: Never, apiVersion: client.authentication.k8s.io/v1}";
    let config = with(cluster, user).ok().unwrap();
    assert_eq!((config.tls_name.as_str(), config.proxy.as_str()), ("other", "http://p"));
    let plugin = config.exec.unwrap();
    assert_eq!((plugin.args, plugin.env), (vec!["a".to_owned()], vec![("NAME".to_owned(), "v".to_owned())]));
    let wanted = json!({"server": "https://h", "tls-server-name": "other", "proxy-url": "http://p",
        "config": {"audience": "x"}});
    assert_eq!(plugin.cluster, Some(wanted));
}

/// All values that `value` becomes when one member, anywhere in it, is replaced by `odd`.
fn replaced(value: &Value, odd: &Value) -> Vec<Value> {
    let mut all = vec![odd.clone()];
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                all.extend(replaced(member, odd).into_iter().map(|member| {
                    let mut whole = value.clone();
                    whole[name] = member;
                    whole
                }));
            }
        }
        Value::Array(members) => {
            for (index, member) in members.iter().enumerate() {
                all.extend(replaced(member, odd).into_iter().map(|member| {
                    let mut whole = value.clone();
                    whole[index] = member;
                    whole
                }));
            }
        }
        _ => {}
    }
    all
}

#[test]
fn an_odd_kubeconfig_is_refused_and_nothing_worse() {
    let whole = json!({"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://h:1/p", "tls-server-name": "h",
            "proxy-url": "socks5://p",
            "insecure-skip-tls-verify": false, "certificate-authority": "ca", "certificate-authority-data": "Y2E=",
            "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {}}]}}],
        "users": [{"name": "u", "user": {"tokenFile": "t", "client-certificate-data": "Y2E=", "client-key": "k",
            "username": "a", "password": "b", "as": "x", "as-uid": "1", "as-groups": ["g"],
            "as-user-extra": {"k": ["v"]},
            "exec": {"command": "./c", "apiVersion": "client.authentication.k8s.io/v1", "args": ["a"],
                "env": [{"name": "n", "value": "v"}], "provideClusterInfo": true, "interactiveMode": "Never"}}}]});
    assert!(Kubeconfig::parse(&whole, Path::new("/")).is_ok());
    let mut count = 0;
    for odd in
        [json!(null), json!(5), json!(true), json!(""), json!("\u{0}:/@["), json!([[]]), json!({"a": {}})]
    {
        for value in replaced(&whole, &odd) {
            let _ = Kubeconfig::parse(&value, Path::new("/"));
            count += 1;
        }
    }
    assert!(count > 300, "{count}");
}

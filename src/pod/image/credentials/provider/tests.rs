use super::super::accounts::AccountAnswer;
use super::*;
use crate::model::objects::TokenRequest;
use crate::model::types::PodRef;
use crate::platform::testing::TempDir;
use std::cell::Cell;
use std::os::unix::fs::PermissionsExt;

#[test]
fn a_program_is_asked_once_for_what_its_answer_holds_for() {
    let root = std::env::temp_dir().join(format!("edge-agent-provider-{}", std::process::id()));
    std::fs::create_dir_all(&root).unwrap();
    let program = |name: &str, text: &str| {
        let path = root.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    let asked = root.join("asked");
    program(
        "good",
        &format!(
            "#!/bin/sh\ncat >>{0}\necho >>{0}\necho '{{\"kind\":\"CredentialProviderResponse\",\"apiVersion\":\
             \"credentialprovider.kubelet.k8s.io/v1\",\"cacheKeyType\":\"Registry\",\"cacheDuration\":\"1h\",\"auth\":\
             {{\"*.example\":{{\"username\":\"'$1'\",\"password\":\"'$WORD'\"}}}}}}'\n",
            asked.display()
        ),
    );
    program("bad", "#!/bin/sh\necho hush\nexit 3\n");
    let config = root.join("providers.yaml");
    std::fs::write(
        &config,
        "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: bad\n  \
         matchImages: ['*.example']\n  defaultCacheDuration: 0s\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n\
         - name: good\n  matchImages: ['*.example']\n  defaultCacheDuration: 12h0m0s\n  apiVersion: \
         credentialprovider.kubelet.k8s.io/v1\n  args: [me]\n  env: [{name: WORD, value: hush}]\n",
    )
    .unwrap();
    let providers = Providers::new(Some(config.clone()), root.clone(), Clock::System);
    let users = |image: &'static str| {
        let pod = PodRef::default();
        let found = rt::run(providers.lookup(image, Puller { pod: &pod, account: "" })).unwrap();
        found
            .into_iter()
            .map(|login| format!("{}:{}", login.0.username, login.0.password))
            .collect::<Vec<_>>()
    };
    assert_eq!(users("r.example/a:v1"), ["me:hush"]);
    assert_eq!(users("r.example/b:v2"), ["me:hush"]);
    assert!(users("busybox").is_empty());
    let text = std::fs::read_to_string(&asked).unwrap();
    let request: Value = serde_json::from_str(text.trim()).expect("one request alone");
    assert_eq!(request["image"], "r.example/a:v1");
    assert_eq!(users("s.example/b"), ["me:hush"]);
    assert_eq!(std::fs::read_to_string(&asked).unwrap().trim().lines().count(), 2);

    // Another configuration is another question; the first one's answers are no longer valid.
    let first = std::fs::read_to_string(&config).unwrap();
    for (from, to, expected) in [
        ("args: [me]", "args: [you]", "you:hush"),
        ("value: hush", "value: shh", "me:shh"),
        ("defaultCacheDuration: 12h0m0s", "defaultCacheDuration: 1h", "me:hush"),
    ] {
        let before = std::fs::read_to_string(&asked).unwrap().trim().lines().count();
        std::fs::write(&config, first.replace(from, to)).unwrap();
        for _ in 0..2 {
            assert_eq!(users("r.example/a:v1"), [expected], "{to}");
        }
        assert_eq!(std::fs::read_to_string(&asked).unwrap().trim().lines().count(), before + 1, "{to}");
    }
    let token = "args: [me]\n  tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount";
    std::fs::write(&config, first.replace("args: [me]", &format!("{token}: false}}"))).unwrap();
    assert_eq!(users("r.example/a:v1"), ["me:hush"]);
    std::fs::write(&config, first.replace("args: [me]", &format!("{token}: true}}"))).unwrap();
    assert!(users("r.example/a:v1").is_empty(), "no pod has a service account");
    std::fs::remove_dir_all(root).unwrap();
}

/// Accounts of a cluster: a token says the pod and how many were made before it.
struct FakeAccounts(RefCell<usize>, Cell<bool>);

impl ServiceAccounts for FakeAccounts {
    fn is_online(&self) -> bool {
        self.1.get()
    }

    fn account(&self, _: &str, name: &str) -> AccountAnswer<Value> {
        let uid = format!("{name}-1");
        let (name, all) = (name.to_owned(), json!({"a.example/role": name, "other": "x"}));
        Box::pin(async move {
            let annotations = if name == "plain" { json!({}) } else { all };
            let object = json!({"metadata": {"uid": uid, "annotations": annotations}});
            if name == "none" { Err("not found".to_owned()) } else { Ok(object) }
        })
    }

    fn token(self: Rc<Self>, request: TokenRequest, uid: &str) -> AccountAnswer<Rc<str>> {
        let count = *self.0.borrow();
        *self.0.borrow_mut() += 1;
        let token = format!("{}/{}/{uid}/{count}", request.pod.name, request.audience);
        Box::pin(async move { Ok(token.into()) })
    }
}

#[test]
fn a_program_gets_the_token_of_the_pods_account() {
    let directory = TempDir::new();
    let (program, asked) = (directory.join("echo"), directory.join("asked"));
    // The password is the token where there is one.
    let text = format!(
        "#!/bin/sh\ncat >{0}; cat {0} >>{0}.all; echo >>{0}.all\n\
         token=$(sed -n 's/.*\"serviceAccountToken\":\"\\([^\"]*\\)\".*/\\1/p' {0})\n\
         echo '{{\"kind\":\"CredentialProviderResponse\",\"apiVersion\":\"credentialprovider.kubelet.k8s.io/v1\",\
         \"cacheKeyType\":\"Image\",\"cacheDuration\":\"1h\",\"auth\":{{\"r.example\":{{\"username\":\"u\",\
         \"password\":\"'$1$token'\"}}}}}}'\n",
        asked.display()
    );
    std::fs::write(&program, text).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let config = directory.join("providers.yaml");
    let write = |args: &str, attributes: &str| {
        let text = format!(
            "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: echo\n  \
             matchImages: [r.example]\n  defaultCacheDuration: 1h\n  apiVersion: \
             credentialprovider.kubelet.k8s.io/v1\n  args: [{args}]\n  \
             tokenAttributes: {{serviceAccountTokenAudience: reg, {attributes}}}\n"
        );
        std::fs::write(&config, text).unwrap();
    };
    let mut providers = Providers::new(Some(config.clone()), directory.path().to_owned(), Clock::System);
    let accounts = Rc::new(FakeAccounts(RefCell::default(), Cell::new(true)));
    providers.set_accounts(Some(Rc::<FakeAccounts>::clone(&accounts)));
    let look = |pod: &str, account: &str| {
        let pod = PodRef { namespace: "shop".into(), name: pod.into(), uid: "u".into() };
        let found = rt::run(providers.lookup("r.example/a:v1", Puller { pod: &pod, account })).unwrap();
        let shown = |(auth, opens): (ImageAuth, Opened)| match opens {
            Opened::ByAccount(account) => format!("{} {}", auth.password, account["uid"].as_str().unwrap()),
            _ => format!("{} node", auth.password),
        };
        found.into_iter().map(shown).collect::<Vec<_>>()
    };
    let requests = || {
        let text = std::fs::read_to_string(asked.with_extension("all")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect::<Vec<_>>()
    };
    let required = "requireServiceAccount: true, requiredServiceAccountAnnotationKeys: [a.example/role], \
                    optionalServiceAccountAnnotationKeys: [other, missing]";
    // By account: the second pod takes the response for the first, another account does not.
    write("x", &format!("cacheType: ServiceAccount, {required}"));
    assert_eq!(look("p1", "web"), ["xp1/reg/web-1/0 web-1"]);
    assert_eq!(look("p2", "web"), ["xp1/reg/web-1/0 web-1"]);
    assert_eq!(look("p2", "db"), ["xp2/reg/db-1/2 db-1"]);
    let first = &requests()[0];
    assert_eq!(first["serviceAccountToken"], "p1/reg/web-1/0");
    assert_eq!(first["serviceAccountAnnotations"], json!({"a.example/role": "web", "other": "x"}));
    assert_eq!(requests().len(), 2);
    // Not for this pod, or not to be had.
    for (pod, account) in [("p1", ""), ("p1", "plain"), ("p1", "none")] {
        assert!(look(pod, account).is_empty(), "{account}");
    }
    assert_eq!(requests().len(), 2);
    // By token.
    write("v", &format!("cacheType: Token, {required}"));
    assert_eq!(look("p1", "web"), ["vp1/reg/web-1/3 web-1"]);
    assert_eq!(look("p2", "web"), ["vp2/reg/web-1/4 web-1"]);
    // The token itself is a password only if the response is for this token.
    write("''", &format!("cacheType: ServiceAccount, {required}"));
    assert!(look("p1", "web").is_empty());
    write("''", &format!("cacheType: Token, {required}"));
    assert_eq!(look("p1", "web"), ["p1/reg/web-1/6 web-1"]);
    // A pod without an account is served by the node's response.
    write("z", "cacheType: Token, requireServiceAccount: false");
    assert_eq!(
        (look("static", ""), look("p1", "plain")),
        (vec!["z node".into()], vec!["zp1/reg/plain-1/7 plain-1".into()])
    );
    assert_eq!(requests().iter().filter(|one| one.get("serviceAccountToken").is_none()).count(), 1);
    // An image that these accounts have pulled; without a link the name decides.
    write("x", &format!("cacheType: ServiceAccount, {required}"));
    let opens = |uid: &str, account: &str| {
        let recorded = [json!({"uid": uid, "namespace": "shop", "name": "web"})];
        let pod = PodRef { namespace: "shop".into(), name: "p1".into(), uid: "u".into() };
        rt::run(providers.opens_as_before("r.example/a:v1", &recorded, Puller { pod: &pod, account }))
            .unwrap()
    };
    assert!(opens("web-1", "web") && !opens("web-0", "web") && !opens("web-1", "db"));
    accounts.1.set(false);
    assert!(opens("web-0", "web") && !opens("web-1", "db") && !opens("web-1", ""));
}

#[test]
fn token_attributes_are_checked_as_upstream() {
    let directory = TempDir::new();
    let config = directory.join("providers.yaml");
    let good = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: good\n  \
                matchImages: ['*.example']\n  defaultCacheDuration: 0s\n  apiVersion: \
                credentialprovider.kubelet.k8s.io/v1\n  tokenAttributes: {serviceAccountTokenAudience: a, \
                cacheType: Token, requireServiceAccount: true, requiredServiceAccountAnnotationKeys: [k, x.example/K]}\n";
    for (from, to, words) in [
        ("provider.kubelet.k8s.io/v1\n", "provider.kubelet.k8s.io/v1beta1\n", "is only supported for"),
        ("Audience: a", "Audience: ''", ".serviceAccountTokenAudience: Required value"),
        ("cacheType: Token, ", "", ".cacheType \"\": must be ServiceAccount or Token"),
        ("requireServiceAccount: true, ", "", ".requireServiceAccount: Required value"),
        ("requireServiceAccount: true", "requireServiceAccount: false", "cannot be false when"),
        ("[k, x", "[k, k, x", "\"k\" is listed twice"),
        ("K]", "K], optionalServiceAccountAnnotationKeys: [k]", "\"k\" is listed twice"),
        ("[k, x", "['k!', x", "annotation key \"k!\": "),
    ] {
        std::fs::write(&config, good.replacen(from, to, 1)).unwrap();
        let problem = read_config(&config).err().unwrap_or_default();
        let is_named = problem.contains("provider \"good\": tokenAttributes") && problem.contains(words);
        assert!(is_named, "{to}: {problem}");
    }
    std::fs::write(&config, good).unwrap();
    assert!(read_config(&config).is_ok());
}

#[test]
fn provider_config_is_decoded_strictly_as_upstream() {
    let directory = TempDir::new();
    let config = directory.join("providers.yaml");
    let good = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: good\n  \
                matchImages: ['*.example']\n  defaultCacheDuration: 0s\n  apiVersion: \
                credentialprovider.kubelet.k8s.io/v1\n  env: [{name: A, value: b}]\n";
    for (from, to, words) in [
        ("name: good", "name: ../bad", "\"../bad\": must be a program name"),
        (
            "kind: CredentialProviderConfig",
            "kind: KubeletConfiguration",
            "kind \"KubeletConfiguration\" must be",
        ),
        ("kind: CredentialProviderConfig\n", "", "kind \"\" must be"),
        ("config.k8s.io/v1", "config.k8s.io/v2", "apiVersion \"kubelet.config.k8s.io/v2\""),
        ("apiVersion: kubelet.config.k8s.io/v1\n", "", "apiVersion \"\""),
        ("  matchImages", "  matchimages", "unknown field \"providers[0].matchimages\""),
        ("value: b", "val: b", "unknown field \"providers[0].env[0].val\""),
        ("kind:", "kinds: x\nkind:", "unknown field \"kinds\""),
        ("kind:", "kind: x\nkind:", "kind"),
        ("  defaultCacheDuration: 0s", "  args: [a]\n  args: [b]\n  defaultCacheDuration: 0s", "args"),
        ("name: good", "name: [good]", "providers[0].name: "),
    ] {
        std::fs::write(&config, good.replacen(from, to, 1)).unwrap();
        let problem = read_config(&config).err().unwrap_or_default();
        assert!(problem.contains("providers.yaml: ") && problem.contains(words), "{to}: {problem}");
    }
    for (text, count) in [
        (good.to_owned(), Some(1)),
        (good.replace("/v1\nkind", "/v1beta1\nkind"), Some(1)),
        (String::new(), None),
    ] {
        std::fs::write(&config, &text).unwrap();
        assert_eq!(read_config(&config).ok().map(|providers| providers.len()), count, "{text}");
    }
}

#[test]
fn durations_are_those_of_go() {
    for (text, millis) in [("12h0m0s", 43_200_000), ("1h30m", 5_400_000), ("500ms", 500), ("0s", 0), ("0", 0)]
    {
        assert_eq!(parse_duration(text), Some(Duration::from_millis(millis)), "{text}");
    }
    for text in ["", "5", "x", "1d", "-1s", "99999999999999999999h"] {
        assert_eq!(parse_duration(text), None, "{text}");
    }
}

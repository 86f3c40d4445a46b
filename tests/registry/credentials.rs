//! Who is shown which credentials: mirrors, the registry itself, token servers, servers that want a certificate.

use std::io::Read;
use std::path::Path;

use edge_agent::runtime::ImageAuth;
use edge_agent::runtime::embedded::registry::PullRequest;

use super::docker::{Registry, openssl};
use super::fake::{Asked, FakeRegistry, answer};
use super::image::{TestImage, failure, failure_of, pull_here, request};
use crate::support::scratch::Scratch;

fn me() -> ImageAuth {
    ImageAuth::of_user("me".into(), "hush".into())
}

/// Wants a password, and takes any.
fn closed(asked: &Asked, stream: &mut std::net::TcpStream) -> bool {
    let is_anonymous = asked.header("authorization").is_none();
    if is_anonymous {
        answer(stream, "401 Unauthorized", &["WWW-Authenticate: Basic realm=\"r\""], b"");
    }
    is_anonymous
}

fn shown(registry: &FakeRegistry) -> usize {
    registry.asked().iter().filter(|head| head.contains("authorization: basic bwu6ahvzaa==")).count()
}

/// As containerd: what a pod may know of a registry its mirrors are shown, unless it is said whom it is for.
#[test]
fn mirrors_get_credentials_unless_bound_to_one_server() {
    let scratch = Scratch::new();
    let image = TestImage::small();
    let (mirror, registry) = (FakeRegistry::start(&image, closed), FakeRegistry::start(&image, closed));
    let hosts = scratch.dir("certs.d").join("registry.example");
    std::fs::create_dir_all(&hosts).unwrap();
    let text = format!(
        "server = \"http://127.0.0.1:{}\"\n[host.\"http://127.0.0.1:{}\"]\n",
        registry.port, mirror.port
    );
    std::fs::write(hosts.join("hosts.toml"), text).unwrap();
    let with = |auth: ImageAuth, store: &str| PullRequest {
        hosts_dirs: vec![scratch.dir("certs.d")],
        auth: Some(auth),
        ..request("registry.example/a/b:v1", &scratch.dir(store))
    };
    pull_here(&with(me(), "first")).unwrap();
    assert!(shown(&mirror) > 0 && shown(&registry) == 0, "the mirror has it all");

    for address in [format!("http://127.0.0.1:{}/v2/", registry.port), format!("127.0.0.1:{}", registry.port)]
    {
        let auth = ImageAuth { server_address: address, ..me() };
        let store = format!("second-{}", auth.server_address.len());
        pull_here(&with(auth, &store)).unwrap();
        assert!(shown(&mirror) == 0 && shown(&registry) > 0, "only the registry is shown them");
    }
    let auth = ImageAuth { server_address: "https://elsewhere.example".into(), ..me() };
    let message = failure(&with(auth, "third"));
    assert!(message.contains("no basic auth credentials") && !message.contains("hush"), "{message}");
    assert!(shown(&mirror) == 0 && shown(&registry) == 0);
}

#[test]
fn an_identity_token_is_exchanged_at_the_token_server() {
    let scratch = Scratch::new();
    let image = TestImage::small();
    let registry = FakeRegistry::start(&image, |asked, stream| {
        if asked.path.starts_with("/token") {
            let length = asked.header("content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
            let mut form = vec![0; length];
            stream.read_exact(&mut form).unwrap();
            let good =
                b"grant_type=refresh_token&service=edge&scope=repository%3Aa%2Fb%3Apull&client_id=edge-agent\
                         &refresh_token=long%2Flived";
            if asked.head.starts_with("post ") && form == good && asked.header("authorization").is_none() {
                answer(stream, "200 OK", &[], b"{\"access_token\":\"short\"}");
            } else {
                answer(stream, "401 Unauthorized", &[], b"");
            }
            return true;
        }
        let allowed = asked.header("authorization") == Some("bearer short");
        if !allowed {
            let host = asked.header("host").unwrap_or_default();
            let challenge =
                format!("WWW-Authenticate: Bearer realm=\"http://{host}/token\",service=\"edge\"");
            answer(stream, "401 Unauthorized", &[&challenge], b"");
        }
        !allowed
    });
    let with = |token: &str| PullRequest {
        auth: Some(ImageAuth { identity_token: token.into(), ..ImageAuth::default() }),
        ..request(&registry.reference(), &scratch.dir("images"))
    };
    let message = failure(&with("wrong/one"));
    assert!(message.contains("failed to fetch token") && !message.contains("wrong"), "{message}");
    assert_eq!(pull_here(&with("long/lived")).unwrap().0.image_id, image.config.digest);
}

#[test]
fn a_registry_token_is_sent_as_it_is() {
    let scratch = Scratch::new();
    let image = TestImage::small();
    let registry = FakeRegistry::start(&image, |asked, stream| {
        let allowed = asked.header("authorization") == Some("bearer given");
        if !allowed {
            let challenge = "WWW-Authenticate: Bearer realm=\"http://127.0.0.1:9/token\",service=\"edge\"";
            answer(stream, "401 Unauthorized", &[challenge], b"");
        }
        !allowed
    });
    let auth = Some(ImageAuth { registry_token: "given".into(), ..ImageAuth::default() });
    let request = PullRequest { auth, ..request(&registry.reference(), &scratch.dir("images")) };
    assert_eq!(pull_here(&request).unwrap().0.image_id, image.config.digest);
}

/// An authority, a server's certificate and a client's.
fn make_certificates(keys: &Path) {
    std::fs::write(keys.join("ext"), "subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n").unwrap();
    std::fs::write(keys.join("client-ext"), "extendedKeyUsage=clientAuth\nbasicConstraints=CA:FALSE\n")
        .unwrap();
    for line in [
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -subj /CN=edge -days 2",
        "req -newkey rsa:2048 -nodes -keyout s.key -out s.csr -subj /CN=server",
        "x509 -req -in s.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out s.pem -days 2 -extfile ext",
        "req -newkey rsa:2048 -nodes -keyout c.key -out c.csr -subj /CN=client",
        "x509 -req -in c.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out c.pem -days 2 -extfile client-ext",
    ] {
        openssl(keys, line);
    }
}

#[test]
fn client_certificate_comes_from_the_hosts_directory() {
    let scratch = Scratch::new();
    let image = TestImage::small();
    Registry::start(&scratch, "open", "").push("a/b", "v1", &image);
    let keys = scratch.dir("keys");
    make_certificates(&keys);
    let tls = format!(
        "  tls: {{certificate: {0}/s.pem, key: {0}/s.key, clientcas: [{0}/ca.pem]}}\n",
        keys.display()
    );
    let registry = Registry::start(&scratch, "tls", &tls);
    let with = |certs: &str, store: &str| PullRequest {
        hosts_dirs: vec![scratch.dir(certs)],
        ..request(&registry.reference("a/b:v1"), &scratch.dir(store))
    };
    let directory = |certs: &str| {
        let host = scratch.dir(certs).join(format!("127.0.0.1:{}", registry.port));
        std::fs::create_dir_all(&host).unwrap();
        host
    };
    let configure = |certs: &str, client: &str| {
        let server = format!("server = \"https://127.0.0.1:{}\"\n", registry.port);
        let ca = keys.join("ca.pem");
        let text = format!("{server}ca = \"{}\"\n{client}", ca.display());
        std::fs::write(directory(certs).join("hosts.toml"), text).unwrap();
    };
    configure("without", "");
    let message = failure_of(&with("without", "none"));
    assert!(message.contains("TLS") || message.contains("tls"), "{message}");
    assert!(message.to_lowercase().contains("certificate"), "{message}");

    configure("toml", &format!("client = [[\"{0}/c.pem\", \"{0}/c.key\"]]\n", keys.display()));
    assert_eq!(pull_here(&with("toml", "toml-images")).unwrap().0.image_id, image.config.digest);

    // As Docker has it: by the ends of their names.
    let docker = directory("docker");
    for (from, to) in [("ca.pem", "ca.crt"), ("c.pem", "client.cert"), ("c.key", "client.key")] {
        std::fs::copy(keys.join(from), docker.join(to)).unwrap();
    }
    assert_eq!(pull_here(&with("docker", "docker-images")).unwrap().0.image_id, image.config.digest);

    configure("missing", "client = [[\"/nonexistent/c.pem\", \"/nonexistent/c.key\"]]\n");
    let message = failure_of(&with("missing", "none"));
    assert!(message.contains("/nonexistent/c.pem"), "{message}");
}

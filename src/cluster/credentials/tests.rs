use super::*;
use crate::model::types::Timestamp;

/// A directory with a kubeconfig whose user has these members.
struct LoginFiles(PathBuf);

impl LoginFiles {
    fn new(name: &str, user: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("edge-agent-login-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let files = Self(directory);
        files.write_user(user);
        files
    }

    fn write(&self, name: &str, text: &str) {
        // As every tool that renews a file does it: another inode.
        let temporary = self.0.join("temporary");
        std::fs::write(&temporary, text).unwrap();
        std::fs::rename(temporary, self.0.join(name)).unwrap();
    }

    fn write_user(&self, user: &str) {
        let text = format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'https://h'}}}}]\nusers: [{{name: u, user: {{{user}}}}}]"
        );
        self.write("config", &text);
    }

    async fn open(&self, clock: &Clock) -> Credentials {
        Credentials::open(&self.0.join("config"), clock.clone()).await.unwrap()
    }
}

impl Drop for LoginFiles {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn authorization(login: &Login) -> &str {
    login.headers.iter().find(|(name, _)| name == "authorization").map_or("", |(_, value)| value)
}

async fn token(credentials: &Credentials) -> String {
    match credentials.current(false).await {
        Ok(login) => authorization(&login).to_owned(),
        Err(reason) => reason,
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_file_wins_over_a_token() {
    let files = LoginFiles::new("token", "token: inline, tokenFile: token");
    let credentials = files.open(&Clock::System).await;
    assert_eq!(token(&credentials).await, "Bearer inline", "there is no file yet");
    files.write("token", "one\n");
    tokio::time::advance(LOOK_EVERY).await;
    assert_eq!(token(&credentials).await, "Bearer one");
    files.write("token", "second");
    assert_eq!(token(&credentials).await, "Bearer one", "read once a minute");
    tokio::time::advance(LOOK_EVERY).await;
    assert_eq!(token(&credentials).await, "Bearer second");
    for broken in ["", "gone"] {
        match broken {
            "" => files.write("token", ""),
            _ => std::fs::remove_file(files.0.join("token")).unwrap(),
        }
        tokio::time::advance(LOOK_EVERY).await;
        assert_eq!(token(&credentials).await, "Bearer second", "the old one stays: {broken}");
    }
    files.write("token", "the third");
    let used = credentials.current(false).await.unwrap();
    assert!(credentials.refused(&used).await, "read at once after a 401");
    assert_eq!(token(&credentials).await, "Bearer the third");
    let used = credentials.current(false).await.unwrap();
    assert!(!credentials.refused(&used).await, "nothing else to try");
    assert_eq!(used.version, 1, "a token needs no new connection");
}

#[tokio::test(start_paused = true)]
async fn credentials_that_are_missing_are_named() {
    let files = LoginFiles::new("missing", "client-certificate: current.pem, client-key: current.pem");
    let credentials = files.open(&Clock::System).await;
    let reason = token(&credentials).await;
    assert!(reason.contains("read client certificate") && reason.contains("current.pem"), "{reason}");
    files.write("current.pem", "one");
    tokio::time::advance(LOOK_AGAIN).await;
    let first = credentials.current(false).await.unwrap();
    assert!(first.client == Some((b"one".to_vec(), b"one".to_vec())));
    files.write("current.pem", "other");
    assert!(Rc::ptr_eq(&credentials.current(false).await.unwrap(), &first), "not checked yet");
    credentials.renewed().await;
    let second = credentials.current(false).await.unwrap();
    assert!(second.client == Some((b"other".to_vec(), b"other".to_vec())));
    assert!(second.version > first.version, "it needs a new connection");
}

#[test]
fn an_exec_plugin_runs_again_after_401() {
    let script = "n=$(cat count 2>/dev/null || echo 0); n=$((n+1)); echo $n > count; cat >/dev/null; \
                  echo '{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/v1\",\
                  \"status\":{\"token\":\"t'$n'\",\"expirationTimestamp\":\"1970-01-01T01:00:00Z\"}}'";
    let login = "exec: {command: sh, args: [plugin], interactiveMode: Never, \
                apiVersion: client.authentication.k8s.io/v1}";
    let done = rt::run(async {
        let files = LoginFiles::new("exec", "token: x");
        files.write("plugin", &script.replace("count", &files.0.join("count").to_string_lossy()));
        files.write_user(&login.replace("plugin", &files.0.join("plugin").to_string_lossy()));
        let clock = Clock::manual(Timestamp::from_secs(0));
        let credentials = files.open(&clock).await;
        let mut tokens = vec![token(&credentials).await, token(&credentials).await];
        let used = credentials.current(false).await.unwrap();
        assert!(credentials.refused(&used).await);
        tokens.push(token(&credentials).await);
        assert!(credentials.refused(&used).await, "another call has renewed them");
        let used = credentials.current(false).await.unwrap();
        assert!(!credentials.refused(&used).await, "once a minute");
        clock.set(Timestamp::from_secs(3585));
        tokens.push(token(&credentials).await);
        clock.set(Timestamp::from_secs(3595));
        tokens.push(token(&credentials).await);
        tokens
    });
    assert_eq!(done.unwrap(), ["Bearer t1", "Bearer t1", "Bearer t2", "Bearer t2", "Bearer t3"]);
}

#[tokio::test(start_paused = true)]
async fn a_kubeconfig_that_changed_is_read_after_a_401() {
    let files = LoginFiles::new("kubeconfig", "token: old");
    let credentials = files.open(&Clock::System).await;
    let used = credentials.current(false).await.unwrap();
    assert!(!credentials.refused(&used).await, "it has not changed");
    files.write_user("auth-provider: {name: gcp}");
    assert!(!credentials.refused(&used).await, "one that cannot be used is not");
    files.write_user("username: me, password: new");
    assert!(credentials.refused(&used).await);
    assert_eq!(token(&credentials).await, "Basic bWU6bmV3");
    let error = Credentials::open(&files.0.join("none"), Clock::System).await.err().unwrap();
    assert!(matches!(error, CredentialsError::Read { .. }), "{error}");
}

//! The kubeconfig file: which server, which authority, which user.
//!
//! Pure: a value and the file's directory in, settings or upstream's error out. Owns what is honoured and what is
//! refused. Files that it names are read by `credentials`.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::codec::base64;
use crate::platform::http::h2::tunnel::{ProxyUrl, host_and_port};
use crate::platform::http::url::{Url, query_escape};

/// The versions of `ExecCredential` that are spoken.
const EXEC_VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];
/// The cluster's extension that an exec plugin may ask for.
const EXEC_EXTENSION: &str = "client.authentication.k8s.io/exec";

/// What the current context says. Without `Debug`: it contains keys.
#[derive(Clone, PartialEq)]
pub(crate) struct Kubeconfig {
    /// `https://host:port`, as requests name it.
    pub server: String,
    /// `host:port` as in the file, for the request's authority.
    pub authority: String,
    pub host: String,
    pub port: u16,
    /// Before every path: an apiserver behind a path of a proxy. Without a slash at its end; mostly empty.
    pub prefix: String,
    /// What the server's certificate has to be for: `tls-server-name`, or the host.
    pub tls_name: String,
    pub skip_verify: bool,
    /// `None`: the system's authorities.
    pub authorities: Option<PemSource>,
    /// `proxy-url`; empty for the environment's.
    pub proxy: String,
    /// Certificate chain and key.
    pub client: Option<(PemSource, PemSource)>,
    pub token: String,
    /// Wins over `token`.
    pub token_file: Option<PathBuf>,
    /// User and password.
    pub basic: Option<(String, String)>,
    /// Headers that ask for another identity.
    pub impersonate: Vec<(String, String)>,
    pub exec: Option<ExecPlugin>,
}

/// PEM in the kubeconfig or in a file beside it.
#[derive(Clone, PartialEq)]
pub(crate) enum PemSource {
    Data(Vec<u8>),
    File(PathBuf),
}

/// A program that knows the credentials.
#[derive(Clone, PartialEq)]
pub(crate) struct ExecPlugin {
    /// A path, or a name that is looked for in `PATH`.
    pub command: String,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub api_version: String,
    /// Shown when the command is not there.
    pub install_hint: String,
    /// `provideClusterInfo`: the cluster as the plugin is to see it, without the authority's certificates.
    pub cluster: Option<Value>,
}

/// A kubeconfig that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid configuration: {0}")]
pub(crate) struct KubeconfigError(String);

fn invalid<T>(message: impl Into<String>) -> Result<T, KubeconfigError> {
    Err(KubeconfigError(message.into()))
}

impl Kubeconfig {
    /// Reads the current context. Relative paths start at `directory`.
    ///
    /// # Errors
    /// In upstream's words where upstream refuses it, too.
    pub(crate) fn parse(value: &Value, directory: &Path) -> Result<Self, KubeconfigError> {
        if !value.is_object() {
            return invalid("no configuration has been provided");
        }
        let context_name = text(value, "current-context")?;
        if context_name.is_empty() {
            return invalid("no context chosen: current-context is not set");
        }
        let Some(context) = named(value, "contexts", &context_name, "context") else {
            return invalid(format!("context was not found for specified context: {context_name}"));
        };
        let (cluster_name, user_name) = (text(context, "cluster")?, text(context, "user")?);
        if cluster_name.is_empty() {
            return invalid(format!("cluster was not specified for context {context_name:?}"));
        }
        let Some(cluster) = named(value, "clusters", &cluster_name, "cluster") else {
            return invalid(format!("cluster {cluster_name:?} was not found for context {context_name:?}"));
        };
        let user = match named(value, "users", &user_name, "user") {
            Some(user) => user,
            None if user_name.is_empty() => {
                return invalid(format!("user was not specified for context {context_name:?}"));
            }
            None => return invalid(format!("user {user_name:?} was not found for context {context_name:?}")),
        };
        let mut config = of_cluster(cluster, &cluster_name, directory)?;
        add_user(&mut config, user, &user_name, directory)?;
        if let Some(exec) = user.get("exec").filter(|exec| exec.is_object()) {
            // As upstream: other credentials make the plugin superfluous.
            let is_needed = config.token.is_empty()
                && config.token_file.is_none()
                && config.basic.is_none()
                && config.client.is_none();
            let plugin = exec_plugin(exec, cluster, &user_name, directory)?;
            config.exec = is_needed.then_some(plugin);
        }
        Ok(config)
    }
}

fn of_cluster(cluster: &Value, name: &str, directory: &Path) -> Result<Kubeconfig, KubeconfigError> {
    let given = text(cluster, "server")?;
    if given.is_empty() {
        return invalid(format!("no server found for cluster {name:?}"));
    }
    let whole = if given.contains("://") { given.clone() } else { format!("https://{given}") };
    let url = Url::parse(&whole);
    let parts = url.and_then(|url| host_and_port(&url.authority, 443).map(|(host, port)| (url, host, port)));
    let Some((url, host, port)) = parts else {
        return invalid(format!("host must be a URL or a host:port pair: {given:?}"));
    };
    if !url.is_encrypted() {
        return invalid(format!("server {given:?} of cluster {name:?}: only https is supported"));
    }
    let proxy = text(cluster, "proxy-url")?;
    if let Some(reason) = (!proxy.is_empty()).then(|| ProxyUrl::parse(&proxy).err()).flatten() {
        return invalid(format!("invalid 'proxy-url' for cluster {name:?}: {reason}"));
    }
    let skip_verify = flag(cluster, "insecure-skip-tls-verify")?;
    let authorities = pem(cluster, "certificate-authority", directory)?;
    if skip_verify && authorities.is_some() {
        return invalid("specifying a root certificates file with the insecure flag is not allowed");
    }
    let tls_name = text(cluster, "tls-server-name")?;
    let prefix = url.path.split('?').next().unwrap_or_default().trim_end_matches('/').to_owned();
    Ok(Kubeconfig {
        server: format!("https://{}", url.authority),
        authority: url.authority,
        tls_name: if tls_name.is_empty() { host.clone() } else { tls_name },
        host,
        port,
        prefix,
        skip_verify,
        authorities,
        proxy,
        client: None,
        token: String::new(),
        token_file: None,
        basic: None,
        impersonate: Vec::new(),
        exec: None,
    })
}

fn add_user(
    config: &mut Kubeconfig,
    user: &Value,
    name: &str,
    directory: &Path,
) -> Result<(), KubeconfigError> {
    if let Some(provider) = user.get("auth-provider").filter(|provider| !provider.is_null()) {
        let provider = provider["name"].as_str().unwrap_or_default();
        return invalid(format!("no Auth Provider found for name {provider:?}: use an exec plugin"));
    }
    let certificate = pem(user, "client-certificate", directory)?;
    let key = pem(user, "client-key", directory)?;
    config.client = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (Some(_), None) => {
            return invalid(format!(
                "client-key-data or client-key must be specified for {name} to use the clientCert \
                 authentication method"
            ));
        }
        (None, _) => None,
    };
    config.token = text(user, "token")?;
    config.token_file = file(user, "tokenFile", directory)?;
    let (user_name, password) = (text(user, "username")?, text(user, "password")?);
    if !user_name.is_empty() || !password.is_empty() {
        if !config.token.is_empty() {
            return invalid(format!(
                "more than one authentication method found for {name}; found [token basicAuth], only one is allowed"
            ));
        }
        config.basic = Some((user_name, password));
    }
    config.impersonate = impersonation(user, name)?;
    Ok(())
}

fn impersonation(user: &Value, name: &str) -> Result<Vec<(String, String)>, KubeconfigError> {
    let mut headers = Vec::new();
    let other = text(user, "as")?;
    let uid = text(user, "as-uid")?;
    let groups = texts(user, "as-groups")?;
    let extra = user["as-user-extra"].as_object().cloned().unwrap_or_default();
    if other.is_empty() {
        if !uid.is_empty() || !groups.is_empty() || !extra.is_empty() {
            return invalid(format!(
                "requesting uid, groups or user-extra for {name} without impersonating a user"
            ));
        }
        return Ok(headers);
    }
    headers.push(("impersonate-user".to_owned(), other));
    if !uid.is_empty() {
        headers.push(("impersonate-uid".to_owned(), uid));
    }
    headers.extend(groups.into_iter().map(|group| ("impersonate-group".to_owned(), group)));
    for key in extra.keys() {
        let header = format!("impersonate-extra-{}", query_escape(&key.to_lowercase()));
        headers.extend(texts(&user["as-user-extra"], key)?.into_iter().map(|text| (header.clone(), text)));
    }
    Ok(headers)
}

fn exec_plugin(
    exec: &Value,
    cluster: &Value,
    name: &str,
    directory: &Path,
) -> Result<ExecPlugin, KubeconfigError> {
    let mut command = text(exec, "command")?;
    let missing = |what: &str| {
        invalid(format!("{what} must be specified for {name} to use exec authentication plugin"))
    };
    if command.is_empty() {
        return missing("command");
    }
    if command.contains('/') {
        command = directory.join(command).to_string_lossy().into_owned();
    }
    let api_version = text(exec, "apiVersion")?;
    if api_version.is_empty() {
        return missing("apiVersion");
    }
    if !EXEC_VERSIONS.contains(&api_version.as_str()) {
        return invalid(format!("exec plugin: invalid apiVersion {api_version:?}"));
    }
    match text(exec, "interactiveMode")?.as_str() {
        "" if api_version == EXEC_VERSIONS[0] => return missing("interactiveMode"),
        "" | "Never" | "IfAvailable" => {}
        "Always" => {
            return invalid("exec plugin cannot support interactive mode: standard input is not a terminal");
        }
        other => return invalid(format!("invalid interactiveMode for {name}: {other:?}")),
    }
    let mut env = Vec::new();
    for variable in exec["env"].as_array().into_iter().flatten() {
        let variable = (text(variable, "name")?, text(variable, "value")?);
        if variable.0.is_empty() {
            return missing("env variable name");
        }
        env.push(variable);
    }
    Ok(ExecPlugin {
        command,
        args: texts(exec, "args")?,
        env,
        api_version,
        install_hint: text(exec, "installHint")?,
        cluster: flag(exec, "provideClusterInfo")?.then(|| shown_cluster(cluster)),
    })
}

/// The cluster in the form of `ExecCredential`.
fn shown_cluster(cluster: &Value) -> Value {
    let mut shown = json!({});
    for name in ["server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url"] {
        if let Some(value) = cluster.get(name).filter(|value| !value.is_null()) {
            shown[name] = value.clone();
        }
    }
    if let Some(extension) = named(cluster, "extensions", EXEC_EXTENSION, "extension") {
        shown["config"] = extension.clone();
    }
    shown
}

/// The `part` of the member of a list with this name; the first one, as upstream.
fn named<'a>(of: &'a Value, list: &str, name: &str, part: &str) -> Option<&'a Value> {
    let members = of[list].as_array()?;
    members.iter().find(|member| member["name"] == name).map(|member| &member[part])
}

fn text(of: &Value, name: &str) -> Result<String, KubeconfigError> {
    match &of[name] {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        _ => invalid(format!("{name} is not a string")),
    }
}

fn texts(of: &Value, name: &str) -> Result<Vec<String>, KubeconfigError> {
    let members = match &of[name] {
        Value::Null => return Ok(Vec::new()),
        Value::Array(members) => members,
        _ => return invalid(format!("{name} is not a list")),
    };
    let texts = members.iter().map(|member| member.as_str().map(str::to_owned)).collect();
    match texts {
        Some(texts) => Ok(texts),
        None => invalid(format!("{name} is not a list of strings")),
    }
}

fn flag(of: &Value, name: &str) -> Result<bool, KubeconfigError> {
    match &of[name] {
        Value::Null => Ok(false),
        Value::Bool(value) => Ok(*value),
        _ => invalid(format!("{name} is not true or false")),
    }
}

fn file(of: &Value, name: &str, directory: &Path) -> Result<Option<PathBuf>, KubeconfigError> {
    let path = text(of, name)?;
    Ok((!path.is_empty()).then(|| directory.join(path)))
}

/// `NAME-data`, else the file that `NAME` says.
fn pem(of: &Value, name: &str, directory: &Path) -> Result<Option<PemSource>, KubeconfigError> {
    let field = format!("{name}-data");
    let data = text(of, &field)?;
    if data.is_empty() {
        return Ok(file(of, name, directory)?.map(PemSource::File));
    }
    match base64::decode(&data) {
        Some(data) => Ok(Some(PemSource::Data(data))),
        None => invalid(format!("{field}: illegal base64 data")),
    }
}

#[cfg(test)]
mod tests;

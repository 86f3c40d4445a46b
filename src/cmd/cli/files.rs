//! Manifests given on the command line: `-f FILE`, `-f DIRECTORY`, `-f -`.
//!
//! Owns which files are read, and which objects of the API they define.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{CliError, api};
use crate::codec::yaml::yaml_to_values;
use crate::model::ordered::Sortable as _;
use crate::serve::localapi::resource::Resource;

/// kubectl's: other files in a directory are not manifests.
const ENDINGS: [&str; 3] = ["json", "yaml", "yml"];
/// The longest input from a pipe, in bytes.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// One object of a manifest.
pub(super) struct Named {
    pub resource: &'static Resource,
    /// Empty for cluster-scoped kinds.
    pub namespace: String,
    pub name: String,
    pub value: Value,
}

/// Reads all `-f` arguments; objects are in the order of the files. `namespace` is that of the command line,
/// if given. An invalid object is an error in its place.
pub(super) fn read(
    given: &[PathBuf],
    namespace: Option<&str>,
) -> Result<Vec<Result<Named, CliError>>, CliError> {
    let mut objects = Vec::new();
    for path in given {
        if path.as_os_str() == "-" {
            let mut text = String::new();
            let read = io::stdin().lock().take(MAX_BYTES).read_to_string(&mut text);
            read.map_err(|error| CliError::Answer(format!("read standard input: {error}")))?;
            add_documents(&text, "standard input", namespace, &mut objects)?;
            continue;
        }
        for file in files(path)? {
            let text = fs::read_to_string(&file).map_err(|error| failed(&file, &error))?;
            add_documents(&text, &file.display().to_string(), namespace, &mut objects)?;
        }
    }
    if objects.is_empty() {
        let given: Vec<String> = given.iter().map(|path| path.display().to_string()).collect();
        return Err(CliError::Answer(format!("no objects found in {}", given.join(", "))));
    }
    Ok(objects)
}

fn failed(path: &Path, error: &io::Error) -> CliError {
    let path = path.display();
    CliError::Answer(match error.kind() {
        // kubectl's message.
        io::ErrorKind::NotFound => format!("the path \"{path}\" does not exist"),
        _ => format!("read {path}: {error}"),
    })
}

/// The file, or the manifests in a directory sorted by name.
fn files(path: &Path) -> Result<Vec<PathBuf>, CliError> {
    if !fs::metadata(path).map_err(|error| failed(path, &error))?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(|error| failed(path, &error))? {
        let file = entry.map_err(|error| failed(path, &error))?.path();
        let is_manifest = file
            .extension()
            .is_some_and(|ending| ENDINGS.iter().any(|known| ending.eq_ignore_ascii_case(known)));
        if is_manifest && file.is_file() {
            files.push(file);
        }
    }
    files.order_by(Ord::cmp);
    Ok(files)
}

fn add_documents(
    text: &str,
    origin: &str,
    namespace: Option<&str>,
    objects: &mut Vec<Result<Named, CliError>>,
) -> Result<(), CliError> {
    let values = match serde_json::from_str(text) {
        Ok(value) => vec![value],
        Err(_) => yaml_to_values(text, true)
            .map_err(|error| CliError::Answer(format!("error parsing {origin}: {error}")))?,
    };
    for mut value in values {
        let is_list = value["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
        match value.get_mut("items").and_then(Value::as_array_mut).filter(|_| is_list) {
            Some(items) => objects.extend(items.drain(..).map(|item| named(item, origin, namespace))),
            None => objects.push(named(value, origin, namespace)),
        }
    }
    Ok(())
}

fn named(value: Value, origin: &str, namespace: Option<&str>) -> Result<Named, CliError> {
    let text = |field: &Value| field.as_str().unwrap_or_default().to_owned();
    let (kind, version) = (text(&value["kind"]), text(&value["apiVersion"]));
    let (name, own) = (text(&value["metadata"]["name"]), text(&value["metadata"]["namespace"]));
    let wrong = |why: String| Err(CliError::Answer(format!("{origin}: {why}")));
    if kind.is_empty() || version.is_empty() {
        return wrong(
            "an object is missing apiVersion or kind: add both, such as apiVersion: v1 and kind: Pod"
                .to_owned(),
        );
    }
    // kubectl's message.
    let Some(resource) = api::of_kind(&version, &kind) else {
        return wrong(format!(
            "resource mapping not found for name: \"{name}\" namespace: \"{own}\": no matches for kind \"{kind}\" in version \"{version}\""
        ));
    };
    if name.is_empty() {
        return wrong(format!("{kind}: metadata.name: Required value"));
    }
    let namespace = match (resource.namespaced, namespace) {
        (false, _) => String::new(),
        (true, Some(given)) if !own.is_empty() && own != given => {
            return wrong(format!(
                "the namespace from the provided object \"{own}\" does not match the namespace \"{given}\". You must pass '--namespace={own}' to perform this operation."
            ));
        }
        (true, given) => match given {
            _ if !own.is_empty() => own,
            Some(given) => given.to_owned(),
            None => "default".to_owned(),
        },
    };
    Ok(Named { resource, namespace, name, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(text: &str, namespace: Option<&str>) -> Vec<String> {
        let mut objects = Vec::new();
        if let Err(error) = add_documents(text, "f.yaml", namespace, &mut objects) {
            return vec![error.to_string()];
        }
        let shown = |object: Result<Named, CliError>| match object {
            Ok(Named { resource, namespace, name, .. }) => format!("{namespace}/{}/{name}", resource.plural),
            Err(error) => error.to_string(),
        };
        objects.into_iter().map(shown).collect()
    }

    #[test]
    fn documents_and_lists_become_objects_with_their_namespace() {
        let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\n# nothing\n---\napiVersion: v1\nkind: List\nitems:\n\
                    - {apiVersion: v1, kind: ConfigMap, metadata: {name: b, namespace: x}}\n\
                    - {apiVersion: v1, kind: Namespace, metadata: {name: c}}\n";
        assert_eq!(listed(text, None), ["default/pods/a", "x/configmaps/b", "/namespaces/c"]);
        let said = listed(text, Some("y"));
        assert_eq!((said[0].as_str(), said[2].as_str()), ("y/pods/a", "/namespaces/c"));
        assert!(said[1].contains("\"x\" does not match the namespace \"y\""), "{said:?}");
        let json = r#"{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}"#;
        assert_eq!(listed(json, None), ["default/secrets/s"]);
    }

    #[test]
    fn objects_that_cannot_be_applied_say_why() {
        for (text, words) in [
            ("kind: Pod\n", "missing apiVersion"),
            (
                "apiVersion: apps/v9\nkind: Deploiment\nmetadata: {name: d}\n",
                "no matches for kind \"Deploiment\" in version \"apps/v9\"",
            ),
            ("apiVersion: v1\nkind: Pod\n", "metadata.name"),
            ("a: [\n", "error parsing f.yaml: line"),
            ("a: 1\na: 2\n", "error parsing f.yaml"),
        ] {
            let said = listed(text, None).join("\n");
            assert!(said.contains(words), "{said}");
        }
    }
}

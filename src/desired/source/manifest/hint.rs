//! Words for fields that the types do not have, with the name that was probably meant.
//!
//! Owns a list of the names people write by hand; the types themselves cannot be asked.

/// Field names of a pod that are written often enough to be misspelt.
const KNOWN: [&str; 96] = [
    "activeDeadlineSeconds",
    "affinity",
    "allowPrivilegeEscalation",
    "annotations",
    "apiVersion",
    "args",
    "automountServiceAccountToken",
    "capabilities",
    "claimName",
    "command",
    "configMap",
    "configMapKeyRef",
    "configMapRef",
    "containerPort",
    "containers",
    "defaultMode",
    "dnsConfig",
    "dnsPolicy",
    "downwardAPI",
    "effect",
    "emptyDir",
    "enableServiceLinks",
    "env",
    "envFrom",
    "exec",
    "failureThreshold",
    "fieldPath",
    "fieldRef",
    "fsGroup",
    "hostAliases",
    "hostIP",
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "hostPath",
    "hostPort",
    "hostUsers",
    "hostname",
    "httpGet",
    "httpHeaders",
    "image",
    "imagePullPolicy",
    "imagePullSecrets",
    "initContainers",
    "initialDelaySeconds",
    "items",
    "labels",
    "lifecycle",
    "limits",
    "livenessProbe",
    "medium",
    "metadata",
    "mountPath",
    "mountPropagation",
    "name",
    "namespace",
    "nodeName",
    "nodeSelector",
    "optional",
    "periodSeconds",
    "persistentVolumeClaim",
    "ports",
    "postStart",
    "preStop",
    "priority",
    "priorityClassName",
    "privileged",
    "projected",
    "protocol",
    "readOnly",
    "readOnlyRootFilesystem",
    "readinessProbe",
    "requests",
    "resourceFieldRef",
    "resources",
    "restartPolicy",
    "runAsGroup",
    "runAsNonRoot",
    "runAsUser",
    "runtimeClassName",
    "seccompProfile",
    "secretKeyRef",
    "secretName",
    "securityContext",
    "shareProcessNamespace",
    "sizeLimit",
    "startupProbe",
    "subPath",
    "successThreshold",
    "supplementalGroups",
    "tcpSocket",
    "terminationGracePeriodSeconds",
    "timeoutSeconds",
    "tolerations",
    "volumeMounts",
    "volumes",
];

/// The warning for an unknown field.
pub(super) fn unknown_field(path: &str) -> String {
    let field = path.rsplit('.').next().unwrap_or(path);
    match nearest(field) {
        Some(known) => format!("unknown field {path:?} is ignored; did you mean {known:?}?"),
        None => format!("unknown field {path:?} is ignored"),
    }
}

/// A value of the wrong type, with what YAML did to it where that is the likely reason.
pub(super) fn wrong_type(message: &str) -> String {
    let unquoted = ["boolean", "integer", "floating point"]
        .iter()
        .any(|kind| message.contains(&format!("invalid type: {kind}")));
    if unquoted && message.ends_with("expected a string") {
        return format!(
            "{message}; write the value in quotes, YAML takes it for something else without them"
        );
    }
    message.to_owned()
}

/// The line of a field, counted from 1, where its name is on one line of the text only.
pub(super) fn line_of(text: &str, path: &str) -> Option<usize> {
    let name = path.rsplit('.').next()?.split('[').next().filter(|name| !name.is_empty())?;
    let mut lines = text.lines().enumerate().filter(|(_, line)| has_key(line, name));
    let (index, _) = lines.next()?;
    lines.next().is_none().then_some(index + 1)
}

fn has_key(line: &str, name: &str) -> bool {
    let is_comment = line.trim_start().starts_with('#');
    !is_comment
        && line.match_indices(name).any(|(at, _)| {
            let begins = line[..at].ends_with([' ', '\t', '-', '{', ',', '"', '\'']) || at == 0;
            let rest = &line[at + name.len()..];
            begins && rest.strip_prefix(['"', '\'']).unwrap_or(rest).trim_start().starts_with(':')
        })
}

/// A message about a Secret: what serde quotes of the value goes, the place and the types stay.
pub(super) fn without_values(message: &str) -> String {
    let (place, words) = message.split_once(": ").unwrap_or(("", message));
    let mut kept = String::with_capacity(words.len());
    let mut rest = words;
    while let Some((before, quoted)) = rest.find(['`', '"']).map(|at| rest.split_at(at)) {
        kept.push_str(before.trim_end());
        let mark = &quoted[..1];
        // The last mark: the value itself may hold some.
        let end = quoted[1..].rfind(mark).map_or(quoted.len(), |end| end + 2);
        rest = &quoted[end..];
    }
    kept.push_str(rest);
    if place.is_empty() { kept } else { format!("{place}: {kept}") }
}

/// The known name within two typing errors; short names must match up to letter case.
fn nearest(field: &str) -> Option<&'static str> {
    let lower = field.to_lowercase();
    let same_letters = KNOWN.into_iter().find(|known| known.to_lowercase() == lower && *known != field);
    same_letters.or_else(|| {
        let candidates = KNOWN.into_iter().map(|known| (distance(field, known), known));
        let (errors, known) = candidates.min()?;
        (errors > 0 && errors <= 2 && errors * 3 < known.len()).then_some(known)
    })
}

/// Insertions, deletions and replacements between two names; 9 for names that cannot be near.
fn distance(left: &str, right: &str) -> usize {
    if left.len().abs_diff(right.len()) > 2 {
        return 9;
    }
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (line, a) in left.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (column, b) in right.bytes().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_has_a_line_where_its_name_is_on_one_only() {
        let text = "# podAffinity: no\nspec:\n  affinity:\n    podAffinity: 5\n  containers: [{name: a}, {\"tty\": 1}]\n- name: b\n";
        for (path, line) in [
            ("spec.affinity.podAffinity", Some(4)),
            ("spec.containers[1].tty", Some(5)),
            ("spec.containers[0]", Some(5)),
            ("spec.containers[0].name", None),
            ("spec.nodeName", None),
            (".", None),
        ] {
            assert_eq!(line_of(text, path), line, "{path}");
        }
    }

    #[test]
    fn a_message_about_a_secret_quotes_no_value() {
        for (message, expected) in [
            (
                "stringData.pin: invalid type: integer `1234`, expected a string; write the value in quotes",
                "stringData.pin: invalid type: integer, expected a string; write the value in quotes",
            ),
            (
                "data: invalid type: string \"a: \\\"b`\", expected a map",
                "data: invalid type: string, expected a map",
            ),
            ("data: invalid type: string \"open", "data: invalid type: string"),
        ] {
            assert_eq!(without_values(message), expected);
        }
    }

    #[test]
    fn a_misspelt_field_is_named_with_the_nearest_known_one() {
        for (written, meant) in [
            ("spec.containers[0].imagee", "image"),
            ("spec.hostnetwork", "hostNetwork"),
            ("spec.containers[0].livenesProbe", "livenessProbe"),
            ("spec.restartpolicy", "restartPolicy"),
        ] {
            let words = unknown_field(written);
            assert!(words.ends_with(&format!("did you mean {meant:?}?")), "{words}");
        }
        assert_eq!(unknown_field("spec.frobnicate"), "unknown field \"spec.frobnicate\" is ignored");
        assert_eq!(unknown_field("metadata.env2"), "unknown field \"metadata.env2\" is ignored");
    }
}

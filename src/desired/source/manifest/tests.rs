use proptest::prelude::*;

use super::*;
use crate::model::source::ManifestOrigin;
use crate::model::types::PodSource;

const POD: &str =
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - {name: c, image: x}\n";

fn read(text: &str) -> Manifest {
    decode_manifest(text.as_bytes())
}

fn names(manifest: &Manifest) -> Vec<&str> {
    manifest.pods.iter().map(|pod| pod.pod.metadata.name.as_str()).collect()
}

fn problem(text: impl AsRef<[u8]>) -> String {
    let manifest = decode_manifest(text.as_ref());
    assert!(manifest.pods.is_empty(), "{manifest:?}");
    assert_eq!(manifest.problems.len(), 1, "{manifest:?}");
    manifest.problems[0].to_string()
}

#[test]
fn a_pod_is_read_from_yaml_and_from_json_alike() {
    let json = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},"spec":{"containers":[{"name":"c","image":"x"}]}}"#;
    let (yaml, json) = (read(POD), read(json));
    assert_eq!(yaml, json);
    assert_eq!(names(&yaml), ["web"]);
    assert!(yaml.problems.is_empty() && yaml.warnings.is_empty());
    assert_eq!(yaml.pods[0].place, "");
    let marked = [b"\xef\xbb\xbf", POD.as_bytes()].concat();
    assert_eq!(decode_manifest(&marked), yaml);
}

#[test]
fn flow_style_yaml_that_begins_with_a_brace_is_still_yaml() {
    let manifest = read("{apiVersion: v1, kind: Pod, metadata: {name: web}}");
    assert_eq!(names(&manifest), ["web"]);
}

#[test]
fn broken_json_is_reported_by_both_parsers() {
    let message = problem("{\n\t\"apiVersion\": \"v1\",\n\t\"kind\": \"Pod\"\n\t\"metadata\": {}\n}\n");
    assert!(message.starts_with("line "), "{message}");
    assert!(message.contains("(read as JSON: expected `,` or `}` at line 4 column 2)"), "{message}");
}

#[test]
fn several_documents_and_lists_give_every_pod_with_its_place() {
    let pod = |name: &str| POD.replace("web", name);
    let list = "kind: List\napiVersion: v1\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: b}}\n";
    let pods = "kind: PodList\napiVersion: v1\nitems:\n- metadata: {name: c}\n- metadata: {name: d}\n";
    let manifest = read(&format!("{}---\n{list}---\n{pods}---\n# nothing\n", pod("a")));
    assert_eq!(names(&manifest), ["a", "b", "c", "d"]);
    let places: Vec<&str> = manifest.pods.iter().map(|pod| pod.place.as_str()).collect();
    assert_eq!(
        places,
        ["document 1", "document 2, items[0]", "document 3, items[0]", "document 3, items[1]"]
    );
    assert!(manifest.problems.is_empty(), "{manifest:?}");
    let json = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}} {"apiVersion":"v1","kind":"PodList","items":[]}"#;
    assert_eq!(names(&read(json)), ["a"]);
}

#[test]
fn broken_document_is_named_and_the_others_are_read() {
    let bad = POD.replace("web", "bad").replace("image: x", "image: [1]");
    let manifest = read(&format!("{POD}---\n{bad}---\nkind: [\n---\n{}", POD.replace("web", "last")));
    assert_eq!(names(&manifest), ["web", "last"]);
    assert_eq!(manifest.problems.len(), 2);
    let typed = manifest.problems.iter().find(|problem| problem.name.is_some()).unwrap();
    assert_eq!(typed.name.as_deref(), Some("bad"));
    assert!(typed.to_string().starts_with("document 2: spec.containers[0].image: "), "{typed}");
    assert!(manifest.problems.iter().any(|problem| problem.to_string().starts_with("document 3: line ")));
}

#[test]
fn a_bad_item_of_a_list_is_named_and_the_other_items_are_read() {
    let manifest = read(
        "apiVersion: v1\nkind: List\nitems:\n- 7\n- {apiVersion: v1, kind: Pod, metadata: {name: ok}}\n\
         - {apiVersion: v1, kind: List, items: []}\n- {apiVersion: example.com/v1, kind: Gadget, metadata: {name: d}}\n",
    );
    assert_eq!(names(&manifest), ["ok"]);
    let problems: Vec<String> = manifest.problems.iter().map(ToString::to_string).collect();
    assert!(problems[0].starts_with("items[0]: expected an object, found a number"), "{problems:?}");
    assert!(problems[1].starts_with("items[2]: a list inside a list"), "{problems:?}");
    assert!(problems[2].starts_with(
        "items[3]: kind \"Gadget\" of apiVersion \"example.com/v1\" is not supported: only Pod, PodList, List"
    ));
}

#[test]
fn non_manifest_content_is_reported_by_kind() {
    for (text, words) in [
        (&b""[..], "only comments or empty documents"),
        (b"# later\n---\n", "only comments or empty documents"),
        (b"kind: Pod\n\x00", "binary data, not YAML or JSON (NUL byte at offset 10)"),
        (b"\x7fELF\x02\x01\x01\x00", "binary data"),
        (b"a: 1\nb: \xff\n", "not UTF-8 text: byte 0xff at offset 8 (line 2)"),
        (b"\xff\xfea\x00", "UTF-16"),
        (b"<html><body>404</body></html>", "expected an object, found a text"),
        (b"[1, 2]", "bare list"),
        (b"kind: Pod\n", "apiVersion is missing"),
        (b"apiVersion: v1\n", "kind is missing; write kind: Pod"),
        (b"apiVersion: v1\nkind: 3\n", "kind: must be a string, not a number"),
        (b"apiVersion: v1beta1\nkind: Pod\n", "apiVersion \"v1beta1\" does not have kind Pod"),
        (b"apiVersion: v1\nkind: List\nitems: {}\n", "items: must be a list"),
        (b"{\"kind\": \"Pod\", ", "line"),
    ] {
        let message = problem(text);
        assert!(message.contains(words), "{message:?} lacks {words:?}");
    }
    assert!(problem(vec![b' '; MAX_MANIFEST_BYTES + 1]).contains("split it"));
}

#[test]
fn unknown_and_duplicate_fields_warn_and_the_pod_still_runs() {
    let manifest = read(&POD.replace("image: x", "image: x, imagee: y, image: z"));
    assert_eq!(manifest.pods[0].pod.spec.containers[0].image, "z");
    let warnings: Vec<&str> = manifest.warnings.iter().map(|note| note.message.as_str()).collect();
    assert!(warnings[0].ends_with("duplicate key \"image\"; the last one is used"), "{warnings:?}");
    assert_eq!(
        warnings[1],
        "unknown field \"spec.containers[0].imagee\" is ignored; did you mean \"image\"?"
    );
    let json = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","name":"b"}}"#;
    let manifest = read(json);
    assert_eq!(names(&manifest), ["b"]);
    assert_eq!(manifest.warnings[0].message, "duplicate field \"metadata.name\", the last one is used");
}

#[test]
fn wrong_types_and_unknown_fields_are_found_at_every_depth() {
    let with = |spec: &str| read(&format!("{POD}  {spec}\n"));
    for (spec, words) in [
        (
            "affinity: {podAffinity: 5}",
            "line 7: spec.affinity.podAffinity: invalid type: integer `5`, expected a map",
        ),
        (
            "topologySpreadConstraints: [{maxSkew: many}]",
            "line 7: spec.topologySpreadConstraints[0].maxSkew: invalid type: string \"many\", expected a \
             32-bit integer",
        ),
        (
            "volumes: [{name: v, csi: {driver: [d]}}]",
            "line 7: spec.volumes[0].csi.driver: invalid type: sequence, expected a string",
        ),
        (
            "schedulingGates: [{name: 7}]",
            "spec.schedulingGates[0].name: invalid type: integer `7`, expected a string; quote the value, \
             YAML parses it as another type otherwise",
        ),
    ] {
        let manifest = with(spec);
        assert!(manifest.pods.is_empty());
        assert_eq!(manifest.problems[0].to_string(), words);
    }
    let term = "{topologyKey: a, labelSelector: {matchLabel: {a: b}}}";
    let manifest = with(&format!(
        "affinity: {{podAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: [{term}]}}}}"
    ));
    assert_eq!(manifest.pods.len(), 1, "{manifest:?}");
    assert_eq!(
        manifest.warnings[0].message,
        "unknown field \"spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector.matchLabel\" is ignored; did you mean \"matchLabels\"?"
    );
}

#[test]
fn objects_are_read_beside_the_pods_from_documents_and_lists() {
    let manifest = read(&format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: conf}}\ndata: {{a: b}}\ndate: {{}}\n---\n{POD}\n---\n\
         apiVersion: v1\nkind: List\nitems:\n- {{apiVersion: v1, kind: Secret, metadata: {{name: s}}, stringData: {{k: v}}}}\n\
         - {{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {{name: c}}}}\n"
    ));
    assert_eq!(names(&manifest), ["web"]);
    assert!(manifest.problems.is_empty(), "{:?}", manifest.problems);
    assert_eq!(
        manifest.warnings[0].to_string(),
        "document 1: unknown field \"date\" is ignored; did you mean \"data\"?"
    );
    let objects: Vec<_> =
        manifest.objects.iter().map(|object| (object.kind.as_str(), object.place.as_str())).collect();
    assert_eq!(
        objects,
        [
            ("ConfigMap", "document 1"),
            ("Secret", "document 3, items[0]"),
            ("PersistentVolumeClaim", "document 3, items[1]"),
        ]
    );
}

#[test]
fn broken_secret_is_reported_without_its_value() {
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n";
    for (rest, expected) in [
        (
            "stringData: {pin: 4711}",
            "line 4: stringData.pin: invalid type: integer, expected a string; quote the value, YAML parses \
             it as another type otherwise",
        ),
        ("data: aHVudGVyMg==", "line 4: data: invalid type: string, expected a map"),
    ] {
        let problem = problem(format!("{secret}{rest}\n"));
        assert_eq!(problem, expected);
    }
}

#[test]
fn json_nested_beyond_reason_is_refused() {
    let text = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(!problem(text).is_empty());
    assert!(!problem(format!("{{\"a\":[{}0]}}", "0,".repeat(1_000_000))).is_empty());
}

#[test]
fn every_example_is_ready_to_run_without_a_warning() {
    let mut seen = 0;
    for path in manifests_below("examples") {
        let manifest = decode_manifest(&std::fs::read(&path).unwrap());
        assert_eq!((&manifest.problems, &manifest.warnings), (&vec![], &vec![]), "{}", path.display());
        assert!(!manifest.pods.is_empty(), "{}", path.display());
        for pod in manifest.pods {
            prepare(pod.pod, &path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            seen += 1;
        }
    }
    assert!(seen >= 8, "only {seen} example pods found");
}

/// The first lines of a fixture state the expectation: `# refused: TEXT`, or nothing for one that is ready to
/// run.
#[test]
fn every_fixture_is_ready_or_refused_for_the_reason_it_names() {
    let mut seen = 0;
    for path in manifests_below("tests/fixtures/manifests") {
        let text = std::fs::read_to_string(&path).unwrap();
        let expected = text.lines().find_map(|line| line.strip_prefix("# refused: "));
        let manifest = decode_manifest(text.as_bytes());
        let mut outcome: Vec<String> = manifest.problems.iter().map(ToString::to_string).collect();
        assert!(manifest.warnings.is_empty(), "{}: {:?}", path.display(), manifest.warnings);
        let prepared = manifest.pods.into_iter().map(|pod| prepare(pod.pod, &path));
        outcome.extend(prepared.filter_map(Result::err).map(|error| error.to_string()));
        match expected {
            None => assert!(outcome.is_empty(), "{}: {outcome:?}", path.display()),
            Some(words) => {
                assert!(outcome.iter().any(|said| said.contains(words)), "{}: {outcome:?}", path.display());
            }
        }
        seen += 1;
    }
    assert!(seen >= 8, "only {seen} fixtures found");
}

#[test]
fn amounts_may_be_written_as_plain_numbers() {
    let resources = "image: x, resources: {limits: {cpu: 0.5, memory: 1e9}}";
    let pod =
        prepare(read(&POD.replace("image: x", resources)).pods.remove(0).pod, std::path::Path::new("/m"))
            .unwrap();
    let limits = &pod.spec.containers[0].resources.limits;
    assert_eq!((limits["cpu"].milli_value(), limits["memory"].value()), (500, 1_000_000_000));
}

/// Half-edited manifests: every line of every fixture removed, doubled or truncated.
#[test]
fn no_half_edited_manifest_makes_anything_panic() {
    for path in manifests_below("tests/fixtures/manifests") {
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        for number in 0..lines.len() {
            let half = lines[number].get(..lines[number].len() / 2).unwrap_or_default();
            for middle in ["", half, &lines[number].repeat(2)] {
                let edited = [&lines[..number].concat(), middle, &lines[number + 1..].concat()].concat();
                let manifest = decode_manifest(edited.as_bytes());
                assert!(!manifest.pods.is_empty() || !manifest.problems.is_empty(), "{edited}");
                for pod in manifest.pods {
                    let _ = prepare(pod.pod, &path);
                }
            }
        }
    }
}

#[test]
fn uid_ignores_comments_and_key_order_but_not_values() {
    let uid_of =
        |text: &str| prepare(read(text).pods.remove(0).pod, std::path::Path::new("/m")).unwrap().metadata.uid;
    let one = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  containers:\n  - name: c\n    image: x:1\n";
    let two = "# hi\nspec: {containers: [{image: 'x:1', name: c}]} # there\nmetadata: {name: web}\nkind: Pod\napiVersion: v1\n";
    assert_eq!(uid_of(one), uid_of(two));
    assert_ne!(uid_of(one), uid_of(&two.replace("x:1", "x:2")));
}

fn prepare(pod: Pod, path: &std::path::Path) -> Result<Pod, crate::desired::static_pod::StaticPodError> {
    let origin = ManifestOrigin { source: PodSource::File, location: path.display().to_string() };
    crate::desired::static_pod::prepare(pod, &origin, "edge-1")
}

fn manifests_below(directory: &str) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(directory)];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|ext| ext == "yaml" || ext == "json") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

#[test]
fn thousands_of_small_manifests_parse_in_reasonable_time() {
    let started = std::time::Instant::now();
    for number in 0..5_000 {
        let text = POD.replace("web", &format!("web-{number}"));
        let pod = read(&text).pods.remove(0).pod;
        prepare(pod, std::path::Path::new("/etc/pods/web.yaml")).unwrap();
    }
    println!("5000 manifests: {:?}", started.elapsed());
    assert!(started.elapsed() < std::time::Duration::from_secs(120));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_decoding_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = decode_manifest(&bytes);
    }

    #[test]
    fn no_text_made_of_yaml_makes_decoding_or_preparing_panic(
        parts in proptest::collection::vec(
            proptest::sample::select(vec![
                "apiVersion: v1\n", "kind: Pod\n", "kind: List\n", "metadata:\n", "  name: ", "spec:\n", "  containers:\n",
                "  - name: ", "    image: ", "items:\n", "- ", "\n", "---\n", "...\n", "a", "é", ": ", "{", "}", "[", "]",
                ", ", "\"", "'", "&a ", "*a", "<<: ", "|\n", "    ports: [{containerPort: 1}]\n", "  volumes: [{name: v}]\n",
                "!!str ", "# c\n", "%YAML 1.1\n", "? ", "0644", "-1", "~", "\t", "\r\n",
            ]),
            0..60,
        ),
    ) {
        let manifest = decode_manifest(parts.concat().as_bytes());
        for pod in manifest.pods {
            let _ = prepare(pod.pod, std::path::Path::new("/m"));
        }
    }
}

//! Everything that reads what people or the network write, fed with mutations of good input for a few seconds each.
//!
//! `FUZZ_SECONDS` (default 5) is the time per target, `FUZZ_SEED` repeats a run. An input that fails is kept, and its path
//! printed: put it into `tests/fuzz/corpus/<target>/`, where every file is replayed first, for ever.

mod exact;
mod mutate;
mod runner;

use std::time::Duration;

use edge_agent::agent::config::{self, Environment, Invocation};
use edge_agent::desired::source::manifest::{decode_manifest, parse_manifest};
use edge_agent::desired::static_pod::prepare;
use edge_agent::model::api::decode::decode;
use edge_agent::model::api::pod::Pod;
use edge_agent::model::api::quantity::Quantity;
use edge_agent::model::api::schema::Schema;
use edge_agent::model::api::schema::check::{Findings, check};
use edge_agent::model::duration::GoDuration;
use edge_agent::model::image_name::apply_default_tag;
use edge_agent::model::source::ManifestOrigin;
use edge_agent::model::types::PodSource;
use edge_agent::pod::network::dns::parse_resolv_conf;
use edge_agent::service::dns::message::{read_answer, read_query};

use self::runner::{Target, files_below};
use crate::support::scratch::Scratch;

/// Slow even for a debug build on a busy machine.
const TOO_LONG: Duration = Duration::from_secs(30);

#[test]
fn manifests_never_panic_and_valid_pods_survive_the_store() {
    let mut seeds = files_below("examples");
    seeds.extend(files_below("tests/fixtures/manifests"));
    let words = [
        "apiVersion: v1",
        "kind: Pod",
        "kind: List",
        "items:",
        "---\n",
        "...\n",
        "&a ",
        "*a",
        "<<: *a",
        "!!str ",
        "~",
        "0644",
        "yes",
        "1e3",
        "1e400",
        "-0",
        ".inf",
        ".nan",
        "0x7f",
        "0o17",
        "1_000",
        "9223372036854775808",
        "\t",
        "  ",
        "- ",
        ": ",
        "|\n",
        ">-\n",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "'",
        "#",
        "\u{feff}",
        "\u{0}",
        "\u{85}",
        "\u{2028}",
        "null",
        "metadata:",
        "name:",
        "spec:",
        "containers:",
        "restartPolicy: Never",
        "hostPath: {path: /}",
        "100Mi",
        "500m",
    ];
    let origin = ManifestOrigin { source: PodSource::File, location: "/etc/pods/x.yaml".to_owned() };
    let schema = Schema::load();
    let of_pod = schema.of_kind("v1", "Pod").expect("the type of pods");
    Target { name: "manifest", seeds, words: &words, longest: 32 << 10, too_long: TOO_LONG }.run(|bytes| {
        let read = parse_manifest(bytes, &origin, "node");
        let told: usize = read
            .problems
            .iter()
            .chain(&read.warnings)
            .chain(read.ignored.iter().map(|one| &one.message))
            .map(String::len)
            .sum();
        assert!(told <= 4_000_000, "{told} bytes of messages");
        let something = !read.pods.is_empty() || !read.objects.is_empty();
        assert!(
            something
                || !read.problems.is_empty()
                || !read.warnings.is_empty()
                || !read.ignored.is_empty()
                || is_list(bytes),
            "no word about it"
        );
        for pod in &read.pods {
            let mut stored = serde_json::to_value(pod).expect("a pod can be written down");
            assert_eq!(check(&schema, of_pod, &mut stored), Findings::default(), "clients can decode it");
            let loaded = decode::<Pod>(stored).expect("what was written down is read again");
            assert_eq!(loaded.unknown_fields, Vec::<String>::new());
            assert_eq!(&loaded.object, pod);
        }
        // The same pod, spelled as JSON, is the same static pod.
        for raw in decode_manifest(bytes).pods {
            let spelled = serde_json::to_value(&raw.pod).expect("a pod can be written down");
            let again = decode::<Pod>(spelled).expect("what was written down is read again").object;
            assert_eq!(prepare(again, &origin, "node"), prepare(raw.pod, &origin, "node"));
        }
    });
}

/// An empty list is a valid manifest without a pod.
fn is_list(bytes: &[u8]) -> bool {
    String::from_utf8_lossy(bytes).contains("List")
}

#[test]
fn quantities_match_an_exact_model_and_round_trip() {
    let seeds = [
        "0",
        "1",
        "500m",
        "1.5",
        "64Mi",
        "1e3",
        "-0.1n",
        "9223372036854775807",
        "1Ei",
        "+.5u",
        "12E-3",
        "100k",
    ];
    let words = [
        "Ki",
        "Mi",
        "Ei",
        "n",
        "u",
        "m",
        "k",
        "E",
        "e",
        "-",
        "+",
        ".",
        "0",
        "9",
        "e1000",
        "e-1000",
        "000000000",
    ];
    let seeds = seeds.iter().map(|text| text.as_bytes().to_vec()).collect();
    Target { name: "quantity", seeds, words: &words, longest: 80, too_long: TOO_LONG }.run(|bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        let parsed = Quantity::parse(text).ok();
        let model = exact::nanos(text);
        assert_eq!(parsed.is_some(), model.is_some(), "{text:?}: {parsed:?}, exactly {model:?}");
        let (Some(parsed), Some(nanos)) = (parsed, model) else { return };
        // Binary suffixes are exact up to twenty digits only; see the parser.
        if text.ends_with('i') && text.len() > 20 {
            return;
        }
        let printed = parsed.to_string();
        // As upstream, what was written in a binary suffix is printed in whole units, rounded up.
        let rounded = text.ends_with('i').then(|| exact::whole_units(&nanos));
        let shown = exact::nanos(&printed);
        assert!(
            shown.as_ref() == Some(&nanos) || shown == rounded,
            "{text:?} is {nanos} and prints as {printed}"
        );
        let again = Quantity::parse(&printed).expect("what is printed is a quantity");
        assert_eq!(again.to_string(), printed, "{text:?}");
    });
}

#[test]
fn argument_vectors_never_panic_and_complaints_are_short() {
    let seeds = [
        "--manifest-dir=/m\0-v=2\0--runonce",
        "--node-ip=1.2.3.4\0--hostname-override=a",
        "config\0--explain",
        "--eviction-hard=memory.available<5%\0--feature-gates=A=true,B=false",
        "--register-with-taints=a=b:NoSchedule",
        "--manifest-url-header=A:b\0--manifest-url-header=C:d",
        "status\0-o\0json",
        "--reserved-memory=0:memory=1Gi",
        "--log-dir\0/x\0--vmodule=a=1,b*=2",
        "--cluster-dns=10.0.0.10,fd00::1\0--tls-cipher-suites=TLS_AES_128_GCM_SHA256",
        "--max-pods=5\0--system-reserved=cpu=1,memory=1Gi\0--runonce-timeout=1m30s",
    ];
    let words = [
        "--",
        "-",
        "=",
        ",",
        ":",
        "\0",
        "-v",
        "--help=",
        "false",
        "%",
        "<",
        "\u{fffd}",
        "99999999999",
        "-1",
        "1h",
    ];
    let seeds = seeds.iter().map(|text| text.as_bytes().to_vec()).collect();
    Target { name: "flags", seeds, words: &words, longest: 2048, too_long: TOO_LONG }.run(|bytes| {
        use std::os::unix::ffi::OsStringExt;
        let arguments: Vec<_> =
            bytes.split(|byte| *byte == 0).map(|word| std::ffi::OsString::from_vec(word.to_vec())).collect();
        // Files are the next target's.
        if bytes.windows(6).any(|word| word == b"config") && bytes.contains(&b'/') {
            return;
        }
        match config::parse(&arguments, &Environment { hostname: "host".to_owned() }) {
            Ok(Invocation::Run(resolved)) => assert!(resolved.explain().len() < 1 << 20),
            Ok(_) => {}
            Err(error) => assert!(error.to_string().len() <= 4096 + 8 * bytes.len(), "{error}"),
        }
    });
}

#[test]
fn configuration_files_never_panic_and_round_trip() {
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    let seeds = [
        "staticPodPath: /m\nmaxPods: 9\n",
        "evictionHard: {memory.available: 5%}\nsystemReserved: {cpu: 100m}\n",
        "authentication:\n  anonymous: {enabled: true}\n  x509: {clientCAFile: ca.pem}\n",
        "logging: {format: json, verbosity: 3, flushFrequency: 5000000000, vmodule: [{filePattern: a, verbosity: 2}]}\n",
        "featureGates: {NodeSwap: true}\nmemorySwap: {swapBehavior: LimitedSwap}\nfailSwapOn: false\n",
        "shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s\nclusterDNS: [10.0.0.10]\n",
        "registerWithTaints: [{key: a, effect: NoSchedule}]\nstaticPodURLHeader: {A: [b]}\ntlsCurvePreferences: [29]\n",
    ];
    let words = [
        ": ",
        "\n",
        "- ",
        "{}",
        "[]",
        "null",
        "true",
        "-1",
        "99999999999999999999",
        "1h",
        "\"\"",
        "&a",
        "*a",
        "<<: *a",
        "%",
        "cpuManagerPolicy: static\n",
        "kind: ",
        "maxPods: ",
        "reservedSystemCPUs: 0-3\n",
        "---\n",
    ];
    let seeds = seeds.iter().map(|text| format!("{head}{text}").into_bytes()).collect();
    let scratch = Scratch::new();
    let (file, copy) = (scratch.path().join("config.yaml"), scratch.path().join("copy.yaml"));
    let environment = Environment { hostname: "host".to_owned() };
    let read = |file: &std::path::Path| match config::parse(
        &[format!("--config={}", file.display()).into()],
        &environment,
    ) {
        Ok(Invocation::Run(resolved)) => Some(resolved),
        Ok(other) => panic!("not a run: {other:?}"),
        Err(error) => {
            assert!(error.to_string().len() < 1 << 20, "{error}");
            None
        }
    };
    Target { name: "configuration", seeds, words: &words, longest: 8 << 10, too_long: TOO_LONG }.run(
        |bytes| {
            std::fs::write(&file, bytes).expect("write the file");
            let Some(resolved) = read(&file) else { return };
            std::fs::write(&copy, resolved.to_yaml()).expect("write the copy");
            let again = read(&copy).unwrap_or_else(|| panic!("refused: {}", resolved.to_yaml()));
            assert_eq!(again.to_yaml(), resolved.to_yaml());
        },
    );
}

#[test]
fn image_references_with_a_tag_added_stay_as_they_are() {
    let seeds = [
        "busybox",
        "localhost:5000/a/b:1",
        "a.b/c@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "[::1]:5000/x",
        "a/b_c/d--e:V1.0-x",
        "GHCR.io/a",
    ];
    let words = ["/", ":", "@", "sha256:", "[", "]", ".", "__", "-", "latest", "A"];
    let seeds = seeds.iter().map(|text| text.as_bytes().to_vec()).collect();
    Target { name: "image", seeds, words: &words, longest: 400, too_long: TOO_LONG }.run(|bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        if let Ok(tagged) = apply_default_tag(text) {
            assert!(tagged == text || tagged == format!("{text}:latest"), "{tagged}");
            assert!(tagged.bytes().all(|byte| byte.is_ascii_graphic()), "{tagged:?}");
            assert_eq!(apply_default_tag(&tagged).as_deref(), Ok(tagged.as_str()));
        }
    });
}

#[test]
fn resolver_configurations_are_read_as_far_as_they_can_be() {
    let seeds = [
        "nameserver 1.1.1.1\nsearch a.b. c .\noptions ndots:5 edns0\n",
        "# no\n; no\nnameserver\tfe80::1%eth0\r\n",
    ];
    let words = ["nameserver ", "search ", "options ", "\n", "\r", "\t", " ", "#", ";", ".", "\u{a0}"];
    let seeds = seeds.iter().map(|text| text.as_bytes().to_vec()).collect();
    Target { name: "resolv", seeds, words: &words, longest: 4 << 10, too_long: TOO_LONG }.run(|bytes| {
        let text = String::from_utf8_lossy(bytes);
        let config = parse_resolv_conf(&text);
        let all = config.servers.iter().chain(&config.searches).chain(&config.options);
        for word in all {
            assert!(!word.contains([' ', '\t', '\n', '#', ';']), "{word:?}");
        }
    });
}

#[test]
fn go_durations_print_as_what_they_are() {
    let seeds =
        ["0", "1h30m", "-1.5s", "100ms", "2us", "3\u{b5}s", "1ns", "2562047h47m16.854775807s", ".5m", "+1.h"];
    let words =
        ["h", "m", "s", "ms", "us", "ns", "\u{b5}s", "\u{3bc}s", ".", "-", "0", "9", "00000000000000000000"];
    let seeds = seeds.iter().map(|text| text.as_bytes().to_vec()).collect();
    Target { name: "duration", seeds, words: &words, longest: 80, too_long: TOO_LONG }.run(|bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        if let Ok(duration) = GoDuration::parse(text) {
            let printed = duration.to_string();
            assert_eq!(GoDuration::parse(&printed).as_ref(), Ok(&duration), "{text:?} prints as {printed}");
        }
    });
}

#[test]
fn dns_messages_never_panic_and_refusals_name_their_query() {
    let query = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01\x03web\x04shop\x03svc\x07cluster\x05local\x00\x00\x01\x00\x01\
        \x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00";
    let answer = b"\x12\x34\x81\x80\x00\x01\x00\x02\x00\x01\x00\x00\x03www\x07example\x03com\x00\x00\x01\x00\x01\
        \xc0\x0c\x00\x05\x00\x01\x00\x00\x00\x3c\x00\x04\x01a\xc0\x10\xc0\x2d\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04\xc0\x00\x02\x07\
        \xc0\x10\x00\x06\x00\x01\x00\x00\x00\x3c\x00\x16\x00\x00\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00\x04\x00\x00\x00\x05";
    assert!(read_query(query).is_ok() && read_answer(answer).is_some(), "the seeds are good ones");
    let seeds = vec![query.to_vec(), answer.to_vec()];
    let words = ["\u{0}\u{1}", "\u{3}www", "\u{c0}\u{c}", "\u{0}\u{29}", "?", "\u{0}\u{0}\u{0}\u{3c}"];
    Target { name: "dns", seeds, words: &words, longest: 1500, too_long: TOO_LONG }.run(|bytes| {
        if let Err(Some(refusal)) = read_query(bytes) {
            assert_eq!(refusal[..2], bytes[..2]);
            assert!(refusal.len() == 12 && refusal[2] & 0x80 != 0, "{refusal:?}");
        }
        let _ = read_answer(bytes);
    });
}

//! Images of Kubernetes' components, packed from the programs of `KUBE_BIN` as archives on the device.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use sha2::{Digest, Sha256};

use super::control_plane::{VERSION, program, said};

/// The image of etcd in kubeadm's manifest for this release.
const ETCD: &str = "etcd:3.6.8-0";
/// etcd 3.5 has other names for two flags of the manifest for 3.6.
const OLD_ETCD: &str = r#"#!/bin/sh
for flag in "$@"; do
	shift
	case $flag in
	--feature-gates=*) flag=--experimental-initial-corrupt-check=true ;;
	--watch-progress-notify-interval=*) flag=--experimental-${flag#--} ;;
	esac
	set -- "$@" "$flag"
done
exec /etcd "$@"
"#;

/// The pause image. kubeadm's health check runs it with `-v`, which ends.
const PAUSE: &str = "pause:3.10.2";
const PAUSE_PROGRAM: &str = "#!/bin/sh\n[ \"$1\" = -v ] || exec sleep 1000000\n";

/// Writes the archives of what a control plane runs to a directory.
pub fn offer(images: &Path, scratch: &Path) {
    offer_version(images, scratch, VERSION, "");
    let image = Image::new(scratch, &format!("registry.k8s.io/{ETCD}"));
    let etcd = program("etcd");
    let version = said(Command::new(&etcd).arg("--version")).unwrap_or_else(|error| panic!("{error}"));
    if version.contains(" 3.5.") {
        image.install(&etcd, "etcd");
        image.install(Path::new("/bin/busybox"), "bin/sh");
        image.script("usr/local/bin/etcd", OLD_ETCD);
    } else {
        image.install(&etcd, "usr/local/bin/etcd");
    }
    image.pack(images, "kube-etcd");
    let image =
        Image { entrypoint: Some("/pause"), ..Image::new(scratch, &format!("registry.k8s.io/{PAUSE}")) };
    image.install(Path::new("/bin/busybox"), "bin/sh");
    image.install(Path::new("/bin/busybox"), "bin/sleep");
    image.script("pause", PAUSE_PROGRAM);
    image.pack(images, "kube-pause");
}

/// The components of Kubernetes as images of a version, which is the same programs. `broken` names one that ends at once.
pub fn offer_version(images: &Path, scratch: &Path, version: &str, broken: &str) {
    for name in ["kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
        let image = Image::new(scratch, &format!("registry.k8s.io/{name}:{version}"));
        let from = if name == broken { PathBuf::from("/bin/false") } else { program(name) };
        image.install(&from, &format!("usr/local/bin/{name}"));
        image.pack(images, &format!("{name}-{version}"));
    }
}

struct Image {
    directory: PathBuf,
    root: PathBuf,
    name: String,
    entrypoint: Option<&'static str>,
}

impl Image {
    fn new(scratch: &Path, name: &str) -> Self {
        let directory = scratch.join("packing");
        let root = directory.join("root");
        fs::create_dir_all(&root).expect("make a directory");
        Self { directory, root, name: name.to_owned(), entrypoint: None }
    }

    /// A program, with the libraries that it is linked with.
    fn install(&self, from: &Path, to: &str) {
        let from = said(Command::new("which").arg(from)).unwrap_or_else(|error| panic!("{error}"));
        self.copy(Path::new(from.trim()), to);
        // It fails for a static program.
        let linked = said(Command::new("ldd").arg(from.trim())).unwrap_or_default();
        for library in linked.split_whitespace().filter(|word| word.starts_with('/')) {
            self.copy(Path::new(library), library.trim_start_matches('/'));
        }
    }

    fn script(&self, to: &str, text: &str) {
        let script = self.root.join(to);
        fs::create_dir_all(script.parent().expect("a directory")).expect("make a directory");
        fs::write(&script, text).expect("write a script");
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("make it a program");
    }

    fn copy(&self, from: &Path, to: &str) {
        let to = self.root.join(to);
        fs::create_dir_all(to.parent().expect("a directory")).expect("make a directory");
        fs::copy(from, &to).unwrap_or_else(|error| panic!("copy {}: {error}", from.display()));
    }

    /// Writes NAME.tar, as `docker save` does.
    fn pack(self, to: &Path, name: &str) {
        let pack = |from: &Path, to: &Path| {
            let mut command = Command::new("tar");
            command.arg("-C").arg(from).args(["--owner=0", "--group=0", "-cf"]).arg(to).arg(".");
            said(&mut command).unwrap_or_else(|error| panic!("{error}"));
        };
        let archive = self.directory.join("archive");
        fs::create_dir_all(&archive).expect("make a directory");
        pack(&self.root, &archive.join("layer.tar"));
        let layer = digest(&fs::read(archive.join("layer.tar")).expect("read the layer"));
        let config = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }, "os": "linux",
            "config": { "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "Entrypoint": self.entrypoint.map(|it| [it]) },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer}")] },
        });
        fs::write(archive.join("config.json"), config.to_string()).expect("write the configuration");
        let manifest = json!([{ "Config": "config.json", "RepoTags": [self.name], "Layers": ["layer.tar"] }]);
        fs::write(archive.join("manifest.json"), manifest.to_string()).expect("write the manifest");
        pack(&archive, &to.join(format!("{name}.tar")));
        fs::remove_dir_all(&self.directory).expect("remove what was packed");
    }
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

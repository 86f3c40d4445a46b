//! Specifications of two directories, valid and invalid.

use super::*;

struct Dirs(PathBuf);

impl Dirs {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("edge-agent-cdi-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        for directory in ["etc", "run"] {
            std::fs::create_dir_all(root.join(directory)).unwrap();
        }
        Self(root)
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.0.join(file), text).unwrap();
    }

    fn apply(&self, names: &[&str]) -> Result<ContainerConfig, String> {
        let directories = [self.0.join("etc"), self.0.join("run"), self.0.join("none")];
        let mut config = ContainerConfig {
            cdi_devices: names.iter().map(|&name| name.to_owned()).collect(),
            ..ContainerConfig::default()
        };
        let root = self.0.display().to_string();
        apply(&directories, &mut config).map_err(|error| error.to_string().replace(&root, ""))?;
        Ok(config)
    }
}

impl Drop for Dirs {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const CAMERA: &str = "
cdiVersion: 0.6.0
kind: acme.com/camera
containerEdits:
  env: [CAMERA=yes]
devices:
- name: front
  containerEdits:
    deviceNodes:
    - {path: /dev/video0, hostPath: /dev/v4l/front, permissions: rw, gid: 44, fileMode: 432}
    mounts:
    - {hostPath: /opt/acme, containerPath: /opt/lib, options: [ro, nosuid, bind]}
    additionalGids: [44, 0]
- name: back
  containerEdits:
    deviceNodes: [{path: /dev/video1}]
";

#[test]
fn cdi_names_become_devices_mounts_envs_and_groups_once() {
    let dirs = Dirs::new("names");
    dirs.write("etc/camera.yaml", CAMERA);
    let config =
        dirs.apply(&["acme.com/camera=front", "acme.com/camera=back", "acme.com/camera=back"]).unwrap();
    assert_eq!(config.envs, [("CAMERA".to_owned(), "yes".to_owned())]);
    let front = Device {
        host_path: "/dev/v4l/front".to_owned(),
        container_path: "/dev/video0".to_owned(),
        permissions: "rw".to_owned(),
        file_mode: Some(0o660),
        uid: None,
        gid: Some(44),
    };
    let back = Device {
        host_path: "/dev/video1".to_owned(),
        container_path: "/dev/video1".to_owned(),
        permissions: "rwm".to_owned(),
        ..Device::default()
    };
    assert_eq!(config.devices, [front, back]);
    assert!(config.mounts.len() == 1 && config.mounts[0].readonly && config.cdi_devices.is_empty());
    assert_eq!(config.security.supplemental_groups, [44]);
    let annotated = ContainerConfig {
        annotations: [("cdi.k8s.io/x".to_owned(), "a/b=c, d/e=f".to_owned())].into(),
        ..ContainerConfig::default()
    };
    assert_eq!(super::annotated(&annotated), ["a/b=c", "d/e=f"]);
}

#[test]
fn the_later_directory_wins_and_twice_in_one_is_nobodys() {
    let dirs = Dirs::new("order");
    let spec = |path: &str| {
        format!(
            r#"{{"cdiVersion":"0.5.0","kind":"a.com/b","devices":[{{"name":"c","containerEdits":{{"deviceNodes":[{{"path":"{path}"}}]}}}}]}}"#
        )
    };
    dirs.write("etc/one.json", &spec("/dev/one"));
    dirs.write("run/two.json", &spec("/dev/two"));
    dirs.write("run/ignored.txt", "no specification");
    assert_eq!(dirs.apply(&["a.com/b=c"]).unwrap().devices[0].host_path, "/dev/two");
    dirs.write("run/three.json", &spec("/dev/three"));
    let why = dirs.apply(&["a.com/b=c"]).unwrap_err();
    assert_eq!(
        why,
        "unresolvable CDI device \"a.com/b=c\": defined in both /run/three.json and /run/two.json"
    );
}

#[test]
fn broken_cdi_file_is_named_and_the_others_still_work() {
    let dirs = Dirs::new("broken");
    dirs.write("etc/bad.yaml", "kind: [");
    dirs.write("etc/kindless.json", r#"{"cdiVersion": "0.6.0"}"#);
    dirs.write("etc/camera.yaml", CAMERA);
    assert!(dirs.apply(&["acme.com/camera=back"]).is_ok());
    let why = dirs.apply(&["acme.com/camera=side"]).unwrap_err();
    assert!(why.starts_with("unresolvable CDI device \"acme.com/camera=side\": not found in any specification in /etc, /run, /none; unreadable: /etc/bad.yaml: "), "{why}");
    assert!(why.contains("/etc/kindless.json: kind: Required value"), "{why}");
    assert!(dirs.apply(&[]).is_ok(), "who asks for nothing reads nothing");
}

#[test]
fn what_the_runtime_cannot_do_is_refused_with_its_field() {
    let dirs = Dirs::new("refused");
    for (edits, words) in [
        (
            r#""hooks": [{"hookName": "createContainer", "path": "/x"}]"#,
            "containerEdits.hooks: not supported by the embedded runtime",
        ),
        (r#""intelRdt": {}"#, "containerEdits.intelRdt: not supported by the embedded runtime"),
        (
            r#""mounts": [{"hostPath": "/a", "containerPath": "/b", "type": "tmpfs"}]"#,
            "containerEdits.mounts.type: \"tmpfs\": only bind mounts are supported",
        ),
        (
            r#""deviceNodes": [{"path": "video0"}]"#,
            "containerEdits.deviceNodes.path: \"video0\" is not an absolute path",
        ),
        (r#""env": ["A"]"#, "containerEdits.env: \"A\" must be NAME=value"),
    ] {
        dirs.write("etc/x.json", &format!(r#"{{"cdiVersion":"0.6.0","kind":"a.com/b","devices":[{{"name":"c","containerEdits":{{{edits}}}}}]}}"#));
        assert_eq!(
            dirs.apply(&["a.com/b=c"]).unwrap_err(),
            format!("CDI device \"a.com/b=c\" of /etc/x.json: {words}")
        );
    }
    dirs.write(
        "etc/x.json",
        r#"{"cdiVersion":"0.6.0","kind":"a.com/b","devices":[{"name":"c","containerEdits":{"hooks":[]}}]}"#,
    );
    assert!(dirs.apply(&["a.com/b=c"]).is_ok());
}

#[test]
fn hostile_specifications_stop_no_other_device() {
    let dirs = Dirs::new("hostile");
    let of_kind = |kind: &str, edits: &str| {
        format!("cdiVersion: 0.6.0\nkind: {kind}\ndevices:\n- name: a\n  containerEdits: {edits}\n")
    };
    dirs.write("etc/good.yaml", &of_kind("acme.com/good", "{env: [A=1]}"));
    dirs.write("etc/large.json", &" ".repeat(5 << 20));
    dirs.write("etc/bomb.yaml", "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]\n");
    dirs.write("etc/deep.json", &"[".repeat(100_000));
    dirs.write(
        "etc/relative.yaml",
        &of_kind("acme.com/bad", "{deviceNodes: [{path: /dev/x, hostPath: etc/shadow}]}"),
    );
    nix::unistd::mkfifo(&dirs.0.join("etc/fifo.json"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::os::unix::fs::symlink("/dev/zero", dirs.0.join("etc/endless.yaml")).unwrap();
    std::os::unix::fs::symlink("loop.json", dirs.0.join("etc/loop.json")).unwrap();
    std::fs::create_dir(dirs.0.join("etc/directory.json")).unwrap();
    assert_eq!(dirs.apply(&["acme.com/good=a"]).unwrap().envs, [("A".to_owned(), "1".to_owned())]);
    let why = dirs.apply(&["acme.com/bad=a"]).unwrap_err();
    assert!(why.contains("deviceNodes.hostPath: \"etc/shadow\" is not an absolute path"), "{why}");
}

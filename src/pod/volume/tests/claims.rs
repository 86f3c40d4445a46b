//! What pods have of PersistentVolumes.

use super::*;
use crate::model::objects::wire;

fn claiming(uid: &str, claim: &str) -> Pod {
    pod(uid, &json!({}), &json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]))
}

fn restarted(house: &VolumeNode) -> Volumes {
    let objects = Rc::clone(&house.claims) as Rc<dyn ObjectLookup>;
    Volumes::new(house.volumes.config.clone(), objects, Clock::System)
}

fn directory(house: &VolumeNode, name: &str) -> String {
    let path = house.scratch.0.join(name);
    std::fs::create_dir_all(&path).unwrap();
    path.display().to_string()
}

#[test]
fn host_path_type_of_a_claimed_volume_is_checked() {
    let house = VolumeNode::new();
    let missing = house.scratch.0.join("usb");
    let path = missing.display().to_string();
    house.claims.bind("data", host(&path, "Directory"), false);
    let error = run(house.volumes.ensure(&claiming("u1", "data"))).unwrap_err();
    assert!(matches!(error, VolumeError::HostPathType { expected: "a directory", .. }), "{error}");
    assert!(!missing.exists());
    house.claims.bind("data", host(&path, "DirectoryOrCreate"), false);
    let mounted = run(restarted(&house).ensure(&claiming("u1", "data"))).unwrap();
    assert!(missing.is_dir());
    assert_eq!(mounted["v"].host_path, missing);
}

#[test]
fn a_path_or_an_export_for_one_pod_goes_to_one_at_a_time() {
    let house = VolumeNode::new();
    house.claims.bind("data", host(&directory(&house, "data"), ""), false);
    let for_one = |claim: &str| house.claims.0.borrow_mut().get_mut(claim).unwrap().single_pod = true;
    for_one("data");
    let ensure = |uid: &str, claim: &str| run(restarted(&house).ensure(&claiming(uid, claim)));
    ensure("u1", "data").unwrap();
    ensure("u1", "data").unwrap();
    let error = ensure("u2", "data").unwrap_err();
    assert!(matches!(error, VolumeError::InUse { .. }), "{error}");
    run(house.volumes.tear_down(&PodUid::from("u1"))).unwrap();
    ensure("u2", "data").unwrap();
    let export = ClaimedSource::Nfs { server: "192.0.2.1".to_owned(), path: "/x".to_owned() };
    house.claims.bind("films", export, false);
    for_one("films");
    std::fs::create_dir_all(house.dir("u1").join("volumes/kubernetes.io~local-volume/pv-films")).unwrap();
    let error = ensure("u2", "films").unwrap_err();
    assert!(matches!(error, VolumeError::InUse { .. }), "{error}");
}

#[test]
fn a_pod_keeps_its_volume_when_the_claim_is_deleted() {
    let house = VolumeNode::new();
    let path = directory(&house, "data");
    house.claims.bind("host", host(&path, ""), false);
    house.claims.bind("local", ClaimedSource::Local { path: path.clone(), fs_type: String::new() }, true);
    house.claims.bind("own", ClaimedSource::Directory { path, bytes: 0, uid: String::new() }, false);
    let (kind, namespace, name) = (ObjectKind::PersistentVolumeClaim, "ns".to_owned(), "own".to_owned());
    house.claims.0.borrow_mut().get_mut("own").unwrap().name =
        wire::volume_name(&ObjectKey { kind, namespace, name });
    let pods = ["host", "local", "own"].map(|claim| claiming(claim, claim));
    let before = pods.each_ref().map(|pod| run(house.volumes.ensure(pod)).unwrap());
    house.claims.0.borrow_mut().clear();
    let after = pods.each_ref().map(|pod| run(house.volumes.ensure(pod)).unwrap());
    let next = restarted(&house);
    let later = pods.each_ref().map(|pod| run(next.ensure(pod)));
    mount::unmount(&after[1]["v"].host_path).unwrap();
    let unmounted = run(house.volumes.ensure(&pods[1]));
    for uid in ["host", "local", "own"] {
        run(house.volumes.tear_down(&PodUid::from(uid))).unwrap();
    }
    assert_eq!(before, after);
    assert!(after[1]["v"].read_only);
    assert_eq!(later[2].as_ref().unwrap(), &after[2], "its name tells the claim");
    assert!(later[..2].iter().all(Result::is_err));
    assert!(matches!(unmounted, Err(VolumeError::ClaimNotFound { .. })), "nothing is mounted for it");
    let gone = run(house.volumes.ensure(&pods[0]));
    assert!(gone.is_err(), "the next pod waits");
    assert_eq!(house.mounts(), 0);
}

#[test]
fn mount_options_of_a_local_volume_have_an_effect() {
    let house = VolumeNode::new();
    let source = ClaimedSource::Local { path: directory(&house, "data"), fs_type: String::new() };
    house.claims.bind("data", source, false);
    let write = || {
        let mounted = run(house.volumes.ensure(&claiming("u1", "data"))).unwrap();
        std::fs::write(mounted["v"].host_path.join("row"), "x").map_err(|error| error.kind())
    };
    let before = write();
    // As after an end of the agent between the two steps.
    house.claims.0.borrow_mut().get_mut("data").unwrap().mount_options = vec!["ro,noexec".to_owned()];
    let after = write();
    run(house.volumes.tear_down(&PodUid::from("u1"))).unwrap();
    assert_eq!((before, after), (Ok(()), Err(std::io::ErrorKind::ReadOnlyFilesystem)));
}

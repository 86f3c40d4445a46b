//! What the runtime says of itself, of its images, and of what it does not have.

use edge_agent::platform::proto::runtime as cri;
use tonic::Code;

use super::served::Served;
use crate::support::image::BUSYBOX;

#[tokio::test]
async fn the_runtime_and_its_images_are_described() {
    let mut served = Served::start().await;
    let version =
        served.runtime.version(cri::VersionRequest::default()).await.expect("it answers").into_inner();
    assert_eq!((version.runtime_name.as_str(), version.runtime_api_version.as_str()), ("agent", "v1"));
    let status =
        served.runtime.status(cri::StatusRequest { verbose: true }).await.expect("it answers").into_inner();
    let conditions = status.status.expect("a status").conditions;
    let ready: Vec<_> =
        conditions.iter().map(|condition| (condition.r#type.as_str(), condition.status)).collect();
    assert_eq!(ready, [("RuntimeReady", true), ("NetworkReady", true)], "{conditions:?}");
    let info: serde_json::Value = serde_json::from_str(&status.info["config"]).expect("JSON");
    assert!(info["bridge"].is_string());
    assert_eq!(status.runtime_handlers[0].name, "");
    let config = served.runtime.runtime_config(cri::RuntimeConfigRequest {}).await.expect("it answers");
    let linux = config.into_inner().linux.expect("it is Linux");
    assert_eq!(linux.cgroup_driver(), cri::CgroupDriver::Cgroupfs);

    let listed = served.images.list_images(cri::ListImagesRequest::default()).await.expect("it answers");
    let listed = listed.into_inner().images;
    let busybox = listed.iter().find(|image| image.repo_tags.iter().any(|tag| tag == BUSYBOX));
    let busybox = busybox.expect("it was imported").clone();
    assert!(listed.len() >= 3 && busybox.size > 0 && busybox.id.starts_with("sha256:"), "{listed:?}");
    let spec = |image: &str| Some(cri::ImageSpec { image: image.to_owned(), ..Default::default() });
    let filter = Some(cri::ImageFilter { image: spec("busybox") });
    let listed = served.images.list_images(cri::ListImagesRequest { filter }).await.expect("it answers");
    assert_eq!(listed.into_inner().images, [busybox.clone()], "a repository means its images");
    for name in [BUSYBOX, "busybox:1.36", &busybox.id] {
        let request = cri::ImageStatusRequest { image: spec(name), verbose: true };
        let answer = served.images.image_status(request).await.expect("it answers").into_inner();
        assert_eq!(answer.image.map(|image| image.id), Some(busybox.id.clone()), "{name}");
        assert!(answer.info.contains_key("info"));
        let filter = Some(cri::ImageFilter { image: spec(name) });
        let listed = served.images.list_images(cri::ListImagesRequest { filter }).await.expect("it answers");
        assert_eq!(listed.into_inner().images.len(), 1);
    }
    let request = cri::ImageStatusRequest { image: spec("busybox:none"), verbose: false };
    assert_eq!(served.images.image_status(request).await.expect("it answers").into_inner().image, None);
    let usage =
        served.images.image_fs_info(cri::ImageFsInfoRequest {}).await.expect("it answers").into_inner();
    let used = usage.image_filesystems[0].used_bytes.expect("a number").value;
    assert!(used > 0 && usage.container_filesystems.len() == 1);
    let request = cri::RemoveImageRequest { image: spec(&busybox.id) };
    served.images.remove_image(request.clone()).await.expect("it goes");
    served.images.remove_image(request).await.expect("it may be repeated");
    let request = cri::ImageStatusRequest { image: spec(BUSYBOX), verbose: false };
    assert_eq!(served.images.image_status(request).await.expect("it answers").into_inner().image, None);
}

#[tokio::test]
async fn missing_ids_and_unsupported_calls_return_grpc_codes() {
    let mut served = Served::start().await;
    let id = "0123456789abcdef".to_owned();
    let code = |answer: Result<(), tonic::Status>| answer.err().map(|status| status.code());
    let request = cri::ContainerStatusRequest { container_id: id.clone(), verbose: false };
    let status = served.runtime.container_status(request).await.map(|_| ()).expect_err("there is none");
    assert_eq!(status.code(), Code::NotFound);
    let wanted = format!("an error occurred when try to find container \"{id}\": not found");
    assert_eq!(status.message(), wanted);
    let request = cri::PodSandboxStatusRequest { pod_sandbox_id: id.clone(), verbose: false };
    assert_eq!(code(served.runtime.pod_sandbox_status(request).await.map(|_| ())), Some(Code::NotFound));
    let request = cri::StartContainerRequest { container_id: id.clone() };
    assert_eq!(code(served.runtime.start_container(request).await.map(|_| ())), Some(Code::NotFound));
    let request = cri::ExecSyncRequest { container_id: id.clone(), cmd: vec!["true".into()], timeout: 1 };
    assert_eq!(code(served.runtime.exec_sync(request).await.map(|_| ())), Some(Code::NotFound));
    let request = cri::StopContainerRequest { container_id: id.clone(), timeout: 1 };
    served.runtime.stop_container(request).await.expect("fine on what is gone");
    let request = cri::RemoveContainerRequest { container_id: id.clone() };
    served.runtime.remove_container(request).await.expect("fine on what is gone");
    let request = cri::StopPodSandboxRequest { pod_sandbox_id: id.clone() };
    served.runtime.stop_pod_sandbox(request).await.expect("fine on what is gone");
    let request = cri::RemovePodSandboxRequest { pod_sandbox_id: id.clone() };
    served.runtime.remove_pod_sandbox(request).await.expect("fine on what is gone");
    let request = cri::CheckpointContainerRequest { container_id: id.clone(), ..Default::default() };
    let answer = served.runtime.checkpoint_container(request).await.map(|_| ());
    assert_eq!(code(answer), Some(Code::Unimplemented));
    let request = cri::UpdatePodSandboxResourcesRequest { pod_sandbox_id: id, ..Default::default() };
    let answer = served.runtime.update_pod_sandbox_resources(request).await.map(|_| ());
    assert_eq!(code(answer), Some(Code::Unimplemented));
    let request = cri::RunPodSandboxRequest::default();
    let answer = served.runtime.run_pod_sandbox(request).await.map(|_| ());
    assert_eq!(code(answer), Some(Code::InvalidArgument));
}

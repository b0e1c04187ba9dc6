//! The content of a bundle, and the conformance suite on the real tools.

use std::fs;

use guest_proto::Privilege;
use serde_json::{Value, json};

use super::{Bundle, CgroupNamespace, Crun, Kernel, Runc};
use crate::conformance::{Setuid, keeps, keeps_above_layers, promise_tests, runtime_conformance};
use crate::grouped::bench::{GroupedBench, Version};
use crate::staged::tests::staged;

mod runc {
    use super::*;
    runtime_conformance!(GroupedBench::new(Version::V1, staged::<Runc>));
}

mod crun {
    use super::*;
    runtime_conformance!(GroupedBench::new(Version::V1, staged::<Crun>));
}

/// Execs enter their leaves in another way there, which an own namespace of groups would forbid.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_of_version_2_serve_as_well() {
    if let Some(bench) = GroupedBench::new(Version::V2, staged::<Runc>).await {
        keeps(&bench, "timeout_kills_the_whole_tree").await.expect("runc");
    }
    if let Some(bench) = GroupedBench::new(Version::V2, staged::<Crun>).await {
        keeps(&bench, "timeout_kills_the_whole_tree").await.expect("crun");
    }
}

fn bundle(privilege: Privilege) -> Bundle {
    Bundle {
        root: "/tmp/root".to_owned(),
        hostname: "sandbox".to_owned(),
        id_base: 655_360,
        privilege,
        kernel: Kernel::Host,
        shm_bytes: 1024,
        cgroup_namespace: CgroupNamespace::Own,
        args: vec!["/proc/self/fd/4".to_owned()],
        mounts: Vec::new(),
    }
}

fn written(bundle: &Bundle) -> Value {
    serde_json::to_value(bundle.spec()).expect("it holds only strings, numbers and lists")
}

#[test]
fn a_bundle_has_every_namespace_its_own_ids_and_nothing_of_the_host() {
    let spec = written(&bundle(Privilege::None));
    let kinds: Vec<&str> = spec["linux"]["namespaces"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|namespace| namespace["type"].as_str())
        .collect();
    // The network is that of the stage.
    assert_eq!(kinds, ["user", "pid", "mount", "ipc", "uts", "cgroup"]);
    let map = json!([{ "containerID": 0, "hostID": 655_360, "size": 65_536 }]);
    assert_eq!(spec["linux"]["uidMappings"], map);
    assert_eq!(spec["linux"]["gidMappings"], map);
    assert_eq!(spec["process"]["env"], json!([]));
    assert_eq!(spec["linux"].get("cgroupsPath"), None);
    assert_eq!(spec.get("hooks"), None);
    let binds = spec["mounts"].as_array().into_iter().flatten();
    assert!(binds.clone().count() > 0 && binds.clone().all(|m| m["type"] != "bind"));
}

#[test]
fn a_sentry_with_a_way_out_stays_in_the_namespaces_of_its_tool() {
    let kinds = |kernel| {
        let spec = written(&Bundle { kernel, ..bundle(Privilege::None) });
        let linux = &spec["linux"];
        let all = linux["namespaces"].as_array().cloned().unwrap_or_default();
        let kinds = all.iter().filter_map(|namespace| namespace["type"].as_str());
        (kinds.map(str::to_owned).collect::<Vec<_>>(), linux.get("uidMappings").is_some())
    };
    let (own, mapped) = kinds(Kernel::Gvisor);
    assert!(own.contains(&"network".to_owned()) && own.contains(&"user".to_owned()) && mapped);
    let (caught, mapped) = kinds(Kernel::GvisorOnNetwork);
    assert_eq!(caught, ["pid", "mount", "ipc", "uts", "cgroup"]);
    assert!(!mapped);
}

#[test]
fn privilege_decides_on_capabilities_and_setuid() {
    let none = written(&bundle(Privilege::None));
    assert_eq!(none["process"]["noNewPrivileges"], json!(true));
    let root = written(&bundle(Privilege::Root));
    assert_eq!(root["process"]["noNewPrivileges"], json!(false));
    for set in ["bounding", "effective", "permitted"] {
        assert_eq!(none["process"]["capabilities"][set].as_array().map(Vec::len), Some(4));
        assert_eq!(root["process"]["capabilities"][set].as_array().map(Vec::len), Some(10));
    }
}

#[test]
fn a_bundle_takes_the_place_of_an_earlier_one() {
    let home = tempfile::tempdir().expect("a directory");
    let dir = home.path().join("oci");
    bundle(Privilege::None).write(&dir).expect("written");
    fs::create_dir(dir.join("state")).expect("what a tool left");
    bundle(Privilege::Root).write(&dir).expect("written again");
    assert!(!dir.join("state").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_of_runc_stands_on_layers() {
    let Some(bench) = GroupedBench::new(Version::V1, staged::<Runc>).await else { return };
    keeps_above_layers(&bench, Setuid::Works).await.unwrap_or_else(|broken| panic!("{broken}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_of_crun_stands_on_layers() {
    let Some(bench) = GroupedBench::new(Version::V1, staged::<Crun>).await else { return };
    keeps_above_layers(&bench, Setuid::Works).await.unwrap_or_else(|broken| panic!("{broken}"));
}

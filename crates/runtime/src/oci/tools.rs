//! runc and crun: the same bundle, and nearly the same arguments.

use std::io;

use super::{Bundle, CgroupNamespace, Kernel};
use crate::grouped::{privilege, shm_bytes};
use crate::staged::{Afterwards, Direction, Scene, Technique};
use sandkeep_sys::{
    launcher::EntryKind,
    stage::{BUNDLE, Dev, Identity, ROOT, STATE},
};

/// The bundle's directory in a sandbox's home. Nothing else is stored of a sandbox: the tool's own state disappears
/// with its mount namespace.
const BUNDLE_IN_HOME: &str = "oci";

#[derive(Debug, Default)]
pub struct Runc;

impl Technique for Runc {
    const NAME: &str = "runc";
    const PACKAGE: &str = "runc";
    const OLDEST: (u32, u32) = (1, 1);
    const AFTERWARDS: Afterwards = Afterwards::Ends;

    /// `--rootless` concerns only cgroups: those that are not writable are left alone.
    fn direct(&self, scene: &Scene<'_>) -> io::Result<Direction> {
        direct(scene, &["--root", STATE, "--rootless", "true"])
    }
}

#[derive(Debug, Default)]
pub struct Crun;

impl Technique for Crun {
    const NAME: &str = "crun";
    const PACKAGE: &str = "crun";
    const OLDEST: (u32, u32) = (1, 0);
    const AFTERWARDS: Afterwards = Afterwards::Ends;

    fn direct(&self, scene: &Scene<'_>) -> io::Result<Direction> {
        direct(scene, &["--root", STATE, "--cgroup-manager", "disabled"])
    }
}

fn direct(scene: &Scene<'_>, options: &[&str]) -> io::Result<Direction> {
    let dir = scene.plan.home.join(BUNDLE_IN_HOME);
    let bundle = Bundle {
        root: ROOT.to_owned(),
        hostname: scene.plan.id.to_string(),
        id_base: scene.id_base,
        privilege: privilege(scene.plan),
        kernel: Kernel::Host,
        shm_bytes: shm_bytes(scene.plan),
        cgroup_namespace: match scene.entry {
            EntryKind::V1 => CgroupNamespace::Own,
            EntryKind::V2 => CgroupNamespace::Shared,
        },
        args: scene.guest(),
        mounts: Vec::new(),
    };
    bundle.write(&dir)?;
    let handed_on = scene.guest_fds().to_string();
    let run = ["run", "--detach", "--preserve-fds", &handed_on, "--bundle", BUNDLE];
    let words = options.iter().chain(&run).copied().chain([scene.plan.id.as_str()]);
    Ok(Direction {
        arguments: words.map(str::to_owned).collect(),
        bundle: Some(dir),
        dev: Dev::Tool,
        identity: Identity::Host,
    })
}

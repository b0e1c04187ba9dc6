//! OCI bundles: one way to describe a sandbox to every tool that takes the specification, with the
//! same walls as those of the native runtime.
//!
//! A bundle is written anew on each start and says nothing that the sandbox's plan does not. The root
//! in it is complete: whoever executes the tool has put the volume, with its ids mapped, and the
//! template's directories there. Control groups are not in it at all: they are ours, and the tool
//! is executed within them.

pub mod seccomp;
mod spec;
#[cfg(test)]
mod tests;
mod tools;

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use guest_proto::Privilege;

use sandkeep_sys::{
    capability,
    dev::{TERMINALS_MAX, TTY_GID},
    launcher::{MASKED, MASKED_DIRS, READ_ONLY},
    namespace::ID_RANGE,
    stage::USERS,
};
pub use tools::{Crun, Runc};

pub use spec::Mount;
use spec::{Capabilities, IdMapping, Linux, Namespace, Process, Root, Spec, User};

/// The oldest version that has all we say; the tools of today take it.
const OCI_VERSION: &str = "1.0.2";
const NAMESPACES: [&str; 5] = ["user", "pid", "mount", "ipc", "uts"];

/// Whose control groups a sandbox sees as its own root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupNamespace {
    Own,
    /// On version 2 a namespace rooted in the guest's own group would forbid it to fill its leaves.
    Shared,
}

/// Who carries out the sandbox's system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    Host,
    /// gVisor's: its guest makes control groups there and gives up the right to once it has.
    Gvisor,
}

impl Kernel {
    /// What the guest may do besides.
    fn also(self) -> &'static [&'static str] {
        match self {
            Self::Host => &[],
            Self::Gvisor => &["CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE"],
        }
    }

    /// The user namespace to enter. The root may be an overlay that was mounted from inside it: in another
    /// one of the same ids its set-user-ID programs would not work. The sentry takes care of those itself.
    fn users(self) -> Option<&'static str> {
        match self {
            Self::Host => Some(USERS),
            Self::Gvisor => None,
        }
    }

    /// The network is that which the tool is executed in. The sentry has one of its own, and none of the host's.
    fn network(self) -> Option<&'static str> {
        match self {
            Self::Host => None,
            Self::Gvisor => Some("network"),
        }
    }

    /// Whether files can be made in /dev. gVisor's kernel lets nobody write to a device of a read-only
    /// file system, and only root could make one.
    fn dev(self) -> &'static str {
        match self {
            Self::Host => "ro",
            Self::Gvisor => "rw",
        }
    }
}

/// What differs from one sandbox to the next.
#[derive(Clone, Debug)]
pub struct Bundle {
    /// Where the tool finds the sandbox's root, as it sees paths.
    pub root: String,
    pub hostname: String,
    /// The host's id of the sandbox's root; the range goes up from there.
    pub id_base: u32,
    pub privilege: Privilege,
    pub kernel: Kernel,
    /// How much fits into /dev/shm.
    pub shm_bytes: u64,
    pub cgroup_namespace: CgroupNamespace,
    /// The guest and its arguments.
    pub args: Vec<String>,
    /// Mounts beside /proc and /dev, in this order.
    pub mounts: Vec<Mount>,
}

impl Bundle {
    /// Makes the directory, in place of an earlier one with all that is in it, and writes the bundle
    /// there.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        match fs::remove_dir_all(dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        fs::DirBuilder::new().mode(0o700).create(dir)?;
        self.write_into(dir)
    }

    /// Writes the bundle into a directory that was made for it.
    pub fn write_into(&self, dir: &Path) -> io::Result<()> {
        let file = dir.join("config.json");
        let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
        Ok(serde_json::to_writer(io::BufWriter::new(file), &self.spec())?)
    }

    fn spec(&self) -> Spec {
        let ids = || vec![IdMapping { container_id: 0, host_id: self.id_base, size: ID_RANGE }];
        let absolute = |paths: &[&str]| paths.iter().map(|path| format!("/{path}")).collect();
        let mut mounts = self.system_mounts();
        mounts.extend_from_slice(&self.mounts);
        Spec {
            oci_version: OCI_VERSION,
            process: self.process(),
            root: Root { path: self.root.clone(), readonly: false },
            hostname: self.hostname.clone(),
            mounts,
            linux: Linux {
                uid_mappings: ids(),
                gid_mappings: ids(),
                namespaces: self.namespaces(),
                masked_paths: masked_paths(),
                readonly_paths: absolute(&READ_ONLY),
                seccomp: seccomp::policy(),
            },
        }
    }

    fn namespaces(&self) -> Vec<Namespace> {
        let cgroup = match self.cgroup_namespace {
            CgroupNamespace::Own => Some("cgroup"),
            CgroupNamespace::Shared => None,
        };
        let path = |kind: &str| (kind == "user").then(|| self.kernel.users()).flatten();
        let kinds = NAMESPACES.into_iter().chain(self.kernel.network()).chain(cgroup);
        kinds.map(|kind| Namespace { path: path(kind), kind }).collect()
    }

    fn process(&self) -> Process {
        let keep = || {
            let mut names = capability::names_of_guest(self.privilege);
            let more = self.kernel.also().iter().map(|name| (*name).to_owned());
            names.extend(more.filter(|name| !names.contains(name)).collect::<Vec<_>>());
            names
        };
        Process {
            terminal: false,
            user: User { uid: 0, gid: 0, umask: 0o022 },
            args: self.args.clone(),
            env: Vec::new(),
            cwd: "/",
            capabilities: Capabilities {
                bounding: keep(),
                effective: keep(),
                // Nothing that is executed shall get any by inheritance.
                inheritable: Vec::new(),
                permitted: keep(),
            },
            no_new_privileges: match self.privilege {
                Privilege::None => true,
                Privilege::Root => false,
            },
        }
    }

    /// /proc and a small /dev. The tool puts the usual devices into it.
    fn system_mounts(&self) -> Vec<Mount> {
        let quiet = "nosuid,noexec";
        vec![
            mount("/proc", "proc", "nosuid,noexec,nodev"),
            mount("/dev", "tmpfs", &format!("{quiet},mode=755,size=64k,{}", self.kernel.dev())),
            mount(
                "/dev/pts",
                "devpts",
                &format!(
                    "{quiet},newinstance,ptmxmode=0666,mode=0620,gid={TTY_GID},max={TERMINALS_MAX}"
                ),
            ),
            mount("/dev/shm", "tmpfs", &format!("{quiet},nodev,mode=1777,size={}", self.shm_bytes)),
        ]
    }
}

/// What of /proc is covered in every container.
pub fn masked_paths() -> Vec<String> {
    MASKED.iter().chain(&MASKED_DIRS).map(|path| format!("/{path}")).collect()
}

fn mount(destination: &str, kind: &str, options: &str) -> Mount {
    Mount {
        destination: destination.to_owned(),
        kind: kind.to_owned(),
        source: kind.to_owned(),
        options: options.split(',').map(str::to_owned).collect(),
    }
}

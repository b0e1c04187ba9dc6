//! OCI bundles: one description of a sandbox for every tool that supports the specification, with the same isolation as
//! the native runtime.
//!
//! A bundle is rewritten on each start and contains only what follows from the sandbox's plan. Its root is complete:
//! before the tool is executed, the volume (with its ids mapped) and the template's directories are mounted there.
//! Cgroups are not part of it: they are ours, and the tool is executed within them.

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

/// The oldest version with everything we use; current tools accept it.
const OCI_VERSION: &str = "1.0.2";
const NAMESPACES: [&str; 5] = ["user", "pid", "mount", "ipc", "uts"];

/// Which cgroups a sandbox sees as its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupNamespace {
    Own,
    /// On v2, a namespace rooted in the guest's own group would prevent it from using its leaves.
    Shared,
}

/// Which kernel executes the sandbox's system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    Host,
    /// gVisor's: its guest creates cgroups there and drops the right to do so afterwards.
    Gvisor,
    /// The same, with the network of the namespace in which the tool is executed. runsc then runs it in the tool's user
    /// namespace, which has to be the sandbox's: in a new one old versions leave the sentry without the rights it needs.
    GvisorOnNetwork,
}

impl Kernel {
    /// Additional capabilities of the guest.
    fn also(self) -> &'static [&'static str] {
        match self {
            Self::Host => &[],
            Self::Gvisor | Self::GvisorOnNetwork => &["CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE"],
        }
    }

    /// The user namespace to enter. The root may be an overlay that was mounted inside it: in another namespace with
    /// the same ids its set-user-ID programs would not work. The sentry handles those itself.
    fn users(self) -> Option<&'static str> {
        match self {
            Self::Host => Some(USERS),
            Self::Gvisor | Self::GvisorOnNetwork => None,
        }
    }

    /// The tool is executed in the sandbox's network. Without a way out, the sentry has one of its
    /// own besides, and none of the host's.
    fn network(self) -> Option<&'static str> {
        match self {
            Self::Host | Self::GvisorOnNetwork => None,
            Self::Gvisor => Some("network"),
        }
    }

    /// Whether files can be created in /dev. gVisor's kernel lets nobody write to a device on a read-only file system,
    /// and only root could create one.
    fn dev(self) -> &'static str {
        match self {
            Self::Host => "ro",
            Self::Gvisor | Self::GvisorOnNetwork => "rw",
        }
    }
}

/// The variable parts of a bundle.
#[derive(Clone, Debug)]
pub struct Bundle {
    /// Path of the sandbox's root, as seen by the tool.
    pub root: String,
    pub hostname: String,
    /// The host's uid of the sandbox's root; the range starts there.
    pub id_base: u32,
    pub privilege: Privilege,
    pub kernel: Kernel,
    /// Size of /dev/shm.
    pub shm_bytes: u64,
    pub cgroup_namespace: CgroupNamespace,
    /// The guest and its arguments.
    pub args: Vec<String>,
    /// Mounts beside /proc and /dev, in this order.
    pub mounts: Vec<Mount>,
}

impl Bundle {
    /// Creates the directory, replacing an earlier one, and writes the bundle there.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        match fs::remove_dir_all(dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        fs::DirBuilder::new().mode(0o700).create(dir)?;
        self.write_into(dir)
    }

    /// Writes the bundle into an existing directory.
    pub fn write_into(&self, dir: &Path) -> io::Result<()> {
        let file = dir.join("config.json");
        let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
        Ok(serde_json::to_writer(io::BufWriter::new(file), &self.spec())?)
    }

    fn spec(&self) -> Spec {
        let ids = || match self.kernel {
            Kernel::Host | Kernel::Gvisor => {
                vec![IdMapping { container_id: 0, host_id: self.id_base, size: ID_RANGE }]
            }
            Kernel::GvisorOnNetwork => Vec::new(),
        };
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
        let kinds = kinds.filter(|kind| *kind != "user" || self.kernel != Kernel::GvisorOnNetwork);
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
                // Executed programs must not inherit any.
                inheritable: Vec::new(),
                permitted: keep(),
            },
            no_new_privileges: match self.privilege {
                Privilege::None => true,
                Privilege::Root => false,
            },
        }
    }

    /// /proc and a small /dev. The tool adds the usual devices.
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

/// The parts of /proc that are masked in every container.
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

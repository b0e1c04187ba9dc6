//! The definition of our containers, independent of the engine, and the part of a sandbox's home that is visible
//! inside.

pub mod labels;

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde::Serialize;
use serde_json::json;

use crate::grouped::{self, shm_bytes};
use crate::{Plan, StoredFiles, oci};
use sandkeep_core::{Privilege, SandboxId, limits};
use sandkeep_home::{self, GUEST_SOCKET};
use sandkeep_sys::{capability, namespace::NETWORK_LIMITS};
use sandkeep_tree::Root;

/// Path of the volume in a container.
pub const VOLUME: &str = "/volume";
/// Path of the door directory in a container.
const INSIDE: &str = "/sandkeep";
/// The part of a home that is visible in its container.
pub const DOOR: &str = "door";
const GUEST: &str = "guest";
const UNFINISHED: &str = ".guest.new";
const GUEST_MODE: u32 = 0o555;

/// Memory for the guest beyond the sandbox's limit.
const GUEST_MEMORY_BYTES: u64 = 8 * limits::MIB;
const GUEST_PIDS: u64 = 4;

/// The usual limits of a login session.
const DESCRIPTORS: (u64, u64) = (1024, 65_536);

/// All settings of a container. The rest is the same for all.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Container {
    pub name: String,
    pub hostname: String,
    pub command: Vec<String>,
    /// In mount order.
    pub binds: Vec<Bound>,
    /// All others are dropped.
    pub capabilities: Vec<String>,
    pub no_new_privileges: bool,
    /// The seccomp filter.
    pub seccomp: &'static str,
    /// Sysctls of its network.
    pub network_limits: BTreeMap<String, String>,
    /// Masked parts of /proc.
    pub masked_paths: Vec<String>,
    pub memory_bytes: u64,
    pub cpus: f64,
    pub pids: u64,
    pub shm_bytes: u64,
    /// File descriptor limits of a process: soft and hard.
    pub descriptors: (u64, u64),
    #[serde(skip)]
    pub labels: BTreeMap<String, String>,
}

/// A directory of the host in a container, without nested mounts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bound {
    pub source: PathBuf,
    pub target: String,
    pub access: Access,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Access {
    Read,
    ReadWrite,
}

/// The name of a sandbox's container.
pub fn name(id: &SandboxId) -> String {
    format!("sandkeep-{id}")
}

impl Container {
    pub fn of(plan: &Plan) -> io::Result<Self> {
        let files = plan.stored()?;
        let socket = format!("{INSIDE}/{GUEST_SOCKET}");
        let root = match files.root {
            Root::Dir(_) | Root::Shifted(_) => "--chroot",
            Root::Overlay { .. } => "--chroot-overlay",
        };
        let command = [&format!("{INSIDE}/{GUEST}"), "--dial", &socket, root, VOLUME];
        let mut container = Self {
            name: name(&plan.id),
            hostname: plan.id.to_string(),
            command: command.map(str::to_owned).into(),
            binds: binds(files, &plan.home),
            capabilities: capabilities(plan),
            no_new_privileges: match plan.privilege {
                Privilege::None => true,
                // It disables setuid programs, such as sudo.
                Privilege::Root => false,
            },
            seccomp: seccomp(),
            network_limits: NETWORK_LIMITS.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            masked_paths: oci::masked_paths(),
            memory_bytes: plan.resources.memory_mb * limits::MIB + GUEST_MEMORY_BYTES,
            cpus: plan.resources.cpus,
            pids: plan.resources.pids + GUEST_PIDS,
            shm_bytes: shm_bytes(plan),
            descriptors: descriptors(),
            labels: BTreeMap::new(),
        };
        container.labels = labels::write(&plan.id, &plan.labels, &container);
        Ok(container)
    }
}

fn binds(files: &StoredFiles, home: &Path) -> Vec<Bound> {
    let bound = |source: &Path, target: String, access: Access| Bound {
        source: source.to_owned(),
        target,
        access,
    };
    let mut binds = vec![
        bound(files.root.own_dir(), VOLUME.to_owned(), Access::ReadWrite),
        bound(&home.join(DOOR), INSIDE.to_owned(), Access::Read),
    ];
    binds.extend(files.binds.iter().map(|bind| {
        let target = format!("{VOLUME}/{}", bind.target.display());
        bound(&bind.source, target, Access::Read)
    }));
    binds
}

/// Those of every guest, and those for making the volume its root.
fn capabilities(plan: &Plan) -> Vec<String> {
    let mut names = capability::names_of_guest(grouped::privilege(plan));
    let chroot = "CAP_SYS_CHROOT".to_owned();
    if !names.contains(&chroot) {
        names.push(chroot);
    }
    if plan.network {
        // The network belongs to the host's user namespace, where it would give the resolver's port, too. The other
        // ports are everybody's there.
        names.retain(|name| name != "CAP_NET_BIND_SERVICE");
    }
    names
}

/// Our seccomp policy in the engines' format: stricter than their own, which allows io_uring and calls of other
/// architectures.
pub fn seccomp() -> &'static str {
    static POLICY: LazyLock<String> = LazyLock::new(|| {
        let mut policy = serde_json::to_value(oci::seccomp::policy())
            .expect("it holds only strings, numbers and lists");
        // Some engines support only EPERM for calls outside of the list, and libraries fall back to an older call only
        // on ENOSYS.
        let missing = json!({
            "names": ["clone3", "io_setup"],
            "action": "SCMP_ACT_ERRNO",
            "errnoRet": libc::ENOSYS,
        });
        if let Some(rules) = policy["syscalls"].as_array_mut() {
            rules.push(missing);
        }
        policy.to_string()
    });
    &POLICY
}

/// Set explicitly, because the engines' defaults may be more than they are allowed: our own limits apply to them as
/// well.
fn descriptors() -> (u64, u64) {
    let ours = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let (soft, hard) = DESCRIPTORS;
    let hard = ours.map_or(hard, |ours| ours.min(hard));
    (soft.min(hard), hard)
}

/// Creates the visible part of a home, with the guest of this build. A running container keeps the guest it started
/// with.
pub fn make_door(data: &Path, home: &Path) -> io::Result<()> {
    sandkeep_home::make_directory(home)?;
    let door = home.join(DOOR);
    match DirBuilder::new().mode(0o755).create(&door) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    // Not by mkdir's mode, which the umask narrows.
    fs::set_permissions(&door, Permissions::from_mode(0o755))?;
    let (guest, unfinished) = (door.join(GUEST), door.join(UNFINISHED));
    remove_if_there(&unfinished)?;
    fs::hard_link(data.join(GUEST), &unfinished)?;
    fs::rename(&unfinished, &guest)?;
    // Renaming a hard link onto another link of the same file does nothing.
    remove_if_there(&unfinished)
}

/// Writes the guest of this build to the data directory: all homes link to the same file.
pub fn write_guest(data: &Path) -> io::Result<()> {
    let (guest, unfinished) = (data.join(GUEST), data.join(UNFINISHED));
    if fs::read(&guest).is_ok_and(|there| there == sandkeep_embedded::GUEST) {
        return fs::set_permissions(&guest, Permissions::from_mode(GUEST_MODE));
    }
    remove_if_there(&unfinished)?;
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o500).open(&unfinished)?;
    file.write_all(sandkeep_embedded::GUEST)?;
    // Not by the mode of open, which the umask narrows.
    file.set_permissions(Permissions::from_mode(GUEST_MODE))?;
    fs::rename(&unfinished, &guest)
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

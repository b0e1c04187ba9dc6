//! cgroup v2: one tree. Only groups without children hold processes, so the guest has its own, and is cloned into it.
//! An exec enters its leaf by writing `0` to the leaf's `cgroup.procs`, which we open: the seccomp filter denies the
//! guest, like everything in a sandbox, clone3, the only way to be cloned into a group. That costs an RCU grace period
//! per exec, which version 1 does not.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use guest_proto::LeafKind;
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::files::{self, CgroupMount, Membership, MountKind};
use super::{
    CPU_PERIOD_MICROS, Controllers, Entry, GUEST, GroupPlacement, Hierarchy, LeafFiles, LeafLimits,
    Limits, Maker, TOOL, Unusable, Used, cpu_quota_micros, until_frozen,
};

/// The group that the daemon moves to if it is in the way at the top.
const ASIDE: &str = "sandkeep-daemon";

const WANTED: [&str; 3] = ["memory", "pids", "cpu"];

pub struct V2 {
    base: PathBuf,
    controllers: Controllers,
    maker: Maker,
}

impl V2 {
    /// `None` if no v2 hierarchy is mounted.
    pub fn open(mounts: &[CgroupMount], instance: &str) -> Result<Option<Self>, Unusable> {
        let Some(mount) = mounts.iter().find(|mount| mount.kind == MountKind::V2) else {
            return Ok(None);
        };
        Self::open_at(&mount.path, instance).map(Some)
    }

    /// In the hierarchy mounted at `mount`.
    pub fn open_at(mount: &Path, instance: &str) -> Result<Self, Unusable> {
        let wrap = |source| Unusable::NotWritable { path: mount.to_owned(), source };
        let base = files::make_instance(mount, instance).map_err(wrap)?;
        let none = Controllers { memory: false, cpu: false, pids: false, freezer: true };
        // From here on a failure removes what was created.
        let mut made = Self { base, controllers: none, maker: Maker::We };
        delegate_top(mount)?;
        for group in [&mount.join(files::OURS), &made.base] {
            delegate(group).map_err(wrap)?;
        }
        made.controllers = there(&delegated(&made.base).map_err(wrap)?);
        Ok(made)
    }

    /// The hierarchy of a process's group, and the group's name. `None` if v2 is not mounted, or the process is at its
    /// root.
    pub fn around(
        mounts: &[CgroupMount],
        groups: &[Membership],
    ) -> io::Result<Option<(Self, String)>> {
        let mount = mounts.iter().find(|mount| mount.kind == MountKind::V2);
        let group = groups.iter().find(|group| group.controllers.is_empty());
        let (Some(mount), Some(group)) = (mount, group) else { return Ok(None) };
        // A guest that an earlier daemon has moved is one level further down.
        let path = match group.path.file_name() {
            Some(name) if name == GUEST => group.path.parent().unwrap_or(&group.path),
            Some(_) | None => group.path.as_path(),
        };
        let Some((base, name)) = files::locate(&mount.path, path) else { return Ok(None) };
        let available = words(&base.join(&name).join("cgroup.controllers"))?;
        Ok(Some((Self { base, controllers: there(&available), maker: Maker::Engine }, name)))
    }

    fn work(&self, sandbox: &str) -> PathBuf {
        self.base.join(sandbox).join("work")
    }

    fn place(&self, sandbox: &str, place: GroupPlacement) -> PathBuf {
        match place {
            GroupPlacement::Beside => self.base.join(sandbox).join(GUEST),
            GroupPlacement::Within => self.work(sandbox).join(TOOL),
        }
    }
}

impl Drop for V2 {
    /// An instance without sandboxes leaves nothing behind.
    fn drop(&mut self) {
        if self.maker == Maker::We {
            files::remove_instance(&self.base);
        }
    }
}

/// Delegates the controllers that we want, as far as they exist, to the children of a group.
fn delegate(group: &Path) -> io::Result<()> {
    let available = words(&group.join("cgroup.controllers"))?;
    let already = delegated(group)?;
    let wanted = available.into_iter().filter(|controller| WANTED.contains(&controller.as_str()));
    let missing = wanted.filter(|controller| !already.contains(controller));
    let change: Vec<String> = missing.map(|controller| format!("+{controller}")).collect();
    if change.is_empty() {
        return Ok(());
    }
    files::write(&group.join("cgroup.subtree_control"), &change.join(" "))
}

/// The same for the top of the hierarchy. In a container that is the container's own group, which may contain us and
/// others, and a group with processes delegates nothing. We move aside, and if no other processes are there that is
/// sufficient.
fn delegate_top(mount: &Path) -> Result<(), Unusable> {
    let wrap = |source| Unusable::NotWritable { path: mount.to_owned(), source };
    let busy = |error: &io::Error| error.raw_os_error() == Some(libc::EBUSY);
    match delegate(mount) {
        Err(error) if busy(&error) => {}
        done => return done.map_err(wrap),
    }
    let aside = mount.join(ASIDE);
    files::make(&aside).map_err(wrap)?;
    files::write(&aside.join("cgroup.procs"), "0").map_err(wrap)?;
    match delegate(mount) {
        Err(error) if busy(&error) => Err(Unusable::Shared { path: mount.to_owned() }),
        done => done.map_err(wrap),
    }
}

fn delegated(group: &Path) -> io::Result<Vec<String>> {
    words(&group.join("cgroup.subtree_control"))
}

fn words(file: &Path) -> io::Result<Vec<String>> {
    Ok(std::fs::read_to_string(file)?.split_whitespace().map(str::to_owned).collect())
}

fn there(controllers: &[String]) -> Controllers {
    let has = |controller: &str| controllers.iter().any(|c| c == controller);
    Controllers { memory: has("memory"), cpu: has("cpu"), pids: has("pids"), freezer: true }
}

/// Moves the processes of a group into a child. It has none of its own then, so that its controllers can be delegated
/// to its children.
fn move_down(group: &Path, child: &Path) -> io::Result<()> {
    for pid in files::pids(&group.join("cgroup.procs"))? {
        match files::write(&child.join("cgroup.procs"), &pid.to_string()) {
            // It has ended meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            moved => moved?,
        }
    }
    Ok(())
}

impl Hierarchy for V2 {
    fn kind(&self) -> LeafKind {
        LeafKind::V2
    }

    fn controllers(&self) -> Controllers {
        self.controllers
    }

    fn roots(&self) -> Vec<PathBuf> {
        vec![self.base.clone()]
    }

    fn make(&self, sandbox: &str, limits: &Limits) -> io::Result<()> {
        let (group, guest) = (self.base.join(sandbox), self.place(sandbox, GroupPlacement::Beside));
        if self.maker == Maker::We {
            files::make(&group)?;
        }
        files::make(&guest)?;
        if self.maker == Maker::Engine {
            move_down(&group, &guest)?;
        }
        delegate(&group)?;
        let work = group.join("work");
        files::make(&work)?;
        delegate(&work)?;
        if self.controllers.memory {
            set_memory_limit(&work, limits.memory_bytes)?;
        }
        if self.controllers.pids {
            files::write(&work.join("pids.max"), &limits.pids.to_string())?;
        }
        if self.controllers.cpu {
            let quota = cpu_quota_micros(limits.cpus);
            files::write(&group.join("cpu.max"), &format!("{quota} {CPU_PERIOD_MICROS}"))?;
        }
        Ok(())
    }

    fn entry(&self, sandbox: &str, place: GroupPlacement) -> io::Result<Entry> {
        if place == GroupPlacement::Within {
            self.make_leaf(sandbox, TOOL, &LeafLimits::NONE)?;
        }
        Ok(Entry::V2(open_dir(&self.place(sandbox, place))?))
    }

    fn pids(&self, sandbox: &str, place: GroupPlacement) -> io::Result<Vec<u32>> {
        files::pids(&self.place(sandbox, place).join("cgroup.procs"))
    }

    fn freeze(&self, sandbox: &str) -> io::Result<()> {
        let work = self.work(sandbox);
        files::write(&work.join("cgroup.freeze"), "1")?;
        let events = work.join("cgroup.events");
        let frozen = until_frozen(|| Ok(files::read_field(&events, "frozen")? == 1));
        if frozen.is_err() {
            self.thaw(sandbox)?;
        }
        frozen
    }

    fn thaw(&self, sandbox: &str) -> io::Result<()> {
        match files::write(&self.work(sandbox).join("cgroup.freeze"), "0") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    fn remove(&self, sandbox: &str) -> io::Result<()> {
        files::remove(&self.base.join(sandbox))
    }

    fn sandboxes(&self) -> io::Result<Vec<String>> {
        files::children(&self.base)
    }

    fn used(&self, sandbox: &str) -> io::Result<Used> {
        let group = self.base.join(sandbox);
        let read = |there: bool, file: &str| {
            if there { files::read_number(&group.join(file)) } else { Ok(0) }
        };
        Ok(Used {
            memory_bytes: read(self.controllers.memory, "memory.current")?,
            cpu_micros: files::read_field(&group.join("cpu.stat"), "usage_usec")?,
            pids: read(self.controllers.pids, "pids.current")?,
        })
    }

    fn make_leaf(&self, sandbox: &str, leaf: &str, limits: &LeafLimits) -> io::Result<()> {
        limits.check(self.controllers)?;
        let leaf = self.work(sandbox).join(leaf);
        files::make(&leaf)?;
        if let Some(bytes) = limits.memory_bytes {
            set_memory_limit(&leaf, bytes)?;
        }
        if let Some(pids) = limits.pids {
            files::write(&leaf.join("pids.max"), &pids.to_string())?;
        }
        if let Some(quota) = limits.cpu_micros {
            files::write(&leaf.join("cpu.max"), &format!("{quota} {CPU_PERIOD_MICROS}"))?;
        }
        Ok(())
    }

    /// One file is sufficient for entering everything.
    fn open_leaf(&self, sandbox: &str, leaf: &str, _: &LeafLimits) -> io::Result<LeafFiles> {
        let dir = self.work(sandbox).join(leaf);
        let open = |file: &str, flags: OFlags| {
            openat(CWD, dir.join(file), flags | OFlags::CLOEXEC, Mode::empty())
        };
        let (kill, procs) =
            (open("cgroup.kill", OFlags::WRONLY)?, open("cgroup.procs", OFlags::RDWR)?);
        let oom_events = if self.controllers.memory {
            Some(open("memory.events", OFlags::RDONLY)?)
        } else {
            None
        };
        Ok(LeafFiles { kind: LeafKind::V2, fds: vec![kill, procs], oom_events })
    }

    fn remove_leaf(&self, sandbox: &str, leaf: &str) -> io::Result<()> {
        files::remove(&self.work(sandbox).join(leaf))
    }

    fn leaves(&self, sandbox: &str) -> io::Result<Vec<String>> {
        let mut groups = files::children(&self.work(sandbox))?;
        groups.retain(|name| name != TOOL);
        Ok(groups)
    }

    fn leaf_is_empty(&self, sandbox: &str, leaf: &str) -> io::Result<bool> {
        let events = self.work(sandbox).join(leaf).join("cgroup.events");
        Ok(files::read_field(&events, "populated")? == 0)
    }
}

fn set_memory_limit(group: &Path, bytes: u64) -> io::Result<()> {
    files::write(&group.join("memory.max"), &bytes.to_string())?;
    match files::write(&group.join("memory.swap.max"), "0") {
        // Without swap this file does not exist.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

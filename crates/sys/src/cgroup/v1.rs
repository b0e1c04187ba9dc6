//! cgroup v1: one tree per controller. Parts of a sandbox's groups in each tree:
//!
//! | controller | `<sandbox>` | `work` | leaves |
//! |---|---|---|---|
//! | freezer | identifies the guest | frozen here | the tree of an exec is killed here |
//! | memory | the guest | limit | the oom counter of an exec |
//! | pids | the guest | limit | a limit of its own, if it has one |
//! | cpu, cpuacct | limit and total usage | of limited leaves | a limit of its own, if it has one |
//!
//! A tool within the limits has a group like a leaf's.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use guest_proto::LeafKind;
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::files::{self, CgroupMount, Membership, MountKind};
use super::{
    Controllers, Entry, GroupPlacement, Hierarchy, LeafFiles, LeafLimits, Limits, Maker, TOOL,
    Unusable, Used, cpu_quota_micros, until_frozen,
};

/// The fraction of its memory limit that a sandbox may use additionally for TCP buffers.
const TCP_PART: u64 = 4;

pub struct V1 {
    freezer: PathBuf,
    memory: Option<PathBuf>,
    pids: Option<PathBuf>,
    cpu: Option<PathBuf>,
    cpuacct: Option<PathBuf>,
    maker: Maker,
}

impl V1 {
    /// `None` if this machine has no v1 freezer.
    pub fn open(mounts: &[CgroupMount], instance: &str) -> Result<Option<Self>, Unusable> {
        let base = |controller: &str| -> Result<Option<PathBuf>, Unusable> {
            mounted(mounts, controller).map(|mount| make_base(mount, instance)).transpose()
        };
        let Some(freezer) = base("freezer")? else { return Ok(None) };
        Ok(Some(Self {
            freezer,
            memory: base("memory")?,
            pids: base("pids")?,
            cpu: base("cpu")?,
            cpuacct: base("cpuacct")?,
            maker: Maker::We,
        }))
    }

    /// The trees in which a process has a group, and the group's name, which is that in the freezer's. A controller
    /// with another group for the process counts as missing.
    pub fn around(mounts: &[CgroupMount], groups: &[Membership]) -> Option<(Self, String)> {
        let find = |controller: &str| {
            let group =
                groups.iter().find(|group| group.controllers.iter().any(|c| c == controller));
            files::locate(mounted(mounts, controller)?, &group?.path)
        };
        let (freezer, name) = find("freezer")?;
        let base = |controller: &str| {
            find(controller).filter(|(_, other)| *other == name).map(|(base, _)| base)
        };
        let v1 = Self {
            freezer,
            memory: base("memory"),
            pids: base("pids"),
            cpu: base("cpu"),
            cpuacct: base("cpuacct"),
            maker: Maker::Engine,
        };
        Some((v1, name))
    }

    /// The distinct directories of this instance: `cpu` and `cpuacct` are often one.
    fn bases(&self) -> Vec<&Path> {
        let mut bases = vec![self.freezer.as_path()];
        for base in [&self.memory, &self.pids, &self.cpu, &self.cpuacct].into_iter().flatten() {
            if !bases.contains(&base.as_path()) {
                bases.push(base);
            }
        }
        bases
    }
}

fn mounted<'a>(mounts: &'a [CgroupMount], controller: &str) -> Option<&'a Path> {
    mounts.iter().find_map(|mount| match &mount.kind {
        MountKind::V1(controllers) if controllers.iter().any(|c| c == controller) => {
            Some(mount.path.as_path())
        }
        _ => None,
    })
}

fn make_base(mount: &Path, instance: &str) -> Result<PathBuf, Unusable> {
    files::make_instance(mount, instance)
        .map_err(|source| Unusable::NotWritable { path: mount.to_owned(), source })
}

impl Drop for V1 {
    /// An instance without sandboxes leaves nothing behind.
    fn drop(&mut self) {
        if self.maker == Maker::We {
            self.bases().into_iter().for_each(files::remove_instance);
        }
    }
}

fn set_memory_limit(work: &Path, bytes: u64) -> io::Result<()> {
    let limit = bytes.to_string();
    let (memory, with_swap) =
        (work.join("memory.limit_in_bytes"), work.join("memory.memsw.limit_in_bytes"));
    // The limit with swap must never be below the one without: a group that had a lower one before needs the other
    // order.
    if files::write(&memory, &limit).is_err() {
        files::write(&with_swap, &limit)?;
        return files::write(&memory, &limit);
    }
    match files::write(&with_swap, &limit) {
        // Without swap accounting this file does not exist.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// TCP memory has a separate counter here, outside of the limit; it may be a quarter of the sandbox's limit.
fn set_tcp_limit(group: &Path, limit: &str) -> io::Result<()> {
    match files::write(&group.join("memory.kmem.tcp.limit_in_bytes"), limit) {
        // Some kernels do not count it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn open_file(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, flags | OFlags::CLOEXEC, Mode::empty())?)
}

impl Hierarchy for V1 {
    fn kind(&self) -> LeafKind {
        LeafKind::V1
    }

    fn controllers(&self) -> Controllers {
        Controllers {
            memory: self.memory.is_some(),
            cpu: self.cpu.is_some(),
            pids: self.pids.is_some(),
            freezer: true,
        }
    }

    fn roots(&self) -> Vec<PathBuf> {
        self.bases().into_iter().map(Path::to_owned).collect()
    }

    fn make(&self, sandbox: &str, limits: &Limits) -> io::Result<()> {
        if self.maker == Maker::We {
            for base in self.bases() {
                files::make(&base.join(sandbox))?;
            }
        }
        files::make(&self.freezer.join(sandbox).join("work"))?;
        if let Some(memory) = &self.memory {
            let work = memory.join(sandbox).join("work");
            files::make(&work)?;
            set_memory_limit(&work, limits.memory_bytes)?;
            set_tcp_limit(&work, &(limits.memory_bytes / TCP_PART).to_string())?;
        }
        if let Some(pids) = &self.pids {
            let work = pids.join(sandbox).join("work");
            files::make(&work)?;
            files::write(&work.join("pids.max"), &limits.pids.to_string())?;
        }
        if let Some(cpu) = &self.cpu {
            let quota = cpu_quota_micros(limits.cpus);
            files::write(&cpu.join(sandbox).join("cpu.cfs_quota_us"), &quota.to_string())?;
        }
        Ok(())
    }

    fn entry(&self, sandbox: &str, place: GroupPlacement) -> io::Result<Entry> {
        if place == GroupPlacement::Within {
            self.make_leaf(sandbox, TOOL, &LeafLimits::NONE)?;
        }
        let open = |base: &Path| {
            let group = base.join(sandbox);
            let within = [group.join("work").join(TOOL), group.join("work")];
            let group = match place {
                GroupPlacement::Beside => group,
                GroupPlacement::Within => {
                    within.into_iter().find(|dir| dir.is_dir()).unwrap_or(group)
                }
            };
            open_file(&group.join("tasks"), OFlags::WRONLY)
        };
        self.bases().into_iter().map(open).collect::<io::Result<_>>().map(Entry::V1)
    }

    fn pids(&self, sandbox: &str, place: GroupPlacement) -> io::Result<Vec<u32>> {
        let group = self.freezer.join(sandbox);
        let group = match place {
            GroupPlacement::Beside => group,
            GroupPlacement::Within => group.join("work").join(TOOL),
        };
        files::pids(&group.join("cgroup.procs"))
    }

    /// Triggers the freezer again at every look: a process entering vfork(2) can miss it, and would not be signaled
    /// again.
    fn freeze(&self, sandbox: &str) -> io::Result<()> {
        let state = self.freezer.join(sandbox).join("work/freezer.state");
        let frozen = until_frozen(|| {
            files::write(&state, "FROZEN")?;
            Ok(std::fs::read_to_string(&state)?.trim() == "FROZEN")
        });
        if frozen.is_err() {
            self.thaw(sandbox)?;
        }
        frozen
    }

    /// The guest freezes a leaf to kill its processes; if the guest is killed meanwhile, the leaf stays frozen
    /// independent of its parent.
    fn thaw(&self, sandbox: &str) -> io::Result<()> {
        let work = self.freezer.join(sandbox).join("work");
        let mut groups = vec![work.clone()];
        groups.extend(files::children(&work)?.into_iter().map(|leaf| work.join(leaf)));
        for group in groups {
            match files::write(&group.join("freezer.state"), "THAWED") {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn remove(&self, sandbox: &str) -> io::Result<()> {
        // Every leaf is in the freezer's tree, so the others need not be listed.
        let leaves = files::children(&self.freezer.join(sandbox).join("work"))?;
        // The freezer goes last: while it exists, `sandboxes` finds the rest.
        let bases = self.bases();
        for base in bases[1..].iter().chain(&bases[..1]) {
            let work = base.join(sandbox).join("work");
            leaves.iter().try_for_each(|leaf| files::remove(&work.join(leaf)))?;
            files::remove(&work)?;
            files::remove(&base.join(sandbox))?;
        }
        Ok(())
    }

    fn sandboxes(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for base in self.bases() {
            names.extend(files::children(base)?);
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    fn used(&self, sandbox: &str) -> io::Result<Used> {
        let read = |base: &Option<PathBuf>, file: &str| match base {
            Some(base) => files::read_number(&base.join(sandbox).join(file)),
            None => Ok(0),
        };
        Ok(Used {
            memory_bytes: read(&self.memory, "memory.usage_in_bytes")?,
            cpu_micros: read(&self.cpuacct, "cpuacct.usage")? / 1_000,
            pids: read(&self.pids, "pids.current")?,
        })
    }

    fn make_leaf(&self, sandbox: &str, leaf: &str, limits: &LeafLimits) -> io::Result<()> {
        limits.check(self.controllers())?;
        let place = |base: &PathBuf| base.join(sandbox).join("work").join(leaf);
        if let Some(memory) = self.memory.as_ref().map(place) {
            files::make(&memory)?;
            // Only groups with a limit are counted at all; the sandbox's limit applies.
            set_tcp_limit(&memory, "-1")?;
            if let Some(bytes) = limits.memory_bytes {
                set_memory_limit(&memory, bytes)?;
            }
        }
        if let (Some(pids), Some(max)) = (self.pids.as_ref().map(place), limits.pids) {
            files::make(&pids)?;
            files::write(&pids.join("pids.max"), &max.to_string())?;
        }
        if let (Some(cpu), Some(quota)) = (&self.cpu, limits.cpu_micros) {
            files::make(&cpu.join(sandbox).join("work"))?;
            files::make(&place(cpu))?;
            files::write(&place(cpu).join("cpu.cfs_quota_us"), &quota.to_string())?;
        }
        // The freezer comes last: what `leaves` finds there is complete, even after an interruption.
        files::make(&place(&self.freezer))
    }

    fn open_leaf(&self, sandbox: &str, leaf: &str, limits: &LeafLimits) -> io::Result<LeafFiles> {
        let freezer = self.freezer.join(sandbox).join("work").join(leaf);
        let mut fds = vec![
            open_file(&freezer.join("tasks"), OFlags::RDWR)?,
            open_file(&freezer.join("freezer.state"), OFlags::RDWR)?,
        ];
        let mut oom_events = None;
        if let Some(memory) = &self.memory {
            let memory = memory.join(sandbox).join("work").join(leaf);
            fds.push(open_file(&memory.join("tasks"), OFlags::WRONLY)?);
            oom_events = Some(open_file(&memory.join("memory.oom_control"), OFlags::RDONLY)?);
        }
        if let Some(pids) = &self.pids {
            let work = pids.join(sandbox).join("work");
            let group = if limits.pids.is_some() { work.join(leaf) } else { work };
            fds.push(open_file(&group.join("tasks"), OFlags::WRONLY)?);
        }
        if let (Some(cpu), Some(_)) = (&self.cpu, limits.cpu_micros) {
            let tasks = cpu.join(sandbox).join("work").join(leaf).join("tasks");
            fds.push(open_file(&tasks, OFlags::WRONLY)?);
        }
        Ok(LeafFiles { kind: LeafKind::V1, fds, oom_events })
    }

    fn remove_leaf(&self, sandbox: &str, leaf: &str) -> io::Result<()> {
        // The freezer goes last: while it exists, `leaves` finds the rest.
        for base in self.bases().into_iter().rev() {
            files::remove(&base.join(sandbox).join("work").join(leaf))?;
        }
        Ok(())
    }

    fn leaves(&self, sandbox: &str) -> io::Result<Vec<String>> {
        let mut groups = files::children(&self.freezer.join(sandbox).join("work"))?;
        groups.retain(|name| name != TOOL);
        Ok(groups)
    }

    fn leaf_is_empty(&self, sandbox: &str, leaf: &str) -> io::Result<bool> {
        let tasks = self.freezer.join(sandbox).join("work").join(leaf).join("tasks");
        Ok(files::pids(&tasks)?.is_empty())
    }
}

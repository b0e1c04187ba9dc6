//! Landlock: an additional barrier around the whole sandbox. Even if a namespace fails, its processes cannot signal
//! processes outside, or reach their abstract sockets.

#![expect(unsafe_code, reason = "Landlock has no safe wrapper without allocation")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const CREATE_RULESET_VERSION: u32 = 1;
const RULE_PATH_BENEATH: u32 = 1;
const ACCESS_FS_REFER: u64 = 1 << 13;
const ACCESS_FS_MAKE_BLOCK_OR_CHAR: u64 = 1 << 6 | 1 << 11;
/// All accesses to files that Linux 6.12 knows, and to TCP.
const ACCESS_FS_ALL: u64 = (1 << 16) - 1;
const ACCESS_NET_ALL: u64 = 0b11;
const SCOPE_ABSTRACT_UNIX_SOCKET: u64 = 1;
const SCOPE_SIGNAL: u64 = 2;
/// The first version of the interface that scopes signals and abstract sockets (Linux 6.12).
const ABI_WITH_SCOPES: i32 = 6;

#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

#[repr(C, packed)]
struct PathBeneathAttr {
    allowed_access: u64,
    parent_fd: RawFd,
}

/// Whether this kernel scopes signals and abstract sockets.
pub fn available() -> bool {
    abi().is_some_and(|abi| abi >= i64::from(ABI_WITH_SCOPES))
}

/// The version of the interface that this kernel has, if it has any.
pub fn abi() -> Option<i64> {
    // SAFETY: with this flag the call reads no memory and returns the version of the interface.
    let abi = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<RulesetAttr>(),
            0usize,
            CREATE_RULESET_VERSION,
        )
    };
    (abi > 0).then_some(abi)
}

/// A ruleset, created once; [`Ruleset::restrict`] applies it to a process.
pub struct Ruleset(OwnedFd);

impl Ruleset {
    /// `root` is the sandbox's root. Every ruleset about files refuses moving files between directories (REFER) unless
    /// it allows that explicitly, so it is handled and allowed below the root.
    pub fn new(root: impl AsRawFd) -> io::Result<Self> {
        let ruleset = Self::create(ACCESS_FS_REFER)?;
        ruleset.allow_beneath(root, ACCESS_FS_REFER)?;
        Ok(ruleset)
    }

    /// For a process that still has to mount: a ruleset about files forbids that, so this one has no rules about them.
    pub fn of_scopes() -> io::Result<Self> {
        Self::create(0)
    }

    /// For a process of ours that works on the files below one directory, and has no network.
    pub fn beneath(root: impl AsRawFd) -> io::Result<Self> {
        let ruleset = Self::create_with(RulesetAttr {
            handled_access_fs: ACCESS_FS_ALL,
            handled_access_net: ACCESS_NET_ALL,
            scoped: SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL,
        })?;
        // Execution is allowed for files that the process opens on behalf of others, who execute them.
        ruleset.allow_beneath(root, ACCESS_FS_ALL & !ACCESS_FS_MAKE_BLOCK_OR_CHAR)?;
        Ok(ruleset)
    }

    fn allow_beneath(&self, root: impl AsRawFd, allowed_access: u64) -> io::Result<()> {
        let rule = PathBeneathAttr { allowed_access, parent_fd: root.as_raw_fd() };
        // SAFETY: both descriptors are open and `rule` is a live struct of the layout that the
        // kernel reads for this kind of rule.
        let added = unsafe {
            libc::syscall(
                libc::SYS_landlock_add_rule,
                self.0.as_raw_fd(),
                RULE_PATH_BENEATH,
                &raw const rule,
                0u32,
            )
        };
        match added {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn create(handled_access_fs: u64) -> io::Result<Self> {
        Self::create_with(RulesetAttr {
            handled_access_fs,
            handled_access_net: 0,
            scoped: SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL,
        })
    }

    fn create_with(attr: RulesetAttr) -> io::Result<Self> {
        // SAFETY: `attr` is a live struct of the size that is passed.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_landlock_create_ruleset,
                &raw const attr,
                size_of::<RulesetAttr>(),
                0u32,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a non-negative answer is a new descriptor, which nobody else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }))
    }

    /// Restricts this thread and its descendants, permanently.
    pub fn restrict(&self) -> io::Result<()> {
        // SAFETY: takes a descriptor and flags, reads no memory.
        match unsafe { libc::syscall(libc::SYS_landlock_restrict_self, self.0.as_raw_fd(), 0u32) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

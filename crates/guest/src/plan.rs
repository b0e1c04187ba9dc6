//! Everything that a child needs, prepared before it exists: between clone and exec it shares the guest's memory and
//! must not allocate.

use std::ffi::{CString, c_char};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use guest_proto::{Exec, Privilege};

use crate::sys;
use crate::user::{self, Account};

/// Search path for commands if the environment has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Why a command could not be started: a message, and the exit code a shell would return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotStarted {
    pub code: i32,
    pub error: String,
}

impl NotStarted {
    /// The file exists but cannot be executed, or not in this way.
    pub fn cannot(error: impl Into<String>) -> Self {
        Self { code: 126, error: error.into() }
    }

    pub fn not_found(error: impl Into<String>) -> Self {
        Self { code: 127, error: error.into() }
    }
}

/// NUL-terminated strings, and the NULL-terminated array of them that execve wants.
pub struct Strings {
    pointers: Vec<*const c_char>,
    _strings: Vec<CString>,
}

impl Strings {
    fn new(strings: Vec<CString>) -> Self {
        let mut pointers: Vec<_> = strings.iter().map(|string| string.as_ptr()).collect();
        pointers.push(std::ptr::null());
        Self { pointers, _strings: strings }
    }

    pub fn as_ptr(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }
}

/// The standard descriptors of the child.
pub struct Stdio {
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    pub kind: StdioKind,
}

/// The kind of the standard descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StdioKind {
    Streams,
    /// A terminal, which becomes the child's controlling terminal.
    Terminal,
}

/// Whether to change the ids.
pub enum Identity {
    /// The guest is not root: it can only start commands as itself.
    Keep,
    Become {
        uid: u32,
        gid: u32,
        groups: Vec<u32>,
    },
}

pub struct Plan {
    /// A program to execute by descriptor, independent of files.
    pub program: Option<OwnedFd>,
    /// The files to try, in this order.
    pub candidates: Vec<CString>,
    pub argv: Strings,
    pub env: Strings,
    pub cwd: CString,
    pub cwd_chosen: CwdChosen,
    pub identity: Identity,
    pub privilege: Privilege,
    pub stdio: Stdio,
    /// Further descriptors for the command, each with its number there.
    pub given: Vec<(OwnedFd, RawFd)>,
    /// Cgroup files to which the child writes `0` to enter them.
    pub enter: Vec<RawFd>,
    pub descriptor_limit: libc::rlimit,
}

/// Who chose the working directory. If a default home is missing, that is not the request's fault: the command starts
/// in the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CwdChosen {
    ByRequest,
    ByHome,
}

impl Plan {
    pub fn new(
        exec: &Exec,
        stdio: Stdio,
        enter: &[OwnedFd],
        descriptor_limit: libc::rlimit,
    ) -> Result<Self, NotStarted> {
        let account =
            user::find(&exec.user).map_err(|error| NotStarted::cannot(error.to_string()))?;
        let (cwd, cwd_chosen) = match &exec.cwd {
            Some(cwd) => (c_string(cwd)?, CwdChosen::ByRequest),
            None => (c_string(&account.home)?, CwdChosen::ByHome),
        };
        let argv = exec.argv.iter().map(|word| c_string(word)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            program: None,
            candidates: candidates(&exec.argv[0], &exec.env)?,
            argv: Strings::new(argv),
            env: Strings::new(environment(&exec.env, &account)?),
            cwd,
            cwd_chosen,
            identity: identity(account)?,
            privilege: exec.privilege,
            stdio,
            given: Vec::new(),
            enter: enter.iter().map(AsRawFd::as_raw_fd).collect(),
            descriptor_limit,
        })
    }
}

fn identity(account: Account) -> Result<Identity, NotStarted> {
    let own = sys::effective_uid();
    if own == 0 {
        let Account { uid, gid, groups, .. } = account;
        return Ok(Identity::Become { uid, gid, groups });
    }
    if account.uid == own {
        Ok(Identity::Keep)
    } else {
        Err(NotStarted::cannot(format!(
            "cannot become uid {}: all of this sandbox is uid {own}, because it was not made by root",
            account.uid
        )))
    }
}

fn c_string(text: &str) -> Result<CString, NotStarted> {
    CString::new(text)
        .map_err(|_| NotStarted::cannot("an argument, variable or path holds a NUL byte"))
}

/// The files that `command` may refer to: itself if it contains a slash, otherwise one per entry of `PATH`.
fn candidates(command: &str, env: &[(String, String)]) -> Result<Vec<CString>, NotStarted> {
    if command.is_empty() {
        return Err(NotStarted::not_found("the command is an empty string"));
    }
    if command.contains('/') {
        return Ok(vec![c_string(command)?]);
    }
    let path = env.iter().find(|(name, _)| name == "PATH").map_or(DEFAULT_PATH, |(_, path)| path);
    path.split(':')
        .map(|directory| match directory {
            // An empty entry is the working directory.
            "" => c_string(&format!("./{command}")),
            directory => c_string(&format!("{directory}/{command}")),
        })
        .collect()
}

fn environment(env: &[(String, String)], account: &Account) -> Result<Vec<CString>, NotStarted> {
    let mut strings = Vec::with_capacity(env.len() + 4);
    for (name, value) in env {
        strings.push(c_string(&format!("{name}={value}"))?);
    }
    let name = account.name.as_deref();
    for (variable, value) in
        [("HOME", Some(account.home.as_str())), ("USER", name), ("LOGNAME", name)]
    {
        if let Some(value) = value
            && !env.iter().any(|(present, _)| present == variable)
        {
            strings.push(c_string(&format!("{variable}={value}"))?);
        }
    }
    Ok(strings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(strings: &[CString]) -> Vec<&str> {
        strings.iter().map(|string| string.to_str().unwrap()).collect()
    }

    fn env(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn a_command_without_a_slash_is_looked_up_in_its_own_path() {
        let found = candidates("ls", &env(&[("PATH", "/a::/b")])).unwrap();
        assert_eq!(texts(&found), ["/a/ls", "./ls", "/b/ls"]);
        assert_eq!(texts(&candidates("./ls", &[]).unwrap()), ["./ls"]);
        assert_eq!(candidates("ls", &[]).unwrap().len(), 6);
    }

    #[test]
    fn what_can_never_be_found_says_so_like_a_shell() {
        assert_eq!(candidates("", &[]).unwrap_err().code, 127);
        assert_eq!(candidates("a\0b", &[]).unwrap_err().code, 126);
    }

    #[test]
    fn only_missing_variables_are_added() {
        let account = Account {
            uid: 1,
            gid: 1,
            groups: vec![],
            name: Some("user".to_owned()),
            home: "/home/user".to_owned(),
        };
        let strings = environment(&env(&[("HOME", "/x"), ("A", "1=2")]), &account).unwrap();
        assert_eq!(texts(&strings), ["HOME=/x", "A=1=2", "USER=user", "LOGNAME=user"]);
    }
}

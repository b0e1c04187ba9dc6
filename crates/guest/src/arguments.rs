//! The guest's command line. It contains no secrets, because every process inside can read it.

use std::os::fd::RawFd;
use std::path::PathBuf;

pub const USAGE: &str = "usage: sandkeep-guest (--listen-fd N | --dial PATH [--token-fd N]) \
    [--chroot DIR | --chroot-overlay DIR] [--gvisor] [--lifeline-fd N] [--badge TEXT]";

#[derive(Debug, PartialEq, Eq)]
pub struct Arguments {
    pub host: Host,
    /// The sandbox's root, for runtimes that can only bind it below another one.
    pub root: Option<NewRoot>,
    pub kernel: Kernel,
    /// The sandbox ends when this pipe reaches its end. It may be the one that delivered the token.
    pub lifeline: Option<RawFd>,
}

/// A directory that is to become the root.
#[derive(Debug, PartialEq, Eq)]
pub enum NewRoot {
    /// It is ready.
    There(PathBuf),
    /// An overlay will be mounted on it soon.
    Awaited(PathBuf),
}

/// How connections to the host are established; each carries one operation.
#[derive(Debug, PartialEq, Eq)]
pub enum Host {
    /// The host connects to this listening Unix socket.
    Listen(RawFd),
    /// The guest connects to the host's socket at this path (as seen before the root is changed), and sends the token
    /// that it reads from a descriptor.
    Dial { path: PathBuf, token: Option<RawFd> },
}

/// The kernel that executes system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    Linux,
    /// The sandbox has a kernel of its own, which differs from Linux: the host's cgroups have no meaning, but the guest
    /// can create others; only PID 1 adopts orphans; and a process is not notified when another releases shared memory.
    Gvisor,
}

pub fn parse(arguments: &[String]) -> Option<Arguments> {
    let (mut listen, mut dial, mut token, mut root, mut lifeline) = (None, None, None, None, None);
    let mut rest = arguments.iter();
    let mut kernel = Kernel::Linux;
    while let Some(name) = rest.next() {
        if name == "--gvisor" {
            kernel = Kernel::Gvisor;
            continue;
        }
        let value = rest.next()?;
        match name.as_str() {
            "--listen-fd" => listen = Some(descriptor(value).filter(|fd| *fd > 2)?),
            "--lifeline-fd" => lifeline = Some(descriptor(value)?),
            "--token-fd" => token = Some(descriptor(value)?),
            "--dial" => dial = Some(PathBuf::from(value)),
            // The host identifies the guest among its processes by this; it has no meaning here.
            "--badge" => {}
            "--chroot" => root = Some(NewRoot::There(PathBuf::from(value))),
            "--chroot-overlay" => root = Some(NewRoot::Awaited(PathBuf::from(value))),
            _ => return None,
        }
    }
    let host = match (listen, dial, token) {
        (Some(listen), None, None) => Host::Listen(listen),
        (None, Some(path), token) => Host::Dial { path, token },
        (Some(_), Some(_), _) | (Some(_), None, Some(_)) | (None, None, _) => return None,
    };
    Some(Arguments { host, root, kernel, lifeline })
}

fn descriptor(value: &str) -> Option<RawFd> {
    value.parse::<RawFd>().ok().filter(|fd| *fd >= 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn the_listening_descriptor_is_enough() {
        let listen =
            Arguments { host: Host::Listen(3), root: None, kernel: Kernel::Linux, lifeline: None };
        assert_eq!(parse(&words("--listen-fd 3")), Some(listen));
        let lifeline = Arguments {
            host: Host::Listen(3),
            root: None,
            kernel: Kernel::Linux,
            lifeline: Some(4),
        };
        assert_eq!(parse(&words("--lifeline-fd 4 --listen-fd 3")), Some(lifeline));
        let badge =
            Arguments { host: Host::Listen(3), root: None, kernel: Kernel::Linux, lifeline: None };
        assert_eq!(parse(&words("--listen-fd 3 --badge instance/sandbox")), Some(badge));
    }

    #[test]
    fn a_guest_that_dials_may_have_a_token_on_stdin_and_another_root() {
        let host = Host::Dial { path: "/run/x".into(), token: Some(0) };
        let root = Some(NewRoot::There("/root".into()));
        let expected = Arguments { host, root, kernel: Kernel::Gvisor, lifeline: None };
        assert_eq!(
            parse(&words("--dial /run/x --gvisor --token-fd 0 --chroot /root")),
            Some(expected)
        );
        let host = Host::Dial { path: "/run/x".into(), token: None };
        let root = Some(NewRoot::Awaited("/root".into()));
        let expected = Arguments { host, root, kernel: Kernel::Linux, lifeline: None };
        assert_eq!(parse(&words("--dial /run/x --chroot-overlay /root")), Some(expected));
        let host = Host::Dial { path: "/run/x".into(), token: None };
        let expected = Arguments { host, root: None, kernel: Kernel::Linux, lifeline: None };
        assert_eq!(parse(&words("--dial /run/x")), Some(expected));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for line in [
            "",
            "--listen-fd",
            "--listen-fd x",
            "--listen-fd 1",
            "--listen-fd 3 --shell",
            "--listen-fd 3 --dial /run/x",
            "--listen-fd 3 --token-fd 0",
            "--dial",
            "--dial /run/x --token-fd -1",
            "--token-fd 0",
        ] {
            assert_eq!(parse(&words(line)), None, "{line:?}");
        }
    }
}

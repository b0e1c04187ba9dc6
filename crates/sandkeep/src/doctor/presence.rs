//! Whether the tools of a runtime are installed, and how to install them. A runtime that is not in this table needs
//! none, or names the missing parts itself.

use std::path::Path;

use serde::Serialize;

/// An external program that a runtime uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    /// It needs only Sandkeep.
    BuiltIn,
    Installed,
    Missing,
}

impl Presence {
    pub fn name(self) -> &'static str {
        match self {
            Self::BuiltIn => "built in",
            Self::Installed => "yes",
            Self::Missing => "no",
        }
    }
}

/// Runtime, program, and the packages that contain it.
const TOOLS: [(&str, &str, &str); 6] = [
    ("bwrap", "bwrap", "apt install bubblewrap"),
    ("crun", "crun", "apt install crun"),
    ("runc", "runc", "apt install runc"),
    ("gvisor", "runsc", "apt install runsc, or see gvisor.dev/docs/user_guide/install"),
    (
        "docker",
        "dockerd",
        "apt install docker.io, or set SANDKEEP_DOCKER_HOST to an engine that runs",
    ),
    ("podman", "podman", "apt install podman, or set SANDKEEP_PODMAN_HOST to a service that runs"),
];

/// Whether a runtime's tool is in one of these directories, and if not, how to get it.
pub fn presence(runtime: &str, path: &std::ffi::OsStr) -> (Presence, Option<&'static str>) {
    let Some((_, program, remedy)) = TOOLS.iter().find(|(name, ..)| *name == runtime) else {
        return (Presence::BuiltIn, None);
    };
    // Administrators' programs are not in every user's PATH.
    let usual = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(Path::new).map(Path::to_owned);
    let found = std::env::split_paths(path).chain(usual).any(|dir| dir.join(program).is_file());
    if found { (Presence::Installed, None) } else { (Presence::Missing, Some(remedy)) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_missing_tool_comes_with_the_way_to_get_it() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        assert_eq!(presence("native", dir.path().as_os_str()), (Presence::BuiltIn, None));
        // No machine has a program with this suffix.
        for (runtime, program, remedy) in TOOLS {
            fs::write(dir.path().join(program), "").expect("a writable directory");
            let found = presence(runtime, dir.path().as_os_str());
            assert_eq!(found, (Presence::Installed, None));
            assert!(remedy.starts_with("apt install"));
        }
    }
}

//! Finds an external tool, and checks its version.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use sandkeep_core::limits;

/// Tool directories besides `PATH`: a service may have been started with a minimal one.
const USUAL: [&str; 6] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Why a tool cannot be used here, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum ToolMissing {
    #[error("it needs root (uid 0) to map ids and enter control groups")]
    NotRoot,
    #[error("{name} is not installed: apt install {package}")]
    NotInstalled { name: &'static str, package: &'static str },
    #[error("{path} does not tell its version: {reason}")]
    Mute { path: String, reason: String },
    #[error("{path} is version {found}; {oldest} or later is needed: apt install {package}")]
    TooOld { path: String, found: String, oldest: String, package: &'static str },
}

/// An installed tool of a sufficient version.
#[derive(Clone, Debug)]
pub struct Program {
    path: String,
}

impl Program {
    pub async fn find(
        name: &'static str,
        package: &'static str,
        oldest: (u32, u32),
    ) -> Result<Self, ToolMissing> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let dirs = std::env::split_paths(&path).chain(USUAL.map(PathBuf::from));
        let found = dirs.map(|dir| dir.join(name)).find(|path| is_executable(path));
        let found = found.as_deref().and_then(Path::to_str);
        let path = found.ok_or(ToolMissing::NotInstalled { name, package })?.to_owned();
        let said = ask(&path, "--version").await?;
        let mute =
            |reason: &str| ToolMissing::Mute { path: path.clone(), reason: reason.to_owned() };
        let found = version(&said).ok_or_else(|| mute(said.lines().next().unwrap_or("nothing")))?;
        if found < oldest {
            let show = |(major, minor): (u32, u32)| format!("{major}.{minor}");
            let (found, oldest) = (show(found), show(oldest));
            return Err(ToolMissing::TooOld { path, found, oldest, package });
        }
        Ok(Self { path })
    }

    /// The tool's output for this one argument.
    pub async fn ask(&self, argument: &str) -> Result<String, ToolMissing> {
        ask(&self.path, argument).await
    }

    pub fn path(&self) -> &str {
        &self.path
    }
}

/// A relative entry of `PATH` is never meant for a daemon.
fn is_executable(path: &Path) -> bool {
    let access = rustix::fs::access(path, rustix::fs::Access::EXEC_OK);
    path.is_absolute() && path.is_file() && access.is_ok()
}

async fn ask(path: &str, argument: &str) -> Result<String, ToolMissing> {
    let mute = |reason: String| ToolMissing::Mute { path: path.to_owned(), reason };
    let mut command = Command::new(path);
    command.arg(argument).env_clear().stdin(Stdio::null()).kill_on_drop(true);
    match tokio::time::timeout(limits::TOOL_VERSION, command.output()).await {
        Ok(Ok(output)) => {
            let said = [output.stdout, output.stderr].concat();
            Ok(String::from_utf8_lossy(&said).into_owned())
        }
        Ok(Err(error)) => Err(mute(error.to_string())),
        Err(_) => Err(mute("it does not answer".to_owned())),
    }
}

/// The first word that starts with a number: `runc version 1.1.5+ds1`, `bubblewrap 0.8.0`.
fn version(said: &str) -> Option<(u32, u32)> {
    let word =
        said.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    let mut numbers = word.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_the_tools_write_them() {
        assert_eq!(version("runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1\n"), Some((1, 1)));
        assert_eq!(version("crun version 1.8.1\ncommit: f8a09\n"), Some((1, 8)));
        assert_eq!(version("bubblewrap 0.8.0\n"), Some((0, 8)));
        assert_eq!(version("unknown option\n"), None);
    }

    #[tokio::test]
    async fn a_tool_that_is_missing_says_how_to_get_it() {
        let missing = Program::find("sandkeep-no-such-tool", "runc", (1, 0)).await;
        let reason = missing.expect_err("there is no such tool").to_string();
        assert_eq!(reason, "sandkeep-no-such-tool is not installed: apt install runc");
    }

    #[tokio::test]
    async fn a_tool_that_is_too_old_says_which_is_needed() {
        let old = Program::find("bwrap", "bubblewrap", (999, 0)).await;
        let Err(reason) = old else { panic!("no bwrap is as new as that") };
        if matches!(reason, ToolMissing::NotInstalled { .. }) {
            eprintln!("SKIP a_tool_that_is_too_old_says_which_is_needed: {reason}");
            return;
        }
        assert!(reason.to_string().contains("999.0 or later is needed"), "{reason}");
    }
}

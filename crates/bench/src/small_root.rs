//! A root for the compared tools: only the host's own /usr, so that all of them run the same `/bin/true` as we do. As
//! an OCI bundle, and as an image for engines.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;

use super::place;
use sandkeep_core::SandboxId;

/// Programs and libraries besides /usr.
const LINKS: [&str; 3] = ["bin", "lib", "lib64"];

/// A temporary directory.
#[derive(Debug)]
pub struct SmallRoot {
    bundle: PathBuf,
}

impl SmallRoot {
    pub fn make() -> io::Result<Self> {
        let bundle = place::path().join(format!("root-{}", SandboxId::random()));
        let made = Self { bundle };
        for dir in ["usr", "proc", "dev", "tmp"] {
            fs::create_dir_all(made.root().join(dir))?;
        }
        for link in LINKS {
            symlink(Path::new("usr").join(link), made.root().join(link))?;
        }
        fs::write(made.bundle.join("config.json"), config().to_string())?;
        fs::write(made.stdio(), "")?;
        Ok(made)
    }

    pub fn bundle(&self) -> &Path {
        &self.bundle
    }

    /// An empty file to read from and write to.
    pub fn stdio(&self) -> PathBuf {
        self.bundle.join("stdio")
    }

    fn root(&self) -> PathBuf {
        self.bundle.join("rootfs")
    }

    /// Imports it as an image with an engine's own command, and returns the image id.
    pub fn import(&self, engine: &str) -> io::Result<String> {
        let mut tar = Command::new("tar")
            .arg("-C")
            .arg(self.root())
            .args(["-c", "."])
            .stdout(Stdio::piped())
            .spawn()?;
        let archive = tar.stdout.take().expect("stdout was asked to be piped");
        let imported = Command::new(engine).args(["import", "-"]).stdin(archive).output();
        tar.wait()?;
        let imported = imported?;
        if !imported.status.success() {
            let said = String::from_utf8_lossy(&imported.stderr);
            let first = said.lines().next().unwrap_or("it failed to import an image").to_owned();
            return Err(io::Error::other(first));
        }
        let printed = String::from_utf8_lossy(&imported.stdout);
        Ok(printed.lines().last().unwrap_or_default().trim().to_owned())
    }
}

impl Drop for SmallRoot {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.bundle) {
            eprintln!("{} is left behind: {error}", self.bundle.display());
        }
    }
}

/// The minimum that every OCI runtime accepts: namespaces, /proc, the host's /usr.
fn config() -> serde_json::Value {
    let namespaces = ["pid", "network", "ipc", "uts", "mount"].map(|kind| json!({ "type": kind }));
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": { "uid": 0, "gid": 0 },
            "args": ["/bin/true"],
            "cwd": "/",
            "noNewPrivileges": true,
        },
        "root": { "path": "rootfs", "readonly": true },
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs" },
            {
                "destination": "/usr", "type": "bind", "source": "/usr",
                "options": ["rbind", "ro"],
            },
        ],
        "linux": { "namespaces": namespaces },
    })
}

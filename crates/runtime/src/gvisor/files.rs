//! A gVisor sandbox's files in its home: the bundle, with the directory that is visible inside, and the token of its
//! guest.
//!
//! ```text
//! gvisor/          0711: the gofer is not root on the host and has to traverse it
//!   config.json    for runsc
//!   token          the guest's token; readable by us alone
//!   dial/          0755, visible inside, read-only
//!     dial.sock    the guest dials this; accessible to its user only
//!     sandkeep-guest
//! ```

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::grouped::open_dir;
use sandkeep_guestlink::DialToken;
use sandkeep_sys::stage::Identity;

pub const DIAL: &str = "dial";
pub const SOCKET: &str = "dial.sock";
pub const GUEST: &str = "sandkeep-guest";

const DIRECTORY: &str = "gvisor";
const TOKEN: &str = "token";
const CONFIG: &str = "config.json";

pub struct Files {
    bundle: PathBuf,
}

impl Files {
    pub fn of(home: &Path) -> Self {
        Self { bundle: home.join(DIRECTORY) }
    }

    pub fn bundle(&self) -> &Path {
        &self.bundle
    }

    /// Writes everything but the bundle itself, replacing the files of an earlier start.
    pub fn write(&self, token: &DialToken) -> io::Result<()> {
        self.remove()?;
        make_directory(&self.bundle, 0o711)?;
        write(&self.bundle.join(TOKEN), 0o600, token.as_bytes())?;
        let dial = self.bundle.join(DIAL);
        make_directory(&dial, 0o755)?;
        write(&dial.join(GUEST), 0o755, sandkeep_embedded::GUEST)
    }

    /// Lets runsc read the bundle if it is the sandbox's root. On the host nobody else gets as far as to the home.
    pub fn show_bundle(&self, reader: Identity) -> io::Result<()> {
        match reader {
            Identity::Host => Ok(()),
            Identity::Sandbox => {
                fs::set_permissions(self.bundle.join(CONFIG), Permissions::from_mode(0o644))
            }
        }
    }

    pub fn remove(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.bundle) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    pub fn open_dial(&self) -> io::Result<OwnedFd> {
        open_dir(&self.bundle.join(DIAL))
    }

    pub fn token(&self) -> io::Result<DialToken> {
        let bytes = fs::read(self.bundle.join(TOKEN))?;
        DialToken::try_from(bytes.as_slice()).map_err(io::Error::other)
    }

    /// The user that may connect to the existing socket.
    pub fn owner(&self) -> io::Result<u32> {
        Ok(fs::symlink_metadata(self.bundle.join(DIAL).join(SOCKET))?.uid())
    }
}

/// Of this very mode, which the umask would narrow.
fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)?;
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Of this very mode, which the umask would narrow.
fn write(path: &Path, mode: u32, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.set_permissions(Permissions::from_mode(mode))
}

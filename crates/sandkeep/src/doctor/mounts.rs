//! Mounts below the data directory, and loop devices whose files are in it. The storage's own mounts are shared by all
//! sandboxes; on `zfs` every volume has one. Apart from these no sandbox has a mount in the host's namespace.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{INSTANCE, Kind, LeakedResource, Owners, names};
use sandkeep_sys::mount;

/// The mount point of a storage, and the file that it mounts.
const STORAGE_MOUNT: &str = "storage/btrfs";
const STORAGE_IMAGE: &str = "storage/btrfs.img";

/// Where `zfs` storage mounts the tree of each volume.
pub const ZFS_MOUNTS: &str = "storage/zfs/mounted";

/// The sandbox whose tree is mounted in a directory of that name.
pub fn sandbox_of(name: &str) -> &str {
    name.split_once('.').map_or(name, |(id, _)| id)
}

pub fn found(data: &Path, owners: &Owners) -> io::Result<Vec<LeakedResource>> {
    let of_one = |path: &Path| {
        let name = path.strip_prefix(data.join(ZFS_MOUNTS)).ok()?.to_str()?;
        owners.of(sandbox_of(name))
    };
    let mut found: Vec<LeakedResource> = mounts_beneath(data)?
        .into_iter()
        .map(|path| LeakedResource {
            kind: Kind::Mount,
            owner: owner(path == data.join(STORAGE_MOUNT)).or_else(|| of_one(&path)),
            name: path.display().to_string(),
            detail: "in the host's mount namespace".to_owned(),
        })
        .collect();
    for (device, file) in loop_devices()? {
        if file.starts_with(data) {
            let owner = owner(file == data.join(STORAGE_IMAGE));
            let detail = file.display().to_string();
            found.push(LeakedResource { kind: Kind::LoopDevice, name: device, owner, detail });
        }
    }
    Ok(found)
}

fn owner(shared: bool) -> Option<String> {
    shared.then(|| INSTANCE.to_owned())
}

fn mounts_beneath(data: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(beneath(&fs::read_to_string("/proc/self/mountinfo")?, data))
}

fn beneath(table: &str, data: &Path) -> Vec<PathBuf> {
    let paths = table.lines().filter_map(|line| line.split(' ').nth(4)).map(mount::unescape);
    paths.filter(|path| path.starts_with(data) && path != data).collect()
}

fn loop_devices() -> io::Result<Vec<(String, PathBuf)>> {
    let mut devices = Vec::new();
    for name in names(Path::new("/sys/block"))? {
        if !name.starts_with("loop") {
            continue;
        }
        // Only a device in use has this file.
        if let Ok(file) = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")) {
            devices.push((name, PathBuf::from(file.trim_end())));
        }
    }
    Ok(devices)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_seen_in_a_data_directory_of_any_name() {
        let table = "\
1 0 8:1 / / rw - ext4 /dev/sda rw
2 1 7:0 / /srv/a\\040b\\134c/storage/btrfs rw - btrfs /dev/loop0 rw
3 1 7:1 / /srv/a rw - btrfs /dev/loop1 rw
";
        let found = beneath(table, Path::new("/srv/a b\\c"));
        assert_eq!(found, [Path::new("/srv/a b\\c/storage/btrfs")]);
        assert_eq!(beneath(table, Path::new("/srv/a")), [""; 0].map(PathBuf::from));
    }
}

//! Finds leftovers: once by `doctor --leaks`, and once independently, because a doctor that sees nothing would also
//! find nothing.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::host::processes_in_cgroup;
use super::sandkeep;
use super::wait::{Patience, until};

/// Asks the doctor about a data directory; returns whether it is clean, and all it said.
pub fn doctor(data_dir: &Path) -> (bool, Value) {
    let ran = sandkeep(["doctor", "--leaks", "--json", "--data-dir"], data_dir);
    let said: Value = serde_json::from_str(&ran.stdout)
        .unwrap_or_else(|error| panic!("doctor did not print JSON ({error}): {ran:?}"));
    let clean = said["clean"].as_bool().unwrap_or_else(|| panic!("no `clean` in {said}"));
    assert_eq!(ran.code, if clean { 0 } else { 1 }, "the exit code contradicts: {ran:?}");
    (clean, said)
}

/// Nothing of this data directory is left on the host; call it when no sandbox exists and no daemon runs.
pub fn assert_nothing_left(data_dir: &Path) {
    let (clean, said) = doctor(data_dir);
    assert!(clean, "doctor found leaks: {said:#}");
    let left: Vec<String> = [mounts(data_dir), cgroups(data_dir), processes(data_dir)].concat();
    assert!(left.is_empty(), "left on the host: {left:#?}");
    // A process that just then made a mount namespace has a copy of the mount for a moment, and the
    // device goes with the last copy.
    until("no loop device is left", Patience::Short, || loop_devices(data_dir).is_empty());
    let homes = entries(&data_dir.join("sandboxes"));
    assert!(homes.is_empty(), "homes left: {homes:?}");
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

fn mounts(data_dir: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("a mount table");
    let wanted = data_dir.to_string_lossy();
    table.lines().filter(|l| l.contains(&*wanted)).map(|l| format!("mount {l}")).collect()
}

fn loop_devices(data_dir: &Path) -> Vec<String> {
    let backing = |device: &PathBuf| fs::read_to_string(device.join("loop/backing_file")).ok();
    let wanted = data_dir.to_string_lossy();
    entries(Path::new("/sys/block"))
        .iter()
        .filter_map(backing)
        .filter(|file| file.contains(&*wanted))
        .map(|file| format!("loop device on {file}"))
        .collect()
}

fn instance(data_dir: &Path) -> Option<String> {
    Some(fs::read_to_string(data_dir.join("instance")).ok()?.trim().to_owned())
}

/// The instance's cgroups in every hierarchy. The kernel has 65,535 memory cgroups for the whole
/// machine, so not even an empty one may stay.
fn cgroups(data_dir: &Path) -> Vec<String> {
    let Some(instance) = instance(data_dir) else { return Vec::new() };
    cgroups_of(&instance).iter().map(|path| format!("cgroup {}", path.display())).collect()
}

pub fn cgroups_of(instance: &str) -> Vec<PathBuf> {
    let mut hierarchies = entries(Path::new("/sys/fs/cgroup"));
    hierarchies.push(PathBuf::from("/sys/fs/cgroup"));
    let groups = hierarchies.into_iter().map(|h| h.join("sandkeep").join(instance));
    groups.filter(|path| path.exists()).collect()
}

fn processes(data_dir: &Path) -> Vec<String> {
    let Some(instance) = instance(data_dir) else { return Vec::new() };
    processes_in_cgroup(&instance).iter().map(|pid| format!("process {pid}")).collect()
}

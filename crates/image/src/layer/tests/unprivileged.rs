//! A daemon that is not root.

use std::process::Command;

use super::*;

/// Somebody who owns nothing here.
const NOBODY: &str = "65534";

#[test]
fn without_root_everything_belongs_to_the_daemon_and_that_is_said() {
    let id = format!("--reuid={NOBODY}");
    let group = format!("--regid={NOBODY}");
    let output = Command::new("setpriv")
        .args([id.as_str(), &group, "--clear-groups", "--no-new-privs"])
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--nocapture", "child_that_writes_a_layer_without_root"])
        .current_dir("/")
        .output();
    let output = match output {
        Ok(output) if rustix::process::geteuid().is_root() => output,
        _ => {
            let test = "without_root_everything_belongs_to_the_daemon_and_that_is_said";
            println!("SKIP {test}: it needs root and setpriv");
            return;
        }
    };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
#[ignore = "a process that a test starts"]
fn child_that_writes_a_layer_without_root() {
    let mut header = Tar::header(b'0', "d/a", 1);
    header.set_uid(1000);
    header.set_mode(0o4755);
    let layer = Tar::new()
        .dir_mode("d", 0o555)
        .pax(&[("SCHILY.xattr.security.capability", &[1; 20]), ("SCHILY.xattr.user.x", b"1")])
        .entry(header, b"x")
        .file("d/.wh.gone", "")
        .dir("o")
        .file("o/.wh..wh..opq", "");
    let world = World::new();
    let applied = world.apply_with(layer.end(), Whiteouts::Overlay, &[]).unwrap();
    assert_eq!((applied.owners, applied.xattrs_skipped), (Owners::Ours, 1));
    let meta = fs::metadata(world.root().join("d/a")).unwrap();
    assert_eq!((meta.uid().to_string().as_str(), meta.mode() & 0o7777), (NOBODY, 0o4755));
    assert_eq!(world.listing(), ["d/ 555", "d/a 4755 x", "d/gone device 0", "o/ 755"]);
    // A mode that keeps the owner from changing the directory must not outlive the test.
    rustix::fs::chmod(world.root().join("d"), 0o755.into()).unwrap();
}

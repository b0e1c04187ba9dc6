//! A virtual machine whose only control groups are those of version 2, into which the test binary that asks is put. See
//! `boot` beside this file.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Runs the tests of this binary that the filters name; `expected` of them must pass, those included that the machine's init
/// runs once more within a control group. They find these programs at the same paths as here.
pub fn keep_in_vm(programs: &[&str], filters: &[&str], expected: usize, patience: Duration) {
    if let Some(missing) = missing() {
        let thread = std::thread::current();
        return eprintln!("SKIP {}: there is no {missing}", thread.name().unwrap_or("vm"));
    }
    let console = console(programs, filters, patience);
    let count = |start: &str| console.lines().filter(|line| line.trim().starts_with(start)).count();
    let verdict = (count("exit code 0"), count("ok "), count("failed "), count("SKIP "));
    // A skip in there would be a promise that nobody has tried.
    assert_eq!(verdict, (2, expected, 0, 0), "the machine said:\n{console}");
}

/// What of the machine's parts this host lacks.
fn missing() -> Option<&'static str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed = |tool: &str| std::env::split_paths(&path).any(|dir| dir.join(tool).is_file());
    let tools = [
        "qemu-system-x86_64",
        "busybox",
        "cpio",
        "modprobe",
        "mke2fs",
        "objcopy",
        "dpkg",
        "python3",
    ];
    let kernel = std::fs::read_dir("/boot").is_ok_and(|mut files| {
        files.any(|file| {
            let name = file.map(|file| file.file_name().to_string_lossy().into_owned());
            name.is_ok_and(|name| name.starts_with("vmlinuz-") && name.ends_with("-cloud-amd64"))
        })
    });
    let kernel = (!kernel).then_some("kernel of linux-image-cloud-amd64");
    tools.into_iter().find(|tool| !installed(tool)).or(kernel)
}

/// All that the machine wrote to its console. It is switched off when its time is up.
fn console(programs: &[&str], filters: &[&str], patience: Duration) -> String {
    let scratch = tempfile::tempdir().expect("a directory for its disk");
    let mut boot = Command::new(repository().join("tests/vm/boot"));
    boot.arg(std::env::current_exe().expect("this binary")).arg(scratch.path()).args(filters);
    boot.env("PROGRAMS", programs.join("\n"));
    let boot = boot.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut machine = boot.expect("it can be booted");
    let mut stdout = machine.stdout.take().expect("it is piped");
    let (said, hear) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let mut console = Vec::new();
        let read = stdout.read_to_end(&mut console);
        said.send(read.map(|_| String::from_utf8_lossy(&console).into_owned()))
    });
    let late = hear.recv_timeout(patience).map_err(|_| {
        // Its console ends with it.
        machine.kill().expect("it is ours to kill");
        hear.recv().expect("the reader does not end before the console")
    });
    machine.wait().expect("it has ended");
    let console = late.unwrap_or_else(|console| console).expect("the console is readable");
    format!("{console}\n(it had {} s)", patience.as_secs())
}

fn repository() -> PathBuf {
    let this_crate = Path::new(env!("CARGO_MANIFEST_DIR"));
    this_crate.ancestors().nth(2).expect("a crate is two levels deep").to_owned()
}

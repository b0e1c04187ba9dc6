//! The yardsticks: the cheapest way to run a command at all, and other ways to run it isolated. One that is not
//! available on this machine is left out with the reason.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::engine::Engine;
use super::report::{LeftOut, Measure};
use super::small_root::SmallRoot;

/// The platform that works everywhere.
const RUNSC: &[&str] = &["runsc", "--platform=ptrace", "--network=none", "--ignore-cgroups"];

const HIDE_UNIFIED: &str = "umount /sys/fs/cgroup/unified; exec \"$0\" \"$@\"";

const BWRAP: &[&str] = &[
    "bwrap",
    "--unshare-all",
    "--ro-bind",
    "/usr",
    "/usr",
    "--symlink",
    "usr/bin",
    "/bin",
    "--symlink",
    "usr/lib",
    "/lib",
    "--symlink",
    "usr/lib64",
    "/lib64",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
    "--tmpfs",
    "/tmp",
    "/bin/true",
];

/// A command; a complete run is one sample.
#[derive(Debug)]
pub struct Yardstick {
    pub measure: Measure,
    argv: Vec<String>,
    /// Replaces the host's null device: runsc and crun change the owner of their stdio to the container's user.
    stdio: Option<PathBuf>,
    /// It takes a good part of a second, so only some rounds run it.
    pub slow: bool,
}

impl Yardstick {
    fn new(measure: Measure, argv: &[&str]) -> Self {
        let slow = !matches!(measure, Measure::Spawn | Measure::Bwrap);
        let argv = argv.iter().map(|&word| word.to_owned()).collect();
        Self { measure, argv, stdio: None, slow }
    }

    /// Runs it once. `std::process` uses `posix_spawn` here, because nothing has to be done between fork and exec.
    pub fn sample(&self) -> io::Result<Duration> {
        let mut command = self.quiet()?;
        let began = Instant::now();
        let status = command.status()?;
        let elapsed = began.elapsed();
        if status.success() {
            Ok(elapsed)
        } else {
            Err(io::Error::other(format!("{} ended with {status}", self.argv[0])))
        }
    }

    fn quiet(&self) -> io::Result<Command> {
        let mut command = Command::new(&self.argv[0]);
        command.args(&self.argv[1..]);
        let [stdin, stdout, stderr] = match &self.stdio {
            None => [Stdio::null(), Stdio::null(), Stdio::null()],
            Some(path) => {
                let open = || OpenOptions::new().read(true).write(true).open(path);
                [open()?.into(), open()?.into(), open()?.into()]
            }
        };
        command.stdin(stdin).stdout(stdout).stderr(stderr);
        Ok(command)
    }

    fn probed(self) -> Result<Self, LeftOut> {
        match self.sample() {
            Ok(_) => Ok(self),
            Err(error) => Err(LeftOut { measure: self.measure, reason: error.to_string() }),
        }
    }
}

/// All yardsticks of this machine, and their resources.
#[derive(Debug, Default)]
pub struct Yardsticks {
    pub usable: Vec<Yardstick>,
    pub left_out: Vec<LeftOut>,
    /// Dropped before the root that their images were made from.
    engines: Vec<Engine>,
    root: Option<SmallRoot>,
}

impl Yardsticks {
    pub fn find() -> Self {
        let mut found = Self::default();
        found.add(Yardstick::new(Measure::Spawn, &["/bin/true"]));
        found.add(Yardstick::new(Measure::Bwrap, BWRAP));
        match SmallRoot::make() {
            Ok(root) => {
                found.add_oci(&root);
                found.add_engine("docker", &root, [Measure::DockerRun, Measure::DockerExec]);
                found.add_engine("podman", &root, [Measure::PodmanRun, Measure::PodmanExec]);
                found.root = Some(root);
            }
            Err(error) => eprintln!("no root for containers to compare with: {error}"),
        }
        found
    }

    fn add(&mut self, yardstick: Yardstick) {
        match yardstick.probed() {
            Ok(yardstick) => self.usable.push(yardstick),
            Err(left_out) => self.left_out.push(left_out),
        }
    }

    fn add_oci(&mut self, root: &SmallRoot) {
        let bundle = root.bundle().display().to_string();
        let name = format!("sandkeep-bench-{}", std::process::id());
        let run = ["run", "--bundle", &bundle, &name];
        let with = |words: &[&'static str]| [words, &run].concat();
        let stdio = Some(root.stdio());
        let tool = |measure, argv: Vec<&str>| {
            let stdio = stdio.clone();
            Yardstick { stdio, ..Yardstick::new(measure, &argv) }
        };
        self.add(tool(Measure::RuncRun, with(&["runc"])));
        self.add(tool(Measure::RunscRun, with(RUNSC)));
        // It does not support the hybrid cgroup layout, so there it must not see version 2.
        let crun = if Path::new("/sys/fs/cgroup/unified").exists() {
            with(&["unshare", "-m", "sh", "-c", HIDE_UNIFIED, "crun"])
        } else {
            with(&["crun"])
        };
        self.add(tool(Measure::CrunRun, crun));
    }

    fn add_engine(&mut self, command: &'static str, root: &SmallRoot, [run, exec]: [Measure; 2]) {
        match Engine::start(command, root) {
            Ok(engine) => {
                self.add(Yardstick { measure: run, argv: engine.run(), stdio: None, slow: true });
                self.add(Yardstick { measure: exec, argv: engine.exec(), stdio: None, slow: true });
                self.engines.push(engine);
            }
            Err(error) => {
                let left_out = |measure| LeftOut { measure, reason: error.to_string() };
                self.left_out.extend([run, exec].map(left_out));
            }
        }
    }
}

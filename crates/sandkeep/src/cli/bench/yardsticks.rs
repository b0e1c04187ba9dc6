//! What we are compared with: the cheapest way to run a command at all, and other ways to run it
//! isolated. A yardstick that is not on this machine says why and is left out.

use std::io;
use std::path::Path;
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

/// A command whose run from start to end is one sample.
#[derive(Debug)]
pub struct Yardstick {
    pub measure: Measure,
    argv: Vec<String>,
    /// It takes a good part of a second: only some rounds run it.
    pub slow: bool,
}

impl Yardstick {
    fn new(measure: Measure, argv: &[&str]) -> Self {
        let slow = !matches!(measure, Measure::Spawn | Measure::Bwrap);
        Self { measure, argv: argv.iter().map(|&word| word.to_owned()).collect(), slow }
    }

    /// Runs it once. `std::process` uses `posix_spawn` here: nothing is to be done between fork and
    /// exec.
    pub fn sample(&self) -> io::Result<Duration> {
        let began = Instant::now();
        let status = quiet(&self.argv).status()?;
        let elapsed = began.elapsed();
        match status.success() {
            true => Ok(elapsed),
            false => Err(io::Error::other(format!("{} ended with {status}", self.argv[0]))),
        }
    }

    fn probed(self) -> Result<Self, LeftOut> {
        match self.sample() {
            Ok(_) => Ok(self),
            Err(error) => Err(LeftOut { measure: self.measure, reason: error.to_string() }),
        }
    }
}

fn quiet(argv: &[String]) -> Command {
    let mut command = Command::new(&argv[0]);
    command.args(&argv[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// All yardsticks this machine has, and what they need.
#[derive(Debug, Default)]
pub struct Yardsticks {
    pub usable: Vec<Yardstick>,
    pub left_out: Vec<LeftOut>,
    /// Engines go before the root that their images are of.
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
        self.add(Yardstick::new(Measure::RuncRun, &with(&["runc"])));
        self.add(Yardstick::new(Measure::RunscRun, &with(RUNSC)));
        // It takes no hybrid layout of control groups, so there it must not see the second version's.
        let crun = match Path::new("/sys/fs/cgroup/unified").exists() {
            true => with(&["unshare", "-m", "sh", "-c", HIDE_UNIFIED, "crun"]),
            false => with(&["crun"]),
        };
        self.add(Yardstick::new(Measure::CrunRun, &crun));
    }

    fn add_engine(&mut self, command: &'static str, root: &SmallRoot, [run, exec]: [Measure; 2]) {
        match Engine::start(command, root) {
            Ok(engine) => {
                self.add(Yardstick { measure: run, argv: engine.run(), slow: true });
                self.add(Yardstick { measure: exec, argv: engine.exec(), slow: true });
                self.engines.push(engine);
            }
            Err(error) => {
                let left_out = |measure| LeftOut { measure, reason: error.to_string() };
                self.left_out.extend([run, exec].map(left_out));
            }
        }
    }
}

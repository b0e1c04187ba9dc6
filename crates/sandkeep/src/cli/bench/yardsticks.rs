//! What we are compared with: the cheapest way to run a command at all, and other ways to run it
//! isolated. A yardstick that is not on this machine says why and is left out.

use std::io;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::report::{LeftOut, Measure};

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
        let slow = matches!(measure, Measure::DockerRun | Measure::DockerExec);
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

/// All yardsticks this machine has, and a container that `docker exec` needs.
#[derive(Debug, Default)]
pub struct Yardsticks {
    pub usable: Vec<Yardstick>,
    pub left_out: Vec<LeftOut>,
    container: Option<String>,
}

impl Yardsticks {
    pub fn find() -> Self {
        let mut found = Self::default();
        found.add(Yardstick::new(Measure::Spawn, &["/bin/true"]));
        found.add(Yardstick::new(Measure::Bwrap, BWRAP));
        if let Err(reason) = found.add_docker() {
            for measure in [Measure::DockerRun, Measure::DockerExec] {
                found.left_out.push(LeftOut { measure, reason: reason.to_string() });
            }
        }
        found
    }

    fn add(&mut self, yardstick: Yardstick) {
        match yardstick.probed() {
            Ok(yardstick) => self.usable.push(yardstick),
            Err(left_out) => self.left_out.push(left_out),
        }
    }

    fn add_docker(&mut self) -> io::Result<()> {
        let images = docker(&["image", "ls", "--format", "{{.ID}}"])?;
        let image = images.lines().next().ok_or_else(|| io::Error::other("docker has no image"))?;
        let name = format!("sandkeep-bench-{}", std::process::id());
        docker(&[
            "run",
            "-d",
            "--rm",
            "--network",
            "none",
            "--name",
            &name,
            image,
            "sleep",
            "3600",
        ])?;
        self.container = Some(name.clone());
        let run = ["docker", "run", "--rm", "--network", "none", image, "/bin/true"];
        self.add(Yardstick::new(Measure::DockerRun, &run));
        self.add(Yardstick::new(Measure::DockerExec, &["docker", "exec", &name, "/bin/true"]));
        Ok(())
    }
}

impl Drop for Yardsticks {
    fn drop(&mut self) {
        if let Some(name) = &self.container
            && let Err(error) = docker(&["rm", "-f", name])
        {
            eprintln!("the container {name} is left behind: {error}");
        }
    }
}

fn docker(arguments: &[&str]) -> io::Result<String> {
    let output = Command::new("docker").args(arguments).stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(said.lines().next().unwrap_or("docker failed").to_owned()))
}

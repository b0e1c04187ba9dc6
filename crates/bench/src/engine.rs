//! A container engine for comparison, by its own command: a new container each time, and a running one for `exec`.
//! Everything created for it is removed with it.

use std::io;
use std::process::{Command, Stdio};

use super::small_root::SmallRoot;

/// Settings that also work where limits cannot be raised and crun does not support the hybrid cgroup layout.
const MODEST: &[&str] =
    &["--runtime", "runc", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"];

#[derive(Debug)]
pub struct Engine {
    command: &'static str,
    /// Options of every container.
    settings: &'static [&'static str],
    image: String,
    container: Option<String>,
}

impl Engine {
    pub fn start(command: &'static str, root: &SmallRoot) -> io::Result<Self> {
        Self::start_with(command, &[], root).or_else(|error| {
            // The first error explains more than a second failure.
            Self::start_with(command, MODEST, root).map_err(|_| error)
        })
    }

    fn start_with(
        command: &'static str,
        settings: &'static [&'static str],
        root: &SmallRoot,
    ) -> io::Result<Self> {
        let image = root.import(command)?;
        let mut engine = Self { command, settings, image, container: None };
        let started = engine.call(&engine.run_with(&["-d"], &["sleep", "3600"]))?;
        engine.container = Some(started.trim().to_owned());
        Ok(engine)
    }

    /// The command line that runs `/bin/true` in a new container.
    pub fn run(&self) -> Vec<String> {
        self.words(&self.run_with(&[], &["/bin/true"]))
    }

    /// The command line that runs it in the running container.
    pub fn exec(&self) -> Vec<String> {
        let container = self.container.as_deref().unwrap_or_default();
        self.words(&["exec", container, "/bin/true"])
    }

    fn words(&self, arguments: &[&str]) -> Vec<String> {
        [self.command].iter().chain(arguments).map(|&word| word.to_owned()).collect()
    }

    fn run_with<'a>(&'a self, options: &[&'a str], argv: &[&'a str]) -> Vec<&'a str> {
        let mut words = vec!["run", "--rm", "--network", "none", "-v", "/usr:/usr:ro"];
        words.extend(self.settings);
        words.extend(options);
        words.push(&self.image);
        words.extend(argv);
        words
    }

    fn call(&self, arguments: &[&str]) -> io::Result<String> {
        let output = Command::new(self.command).args(arguments).stdin(Stdio::null()).output()?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(said.lines().next().unwrap_or("it failed").to_owned()))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let container = self.container.take();
        let removed = container
            .iter()
            .map(|name| self.call(&["rm", "-f", name]))
            .chain([self.call(&["rmi", "-f", &self.image])]);
        for error in removed.filter_map(Result::err) {
            eprintln!("a container or image of {} is left behind: {error}", self.command);
        }
    }
}

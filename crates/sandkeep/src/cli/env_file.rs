//! Environment variables of a command or a sandbox: `--env` and `--env-file`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::cli::failure::Failure;
use sandkeep_core::limits::CLI_ENV_FILE_MAX_BYTES;

#[derive(Clone, Debug, Default, clap::Args)]
pub struct EnvArgs {
    /// Environment variable; NAME alone takes its value from this terminal's environment; repeatable
    #[arg(long = "env", short = 'e', value_name = "NAME[=VALUE]", value_parser = variable)]
    env: Vec<Variable>,
    /// File with environment variables, one NAME=VALUE or NAME per line; # begins a comment; repeatable
    #[arg(long = "env-file", value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// One variable, and its value unless that of our own environment is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    name: String,
    value: Option<String>,
}

/// Why a text is no variable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidVariable {
    #[error("expected NAME=VALUE or NAME")]
    Nameless,
    #[error("{name:?} is not a name: it has no spaces")]
    Name { name: String },
    #[error("{name} is not set here; write {name}=VALUE")]
    Unset { name: String },
}

fn variable(text: &str) -> Result<Variable, InvalidVariable> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, None),
    };
    if name.is_empty() {
        return Err(InvalidVariable::Nameless);
    }
    if name.contains(char::is_whitespace) {
        return Err(InvalidVariable::Name { name: name.to_owned() });
    }
    let variable = Variable { name: name.to_owned(), value };
    match &variable.value {
        // In a script a forgotten `export` must not become an empty password.
        None if std::env::var_os(name).is_none() => {
            Err(InvalidVariable::Unset { name: name.to_owned() })
        }
        _ => Ok(variable),
    }
}

impl Variable {
    fn resolved(self) -> Result<(String, String), Failure> {
        let Self { name, value } = self;
        let value = match value {
            Some(value) => value,
            None => std::env::var(&name)
                .map_err(|error| Failure::Usage { problem: format!("--env {name}: {error}") })?,
        };
        Ok((name, value))
    }
}

impl EnvArgs {
    /// All variables: those of the files in their order, and over them those of the options.
    pub fn read(self) -> Result<BTreeMap<String, String>, Failure> {
        let mut all = BTreeMap::new();
        for file in &self.files {
            all.extend(of_file(file)?);
        }
        for variable in self.env {
            let (name, value) = variable.resolved()?;
            all.insert(name, value);
        }
        Ok(all)
    }
}

fn of_file(path: &Path) -> Result<BTreeMap<String, String>, Failure> {
    let usage = |problem: String| Failure::Usage {
        problem: format!("--env-file {}{problem}", path.display()),
    };
    let text = bounded(path).map_err(|error| usage(format!(": {error}")))?;
    let mut all = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_start();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let said = variable(line).map_err(|error| usage(format!(":{}: {error}", number + 1)))?;
        let (name, value) = said.resolved()?;
        all.insert(name, value);
    }
    Ok(all)
}

fn bounded(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(CLI_ENV_FILE_MAX_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > CLI_ENV_FILE_MAX_BYTES {
        Err(io::Error::other(format!("larger than {CLI_ENV_FILE_MAX_BYTES} bytes")))
    } else {
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, options: &[&str]) -> Result<BTreeMap<String, String>, Failure> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("it can be written");
        let env = options.iter().map(|text| variable(text).expect("a variable")).collect();
        let args = EnvArgs { env, files: vec![file.path().to_owned()] };
        args.read()
    }

    #[test]
    fn a_file_is_read_as_docker_reads_it_and_options_come_after_it() {
        let text = "# one\nA=1\n\n  B=x = y # z\nQ=\"quoted\"\nEMPTY=\nPATH\n";
        let read = read(text, &["A=2", "NEW="]).expect("it is right");
        let path = std::env::var("PATH").expect("set everywhere");
        let expected = [
            ("A", "2"),
            ("B", "x = y # z"),
            ("EMPTY", ""),
            ("NEW", ""),
            ("PATH", path.as_str()),
            ("Q", "\"quoted\""),
        ];
        let read: Vec<(&str, &str)> = read.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!(read, expected);
    }

    #[test]
    fn a_line_that_is_wrong_is_named_with_its_file_and_number() {
        for (text, says) in
            [("A=1\n=x\n", ":2: "), ("A B=1\n", ":1: "), ("SURELY_NOT_SET_HERE\n", "is not set")]
        {
            let problem = read(text, &[]).expect_err(text).line();
            assert!(problem.contains(says) && problem.contains("--env-file"), "{problem}");
        }
    }
}

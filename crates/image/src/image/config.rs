//! The config of an image: untrusted JSON of which the known parts are used and bounded.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{ImageError, Platform};
use crate::manifest::{json, within};
use sandkeep_core::limits;
use sandkeep_tree::digest::Digest;

const WHAT: &str = "the config of the image";

/// How an image's programs should be run, and its labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageConfig {
    /// In the image's order; a later entry with the same name wins.
    pub env: Vec<(String, String)>,
    /// Absolute.
    pub working_dir: Option<String>,
    /// `user`, `uid`, `user:group`, `uid:gid`; only the image's own passwd can resolve a name.
    pub user: Option<String>,
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    pub exposed_ports: Vec<ExposedPort>,
    pub labels: BTreeMap<String, String>,
    /// Empty if the image does not specify it.
    pub architecture: String,
    pub os: String,
    pub variant: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ExposedPort {
    pub port: u16,
    pub protocol: Protocol,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no port: it must be a number, or a number and /tcp, /udp or /sctp")]
pub struct NotAPort {
    pub text: String,
}

/// The JSON document, as far as it is used.
#[derive(Deserialize)]
struct Written {
    architecture: Option<String>,
    os: Option<String>,
    variant: Option<String>,
    config: Option<WrittenConfig>,
    rootfs: WrittenRootfs,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct WrittenConfig {
    user: Option<String>,
    env: Option<Vec<String>>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    working_dir: Option<String>,
    exposed_ports: Option<BTreeMap<String, serde::de::IgnoredAny>>,
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct WrittenRootfs {
    diff_ids: Vec<Digest>,
}

impl ImageConfig {
    /// Parses a config in OCI's or Docker's format, and the diff ids of the layers, lowest first.
    pub fn parse(bytes: &[u8]) -> Result<(Self, Vec<Digest>), ImageError> {
        within(bytes, WHAT, limits::IMAGE_CONFIG_MAX_BYTES)?;
        let written: Written = json(bytes, WHAT)?;
        let diff_ids = written.rootfs.diff_ids;
        if diff_ids.len() > limits::IMAGE_LAYERS_MAX {
            return Err(invalid(format!("it names {} layers", diff_ids.len())));
        }
        let said = written.config.unwrap_or_default();
        let config = Self {
            env: env(said.env.unwrap_or_default())?,
            working_dir: said.working_dir.filter(|dir| !dir.is_empty()).map(absolute),
            user: said.user.filter(|user| !user.is_empty()),
            entrypoint: said.entrypoint.unwrap_or_default(),
            cmd: said.cmd.unwrap_or_default(),
            exposed_ports: ports(said.exposed_ports.unwrap_or_default())?,
            labels: said.labels.unwrap_or_default(),
            architecture: written.architecture.unwrap_or_default(),
            os: written.os.unwrap_or_default(),
            variant: written.variant.filter(|variant| !variant.is_empty()),
        };
        config.check()?;
        Ok((config, diff_ids))
    }

    /// Whether programs of this image can run on a machine. An image without a platform is accepted.
    pub fn check_platform(&self, machine: &Platform) -> Result<(), ImageError> {
        if self.os.is_empty() && self.architecture.is_empty() {
            return Ok(());
        }
        let own = Platform {
            os: self.os.clone(),
            architecture: self.architecture.clone(),
            variant: self.variant.clone(),
        };
        match own.fits(machine) {
            Some(_) => Ok(()),
            None => Err(ImageError::NoPlatform { wanted: machine.clone(), there: vec![own] }),
        }
    }

    /// No string may contain NUL.
    fn check(&self) -> Result<(), ImageError> {
        let words =
            self.entrypoint.iter().chain(&self.cmd).chain(&self.user).chain(&self.working_dir);
        for word in words {
            if word.contains('\0') {
                return Err(invalid(format!("{word:?} holds a NUL")));
            }
            if word.len() > limits::ARGUMENT_MAX_BYTES {
                return Err(invalid(
                    "an argument, user or working directory is too long".to_owned(),
                ));
            }
        }
        let words: usize = self.entrypoint.iter().chain(&self.cmd).map(String::len).sum();
        if words > limits::EXEC_STRINGS_MAX_BYTES {
            Err(invalid("entrypoint and cmd together are too long".to_owned()))
        } else {
            Ok(())
        }
    }
}

fn invalid(reason: String) -> ImageError {
    ImageError::Invalid { what: WHAT, reason }
}

/// Docker treats a name without a value as unset.
fn env(entries: Vec<String>) -> Result<Vec<(String, String)>, ImageError> {
    let total: usize = entries.iter().map(String::len).sum();
    if entries.len() > limits::ENV_MAX || total > limits::ENV_TOTAL_MAX_BYTES {
        return Err(invalid(format!(
            "its environment has {} entries, {total} bytes",
            entries.len()
        )));
    }
    let mut pairs = Vec::with_capacity(entries.len());
    for entry in entries {
        if entry.contains('\0') || entry.len() > limits::ENV_ENTRY_MAX_BYTES {
            let name = entry.split('=').next().unwrap_or_default();
            return Err(invalid(format!("the variable {name:?} is too long or holds a NUL")));
        }
        match entry.split_once('=') {
            Some((name, value)) if !name.is_empty() => {
                pairs.push((name.to_owned(), value.to_owned()))
            }
            Some(_) | None => {}
        }
    }
    Ok(pairs)
}

fn absolute(directory: String) -> String {
    if directory.starts_with('/') { directory } else { format!("/{directory}") }
}

fn ports(written: BTreeMap<String, serde::de::IgnoredAny>) -> Result<Vec<ExposedPort>, ImageError> {
    let parsed = written.into_keys().map(|text| text.parse::<ExposedPort>());
    let mut ports: Vec<_> =
        parsed.collect::<Result<_, _>>().map_err(|error| invalid(error.to_string()))?;
    ports.sort_unstable();
    Ok(ports)
}

impl FromStr for ExposedPort {
    type Err = NotAPort;

    fn from_str(text: &str) -> Result<Self, NotAPort> {
        let refused = || NotAPort { text: text.to_owned() };
        let (port, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        let protocol = match protocol.to_ascii_lowercase().as_str() {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            "sctp" => Protocol::Sctp,
            _ => return Err(refused()),
        };
        Ok(Self { port: port.parse().map_err(|_| refused())?, protocol })
    }
}

impl fmt::Display for ExposedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        };
        write!(f, "{}/{protocol}", self.port)
    }
}

impl TryFrom<String> for ExposedPort {
    type Error = NotAPort;

    fn try_from(text: String) -> Result<Self, NotAPort> {
        text.parse()
    }
}

impl From<ExposedPort> for String {
    fn from(port: ExposedPort) -> Self {
        port.to_string()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(config: serde_json::Value) -> Result<ImageConfig, ImageError> {
        let document = json!({ "os": "linux", "config": config, "rootfs": { "diff_ids": [] } });
        ImageConfig::parse(&serde_json::to_vec(&document).unwrap()).map(|(config, _)| config)
    }

    #[test]
    fn a_config_may_say_nothing() {
        let said = parse(json!(null)).unwrap();
        assert_eq!(said, ImageConfig { os: "linux".to_owned(), ..ImageConfig::default() });
        let empty =
            json!({ "User": "", "WorkingDir": "", "Env": null, "Cmd": null, "Labels": null });
        assert_eq!(parse(empty).unwrap(), said);
    }

    #[test]
    fn a_working_directory_is_taken_from_the_root() {
        let config = parse(json!({ "WorkingDir": "srv/app" })).unwrap();
        assert_eq!(config.working_dir.as_deref(), Some("/srv/app"));
    }

    #[test]
    fn a_config_is_read_as_it_was_written() {
        let config = parse(json!({
            "Env": ["A=1", "B=x=y", "A=2"], "ExposedPorts": { "80": {}, "53/UDP": {} },
        }))
        .unwrap();
        let json = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<ImageConfig>(&json).unwrap(), config);
        let names: Vec<_> = config.env.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["A", "B", "A"]);
        let ports: Vec<_> = config.exposed_ports.iter().map(ToString::to_string).collect();
        assert_eq!(ports, ["53/udp", "80/tcp"]);
    }

    #[test]
    fn what_no_program_could_be_run_with_is_refused() {
        let many: Vec<_> = (0..=limits::ENV_MAX).map(|number| format!("A{number}=")).collect();
        let long = format!("A={}", "x".repeat(limits::ENV_ENTRY_MAX_BYTES));
        for config in [
            json!({ "Env": many }),
            json!({ "Env": [long] }),
            json!({ "Env": ["A=\0"] }),
            json!({ "Cmd": ["a\0b"] }),
            json!({ "User": "a\0b" }),
            json!({ "Cmd": ["x".repeat(limits::ARGUMENT_MAX_BYTES + 1)] }),
            json!({ "ExposedPorts": { "70000/tcp": {} } }),
            json!({ "ExposedPorts": { "80/smtp": {} } }),
            json!({ "Env": "A=1" }),
        ] {
            parse(config).expect_err("a config that cannot be used");
        }
    }

    #[test]
    fn an_image_for_another_machine_is_refused_and_one_that_does_not_say_is_not() {
        let here = Platform::here();
        let mut config = ImageConfig::default();
        config.check_platform(&here).unwrap();
        (config.os, config.architecture) = (here.os.clone(), here.architecture.clone());
        config.check_platform(&here).unwrap();
        config.architecture = "sparc64".to_owned();
        let error = config.check_platform(&here).unwrap_err().to_string();
        assert!(error.contains("linux/sparc64"), "{error}");
    }
}

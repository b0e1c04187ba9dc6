//! What the operator decides about the networks of sandboxes, from its files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use crate::config::{EgressSettings, Settings};
use crate::doctor::ALLOWED;
use sandkeep_broker::{Egress, FixedHosts, KmsCommand, error::Error};
use sandkeep_core::limits::NETWORK_PRESETS_FILE_MAX_BYTES;
use sandkeep_core::network::{Admin, Entry, InvalidPreset, Presets};
use sandkeep_home::DataDir;
use sandkeep_outgoing::Roots;

pub(super) fn egress(settings: &Settings) -> Result<Egress, Error> {
    let EgressSettings { ceiling, allow_ranges, presets, ca, hosts, kms_command } =
        &settings.egress;
    let presets = match presets {
        Some(path) => read_presets(path).map_err(wrong("egress_presets", path))?,
        None => Presets::built_in(),
    };
    if let Some(ceiling) = ceiling {
        let invalid = |error: sandkeep_core::InvalidSpec| Error::InvalidField {
            field: "egress_ceiling",
            problem: error.problem,
        };
        ceiling.check(&presets).map_err(invalid)?;
    }
    let roots = match ca {
        Some(path) => Roots::read(path).map_err(|error| Error::InvalidField {
            field: "egress_ca",
            problem: error.to_string(),
        })?,
        None => Roots::default(),
    };
    let hosts = hosts.as_ref().map(|path| read_hosts(path).map_err(wrong("egress_hosts", path)));
    Ok(Egress {
        presets: Arc::new(presets),
        admin: Admin { ceiling: ceiling.clone(), ranges: allow_ranges.clone() },
        roots,
        hosts: hosts.transpose()?,
        kms: kms_command.clone().map(KmsCommand),
    })
}

/// For the isolation tests: one host, which is this machine's loopback. No other name has an address, so no query and no
/// connection leaves, whatever the operator allows.
pub(super) fn of_the_battery(data: &DataDir) -> io::Result<EgressSettings> {
    const LOOPBACK: &str = "127.0.0.1";
    let hosts = data.path().join("battery-hosts");
    std::fs::write(&hosts, format!("{LOOPBACK} {ALLOWED}\n"))?;
    let range = LOOPBACK.parse().expect("an address");
    Ok(EgressSettings {
        hosts: Some(hosts),
        allow_ranges: vec![range],
        ..EgressSettings::default()
    })
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
enum InvalidFile {
    #[error(transparent)]
    Unreadable(#[from] io::Error),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Preset(#[from] InvalidPreset),
    #[error("line {number}: {text:?} is not an IP address")]
    Address { number: usize, text: String },
}

fn wrong(field: &'static str, path: &Path) -> impl FnOnce(InvalidFile) -> Error {
    move |problem| Error::InvalidField { field, problem: format!("{}: {problem}", path.display()) }
}

fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let max = NETWORK_PRESETS_FILE_MAX_BYTES;
    File::open(path)?.take(max + 1).read_to_string(&mut text)?;
    if text.len() as u64 > max {
        Err(io::Error::other(format!("it is larger than {max} bytes")))
    } else {
        Ok(text)
    }
}

/// Those of the program, with those of the file added or in their place.
fn read_presets(path: &Path) -> Result<Presets, InvalidFile> {
    let own: BTreeMap<String, Vec<Entry>> = serde_json::from_str(&text(path)?)?;
    let mut presets = Presets::built_in();
    for (name, entries) in own {
        presets.set(&name, entries)?;
    }
    Ok(presets)
}

/// Lines as in /etc/hosts: an address, and the names that have it.
fn read_hosts(path: &Path) -> Result<FixedHosts, InvalidFile> {
    let mut hosts: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    for (number, line) in (1..).zip(text(path)?.lines()) {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(text) = words.next() else { continue };
        let Ok(address) = text.parse() else {
            return Err(InvalidFile::Address { number, text: text.to_owned() });
        };
        for name in words {
            hosts.entry(name.to_ascii_lowercase()).or_default().push(address);
        }
    }
    Ok(FixedHosts(hosts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_and_what_is_wrong_in_them_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).expect("a file");
            path
        };
        let hosts = "127.0.0.1 a.example B.example # two\n\n# none\n::1 a.example\n";
        let FixedHosts(hosts) = read_hosts(&file("hosts", hosts)).expect("hosts");
        assert_eq!(hosts["a.example"].len(), 2);
        assert_eq!(hosts["b.example"].len(), 1);
        let wrong = read_hosts(&file("bad", "a.example 127.0.0.1")).expect_err("turned around");
        assert!(wrong.to_string().contains("line 1"), "{wrong}");
        let own = r#"{ "corp": ["git.corp.example:22"], "python": ["mirror.example"] }"#;
        let presets = read_presets(&file("presets", own)).expect("presets");
        assert!(presets.get("corp").is_some() && presets.get("node").is_some());
        assert_eq!(presets.get("python").map(<[Entry]>::len), Some(1));
        for bad in ["{", r#"{ "a.b": ["x.example"] }"#, r#"{ "x": ["go"] }"#] {
            assert!(read_presets(&file("presets", bad)).is_err(), "{bad}");
        }
    }
}

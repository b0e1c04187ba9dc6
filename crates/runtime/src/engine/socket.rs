//! Sockets of container engines.

use std::path::{Path, PathBuf};

use super::NoEngine;

const SCHEME: &str = "unix://";

/// The socket of an engine's API: the configured one, or the first existing default. An error says what to do.
pub fn find(named: Option<&str>, usual: &[PathBuf]) -> Result<PathBuf, NoEngine> {
    let Some(named) = named else {
        let there = usual.iter().find(|path| path.exists());
        let list = usual.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        let nowhere = || format!("no socket at {} (is it installed and running?)", list.join(", "));
        return there.cloned().ok_or_else(|| NoEngine(nowhere()));
    };
    let path = match named.strip_prefix(SCHEME) {
        Some(path) => Path::new(path),
        None => Path::new(named),
    };
    if path.is_absolute() {
        Ok(path.to_owned())
    } else {
        Err(NoEngine(format!(
            "{named:?} is no socket of this machine; only {SCHEME}/absolute/path can be used, because \
             sandboxes are processes and directories of this machine"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_socket_counts_and_others_are_not_looked_at() {
        let usual = [PathBuf::from("/")];
        assert_eq!(find(Some("unix:///run/x.sock"), &usual), Ok("/run/x.sock".into()));
        assert_eq!(find(Some("/run/x.sock"), &usual), Ok("/run/x.sock".into()));
        assert_eq!(find(None, &usual), Ok("/".into()));
    }

    #[test]
    fn what_is_not_a_socket_of_this_machine_is_refused_with_a_remedy() {
        for named in ["tcp://127.0.0.1:2375", "ssh://host", "docker.sock", "unix://relative"] {
            let refused = find(Some(named), &[]).expect_err("it is refused").0;
            assert!(refused.contains("unix:///"), "{refused}");
        }
        let missing = find(None, &["/no/such/socket".into()]).expect_err("it is not there").0;
        assert!(missing.contains("/no/such/socket"), "{missing}");
    }
}

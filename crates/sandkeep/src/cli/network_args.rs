//! `--network`, `--allow`, `--deny`, `--on-deny` and `--secret`: what a new sandbox may reach.

use serde_json::{Map, Value, json};

use crate::cli::failure::Failure;
use sandkeep_core::network::{Entry, InvalidEntry, Target};

#[derive(Clone, Debug, Default, clap::Args)]
pub struct NetworkArgs {
    /// none: loopback only, the default; open: every public host
    #[arg(long, value_name = "none|open", value_parser = ["none", "open"])]
    network: Option<String>,
    /// What it may reach: a preset (python, node, …), api.example.com, *.example.com, host:port, a CIDR range; repeatable
    #[arg(long, value_name = "ENTRY")]
    allow: Vec<Entry>,
    /// What it may not reach, whatever else is allowed; repeatable
    #[arg(long, value_name = "ENTRY")]
    deny: Vec<Entry>,
    /// What happens to everything else: it is refused, you are asked, or it passes and is logged
    #[arg(long, value_name = "refuse|ask|audit", value_parser = ["refuse", "ask", "audit"])]
    on_deny: Option<String>,
    /// Secret for some hosts, with the value of this terminal's variable NAME; inside is only a placeholder; repeatable
    #[arg(long = "secret", value_name = "NAME@HOST[,HOST]")]
    secrets: Vec<String>,
}

/// A secret, and who may get its value.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SecretArg {
    name: String,
    hosts: Vec<Target>,
}

/// Why a text is no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum InvalidSecret {
    #[error("expected NAME@HOST, such as GITHUB_TOKEN@api.github.com")]
    Hostless,
    #[error(
        "a value on the command line can be read by other users: export {name}=… here, and write {name}@HOST"
    )]
    Value { name: String },
    #[error("{name} is not set here; export it first")]
    Unset { name: String },
    #[error(transparent)]
    Host(#[from] InvalidEntry),
}

/// Not a parser of clap, which prints what it refuses.
fn secret(text: &str) -> Result<SecretArg, InvalidSecret> {
    let (name, hosts) = text.split_once('@').unwrap_or((text, ""));
    if let Some((name, _)) = name.split_once('=') {
        return Err(InvalidSecret::Value { name: name.to_owned() });
    }
    if name.is_empty() || hosts.is_empty() {
        return Err(InvalidSecret::Hostless);
    }
    if std::env::var_os(name).is_none() {
        return Err(InvalidSecret::Unset { name: name.to_owned() });
    }
    let hosts = hosts.split(',').map(|host| host.trim().parse()).collect::<Result<_, _>>()?;
    Ok(SecretArg { name: name.to_owned(), hosts })
}

impl NetworkArgs {
    /// Asks in the terminal about everything that is not allowed.
    pub fn ask(&mut self) -> Result<(), Failure> {
        match self.on_deny.replace("ask".to_owned()).as_deref() {
            None | Some("ask") => Ok(()),
            Some(other) => {
                let problem = format!("--ask and --on-deny {other} exclude each other");
                Err(Failure::Usage { problem })
            }
        }
    }

    /// The fields `network` and `secrets` of a request; what is not given is left to the daemon.
    pub fn read(self) -> Result<(Option<Value>, Option<Value>), Failure> {
        let secrets = self.read_secrets()?;
        let Self { network, allow, deny, on_deny, secrets: _ } = self;
        let is_word = allow.is_empty() && deny.is_empty() && on_deny.is_none();
        let network = match (network.as_deref(), is_word) {
            (None, true) => None,
            (Some(word), true) => Some(json!(word)),
            (Some("none"), false) => {
                let problem =
                    "--network none allows nothing; leave it out, or the other options".to_owned();
                return Err(Failure::Usage { problem });
            }
            (word, false) => {
                let any = word.map(|_open| json!("*"));
                let allow: Vec<Value> =
                    any.into_iter().chain(allow.iter().map(|entry| json!(entry))).collect();
                let mut policy = json!({ "allow": allow, "deny": deny });
                if let Some(on_deny) = on_deny {
                    policy["on_deny"] = json!(on_deny);
                }
                Some(policy)
            }
        };
        Ok((network, secrets))
    }

    fn read_secrets(&self) -> Result<Option<Value>, Failure> {
        let mut secrets = Map::new();
        for text in &self.secrets {
            let read = secret(text);
            let SecretArg { name, hosts } =
                read.map_err(|error| Failure::Usage { problem: format!("--secret: {error}") })?;
            let value = std::env::var(&name).map_err(|error| {
                let problem = format!("--secret {name}: {error}");
                Failure::Usage { problem }
            })?;
            let secret = json!({ "hosts": hosts, "value": value });
            if secrets.insert(name.clone(), secret).is_some() {
                let problem = format!("--secret {name} is given twice: name all hosts in one");
                return Err(Failure::Usage { problem });
            }
        }
        Ok((!secrets.is_empty()).then_some(Value::Object(secrets)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_never_taken_from_the_command_line() {
        let error = secret("TOKEN=hush@a.example").expect_err("a value").to_string();
        assert!(error.contains("export TOKEN=") && !error.contains("hush"), "{error}");
        assert_eq!(secret("PATH"), Err(InvalidSecret::Hostless));
        assert_eq!(secret("@a.example"), Err(InvalidSecret::Hostless));
        let unset = "SANDKEEP_TEST_NO_SUCH_VARIABLE@a.example";
        assert!(matches!(secret(unset), Err(InvalidSecret::Unset { .. })));
        let two = secret("PATH@a.example,*.b.example").expect("it is set");
        assert_eq!((two.name.as_str(), two.hosts.len()), ("PATH", 2));
    }

    #[test]
    fn options_become_the_policy_of_the_api() {
        let entry = |text: &str| text.parse::<Entry>().expect("an entry");
        let read = |args: NetworkArgs| args.read().ok().and_then(|(network, _)| network);
        assert_eq!(read(NetworkArgs::default()), None);
        let word = |word: &str| Some(word.to_owned());
        assert_eq!(
            read(NetworkArgs { network: word("none"), ..Default::default() }),
            Some(json!("none"))
        );
        let args = NetworkArgs { allow: vec![entry("python")], ..Default::default() };
        assert_eq!(read(args), Some(json!({ "allow": ["python"], "deny": [] })));
        let mut args = NetworkArgs {
            network: word("open"),
            deny: vec![entry("*.corp.example")],
            ..Default::default()
        };
        assert!(args.ask().is_ok(), "nothing else was said");
        let expected = json!({ "allow": ["*"], "deny": ["*.corp.example"], "on_deny": "ask" });
        assert_eq!(read(args), Some(expected));
        let both =
            NetworkArgs { network: word("none"), allow: vec![entry("go")], ..Default::default() };
        assert!(both.read().is_err());
    }
}

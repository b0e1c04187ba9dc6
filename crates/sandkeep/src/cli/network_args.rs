//! `--network`, `--allow`, `--deny`, `--on-deny` and `--secret`: what a new sandbox, or a build, may reach.

use serde_json::{Map, Value, json};

use crate::cli::failure::Failure;
use sandkeep_core::network::{Entry, InvalidEntry, SecretPatch, SecretValue, Target};

#[derive(Clone, Debug, Default, clap::Args)]
pub struct NetworkArgs {
    #[command(flatten)]
    policy: PolicyArgs,
    /// Secret for some hosts, with the value of this terminal's variable NAME; inside is only a placeholder; repeatable
    #[arg(long = "secret", value_name = "NAME@HOST[,HOST]")]
    secrets: Vec<String>,
}

#[derive(Clone, Debug, Default, clap::Args)]
pub struct PolicyArgs {
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
        match self.policy.on_deny.replace("ask".to_owned()).as_deref() {
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
        Ok((self.policy.read()?, secrets))
    }

    fn read_secrets(&self) -> Result<Option<Value>, Failure> {
        let mut secrets = Map::new();
        for text in &self.secrets {
            let read = secret(text);
            let SecretArg { name, hosts } =
                read.map_err(|error| Failure::Usage { problem: format!("--secret: {error}") })?;
            let value = value_of(&name)?;
            let secret = json!({ "hosts": hosts, "value": value });
            if secrets.insert(name.clone(), secret).is_some() {
                let problem = format!("--secret {name} is given twice: name all hosts in one");
                return Err(Failure::Usage { problem });
            }
        }
        Ok((!secrets.is_empty()).then_some(Value::Object(secrets)))
    }
}

/// The value of a variable of this terminal.
fn value_of(name: &str) -> Result<String, Failure> {
    std::env::var(name).map_err(|error| {
        let problem = format!("the value of secret {name}: {error}");
        Failure::Usage { problem }
    })
}

/// A change of a secret of a sandbox that exists: `NAME@HOST[,HOST]`, or `NAME` for a new value alone.
pub fn changed_secret(text: &str) -> Result<(String, SecretPatch), Failure> {
    let read = if text.contains(['@', '=']) {
        secret(text).map(|SecretArg { name, hosts }| (name, Some(hosts)))
    } else {
        Ok((text.to_owned(), None))
    };
    let (name, hosts) = read.map_err(|error| Failure::Usage { problem: error.to_string() })?;
    let value = Some(SecretValue::new(value_of(&name)?));
    Ok((name, SecretPatch { hosts, value }))
}

impl PolicyArgs {
    /// The field `network` of a request, if anything was given.
    pub fn read(self) -> Result<Option<Value>, Failure> {
        let Self { network, allow, deny, on_deny } = self;
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
        Ok(network)
    }

    /// The same for a query, where a word has no quotes.
    pub fn read_as_query(self) -> Result<Option<String>, Failure> {
        Ok(self.read()?.map(|network| match network {
            Value::String(word) => word,
            policy => policy.to_string(),
        }))
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
    fn a_change_of_a_secret_may_name_no_hosts() {
        let (name, patch) = changed_secret("PATH").expect("it is set");
        assert_eq!((name.as_str(), patch.hosts), ("PATH", None));
        let (_, patch) = changed_secret("PATH@a.example").expect("it is set");
        assert_eq!(patch.hosts.map(|hosts| hosts.len()), Some(1));
        assert!(patch.value.is_some());
        for text in ["PATH=hush", "PATH@", "SANDKEEP_TEST_NO_SUCH_VARIABLE"] {
            assert!(changed_secret(text).is_err(), "{text}");
        }
    }

    #[test]
    fn options_become_the_policy_of_the_api() {
        let entry = |text: &str| text.parse::<Entry>().expect("an entry");
        let read = |args: PolicyArgs| args.read().ok().flatten();
        assert_eq!(read(PolicyArgs::default()), None);
        let word = |word: &str| Some(word.to_owned());
        assert_eq!(
            read(PolicyArgs { network: word("none"), ..Default::default() }),
            Some(json!("none"))
        );
        let args = PolicyArgs { allow: vec![entry("python")], ..Default::default() };
        assert_eq!(read(args.clone()), Some(json!({ "allow": ["python"], "deny": [] })));
        let query = args.read_as_query().ok().flatten();
        assert_eq!(query.as_deref(), Some(r#"{"allow":["python"],"deny":[]}"#));
        let open = PolicyArgs { network: word("open"), ..Default::default() };
        assert_eq!(open.read_as_query().ok().flatten().as_deref(), Some("open"));
        let policy = PolicyArgs {
            network: word("open"),
            deny: vec![entry("*.corp.example")],
            ..Default::default()
        };
        let mut args = NetworkArgs { policy, ..Default::default() };
        assert!(args.ask().is_ok(), "nothing else was said");
        let expected = json!({ "allow": ["*"], "deny": ["*.corp.example"], "on_deny": "ask" });
        assert_eq!(read(args.policy), Some(expected));
        let both =
            PolicyArgs { network: word("none"), allow: vec![entry("go")], ..Default::default() };
        assert!(both.read().is_err());
    }
}

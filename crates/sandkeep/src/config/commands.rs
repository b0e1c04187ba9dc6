//! Whose requests are answered over NATS: `nats.commands` and what belongs to it, and `[purista]`.

use super::value::{self, Invalid};

/// Commands over NATS; none unless they are switched on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandSettings {
    pub enabled: bool,
    /// What reply subjects begin with; the usual inboxes if empty.
    pub inboxes: Vec<String>,
    pub accounts: Vec<NatsAccount>,
}

/// An account of the NATS server, and who its commands are from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatsAccount {
    pub name: String,
    pub organization: String,
    pub user: String,
    pub project: Option<String>,
}

impl NatsAccount {
    /// As it is written in the file.
    pub fn text(&self) -> String {
        let Self { name, organization, user, project } = self;
        let project = project.as_ref().map(|project| format!("/{project}")).unwrap_or_default();
        format!("{name}={organization}/{user}{project}")
    }
}

/// `NAME=ORGANIZATION/USER` or `NAME=ORGANIZATION/USER/PROJECT`.
pub fn accounts(text: &str) -> Result<Vec<NatsAccount>, Invalid> {
    let accounts: Vec<NatsAccount> =
        value::list(text).iter().map(|text| account(text)).collect::<Result<_, _>>()?;
    let twice = accounts
        .iter()
        .enumerate()
        .find(|(at, account)| accounts[..*at].iter().any(|earlier| earlier.name == account.name));
    match twice {
        Some((_, account)) => Err(Invalid::new(format!("{} is there twice", account.name))),
        None => Ok(accounts),
    }
}

fn account(text: &str) -> Result<NatsAccount, Invalid> {
    let wrong = || {
        Invalid::new(format!(
            "expected NAME=ORGANIZATION/USER or NAME=ORGANIZATION/USER/PROJECT, not {text:?}"
        ))
    };
    let (name, owner) = text.split_once('=').ok_or_else(wrong)?;
    let parts: Vec<&str> = owner.split('/').collect();
    let (organization, user, project) = match parts.as_slice() {
        [organization, user] => (*organization, *user, None),
        [organization, user, project] => (*organization, *user, Some(*project)),
        _ => return Err(wrong()),
    };
    let is_empty = [Some(organization), Some(user), project].contains(&Some(""));
    // A word of a subject.
    let plain = !name.contains('.') && value::subject_prefix(name).is_ok();
    if is_empty || !plain {
        return Err(wrong());
    }
    let own = str::to_owned;
    Ok(NatsAccount {
        name: own(name),
        organization: own(organization),
        user: own(user),
        project: project.map(own),
    })
}

/// First words of subjects.
pub fn inboxes(text: &str) -> Result<Vec<String>, Invalid> {
    value::list(text).iter().map(|text| value::subject_prefix(text)).collect()
}

/// On whose word a command of PURISTA is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PuristaTrust {
    /// The NATS server lets only those publish commands that may name any tenant.
    NatsPermissions,
}

impl PuristaTrust {
    pub const CHOICES: &[(&str, Self)] = &[("nats-permissions", Self::NatsPermissions)];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::NatsPermissions => "nats-permissions",
        }
    }
}

/// PURISTA's Sandbox service; not offered unless it is switched on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PuristaSettings {
    pub enabled: bool,
    pub trust: Option<PuristaTrust>,
    pub prefix: String,
}

impl Default for PuristaSettings {
    fn default() -> Self {
        Self { enabled: false, trust: None, prefix: "purista".to_owned() }
    }
}

/// What does not fit together: the key that is wrong, and how.
pub fn contradictions(
    has_server: bool,
    commands: &CommandSettings,
    purista: &PuristaSettings,
) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut wrong = |key: &str, problem: &str| found.push((key.to_owned(), problem.to_owned()));
    if commands.enabled && !has_server {
        wrong("nats.commands", "also needs nats.url");
    }
    if purista.enabled && !has_server {
        wrong("purista.enabled", "also needs nats.url");
    }
    if purista.enabled && purista.trust.is_none() {
        wrong(
            "purista.enabled",
            "whoever can publish PURISTA commands acts as any tenant: restrict that with permissions of the NATS server, then set purista.trust = \"nats-permissions\"",
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_a_word_and_an_owner() {
        let read = accounts("a=acme/ann, b=acme/bob/web").expect("two accounts");
        assert_eq!(read[1].project.as_deref(), Some("web"));
        assert_eq!(read[1].text(), "b=acme/bob/web");
        assert!(accounts("").expect("none").is_empty());
        for bad in [
            "a",
            "a=b",
            "a=b/",
            "a=/b",
            "a=b/c/d/e",
            "a=b/c/",
            "x.y=b/c",
            "*=b/c",
            "=b/c",
            "a=b/c,a=d/e",
        ] {
            assert!(accounts(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn purista_is_refused_without_trust_and_without_a_server() {
        let on = PuristaSettings { enabled: true, ..PuristaSettings::default() };
        let trusted = PuristaSettings { trust: Some(PuristaTrust::NatsPermissions), ..on.clone() };
        let none = CommandSettings::default();
        assert_eq!(contradictions(false, &none, &on).len(), 2);
        assert_eq!(contradictions(true, &none, &on).len(), 1);
        assert!(contradictions(true, &none, &trusted).is_empty());
        assert!(contradictions(false, &none, &PuristaSettings::default()).is_empty());
    }
}

//! The terms of a sandbox: the settings that can change during its life. Everything else is its [`Spec`], which never
//! changes.
//!
//! [`Spec`]: super::Spec

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::network::NetworkTerms;
use super::rules::RulesDraft;
use super::sandbox_name::SandboxName;
use super::spec::{InvalidSpec, SpecDraft, check_labels};
use crate::limits;

/// Action when a timeout of the sandbox expires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnTimeout {
    /// Destroy it with all its data.
    #[default]
    Destroy,
    /// End its processes; its files are kept, and start leads back.
    Stop,
    /// Freeze its processes; resume leads back.
    Pause,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    pub labels: BTreeMap<String, String>,
    /// Counted from the creation, the last start or the last keepalive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_secs: Option<u64>,
    /// Counted from the last activity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_secs: Option<u64>,
    #[serde(default)]
    pub on_timeout: OnTimeout,
    /// Maximum number of its snapshots; default: the daemon's maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_snapshots: Option<usize>,
    /// What it may reach.
    #[serde(default, skip_serializing_if = "NetworkTerms::is_default")]
    pub network: NetworkTerms,
    /// What it may do with its codebase; everything, if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<RulesDraft>,
}

/// Limits of sandbox lifetimes. `None` means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// For a sandbox that sets none.
    pub default_timeout: Option<Duration>,
    /// For a sandbox that sets none; it counts from the last activity.
    pub default_idle_timeout: Option<Duration>,
    /// No sandbox may ask for longer, and one that sets none gets at most this.
    pub max_timeout: Option<Duration>,
}

/// A change of terms, as a JSON merge patch (RFC 7396): omitted fields stay, `null` removes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PatchSandbox)]
pub struct TermsPatch {
    /// A new name. `null`: the one that is derived from its id.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<SandboxName>)]
    pub name: Option<Option<SandboxName>>,
    /// Labels to set; one that is `null` is removed, and `null` for all of them removes all.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<BTreeMap<String, Option<String>>>)]
    pub labels: Option<Option<BTreeMap<String, Option<String>>>>,
    /// Seconds until `on_timeout`, counted from now. `null`: none.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<u64>, minimum = 1)]
    pub timeout_secs: Option<Option<u64>>,
    /// Seconds without activity until `on_timeout`, counted from now. `null`: none.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<u64>, minimum = 1)]
    pub idle_timeout_secs: Option<Option<u64>>,
    /// `null`: the default, `destroy`.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<OnTimeout>)]
    pub on_timeout: Option<Option<OnTimeout>>,
    /// Maximum number of its snapshots. `null`: the daemon's maximum.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<usize>, minimum = 1)]
    pub max_snapshots: Option<Option<usize>>,
}

/// A field that is present, even if `null`.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

impl Terms {
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout_secs.map(Duration::from_secs)
    }

    pub fn idle_timeout(&self) -> Option<Duration> {
        self.idle_timeout_secs.map(Duration::from_secs)
    }

    /// The terms after a patch; unchanged if the patch is invalid.
    pub fn patched(&self, patch: &TermsPatch, bounds: &Timeouts) -> Result<Self, InvalidSpec> {
        let mut terms = self.clone();
        match &patch.labels {
            None => {}
            Some(None) => terms.labels.clear(),
            Some(Some(changes)) => {
                for (name, value) in changes {
                    match value {
                        Some(value) => terms.labels.insert(name.clone(), value.clone()),
                        None => terms.labels.remove(name),
                    };
                }
            }
        }
        terms.timeout_secs = patch.timeout_secs.unwrap_or(terms.timeout_secs);
        terms.idle_timeout_secs = patch.idle_timeout_secs.unwrap_or(terms.idle_timeout_secs);
        terms.max_snapshots = patch.max_snapshots.unwrap_or(terms.max_snapshots);
        terms.on_timeout = patch.on_timeout.map_or(terms.on_timeout, Option::unwrap_or_default);
        terms.check()?;
        bounds.check(&terms)?;
        Ok(terms)
    }

    fn check(&self) -> Result<(), InvalidSpec> {
        check_labels(&self.labels)?;
        check_secs("timeout_secs", self.timeout_secs)?;
        check_secs("idle_timeout_secs", self.idle_timeout_secs)?;
        match self.max_snapshots {
            Some(0) => {
                let problem = "there must be room for one; leave it out for the default".to_owned();
                Err(InvalidSpec { field: "max_snapshots", problem })
            }
            Some(_) | None => Ok(()),
        }
    }
}

impl SpecDraft {
    /// The requested terms, and defaults for the others.
    pub fn terms(&self, bounds: &Timeouts) -> Result<Terms, InvalidSpec> {
        let secs = |limit: Option<Duration>| limit.map(|limit| limit.as_secs());
        let terms = Terms {
            labels: self.labels.clone().unwrap_or_default(),
            timeout_secs: self
                .timeout_secs
                .or(secs(bounds.default_timeout))
                .or(secs(bounds.max_timeout)),
            idle_timeout_secs: self.idle_timeout_secs.or(secs(bounds.default_idle_timeout)),
            on_timeout: self.on_timeout.unwrap_or_default(),
            max_snapshots: self.max_snapshots,
            network: NetworkTerms::asked(
                self.network.as_ref(),
                self.secrets.as_ref(),
                self.env.as_ref(),
            )?,
            rules: self.rules.clone(),
        };
        terms.check()?;
        bounds.check(&terms)?;
        Ok(terms)
    }
}

impl Timeouts {
    fn check(&self, terms: &Terms) -> Result<(), InvalidSpec> {
        let Some(max) = self.max_timeout.map(|max| max.as_secs()) else { return Ok(()) };
        let wrong = |field, problem| Err(InvalidSpec { field, problem });
        let over = |secs| format!("{secs} is more than the {max} that this daemon allows");
        match (terms.timeout_secs, terms.idle_timeout_secs) {
            (Some(secs), _) if secs > max => wrong("timeout_secs", over(secs)),
            (_, Some(secs)) if secs > max => wrong("idle_timeout_secs", over(secs)),
            (Some(_), _) => Ok(()),
            (None, _) => {
                let problem = format!("this daemon allows at most {max}, so there must be one");
                wrong("timeout_secs", problem)
            }
        }
    }
}

fn check_secs(field: &'static str, secs: Option<u64>) -> Result<(), InvalidSpec> {
    let max = limits::TIMEOUT_MAX.as_secs();
    match secs {
        None => Ok(()),
        Some(secs) if (1..=max).contains(&secs) => Ok(()),
        Some(secs) => {
            let problem = format!("{secs} is not between 1 and {max}; leave it out for none");
            Err(InvalidSpec { field, problem })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Timeouts =
        Timeouts { default_timeout: None, default_idle_timeout: None, max_timeout: None };

    fn patch(text: &str) -> TermsPatch {
        serde_json::from_str(text).expect("a patch")
    }

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn a_patch_sets_removes_and_leaves_the_rest() {
        let before = Terms {
            labels: labels(&[("a", "1"), ("b", "2")]),
            timeout_secs: Some(60),
            idle_timeout_secs: Some(30),
            on_timeout: OnTimeout::Stop,
            max_snapshots: Some(3),
            network: NetworkTerms::default(),
            rules: None,
        };
        let after = |text: &str| before.patched(&patch(text), &FREE).expect("valid");
        assert_eq!(after("{}"), before);
        let changed = after(r#"{"labels": {"a": null, "c": "3"}, "timeout_secs": null}"#);
        let expected = labels(&[("b", "2"), ("c", "3")]);
        assert_eq!((changed.labels, changed.timeout_secs), (expected, None));
        assert_eq!(changed.idle_timeout_secs, Some(30));
        assert!(after(r#"{"labels": null}"#).labels.is_empty());
        assert_eq!(after(r#"{"on_timeout": null}"#).on_timeout, OnTimeout::Destroy);
        assert_eq!(after(r#"{"idle_timeout_secs": 5}"#).idle_timeout_secs, Some(5));
        assert_eq!(after(r#"{"max_snapshots": 5}"#).max_snapshots, Some(5));
        assert_eq!(after(r#"{"max_snapshots": null}"#).max_snapshots, None);
    }

    #[test]
    fn terms_that_cannot_be_kept_name_their_field() {
        let bounded = Timeouts { max_timeout: Some(Duration::from_secs(100)), ..FREE };
        for (text, field) in [
            (r#"{"timeout_secs": 0}"#, "timeout_secs"),
            (r#"{"timeout_secs": 101}"#, "timeout_secs"),
            (r#"{"timeout_secs": null}"#, "timeout_secs"),
            (r#"{"timeout_secs": 5, "idle_timeout_secs": 0}"#, "idle_timeout_secs"),
            (r#"{"timeout_secs": 5, "labels": {"": "x"}}"#, "labels"),
            (r#"{"timeout_secs": 5, "max_snapshots": 0}"#, "max_snapshots"),
        ] {
            let before = Terms { timeout_secs: Some(5), ..Terms::default() };
            let wrong = before.patched(&patch(text), &bounded).expect_err(text);
            assert_eq!(wrong.field, field, "{text}");
        }
        assert!(serde_json::from_str::<TermsPatch>(r#"{"on_timeout": "explode"}"#).is_err());
    }

    #[test]
    fn who_asks_for_no_timeout_gets_the_default_or_the_longest() {
        let secs = |secs| Some(Duration::from_secs(secs));
        let with = |default_timeout, max_timeout| {
            let bounds = Timeouts { default_timeout, max_timeout, ..FREE };
            SpecDraft::default().terms(&bounds).expect("valid").timeout_secs
        };
        assert_eq!(with(None, None), None);
        assert_eq!(with(secs(10), secs(20)), Some(10));
        assert_eq!(with(None, secs(20)), Some(20));
    }
}

//! Parses one value. Each parser reports what it expected; the caller adds where the text came from.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use reqwest::Url;

use super::commands::PuristaTrust;
use super::nats::UruleEvents;
use sandkeep_core::network::{InvalidEntry, IpRange, Network};
use sandkeep_core::{CodebaseServing, OnTimeout, Privilege, Scope, SnapshotName, limits};
use sandkeep_outgoing::{Allowed, InvalidAllowed};
use sandkeep_storage::{Dataset, InvalidDataset, NoStorage, StorageChoice};

/// What is wrong with a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct Invalid {
    problem: String,
}

impl Invalid {
    pub fn new(problem: impl Into<String>) -> Self {
        Self { problem: problem.into() }
    }
}

pub fn path(text: &str) -> Result<PathBuf, Invalid> {
    let path = PathBuf::from(text);
    if path.is_absolute() {
        Ok(path)
    } else {
        // A flag is relative to the user's current directory, which must not affect a daemon later.
        std::path::absolute(&path)
            .map_err(|e| Invalid::new(format!("{text:?} cannot be made an absolute path: {e}")))
    }
}

pub fn parsed<T: FromStr>(text: &str, expected: &str) -> Result<T, Invalid> {
    text.parse().map_err(|_| Invalid::new(format!("expected {expected}, not {text:?}")))
}

pub fn within(text: &str, range: RangeInclusive<u64>) -> Result<u64, Invalid> {
    let (min, max) = (range.start(), range.end());
    let number: u64 = parsed(text, &format!("a number from {min} to {max}"))?;
    if range.contains(&number) {
        Ok(number)
    } else {
        Err(Invalid::new(format!("{number} is not between {min} and {max}")))
    }
}

/// A built-in limit that the operator may lower; 0 keeps the default.
pub fn bound(text: &str, max: usize) -> Result<usize, Invalid> {
    let number = within(text, 0..=max as u64)?;
    let number = usize::try_from(number).expect("it is at most a usize");
    Ok(if number == 0 { max } else { number })
}

/// A prefix of snapshot names: with a number appended it must still be valid.
pub fn turn_prefix(text: &str) -> Result<SnapshotName, Invalid> {
    let name = parsed::<SnapshotName>(text, "a plain name")?;
    let longest = SnapshotName::of_turn(&name, u64::MAX);
    match longest.as_str().parse::<SnapshotName>() {
        Ok(_) => Ok(name),
        Err(_) => Err(Invalid::new("is too long for a turn name")),
    }
}

/// 0 means no quota.
pub fn quota(text: &str) -> Result<Option<u64>, Invalid> {
    let number: u64 = parsed(text, "a whole number, or 0 for no quota")?;
    Ok(Some(number).filter(|number| *number > 0))
}

/// 0 means no quota.
pub fn decimal_quota(text: &str) -> Result<Option<f64>, Invalid> {
    let number: f64 = parsed(text, "a number such as 2.5, or 0 for no quota")?;
    if number.is_finite() && number >= 0.0 {
        Ok(Some(number).filter(|number| *number > 0.0))
    } else {
        Err(Invalid::new(format!("{text} is not a number of 0 or more")))
    }
}

/// A fraction of 1.
pub fn part(text: &str) -> Result<f64, Invalid> {
    let number: f64 = parsed(text, "a number from 0 to 1 such as 0.85")?;
    if (0.0..=1.0).contains(&number) {
        Ok(number)
    } else {
        Err(Invalid::new(format!("{text} is not between 0 and 1")))
    }
}

pub fn positive_decimal(text: &str) -> Result<f64, Invalid> {
    decimal_quota(text)?.ok_or_else(|| Invalid::new("must be more than 0"))
}

/// 0 means none.
pub fn seconds(text: &str) -> Result<Option<Duration>, Invalid> {
    let number = within(text, 0..=limits::TIMEOUT_MAX.as_secs())?;
    Ok(Some(Duration::from_secs(number)).filter(|duration| !duration.is_zero()))
}

pub fn switch(text: &str) -> Result<bool, Invalid> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err(Invalid::new(format!("expected true or false, not {text:?}"))),
    }
}

pub fn codebase_serving(text: &str) -> Result<CodebaseServing, Invalid> {
    use CodebaseServing::{Auto, Fuse, Passthrough};
    choice(text, &[("auto", Auto), ("fuse", Fuse), ("passthrough", Passthrough)])
}

pub fn choice<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, Invalid> {
    if let Some((_, value)) = choices.iter().find(|(name, _)| *name == text) {
        return Ok(*value);
    }
    let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
    Err(Invalid::new(format!("expected one of {}, not {text:?}", names.join(", "))))
}

pub fn storage(text: &str) -> Result<StorageChoice, Invalid> {
    text.parse().map_err(|error: NoStorage| Invalid::new(error.to_string()))
}

pub fn purista_trust(text: &str) -> Result<PuristaTrust, Invalid> {
    choice(text, PuristaTrust::CHOICES)
}

pub fn privilege(text: &str) -> Result<Privilege, Invalid> {
    choice(text, &[("none", Privilege::None), ("root", Privilege::Root)])
}

pub fn on_timeout(text: &str) -> Result<OnTimeout, Invalid> {
    use OnTimeout::{Destroy, Pause, Stop};
    choice(text, &[("destroy", Destroy), ("stop", Stop), ("pause", Pause)])
}

/// `none`, `open`, entries separated by commas, or a policy as JSON.
pub fn network(text: &str) -> Result<Network, Invalid> {
    let read = match text.trim() {
        word @ ("none" | "open") => serde_json::from_value(word.into()),
        policy if policy.starts_with('{') => serde_json::from_str(policy),
        entries => {
            let entries: Vec<&str> = entries.split(',').map(str::trim).collect();
            serde_json::from_value(serde_json::json!({ "allow": entries }))
        }
    };
    read.map_err(|error| Invalid::new(error.to_string()))
}

pub fn ip_ranges(text: &str) -> Result<Vec<IpRange>, Invalid> {
    let range = |text: &str| {
        text.trim().parse().map_err(|error: InvalidEntry| Invalid::new(error.to_string()))
    };
    text.split(',').filter(|text| !text.trim().is_empty()).map(range).collect()
}

/// A level, or a filter by module.
pub fn log(text: &str) -> Result<String, Invalid> {
    let text = match text {
        // Names of these levels in other programs.
        "silent" => "off",
        "fatal" => "error",
        "warning" => "warn",
        other => other,
    };
    let levels = ["off", "error", "warn", "info", "debug", "trace"];
    let is_level = levels.iter().any(|level| level.eq_ignore_ascii_case(text));
    let is_filter = text.contains(['=', ',']) || text.starts_with("sandkeep");
    if !is_level && !is_filter {
        let problem = format!("expected {} or a filter, not {text:?}", levels.join(", "));
        return Err(Invalid::new(problem));
    }
    let filter = tracing_subscriber::EnvFilter::try_new(text);
    filter.map_err(|e| Invalid::new(e.to_string()))?;
    Ok(text.to_owned())
}

/// The domain below which every sandbox port gets a host name.
pub fn domain(text: &str) -> Result<String, Invalid> {
    let text = text.trim_end_matches('.').to_ascii_lowercase();
    let label = |label: &str| {
        let fine = |c: char| c.is_ascii_alphanumeric() || c == '-';
        (1..=63).contains(&label.len())
            && label.chars().all(fine)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if text.len() <= limits::DOMAIN_MAX_BYTES && text.split('.').all(label) {
        Ok(text)
    } else {
        Err(Invalid::new("expected a host name such as sandboxes.example.com"))
    }
}

pub fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

/// A list, possibly empty.
pub fn paths(text: &str) -> Result<Vec<PathBuf>, Invalid> {
    list(text).iter().map(|text| path(text)).collect()
}

/// A list, possibly empty.
pub fn datasets(text: &str) -> Result<Vec<Dataset>, Invalid> {
    let invalid = |problem: InvalidDataset| Invalid::new(problem.to_string());
    list(text).iter().map(|text| text.parse().map_err(invalid)).collect()
}

/// A list of names in any order, possibly empty.
pub fn names(text: &str) -> Result<Vec<String>, Invalid> {
    Ok(list(text))
}

pub fn scopes(text: &str) -> Result<Vec<Scope>, Invalid> {
    let choices = Scope::ALL.map(|scope| (scope.as_str(), scope));
    list(text).iter().map(|name| choice(name, &choices)).collect()
}

/// Origins as a browser writes them.
pub fn origins(text: &str) -> Result<Vec<String>, Invalid> {
    list(text).iter().map(|origin| self::origin(origin)).collect()
}

fn origin(text: &str) -> Result<String, Invalid> {
    if text == "*" {
        let problem = "\"*\" would let every web page use this daemon: list each origin";
        return Err(Invalid::new(problem));
    }
    let wrong = || {
        Invalid::new(format!("expected an origin such as https://app.example.com, not {text:?}"))
    };
    let url: Url = text.parse().map_err(|_| wrong())?;
    let origin = url.origin();
    let plain = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
    let anonymous = url.username().is_empty() && url.password().is_none();
    if matches!(url.scheme(), "http" | "https") && origin.is_tuple() && plain && anonymous {
        Ok(origin.ascii_serialization())
    } else {
        Err(wrong())
    }
}

/// Hosts and networks that may be called.
pub fn allowed(text: &str) -> Result<Vec<Allowed>, Invalid> {
    let read =
        |item: &String| item.parse().map_err(|e: InvalidAllowed| Invalid::new(e.to_string()));
    list(text).iter().map(read).collect()
}

pub fn nats_url(text: &str) -> Result<String, Invalid> {
    let wrong = || Invalid::new("expected nats://HOST:PORT or tls://HOST:PORT");
    for server in list(text) {
        let url: Url = server.parse().map_err(|_| wrong())?;
        if !matches!(url.scheme(), "nats" | "tls") || url.host().is_none() {
            return Err(wrong());
        }
    }
    Ok(text.to_owned())
}

/// What subjects begin with: words between dots, without wildcards.
pub fn subject_prefix(text: &str) -> Result<String, Invalid> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let word = |word: &str| !word.is_empty() && word.chars().all(fine);
    if text.len() <= limits::NATS_PREFIX_MAX_BYTES && text.split('.').all(word) {
        Ok(text.to_owned())
    } else {
        Err(Invalid::new(
            "expected words of letters, digits, `-` and `_` with dots between them, such as sandkeep",
        ))
    }
}

pub fn stream_name(text: &str) -> Result<String, Invalid> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let fits = (1..=limits::NATS_STREAM_NAME_MAX_BYTES).contains(&text.len());
    if fits && text.chars().all(fine) {
        Ok(text.to_owned())
    } else {
        Err(Invalid::new("expected letters, digits, `-` and `_`, such as SANDKEEP"))
    }
}

pub fn urule_events(text: &str) -> Result<UruleEvents, Invalid> {
    choice(text, UruleEvents::CHOICES)
}

/// A URL that the administrator has us call.
pub fn outgoing_url(text: &str) -> Result<String, Invalid> {
    match sandkeep_outgoing::url(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(Invalid::new(error.to_string())),
    }
}

/// A list of URLs with whatever lets one in taken out.
pub fn without_credentials(text: &str) -> String {
    let masked = |server: String| match server.parse::<Url>() {
        Ok(url) if url.username().is_empty() && url.password().is_none() => server,
        Ok(mut url) => {
            // Both fail only for URLs without a host, which have no credentials.
            let _ = url.set_username("***");
            let _ = url.set_password(None);
            url.to_string()
        }
        Err(_) => "***".to_owned(),
    };
    list(text).into_iter().map(masked).collect::<Vec<_>>().join(",")
}

/// The name of a runtime, a template or a profile.
pub fn name(text: &str) -> Result<String, Invalid> {
    if text.trim().is_empty() { Err(Invalid::new("is empty")) } else { Ok(text.to_owned()) }
}

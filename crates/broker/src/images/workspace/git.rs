//! Clones a repository inside the sandbox, as `user`: whatever a repository can make git do is confined there. A
//! repository of the
//! host is placed beside its clone temporarily. A remote one comes through the gateway, which lets the sandbox reach its
//! host and nothing else meanwhile.

use bytes::Bytes;

use super::opening::{Remote, without_git};
use crate::error::Error;
use crate::execs::{ExecContext, Wanted};
use crate::lifecycle::supervisor::Supervisor;
use crate::network::CloneTrouble;
use sandkeep_core::{ExecId, GitUrl, HOME, Privilege, limits};
use sandkeep_guestlink::{ExecLimits, ExecRequest, Guest, Outcome, Stdin};

/// The user that clones. Numeric, because an image may have no user names.
const USER: &str = "1000:1000";

/// The exit code of a missing command.
const NOT_FOUND: i32 = 127;

/// Git's environment: never prompt, fetch only the repository, and print messages in the language that is parsed below.
const ENV: [(&str, &str); 4] =
    [("HOME", HOME), ("GIT_TERMINAL_PROMPT", "0"), ("GIT_LFS_SKIP_SMUDGE", "1"), ("LC_ALL", "C")];

/// Variables that would redirect git or make it trust other certificates. They may be set in a sandbox's environment,
/// for later use.
fn misleads(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let ours = ENV.iter().any(|(known, _)| known.eq_ignore_ascii_case(&name));
    !ours && (name.starts_with("git_") || name.ends_with("_proxy"))
}

/// Git's messages for a reference that does not exist.
const NO_REFERENCE: [&str; 4] =
    ["invalid reference", "unable to read tree", "did not match any", "unknown revision"];
/// Git's messages for a repository that requires authentication.
const PRIVATE: [&str; 5] = [
    "could not read username",
    "could not read password",
    "authentication failed",
    "returned error: 401",
    "returned error: 403",
];

/// How a command ended, and the end of its output.
struct CommandEnd {
    outcome: Outcome,
    said: String,
}

/// A command that failed.
struct FailedCommand {
    what: String,
    ended: CommandEnd,
}

impl FailedCommand {
    fn says(&self, words: &[&str]) -> bool {
        let said = self.ended.said.to_ascii_lowercase();
        words.iter().any(|words| said.contains(words))
    }

    fn problem(&self, template: &str) -> String {
        match self.ended.outcome {
            Outcome::Exited(NOT_FOUND) => without_git(template),
            ref outcome => {
                format!("{}, inside, {}: {}", self.what, how(outcome), self.ended.said.trim())
            }
        }
    }
}

impl Supervisor {
    /// Clones the repository that was placed beside.
    pub(super) async fn clone_inside(
        &self,
        guest: &dyn Guest,
        url: &GitUrl,
        aside: &str,
        path: &str,
    ) -> Result<(), Error> {
        let argv = [&["git"], &how_to_clone(url)[..], &["--", aside, path]].concat();
        self.must(guest, &argv).await?;
        self.check_out(guest, url, path).await?;
        self.must(guest, &["git", "-C", path, "remote", "set-url", "origin", url.url()]).await?;
        self.must(guest, &["rm", "-rf", "--", aside]).await
    }

    /// Clones a remote repository.
    pub(super) async fn clone_remote(
        &self,
        guest: &dyn Guest,
        remote: &Remote,
        path: &str,
    ) -> Result<(), Error> {
        let Remote { url, rules, trust, aside } = remote;
        let network = self.open_network_of_clone(rules.clone()).await?;
        let mut options = vec![
            "http.proxy=".to_owned(),
            "http.sslVerify=true".to_owned(),
            "http.followRedirects=initial".to_owned(),
            "credential.helper=".to_owned(),
            "protocol.allow=never".to_owned(),
            "protocol.https.allow=always".to_owned(),
        ];
        if !trust.is_empty() {
            options.push(format!("http.sslCAInfo={aside}/{}", super::TRUST));
        }
        let mut argv = vec!["git"];
        options.iter().for_each(|option| argv.extend(["-c", option]));
        let argv = [&argv[..], &how_to_clone(url), &["--", url.url(), path]].concat();
        let cloned = self.run_inside(guest, &argv).await;
        let trouble = network.close();
        if let Err(broken) = cloned? {
            return Err(self.unclonable(url, broken, trouble));
        }
        self.check_out(guest, url, path).await?;
        self.must(guest, &["rm", "-rf", "--", aside]).await
    }

    /// A branch is checked out as a tracking branch, as a clone does; everything else as a detached HEAD.
    async fn check_out(&self, guest: &dyn Guest, url: &GitUrl, path: &str) -> Result<(), Error> {
        let Some(reference) = url.reference() else { return Ok(()) };
        let argv = ["git", "-C", path, "checkout", "--quiet", reference, "--"];
        match self.run_inside(guest, &argv).await? {
            Ok(()) => Ok(()),
            Err(broken) if broken.says(&NO_REFERENCE) => Err(Error::ReferenceNotFound {
                url: url.url().to_owned(),
                reference: reference.to_owned(),
            }),
            Err(broken) => Err(self.invalid(&broken)),
        }
    }

    fn invalid(&self, broken: &FailedCommand) -> Error {
        Error::SourceInvalid { problem: broken.problem(self.meta.spec.template()) }
    }

    /// Why a remote repository could not be cloned. The gateway's own findings take precedence over git's messages.
    fn unclonable(
        &self,
        url: &GitUrl,
        broken: FailedCommand,
        trouble: Option<CloneTrouble>,
    ) -> Error {
        let url = url.url().to_owned();
        match trouble {
            Some(CloneTrouble::Refused { place, reason }) => {
                let problem = format!(
                    "the clone of {url} leads to {place}, and reaches the host of its URL only: {reason}"
                );
                return Error::SourceInvalid { problem };
            }
            Some(CloneTrouble::Unreachable { problem }) => {
                return Error::SourceUnavailable { problem };
            }
            Some(CloneTrouble::TooMuch) => {
                let max = limits::SOURCE_MAX_BYTES;
                let problem = format!("cloning {url} takes more than {max} bytes");
                return Error::SourceInvalid { problem };
            }
            None => {}
        }
        if broken.says(&PRIVATE) {
            return Error::RepositoryPrivate { url };
        }
        if broken.says(&["repository"]) && broken.says(&["not found"]) {
            return Error::RepositoryNotFound { url };
        }
        if broken.says(&["certificate", "ssl", "tls", "unable to access"]) {
            let problem = broken.problem(self.meta.spec.template());
            return Error::SourceUnavailable { problem };
        }
        self.invalid(&broken)
    }

    /// Runs a command that is not expected to fail.
    async fn must(&self, guest: &dyn Guest, argv: &[&str]) -> Result<(), Error> {
        self.run_inside(guest, argv).await?.map_err(|broken| self.invalid(&broken))
    }

    /// Runs a command to its end.
    async fn run_inside(
        &self,
        guest: &dyn Guest,
        argv: &[&str],
    ) -> Result<Result<(), FailedCommand>, Error> {
        let wanted = Wanted {
            env: ENV.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            cwd: Some(HOME.to_owned()),
            user: Some(USER.to_owned()),
        };
        let ExecContext { mut env, cwd, user } = ExecContext::fill(&self.meta.spec, wanted)?;
        env.retain(|(name, _)| !misleads(name));
        let argv: Vec<String> = argv.iter().map(|&argument| argument.to_owned()).collect();
        let what = argv.join(" ");
        let request = ExecRequest {
            id: ExecId::random(),
            argv,
            env,
            cwd,
            user,
            stdin: Stdin::Null,
            terminal: None,
            timeout: Some(limits::SOURCE_GIT),
            privilege: Privilege::None,
            limits: ExecLimits::default(),
        };
        let ended = tokio::select! {
            ended = to_the_end(guest, request) => ended?,
            () = self.shared.closing.cancelled() => return Err(Error::ShuttingDown),
        };
        match ended.outcome {
            Outcome::Exited(0) => Ok(Ok(())),
            _ => Ok(Err(FailedCommand { what, ended })),
        }
    }
}

/// The remaining arguments of a clone; the checkout follows later.
fn how_to_clone(url: &GitUrl) -> Vec<&'static str> {
    match url.reference() {
        None => vec!["clone", "--quiet"],
        Some(_) => vec!["clone", "--quiet", "--no-checkout"],
    }
}

async fn to_the_end(guest: &dyn Guest, request: ExecRequest) -> Result<CommandEnd, Error> {
    let mut said = Vec::new();
    let take = |data: Bytes| {
        said.extend_from_slice(&data);
        let over = said.len().saturating_sub(limits::SOURCE_SAID_MAX_BYTES);
        said.drain(..over);
    };
    let end = guest.exec(request).await?.collect(take).await;
    let said = end.error.unwrap_or_else(|| String::from_utf8_lossy(&said).into_owned());
    Ok(CommandEnd { outcome: end.outcome, said })
}

fn how(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Exited(code) => format!("exited with {code}"),
        Outcome::Signaled(signal) => format!("was ended by signal {signal}"),
        Outcome::TimedOut => format!("took more than {} s", limits::SOURCE_GIT.as_secs()),
        Outcome::OomKilled => "ran out of memory".to_owned(),
        Outcome::Canceled | Outcome::Lost => "was cut off".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_the_environment_leads_git_elsewhere() {
        for name in ["GIT_SSL_NO_VERIFY", "GIT_CONFIG_COUNT", "https_proxy", "NO_PROXY"] {
            assert!(misleads(name), "{name}");
        }
        for name in ["PATH", "LANG", "HOME", "GIT_TERMINAL_PROMPT", "GITHUB"] {
            assert!(!misleads(name), "{name}");
        }
    }
}

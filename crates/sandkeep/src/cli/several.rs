//! One or several sandboxes as the subject of a verb: by name, by id, or all that match a filter.

use std::future::Future;

use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use crate::cli::failure::Failure;
use crate::cli::filter::Filter;
use crate::cli::{Format, print, spinner};
use sandkeep_client::Client;
use sandkeep_core::{SandboxId, State, limits::CLI_SANDBOXES_AT_ONCE};

#[derive(Debug, clap::Args)]
pub struct Subjects {
    /// Sandbox names, ids or unique prefixes of ids
    #[arg(required_unless_present_any = ["all", "labels"], value_name = "ID")]
    pub ids: Vec<String>,
    /// All your sandboxes that this applies to, or those of them that match the filters below
    #[arg(long, conflicts_with = "ids")]
    pub all: bool,
    #[command(flatten)]
    pub filter: Filter,
}

/// How the subjects were given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// One by one. Each is looked up when its turn comes, so that a wrong one does not affect the others.
    Named(Vec<String>),
    /// By `--all` or a filter; these were found.
    Found(Vec<String>),
}

impl Chosen {
    pub fn texts(&self) -> &[String] {
        match self {
            Self::Named(texts) | Self::Found(texts) => texts,
        }
    }
}

impl Subjects {
    /// The subjects, each once. By `--all` and filters only sandboxes in one of `states` are found, unless `--state`
    /// says otherwise.
    pub async fn choose(self, states: &[State], client: &Client) -> Result<Chosen, Failure> {
        if !self.ids.is_empty() {
            return self.named().map(Chosen::Named);
        }
        let mut query = self.filter.query();
        if self.filter.states.is_empty() {
            query.extend(states.iter().map(|state| ("state", state.to_string())));
        }
        let found = client.sandboxes(&query).await?;
        if found.is_empty() {
            print::note("no sandbox matches");
        }
        Ok(Chosen::Found(found.into_iter().map(|sandbox| String::from(sandbox.id)).collect()))
    }

    fn named(self) -> Result<Vec<String>, Failure> {
        if !self.filter.is_empty() {
            let problem = "--label, --state and --project select sandboxes; leave out the ids";
            return Err(Failure::Usage { problem: problem.to_owned() });
        }
        let mut once = Vec::with_capacity(self.ids.len());
        for id in self.ids {
            if !once.contains(&id) {
                once.push(id);
            }
        }
        Ok(once)
    }
}

/// Does `work` for each of them, several at once; one failure does not affect the others. Returns the answers, in the
/// order of the subjects, and how many failed; each failure was reported. The failure of a single subject is the result.
pub async fn each<F, T>(
    chosen: &Chosen,
    doing: &'static str,
    work: impl Fn(String) -> F,
) -> Result<(Vec<T>, usize), Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let texts = chosen.texts();
    let all = stream::iter(texts.to_vec()).map(work).buffered(CLI_SANDBOXES_AT_ONCE);
    let results: Vec<Result<T, Failure>> = spinner::during(doing, all.collect()).await;
    let (mut done, mut failed) = (Vec::new(), 0);
    for result in results {
        match result {
            Ok(answer) => done.push(answer),
            Err(failure) if texts.len() == 1 => return Err(failure),
            Err(failure) => {
                print::note(&failure.line());
                failed += 1;
            }
        }
    }
    Ok((done, failed))
}

/// Requests a verb for each of them and shows the sandboxes afterwards: ids, or with `--json` one sandbox if one was
/// named, and else a list.
pub async fn ask(
    verb: &str,
    doing: &'static str,
    chosen: Chosen,
    body: &Value,
    format: Format,
    client: &Client,
) -> Result<(), Failure> {
    let post = |text: String| async move {
        let id = client.resolve(&text).await?;
        let answer = client.post(&format!("/api/v1/sandboxes/{id}/{verb}"), body).await?;
        Ok::<(SandboxId, Value), Failure>((id, answer))
    };
    let (done, failed) = each(&chosen, doing, post).await?;
    match (format.json, &chosen, &*done) {
        (true, Chosen::Named(texts), [(_, sandbox)]) if texts.len() == 1 => print::json(sandbox)?,
        (true, ..) => {
            let items: Vec<&Value> = done.iter().map(|(_, sandbox)| sandbox).collect();
            print::json(&json!({ "items": items }))?;
        }
        (false, ..) => done.iter().try_for_each(|(id, _)| print::line(id.as_str()))?,
    }
    match failed {
        0 => Ok(()),
        failed => Err(Failure::Some { failed, all: chosen.texts().len() }),
    }
}

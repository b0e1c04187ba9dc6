//! `run --ask`: connections of the command that its policy does not allow wait for an answer in this terminal.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::sync::Arc;

use crate::cli::failure::Failure;
use crate::cli::print;
use sandkeep_broker::{Broker, EventFeed, EventFilter, Fed};
use sandkeep_client::{Client, EventStream, EventsRequest};
use sandkeep_core::event::{KindPattern, Kinds};
use sandkeep_core::network::{Choice, PendingRequest};
use sandkeep_core::{Principal, SandboxId};

/// The event after which there is something to ask.
const REQUESTED: &str = "network.requested";

/// The terminal of whoever decides. It is not our stdin, which may be a file for the command.
#[derive(Clone)]
pub struct Terminal(Arc<File>);

impl Terminal {
    pub fn open() -> Result<Self, Failure> {
        let open = OpenOptions::new().read(true).write(true).open("/dev/tty");
        let refused = |error: io::Error| Failure::Usage {
            problem: format!("--ask needs a terminal to ask in: {error}"),
        };
        Ok(Self(Arc::new(open.map_err(refused)?)))
    }

    /// Asks until the answer is one. Without an answer, nothing is allowed.
    async fn ask(&self, request: &PendingRequest) -> Choice {
        let (terminal, question) = (Arc::clone(&self.0), question(request));
        let answer = tokio::task::spawn_blocking(move || answer(&terminal, &question)).await;
        answer.ok().and_then(Result::ok).unwrap_or(Choice::Refuse)
    }
}

fn question(request: &PendingRequest) -> String {
    let PendingRequest { host, port, why, .. } = request;
    // It comes from inside: it must not be able to write anywhere else on the screen.
    let visible = |text: &str| text.chars().filter(|c| !c.is_control()).collect::<String>();
    let why = why.as_deref().map(|why| format!(" ({})", visible(why))).unwrap_or_default();
    format!(
        "sandkeep: allow {}:{port}{why}? [o]nce, [a]lways for this sandbox, [n]o: ",
        visible(host)
    )
}

fn answer(mut terminal: &File, question: &str) -> io::Result<Choice> {
    let mut lines = BufReader::new(terminal);
    loop {
        terminal.write_all(question.as_bytes())?;
        let mut line = String::new();
        if lines.read_line(&mut line)? == 0 {
            return Ok(Choice::Refuse);
        }
        if let Some(choice) = choice(&line) {
            return Ok(choice);
        }
    }
}

fn choice(line: &str) -> Option<Choice> {
    match line.trim().to_ascii_lowercase().as_str() {
        "o" | "once" | "y" | "yes" => Some(Choice::Once),
        "a" | "always" => Some(Choice::Always),
        "n" | "no" => Some(Choice::Refuse),
        _ => None,
    }
}

/// Who has the sandbox.
pub enum Keeper {
    Broker(Broker),
    Daemon(Client),
}

/// Tells that there is something new to ask about.
enum News {
    Here(EventFeed),
    There(EventStream),
}

impl News {
    async fn next(&mut self) -> Result<(), Failure> {
        match self {
            Self::Here(feed) => loop {
                match feed.next().await.map_err(Failure::system("read the events"))? {
                    Some(Fed::Event(_) | Fed::Gap { .. }) => return Ok(()),
                    Some(Fed::UpTo(_)) => {}
                    None => std::future::pending().await,
                }
            },
            Self::There(stream) => stream.next().await.map(drop).map_err(Failure::from),
        }
    }
}

impl Keeper {
    async fn news(&self, id: &SandboxId) -> Result<News, Failure> {
        let kind: KindPattern = REQUESTED.parse().expect("a test has it");
        match self {
            Self::Broker(broker) => {
                let sandbox = Some(id.clone());
                let filter = EventFilter { kinds: Kinds(vec![kind]), sandbox, project: None };
                Ok(News::Here(broker.follow_events(&Principal::local(), filter, None)?))
            }
            Self::Daemon(client) => {
                let sandbox = Some(id.clone());
                let request = EventsRequest { kinds: vec![kind], sandbox, ..Default::default() };
                Ok(News::There(client.follow_events(&request).await?))
            }
        }
    }

    async fn requests(&self, id: &SandboxId) -> Result<Vec<PendingRequest>, Failure> {
        match self {
            Self::Broker(broker) => Ok(broker.network_requests(&Principal::local(), id)?),
            Self::Daemon(client) => Ok(client.network_requests(id).await?),
        }
    }

    async fn decide(&self, id: &SandboxId, request: u64, choice: Choice) -> Result<(), Failure> {
        match self {
            Self::Broker(broker) => {
                let who = Principal::local();
                Ok(broker.decide_network_request(&who, id, request, choice).await?)
            }
            Self::Daemon(client) => Ok(client.decide_network_request(id, request, choice).await?),
        }
    }
}

/// Asks about every request of a sandbox, until this is dropped.
pub async fn about(keeper: Keeper, id: SandboxId, terminal: Terminal) {
    if let Err(failure) = ask_all(&keeper, &id, &terminal).await {
        print::note(&format!("cannot ask about connections any more: {}", failure.line()));
    }
}

async fn ask_all(keeper: &Keeper, id: &SandboxId, terminal: &Terminal) -> Result<(), Failure> {
    // Before the first look: what is asked in between wakes us.
    let mut news = keeper.news(id).await?;
    let mut asked = HashSet::new();
    loop {
        for request in keeper.requests(id).await? {
            if !asked.insert(request.id) {
                continue;
            }
            let choice = terminal.ask(&request).await;
            if let Err(failure) = keeper.decide(id, request.id, choice).await {
                // It may have waited for too long.
                print::note(&failure.line());
            }
        }
        news.next().await?;
    }
}

#[cfg(test)]
mod tests {
    use sandkeep_core::event::EventKind;

    use super::*;

    #[test]
    fn the_event_that_is_waited_for_exists() {
        assert!(EventKind::NAMES.contains(&REQUESTED));
    }

    #[test]
    fn answers_are_understood_and_nothing_else_allows_anything() {
        assert_eq!(choice("o\n"), Some(Choice::Once));
        assert_eq!(choice(" Always "), Some(Choice::Always));
        assert_eq!(choice("n"), Some(Choice::Refuse));
        for other in ["", "ok", "1", "on"] {
            assert_eq!(choice(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_question_has_no_control_characters_of_the_sandbox() {
        let request = PendingRequest {
            id: 1,
            host: "a.example".to_owned(),
            port: 443,
            why: Some("\u{1b}[2Jplease\r\n".to_owned()),
            asked_at: jiff::Timestamp::UNIX_EPOCH,
            expires_at: jiff::Timestamp::UNIX_EPOCH,
            waiting: 1,
        };
        let question = question(&request);
        assert!(!question.chars().any(char::is_control), "{question:?}");
        assert!(question.contains("a.example:443 ([2Jplease)"), "{question}");
    }
}

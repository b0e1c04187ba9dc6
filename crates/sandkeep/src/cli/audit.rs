//! `sandkeep audit`: who did what. On the data directory itself, whether or not a daemon runs on it, or through the API.

use std::path::Path;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cli::argument::InvalidArgument;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::keys::{DataLocation, Way};
use crate::cli::version::VERSION;
use crate::cli::{Format, Global, argument, print, with_one_thread};
use crate::config::Surroundings;
use sandkeep_audit::{
    Entry, Filter, Finding, Head, Outcome, Reader, Record, Request, to_ocsf, verify_against,
};
use sandkeep_broker::error::Error;
use sandkeep_client::{Client, Lines};
use sandkeep_core::limits::{AUDIT_TICK, PAGE_MAX};

/// Show, export and verify the audit log
///
/// Works on the data directory, also while the daemon runs. With --url or SANDKEEP_URL, and without --data-dir, it uses
/// the API and needs an admin key in SANDKEEP_API_KEY.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: AuditCommand,
}

#[derive(Debug, Subcommand)]
enum AuditCommand {
    /// List the records, oldest first
    Ls(ReadArgs),
    /// Print the last records
    Tail(TailArgs),
    /// Print all records, one JSON object per line
    Export(ExportArgs),
    /// Check the hash chain and print the first bad record
    Verify(VerifyArgs),
    /// Print the number and hash of the newest record, to be noted elsewhere
    Head(HeadArgs),
}

#[derive(Clone, Debug, clap::Args)]
struct Which {
    /// Only from this time on: a time (2030-01-31T12:00:00Z) or how long ago (24h, 7d)
    #[arg(long, value_name = "WHEN", value_parser = moment)]
    since: Option<Timestamp>,
    /// Only before this time
    #[arg(long, value_name = "WHEN", value_parser = moment)]
    until: Option<Timestamp>,
    /// Only requests by this organization, or by ORGANIZATION/USER
    #[arg(long, value_name = "OWNER")]
    owner: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RecordFormat {
    /// The records as they are in the log
    Ndjson,
    /// Open Cybersecurity Schema Framework: API Activity
    Ocsf,
}

#[derive(Debug, clap::Args)]
struct ReadArgs {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    place: DataLocation,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct TailArgs {
    /// Follow the log
    #[arg(long, short = 'f')]
    follow: bool,
    /// How many records
    #[arg(long, short = 'n', value_name = "N", default_value_t = 10)]
    lines: usize,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    place: DataLocation,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct ExportArgs {
    #[arg(long, value_enum, default_value_t = RecordFormat::Ndjson)]
    format: RecordFormat,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    place: DataLocation,
}

#[derive(Debug, clap::Args)]
struct VerifyArgs {
    /// A head that was noted elsewhere, as `sandkeep audit head` prints it
    #[arg(long, value_name = "SEQ:HASH", value_parser = head_of)]
    head: Option<Head>,
    #[command(flatten)]
    place: DataLocation,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct HeadArgs {
    #[command(flatten)]
    place: DataLocation,
    #[command(flatten)]
    format: Format,
}

fn moment(text: &str) -> Result<Timestamp, InvalidArgument> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    let now = Timestamp::now();
    let later = argument::expiry(text)?;
    let ago = Duration::try_from(later.duration_since(now)).unwrap_or_default();
    now.checked_sub(ago).map_err(|_| InvalidArgument::Expiry)
}

fn head_of(text: &str) -> Result<Head, InvalidArgument> {
    let (seq, hash) = text.split_once(':').ok_or(InvalidArgument::AuditHead)?;
    match (seq.parse(), hash.parse()) {
        (Ok(seq), Ok(hash)) => Ok(Head { seq, hash }),
        _ => Err(InvalidArgument::AuditHead),
    }
}

pub fn run(args: Args, global: &Global, around: &Surroundings) -> Result<Exit, Failure> {
    with_one_thread(async {
        match args.command {
            AuditCommand::Ls(ReadArgs { which, place, format }) => {
                let mut source = RecordSource::open(place.way(global, around)?, &which).await?;
                list(&mut source, format.json).await
            }
            AuditCommand::Export(ExportArgs { format, which, place }) => {
                let mut source = RecordSource::open(place.way(global, around)?, &which).await?;
                export(&mut source, format).await
            }
            AuditCommand::Tail(args) => {
                let way = args.place.way(global, around)?;
                let mut source = RecordSource::open(way, &args.which).await?;
                tail(&mut source, args.lines, args.follow, args.format.json).await
            }
            AuditCommand::Verify(VerifyArgs { head, place, format }) => {
                match place.way(global, around)? {
                    Way::Directory(directory) => check(&directory, head, format.json),
                    Way::Api(_) => Err(Failure::Usage {
                        problem: "the log is verified where it is: use --data-dir".to_owned(),
                    }),
                }
            }
            AuditCommand::Head(HeadArgs { place, format }) => {
                show_head(place.way(global, around)?, format.json).await
            }
        }
    })
}

/// Where records come from, in order.
struct RecordSource {
    filter: Filter,
    after: u64,
    from: From,
}

enum From {
    Directory { reader: Box<Reader>, path: String },
    Api(Client),
}

impl RecordSource {
    async fn open(way: Way, which: &Which) -> Result<Self, Failure> {
        let Which { since, until, owner } = which.clone();
        let filter = Filter { since, until, owner };
        let from = match way {
            Way::Directory(path) => From::Directory {
                reader: Box::new(Reader::open(&path, 0)),
                path: path.display().to_string(),
            },
            Way::Api(client) => From::Api(client),
        };
        Ok(Self { filter, after: 0, from })
    }

    /// The next records, a bounded number of them; `None` at the end.
    async fn next(&mut self) -> Result<Option<Vec<Record>>, Failure> {
        let query = self.query(false);
        match &mut self.from {
            From::Directory { reader, path } => {
                let unusable = |source| Error::DataDir { path: path.clone(), source };
                let mut records = reader.read().map_err(unusable)?;
                if records.is_empty() {
                    return Ok(None);
                }
                records.retain(|record| self.filter.takes(record));
                Ok(Some(records))
            }
            From::Api(client) => {
                let mut response = client.get_live("/api/v1/audit", &query).await?;
                let mut bytes = Vec::new();
                while let Some(chunk) =
                    response.chunk().await.map_err(|error| client.broke_off(error))?
                {
                    bytes.extend_from_slice(&chunk);
                }
                let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
                let read = |line| serde_json::from_slice::<Record>(line);
                let records: Result<Vec<Record>, _> = lines.map(read).collect();
                let records = records.map_err(|error| client.not_sandkeep(error))?;
                self.after = records.last().map_or(self.after, |record| record.seq);
                Ok(Some(records).filter(|records| !records.is_empty()))
            }
        }
    }

    fn query(&self, follow: bool) -> Vec<(&'static str, String)> {
        let Filter { since, until, owner } = &self.filter;
        let mut query = vec![("after", self.after.to_string())];
        query.extend(since.map(|since| ("since", since.to_string())));
        query.extend(until.map(|until| ("until", until.to_string())));
        query.extend(owner.clone().map(|owner| ("owner", owner)));
        if follow {
            query.push(("follow", "true".to_owned()))
        } else {
            query.push(("limit", PAGE_MAX.to_string()))
        }
        query
    }

    /// Passes on what comes from now on, until the process is ended.
    async fn follow(
        &mut self,
        mut tell: impl FnMut(&Record) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if let From::Api(client) = &self.from {
            let response = client.get_live("/api/v1/audit", &self.query(true)).await?;
            let mut lines = Lines::of(client, response);
            loop {
                // An empty line says that the daemon is there.
                let line: Option<Record> = lines.next_or_blank().await?;
                line.iter().try_for_each(&mut tell)?;
            }
        }
        loop {
            match self.next().await? {
                Some(records) => records.iter().try_for_each(&mut tell)?,
                None => tokio::time::sleep(AUDIT_TICK).await,
            }
        }
    }
}

async fn list(source: &mut RecordSource, json: bool) -> Result<Exit, Failure> {
    if json {
        return export(source, RecordFormat::Ndjson).await;
    }
    let mut all = Vec::new();
    while let Some(records) = source.next().await? {
        all.extend(records.iter().map(row));
    }
    let header = ["SEQ", "TIME", "WHO", "KEY", "ADDRESS", "DOOR", "OPERATION", "ABOUT", "RESULT"];
    print::table(header, all.into_iter())?;
    Ok(Exit::Ok)
}

async fn export(source: &mut RecordSource, shape: RecordFormat) -> Result<Exit, Failure> {
    while let Some(records) = source.next().await? {
        for record in &records {
            let value = match shape {
                RecordFormat::Ndjson => json!(record),
                RecordFormat::Ocsf => to_ocsf(record, VERSION),
            };
            print::line(&value.to_string())?;
        }
    }
    Ok(Exit::Ok)
}

async fn tail(
    source: &mut RecordSource,
    lines: usize,
    follow: bool,
    json: bool,
) -> Result<Exit, Failure> {
    let mut last = std::collections::VecDeque::new();
    while let Some(records) = source.next().await? {
        last.extend(records);
        while last.len() > lines {
            last.pop_front();
        }
    }
    let tell = |record: &Record| {
        if json {
            print::line(&json!(record).to_string())
        } else {
            print::line(&row(record).join("  "))
        }
    };
    last.iter().try_for_each(tell)?;
    if follow {
        source.follow(tell).await?;
    }
    Ok(Exit::Ok)
}

fn row(record: &Record) -> [String; 9] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let time = format!("{:.3}", record.at);
    let Entry::Request(request) = &record.entry else {
        let mut said = json!(record.entry);
        let kind = said["kind"].take().as_str().unwrap_or_default().to_owned();
        let data: Vec<String> = said
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| format!("{name}={}", plain(value)))
            .collect();
        let none = || "-".to_owned();
        let seq = record.seq.to_string();
        return [seq, time, none(), none(), none(), none(), kind, data.join(" "), none()];
    };
    let Request { door, operation, actor, address, sandbox, resource, .. } = request.as_ref();
    let who = actor.as_ref().map(|actor| format!("{}/{}", actor.organization, actor.user));
    let about: Vec<String> = [sandbox, resource].into_iter().flatten().cloned().collect();
    [
        record.seq.to_string(),
        time,
        or_dash(who),
        or_dash(actor.as_ref().and_then(|actor| actor.key.clone())),
        or_dash(address.map(|address| address.to_string())),
        door.clone(),
        operation.clone(),
        or_dash(Some(about.join(" ")).filter(|about| !about.is_empty())),
        result(request),
    ]
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn result(request: &Request) -> String {
    let outcome = match request.outcome {
        Outcome::Success => "success".to_owned(),
        Outcome::Refused | Outcome::Failed => request.code.clone().unwrap_or("failed".to_owned()),
    };
    match request.count {
        1 => outcome,
        count => format!("{outcome} x{count}"),
    }
}

fn check(directory: &Path, head: Option<Head>, json: bool) -> Result<Exit, Failure> {
    let unusable = |source| Error::DataDir { path: directory.display().to_string(), source };
    let report = verify_against(directory, head).map_err(unusable)?;
    let exit = if report.is_intact() { Exit::Ok } else { Exit::RequestFailed };
    if json {
        print::json(&json!(report))?;
        return Ok(exit);
    }
    for Finding { seq, what, .. } in &report.findings {
        print::line(&format!("record {seq}: {what}"))?;
    }
    match (report.first_bad(), report.first, report.last) {
        (Some(bad), ..) => print::line(&format!("BROKEN at record {}: {}", bad.seq, bad.what))?,
        (None, Some(first), Some(last)) => {
            let [start, head] = [&report.starting_hash, &report.head]
                .map(|hash| hash.as_deref().unwrap_or_default());
            print::line(&format!(
                "intact: {} records, {first} to {last}, in {} files\nbegins after {start}\nhead {last}:{head}",
                report.records, report.files
            ))?;
        }
        (None, ..) => print::line("intact: there are no records")?,
    }
    Ok(exit)
}

async fn show_head(way: Way, json: bool) -> Result<Exit, Failure> {
    let head: Value = match way {
        Way::Api(client) => client.get("/api/v1/audit/head").await?,
        Way::Directory(directory) => {
            let unusable =
                |source| Error::DataDir { path: directory.display().to_string(), source };
            let report = verify_against(&directory, None).map_err(unusable)?;
            json!({ "seq": report.last.unwrap_or(0), "hash": report.head })
        }
    };
    if json {
        print::json(&head)?;
        return Ok(Exit::Ok);
    }
    print::line(&format!("{}:{}", head["seq"], head["hash"].as_str().unwrap_or_default()))?;
    Ok(Exit::Ok)
}

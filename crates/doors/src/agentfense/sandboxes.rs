//! Sandboxes of the schema: what ours do not know of is in labels of this door, which its clients do not see.

use std::collections::BTreeMap;

use jiff::Timestamp as Time;

use super::call::Scene;
use super::codebases;
use super::messages::{
    CreateSandboxRequest, Empty, ListSandboxesRequest, ListSandboxesResponse, PatternType,
    Permission, PermissionRule, ResourceLimits, RuntimeType, Sandbox, SandboxRequest,
    SandboxStatus,
};
use crate::kit::Refusal;
use sandkeep_broker::{Broker, Filter, View, error::Error};
use sandkeep_core::limits::{AGENTFENSE_PAGE_MAX, MIB};
use sandkeep_core::rules::{Permission as Allowed, Rule, RuleType, RulesDraft};
use sandkeep_core::{Principal, ResourcesDraft, SandboxId, SpecDraft, State, TermsPatch, Verb};

/// The labels of this door.
const OURS: &str = "agentfense.";
/// All sandboxes of this door have it.
const SCHEMA: &str = "agentfense.schema";
const VERSION: &str = "v1";
const RUNTIME: &str = "agentfense.runtime";
const CODEBASE: &str = "agentfense.codebase";
const IMAGE: &str = "agentfense.image";
const STARTED: &str = "agentfense.started_at";
const STOPPED: &str = "agentfense.stopped_at";

/// Microseconds of processor time in this many are one processor, as for Docker.
const CPU_PERIOD: f64 = 100_000.0;
/// The weight that everybody has.
const SHARES_DEFAULT: i64 = 1024;

pub fn invalid(field: &'static str, problem: impl Into<String>) -> Refusal {
    Error::InvalidField { field, problem: problem.into() }.into()
}

/// The sandbox of a request, if it was created through this door.
pub async fn find(broker: &Broker, who: &Principal, id: &str) -> Result<View, Refusal> {
    if id.is_empty() {
        return Err(invalid("sandbox_id", "it is required"));
    }
    let found = broker.resolve(who, id).await?;
    let view = broker.get(who, &found).await?;
    if view.labels.contains_key(SCHEMA) {
        Ok(view)
    } else {
        Err(Error::NotFound { id: found }.into())
    }
}

fn status(view: &View) -> SandboxStatus {
    match view.state {
        State::Creating => SandboxStatus::Pending,
        State::Running => SandboxStatus::Running,
        State::Stopped if !view.labels.contains_key(STARTED) => SandboxStatus::Pending,
        State::Stopped | State::Paused | State::Destroying => SandboxStatus::Stopped,
        State::Failed => SandboxStatus::Error,
    }
}

fn shown(scene: &Scene, view: View) -> Sandbox {
    let status = status(&view).into();
    let label = |name: &str| view.labels.get(name).cloned().unwrap_or_default();
    let time = |name: &str| label(name).parse::<Time>().ok().map(Into::into);
    let resources = &view.resources;
    let memory_bytes = i64::try_from(resources.memory_mb.saturating_mul(MIB)).unwrap_or(i64::MAX);
    #[expect(clippy::cast_possible_truncation, reason = "no machine has so many processors")]
    let cpu_quota = (resources.cpus * CPU_PERIOD).round() as i64;
    let pids_limit = i64::try_from(resources.pids).unwrap_or(i64::MAX);
    let resources = ResourceLimits { memory_bytes, cpu_quota, cpu_shares: 0, pids_limit };
    let runtime = match label(RUNTIME).as_str() {
        "docker" => RuntimeType::Docker,
        _ => RuntimeType::Bwrap,
    };
    Sandbox {
        id: view.id.to_string(),
        codebase_id: label(CODEBASE),
        permissions: permissions(scene, &view),
        status,
        created_at: Some(view.created_at.into()),
        started_at: time(STARTED),
        stopped_at: time(STOPPED),
        expires_at: view.expires_at.map(Into::into),
        runtime: runtime.into(),
        image: label(IMAGE),
        resources: Some(resources),
        labels: view.labels.into_iter().filter(|(name, _)| !name.starts_with(OURS)).collect(),
    }
}

/// As they were given.
fn permissions(scene: &Scene, view: &View) -> Vec<PermissionRule> {
    if view.codebase.is_none() {
        return Vec::new();
    }
    // It was there when the view was made.
    let rules = scene.broker.sandbox_rules(&scene.who, &view.id).map(|rules| rules.rules);
    rules.map(|rules| rules.rules.into_iter().map(permission).collect()).unwrap_or_default()
}

fn permission(rule: Rule) -> PermissionRule {
    let permission = match rule.permission {
        Allowed::None => Permission::None,
        Allowed::View => Permission::View,
        Allowed::Read => Permission::Read,
        Allowed::Write => Permission::Write,
    };
    let kind = match rule.kind {
        None => PatternType::Unspecified,
        Some(RuleType::File) => PatternType::File,
        Some(RuleType::Directory) => PatternType::Directory,
        Some(RuleType::Glob) => PatternType::Glob,
    };
    PermissionRule {
        pattern: rule.pattern,
        kind: kind.into(),
        permission: permission.into(),
        priority: rule.priority,
    }
}

fn rule(asked: PermissionRule) -> Result<Rule, Refusal> {
    let permission = match Permission::try_from(asked.permission) {
        Ok(Permission::None) => Allowed::None,
        Ok(Permission::View) => Allowed::View,
        Ok(Permission::Read) => Allowed::Read,
        Ok(Permission::Write) => Allowed::Write,
        Ok(Permission::Unspecified) | Err(_) => {
            let problem = format!("{:?} has no permission that is known", asked.pattern);
            return Err(invalid("permissions", problem));
        }
    };
    let kind = match PatternType::try_from(asked.kind) {
        Ok(PatternType::Unspecified) => None,
        Ok(PatternType::Glob) => Some(RuleType::Glob),
        Ok(PatternType::Directory) => Some(RuleType::Directory),
        Ok(PatternType::File) => Some(RuleType::File),
        Err(_) => {
            let problem = format!("{:?} has no type that is known", asked.pattern);
            return Err(invalid("permissions", problem));
        }
    };
    Ok(Rule { pattern: asked.pattern, permission, kind, priority: asked.priority })
}

/// How many are on a page: all there is room for, if the client does not say.
pub fn page(size: i32) -> Result<usize, Refusal> {
    match usize::try_from(size) {
        Ok(0) => Ok(AGENTFENSE_PAGE_MAX),
        Ok(size) => Ok(size.min(AGENTFENSE_PAGE_MAX)),
        Err(_) => Err(invalid("page_size", "it is negative")),
    }
}

/// `None` for what is not limited.
fn positive(field: &'static str, number: i64) -> Result<Option<u64>, Refusal> {
    match u64::try_from(number) {
        Ok(number) => Ok(Some(number).filter(|number| *number > 0)),
        Err(_) => Err(invalid(field, format!("{number} is negative"))),
    }
}

fn resources(asked: Option<ResourceLimits>) -> Result<Option<ResourcesDraft>, Refusal> {
    let Some(asked) = asked else { return Ok(None) };
    if ![0, SHARES_DEFAULT].contains(&asked.cpu_shares) {
        let problem = format!("only the default, {SHARES_DEFAULT}, is supported; set cpu_quota");
        return Err(invalid("resources.cpu_shares", problem));
    }
    let memory = positive("resources.memory_bytes", asked.memory_bytes)?;
    let quota = positive("resources.cpu_quota", asked.cpu_quota)?;
    #[expect(clippy::cast_precision_loss, reason = "a quota that is so large is refused anyway")]
    let cpus = quota.map(|quota| quota as f64 / CPU_PERIOD);
    Ok(Some(ResourcesDraft {
        memory_mb: memory.map(|bytes| bytes.div_ceil(MIB)),
        cpus,
        pids: positive("resources.pids_limit", asked.pids_limit)?,
        ..ResourcesDraft::default()
    }))
}

fn runtime(number: i32) -> Result<&'static str, Refusal> {
    match RuntimeType::try_from(number) {
        Ok(RuntimeType::Unspecified | RuntimeType::Bwrap) => Ok("bwrap"),
        Ok(RuntimeType::Docker) => Ok("docker"),
        Err(_) => Err(invalid("runtime", format!("there is no runtime {number}"))),
    }
}

pub async fn create(scene: Scene, asked: CreateSandboxRequest) -> Result<Sandbox, Refusal> {
    let Scene { broker, who, .. } = &scene;
    let runtime = runtime(asked.runtime)?;
    let resources = resources(asked.resources)?;
    let lifetime = asked.expires_in.map(|time| time.positive("expires_in")).transpose()?;
    let codebase = match asked.codebase_id.as_str() {
        "" => None,
        id => Some(broker.codebase(who, &codebases::named(id)?)?.id),
    };
    let rules = asked.permissions.into_iter().map(rule).collect::<Result<Vec<_>, _>>()?;
    let mut labels = asked.labels;
    if let Some(name) = labels.keys().find(|name| name.starts_with(OURS)) {
        return Err(invalid("labels", format!("{name}: the prefix {OURS} is reserved")));
    }
    let rules = match &codebase {
        // Without a matching rule nothing is allowed, so that no rules at all allow nothing.
        Some(_) => Some(RulesDraft { preset: None, rules }),
        None if rules.is_empty() => None,
        None => return Err(invalid("permissions", "they are about a codebase: name one")),
    };
    labels.extend(codebase.iter().map(|id| (CODEBASE.to_owned(), id.to_string())));
    labels.insert(SCHEMA.to_owned(), VERSION.to_owned());
    labels.insert(RUNTIME.to_owned(), runtime.to_owned());
    let image = Some(asked.image).filter(|image| !image.is_empty());
    labels.extend(image.clone().map(|image| (IMAGE.to_owned(), image)));
    let draft = SpecDraft {
        template: image,
        runtime: Some(runtime.to_owned()),
        labels: Some(labels),
        resources,
        codebase: codebase.as_ref().map(Into::into),
        rules,
        // A part of a second is one more.
        timeout_secs: lifetime.map(|time| time.as_secs() + u64::from(time.subsec_nanos() > 0)),
        ..SpecDraft::default()
    };
    let view = broker.create(who, draft).await?;
    // It is created, and is started by a call of its own.
    match broker.stop(who, &view.id).await {
        Ok(view) => Ok(shown(&scene, view)),
        Err(error) => {
            broker.destroy(who, &view.id).await?;
            Err(error.into())
        }
    }
}

pub async fn get(scene: Scene, asked: SandboxRequest) -> Result<Sandbox, Refusal> {
    let view = find(&scene.broker, &scene.who, &asked.sandbox_id).await?;
    Ok(shown(&scene, view))
}

/// All of them on one page, unless the client asks for less: clients of this API do not ask for a second one.
pub async fn list(
    scene: Scene,
    asked: ListSandboxesRequest,
) -> Result<ListSandboxesResponse, Refusal> {
    let limit = page(asked.page_size)?;
    let after = match asked.page_token.as_str() {
        "" => None,
        token => Some(token.parse().map_err(|_| invalid("page_token", "it is not one of ours"))?),
    };
    let mut labels = vec![(SCHEMA.to_owned(), VERSION.to_owned())];
    if !asked.codebase_id.is_empty() {
        labels.push((CODEBASE.to_owned(), asked.codebase_id));
    }
    let filter = Filter { labels, after, limit, ..Filter::default() };
    let page = scene.broker.list(&scene.who, &filter).await?;
    let next_page_token = page.next.map(|next| next.to_string()).unwrap_or_default();
    Ok(ListSandboxesResponse {
        sandboxes: page.items.into_iter().map(|view| shown(&scene, view)).collect(),
        next_page_token,
    })
}

/// Notes when something happened.
async fn note(
    scene: &Scene,
    id: &SandboxId,
    labels: [(&str, Option<String>); 2],
) -> Result<Sandbox, Refusal> {
    let labels: BTreeMap<_, _> =
        labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let patch = TermsPatch { labels: Some(Some(labels)), ..TermsPatch::default() };
    let view = scene.broker.amend(&scene.who, id, patch).await?;
    Ok(shown(scene, view))
}

pub async fn start(scene: Scene, asked: SandboxRequest) -> Result<Sandbox, Refusal> {
    let Scene { broker, who, .. } = &scene;
    let view = find(broker, who, &asked.sandbox_id).await?;
    let (id, state) = (view.id, view.state);
    match state {
        // In the broker that succeeds, and changes nothing.
        State::Running => {
            return Err(Error::WrongState { id, state, verb: Verb::Start, helps: None }.into());
        }
        State::Paused => drop(broker.resume(who, &id).await?),
        State::Creating | State::Stopped | State::Failed | State::Destroying => {
            drop(broker.start(who, &id).await?);
        }
    }
    note(&scene, &id, [(STARTED, Some(Time::now().to_string())), (STOPPED, None)]).await
}

pub async fn stop(scene: Scene, asked: SandboxRequest) -> Result<Sandbox, Refusal> {
    let Scene { broker, who, .. } = &scene;
    let view = find(broker, who, &asked.sandbox_id).await?;
    let (id, state) = (view.id, view.state);
    if state == State::Stopped {
        return Err(Error::WrongState { id, state, verb: Verb::Stop, helps: None }.into());
    }
    let started = view.labels.get(STARTED).cloned();
    broker.stop(who, &id).await?;
    note(&scene, &id, [(STARTED, started), (STOPPED, Some(Time::now().to_string()))]).await
}

pub async fn destroy(scene: Scene, asked: SandboxRequest) -> Result<Empty, Refusal> {
    let view = find(&scene.broker, &scene.who, &asked.sandbox_id).await?;
    scene.broker.destroy(&scene.who, &view.id).await?;
    Ok(Empty {})
}

//! `RUN --mount`: what a command sees only while it runs. Options and defaults are those of Dockerfiles.

use super::problem::Problem;
use super::scene::whole;
use super::text::Text;
use super::{Origin, Pattern};

/// Where secrets are if no target is given.
const SECRETS: &str = "/run/secrets";
/// Every sandbox mounts its own files there.
const RESERVED: [&str; 3] = ["/proc", "/dev", "/sys"];
const CACHE_MODE: u32 = 0o755;
const SECRET_MODE: u32 = 0o400;
const MAX_ID_BYTES: usize = 128;

/// `T` is [`Text`] as written, and `String` with variables expanded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunMount<T> {
    /// A directory that later steps and builds find as this one left it.
    Cache {
        /// Default: the target.
        id: Option<T>,
        target: T,
        sharing: Sharing,
        access: Access,
        mode: u32,
        uid: u32,
        gid: u32,
    },
    /// A file, or a variable, with a value that came with the build.
    Secret {
        id: T,
        /// `None` if it is only a variable.
        target: Option<T>,
        env: Option<String>,
        need: Need,
        mode: u32,
        uid: u32,
        gid: u32,
    },
    /// A file or directory of the build context, a stage or an image, read-only.
    Bind { from: Origin, source: T, target: T },
}

/// What happens if two steps use a cache at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Both work on it.
    Shared,
    /// The second gets an empty one of its own.
    Private,
    /// The second waits.
    Locked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

impl Access {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// What happens if a build comes without the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Required,
    /// It is not mounted.
    Optional,
}

/// Parses one `--mount`. `origin` finds the source of a bind.
pub(super) fn read(
    written: &str,
    text: impl Fn(&str) -> Result<Text, Problem>,
    origin: impl Fn(&str) -> Result<Origin, Problem>,
) -> Result<RunMount<Text>, Problem> {
    let mut options = Options::read(written)?;
    let kind = options.take(&["type"])?.unwrap_or("bind");
    let maybe = |value: Option<&str>| value.map(&text).transpose();
    let mount = match kind {
        "cache" => {
            let target = options.target()?.ok_or_else(|| options.wrong("it needs a target"))?;
            RunMount::Cache {
                id: maybe(options.take(&["id"])?)?,
                target: text(target)?,
                sharing: options.sharing()?,
                access: options.access()?,
                mode: options.mode(CACHE_MODE)?,
                uid: options.number("uid")?,
                gid: options.number("gid")?,
            }
        }
        "secret" => {
            let (id, target) = (options.take(&["id"])?, options.target()?);
            let env = options.take(&["env"])?.map(str::to_owned);
            if env.as_deref().is_some_and(|name| name.is_empty() || name.contains('\0')) {
                return Err(options.wrong("env is the name of a variable"));
            }
            let base = target.and_then(|target| target.rsplit('/').next());
            let id = id.or(base).filter(|id| !id.is_empty());
            let id = id.ok_or_else(|| options.wrong("it needs an id or a target"))?;
            let target = match (target, &env) {
                (Some(target), _) => Some(text(target)?),
                (None, Some(_)) => None,
                (None, None) => Some(text(&format!("{SECRETS}/{id}"))?),
            };
            let need = if options.is_set(&["required"])? { Need::Required } else { Need::Optional };
            let mode = options.mode(SECRET_MODE)?;
            let (uid, gid) = (options.number("uid")?, options.number("gid")?);
            RunMount::Secret { id: text(id)?, target, env, need, mode, uid, gid }
        }
        "bind" => {
            let target = options.target()?.ok_or_else(|| options.wrong("it needs a target"))?;
            if options.is_set(&["rw", "readwrite"])? {
                return Err(
                    options.wrong("bound files are read-only here; COPY them to change them")
                );
            }
            options.is_set(&["ro", "readonly"])?;
            let from = options.take(&["from"])?.map_or(Ok(Origin::Context), origin)?;
            let source = options.take(&["source", "src"])?.unwrap_or("/");
            RunMount::Bind { from, source: text(source)?, target: text(target)? }
        }
        _ => return Err(options.wrong("its type can be bind, cache or secret")),
    };
    options.end()?;
    Ok(mount)
}

/// `a=b,c`, of which each may be taken once.
struct Options<'a> {
    written: &'a str,
    left: Vec<(&'a str, Option<&'a str>)>,
}

impl<'a> Options<'a> {
    fn read(written: &'a str) -> Result<Self, Problem> {
        let options = |part: &'a str| {
            part.split_once('=').map_or((part, None), |(name, value)| (name, Some(value)))
        };
        let left: Vec<_> = written.split(',').map(options).collect();
        let read = Self { written, left };
        let mut names: Vec<&str> = read.left.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(read.wrong(&format!("{:?} is there twice", twice[0])));
        }
        // A value with a comma would have to be quoted as in CSV.
        if written.contains('"') {
            return Err(read.wrong("quotes are not supported"));
        }
        Ok(read)
    }

    fn wrong(&self, problem: &str) -> Problem {
        Problem::Mount { mount: self.written.to_owned(), problem: problem.to_owned() }
    }

    /// An option that may have several names, but only one of them at a time.
    fn find(&mut self, names: &[&str]) -> Result<Option<(&'a str, Option<&'a str>)>, Problem> {
        let Some(at) = self.left.iter().position(|(name, _)| names.contains(name)) else {
            return Ok(None);
        };
        let found = self.left.remove(at);
        match self.left.iter().find(|(name, _)| names.contains(name)) {
            None => Ok(Some(found)),
            Some((other, _)) => Err(self.wrong(&format!("{} and {other} are the same", found.0))),
        }
    }

    fn take(&mut self, names: &[&str]) -> Result<Option<&'a str>, Problem> {
        match self.find(names)? {
            None => Ok(None),
            Some((_, Some(value))) if !value.is_empty() => Ok(Some(value)),
            Some((name, _)) => Err(self.wrong(&format!("{name} needs a value"))),
        }
    }

    fn target(&mut self) -> Result<Option<&'a str>, Problem> {
        self.take(&["target", "dst", "destination"])
    }

    fn is_set(&mut self, names: &[&str]) -> Result<bool, Problem> {
        match self.find(names)? {
            None | Some((_, Some("false" | "0"))) => Ok(false),
            Some((_, None | Some("true" | "1"))) => Ok(true),
            Some((name, Some(_))) => Err(self.wrong(&format!("{name} is true or false"))),
        }
    }

    fn access(&mut self) -> Result<Access, Problem> {
        let read = self.is_set(&["ro", "readonly"])?;
        let write = self.is_set(&["rw", "readwrite"])?;
        match (read, write) {
            (true, true) => Err(self.wrong("it cannot be both read-only and writable")),
            (true, false) => Ok(Access::Read),
            (false, _) => Ok(Access::Write),
        }
    }

    fn sharing(&mut self) -> Result<Sharing, Problem> {
        match self.take(&["sharing"])? {
            None | Some("shared") => Ok(Sharing::Shared),
            Some("private") => Ok(Sharing::Private),
            Some("locked") => Ok(Sharing::Locked),
            Some(_) => Err(self.wrong("sharing can be shared, private or locked")),
        }
    }

    fn mode(&mut self, default: u32) -> Result<u32, Problem> {
        let Some(written) = self.take(&["mode"])? else { return Ok(default) };
        match u32::from_str_radix(written, 8) {
            Ok(mode) if mode <= 0o7777 && !written.starts_with('+') => Ok(mode),
            _ => Err(self.wrong("mode is octal, as in 0755")),
        }
    }

    fn number(&mut self, name: &str) -> Result<u32, Problem> {
        let Some(written) = self.take(&[name])? else { return Ok(0) };
        written
            .parse()
            .ok()
            // Sandboxes have the ids of 16 bits.
            .filter(|id| *id <= u32::from(u16::MAX))
            .ok_or_else(|| self.wrong(&format!("{name} is a number up to {}", u16::MAX)))
    }

    /// Everything must have been taken.
    fn end(self) -> Result<(), Problem> {
        match self.left.first() {
            None => Ok(()),
            Some((name, _)) => Err(self.wrong(&format!("{name:?} is not supported for this type"))),
        }
    }
}

impl<T> RunMount<T> {
    pub fn target(&self) -> Option<&T> {
        match self {
            Self::Cache { target, .. } | Self::Bind { target, .. } => Some(target),
            Self::Secret { target, .. } => target.as_ref(),
        }
    }

    pub(super) fn origin(&self) -> Option<&Origin> {
        match self {
            Self::Bind { from, .. } => Some(from),
            Self::Cache { .. } | Self::Secret { .. } => None,
        }
    }

    /// The same with every text replaced.
    pub(super) fn map<U, E>(&self, each: &impl Fn(&T) -> Result<U, E>) -> Result<RunMount<U>, E> {
        let maybe = |text: &Option<T>| text.as_ref().map(each).transpose();
        Ok(match self {
            Self::Cache { id, target, sharing, access, mode, uid, gid } => RunMount::Cache {
                id: maybe(id)?,
                target: each(target)?,
                sharing: *sharing,
                access: *access,
                mode: *mode,
                uid: *uid,
                gid: *gid,
            },
            Self::Secret { id, target, env, need, mode, uid, gid } => RunMount::Secret {
                id: each(id)?,
                target: maybe(target)?,
                env: env.clone(),
                need: *need,
                mode: *mode,
                uid: *uid,
                gid: *gid,
            },
            Self::Bind { from, source, target } => {
                RunMount::Bind { from: from.clone(), source: each(source)?, target: each(target)? }
            }
        })
    }
}

impl RunMount<String> {
    /// With an absolute target, a source without dots, and names that can be names.
    pub(super) fn located(mut self, absolute: &impl Fn(&str) -> String) -> Result<Self, Problem> {
        let wrong = |value: &str, wanted| Err(Problem::Value { value: value.to_owned(), wanted });
        match &mut self {
            Self::Cache { id, target, .. } => {
                *target = absolute(target);
                if let Some(id) = id.as_ref().filter(|id| id.is_empty() || id.len() > MAX_ID_BYTES)
                {
                    return wrong(id, "the id of a cache: up to 128 bytes");
                }
            }
            Self::Secret { id, target, .. } => {
                if let Some(target) = target {
                    *target = absolute(target);
                }
                if !is_secret_id(id) {
                    return wrong(id, "the id of a secret: letters, digits, - _ and .");
                }
            }
            Self::Bind { source, target, .. } => {
                *target = absolute(target);
                *source = whole(&format!("/{source}")).trim_start_matches('/').to_owned();
                if Pattern::is_wild(source) {
                    return wrong(source, "one file or directory: patterns are for COPY");
                }
            }
        }
        Ok(self)
    }
}

/// Whether a secret can have this id.
pub fn is_secret_id(id: &str) -> bool {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !id.is_empty() && id.len() <= MAX_ID_BYTES && id.chars().all(fine)
}

/// A target must be somewhere below the root, and in no other.
pub(super) fn check_targets(mounts: &[RunMount<String>]) -> Result<(), Problem> {
    let targets: Vec<&String> = mounts.iter().filter_map(RunMount::target).collect();
    let within = |path: &str, directory: &str| {
        path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    for (index, target) in targets.iter().enumerate() {
        let wrong = |wanted| Err(Problem::Value { value: (*target).clone(), wanted });
        if target.as_str() == "/" || RESERVED.iter().any(|reserved| within(target, reserved)) {
            return wrong("a place for a mount: choose one outside of /, /proc, /dev and /sys");
        }
        let mut others = targets.iter().enumerate().filter(|(other, _)| *other != index);
        if others.any(|(_, other)| within(target, other)) {
            return wrong("a place for a mount: it is within another one of this step");
        }
    }
    Ok(())
}

//! The user, directory and environment of a command or a shell. The caller's values come first, then the sandbox's,
//! then the image's.

use std::collections::BTreeMap;

use super::invalid;
use crate::error::Error;
use sandkeep_core::network::{NetworkTerms, SecretTerms};
use sandkeep_core::{SandboxName, Spec, check_env, limits};
use sandkeep_egress::{ca_variables, java_option};
use sandkeep_home::Meta;
use sandkeep_image::certificates::{self, CERTIFICATES, JAVA_TRUST_STORE};

/// Default user of a command in a sandbox without an image.
const DEFAULT_USER: &str = "user";

/// Default `PATH`.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Base environment of every command. Nothing of the daemon's own environment is ever included.
const BASE_ENV: [(&str, &str); 2] = [("PATH", DEFAULT_PATH), ("LANG", "C.UTF-8")];
/// Commands of images get the same base environment as from a container engine.
const BASE_ENV_OF_IMAGES: [(&str, &str); 1] = [("PATH", DEFAULT_PATH)];

/// In the guest protocol, a user followed by a colon and no group gets its group from the image: a uid that the image
/// does not list is in group 0.
const GROUP_AS_IMAGES_HAVE_IT: char = ':';

/// The caller's values.
#[derive(Default)]
pub struct Wanted {
    pub env: BTreeMap<String, String>,
    pub cwd: Option<String>,
    pub user: Option<String>,
}

/// What bash runs before its prompts.
const PROMPT: &str = "PROMPT_COMMAND";

/// Has bash show the name of the sandbox, as it is now, where a prompt shows that of the machine, which is the id:
/// `user@web:~$`. It happens once, before the first prompt, and leaves any other prompt alone.
pub(crate) fn prompt(meta: &Meta) -> Option<(String, String)> {
    let of_image = meta.spec.image_defaults().map(|image| &image.env);
    if of_image.into_iter().chain([meta.spec.env()]).any(|env| env.contains_key(PROMPT)) {
        return None;
    }
    let name = meta.name.clone().unwrap_or_else(|| SandboxName::derived(&meta.id));
    let usual = format!(r"PS1='\u@{name}:\w\$ '");
    let others = format!(r"PS1=${{PS1//'\h'/{name}}}");
    let once = format!(r"case $PS1 in '\s-\v\$ ') {usual};; *) {others};; esac; unset {PROMPT}");
    Some((PROMPT.to_owned(), once))
}

/// The resolved values, as sent to the guest.
pub struct ExecContext {
    pub env: Vec<(String, String)>,
    pub cwd: Option<String>,
    pub user: String,
}

impl ExecContext {
    /// For a command of the user, which finds what its network needs in its environment.
    pub fn of(meta: &Meta, wanted: Wanted) -> Result<Self, Error> {
        Self::with(&meta.spec, of_network(&meta.terms.network), wanted)
    }

    /// For a program of our own.
    pub fn fill(spec: &Spec, wanted: Wanted) -> Result<Self, Error> {
        Self::with(spec, OfNetwork::default(), wanted)
    }

    fn with(spec: &Spec, network: OfNetwork, wanted: Wanted) -> Result<Self, Error> {
        wanted.check()?;
        let env = environment(spec, network, wanted.env)?;
        let user = match spec.image_defaults() {
            None => wanted.user.unwrap_or_else(|| DEFAULT_USER.to_owned()),
            Some(image) => {
                let mut user = wanted.user.unwrap_or_else(|| image.user.clone());
                if !user.contains(':') {
                    user.push(GROUP_AS_IMAGES_HAVE_IT);
                }
                user
            }
        };
        let cwd = match wanted.cwd {
            Some(cwd) => Some(spec.absolute(&cwd)),
            None => spec.workdir().map(str::to_owned),
        };
        Ok(Self { env, cwd, user })
    }
}

/// A user as its caller or its image wrote it.
pub fn as_asked(user: &str) -> &str {
    user.strip_suffix(GROUP_AS_IMAGES_HAVE_IT).unwrap_or(user)
}

/// The command that a sandbox runs if the caller names none.
pub fn own_command(spec: &Spec) -> Result<Vec<String>, Error> {
    match spec.image_defaults() {
        None => Err(invalid("argv", "it names no command; give command or argv".to_owned())),
        Some(image) if image.command.is_empty() => {
            let problem =
                format!("it names no command, and neither does the image of {}", spec.template());
            Err(invalid("argv", problem))
        }
        Some(image) => Ok(image.command.clone()),
    }
}

/// Variables for the network of a sandbox.
#[derive(Default)]
struct OfNetwork {
    /// An option for Java, which comes before those that the sandbox or the caller gives.
    java: Option<(&'static str, String)>,
    /// Where programs find the certificates that they trust. The sandbox may say otherwise.
    certificates: Vec<(&'static str, String)>,
    /// The placeholders of secrets.
    placeholders: Vec<(String, String)>,
}

fn of_network(terms: &NetworkTerms) -> OfNetwork {
    let (certificates, java) = if terms.prepared.certificate {
        let variables = ca_variables(CERTIFICATES).chain(certificates::settings());
        (variables.collect(), Some(java_option(JAVA_TRUST_STORE)))
    } else {
        (Vec::new(), None)
    };
    let placeholder =
        |(name, secret): (&String, &SecretTerms)| (name.clone(), secret.placeholder.clone());
    let placeholders = terms.secrets.iter().map(placeholder).collect();
    OfNetwork { java, certificates, placeholders }
}

fn environment(
    spec: &Spec,
    network: OfNetwork,
    own: BTreeMap<String, String>,
) -> Result<Vec<(String, String)>, Error> {
    let base: &[(&str, &str)] = match spec.image_defaults() {
        None => &BASE_ENV,
        Some(_) => &BASE_ENV_OF_IMAGES,
    };
    let mut env: BTreeMap<String, String> =
        base.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let OfNetwork { java, certificates, placeholders } = network;
    env.extend(certificates.into_iter().map(|(name, value)| (name.to_owned(), value)));
    let of_image = spec.image_defaults().map(|image| &image.env).into_iter().flatten();
    let beneath = of_image.chain(spec.env());
    env.extend(beneath.map(|(name, value)| (name.clone(), value.clone())));
    env.extend(placeholders);
    env.extend(own);
    if let Some((name, ours)) = java {
        let all = match env.get(name) {
            Some(given) => format!("{ours} {given}"),
            None => ours,
        };
        env.insert(name.to_owned(), all);
    }
    let size: usize = env.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
    let max = limits::EXEC_STRINGS_MAX_BYTES;
    if size > max {
        let problem = format!("with that of the sandbox it has {size} bytes, more than {max}");
        return Err(invalid("env", problem));
    }
    Ok(env.into_iter().collect())
}

impl Wanted {
    fn check(&self) -> Result<(), Error> {
        check_env(&self.env)?;
        if let Some(cwd) = &self.cwd
            && (cwd.is_empty() || cwd.contains('\0'))
        {
            return Err(invalid("cwd", format!("{cwd:?} is not a path")));
        }
        match self.user.as_deref() {
            Some(user) if !is_user(user) => {
                let problem = "it is none of: a name, a uid, name:group, uid:gid".to_owned();
                Err(invalid("user", problem))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// Whether this can be a user at all. Only the sandbox knows which users exist.
fn is_user(user: &str) -> bool {
    let parts: Vec<&str> = user.split(':').collect();
    user.len() <= limits::USER_MAX_BYTES
        && !user.contains(['\0', '\n'])
        && parts.len() <= 2
        && parts.iter().all(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandkeep_core::{HostLimits, ImageDefaults, PinnedImage, SpecDraft};

    const HOST: HostLimits = HostLimits { memory_mb: 4096, cpus: 1.0, disk_default_mb: None };

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn spec(image: Option<ImageDefaults>) -> Spec {
        let draft = SpecDraft { env: Some(map(&[("B", "sandbox")])), ..SpecDraft::default() };
        let spec = draft.check(&HOST).expect("valid");
        match image {
            None => spec,
            Some(defaults) => spec.of_image(PinnedImage {
                digest: "sha256:0".to_owned(),
                layers: Vec::new(),
                over: None,
                defaults: Some(defaults),
            }),
        }
    }

    fn defaults() -> ImageDefaults {
        ImageDefaults {
            start: None,
            user: "1234".to_owned(),
            workdir: "/app".to_owned(),
            env: map(&[("A", "image"), ("B", "image"), ("PATH", "/opt/bin")]),
            command: vec!["serve".to_owned()],
        }
    }

    fn value<'a>(place: &'a ExecContext, name: &str) -> Option<&'a str> {
        place.env.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn what_nobody_says_is_said_by_the_image() {
        let place = ExecContext::fill(&spec(Some(defaults())), Wanted::default()).expect("valid");
        assert_eq!(place.cwd.as_deref(), Some("/app"));
        assert_eq!((place.user.as_str(), as_asked(&place.user)), ("1234:", "1234"));
        assert_eq!(value(&place, "A"), Some("image"));
        assert_eq!(value(&place, "B"), Some("sandbox"));
        assert_eq!(value(&place, "PATH"), Some("/opt/bin"));
        assert_eq!(value(&place, "LANG"), None);
        assert_eq!(own_command(&spec(Some(defaults()))).expect("it has one"), ["serve"]);
    }

    #[test]
    fn what_the_caller_says_wins_over_sandbox_and_image() {
        let wanted = Wanted {
            env: map(&[("B", "own")]),
            cwd: Some("/srv".to_owned()),
            user: Some("7:9".to_owned()),
        };
        let place = ExecContext::fill(&spec(Some(defaults())), wanted).expect("valid");
        assert_eq!((place.cwd.as_deref(), place.user.as_str()), (Some("/srv"), "7:9"));
        assert_eq!(value(&place, "B"), Some("own"));
    }

    #[test]
    fn a_sandbox_without_an_image_is_as_it_always_was() {
        let place = ExecContext::fill(&spec(None), Wanted::default()).expect("valid");
        assert_eq!((place.cwd, place.user.as_str()), (None, "user"));
        assert!(place.env.iter().any(|(name, value)| name == "LANG" && value == "C.UTF-8"));
        assert!(own_command(&spec(None)).is_err());
    }

    #[test]
    fn java_trusts_what_the_others_trust_and_keeps_its_own_options() {
        let mut terms = NetworkTerms::default();
        let java = |terms: &NetworkTerms, own: &[(&str, &str)]| {
            let env = environment(&spec(None), of_network(terms), map(own)).expect("valid");
            env.into_iter().find(|(name, _)| name == "JAVA_TOOL_OPTIONS").map(|(_, value)| value)
        };
        assert_eq!(java(&terms, &[]), None);
        terms.prepared.certificate = true;
        let ours = java(&terms, &[]).expect("an option");
        assert!(ours.contains(JAVA_TRUST_STORE), "{ours}");
        let given = java(&terms, &[("JAVA_TOOL_OPTIONS", "-Xmx64m")]);
        assert_eq!(given, Some(format!("{ours} -Xmx64m")));
    }

    #[test]
    fn who_cannot_be_anybody_is_refused_before_the_sandbox_is_asked() {
        for user in ["", ":", "a:", ":b", "a:b:c", "a\0", "a\nb", &"x".repeat(9999)] {
            let wanted = Wanted { user: Some(user.to_owned()), ..Wanted::default() };
            assert!(ExecContext::fill(&spec(None), wanted).is_err(), "{user:?} was accepted");
        }
    }
}

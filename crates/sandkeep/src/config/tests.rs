//! Precedence of settings, and reports of mistakes.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use sandkeep_broker::{Profile, Quota};
use sandkeep_core::OnTimeout;

/// A machine with these variables and this file.
struct Machine {
    env: Vec<(&'static str, OsString)>,
    flags: Flags,
    place: tempfile::TempDir,
}

fn machine(file: &str) -> Machine {
    let place = tempfile::tempdir().expect("a temp dir");
    std::fs::write(place.path().join("sandkeep.toml"), file).expect("it is ours");
    Machine { env: Vec::new(), flags: Flags::default(), place }
}

impl Machine {
    fn env(mut self, name: &'static str, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name, value.as_ref().to_owned()));
        self
    }

    fn flag(mut self, key: &'static str, value: &str) -> Self {
        self.flags.set(key, Some(value.to_owned()));
        self
    }

    fn path(&self) -> PathBuf {
        self.place.path().join("sandkeep.toml")
    }

    fn around(&self) -> Surroundings {
        let env = self.env.iter().map(|(name, value)| (OsString::from(name), value.clone()));
        Surroundings { env: env.collect(), user: User::Other }
    }

    fn load(&self) -> Result<Loaded, ConfigError> {
        load(Some(&self.path()), &self.flags, &self.around())
    }

    fn good(&self) -> Loaded {
        self.load().unwrap_or_else(|e| panic!("{e}"))
    }

    /// Every problem as it is told, without the directory of this test.
    fn problems(&self) -> Vec<String> {
        let Err(ConfigError::Invalid(problems)) = self.load() else { panic!("it was accepted") };
        let directory = format!("{}/", self.place.path().display());
        problems.iter().map(|problem| problem.to_string().replace(&directory, "")).collect()
    }

    fn problem(&self) -> String {
        let mut problems = self.problems();
        assert_eq!(problems.len(), 1, "{problems:?}");
        problems.remove(0)
    }
}

fn value<'a>(loaded: &'a Loaded, key: &str) -> (&'a Value, String) {
    let entry = loaded.entries.iter().find(|entry| entry.key == key);
    let entry = entry.unwrap_or_else(|| panic!("no {key} in {:?}", loaded.entries));
    let source = entry.source.to_string();
    (&entry.value, source.split_once('/').map_or(source.clone(), |(kind, _)| kind.to_owned()))
}

#[test]
fn every_layer_wins_over_those_before_it() {
    let file = "listen = '127.0.0.1:1'\n[limits]\nmax_sandboxes = 1\nmax_concurrent_tasks = 1\n";
    let loaded = machine(file)
        .env("SANDKEEP_LISTEN", "127.0.0.1:2")
        .env("SANDKEEP_LIMITS_MAX_SANDBOXES", "2")
        .flag("listen", "127.0.0.1:3")
        .good();
    assert_eq!(loaded.settings.listen.port(), 3);
    assert_eq!(loaded.settings.limits.max_sandboxes, 2);
    assert_eq!(loaded.settings.limits.max_concurrent_tasks, 1);
    assert_eq!(value(&loaded, "listen"), (&json!("127.0.0.1:3"), "flag".to_owned()));
    let from = value(&loaded, "limits.max_sandboxes").1;
    assert_eq!(from, "env SANDKEEP_LIMITS_MAX_SANDBOXES");
    let line = loaded.entries.iter().find(|entry| entry.key == "limits.max_concurrent_tasks");
    let source = line.expect("it is shown").source.to_string();
    assert!(source.starts_with("file /") && source.ends_with("sandkeep.toml:4"), "{source}");
    assert_eq!(value(&loaded, "domain"), (&json!("localhost"), "default".to_owned()));
}

#[test]
fn a_machine_that_says_nothing_gets_the_defaults() {
    let around = |user| Surroundings {
        env: [(OsString::from("HOME"), OsString::from("/nowhere/ann"))].into(),
        user,
    };
    let other = load(None, &Flags::default(), &around(User::Other)).expect("defaults are valid");
    assert_eq!(other.settings, Settings::defaults(&around(User::Other)));
    assert_eq!(other.settings.data_dir, PathBuf::from("/nowhere/ann/.local/share/sandkeep"));
    assert_eq!(other.file, None);
    assert!(other.entries.iter().all(|entry| entry.source == Source::Default));
    assert_eq!(around(User::Root).data_dir(), PathBuf::from("/var/lib/sandkeep"));
    let file = around(User::Other).config_file();
    assert_eq!(file, Some(PathBuf::from("/nowhere/ann/.config/sandkeep/sandkeep.toml")));
}

#[test]
fn a_file_that_was_named_must_be_there() {
    let missing = Machine { place: tempfile::tempdir().expect("a temp dir"), ..machine("") };
    assert!(matches!(missing.load(), Err(ConfigError::Unreadable { .. })));
    let by_variable = Surroundings {
        env: [(OsString::from("SANDKEEP_CONFIG"), OsString::from("/nowhere/x.toml"))].into(),
        user: User::Root,
    };
    let error = load(None, &Flags::default(), &by_variable).expect_err("it is not there");
    assert!(error.to_string().contains("/nowhere/x.toml"), "{error}");
}

#[test]
fn the_names_that_others_use_are_honoured_and_shown() {
    let loaded = machine("listen = '[::1]:1'")
        .env("PORT", "4501")
        .env("LOG_LEVEL", "silent")
        .env("CORS_ORIGINS", "https://a.example, http://localhost:3000/")
        .env("NATS_URL", "nats://ann:hush@nats.example:4222")
        .good();
    let settings = &loaded.settings;
    assert_eq!(settings.listen, "[::1]:4501".parse().expect("an address"), "only the port changes");
    assert_eq!(settings.log, "off");
    assert_eq!(settings.cors_origins, ["https://a.example", "http://localhost:3000"]);
    assert_eq!(settings.nats.servers(), ["nats://nats.example:4222"]);
    let login = ("ann".to_owned(), Some("hush".to_owned()));
    assert_eq!(settings.nats.login_in_url(), Some(login));
    for (key, from) in [
        ("listen", "env PORT"),
        ("log", "env LOG_LEVEL"),
        ("cors_origins", "env CORS_ORIGINS"),
        ("nats.url", "env NATS_URL"),
    ] {
        assert_eq!(value(&loaded, key).1, from);
    }
}

#[test]
fn our_own_name_wins_over_that_of_others() {
    let loaded =
        machine("").env("PORT", "not even a port").env("SANDKEEP_LISTEN", "127.0.0.1:9").good();
    assert_eq!(loaded.settings.listen.port(), 9);
    assert_eq!(value(&loaded, "listen").1, "env SANDKEEP_LISTEN");
    assert_eq!(machine("").env("SANDKEEP_LISTEN", "").good().settings.listen.port(), PORT_DEFAULT);
}

#[test]
fn no_secret_is_shown() {
    let file = "[nats]\nurl = 'nats://ann:hush@n.example'\n[profiles.a.env]\nTOKEN = 'hush'\n";
    let loaded = machine(file).good();
    assert_eq!(value(&loaded, "nats.url").0, &json!("nats://***@n.example"));
    assert_eq!(value(&loaded, "profiles.a.env.TOKEN").0, &json!("***"));
    let shown = format!("{:?} {:?}", loaded.entries, loaded.settings);
    assert!(!shown.contains("hush"), "{shown}");
    let file = "[nats]\nuser = 'ann'\npassword = 'hush'\n[urule]\nregistry_token = 'hush'\n";
    let loaded = machine(file).good();
    assert_eq!(value(&loaded, "nats.password").0, &json!("***"));
    assert_eq!(value(&loaded, "urule.registry_token").0, &json!("***"));
    let shown = format!("{:?} {:?}", loaded.entries, loaded.settings);
    assert!(!shown.contains("hush"), "{shown}");
    let wrong = machine("[nats]\ntoken = 3\npassword = 'hush'\nurl = 'ann:hush@x'").problems();
    assert!(wrong.len() == 2 && !wrong.concat().contains("hush"), "{wrong:?}");
    let wrong = machine("[profiles.a.env]\nTOKEN = 'hush'\nB = 1\n").problem();
    assert!(!wrong.contains("hush"), "{wrong}");
    let wrong = machine("").env("NATS_URL", "ann:hush@x").problem();
    assert!(!wrong.contains("hush"), "{wrong}");
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_the_nearest_known() {
    let cases = [
        ("listen = '127.0.0.1:1'\nlissten = 'x'", "sandkeep.toml:2: lissten", "`listen`"),
        ("max_sandboxes = 1", "sandkeep.toml:1: max_sandboxes", "`limits.max_sandboxes`"),
        ("[limits]\nmax_sandbox = 1", ":2: limits.max_sandbox", "`limits.max_sandboxes`"),
        ("[quotas.user]\nmemory = 1", ":2: quotas.user.memory", "`quotas.user.memory_mb`"),
        ("\n[profiles.a]\nprivelege = 'root'", ":3: profiles.a.privelege", "`privilege`"),
        (
            "[profiles.a.resources]\nmemory_md = 64",
            ":2: profiles.a.resources.memory_md",
            "memory_mb`",
        ),
        ("[zzz]\nqqq = 1", ":2: zzz.qqq", "docs/reference/configuration.md"),
    ];
    for (file, place, hint) in cases {
        let said = machine(file).problem();
        assert!(said.contains(place) && said.contains(hint), "{file:?}: {said}");
    }
}

#[test]
fn everything_that_is_wrong_is_said_at_once() {
    let said = machine("storage = 'zip'\nenable_mock = 'yes'\n[limits]\nmax_sandboxes = -1\n")
        .env("SANDKEEP_DOMAIN", "-x-")
        .flag("default_runtime", " ")
        .problems();
    let places = [
        "sandkeep.toml:1: storage",
        ":2: enable_mock",
        ":4: limits",
        "SANDKEEP_DOMAIN",
        "--default-runtime",
    ];
    assert_eq!(said.len(), places.len(), "{said:?}");
    for place in places {
        assert!(said.iter().any(|line| line.contains(place)), "no {place} in {said:?}");
    }
}

#[test]
fn values_that_cannot_be_are_refused() {
    for (file, word) in [
        ("listen = 4500", "a string"),
        ("listen = 'localhost'", "127.0.0.1:4500"),
        ("cors_origins = 'https://a.example'", "a list of strings"),
        ("cors_origins = ['*']", "list each origin"),
        ("cors_origins = ['https://a.example/path']", "an origin"),
        ("cors_origins = [1]", "a list of strings"),
        ("log = 'loud'", "trace"),
        ("[nats]\nurl = 'http://x'", "nats://"),
        ("[nats]\nprefix = 'a.>'", "words of letters"),
        ("[nats]\nstream = 'a.b'", "letters, digits"),
        ("[nats]\ncreate_stream = true", "nats.stream"),
        ("[nats]\nuser = 'ann'", "also needs nats.password"),
        ("[nats]\ntoken = 'hush'\nnkey = '/n'", "nats.nkey"),
        ("[nats]\nurl = 'nats://a:b@x'\ntoken = 'hush'", "nats.url"),
        ("[nats.tls]\ncert = '/c'", "nats.tls.key"),
        ("[urule]\nevents = 'some'", "sessions, all, off"),
        ("[urule]\nregistry_url = 'http://registry.example'", "not https"),
        ("data_dir = 2026-01-01", "a string"),
        ("default_profile = 'py'", "[profiles.py]"),
        ("[limits]\nmax_sandboxes = 10001", "10000"),
        ("[quotas.user]\ncpus = -1", "0 or more"),
        ("[quotas.user]\ncpus = nan", "0 or more"),
        ("[timeouts]\nmax_timeout_secs = 99999999999", "not between"),
        ("[timeouts]\nmax_timeout_secs = 1\ndefault_timeout_secs = 2", ":3: timeouts.default"),
        ("[journal]\nmax_bytes = 1", "would not fit"),
        ("[journal]\nmax_bytes_per_exec = 1", "not between"),
        ("[profiles.a]\nnetwork = 'h ost'", "not a part of a host name"),
        ("[profiles.a]\non_timeout = 'explode'", "destroy, stop, pause"),
        ("[profiles.a]\nenv = 3", "unknown setting"),
        ("[profiles.a.resources]\npids = 1", "not between"),
        ("[profiles.'a b']\nruntime = 'x'", "letters"),
        ("profiles = 3", "unknown setting"),
        ("[profiles]\na = 3", "a table"),
        ("listen = ", "sandkeep.toml:1"),
        ("domain = 'a.example'\ndomain = 'b.example'", "sandkeep.toml:2"),
    ] {
        let said = machine(file).problem();
        assert!(said.contains(word), "{file:?}: {said}");
    }
}

#[test]
fn a_value_that_is_not_text_is_refused() {
    let said = machine("").env("SANDKEEP_DOMAIN", OsStr::from_bytes(b"\xff")).problem();
    assert_eq!(said, "SANDKEEP_DOMAIN: its value is not UTF-8");
}

#[test]
fn zero_is_no_quota_and_no_timeout() {
    let file = "[quotas.user]\nsandboxes = 0\nmemory_mb = 5\n[timeouts]\ndefault_timeout_secs = 0\ndefault_idle_timeout_secs = 60\n[limits]\nmax_sandboxes = 0";
    let settings = machine(file).good().settings;
    assert_eq!(settings.quotas.user, Quota { memory_mb: Some(5), ..Quota::default() });
    assert_eq!(settings.quotas.organization, Quota::default());
    assert_eq!(settings.timeouts.default_timeout, None);
    assert_eq!(settings.timeouts.default_idle_timeout, Some(Duration::from_secs(60)));
    assert_eq!(settings.limits.max_sandboxes, sandkeep_core::limits::SANDBOXES_MAX);
}

#[test]
fn a_profile_holds_what_its_table_says() {
    let file = "
        default_profile = 'python'
        [profiles.python]
        template = 'host'
        runtime = 'native'
        privilege = 'root'
        timeout_secs = 3600
        idle_timeout_secs = 600
        on_timeout = 'stop'
        network = 'none'
        resources = { memory_mb = 512, cpus = 1, pids = 64 }
        env = { A = 'b' }
        labels.kind = 'py'
        [profiles.empty]
    ";
    let loaded = machine(file).good();
    let python = &loaded.settings.profiles["python"];
    assert_eq!(python.runtime.as_deref(), Some("native"));
    assert_eq!(python.resources.cpus, Some(1.0));
    assert_eq!(python.timeout, Some(Duration::from_secs(3600)));
    assert_eq!(python.on_timeout, Some(OnTimeout::Stop));
    assert_eq!(python.env, BTreeMap::from([("A".to_owned(), "b".to_owned())]));
    assert_eq!(python.labels, BTreeMap::from([("kind".to_owned(), "py".to_owned())]));
    assert_eq!(loaded.settings.profiles["empty"], Profile::default());
    assert_eq!(value(&loaded, "profiles.python.resources.memory_mb").0, &json!(512));
    assert_eq!(value(&loaded, "profiles.python.privilege").0, &json!("root"));
}

#[test]
fn a_misspelt_variable_is_mentioned_but_stops_nothing() {
    let loaded = machine("").env("SANDKEEP_STORGE", "local").env("SANDKEEP_URL", "x").good();
    assert_eq!(loaded.warnings.len(), 1, "{:?}", loaded.warnings);
    assert!(loaded.warnings[0].contains("SANDKEEP_STORAGE"), "{:?}", loaded.warnings);
}

#[test]
fn a_client_reads_its_log_level_and_no_file() {
    let around = |value: &[u8]| Surroundings {
        env: [(OsString::from("SANDKEEP_LOG"), OsStr::from_bytes(value).to_owned())].into(),
        user: User::Other,
    };
    assert_eq!(client_log(None, &around(b"")).ok().as_deref(), Some("warn"));
    assert_eq!(client_log(None, &around(b"debug")).ok().as_deref(), Some("debug"));
    assert_eq!(client_log(Some("off".into()), &around(b"debug")).ok().as_deref(), Some("off"));
    assert!(client_log(None, &around(b"loud")).is_err());
    assert!(client_log(None, &around(b"\xff")).is_err());
}

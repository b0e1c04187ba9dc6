//! `docs/reference/configuration.md`, generated from the table, so that its names and defaults match the code.

use std::collections::BTreeMap;

use super::settings::Settings;
use super::table::{self, Alias, AliasMeaning, PROFILE, Setting};
use super::{Surroundings, User, words};

const INTRODUCTION: &str = "\
# Configuration

<!-- Generated: SANDKEEP_REGENERATE=1 cargo nextest run configuration_md -->

`sandkeep serve` works without any configuration. Settings come from four places; each overrides those before it:

1. the defaults;
2. a file, `sandkeep.toml`: named by `--config FILE` or `SANDKEEP_CONFIG`, otherwise `/etc/sandkeep/sandkeep.toml` for root and
   `$XDG_CONFIG_HOME/sandkeep/sandkeep.toml` (`~/.config/sandkeep/sandkeep.toml`) for other users, if it exists;
3. environment variables `SANDKEEP_*`; an empty one counts as unset;
4. flags of `sandkeep serve`.

`sandkeep config` shows every setting, its value and its origin (`default`, `file PATH:LINE`, `env NAME`, `flag`). It takes the flags of `serve`, and
`--json` for programs. Secrets are shown as `***`. Invalid and unknown settings are reported together, each with its location; `serve` and `config` then
exit with 2. A variable whose name is close to a setting's is reported and ignored.

Names follow one rule: `memory_mb` in the table `[quotas.user]` is `SANDKEEP_QUOTAS_USER_MEMORY_MB` and `--quotas-user-memory-mb`. In variables and
flags, lists are separated by commas.

```toml
listen = \"127.0.0.1:4500\"
default_profile = \"small\"

[limits]
max_sandboxes = 200

[quotas.user]
sandboxes = 20
memory_mb = 16384

[timeouts]
default_idle_timeout_secs = 3600

[profiles.small]
resources = { memory_mb = 512, cpus = 1 }
labels = { size = \"small\" }
on_timeout = \"stop\"
```

";

const PROFILES: &str = "
## Profiles

`[profiles.NAME]` is a named set of defaults for new sandboxes, selected by `sandkeep create --profile NAME` or `\"profile\": \"NAME\"`. Values
in the request override the profile; its labels and variables are added to the profile's. Profiles can only be set in the file.

| key | meaning |
|---|---|
";

fn text() -> String {
    let around = Surroundings { env: BTreeMap::new(), user: User::Root };
    let defaults = Settings::defaults(&around);
    let mut text = String::from(INTRODUCTION);
    let mut group = None;
    for row in table::rows() {
        let (table, name) = row.key.rsplit_once('.').unwrap_or(("", row.key));
        if group.replace(table) != Some(table) {
            let title =
                if table.is_empty() { "General".to_owned() } else { format!("`[{table}]`") };
            let gap = if table.is_empty() { "" } else { "\n" };
            text += &format!(
                "{gap}## {title}\n\n| key | variable and flag | default | meaning |\n|---|---|---|---|\n"
            );
        }
        let default = words::default_in_words(row, &defaults);
        let names = format!("`{}`{} `--{}`", row.variable(), aliases(row), row.flag());
        text += &format!("| `{name}` | {names} | {default} | {} |\n", row.help);
    }
    text += PROFILES;
    for row in PROFILE {
        text += &format!("| `{}` | {} |\n", row.key, row.help);
    }
    text + "| `env.NAME` | Environment variable for all commands in the sandbox |\n| `labels.NAME` | Label |\n"
}

/// The alternative names of a setting, which have lower priority.
fn aliases(row: &Setting) -> String {
    let alias = |alias: &Alias| match alias.meaning {
        AliasMeaning::Value | AliasMeaning::Advice => format!(" or `{}`,", alias.variable),
        AliasMeaning::Port => format!(" or `{}` for the port alone,", alias.variable),
    };
    match row.aliases {
        [] => ",".to_owned(),
        aliases => aliases.iter().map(alias).collect(),
    }
}

#[test]
fn configuration_md_lists_every_setting() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/configuration.md");
    if std::env::var_os("SANDKEEP_REGENERATE").is_some() {
        std::fs::write(path, text()).expect("docs can be written");
    }
    let written = std::fs::read_to_string(path).expect("docs/reference/configuration.md exists");
    assert!(
        written == text(),
        "docs/reference/configuration.md is stale: run with SANDKEEP_REGENERATE=1"
    );
}

#[test]
fn no_two_settings_share_a_name() {
    let names: Vec<String> = table::rows().map(Setting::variable).collect();
    let different: std::collections::BTreeSet<&String> = names.iter().collect();
    assert_eq!(names.len(), different.len());
}

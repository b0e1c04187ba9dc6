//! Rules over several files: the promises of documents and lists match the code.

use std::collections::{BTreeMap, BTreeSet};

use crate::rules::is_test;
use crate::source::{Source, Token};

/// The differences between two sets that ought to be equal, in words.
fn differences(
    listed: &BTreeSet<String>,
    list: &str,
    used: &BTreeSet<String>,
    uses: &str,
) -> Vec<String> {
    let only_listed = listed.difference(used).map(|n| format!("{n}: in {list}, not in {uses}"));
    let only_used = used.difference(listed).map(|n| format!("{n}: in {uses}, not in {list}"));
    only_listed.chain(only_used).collect()
}

/// `failpoint::ALL` compared with the `failpoint!("…")`s of the code.
pub fn failpoints_are_listed(list: &Source, sources: &[Source]) -> Vec<String> {
    let is_name = |text: &&String| {
        text.split_once('.').is_some_and(|(verb, place)| is_snake(verb) && is_snake(place))
    };
    let listed = list.strings.iter().filter(is_name).cloned().collect();
    let users = sources.iter().filter(|s| !is_test(s) && s.path != list.path);
    let used = users.flat_map(failpoints_of).collect();
    differences(&listed, "failpoint::ALL", &used, "a failpoint! of the code")
}

fn failpoints_of(source: &Source) -> Vec<String> {
    let lines = source.text.lines().zip(source.code.lines());
    lines
        .filter(|(_, code)| code.contains("failpoint!("))
        .flat_map(|(text, _)| text.split("failpoint!(\"").skip(1))
        .filter_map(|rest| rest.split('"').next())
        .map(str::to_owned)
        .collect()
}

fn is_snake(text: &str) -> bool {
    !text.is_empty()
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// Every public command of the CLI must be in the text as `sandkeep <command>`.
pub fn commands_are_documented(sources: &[Source], document: &str) -> Vec<String> {
    let commands: Vec<String> = sources.iter().flat_map(subcommands).collect();
    if commands.is_empty() {
        return vec![
            "no enum with a derived `Subcommand` was found: this rule sees nothing".into(),
        ];
    }
    commands
        .into_iter()
        .filter(|command| !document.contains(&format!("sandkeep {command}")))
        .map(|command| format!("`sandkeep {command}` is in neither README nor a guide"))
        .collect()
}

/// The variants of enums that derive `Subcommand`, without hidden ones, in kebab case.
fn subcommands(source: &Source) -> Vec<String> {
    if is_test(source) {
        return Vec::new();
    }
    let tokens = source.tokens();
    let Some(derive) = tokens.iter().position(|t| t.text == "Subcommand" && !in_use(source, t))
    else {
        return Vec::new();
    };
    let Some(open) = tokens[derive..].iter().position(|t| t.text == "{") else {
        return Vec::new();
    };
    let parent = parent_command(source);
    let typed = |name: String| format!("{parent}{}", kebab(&name));
    variants(&tokens[derive + open..]).into_iter().map(typed).collect()
}

/// The command that a file of subcommands is named after.
fn parent_command(source: &Source) -> String {
    match source.path.split_once("/cli/").and_then(|(_, file)| file.strip_suffix(".rs")) {
        Some(name) => format!("{name} "),
        None => String::new(),
    }
}

fn in_use(source: &Source, token: &Token<'_>) -> bool {
    source.code.lines().nth(token.line - 1).is_some_and(|line| line.trim().starts_with("use "))
}

/// The names at the first level of a braced enum, except those with a `hide` attribute.
fn variants(tokens: &[Token<'_>]) -> Vec<String> {
    let mut names = Vec::new();
    let (mut depth, mut hidden, mut expects_name) = (0usize, false, true);
    for token in tokens {
        match token.text {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" if depth <= 1 => break,
            "}" | ")" | "]" => depth -= 1,
            "hide" if depth == 3 => hidden = true,
            "," if depth == 1 => expects_name = true,
            name if depth == 1 && expects_name && name.starts_with(char::is_uppercase) => {
                if !std::mem::take(&mut hidden) {
                    names.push(name.to_owned());
                }
                expects_name = false;
            }
            _ => {}
        }
    }
    names
}

fn kebab(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !out.is_empty() {
            out.push('-');
        }
        out.extend(c.to_lowercase());
    }
    out
}

/// Relative links of a Markdown text whose target does not exist.
pub fn links_lead_somewhere(document: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let targets = document.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets
        .map(|target| target.split('#').next().unwrap_or(""))
        .filter(|target| !target.is_empty() && !target.contains("://") && !exists(target))
        .map(|target| format!("the link to {target} leads nowhere"))
        .collect()
}

/// Packages that only the fuzzers use.
const OF_FUZZING: [&str; 3] = ["arbitrary", "libfuzzer-sys", "sandkeep-fuzz"];

/// Compares the fuzzers' own lock file with the product's, and with the manifests of its crates: fuzzers must test the
/// shipped versions, and cargo must not have to complete the file.
pub fn fuzzers_try_what_ships(shipped: &str, tried: &str, manifests: &[String]) -> Vec<String> {
    let (shipped, tried) = (locked(shipped), locked(tried));
    let mut found: Vec<String> = tried
        .keys()
        .filter(|package| !shipped.contains_key(package) && !OF_FUZZING.contains(&&*package.0))
        .map(|(name, version)| format!("{name} {version} is in fuzz/Cargo.lock alone"))
        .collect();
    for manifest in manifests {
        let manifest: toml::Table = manifest.parse().expect("a manifest");
        let name = word(&manifest["package"], "name");
        let has: BTreeSet<&String> = tried
            .iter()
            .filter(|((package, _), _)| *package == name)
            .flat_map(|(_, needs)| needs)
            .collect();
        // Not all of our crates are fuzzed.
        if !tried.keys().any(|(package, _)| *package == name) {
            continue;
        }
        let needs = manifest.get("dependencies").and_then(toml::Value::as_table);
        // Optional dependencies may be left out.
        let is_optional = |need: &toml::Value| need.get("optional").is_some();
        let needs = needs.into_iter().flatten().filter(|(_, need)| !is_optional(need));
        let lacks = needs.map(|(need, _)| need).filter(|need| !has.contains(need));
        found.extend(lacks.map(|need| format!("{name} needs {need}, fuzz/Cargo.lock has none")));
    }
    if !found.is_empty() {
        found.push(
            "to mend it: cp Cargo.lock fuzz/ && (cd fuzz && cargo metadata >/dev/null)".into(),
        );
    }
    found
}

/// Every package of a lock file by its name and version, and the names of its dependencies.
fn locked(lock: &str) -> BTreeMap<(String, String), BTreeSet<String>> {
    let lock: toml::Table = lock.parse().expect("a lock file");
    let packages = lock["package"].as_array().expect("packages").iter();
    packages
        .map(|package| {
            let needs = package.get("dependencies").and_then(toml::Value::as_array);
            let needs = needs.into_iter().flatten().filter_map(toml::Value::as_str);
            // If a name occurs twice, the version follows it.
            let names = needs.filter_map(|need| need.split(' ').next()).map(str::to_owned);
            ((word(package, "name"), word(package, "version")), names.collect())
        })
        .collect()
}

fn word(table: &toml::Value, key: &str) -> String {
    table[key].as_str().expect("a word").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failpoint_that_is_not_listed_or_not_used_is_found() {
        let list =
            Source::new("crates/core/src/failpoint.rs", "ALL = &[\"create.a\", \"stop.b\"];");
        let code = |text| [Source::new("crates/broker/src/create.rs", text)];
        let both = "failpoint!(\"create.a\"); failpoint!(\"stop.b\");";
        assert_eq!(failpoints_are_listed(&list, &code(both)).len(), 0);
        assert_eq!(failpoints_are_listed(&list, &code("failpoint!(\"create.a\");")).len(), 1);
        let more = format!("{both} failpoint!(\"exec.c\");");
        assert_eq!(failpoints_are_listed(&list, &code(&more)).len(), 1);
    }

    #[test]
    fn a_command_that_no_document_names_is_found() {
        let cli = "use clap::Subcommand;\n#[derive(Debug, Subcommand)]\nenum Command {\n/// x\nServe(A),\n#[command(hide = true)]\nLauncher,\nShowAll { id: String },\n}";
        let sources = [Source::new("crates/sandkeep/src/cli.rs", cli)];
        assert_eq!(commands_are_documented(&sources, "sandkeep serve, sandkeep show-all"), [""; 0]);
        assert_eq!(commands_are_documented(&sources, "sandkeep serve").len(), 1);
        assert_eq!(commands_are_documented(&[], "").len(), 1, "seeing no command must not pass");
    }

    #[test]
    fn a_dead_link_is_found() {
        let text = "[a](docs/a.md#x) [b](https://b.example) [c](#top) [d](gone.md)";
        assert_eq!(links_lead_somewhere(text, |t| t == "docs/a.md").len(), 1);
    }

    #[test]
    fn a_lock_of_the_fuzzers_that_is_stale_is_found() {
        let lock = |tar: &str, needs: &str| {
            format!(
                "[[package]]\nname='sandkeep'\nversion='1'\ndependencies=[{needs}]\n\
                 [[package]]\nname='tar'\nversion='{tar}'\n"
            )
        };
        let shipped = lock("2", "'tar', 'serde 1'");
        let manifests =
            ["[package]\nname='sandkeep'\n[dependencies]\ntar='2'\nserde='1'".to_owned()];
        let stale = |tried: &str| fuzzers_try_what_ships(&shipped, tried, &manifests);
        assert_eq!(stale(&shipped), [""; 0]);
        assert!(stale(&lock("1", "'tar', 'serde'"))[0].contains("tar 1"));
        assert!(stale(&lock("2", "'serde'"))[0].contains("needs tar"));
    }
}

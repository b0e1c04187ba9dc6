//! Parameters of tools: as Flex calls them, and as ours are called.

use serde_json::{Map, Value, json};

use sandkeep_broker::{GitVerb, ToolName};

/// Parameters that ours have under another name.
const RENAMED: [(&[ToolName], &str, &str); 4] = [
    (&[ToolName::Bash], "cmd", "command"),
    (&[ToolName::ReadFile, ToolName::WriteFile, ToolName::EditFile], "file_path", "path"),
    (&[ToolName::Grep, ToolName::Glob, ToolName::Ls], "directory", "path"),
    (&[ToolName::Git(GitVerb::Add)], "path", "paths"),
];

/// Arguments of git that no parameter stands for.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidArgs {
    #[error("args: expected a list of strings")]
    NotAList,
    #[error("args: {option} is not supported; supported are: {known}")]
    Option { option: String, known: &'static str },
    #[error("args: {option} needs a value")]
    NoValue { option: String },
    #[error("args: {text:?} is one too many")]
    TooMany { text: String },
}

/// The arguments of our tool. Whether they fit is for the broker to check.
pub fn ours(
    name: ToolName,
    mut params: Map<String, Value>,
) -> Result<Map<String, Value>, InvalidArgs> {
    params.retain(|_, value| !value.is_null());
    for (tools, theirs, ours) in RENAMED {
        if !tools.contains(&name) || params.contains_key(ours) {
            continue;
        }
        if let Some(value) = params.remove(theirs) {
            let value = match (ours, value) {
                ("paths", Value::String(path)) => json!([path]),
                (_, value) => value,
            };
            params.insert(ours.to_owned(), value);
        }
    }
    let Some(grammar) = Grammar::of(name) else { return Ok(params) };
    let Some(args) = params.remove("args") else { return Ok(params) };
    let args: Vec<String> = serde_json::from_value(args).map_err(|_| InvalidArgs::NotAList)?;
    params.extend(grammar.read(args)?);
    Ok(params)
}

/// What the arguments of a git command may be.
struct Grammar {
    /// What stands without a dash, in order.
    places: &'static [&'static str],
    /// Options without a value, and with one.
    flags: &'static [(&'static str, &'static str)],
    options: &'static [(&'static str, &'static str)],
    known: &'static str,
}

impl Grammar {
    fn of(name: ToolName) -> Option<Self> {
        let remote = &["remote", "branch"];
        match name {
            ToolName::Git(GitVerb::Clone) => Some(Self {
                places: &["url", "path"],
                flags: &[],
                options: &[("--depth", "depth"), ("--branch", "branch"), ("-b", "branch")],
                known: "URL [PATH], --depth N, --branch NAME",
            }),
            ToolName::Git(GitVerb::Fetch | GitVerb::Pull) => {
                Some(Self { places: remote, flags: &[], options: &[], known: "[REMOTE [BRANCH]]" })
            }
            ToolName::Git(GitVerb::Push) => Some(Self {
                places: remote,
                flags: &[("-u", "set_upstream"), ("--set-upstream", "set_upstream")],
                options: &[],
                known: "[REMOTE [BRANCH]], --set-upstream",
            }),
            _ => None,
        }
    }

    fn read(&self, args: Vec<String>) -> Result<Map<String, Value>, InvalidArgs> {
        let (mut found, mut places) = (Map::new(), self.places.iter());
        let mut args = args.into_iter();
        let named = |list: &[(&str, &'static str)], option: &str| {
            list.iter().find(|(name, _)| *name == option).map(|(_, parameter)| *parameter)
        };
        while let Some(arg) = args.next() {
            if !arg.starts_with('-') {
                let Some(place) = places.next() else {
                    return Err(InvalidArgs::TooMany { text: arg });
                };
                found.insert((*place).to_owned(), arg.into());
                continue;
            }
            let (option, value) = match arg.split_once('=') {
                Some((option, value)) => (option.to_owned(), Some(value.to_owned())),
                None => (arg, None),
            };
            if let (Some(parameter), None) = (named(self.flags, &option), &value) {
                found.insert(parameter.to_owned(), true.into());
            } else if let Some(parameter) = named(self.options, &option) {
                let value = value.or_else(|| args.next());
                let value = value.ok_or(InvalidArgs::NoValue { option })?;
                // A number is one; our parameters say which are.
                let value = match (parameter, value.parse::<u64>()) {
                    ("depth", Ok(number)) => number.into(),
                    _ => Value::from(value),
                };
                found.insert(parameter.to_owned(), value);
            } else {
                return Err(InvalidArgs::Option { option, known: self.known });
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, params: Value) -> Result<Value, InvalidArgs> {
        let name = name.parse().expect("a tool");
        let Value::Object(params) = params else { panic!("parameters are an object") };
        ours(name, params).map(Value::Object)
    }

    #[test]
    fn parameters_are_called_as_flex_calls_them_or_as_we_do() {
        let cases = [
            (
                "bash",
                json!({ "cmd": "ls", "timeout_ms": 5 }),
                json!({ "command": "ls", "timeout_ms": 5 }),
            ),
            ("bash", json!({ "command": "ls", "cwd": null }), json!({ "command": "ls" })),
            ("read_file", json!({ "file_path": "a" }), json!({ "path": "a" })),
            (
                "grep",
                json!({ "pattern": "x", "directory": "d" }),
                json!({ "pattern": "x", "path": "d" }),
            ),
            ("git_add", json!({ "path": "a" }), json!({ "paths": ["a"] })),
            (
                "git_push",
                json!({ "args": ["-u", "origin", "main"] }),
                json!({ "set_upstream": true, "remote": "origin", "branch": "main" }),
            ),
            (
                "git_clone",
                json!({ "args": ["--depth=1", "-b", "v1", "http://x/y", "z"] }),
                json!({ "depth": 1, "branch": "v1", "url": "http://x/y", "path": "z" }),
            ),
            ("git_fetch", json!({ "args": [] }), json!({})),
            ("git_commit", json!({ "message": "m" }), json!({ "message": "m" })),
        ];
        for (name, params, expected) in cases {
            assert_eq!(read(name, params), Ok(expected), "{name}");
        }
    }

    #[test]
    fn what_git_could_be_told_besides_is_refused() {
        for (name, args) in [
            ("git_push", json!(["--force"])),
            ("git_push", json!(["origin", "main", "more"])),
            ("git_clone", json!(["--upload-pack=sh", "x"])),
            ("git_clone", json!(["--depth"])),
            ("git_fetch", json!("origin")),
            ("git_pull", json!([1])),
        ] {
            assert!(read(name, json!({ "args": args })).is_err(), "{name} {args}");
        }
    }
}

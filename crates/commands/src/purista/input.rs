//! Payloads of commands, of every generation that there was: fields that came later may be missing, and those that are
//! not known are ignored.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use sandkeep_core::limits::LABEL_MAX_BYTES;
use serde::Serialize;
use serde_json::{Map, Value};

/// The longest name of an organization, a user, a project or a scope.
pub const NAME_MAX_BYTES: usize = 255;
/// How long a command may take, and takes if it does not say.
pub const TIMEOUT_MAX_MS: u64 = 1_800_000;

/// What is wrong with one field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Issue {
    pub path: Vec<String>,
    pub message: String,
}

/// A payload while it is read. Everything that is wrong with it is told at once.
pub struct Input {
    fields: Map<String, Value>,
    issues: Vec<Issue>,
}

/// Whose sandboxes share a slot of an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeInput {
    pub kind: String,
    pub key: Option<String>,
}

#[derive(Clone, PartialEq, Eq)]
pub struct GitConfig {
    pub username: String,
    pub email: String,
    pub token: Option<String>,
}

pub struct Creation {
    pub project: String,
    pub organization: Option<String>,
    pub user: Option<String>,
    pub scope: ScopeInput,
    pub git: Option<GitConfig>,
}

/// A sandbox that is there, as its caller names it.
pub struct Named {
    pub uuid: String,
    pub project: Option<String>,
}

pub struct Bash {
    pub command: String,
    pub cwd: Option<String>,
    pub timeout_ms: u64,
}

/// The scope of those that name none.
pub const SHARED: &str = "shared-project-user";
const SCOPES: [&str; 6] =
    [SHARED, "agent-run", "agent-instance", "conversation", "runtime-instance", "custom"];

impl Input {
    /// A call over HTTP has the values of its path and query in `parameter`.
    pub fn new(payload: Value, parameter: Value) -> Self {
        let mut input = Self { fields: Map::new(), issues: Vec::new() };
        for part in [parameter, payload] {
            match part {
                Value::Object(fields) => input.fields.extend(fields),
                Value::Null => {}
                _ => input.wrong(&[], "Expected object"),
            }
        }
        input
    }

    /// What was read, if nothing was wrong with it.
    pub fn done<T>(self, read: T) -> Result<T, Vec<Issue>> {
        if self.issues.is_empty() { Ok(read) } else { Err(self.issues) }
    }

    pub fn creation(mut self) -> Result<Creation, Vec<Issue>> {
        let creation = Creation {
            project: self.name("projectId").unwrap_or_default(),
            organization: self.optional_name("organizationId"),
            user: self.optional_name("userId"),
            scope: self.scope(),
            git: self.git(),
        };
        self.done(creation)
    }

    pub fn named(&mut self) -> Named {
        let uuid = self.required("sandboxId").unwrap_or_default();
        Named { uuid, project: self.optional_name("projectId") }
    }

    pub fn bash(&mut self) -> Bash {
        Bash {
            command: self.required("command").unwrap_or_default(),
            cwd: self.optional("cwd"),
            timeout_ms: self.timeout(),
        }
    }

    pub fn path(&mut self) -> String {
        self.required("path").unwrap_or_default()
    }

    /// Files with their contents: plain text, as the first generation had it, or with an encoding.
    pub fn files(&mut self) -> Vec<(String, Bytes)> {
        match self.fields.remove("files") {
            Some(Value::Object(files)) => {
                files.into_iter().filter_map(|(path, content)| self.file(path, content)).collect()
            }
            Some(_) => self.wrong_files("Expected object"),
            None => self.wrong_files("Required"),
        }
    }

    fn wrong_files(&mut self, message: &str) -> Vec<(String, Bytes)> {
        self.wrong(&["files"], message);
        Vec::new()
    }

    fn file(&mut self, path: String, content: Value) -> Option<(String, Bytes)> {
        if path.is_empty() {
            self.wrong(&["files", ""], "the path is empty");
            return None;
        }
        let bytes = match &content {
            Value::String(text) => Ok(Bytes::from(text.clone())),
            Value::Object(file) => {
                let text = file.get("content").and_then(Value::as_str);
                let text = text.ok_or_else(|| ("content", "Expected string".to_owned()));
                match file.get("encoding").map(|encoding| encoding.as_str()) {
                    None | Some(Some("utf-8")) => text.map(|text| Bytes::from(text.to_owned())),
                    Some(Some("base64")) => text.and_then(|text| {
                        let decoded = STANDARD.decode(text);
                        decoded
                            .map(Bytes::from)
                            .map_err(|e| ("content", format!("not base64: {e}")))
                    }),
                    Some(_) => Err(("encoding", "Expected 'utf-8' | 'base64'".to_owned())),
                }
            }
            _ => Err(("content", "Expected string or object".to_owned())),
        };
        match bytes {
            Ok(bytes) => Some((path, bytes)),
            Err((field, message)) => {
                self.wrong(&["files", &path, field], &message);
                None
            }
        }
    }

    fn scope(&mut self) -> ScopeInput {
        let shared = || ScopeInput { kind: SHARED.to_owned(), key: None };
        let mut fields = match self.fields.remove("scope") {
            None | Some(Value::Null) => return shared(),
            Some(Value::Object(fields)) => fields,
            Some(_) => {
                self.wrong(&["scope"], "Expected object");
                return shared();
            }
        };
        let kind = match fields.remove("kind") {
            Some(Value::String(kind)) if SCOPES.contains(&kind.as_str()) => kind,
            None => SHARED.to_owned(),
            Some(_) => {
                self.wrong(&["scope", "kind"], &format!("Expected one of {}", SCOPES.join(", ")));
                return shared();
            }
        };
        let key = match fields.remove("key") {
            None | Some(Value::Null) => None,
            Some(Value::String(key)) if !key.is_empty() && key.len() <= SCOPE_KEY_MAX_BYTES => {
                Some(key)
            }
            Some(_) => {
                let message = format!("Expected string of 1 to {SCOPE_KEY_MAX_BYTES} bytes");
                self.wrong(&["scope", "key"], &message);
                None
            }
        };
        match (kind == SHARED, &key) {
            (false, None) => self.wrong(&["scope", "key"], "Required"),
            // It means nothing there.
            (true, Some(_)) => return shared(),
            (false, Some(_)) | (true, None) => {}
        }
        ScopeInput { kind, key }
    }

    fn git(&mut self) -> Option<GitConfig> {
        let mut part = match self.fields.remove("gitConfig") {
            None | Some(Value::Null) => return None,
            Some(Value::Object(fields)) => Self { fields, issues: Vec::new() },
            Some(_) => {
                self.wrong(&["gitConfig"], "Expected object");
                return None;
            }
        };
        let username = part.line("username");
        let email = part.line("email");
        let token = part.fields.contains_key("token").then(|| part.line("token")).flatten();
        self.issues.extend(part.issues.into_iter().map(|mut issue| {
            issue.path.insert(0, "gitConfig".to_owned());
            issue
        }));
        Some(GitConfig { username: username?, email: email?, token })
    }

    /// A text on one line.
    fn line(&mut self, field: &str) -> Option<String> {
        let text = self.required(field)?;
        let fine = text.len() <= LABEL_MAX_BYTES && !text.contains(char::is_control);
        if !fine {
            self.wrong(&[field], "Expected one line of text");
        }
        fine.then_some(text)
    }

    fn timeout(&mut self) -> u64 {
        match self.fields.remove("timeoutMs") {
            None | Some(Value::Null) => TIMEOUT_MAX_MS,
            Some(value) => {
                // JavaScript has one kind of number: 5000.0 is a whole one.
                let whole = value.as_u64().or_else(|| {
                    value.as_f64().filter(|ms| ms.fract() == 0.0 && *ms >= 0.0).map(|ms| ms as u64)
                });
                let ms = whole.filter(|ms| (1..=TIMEOUT_MAX_MS).contains(ms));
                if ms.is_none() {
                    let message = format!("Expected whole number from 1 to {TIMEOUT_MAX_MS}");
                    self.wrong(&["timeoutMs"], &message);
                }
                ms.unwrap_or(TIMEOUT_MAX_MS)
            }
        }
    }

    /// A name of an owner's part.
    fn name(&mut self, field: &str) -> Option<String> {
        let name = self.required(field)?;
        let fine = name.len() <= NAME_MAX_BYTES;
        if !fine {
            self.wrong(&[field], &format!("Expected at most {NAME_MAX_BYTES} bytes"));
        }
        fine.then_some(name)
    }

    fn optional_name(&mut self, field: &str) -> Option<String> {
        match self.fields.get(field) {
            None | Some(Value::Null) => None,
            Some(_) => self.name(field),
        }
    }

    fn required(&mut self, field: &str) -> Option<String> {
        match self.fields.remove(field) {
            Some(Value::String(text)) if !text.trim().is_empty() => Some(text),
            Some(Value::String(_)) => {
                self.wrong(&[field], "Expected at least 1 character");
                None
            }
            Some(_) => {
                self.wrong(&[field], "Expected string");
                None
            }
            None => {
                self.wrong(&[field], "Required");
                None
            }
        }
    }

    fn optional(&mut self, field: &str) -> Option<String> {
        match self.fields.get(field) {
            None | Some(Value::Null) => None,
            Some(_) => self.required(field),
        }
    }

    fn wrong(&mut self, path: &[&str], message: &str) {
        let path = path.iter().map(|part| (*part).to_owned()).collect();
        self.issues.push(Issue { path, message: message.to_owned() });
    }
}

/// What fits into a label beside its name.
const SCOPE_KEY_MAX_BYTES: usize = 900;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn paths(issues: Vec<Issue>) -> Vec<String> {
        issues.into_iter().map(|issue| issue.path.join(".")).collect()
    }

    #[test]
    fn every_generation_of_create_is_understood() {
        let read = |payload| Input::new(payload, Value::Null).creation();
        let oldest = json!({ "projectId": "p", "organizationId": "o", "userId": "u" });
        let oldest = read(oldest).expect("fine");
        assert_eq!(
            (oldest.organization.as_deref(), oldest.scope.kind.as_str()),
            (Some("o"), SHARED)
        );
        let newest = json!({ "projectId": "p", "scope": { "kind": "agent-run", "key": "7" },
            "gitConfig": { "username": "a", "email": "b" }, "later": true });
        let newest = read(newest).expect("fine");
        assert_eq!(newest.scope.key.as_deref(), Some("7"));
        assert!(newest.git.is_some_and(|git| git.token.is_none()));
        let wrong = json!({ "scope": { "kind": "agent-run" }, "gitConfig": { "username": 1 } });
        let issues = paths(read(wrong).err().expect("wrong"));
        assert_eq!(issues, ["projectId", "scope.key", "gitConfig.username", "gitConfig.email"]);
        let issues = paths(read(json!([])).err().expect("wrong"));
        assert_eq!(issues, ["", "projectId"]);
    }

    #[test]
    fn values_of_a_path_come_in_the_parameter() {
        let mut input = Input::new(Value::Null, json!({ "sandboxId": "s", "path": "a" }));
        assert_eq!((input.named().uuid.as_str(), input.path().as_str()), ("s", "a"));
        assert!(input.done(()).is_ok());
    }

    #[test]
    fn files_are_text_or_have_an_encoding() {
        let files = json!({ "files": { "a": "x", "b": { "encoding": "base64", "content": "AAE=" },
            "c": { "encoding": "utf-8", "content": "é" } } });
        let mut input = Input::new(files, Value::Null);
        let files = input.files();
        let contents: Vec<&[u8]> = files.iter().map(|(_, content)| content.as_ref()).collect();
        assert_eq!(contents, [b"x".as_ref(), &[0, 1], "é".as_bytes()]);
        let wrong = json!({ "files": { "a": 1, "b": { "encoding": "base64", "content": "?" },
            "c": { "encoding": "x", "content": "" }, "": "x" } });
        let mut input = Input::new(wrong, Value::Null);
        assert!(input.files().is_empty());
        let mut issues = paths(input.done(()).expect_err("wrong"));
        issues.sort();
        assert_eq!(issues, ["files.", "files.a.content", "files.b.content", "files.c.encoding"]);
    }

    #[test]
    fn a_timeout_is_a_whole_number_within_bounds() {
        let read = |ms: Value| {
            let mut input = Input::new(json!({ "command": "x", "timeoutMs": ms }), Value::Null);
            let bash = input.bash();
            input.done(bash.timeout_ms).ok()
        };
        assert_eq!(read(Value::Null), Some(TIMEOUT_MAX_MS));
        assert_eq!(read(json!(1)), Some(1));
        assert_eq!(read(json!(5000.0)), Some(5000));
        for bad in [json!(0), json!(-1), json!(1.5), json!(1_800_001), json!("9")] {
            assert_eq!(read(bad.clone()), None, "{bad}");
        }
    }
}

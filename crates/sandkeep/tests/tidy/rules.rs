//! Rules about a single file: names, words, lengths, waits and queues.

use crate::source::{Source, Token};

/// A violation of a rule: its location, and what to do about it.
#[derive(Debug, PartialEq, Eq)]
pub struct Violation {
    pub path: String,
    pub line: usize,
    pub problem: String,
}

impl Violation {
    pub fn new(source: &Source, line: usize, problem: impl Into<String>) -> Self {
        Self { path: source.path.clone(), line, problem: problem.into() }
    }
}

const FILE_MAX_LINES: usize = 600;
const FUNCTION_MAX_LINES: usize = 100;
const VAGUE_NAMES: &[&str] =
    &["utils", "util", "common", "manager", "helpers", "helper", "misc", "mod"];

pub fn names_say_what_is_inside(source: &Source) -> Vec<Violation> {
    let stems = source.path.split('/').map(|part| part.strip_suffix(".rs").unwrap_or(part));
    stems
        .filter(|stem| VAGUE_NAMES.contains(stem))
        .map(|stem| Violation::new(source, 1, format!("{stem:?} says nothing: name the idea")))
        .collect()
}

pub fn unsafe_stays_in_its_rooms(source: &Source) -> Vec<Violation> {
    let rooms = ["crates/sys/", "crates/guest/", "crates/probe/src/sys"];
    if rooms.iter().any(|room| source.path.starts_with(room)) {
        return Vec::new();
    }
    each(source, |tokens| (tokens[0].text == "unsafe").then(|| "`unsafe` outside of sys".into()))
}

pub fn files_are_small(source: &Source) -> Vec<Violation> {
    let lines = source.code.lines().count() - test_lines(source);
    if lines > FILE_MAX_LINES {
        vec![Violation::new(source, 1, format!("{lines} lines: split where ideas part"))]
    } else {
        Vec::new()
    }
}

pub fn functions_are_small(source: &Source) -> Vec<Violation> {
    let tokens = source.tokens();
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate().filter(|(_, t)| t.text == "fn") {
        let Some(end) = body_end(&tokens[at..]) else { continue };
        let lines = end - token.line + 1;
        if lines > FUNCTION_MAX_LINES {
            let name = tokens.get(at + 1).map_or("", |t| t.text);
            found.push(Violation::new(source, token.line, format!("`{name}` has {lines} lines")));
        }
    }
    found
}

pub fn nothing_is_left_half_done(source: &Source) -> Vec<Violation> {
    let mut found = each(source, |tokens| match tokens {
        [word, mark, ..]
            if mark.text == "!" && ["todo", "unimplemented", "dbg"].contains(&word.text) =>
        {
            Some(format!("`{}!` is left in", word.text))
        }
        _ => None,
    });
    for (index, line) in source.comments.lines().enumerate() {
        let words = line.split(|c: char| !c.is_alphanumeric());
        for word in words.filter(|w| ["TODO", "FIXME", "XXX", "HACK"].contains(w)) {
            found.push(Violation::new(source, index + 1, format!("{word}: do it or file it")));
        }
    }
    found
}

pub fn nothing_dead_is_excused(source: &Source) -> Vec<Violation> {
    each(source, |tokens| match tokens {
        [how, open, what, ..]
            if ["allow", "expect"].contains(&how.text)
                && open.text == "("
                && what.text == "dead_code" =>
        {
            Some("dead code is excused: remove it".into())
        }
        _ => None,
    })
}

pub fn errors_are_types(source: &Source) -> Vec<Violation> {
    each(source, |tokens| {
        if tokens[0].text != "Result" || tokens.get(1).map(|t| t.text) != Some("<") {
            return None;
        }
        let arguments = generic_arguments(&tokens[1..]);
        let error = arguments.get(1)?;
        matches!(error.last(), Some(&"String" | &"str"))
            .then(|| "an error that is a string cannot be matched: use an enum".into())
    })
}

pub fn waits_and_queues_have_their_bound_in_limits(source: &Source) -> Vec<Violation> {
    let runs_inside = ["guest", "guest-proto", "probe", "toolbox"];
    if is_test(source)
        || runs_inside.iter().any(|name| source.path.starts_with(&format!("crates/{name}/")))
    {
        return Vec::new();
    }
    if source.path.starts_with("crates/core/src/limits") {
        return Vec::new();
    }
    let last = source.code.lines().count() - test_lines(source);
    let mut found = each(source, |tokens| match tokens {
        [word, ..] if word.text == "unbounded_channel" => {
            Some("a queue without a bound: take one from limits.rs".into())
        }
        [word, open, first, ..] if open.text == "(" && is_number(first.text) => {
            let is_wait = word.text.starts_with("from_")
                && ["secs", "millis", "micros", "mins", "secs_f64"]
                    .contains(&&word.text["from_".len()..]);
            let is_queue = word.text == "channel" && first.text != "1";
            (is_wait || is_queue)
                .then(|| format!("{}({}) belongs in limits.rs", word.text, first.text))
        }
        _ => None,
    });
    found.retain(|violation| violation.line <= last);
    found
}

pub fn tests_wait_for_conditions(source: &Source) -> Vec<Violation> {
    if !source.path.contains("/tests/") || source.path.ends_with("/support/wait.rs") {
        return Vec::new();
    }
    each(source, |tokens| match tokens {
        [word, open, ..] if word.text == "sleep" && open.text == "(" => {
            Some("a sleep in a test: wait for the condition with support::wait".into())
        }
        _ => None,
    })
}

/// Whole files that only tests use.
pub fn is_test(source: &Source) -> bool {
    let stem_is = |name: &str| source.path.ends_with(&format!("/{name}.rs"));
    source.path.contains("/tests/")
        || source.path.contains("/conformance")
        || stem_is("tests")
        || stem_is("build")
}

/// How many lines at the end of the file are its `#[cfg(test)] mod … { … }`. Test modules come last.
fn test_lines(source: &Source) -> usize {
    let lines: Vec<&str> = source.code.lines().collect();
    let starts_tests = |at: &usize| {
        lines[*at].trim() == "#[cfg(test)]"
            && lines[at + 1..]
                .iter()
                .find(|line| !line.trim().starts_with('#'))
                .is_some_and(|line| line.trim().starts_with("mod ") && line.contains('{'))
    };
    (0..lines.len()).find(starts_tests).map_or(0, |at| lines.len() - at)
}

/// Applies `rule` at every token, with all tokens after it.
fn each(source: &Source, rule: impl Fn(&[Token<'_>]) -> Option<String>) -> Vec<Violation> {
    let tokens = source.tokens();
    (0..tokens.len())
        .filter_map(|at| rule(&tokens[at..]).map(|p| Violation::new(source, tokens[at].line, p)))
        .collect()
}

fn is_number(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
}

/// The line of the brace that closes the function starting at the first token; `None` for a
/// declaration without a body.
fn body_end(tokens: &[Token<'_>]) -> Option<usize> {
    let (mut braces, mut others) = (0usize, 0usize);
    for token in tokens {
        match token.text {
            "(" | "[" => others += 1,
            ")" | "]" => others = others.checked_sub(1)?,
            ";" if braces == 0 && others == 0 => return None,
            "{" => braces += 1,
            "}" if braces == 1 => return Some(token.line),
            "}" => braces = braces.checked_sub(1)?,
            _ => {}
        }
    }
    None
}

/// `< A , B >` as its arguments' tokens; nested brackets stay inside their argument.
fn generic_arguments<'a>(tokens: &[Token<'a>]) -> Vec<Vec<&'a str>> {
    let mut arguments = vec![Vec::new()];
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate() {
        match token.text {
            "<" | "(" | "[" => depth += 1,
            ">" if at > 0 && tokens[at - 1].text == "-" => {}
            ">" | ")" | "]" if depth <= 1 => break,
            ">" | ")" | "]" => depth -= 1,
            "," if depth == 1 => arguments.push(Vec::new()),
            ";" | "{" => break,
            text => {
                if let Some(last) = arguments.last_mut() {
                    last.push(text);
                }
            }
        }
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rule must accept the good text and refuse the bad one, at this path.
    fn tells_apart(rule: fn(&Source) -> Vec<Violation>, path: &str, good: &str, bad: &str) {
        assert_eq!(rule(&Source::new(path, good)), [], "refused {good:?}");
        assert_ne!(rule(&Source::new(path, bad)), [], "accepted {bad:?}");
    }

    const BROKER: &str = "crates/broker/src/lib.rs";

    #[test]
    fn a_vague_name_is_refused() {
        let named = |path| names_say_what_is_inside(&Source::new(path, "")).len();
        assert_eq!(named("crates/broker/src/registry.rs"), 0);
        assert_eq!(named("crates/broker/src/mod.rs"), 1);
        assert_eq!(named("crates/broker/src/utils/paths.rs"), 1);
        assert_eq!(named("crates/broker/src/session/manager.rs"), 1);
    }

    #[test]
    fn unsafe_outside_of_sys_is_refused() {
        let (good, bad) = ("#![deny(unsafe_code)] // unsafe", "fn f() { unsafe { g() } }");
        tells_apart(unsafe_stays_in_its_rooms, BROKER, good, bad);
        let in_sys = Source::new("crates/sys/src/mount.rs", bad);
        assert_eq!(unsafe_stays_in_its_rooms(&in_sys), []);
    }

    #[test]
    fn a_long_file_is_refused_but_its_tests_do_not_count() {
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "//\n".repeat(900));
        let (good, bad) = ("//\n".repeat(600) + &tests, "//\n".repeat(601) + &tests);
        tells_apart(files_are_small, BROKER, &good, &bad);
    }

    #[test]
    fn a_long_function_is_refused() {
        let body = |lines| {
            format!(
                "trait T {{ fn f(&self) -> [u8; 2]; }}\nfn g() {{\n{}}}\n",
                "g();\n".repeat(lines)
            )
        };
        tells_apart(functions_are_small, BROKER, &body(98), &body(99));
    }

    #[test]
    fn leftovers_are_refused() {
        let good = "let todo = \"todo!() FIXME\"; // to do: nothing";
        for bad in
            ["todo!()", "unimplemented!(\"x\")", "dbg!(x)", "// FIXME: x", "/// XXX", "// TODO"]
        {
            tells_apart(nothing_is_left_half_done, BROKER, good, bad);
        }
    }

    #[test]
    fn excused_dead_code_is_refused() {
        let good = "#[expect(clippy::too_many_arguments, reason = \"dead_code\")]";
        tells_apart(nothing_dead_is_excused, BROKER, good, "#[allow(dead_code)]");
        tells_apart(nothing_dead_is_excused, BROKER, good, "#![expect(dead_code, reason = \"x\")]");
    }

    #[test]
    fn an_error_that_is_a_string_is_refused() {
        let good = "fn f() -> Result<Vec<(u8, String)>, Error>; fn g() -> Result<String>;";
        for bad in [
            "Result<(), String>",
            "Result<Vec<(u8, u8)>, &'static str>",
            "Result<(), std::string::String>",
        ] {
            tells_apart(errors_are_types, BROKER, good, bad);
        }
    }

    #[test]
    fn a_wait_or_queue_outside_of_limits_is_refused() {
        let good = "mpsc::channel(1); mpsc::channel(limits::QUEUE_MAX); Duration::from_millis(ms);\n#[cfg(test)]\nmod tests { Duration::from_secs(1) }";
        for bad in ["Duration::from_secs(5)", "mpsc::channel(16)", "mpsc::unbounded_channel()"] {
            tells_apart(waits_and_queues_have_their_bound_in_limits, BROKER, good, bad);
        }
    }

    #[test]
    fn a_sleep_in_a_test_is_refused() {
        let path = "crates/sandkeep/tests/it/exec.rs";
        tells_apart(
            tests_wait_for_conditions,
            path,
            "\"sleep(5)\"; until(ready)",
            "thread::sleep(x)",
        );
    }
}

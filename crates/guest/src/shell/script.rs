//! The instructions for a shell, in its own language, and its reports.
//!
//! Each command is one line of the script that the shell reads from a private pipe: the command with its own stdin,
//! then a report of its status on another private pipe. The line is complete before any of it runs, so `set -v` and
//! `set -x` never show our part. Invariants:
//!
//! - A syntax error, `return` or a failed expansion in a command does not abort our part of the line: sh runs a command
//!   by `command eval`, bash by sourcing it, which also gives it its own line numbers.
//! - No child inherits a private descriptor. sh has saved them above 9, where its own syntax cannot reach them, marked
//!   close-on-exec; bash does the same while a command runs.
//! - `set -x` and `set -v` are switched off after each command, and on again inside the next.
//! - `$?` is the status of the previous command.
//! - INTERRUPT makes the shell abandon the running command, whatever it does, and has no other effect: the rest of the
//!   command is never run. Between commands it does nothing.

/// A real-time signal that no program uses.
pub const INTERRUPT: i32 = 57;

/// Numbers of the shell's private descriptors at its start.
pub const TEXT: i32 = 6;
pub const STDIN: i32 = 7;
pub const SCRIPT: i32 = 8;
pub const STATUS: i32 = 9;

/// The language of a shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Bash,
    /// dash and similar shells.
    Sh,
}

/// What a command inherits from the previous one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Before {
    pub status: u8,
    pub tracing: Tracing,
}

/// The options that would show our own lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tracing {
    #[default]
    Off,
    Commands,
    Lines,
    Both,
}

impl Tracing {
    fn from_options(options: &str) -> Self {
        match (options.contains('x'), options.contains('v')) {
            (false, false) => Self::Off,
            (true, false) => Self::Commands,
            (false, true) => Self::Lines,
            (true, true) => Self::Both,
        }
    }

    /// On a separate line, so that it applies even if the command cannot be parsed.
    fn prefix(self) -> &'static str {
        match self {
            Self::Off => "",
            Self::Commands => "\\set -x\n",
            Self::Lines => "\\set -v\n",
            Self::Both => "\\set -vx\n",
        }
    }
}

/// What a command reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Nothing,
    Pipe,
}

/// A shell's report after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    pub serial: u64,
    pub before_next: Before,
}

/// A line for the script, and further input for the shell.
pub struct Prepared {
    pub line: String,
    pub text: Option<String>,
}

impl Dialect {
    pub fn argv(self) -> Vec<String> {
        let words: &[&str] = match self {
            Self::Bash => &["bash", "--noprofile", "--norc", "/proc/self/fd/8"],
            // The redirections save the descriptors as 10, 11 and 12, for the life of the shell. A bash under the name
            // `sh` would wait for the end of the script before it runs any of it.
            Self::Sh => &[
                "sh",
                "-c",
                "case ${BASH_VERSION+x} in x) exit 1;; esac; { . /proc/self/fd/11; } 7<&- 8<&- 9>&-",
                "sh",
            ],
        };
        words.iter().map(|&word| word.to_owned()).collect()
    }

    /// The first line. It reports as number 0.
    pub fn greeting(self) -> &'static str {
        match self {
            // The trap returns from the sourced command. Inside functions it makes every further command return, until
            // the outermost has: that is what the debug trap is for.
            Self::Bash => concat!(
                "exec 60<&7 61>&9 63<&6 6<&- 7<&- 8<&- 9>&-; shopt -s expand_aliases; ",
                "BASH_ARGV0=bash; trap 'case ${#BASH_SOURCE[@]} in 1) ;; 2) return 130;; ",
                "*) trap \"return 130\" DEBUG; return 130;; esac' 57; ",
                "\\builtin echo 0 0 $- >&61\n"
            ),
            Self::Sh => "trap '' 57; echo 0 0 $- >/proc/self/fd/12\n",
        }
    }

    pub fn command(self, serial: u64, before: Before, source: Source, command: &str) -> Prepared {
        match self {
            Self::Bash => bash_command(serial, before, source, command),
            Self::Sh => sh_command(serial, before, source, command),
        }
    }

    /// Undoes what an interrupt may have left behind, and reports.
    pub fn settle(self, serial: u64) -> String {
        match self {
            Self::Bash => format!(
                "{{ \\trap - DEBUG; \\builtin echo {serial} 0 >&61; \\set +vx; }} >/dev/null 2>&1\n"
            ),
            Self::Sh => format!(
                "{{ \\trap '' 57; \\unset -f command; \\command echo {serial} 0 >/proc/self/fd/12; \\set +vx; }} >/dev/null 2>&1\n"
            ),
        }
    }
}

/// Leaves `status` in `$?`, even if the shell exits on errors.
fn set_status(status: u8) -> String {
    match status {
        0 => String::new(),
        _ => format!("(exit {status}) && :;"),
    }
}

fn bash_command(serial: u64, before: Before, source: Source, command: &str) -> Prepared {
    let stdin = match source {
        Source::Nothing => "/dev/null",
        Source::Pipe => "&60",
    };
    let line = format!(
        "{{ {{ \\. /dev/fd/62; }} <{stdin} 62<&63 60<&- 61>&- 63<&-; \
         {{ \\builtin echo {serial} $? $- >&61; \\set +vx; }} >/dev/null 2>&1; }}\n"
    );
    let status = set_status(before.status);
    let tracing = before.tracing.prefix();
    Prepared { line, text: Some(format!("\\exec 62<&-;{status}{tracing}{command}")) }
}

fn sh_command(serial: u64, before: Before, source: Source, command: &str) -> Prepared {
    let stdin = match source {
        Source::Nothing => "/dev/null",
        Source::Pipe => "/proc/self/fd/10",
    };
    let status = match before.status {
        0 => String::new(),
        status => format!("{{ {} }} 2>/dev/null;", set_status(status)),
    };
    let text = quote(&format!("{}{command}", before.tracing.prefix()));
    // An error inside `command eval` ends only that; an unset variable is one that a trap can cause. A function named
    // `command` would be used instead, and `unset` and `eval` cannot be functions: they remove it, the second time
    // without losing the status.
    let line = format!(
        "{{ \\trap '{{ : \"${{SANDKEEP_INTERRUPT?}}\"; }} 2>/dev/null' 57; \\unset -f command; {status} \
         {{ \\command eval {text}; }} <{stdin}; \
         {{ \\eval \"\\\\unset -f command; \\\\command echo {serial} $? $- >/proc/self/fd/12\"; \
         \\trap '' 57; \\set +vx; }} >/dev/null 2>&1; }}\n"
    );
    Prepared { line, text: None }
}

fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Parses a report: its number, a status, and the options of the shell. Commands in the shell can write to this pipe if
/// they insist: anything else is not a report.
pub fn parse(line: &[u8]) -> Option<Report> {
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split(' ');
    let serial = words.next()?.parse().ok()?;
    let status = words.next()?.parse().ok()?;
    let options = words.next().unwrap_or_default();
    if words.next().is_some() || !options.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    let tracing = Tracing::from_options(options);
    Some(Report { serial, before_next: Before { status, tracing } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_a_number_a_status_and_options_and_nothing_else() {
        let report = parse(b"7 130 hxB").unwrap();
        assert_eq!((report.serial, report.before_next.status), (7, 130));
        assert_eq!(report.before_next.tracing, Tracing::Commands);
        assert_eq!(parse(b"7 0").unwrap().before_next, Before::default());
        for junk in [&b""[..], b"7", b"7 256", b"7 -1", b"7 0 h B", b"x 0", b"7 0 ;", b"\xff 0"] {
            assert_eq!(parse(junk), None, "{junk:?}");
        }
    }

    #[test]
    fn a_command_cannot_leave_its_quotes() {
        let prepared =
            Dialect::Sh.command(1, Before::default(), Source::Nothing, "echo 'a'; } # it's");
        assert!(
            prepared.line.contains(r"eval 'echo '\''a'\''; } # it'\''s';"),
            "{}",
            prepared.line
        );
    }

    #[test]
    fn every_line_is_one_line_but_for_the_command_itself() {
        for dialect in [Dialect::Bash, Dialect::Sh] {
            assert!(dialect.greeting().ends_with('\n'));
            assert_eq!(dialect.settle(3).matches('\n').count(), 1);
            let prepared = dialect.command(1, Before::default(), Source::Pipe, "true");
            assert_eq!(prepared.line.matches('\n').count(), 1);
        }
    }
}

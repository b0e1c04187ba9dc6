//! What a shell keeps between commands, and what separates the commands.

use std::time::Duration;

use sandkeep_guestlink::*;

use super::{BOTH, TestShell};

fn kept(code: i32) -> (Outcome, ShellFate) {
    (Outcome::Exited(code), ShellFate::Kept)
}

#[tokio::test]
async fn no_function_of_a_command_stands_in_for_the_shells_own_words() {
    for program in BOTH {
        let shell = TestShell::open(program).await;
        let functions =
            "command() { echo mine; }; echo() { printf 'my %s\\n' \"$*\"; }; eval() { :; }";
        let functions = match program {
            ShellProgram::Bash => functions,
            // There `eval` cannot be one.
            ShellProgram::Sh => functions.trim_end_matches("; eval() { :; }"),
        };
        let ran = shell.run(&format!("{functions}; (exit 5)")).await;
        assert_eq!(ran.fate(), (Outcome::Exited(5), ShellFate::Kept), "{program:?} {ran:?}");
        assert_eq!(shell.says("echo still $?").await, "my still 5\n", "{program:?}");
        let ran = shell.run_for("command() { :; }; sleep 1000", Duration::from_millis(200)).await;
        assert_eq!(ran.fate(), (Outcome::TimedOut, ShellFate::Kept), "{program:?} {ran:?}");
        assert_eq!(shell.says("printf kept").await, "kept", "{program:?}");
    }
}

#[tokio::test]
async fn directory_variables_functions_and_options_persist() {
    for program in BOTH {
        let shell = TestShell::open(program).await;
        shell
            .says("cd /tmp; x=5; export y=6; f() {\n  echo \"f $1 $x\"\n}; set -u; umask 077")
            .await;
        assert_eq!(shell.says("pwd; f 1; sh -c 'echo $y'; umask").await, "/tmp\nf 1 5\n6\n0077\n");
        assert!(shell.says("echo $-").await.contains('u'));
        shell.says("set +u; set -- a 'b c'; alias hello='echo hello'").await;
        assert_eq!(shell.says("echo $# \"$2\"; hello you").await, "2 b c\nhello you\n");
    }
}

#[tokio::test]
async fn streams_are_separate_and_exit_codes_exact() {
    for program in BOTH {
        let shell = TestShell::open(program).await;
        for code in [0, 1, 2, 7, 126, 127, 130, 255] {
            let ran = shell.run(&format!("echo out; echo err >&2; (exit {code})")).await;
            assert_eq!((ran.out(), ran.err()), ("out\n".to_owned(), "err\n".to_owned()));
            assert_eq!(ran.fate(), kept(code));
            // The next command sees it.
            assert_eq!(shell.says("echo $?").await, format!("{code}\n"), "{program:?}");
        }
        let ran = shell.run("no_such_command_at_all").await;
        assert_eq!(ran.fate(), kept(127));
        assert!(ran.err().contains("no_such_command_at_all: "), "{}", ran.err());
    }
}

#[tokio::test]
async fn output_is_byte_for_byte_what_was_written() {
    for program in BOTH {
        let shell = TestShell::open(program).await;
        assert_eq!(shell.says("printf 'no newline'").await, "no newline");
        let ran = shell.run(r"printf '\000\377\001'; printf '\376' >&2").await;
        assert_eq!((ran.stdout, ran.stderr), (b"\0\xff\x01".to_vec(), b"\xfe".to_vec()));
        assert_eq!(shell.says("").await, "");
        let ran = shell.run("head -c 10000000 /dev/zero | tr '\\0' x; echo end >&2").await;
        assert_eq!((ran.stdout.len(), ran.err()), (10_000_000, "end\n".to_owned()));
        assert!(ran.stdout.iter().all(|&byte| byte == b'x'));
        assert_eq!(shell.says("echo next").await, "next\n");
    }
}

#[tokio::test]
async fn here_documents_quotes_and_comments_are_left_alone() {
    for program in BOTH {
        let shell = TestShell::open(program).await;
        let here = "cat <<EOF\nit's $((1 + 1))\n'quoted'\nEOF";
        assert_eq!(shell.says(here).await, "it's 2\n'quoted'\n");
        assert_eq!(shell.says("cat <<'EOF'\n$raw \\ `\nEOF\n").await, "$raw \\ `\n");
        assert_eq!(shell.says("echo a # a comment").await, "a\n");
        assert_eq!(shell.says("# only a comment").await, "");
        assert_eq!(shell.says("for i in 1 2; do\n  echo $i\ndone").await, "1\n2\n");
        assert_eq!(shell.says("echo 'it'\\''s' \"a\\\"b\" \\\n  c").await, "it's a\"b c\n");
        assert_eq!(shell.says("echo !! ~nobody_at_all").await, "!! ~nobody_at_all\n");
    }
}

#[tokio::test]
async fn a_syntax_error_fails_the_command_and_keeps_the_shell() {
    for program in BOTH {
        let shell = TestShell::open(program).await;
        shell.says("x=here").await;
        for broken in ["echo 'a", "if", "}", ")", "echo \"", "for", "cat <<EOF >", "fi; echo x"] {
            let ran = shell.run(broken).await;
            assert_eq!(ran.fate(), kept(2), "{program:?} {broken:?}: {ran:?}");
            assert_ne!(ran.err(), "", "{broken:?}");
            assert_eq!(shell.says("echo $x").await, "here\n", "after {broken:?}");
        }
        let ran = shell.run("readonly r=1; r=2; echo not reached").await;
        assert_eq!((ran.out().as_str(), ran.fate().1), ("", ShellFate::Kept), "{ran:?}");
        let ran = shell.run("echo $((1/0)); echo not reached").await;
        assert_eq!((ran.out().as_str(), ran.fate().1), ("", ShellFate::Kept), "{ran:?}");
        assert_eq!(shell.says("echo $x").await, "here\n");
    }
}

#[tokio::test]
async fn a_command_reads_its_own_stdin_and_never_anothers() {
    for program in BOTH {
        let shell = TestShell::open(program).await;
        assert_eq!(shell.says("cat; read x; echo \"$? $x\"").await, "1 \n");
        let ran = shell.run_with_stdin("read x; echo \"<$x>\"; cat", b"one\ntwo\nthree").await;
        assert_eq!(ran.out(), "<one>\ntwo\nthree");
        // Input that a command has not read is gone.
        assert_eq!(shell.run_with_stdin("echo did not read", &[7; 100_000]).await.fate(), kept(0));
        assert_eq!(shell.run_with_stdin("cat", b"mine").await.out(), "mine");
        assert_eq!(shell.says("cat").await, "");
        let big = vec![b'x'; 1_000_000];
        assert_eq!(shell.run_with_stdin("wc -c", &big).await.out().trim(), "1000000");
    }
}

#[tokio::test]
async fn redirections_by_exec_persist_and_no_private_descriptor_is_inherited() {
    for program in BOTH {
        let shell = TestShell::open(program).await;
        assert_eq!(shell.says("ls /proc/self/fd | tr '\\n' ' '").await, "0 1 2 3 ", "{program:?}");
        shell.says("d=$(mktemp -d); exec 3>$d/three 9>$d/nine").await;
        assert_eq!(shell.says("echo 3 >&3; echo 9 >&9; cat $d/three $d/nine").await, "3\n9\n");
        shell.says("exec 3>&- 9>&-; exec 4>&1 >$d/all; echo hidden").await;
        assert_eq!(shell.says("echo also hidden").await, "");
        assert_eq!(
            shell.says("exec >&4 4>&-; cat $d/all; rm -r $d").await,
            "hidden\nalso hidden\n"
        );
    }
}

#[tokio::test]
async fn tracing_shows_the_commands_and_nothing_of_ours() {
    for program in BOTH {
        let shell = TestShell::open(program).await;
        assert_eq!(shell.run("set -x").await.err(), "");
        for _ in 0..2 {
            let ran = shell.run("echo traced").await;
            assert_eq!(ran.out(), "traced\n");
            assert_eq!(ran.err().trim_start_matches('+'), " echo traced\n", "{program:?}");
        }
        let ran = shell.run("echo 'broken").await;
        assert!(!ran.err().contains("+ "), "{}", ran.err());
        let ran = shell.run("echo still").await;
        assert!(ran.err().contains("+ echo still"), "{}", ran.err());
        shell.run("set -v").await;
        for line in shell.run("echo lines").await.err().lines() {
            assert!(line.contains("echo lines"), "{line:?}");
        }
        shell.run("set +xv").await;
        let ran = shell.run("echo $-").await;
        assert_eq!(ran.err(), "");
        assert!(!ran.out().contains('x') && !ran.out().contains('v'), "{}", ran.out());
    }
}

#[tokio::test]
async fn a_command_of_a_mebibyte_runs() {
    for program in BOTH {
        let shell = TestShell::open(program).await;
        let long = "x".repeat(1024 * 1024 - 30);
        assert_eq!(shell.says(&format!("v='{long}'; echo ${{#v}}")).await.trim(), "1048546");
        let longer = shell.command(&"x".repeat(1024 * 1024 + 1));
        let refused = shell.guest.client.exec_in_shell(longer).await.err();
        assert!(matches!(refused, Some(GuestError::Refused { .. })), "{refused:?}");
    }
}

#[tokio::test]
async fn traps_persist_and_the_name_of_the_shell_is_its_own() {
    for (program, name) in [(ShellProgram::Sh, "sh\n"), (ShellProgram::Bash, "bash\n")] {
        let shell = TestShell::open(program).await;
        shell.says("trap 'echo caught' USR1").await;
        assert_eq!(shell.says("kill -USR1 $$; echo after").await, "caught\nafter\n");
        assert_eq!(shell.says("echo $0").await, name);
    }
}

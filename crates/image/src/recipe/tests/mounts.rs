//! `RUN --mount` and here-documents with interpreters.

use super::*;
use crate::recipe::{Access, Need, RunMount, Sharing};

fn mounts(options: &str) -> Vec<RunMount<String>> {
    run(&format!("WORKDIR /w\nENV NAME=n\nRUN {options} cmd")).mounts
}

fn mount(options: &str) -> RunMount<String> {
    let mut found = mounts(&format!("--mount={options}"));
    assert_eq!(found.len(), 1, "{options}");
    found.remove(0)
}

fn cache() -> RunMount<String> {
    RunMount::Cache {
        id: None,
        target: "/c".to_owned(),
        sharing: Sharing::Shared,
        access: Access::Write,
        mode: 0o755,
        uid: 0,
        gid: 0,
    }
}

#[test]
fn options_have_the_defaults_and_names_that_docker_gives_them() {
    assert_eq!(mount("type=cache,target=/c"), cache());
    assert_eq!(mount("dst=/c/,type=cache,rw"), cache());
    let all = "type=cache,id=$NAME,destination=c,sharing=locked,ro=true,mode=700,uid=1,gid=2";
    let all = mount(all);
    let expected = RunMount::Cache {
        id: Some("n".to_owned()),
        target: "/w/c".to_owned(),
        sharing: Sharing::Locked,
        access: Access::Read,
        mode: 0o700,
        uid: 1,
        gid: 2,
    };
    assert_eq!(all, expected);
    let secret = |id: &str, target: Option<&str>, env: Option<&str>| RunMount::Secret {
        id: id.to_owned(),
        target: target.map(str::to_owned),
        env: env.map(str::to_owned),
        need: Need::Optional,
        mode: 0o400,
        uid: 0,
        gid: 0,
    };
    assert_eq!(mount("type=secret,id=a"), secret("a", Some("/run/secrets/a"), None));
    assert_eq!(mount("type=secret,target=/x/a"), secret("a", Some("/x/a"), None));
    assert_eq!(mount("type=secret,id=a,env=A"), secret("a", None, Some("A")));
    assert_eq!(mount("type=secret,id=a,env=A,target=b"), secret("a", Some("/w/b"), Some("A")));
    assert!(matches!(
        mount("type=secret,id=a,required"),
        RunMount::Secret { need: Need::Required, .. }
    ));
    let bind = |source: &str, target: &str| RunMount::Bind {
        from: Origin::Context,
        source: source.to_owned(),
        target: target.to_owned(),
    };
    assert_eq!(mount("target=."), bind("", "/w"), "the type is bind if none is named");
    assert_eq!(mount("type=bind,source=./a/../b,target=/x"), bind("b", "/x"));
    assert_eq!(mount("type=bind,src=/$NAME,target=$NAME,readonly"), bind("n", "/w/n"));
    let several = mounts("--mount=type=cache,target=/c --mount=type=secret,id=a");
    assert_eq!(several, [cache(), secret("a", Some("/run/secrets/a"), None)]);
}

#[test]
fn what_is_bound_is_built_first() {
    let text = "FROM a AS one\nFROM b AS two\nFROM c\nRUN --mount=from=one,target=/x --mount=from=1,target=/y cmd";
    let recipe = dockerfile(text);
    assert_eq!(recipe.needed(2), BTreeSet::from([0, 1, 2]));
    let bound = dockerfile("FROM a\nRUN --mount=from=img:1,target=/x c");
    let Instruction::Run(Run { mounts, .. }) = &bound.stages[0].steps[0].instruction else {
        panic!("a command")
    };
    assert_eq!(mounts[0].origin(), Some(&Origin::Image("img:1".to_owned())));
}

#[test]
fn wrong_mounts_say_what_is_wrong() {
    for (options, word) in [
        ("type=tmpfs,target=/x", "bind, cache or secret"),
        ("type=ssh", "bind, cache or secret"),
        ("type=cache", "target"),
        ("type=cache,target=", "target needs a value"),
        ("type=cache,target=/", "outside of"),
        ("type=cache,target=/proc/x", "outside of"),
        ("type=cache,target=/x,from=a", "from"),
        ("type=cache,target=/x,sharing=none", "sharing"),
        ("type=cache,target=/x,mode=9", "octal"),
        ("type=cache,target=/x,uid=-1", "uid"),
        ("type=cache,target=/x,uid=70000", "uid"),
        ("type=cache,target=/x,target=/y", "twice"),
        ("type=cache,target=/x,dst=/y", "the same"),
        ("type=cache,target=/x,ro,rw", "both"),
        ("type=cache,target=\"/x\"", "quotes"),
        ("type=cache,target=/x,size=1", "size"),
        ("type=secret", "id"),
        ("type=secret,id=a/b", "letters"),
        ("type=secret,id=a,required=maybe", "true or false"),
        ("type=bind,source=x", "target"),
        ("type=bind,target=/x,rw", "read-only"),
        ("type=bind,target=/x,source=*.txt", "patterns"),
        ("type=bind,target=/x,from=9", "no stage"),
        ("type=bind,target=/x,from=$NAME", "variables"),
        ("type=bind,target=/x --mount=type=cache,target=/x/y", "within"),
        ("type=bind,target=/x --mount=type=cache,target=/x", "within"),
    ] {
        let problem = refused(&format!("FROM a\nRUN --mount={options} cmd"));
        assert_eq!(problem.line, 2, "{options}");
        assert!(problem.to_string().contains(word), "{options}: {problem}");
    }
    let many = "--mount=type=secret,id=a ".repeat(33);
    assert_eq!(refused(&format!("FROM a\nRUN {many}cmd")).problem, Problem::TooManyMounts);
    let alone = refused("FROM a\nRUN --mount=type=secret,id=a");
    assert!(alone.to_string().contains("needs a command"), "{alone}");
}

#[test]
fn keys_change_with_mounts_and_not_with_what_is_in_caches_and_secrets() {
    let start = Key::of_layers(&[]);
    let file = |content: &[u8]| CopiedFile { path: "f".to_owned(), digest: Digest::of(content) };
    let key = |line: &str, files: &[CopiedFile]| {
        effects(line).0.iter().fold(start, |key, effect| key.after(effect, files))
    };
    let mut seen = BTreeSet::from([key("RUN cmd", &[])]);
    for (line, files) in [
        ("RUN --mount=type=cache,target=/c cmd", &[][..]),
        ("RUN --mount=type=cache,target=/d cmd", &[]),
        ("RUN --mount=type=cache,target=/c,id=x cmd", &[]),
        ("RUN --mount=type=secret,id=a cmd", &[]),
        ("RUN --mount=type=secret,id=b cmd", &[]),
        ("RUN --mount=type=secret,id=a,env=A cmd", &[]),
        ("RUN --mount=target=/c,source=f cmd", &[file(b"1")]),
        ("RUN --mount=target=/c,source=f cmd", &[file(b"2")]),
        ("RUN <<E\n#!/bin/cat\nE", &[]),
    ] {
        assert!(seen.insert(key(line, files)), "{line}");
    }
    assert_eq!(
        key("RUN --mount=type=cache,target=/c,sharing=locked cmd", &[]),
        key("RUN --mount=type=cache,target=/c cmd", &[]),
        "how it is shared changes no file"
    );
}

#[test]
fn a_script_is_read_by_the_interpreter_that_it_names() {
    let script =
        run("RUN --mount=type=cache,target=/c <<EOF\n#!/usr/bin/env python3\nprint(1)\nEOF");
    assert_eq!(script.argv, ["/usr/bin/env", "python3", "-"]);
    assert_eq!(script.stdin.as_deref(), Some("#!/usr/bin/env python3\nprint(1)\n"));
    assert_eq!(script.mounts, [cache()]);
    let plain = run("RUN <<-EOF\n\techo a\n\tEOF");
    assert_eq!((plain.argv.last().map(String::as_str), plain.stdin), (Some("echo a\n"), None));
    let piped = run("RUN --mount=type=cache,target=/c cat <<A <<-'B' > /x\na\nA\n\tb\nB");
    let shell = piped.argv.last().expect("a script");
    assert_eq!(shell, "cat <<A <<-'B' > /x\na\nA\nb\nB\n");
    assert!(refused("FROM a\nRUN <<E\n#!python3\nE").to_string().contains("absolute path"));
}

proptest::proptest! {
    #[test]
    fn no_mount_panics(options in "(type=(bind|cache|secret),?)?((id|target|dst|source|from|mode|uid|env|sharing|ro|rw|required)(=[a-z0-9/.$*{}\"]{0,8})?,?){0,5}") {
        let text = format!("FROM a AS b\nARG x=/\nRUN --mount={options} cmd");
        if let Ok(recipe) = Recipe::dockerfile(&text, BTreeMap::new())
            && let Ok(effects) = walked(&recipe, 0, &base())
        {
            for effect in effects.0 {
                if let Effect::Run(running) = effect {
                    for target in running.mounts.iter().filter_map(RunMount::target) {
                        proptest::prop_assert!(target.starts_with('/') && target.len() > 1);
                        proptest::prop_assert!(!target.contains("/.."));
                    }
                }
            }
        }
    }
}

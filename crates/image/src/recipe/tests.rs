//! The results of build files, instruction by instruction, and of complete ones as people write them.

mod mounts;
mod real;

use super::*;
use crate::image::{ImageConfig, Platform};
use sandkeep_core::limits::RECIPE_MAX_BYTES;
use sandkeep_tree::digest::Digest;

fn given(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn dockerfile(text: &str) -> Recipe {
    Recipe::dockerfile(text, BTreeMap::new()).unwrap_or_else(|e| panic!("{text:?}: {e}"))
}

fn refused(text: &str) -> RecipeError {
    match Recipe::dockerfile(text, BTreeMap::new()) {
        Err(problem) => problem,
        Ok(recipe) => walked(&recipe, 0, &base()).map(|_| ()).expect_err(text),
    }
}

/// An image with something of everything.
fn base() -> ImageConfig {
    ImageConfig {
        env: vec![("PATH".to_owned(), "/bin".to_owned()), ("LANG".to_owned(), "C".to_owned())],
        working_dir: Some("/base".to_owned()),
        cmd: vec!["base-cmd".to_owned()],
        ..ImageConfig::default()
    }
}

fn walked(
    recipe: &Recipe,
    stage: usize,
    base: &ImageConfig,
) -> Result<(Vec<Effect>, Scene), RecipeError> {
    let mut scene = Scene::begin(recipe, Beginning::Image(base));
    let effects = recipe.stages[stage].steps.iter().map(|step| scene.take(step));
    let effects = effects.collect::<Result<_, _>>()?;
    Ok((effects, scene))
}

/// What lines of a stage come to.
fn effects(lines: &str) -> (Vec<Effect>, Scene) {
    let recipe = dockerfile(&format!("FROM image\n{lines}"));
    walked(&recipe, 0, &base()).unwrap_or_else(|e| panic!("{lines:?}: {e}"))
}

fn config(lines: &str) -> ImageConfig {
    effects(lines).1.config().clone()
}

fn env(lines: &str, name: &str) -> Option<String> {
    let config = config(lines);
    config.env.into_iter().find(|(own, _)| own == name).map(|(_, value)| value)
}

fn run(lines: &str) -> Running {
    match effects(lines).0.pop() {
        Some(Effect::Run(running)) => running,
        other => panic!("{lines:?}: {other:?}"),
    }
}

fn copy(lines: &str) -> Copied {
    match effects(lines).0.pop() {
        Some(Effect::Copy(copied)) => copied,
        other => panic!("{lines:?}: {other:?}"),
    }
}

fn paths(copied: &Copied) -> Vec<&str> {
    copied
        .sources
        .iter()
        .map(|source| match source {
            CopiedFrom::Path(path) => path.as_str(),
            CopiedFrom::Inline { name, .. } => name.as_str(),
        })
        .collect()
}

#[test]
fn from_names_an_image_a_stage_or_nothing() {
    let here = Platform::here();
    let text = format!(
        "ARG TAG=12\nFROM debian:$TAG AS Base\nFROM base\nFROM scratch\nFROM --platform={here} a/b@c\n\
         FROM --platform=$TARGETPLATFORM ${{NO:-x}} as y"
    );
    let recipe = dockerfile(&text);
    let bases: Vec<&Base> = recipe.stages.iter().map(|stage| &stage.base).collect();
    let image = |name: &str| Base::Image(name.to_owned());
    assert_eq!(
        bases,
        [&image("debian:12"), &Base::Stage(0), &Base::Scratch, &image("a/b@c"), &image("x")]
    );
    assert_eq!(recipe.stages[0].name.as_deref(), Some("base"));
    let other = Recipe::dockerfile("ARG TAG=12\nFROM debian:$TAG", given(&[("TAG", "13")]));
    assert_eq!(other.expect("a recipe").stages[0].base, image("debian:13"));
}

#[test]
fn run_is_for_the_shell_unless_it_is_a_list() {
    for (lines, argv) in [
        ("RUN echo $X \"a b\"", &["/bin/sh", "-c", "echo $X \"a b\""][..]),
        ("RUN [\"echo\", \"$X\"]", &["echo", "$X"]),
        ("RUN [ -f x ]", &["/bin/sh", "-c", "[ -f x ]"]),
        ("RUN [\"a\", 1]", &["/bin/sh", "-c", "[\"a\", 1]"]),
        ("RUN a && \\\n  # why\n  b", &["/bin/sh", "-c", "a &&   b"]),
        ("SHELL [\"bash\", \"-lc\"]\nRUN a", &["bash", "-lc", "a"]),
        ("RUN <<EOF\na $X\nb\nEOF", &["/bin/sh", "-c", "a $X\nb\n"]),
        (
            "RUN cat <<A <<'B' > x\n1\nA\n2\nB",
            &["/bin/sh", "-c", "cat <<A <<'B' > x\n1\nA\n2\nB\n"],
        ),
    ] {
        assert_eq!(run(lines).argv, argv, "{lines:?}");
    }
    let running = run("ENV A=1\nARG B=2\nARG A=no\nUSER 1000:1\nWORKDIR x\nRUN a");
    let pairs: Vec<(&str, &str)> =
        running.env.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    assert_eq!(pairs, [("B", "2"), ("PATH", "/bin"), ("LANG", "C"), ("A", "1")]);
    assert_eq!((running.workdir.as_str(), running.user.as_deref()), ("/base/x", Some("1000:1")));
}

#[test]
fn env_takes_both_forms_and_sees_what_was_before_it() {
    for (lines, name, value) in [
        ("ENV A=b", "A", "b"),
        ("ENV A b  c ", "A", "b  c"),
        ("ENV A \"b c\"", "A", "b c"),
        ("ENV A=\"b c\" D=e\\ f", "D", "e f"),
        ("ENV PATH=/x:$PATH", "PATH", "/x:/bin"),
        ("ENV A=1\nENV A=2 B=$A", "B", "1"),
        ("ENV A='$PATH'", "A", "$PATH"),
        ("ENV A=\\$PATH", "A", "$PATH"),
        ("ENV A=${NO:-d}/${PATH:+p}", "A", "d/p"),
        ("ENV N=A\nENV $N=x", "A", "x"),
        ("ENV A=", "A", ""),
        ("ENV A=b=c", "A", "b=c"),
        ("ARG X=1\nENV A=$X", "A", "1"),
    ] {
        assert_eq!(env(lines, name).as_deref(), Some(value), "{lines:?}");
    }
    assert_eq!(config("ENV LANG=D").env.len(), 2, "it takes the old one's place");
}

#[test]
fn arg_has_a_default_and_a_caller_may_give_another() {
    let text = "ARG G=global\nARG H=$G-more\nFROM a\nARG G\nARG H\nARG D=default\nARG T TARGETARCH\n\
                ENV G=$G H=$H D=$D T=$T ARCH=$TARGETARCH";
    let values = |given: BTreeMap<String, String>| {
        let recipe = Recipe::dockerfile(text, given).expect("a recipe");
        let (_, scene) = walked(&recipe, 0, &ImageConfig::default()).expect("it can be walked");
        let env = scene.config().env.clone();
        env.into_iter().map(|(_, value)| value).collect::<Vec<_>>()
    };
    let arch = Platform::here().architecture;
    assert_eq!(values(BTreeMap::new()), ["global", "global-more", "default", "", &arch]);
    let given = given(&[("G", "g"), ("D", "d"), ("T", "t"), ("UNKNOWN", "x")]);
    assert_eq!(values(given), ["g", "g-more", "d", "t", &arch]);
    // A global one is not there for a stage that does not ask.
    assert_eq!(env("ENV A=$TARGETARCH", "A").as_deref(), Some(""));
}

#[test]
fn copy_names_sources_and_a_destination() {
    for (lines, sources, to) in [
        ("COPY a b", &["a"][..], "/base/b"),
        ("COPY a b/ /srv/", &["a", "b"], "/srv/"),
        ("COPY . .", &[""], "/base/"),
        ("COPY ./a/../../b /x/./y/..", &["b"], "/x"),
        ("COPY *.txt d?/[ab] ./in/", &["*.txt", "d?/[ab]"], "/base/in/"),
        ("COPY [\"a b\", \"/c d/\"]", &["a b"], "/c d/"),
        ("ARG V=1\nCOPY app-$V.tar ${V:+/opt/}", &["app-1.tar"], "/opt/"),
        ("WORKDIR /w\nCOPY a .", &["a"], "/w/"),
        ("COPY --link --chown=1:2 a /b", &["a"], "/b"),
        ("COPY <<one <<two /d/\n1\none\n2\ntwo", &["one", "two"], "/d/"),
        ("ADD a.tar.gz /", &["a.tar.gz"], "/"),
    ] {
        let copied = copy(lines);
        assert_eq!((paths(&copied), copied.to.as_str()), (sources.to_vec(), to), "{lines:?}");
    }
    let copied = copy("ARG U=ann\nCOPY --chown=$U:staff --chmod=0750 a /b");
    assert_eq!((copied.owner.as_deref(), copied.mode), (Some("ann:staff"), Some(0o750)));
    assert_eq!(copied.archives, Archives::Kept);
    assert_eq!(copy("ADD a /b").archives, Archives::Unpacked);
    let inline = copy("ENV A=x\nCOPY <<EOF /f\n$A \"q\" \\$A\nEOF");
    let content = "x \"q\" $A\n".to_owned();
    assert_eq!(inline.sources, [CopiedFrom::Inline { name: "EOF".to_owned(), content }]);
    let kept = copy("ENV A=x\nCOPY <<'EOF' /f\n$A\nEOF");
    let content = "$A\n".to_owned();
    assert_eq!(kept.sources, [CopiedFrom::Inline { name: "EOF".to_owned(), content }]);
}

#[test]
fn copy_takes_from_earlier_stages_and_from_images() {
    let recipe = dockerfile(
        "FROM a AS one\nFROM b\nFROM c AS unused\nFROM d\nCOPY --from=ONE /x /y\nCOPY --from=1 /x /y\n\
         COPY --from=busybox:1 /x /y",
    );
    let origin = |step: &Step| match &step.instruction {
        Instruction::Copy(copy) => copy.from.clone(),
        other => panic!("{other:?}"),
    };
    let origins: Vec<Origin> = recipe.stages[3].steps.iter().map(origin).collect();
    let image = Origin::Image("busybox:1".to_owned());
    assert_eq!(origins, [Origin::Stage(0), Origin::Stage(1), image]);
    assert_eq!(recipe.needed(3), BTreeSet::from([0, 1, 3]));
    assert_eq!(recipe.needed(1), BTreeSet::from([1]));
    assert_eq!((recipe.target(None), recipe.target(Some("One"))), (Some(3), Some(0)));
    assert_eq!((recipe.target(Some("2")), recipe.target(Some("4"))), (Some(2), None));
}

#[test]
fn the_config_says_how_the_image_wants_to_be_run() {
    assert_eq!(config("WORKDIR /a\nWORKDIR b\nWORKDIR ../c").working_dir.as_deref(), Some("/a/c"));
    let owner = Some("app".to_owned());
    let made = Effect::Directory(Directory { path: "/base/x y".to_owned(), owner });
    assert_eq!(effects("USER app\nWORKDIR x y").0.last(), Some(&made));
    assert_eq!(config("ARG U=7\nUSER $U").user.as_deref(), Some("7"));
    assert_eq!(config("CMD a b").cmd, ["/bin/sh", "-c", "a b"]);
    assert_eq!(config("CMD [\"a\", \"b\"]").cmd, ["a", "b"]);
    assert_eq!(config("CMD []").cmd, Vec::<String>::new());
    assert_eq!(config("ENTRYPOINT [\"e\"]").cmd, Vec::<String>::new(), "it was the base's");
    let both = config("CMD [\"a\"]\nENTRYPOINT [\"e\"]");
    assert_eq!((both.entrypoint, both.cmd), (vec!["e".to_owned()], vec!["a".to_owned()]));
    assert_eq!(config("ENTRYPOINT e").entrypoint, ["/bin/sh", "-c", "e"]);
    let ports = config("ARG P=\"90 91\"\nEXPOSE 80 53/udp 8000-8002 $P 80/tcp").exposed_ports;
    let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
    assert_eq!(ports, ["53/udp", "80/tcp", "90/tcp", "91/tcp", "8000/tcp", "8001/tcp", "8002/tcp"]);
    let labels = config("LABEL a=b \"c d\"=\"e f\" g='$PATH' h=$PATH").labels;
    let labels: Vec<(&str, &str)> = labels.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    assert_eq!(labels, [("a", "b"), ("c d", "e f"), ("g", "$PATH"), ("h", "/bin")]);
}

#[test]
fn a_stage_goes_on_with_the_one_it_is_from() {
    let recipe =
        dockerfile("FROM a AS b\nARG X=1\nENV E=$X\nSHELL [\"s\"]\nFROM b\nENV F=$E$X\nRUN r");
    let (_, first) = walked(&recipe, 0, &base()).expect("it can be walked");
    let mut scene = Scene::begin(&recipe, Beginning::Stage(&first));
    let steps = &recipe.stages[1].steps;
    assert_eq!(scene.take(&steps[0]), Ok(Effect::Noted));
    let Ok(Effect::Run(running)) = scene.take(&steps[1]) else { panic!("it runs") };
    assert_eq!(running.argv, ["s", "r"]);
    assert!(running.env.contains(&("F".to_owned(), "1".to_owned())), "{:?}", running.env);
}

#[test]
fn what_has_no_meaning_here_is_skipped_and_says_so() {
    let text = "FROM a\nVOLUME /x\nHEALTHCHECK --interval=1s CMD true\nSTOPSIGNAL SIGINT\nMAINTAINER me\n\
                ONBUILD RUN x\nENV A=b";
    let recipe = dockerfile(text);
    let mut scene = Scene::begin(&recipe, Beginning::Scratch);
    for step in &recipe.stages[0].steps {
        assert_eq!(scene.take(step), Ok(Effect::Noted), "{step:?}");
        let word = step.written.split(' ').next().expect("a word");
        match &step.instruction {
            Instruction::Ignored(why) => assert!(why.starts_with(word), "{why}"),
            other => assert_eq!(word, "ENV", "{other:?}"),
        }
    }
    assert_eq!(recipe.stages[0].steps.len(), 6);
}

#[test]
fn what_is_wrong_is_told_with_its_line_and_instruction() {
    let long = format!("FROM a\n#{}", "x".repeat(RECIPE_MAX_BYTES));
    let bomb = format!("FROM a\nENV A=xxxxxxxx\n{}", "ENV A=$A$A\n".repeat(60));
    let label = format!("FROM a\nARG A={}\nLABEL {}", "x".repeat(60000), "l=$A ".repeat(1000));
    for (text, line, word) in [
        ("", 1, "FROM"),
        ("# nothing\n", 1, "FROM"),
        ("RUN a", 1, "RUN"),
        ("FROM a\n\nVOLUMES /x", 3, "VOLUMES"),
        ("FROM a\nrun \\\n  a\nNONSENSE", 4, "NONSENSE"),
        ("FROM", 1, "FROM"),
        ("FROM a b", 1, "FROM"),
        ("FROM a AS 1x", 1, "stage"),
        ("FROM a AS x\nFROM b AS X", 2, "already"),
        ("FROM $NO", 1, "name"),
        ("FROM --platform=plan9/mips a", 1, "plan9/mips"),
        ("FROM --pull a", 1, "--pull"),
        ("FROM a\nRUN", 2, "RUN"),
        ("FROM a\nRUN <<EOF\nx", 2, "EOF"),
        ("FROM a\nRUN --network=host y", 2, "--network"),
        ("VOLUME /x\nFROM a", 1, "VOLUME comes before FROM"),
        ("FRM a", 1, "ONBUILD"),
        ("FROM a\nCOPY a", 2, "COPY"),
        ("FROM a\nCOPY a b c", 2, "/"),
        ("FROM a\nARG A\nCOPY a b c$A", 3, "/"),
        ("FROM a\nCOPY --parents a b", 2, "--parents"),
        ("FROM a\nCOPY --from=1 a b", 2, "stage"),
        ("FROM a AS x\nCOPY --from=x a b", 2, "stage"),
        ("FROM a AS x\nCOPY --from=$X a b", 2, "variables"),
        ("FROM a\nCOPY --chmod=u+x a b", 2, "mode"),
        ("FROM a\nCOPY --chmod=77777 a b", 2, "mode"),
        ("FROM a\nADD --from=x a b", 2, "--from"),
        ("FROM a\nADD --checksum=x a b", 2, "--checksum"),
        ("FROM a\nADD https://a.example/x /", 2, "https://a.example/x"),
        ("FROM a\nENV", 2, "ENV"),
        ("FROM a\nENV A", 2, "ENV"),
        ("FROM a\nENV A=b C", 2, "C"),
        ("FROM a\nENV =b", 2, "=b"),
        ("FROM a\nENV A=${B", 2, "${B"),
        ("FROM a\nENV A=${B%c}", 2, "${B%c}"),
        ("FROM a\nENV A=\"${B:?is not set}\"", 2, "is not set"),
        ("FROM a\nARG", 2, "ARG"),
        ("FROM a\nARG a-b", 2, "a-b"),
        ("FROM a\nUSER", 2, "USER"),
        ("FROM a\nUSER a b", 2, "user"),
        ("FROM a\nUSER $NO", 2, "user"),
        ("FROM a\nWORKDIR", 2, "WORKDIR"),
        ("FROM a\nEXPOSE", 2, "EXPOSE"),
        ("FROM a\nEXPOSE x", 2, "port"),
        ("FROM a\nEXPOSE 80/icmp", 2, "port"),
        ("FROM a\nEXPOSE 0", 2, "port"),
        ("FROM a\nEXPOSE 9-8", 2, "port"),
        ("FROM a\nEXPOSE 1-65535", 2, "port"),
        ("FROM a\nSHELL bash", 2, "SHELL"),
        ("FROM a\nLABEL", 2, "LABEL"),
        (&long, 1, "larger"),
        (&bomb, 15, "longer"),
        (&label, 3, "longer"),
    ] {
        let problem = refused(text);
        let shown: String = text.chars().take(60).collect();
        assert_eq!(problem.line, line, "{shown:?}: {problem}");
        assert!(problem.to_string().contains(word), "{shown:?}: {problem}");
    }
}

#[test]
fn labels_say_what_runs_in_every_sandbox_and_when_it_is_up() {
    let started = "LABEL sandkeep.start='python3 -m http.server $PORT' a=b";
    let scene = effects(&format!("{started}\nLABEL sandkeep.ready=\"http 8000 /health\"")).1;
    assert_eq!(scene.start(), Some("python3 -m http.server $PORT"));
    let path = "/health".to_owned();
    assert_eq!(scene.ready(), Some(&Ready::Http { port: 8000, path }));
    assert_eq!(scene.config().labels.len(), 3, "they are labels like others");
    for (written, ready) in [
        ("port 8000", Ready::Port(8000)),
        ("http 80", Ready::Http { port: 80, path: "/".to_owned() }),
        ("run test -e  up", Ready::Run("test -e  up".to_owned())),
    ] {
        let scene = effects(&format!("{started}\nLABEL sandkeep.ready='{written}'")).1;
        assert_eq!(scene.ready(), Some(&ready));
    }
    assert_eq!(effects("LABEL a=b").1.start(), None);
}

#[test]
fn labels_of_ours_that_mean_nothing_are_refused() {
    for (labels, word) in [
        ("sandkeep.start=", "command"),
        ("sandkeep.ready=", "ready"),
        ("sandkeep.ready=port", "ready"),
        ("sandkeep.ready='port x'", "port"),
        ("sandkeep.ready='port 0'", "port"),
        ("sandkeep.ready='http 80 health'", "ready"),
        ("sandkeep.ready='soon now'", "ready"),
        ("sandkeep.begin=x", "sandkeep.begin"),
    ] {
        let problem = refused(&format!("FROM a\nLABEL {labels}"));
        assert_eq!(problem.line, 2, "{labels:?}: {problem}");
        assert!(problem.to_string().contains(word), "{labels:?}: {problem}");
    }
}

#[test]
fn a_key_changes_with_what_changes_the_files_and_with_nothing_else() {
    let start = Key::of_layers(&[Digest::of(b"layer")]);
    let file = |path: &str, content: &[u8]| CopiedFile {
        path: path.to_owned(),
        digest: Digest::of(content),
    };
    let files = [file("a", b"1"), file("b", b"2")];
    let key = |lines: &str, files: &[CopiedFile]| {
        effects(lines).0.iter().fold(start, |key, effect| key.after(effect, files))
    };
    let first = key("COPY a b /x/\nRUN r", &files);
    assert_eq!(first, key("COPY a b /x/\nRUN r", &[files[1].clone(), files[0].clone()]));
    assert_eq!(first, key("LABEL v=2\nEXPOSE 80\nCOPY a b /x/\nRUN r\nCMD c", &files));
    assert_eq!(first, key("COPY   a  b  /x/\nRUN  r", &files));
    let mut seen = BTreeSet::from([first]);
    for (lines, files) in [
        ("COPY a b /x/\nRUN s", &files[..]),
        ("COPY a b /y/\nRUN r", &files),
        ("COPY a b /x/\nRUN r", &[file("a", b"1"), file("b", b"3")]),
        ("COPY a b /x/\nRUN r", &files[..1]),
        ("COPY a b /x/\nUSER 1\nRUN r", &files),
        ("COPY a b /x/\nENV A=1\nRUN r", &files),
        ("COPY a b /x/\nARG A=1\nRUN r", &files),
        ("COPY a b /x/\nWORKDIR /\nRUN r", &files),
        ("COPY --chown=1 a b /x/\nRUN r", &files),
        ("COPY --chmod=700 a b /x/\nRUN r", &files),
        ("ADD a b /x/\nRUN r", &files),
        ("RUN r\nCOPY a b /x/", &files),
        ("COPY a b /x/\nRUN [\"r\"]", &files),
    ] {
        assert!(seen.insert(key(lines, files)), "{lines:?}");
    }
    assert_ne!(start, Key::of_layers(&[]));
    // A record must mean the same to the next daemon.
    let pinned =
        start.after(&Effect::Directory(Directory { path: "/x".to_owned(), owner: None }), &[]);
    assert_eq!(
        pinned.digest().hex(),
        "e3c7346424e17a379159dcb8b1f461c4b188d3a2c98e23953f25a4c2c896ec40"
    );
}

proptest::proptest! {
    #[test]
    fn no_dockerfile_panics(text in "((FROM|RUN|COPY|ENV|ARG|ADD|EXPOSE|USER|LABEL|CMD|SHELL|#|\\$)?[ -~\\\\\n\"'{}<\\[=é-]{0,20}\n?){0,8}") {
        for text in [text.clone(), format!("FROM a\n{text}"), format!("# escape=`\nFROM a AS b\n{text}")] {
            if let Ok(recipe) = Recipe::dockerfile(&text, given(&[("A", "b")])) {
                for stage in 0..recipe.stages.len() {
                    let _ = walked(&recipe, stage, &base());
                    let _ = recipe.needed(stage);
                }
            }
        }
    }

    #[test]
    fn no_pattern_panics(pattern in "[a-c*?/.\\[\\]^!\\\\é-]{0,16}", path in "[a-c/.é]{0,12}") {
        if let Ok(ignore) = Ignore::read(&pattern) {
            let _ = ignore.leaves_out(&path);
        }
    }
}

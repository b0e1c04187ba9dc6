//! COPY and ADD: destinations, owners, and refusals.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use super::{STORAGES, build, built, context, sandbox, with_base};
use crate::skip_if;
use crate::templates::images;

const FILE: &str = "\
FROM base AS other
RUN b=/bin/busybox; echo other > /srv/made && $b mkdir /srv/tree && echo deep > /srv/tree/deep \\
    && $b ln -s deep /srv/tree/link && $b rm /etc/group
RUN [\"/bin/busybox\", \"chown\", \"1001:1002\", \"/srv/made\"]
FROM base
WORKDIR /w
RUN [\"/bin/busybox\", \"ln\", \"-s\", \"/w\", \"/to-w\"]
RUN [\"/bin/busybox\", \"mkdir\", \"-m\", \"700\", \"/w/kept\"]
COPY one two.txt /to-w/
COPY *.txt renamed/
COPY one /w/other-name
COPY --chown=app:staff --chmod=600 one /w/owned/file
COPY --chown=7 dir /w/numbered
COPY dir/ /w/kept
ADD packed.tgz /w/unpacked
COPY packed.tgz /w/
COPY --from=other /srv /w/srv
COPY --from=base /etc/group /w/group
COPY <<END /w/inline
written here
END
COPY link /w/followed
";

#[test]
fn files_go_where_docker_puts_them() {
    skip_if!(images::obstacle());
    let context = context(&[
        ("Dockerfile", FILE),
        ("one", "1"),
        ("two.txt", "2"),
        ("three.txt", "3"),
        ("dir/a", "a"),
        ("dir/sub/b", "b"),
        ("real", "followed"),
        ("pack/inner/x", "x"),
    ]);
    symlink("real", context.path().join("link")).expect("a link");
    symlink("a", context.path().join("dir/link")).expect("a link");
    let mode = std::fs::Permissions::from_mode(0o750);
    std::fs::set_permissions(context.path().join("dir/a"), mode).expect("a mode");
    let packed = Command::new("tar")
        .args(["-czf", "packed.tgz", "--owner=1001", "--group=50", "-C", "pack", "inner"])
        .current_dir(context.path())
        .status();
    assert!(packed.expect("tar runs").success());
    for storage in STORAGES {
        let daemon = with_base(storage);
        built(&daemon, context.path(), &["-t", "files"]);
        let id = sandbox(&daemon, "files");
        let sh = |command: &str| daemon.sh(&id, command).ok();
        assert_eq!(
            sh("cat one two.txt renamed/two.txt renamed/three.txt other-name"),
            "12231",
            "{storage}"
        );
        assert_eq!(
            sh("stat -c '%u %g %a' one owned owned/file"),
            "0 0 644\n1001 50 755\n1001 50 600"
        );
        assert_eq!(sh("stat -c '%u %g' numbered numbered/a numbered/sub"), "7 7\n7 7\n7 7");
        assert_eq!(sh("stat -c %a numbered/a; cat numbered/sub/b numbered/link"), "750\nba");
        assert_eq!(
            sh("stat -c '%u %a' kept kept/a; cat kept/sub/b"),
            "0 700\n0 750\nb",
            "it stays as it was"
        );
        assert_eq!(
            sh("cat unpacked/inner/x; stat -c '%u %g' unpacked unpacked/inner/x"),
            "x0 0\n1001 50"
        );
        assert_eq!(sh("ls packed.tgz"), "packed.tgz", "COPY unpacks nothing");
        assert_eq!(
            sh("cat srv/made srv/tree/link; stat -c '%u %g' srv/made"),
            "other\ndeep\n1001 1002"
        );
        assert!(sh("cat group /etc/group").contains("staff"), "another stage changed its own");
        assert_eq!(sh("cat inline followed"), "written here\nfollowed");
    }
}

#[test]
fn nothing_outside_of_what_was_sent_can_be_copied() {
    skip_if!(images::obstacle());
    let daemon = with_base("local");
    for (file, clue) in [
        ("FROM base\nCOPY ../../etc/passwd /x\n", "is not there"),
        ("FROM base\nCOPY out /x\n", "is not there"),
        ("FROM base\nCOPY loop /x\n", "cannot read"),
        ("FROM base\nCOPY --from=base /no/such /x\n", "is not there"),
        ("FROM base\nCOPY one /etc/passwd/x\n", "cannot become a directory"),
        ("FROM base\nCOPY one one /etc\n", "ends with /"),
        ("FROM base\nCOPY .wh.one /x/\n", ".wh."),
    ] {
        let context = context(&[("Dockerfile", file), ("one", "1")]);
        symlink("/etc/hostname", context.path().join("out")).expect("a link");
        symlink("loop", context.path().join("loop")).expect("a link");
        if file.contains(".wh.") {
            std::fs::write(context.path().join(".wh.one"), "").expect("a file");
        }
        let ran = build(&daemon, context.path(), &["-t", "bad"]);
        assert_ne!(ran.code, 0, "{file}");
        assert!(ran.stderr.contains(clue), "{file}: {ran:?}");
    }
}

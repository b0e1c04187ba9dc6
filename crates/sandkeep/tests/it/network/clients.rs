//! Programs as people use them, in sandboxes where nothing is configured: each does its work through the gateway, once with
//! TLS that is passed on unread, once with requests that are read.

mod scene;

use std::path::Path;
use std::process::Command;

use scene::{Scene, bring, bring_packages, copy, missing};

use crate::skip_if;
use crate::support::{obstacle, top};

/// The packages that the registries have.
const DEMO: &str = "sandkeep-demo";

fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Where the sandboxes see it as well.
    let mut dirs = std::env::split_paths(&path).filter(|dir| dir.starts_with("/usr"));
    dirs.any(|dir| dir.join(program).exists())
}

fn lacks(program: &'static str, reason: &'static str) -> Option<&'static str> {
    (!has(program)).then_some(reason)
}

#[test]
fn curl_wget_and_a_static_binary() {
    skip_if!(obstacle());
    skip_if!(missing());
    let scene = Scene::new(|_| {});
    scene.check(&[
        ("curl -sS https://web.test/hello", "hello"),
        ("curl -sS http://plain.test/echo -d hi", "POST HTTP/1.1 hi"),
        ("curl -sS https://web.test/echo -d hi", "POST HTTP/2.0 hi"),
        ("curl -sS --http1.1 https://web.test/echo -T /etc/hostname", "PUT HTTP/1.1"),
        ("curl -sS --tls-max 1.2 https://web.test/hello", "hello"),
        ("curl -sS -6 https://web.test/hello", "hello"),
        ("wget -nv -O - https://web.test/hello", "hello"),
        ("wget -q -O - http://plain.test/echo --post-data hi", "POST HTTP/1.1 hi"),
        (
            "./web get https://web.test/hello http://plain.test/echo",
            "200 OK HTTP/2.0 6\n200 OK HTTP/1.1",
        ),
    ]);
}

#[test]
fn python() {
    skip_if!(obstacle());
    skip_if!(missing());
    let scene = Scene::new(|kit| {
        bring(kit, "clients.py");
        bring_packages(kit);
    });
    scene.check(&[
        ("/usr/bin/python3 clients.py requests_", "worked"),
        ("/usr/bin/python3 clients.py httpx_", "worked"),
        ("/usr/bin/python3 clients.py aiohttp_", "worked"),
        ("/usr/bin/python3 clients.py websockets_", "worked"),
        ("/usr/bin/python3 clients.py events", "worked"),
        ("/usr/bin/python3 clients.py grpc_", "worked"),
    ]);
}

#[test]
fn node() {
    skip_if!(obstacle());
    skip_if!(missing());
    skip_if!(lacks("node", "needs Node.js in /usr"));
    let undici = top().join("target/undici");
    let installed = undici.join("installed.json").exists();
    skip_if!((!installed).then_some("undici is not installed; ./test does it from npm"));
    let scene = Scene::new(|kit| {
        bring(kit, "clients.mjs");
        copy(&undici.join("node_modules"), &kit.join("node_modules"));
    });
    scene.check(&[("node clients.mjs fetch", "worked"), ("node clients.mjs undici", "worked")]);
}

#[test]
fn java() {
    skip_if!(obstacle());
    skip_if!(missing());
    skip_if!(lacks("jlink", "needs a JDK in /usr"));
    let scene = Scene::new(|kit| {
        // Settings of Debian's Java are in /etc, which a sandbox does not see; one that is made like this is complete.
        run("jlink", kit, &["--add-modules", "java.net.http,jdk.crypto.ec", "--output", "java"]);
        bring(kit, "Client.java");
        run("javac", kit, &["Client.java"]);
    });
    let plain = ("java/bin/java Client http://plain.test/echo", "200 HTTP_1_1 POST HTTP/1.1 hi");
    let tls = ("java/bin/java Client https://web.test/echo", "200 HTTP_2 POST HTTP/2.0 hi");
    scene.check(&[plain, tls]);
}

/// What Go needs to fetch modules.
fn bring_go(kit: &Path) {
    let root = Command::new("go").args(["env", "GOROOT"]).output().expect("it built the server");
    let root = String::from_utf8(root.stdout).expect("a path");
    std::fs::create_dir_all(kit.join("go/bin")).expect("a directory");
    for name in ["bin/go", "VERSION", "go.env"] {
        let from = Path::new(root.trim()).join(name);
        if from.exists() {
            copy(&from.canonicalize().expect("it is there"), &kit.join("go").join(name));
        }
    }
}

/// Runs a program of the host in a directory.
fn run(program: &str, within: &Path, arguments: &[&str]) {
    let mut command = Command::new(program);
    let ran = command.args(arguments).current_dir(within).output().expect("it runs");
    assert!(ran.status.success(), "{program}: {}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn package_managers() {
    skip_if!(obstacle());
    skip_if!(missing());
    let scene = Scene::new(|kit| {
        bring_packages(kit);
        copy(&top().join("target/network-clients/bin/uv"), &kit.join("uv"));
        // The one that runs the tests, without the program that chooses it.
        copy(Path::new(env!("CARGO")), &kit.join("cargo"));
        bring_go(kit);
    });
    let pip = format!(
        "/usr/bin/python3 -m pip install -q --target pip-{DEMO} {DEMO} && /usr/bin/python3 pip-{DEMO}/sandkeep_demo.py"
    );
    let uv = format!(
        "./uv pip install -q --python /usr/bin/python3 --target uv-{DEMO} {DEMO} && /usr/bin/python3 uv-{DEMO}/sandkeep_demo.py"
    );
    let cargo = format!(
        "mkdir -p crate/src && cd crate && touch src/lib.rs && \
         printf '[package]\\nname=\"x\"\\nedition=\"2021\"\\n[dependencies]\\n{DEMO}=\"1\"\\n' >Cargo.toml && \
         ../cargo vendor -q >/dev/null && cat vendor/{DEMO}/src/lib.rs"
    );
    let apt = |scheme: &str| {
        format!(
            "mkdir -p {scheme}/lists/partial {scheme}/archives/partial && cd {scheme} && touch status && \
             echo 'deb [trusted=yes] {scheme}://deb.debian.org/debian ./' >sources && \
             apt=\"apt-get -qq -o Dir::Etc::SourceList=$PWD/sources -o Dir::Etc::SourceParts=/dev/null \
                 -o Dir::State::Lists=$PWD/lists -o Dir::State::Status=$PWD/status -o Dir::Cache=$PWD\" && \
             $apt update && $apt download {DEMO} && ls *.deb"
        )
    };
    let (apt, apt_tls) = (apt("http"), apt("https"));
    let mut checks = vec![
        (pip.as_str(), "python demo"),
        (uv.as_str(), "python demo"),
        (cargo.as_str(), "pub fn demo"),
        (apt.as_str(), "sandkeep-demo_1.0_all.deb"),
        (apt_tls.as_str(), "sandkeep-demo_1.0_all.deb"),
    ];
    let npm = format!("npm install --silent --prefix npm {DEMO} && node npm/node_modules/{DEMO}");
    if has("npm") {
        checks.push((&npm, "npm demo"));
    }
    // Its database of checksums is signed by its owner's key, so there is none here.
    let go = "export GONOSUMDB='*' GOROOT=$PWD/go && go/bin/go mod download -json example.com/demo@latest";
    checks.push((go, "\"Version\": \"v1.0.0\""));
    scene.check(&checks);
    skip_if!(lacks("npm", "needs npm in /usr; the other package managers were tried"));
}

#[test]
fn git_over_https_and_ssh() {
    skip_if!(obstacle());
    skip_if!(missing());
    let scene = Scene::new(|_| {});
    let ssh = "export GIT_SSH_COMMAND='ssh -o StrictHostKeyChecking=accept-new'; \
               git clone -q ssh://git@github.com/demo/demo.git ssh && cat ssh/README";
    let push = "cd https && git config user.name x && git config user.email x@x.test && \
                head -c 3000000 /dev/urandom >big && git add . && git commit -qm x && \
                git push origin HEAD:refs/heads/new-$(git rev-parse HEAD) 2>&1";
    scene.check(&[
        ("git clone -q https://github.com/demo/demo.git https && cat https/README", "git demo"),
        (push, "[new branch]"),
        (ssh, "git demo"),
    ]);
}

#[test]
fn a_long_download() {
    skip_if!(obstacle());
    skip_if!(missing());
    download(64 << 20);
}

#[test]
#[ignore = "it moves gigabytes"]
fn soak_a_download_of_two_gigabytes() {
    skip_if!(obstacle());
    skip_if!(missing());
    download(2 << 30);
}

fn download(bytes: u64) {
    let scene = Scene::new(|_| {});
    let sum = "sha256sum | cut -c1-64";
    let fetch =
        |options: &str, url: &str| format!("curl -sS {options} '{url}?count={bytes}' | {sum}");
    // What the server says to itself, without a sandbox.
    let direct = Command::new("sh")
        .args(["-c", &fetch("", "http://127.0.1.1/bytes")])
        .output()
        .expect("sh runs");
    let expected = String::from_utf8(direct.stdout).expect("a sum");
    assert_eq!(expected.len(), 65, "{expected}");
    scene.check(&[
        (&fetch("", "http://plain.test/bytes"), &expected),
        (&fetch("--http1.1", "https://web.test/bytes"), &expected),
        (&fetch("--http2", "https://web.test/bytes"), &expected),
    ]);
}

#[test]
fn a_thousand_connections_at_once() {
    skip_if!(obstacle());
    skip_if!(missing());
    let scene = Scene::new(|_| {});
    scene.check(&[("ulimit -n 4096; ./web hold 1000 http://plain.test", "1000 answered")]);
}

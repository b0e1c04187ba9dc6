//! Builds the programs that run inside sandboxes, static and small, and leaves them where `guest::image` and
//! `doctor::battery` embed them from.
//!
//! It is a cargo build of its own, with its own target directory: another target triple, another profile, and no wait
//! for the lock of the build that runs this script. Settings of the outer build (flags, wrappers, clippy) do not reach
//! the inner one.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The programs inside: the guest, the isolation tests of `doctor`, and the toolbox. Package and program.
const PROGRAMS: [(&str, &str); 3] =
    [("guest", "sandkeep-guest"), ("probe", "sandkeep-probe"), ("toolbox", "sandkeep-toolbox")];

/// Their sources, relative to the root of the workspace.
const SOURCES: [&str; 10] = [
    "Cargo.toml",
    "Cargo.lock",
    "crates/guest/Cargo.toml",
    "crates/guest/src",
    "crates/guest-proto/Cargo.toml",
    "crates/guest-proto/src",
    "crates/probe/Cargo.toml",
    "crates/probe/src",
    "crates/toolbox/Cargo.toml",
    "crates/toolbox/src",
];

fn main() {
    let workspace = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../..");
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", workspace.join(source).display());
    }
    println!("cargo::rerun-if-changed=build.rs");

    let out = PathBuf::from(variable("OUT_DIR"));
    let triple = triple(&variable("CARGO_CFG_TARGET_ARCH"));
    let target_dir = out.join("guest");
    build(&workspace, &triple, &target_dir);
    for (_, program) in PROGRAMS {
        let built = target_dir.join(&triple).join("guest").join(program);
        let embedded = out.join(program);
        if let Err(error) = std::fs::copy(&built, &embedded) {
            panic!("cannot copy {} to {}: {error}", built.display(), embedded.display());
        }
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}

/// musl starts faster and uses less memory; where its target is not installed, static glibc does.
fn triple(arch: &str) -> String {
    let musl = format!("{arch}-unknown-linux-musl");
    let output = Command::new(variable("RUSTC"))
        .args(["--print", "sysroot"])
        .output()
        .expect("rustc says where it is installed");
    let sysroot = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let has_std = Path::new(&sysroot).join("lib/rustlib").join(&musl).join("lib").is_dir();
    if has_std { musl } else { format!("{arch}-unknown-linux-gnu") }
}

fn build(workspace: &Path, triple: &str, target_dir: &Path) {
    let mut cargo = Command::new(variable("CARGO"));
    for (name, _) in env::vars_os() {
        if steers_the_outer_build(&name) {
            cargo.env_remove(name);
        }
    }
    // Fixed addresses: no relocation at start, and fewer pages that are each sandbox's own.
    cargo.env("RUSTFLAGS", "-C target-feature=+crt-static -C relocation-model=static");
    cargo.args(["build", "--locked"]);
    for (package, program) in PROGRAMS {
        cargo.args(["--package", package, "--bin", program]);
    }
    cargo.args(["--profile", "guest", "--target", triple]);
    cargo.arg("--target-dir").arg(target_dir).current_dir(workspace);
    let status = cargo.status().expect("cargo can be started again");
    assert!(status.success(), "the programs for inside could not be built for {triple}: {status}");
}

fn steers_the_outer_build(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let keep = ["CARGO", "CARGO_HOME", "CARGO_MAKEFLAGS", "CARGO_NET_OFFLINE"];
    let prefixes = ["CARGO", "RUSTC", "RUSTFLAGS", "RUSTDOC", "CLIPPY"];
    !keep.contains(&name.as_ref()) && prefixes.iter().any(|prefix| name.starts_with(prefix))
}

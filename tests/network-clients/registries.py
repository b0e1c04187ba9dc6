"""Writes small registries below a directory, one tree for each host name, each with one package: sandkeep-demo.

    registries.py DIRECTORY
"""

import base64
import hashlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile

NAME = "sandkeep-demo"


def zipped(files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return out.getvalue()


def tarred(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return out.getvalue()


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def python(top):
    wheel_name = "sandkeep_demo-1.0-py3-none-any.whl"
    info = "sandkeep_demo-1.0.dist-info"
    files = {
        "sandkeep_demo.py": "print('python demo')\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }

    def recorded(text):
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        return f"sha256={digest},{len(text)}"

    lines = [f"{name},{recorded(text)}" for name, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,"]) + "\n"
    wheel = zipped(files)
    digest = hashlib.sha256(wheel).hexdigest()
    put(top / "files.pythonhosted.org/packages" / wheel_name, wheel)
    link = f'<a href="https://files.pythonhosted.org/packages/{wheel_name}#sha256={digest}">{wheel_name}</a>'
    put(top / f"pypi.org/simple/{NAME}/index.html", f"<!DOCTYPE html><html><body>{link}</body></html>")


def npm(top):
    package = {"name": NAME, "version": "1.0.0", "main": "index.js"}
    tarball = tarred({
        "package/package.json": json.dumps(package),
        "package/index.js": "console.log('npm demo');\n",
    })
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(tarball).digest()).decode()
    path = f"{NAME}/-/{NAME}-1.0.0.tgz"
    dist = {"tarball": f"https://registry.npmjs.org/{path}", "integrity": integrity}
    document = {"name": NAME, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {**package, "dist": dist}}}
    put(top / "registry.npmjs.org" / path, tarball)
    put(top / f"registry.npmjs.org/{NAME}/index.json", json.dumps(document))


def cargo(top):
    manifest = f'[package]\nname = "{NAME}"\nversion = "1.0.0"\nedition = "2021"\n'
    crate = tarred({f"{NAME}-1.0.0/Cargo.toml": manifest, f"{NAME}-1.0.0/src/lib.rs": "pub fn demo() {}\n"})
    line = {
        "name": NAME, "vers": "1.0.0", "deps": [], "features": {}, "yanked": False,
        "cksum": hashlib.sha256(crate).hexdigest(),
    }
    config = {"dl": "https://static.crates.io/crates", "api": "https://crates.io"}
    put(top / "index.crates.io/config.json", json.dumps(config))
    put(top / f"index.crates.io/sa/nd/{NAME}", json.dumps(line) + "\n")
    put(top / f"static.crates.io/crates/{NAME}/1.0.0/download", crate)


def go(top):
    module, version = "example.com/demo", "v1.0.0"
    mod = f"module {module}\n\ngo 1.19\n"
    versions = top / "proxy.golang.org" / module / "@v"
    put(versions / "list", version + "\n")
    put(versions / f"{version}.info", json.dumps({"Version": version, "Time": "2024-01-01T00:00:00Z"}))
    put(versions / f"{version}.mod", mod)
    within = f"{module}@{version}"
    put(versions / f"{version}.zip", zipped({f"{within}/go.mod": mod, f"{within}/demo.go": "package demo\n"}))


def debian(top):
    debs = top / "deb.debian.org/debian"
    with tempfile.TemporaryDirectory() as place:
        control = pathlib.Path(place) / "DEBIAN/control"
        text = f"Package: {NAME}\nVersion: 1.0\nArchitecture: all\nMaintainer: Test <test@test.test>\nDescription: demo\n"
        put(control, text)
        debs.mkdir(parents=True)
        built = ["dpkg-deb", "--build", "--root-owner-group", place, str(debs / f"{NAME}_1.0_all.deb")]
        subprocess.run(built, check=True, stdout=subprocess.DEVNULL)
    packages = subprocess.run(
        ["dpkg-scanpackages", "--multiversion", "."], cwd=debs, check=True, capture_output=True
    ).stdout
    put(debs / "Packages", packages)
    digest = hashlib.sha256(packages).hexdigest()
    put(debs / "Release", f"Suite: test\nCodename: test\nSHA256:\n {digest} {len(packages)} Packages\n")


def git(top):
    with tempfile.TemporaryDirectory() as place:
        put(pathlib.Path(place) / "README", "git demo\n")
        bare = top / "github.com/demo/demo.git"
        person = ["-c", "user.name=test", "-c", "user.email=test@test.test"]
        for words in (
            ["init", "-q", "-b", "main", place],
            ["-C", place, "add", "."],
            ["-C", place, *person, "commit", "-q", "-m", "first"],
            ["clone", "-q", "--bare", place, str(bare)],
            ["-C", str(bare), "config", "http.receivepack", "true"],
        ):
            subprocess.run(["git", *words], check=True)


def main():
    top = pathlib.Path(sys.argv[1])
    os.environ["GIT_CONFIG_GLOBAL"] = "/dev/null"
    for write in (python, npm, cargo, go, debian, git):
        write(top)
    put(top / "web.test/hello", "hello\n")


main()

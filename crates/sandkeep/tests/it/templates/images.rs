//! Images for the tests, built here from a static busybox, by common tools.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

/// Why images cannot be made here; `None` if they can.
pub fn obstacle() -> Option<&'static str> {
    let missing = |path: &str| !Path::new(path).exists();
    match (missing(BUSYBOX), missing("/usr/bin/skopeo")) {
        (true, _) => Some("needs the package busybox-static"),
        (_, true) => Some("needs the package skopeo"),
        (false, false) => crate::support::obstacle(),
    }
}

const BUSYBOX: &str = "/usr/bin/busybox";

/// An image in the making: the trees of its layers, and what `docker save` would say of it.
pub struct Image {
    place: TempDir,
    layers: usize,
    config: Value,
}

impl Image {
    /// Without any layer.
    pub fn scratch() -> Self {
        let place = tempfile::Builder::new().prefix("sandkeep-image-").tempdir().expect("a dir");
        Self { place, layers: 0, config: json!({}) }
    }

    /// A small system: shell, tools, two users, an application.
    pub fn busybox() -> Self {
        let image = Self::scratch().layer(|root| {
            for dir in ["bin", "etc", "root", "home/app", "srv"] {
                fs::create_dir_all(root.join(dir)).expect("a directory");
            }
            copy_busybox(&root.join("bin/busybox"));
            for applet in ["sh", "cat", "id", "pwd", "env", "ls", "echo", "sleep", "touch", "stat"]
            {
                symlink("busybox", root.join("bin").join(applet)).expect("a link");
            }
            let passwd = "root:x:0:0:root:/root:/bin/sh\napp:x:1001:1002:app:/home/app:/bin/sh\n";
            fs::write(root.join("etc/passwd"), passwd).expect("passwd");
            let group = "root:x:0:\napp:x:1002:\nstaff:x:50:app\nwheel:x:10:root\n";
            fs::write(root.join("etc/group"), group).expect("group");
            fs::write(root.join("etc/old"), "below\n").expect("a file");
            chown(root.join("home/app"), Some(1001), Some(1002)).expect("root may");
        });
        image
            .layer(|root| {
                fs::create_dir_all(root.join("etc")).expect("a directory");
                fs::create_dir_all(root.join("srv/data")).expect("a directory");
                fs::write(root.join("etc/.wh.old"), "").expect("a whiteout");
                fs::write(root.join("srv/data/greeting"), "hello from the image\n").expect("it");
                chown(root.join("srv/data"), Some(1001), Some(1002)).expect("root may");
            })
            .config(&json!({
                "User": "app",
                "WorkingDir": "/srv/data",
                "Env": ["GREETING=hello", "PATH=/bin"],
                "Cmd": ["cat", "greeting"],
            }))
    }

    /// One program and nothing else.
    pub fn one_program() -> Self {
        Self::scratch()
            .layer(|root| copy_busybox(&root.join("busybox")))
            .config(&json!({ "Entrypoint": ["/busybox", "echo"], "Cmd": ["from", "nothing"] }))
    }

    pub fn layer(mut self, fill: impl FnOnce(&Path)) -> Self {
        let root = self.tree(self.layers);
        fs::create_dir_all(&root).expect("a directory");
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).expect("it is ours");
        fill(&root);
        self.layers += 1;
        self
    }

    pub fn config(mut self, config: &Value) -> Self {
        self.config = config.clone();
        self
    }

    fn tree(&self, layer: usize) -> PathBuf {
        self.place.path().join(format!("tree-{layer}"))
    }

    /// What `docker save` writes.
    pub fn docker_archive(&self) -> PathBuf {
        let saved = self.place.path().join("saved");
        fs::create_dir_all(&saved).expect("a directory");
        let names: Vec<String> = (0..self.layers).map(|layer| format!("{layer}.tar")).collect();
        let mut diff_ids = Vec::new();
        for (layer, name) in names.iter().enumerate() {
            let tar = saved.join(name);
            pack(&self.tree(layer), &tar);
            diff_ids.push(format!("sha256:{}", sha256(&tar)));
        }
        let config = json!({
            "architecture": "amd64",
            "os": "linux",
            "config": self.config,
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
        });
        fs::write(saved.join("config.json"), config.to_string()).expect("a config");
        let manifest = json!([{
            "Config": "config.json",
            "RepoTags": ["test/image:latest"],
            "Layers": names,
        }]);
        fs::write(saved.join("manifest.json"), manifest.to_string()).expect("a manifest");
        let archive = self.place.path().join("image.tar");
        pack(&saved, &archive);
        archive
    }

    /// An OCI layout of it, made by skopeo.
    pub fn oci_layout(&self) -> PathBuf {
        let layout = self.place.path().join("layout");
        let from = format!("docker-archive:{}", self.docker_archive().display());
        let to = format!("oci:{}:latest", layout.display());
        run(Command::new("skopeo").args(["copy", "--insecure-policy", "--quiet", &from, &to]));
        layout
    }

    /// The tree of its first layer, packed and compressed: no image, only files.
    pub fn plain_tar(&self) -> PathBuf {
        let tar = self.place.path().join("root.tar.gz");
        pack(&self.tree(0), &tar);
        tar
    }

    /// The same as a directory.
    pub fn directory(&self) -> PathBuf {
        self.tree(0)
    }
}

fn copy_busybox(to: &Path) {
    fs::copy(BUSYBOX, to).expect("busybox can be copied");
    fs::set_permissions(to, fs::Permissions::from_mode(0o755)).expect("it is ours");
}

fn pack(tree: &Path, archive: &Path) {
    run(Command::new("tar")
        .arg("--auto-compress")
        .arg("-C")
        .arg(tree)
        .arg("-cf")
        .arg(archive)
        .arg("."));
}

fn sha256(file: &Path) -> String {
    let said = Command::new("sha256sum").arg(file).output().expect("sha256sum runs").stdout;
    let said = String::from_utf8(said).expect("text");
    said.split(' ').next().expect("a digest").to_owned()
}

fn run(command: &mut Command) {
    let output = command.output().expect("the tool runs");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

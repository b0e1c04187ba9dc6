//! Tools in minimal images.

use serde_json::json;

use super::{done, refused};
use crate::skip_if;
use crate::support::{Daemon, Ran, binary};
use crate::templates::images::{self, Image};

fn sandbox_of(daemon: &Daemon, image: &Image, name: &str) -> String {
    let mut command = binary();
    command.args(["template", "import", "--name", name]).arg(image.docker_archive());
    let output = command.env("SANDKEEP_URL", daemon.url()).output().expect("the binary runs");
    let ran = Ran::from(output);
    assert_eq!(ran.code, 0, "{ran:?}");
    daemon.create_with(&json!({ "template": name }))
}

#[test]
fn tools_need_nothing_of_an_image_but_what_they_are_about() {
    skip_if!(images::obstacle());
    let daemon = Daemon::start();
    let id = sandbox_of(&daemon, &Image::one_program(), "bare");
    done(&daemon, &id, "write_file", &json!({ "path": "/d/f", "content": "one\ntwo\n" }));
    let edit = json!({ "path": "/d/f", "old_string": "two", "new_string": "2" });
    done(&daemon, &id, "edit_file", &edit);
    assert_eq!(done(&daemon, &id, "grep", &json!({ "pattern": "2", "path": "/d" })), "/d/f:2:2\n");
    refused(&daemon, &id, "bash", &json!({ "command": "true" }), "no_shell");
    refused(&daemon, &id, "git_status", &json!({}), "no_git");

    let id = sandbox_of(&daemon, &Image::busybox(), "small");
    let said = done(&daemon, &id, "bash", &json!({ "command": "echo -n from; pwd; id -un" }));
    assert_eq!(said, "from/srv/data\napp\n", "sh stands in, as the image's user, where it works");
    let read = done(&daemon, &id, "read_file", &json!({ "path": "greeting" }));
    assert_eq!(read, "     1\thello from the image\n");
}

//! Searches of a large tree return answers that fit a model, and end when nobody waits.

use serde_json::json;

use super::done;
use crate::daemon;

#[test]
fn a_flood_of_files_is_searched_within_limits() {
    let daemon = daemon!();
    let id = daemon.create_with(&json!({ "resources": { "disk_mb": 4096 } }));
    let fill = "import os
for d in range(1000):
    os.mkdir(f'tree/d{d:03}')
    for f in range(100):
        with open(f'tree/d{d:03}/f{f:02}.txt', 'w') as out:
            out.write(f'line {d} {f}\\nneedle\\n' if f == 7 else f'line {d} {f}\\n')
os.mkdir('tree/ignored')
open('tree/ignored/f.txt', 'w').write('last needle\\n')
open('tree/.gitignore', 'w').write('ignored/\\n')
";
    daemon.exec(&id, &json!({ "command": "mkdir tree; python3 -", "stdin": fill })).ok();
    let grep = |arguments: serde_json::Value| done(&daemon, &id, "grep", &arguments);
    let many = grep(json!({ "pattern": "needle", "path": "tree" }));
    assert_eq!(many.lines().count(), 101, "a hundred, and that there are more");
    let last = grep(json!({ "pattern": "last needle", "path": "tree" }));
    assert_eq!(last, "tree/ignored/f.txt:1:last needle\n", "all files are looked at");
    let none = grep(json!({ "pattern": "last needle", "path": "tree", "gitignore": true }));
    assert_eq!(none, "no match in 100001 files\n");
    let found = done(&daemon, &id, "glob", &json!({ "pattern": "tree/**/*7.txt" }));
    assert_eq!(found.lines().count(), 201);
    let one = done(&daemon, &id, "glob", &json!({ "pattern": "tree/d9?9/f99.txt" }));
    assert_eq!(one.lines().count(), 10);
}

//! Owners of copied files. Names are resolved by the tree's own passwd and group files. They are untrusted: bounded,
//! and a line that does not parse is ignored.

use std::io::Read;

use super::{CopyError, Files};
use sandkeep_core::limits;
use sandkeep_tree::TreePath;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ids {
    pub uid: u32,
    pub gid: u32,
}

const USERS: &str = "etc/passwd";
const GROUPS: &str = "etc/group";

/// `user`, `uid`, `user:group` and so on, as in Docker's `--chown`: a user by name has the group of its entry, one by
/// number the group of the same number.
pub fn ids_of(written: &str, tree: &dyn Files) -> Result<Ids, CopyError> {
    let (user, group) = match written.split_once(':') {
        Some((user, group)) => (user, Some(group).filter(|group| !group.is_empty())),
        None => (written, None),
    };
    let (uid, own_gid) = match user.parse() {
        Ok(uid) => (uid, uid),
        Err(_) => {
            let nobody =
                || CopyError::Nobody { name: user.to_owned(), what: "user", file: "/etc/passwd" };
            let fields = line_of(tree, USERS, user)?.ok_or_else(nobody)?;
            let number = |at: usize| fields.get(at).and_then(|field| field.parse().ok());
            (number(2).ok_or_else(nobody)?, number(3).ok_or_else(nobody)?)
        }
    };
    let gid = match group {
        None => own_gid,
        Some(group) => match group.parse() {
            Ok(gid) => gid,
            Err(_) => {
                let nobody = || CopyError::Nobody {
                    name: group.to_owned(),
                    what: "group",
                    file: "/etc/group",
                };
                let fields = line_of(tree, GROUPS, group)?.ok_or_else(nobody)?;
                fields.get(2).and_then(|field| field.parse().ok()).ok_or_else(nobody)?
            }
        },
    };
    Ok(Ids { uid, gid })
}

/// The fields of the line for a name.
fn line_of(tree: &dyn Files, file: &str, name: &str) -> Result<Option<Vec<String>>, CopyError> {
    let path = TreePath::clean(file.as_bytes()).expect("a constant without dots");
    let read = || -> std::io::Result<String> {
        let Some(found) = tree.resolve(&path)? else { return Ok(String::new()) };
        let mut bytes = Vec::new();
        tree.open(&found)?.take(limits::BUILD_USERS_MAX_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().map_err(CopyError::reading(&path))?;
    let mut lines = text.lines().map(|line| line.split(':').map(str::to_owned).collect::<Vec<_>>());
    Ok(lines.find(|fields| fields.first().is_some_and(|first| first == name)))
}

//! The user of a command, resolved by the sandbox's own /etc/passwd and /etc/group.
//!
//! Both files belong to the sandbox: they may be missing, huge, a pipe, or nonsense. They are read without blocking, up
//! to a limit, and a line that does not parse is skipped. Numeric ids need no file.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;

/// A larger file is read up to this size.
const FILE_MAX: u64 = 1024 * 1024;
/// The kernel's own limit.
const GROUPS_MAX: usize = 65_536;
/// The group of a uid without an entry, if the user is written with an empty group as in images: files that images make
/// writable for such a user belong to this group.
const GROUP_OF_IMAGES: u32 = 0;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups; none if the group was given.
    pub groups: Vec<u32>,
    /// `None` for a uid without an entry.
    pub name: Option<String>,
    pub home: String,
}

/// A requested user that does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoSuchUser {
    Malformed(String),
    User { name: String, file: FileIs },
    Group { name: String, file: FileIs },
}

/// Whether the file that should contain an entry exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileIs {
    There,
    Missing,
}

impl fmt::Display for NoSuchUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(user) => write!(
                f,
                "user {user:?} is not of the form NAME, UID, NAME:GROUP or UID:GID (with ids below {})",
                u32::MAX
            ),
            Self::User { name, file: FileIs::There } => write!(
                f,
                "there is no user {name:?} in the sandbox's /etc/passwd; name one of it, give a uid, or add \
                 the user as root"
            ),
            Self::User { name, file: FileIs::Missing } => write!(
                f,
                "there is no user {name:?}, because the sandbox has no /etc/passwd; give a uid, such as 0 or \
                 1000:1000"
            ),
            Self::Group { name, file: FileIs::There } => write!(
                f,
                "there is no group {name:?} in the sandbox's /etc/group; name one of it, give a gid, or add \
                 the group as root"
            ),
            Self::Group { name, file: FileIs::Missing } => write!(
                f,
                "there is no group {name:?}, because the sandbox has no /etc/group; give a gid"
            ),
        }
    }
}

/// Resolves `user` or `user:group`, each a name or a number, by the sandbox's files.
pub fn find(user: &str) -> Result<Account, NoSuchUser> {
    resolve(user, read("/etc/passwd").as_deref(), || read("/etc/group"))
}

/// `None` if there is no such file, or it is not readable like a file.
fn read(path: &str) -> Option<String> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    // If a read fails in the middle, the part before counts.
    let _ = file.take(FILE_MAX).read_to_end(&mut bytes);
    if bytes.len() as u64 == FILE_MAX {
        // The last line may be truncated, and would then mean something else.
        let end = bytes.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
        bytes.truncate(end);
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The group file is read only when it is needed.
fn resolve(
    user: &str,
    passwd: Option<&str>,
    group_file: impl FnOnce() -> Option<String>,
) -> Result<Account, NoSuchUser> {
    let malformed = || NoSuchUser::Malformed(user.to_owned());
    let (who, group) = match user.split_once(':') {
        Some((who, group)) => (who, Some(group)),
        None => (user, None),
    };
    if who.is_empty() || group.is_some_and(|group| group.contains(':')) {
        return Err(malformed());
    }
    let entry = entry_of(who, passwd);
    let uid = match (entry, number(who)) {
        (Some(entry), _) => entry.uid,
        (None, Some(uid)) => uid,
        (None, None) if who.bytes().all(|byte| byte.is_ascii_digit()) => return Err(malformed()),
        (None, None) => return Err(NoSuchUser::User { name: who.to_owned(), file: is(passwd) }),
    };
    let (gid, groups) = match (group, entry) {
        (None | Some(""), Some(entry)) => {
            (entry.gid, groups_of(entry.name, entry.gid, &group_file().unwrap_or_default()))
        }
        (Some(""), None) => (GROUP_OF_IMAGES, Vec::new()),
        // In a group of its own: group 0 would give access to files of root's group.
        (None, None) => (uid, Vec::new()),
        (Some(group), _) => (group_id(group, group_file)?, Vec::new()),
    };
    Ok(account(uid, gid, groups, entry))
}

/// A name that looks like a number is a name first.
fn entry_of<'a>(who: &str, passwd: Option<&'a str>) -> Option<Entry<'a>> {
    let passwd = passwd?;
    let by_name = entries(passwd).find(|entry| entry.name == who);
    by_name.or_else(|| {
        let uid = number(who)?;
        entries(passwd).find(|entry| entry.uid == uid)
    })
}

fn group_id(group: &str, group_file: impl FnOnce() -> Option<String>) -> Result<u32, NoSuchUser> {
    let file = group_file();
    let named = file
        .as_deref()
        .and_then(|file| groups(file).find(|line| line.name == group).map(|line| line.gid));
    let no_such = || NoSuchUser::Group { name: group.to_owned(), file: is(file.as_deref()) };
    named.or_else(|| number(group)).ok_or_else(no_such)
}

fn is(file: Option<&str>) -> FileIs {
    match file {
        Some(_) => FileIs::There,
        None => FileIs::Missing,
    }
}

/// A decimal id. The largest number is invalid: to the kernel it means "unchanged", which would be root.
fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok())?.filter(|id| *id != u32::MAX)
}

fn account(uid: u32, gid: u32, groups: Vec<u32>, entry: Option<Entry<'_>>) -> Account {
    let home = match entry {
        Some(entry) if entry.home.starts_with('/') => entry.home,
        _ => "/",
    };
    Account { uid, gid, groups, name: entry.map(|e| e.name.to_owned()), home: home.to_owned() }
}

#[derive(Clone, Copy)]
struct Entry<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

fn entries(passwd: &str) -> impl Iterator<Item = Entry<'_>> {
    passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let uid = number(fields.nth(1)?)?;
        let gid = number(fields.next()?)?;
        let home = fields.nth(1)?;
        Some(Entry { name, uid, gid, home })
    })
}

struct Group<'a> {
    name: &'a str,
    gid: u32,
    members: &'a str,
}

fn groups(file: &str) -> impl Iterator<Item = Group<'_>> {
    file.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let gid = number(fields.nth(1)?)?;
        Some(Group { name, gid, members: fields.next()? })
    })
}

fn groups_of(name: &str, gid: u32, file: &str) -> Vec<u32> {
    let mut found = vec![gid];
    for group in groups(file) {
        let member = group.members.split(',').any(|member| member == name);
        if member && found.len() < GROUPS_MAX && !found.contains(&group.gid) {
            found.push(group.gid);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n\
        # a comment\n\
        broken:x:one:1::/\n\
        signed:x:+5:5::/:/bin/sh\n\
        everybody:x:4294967295:5::/:/bin/sh\n\
        user:x:1000:1001:,,,:/home/user:/bin/bash\n\
        77:x:500:500::/odd:/bin/sh\n\
        nohome:x:7:7::relative:/bin/sh\n";
    const GROUP: &str = "root:x:0:\nusers:x:100:other,user\nwheel:x:10:user\nuser:x:1001:user\n";

    fn find(user: &str) -> Result<Account, NoSuchUser> {
        resolve(user, Some(PASSWD), || Some(GROUP.to_owned()))
    }

    fn find_without_files(user: &str) -> Result<Account, NoSuchUser> {
        resolve(user, None, || None)
    }

    #[test]
    fn a_name_has_its_groups_and_home() {
        let account = find("user").unwrap();
        assert_eq!((account.uid, account.gid), (1000, 1001));
        assert_eq!(account.groups, [1001, 100, 10]);
        assert_eq!(account.home, "/home/user");
        assert_eq!(account.name.as_deref(), Some("user"));
    }

    #[test]
    fn a_number_is_a_uid_unless_it_is_a_name() {
        assert_eq!(find("1000"), find("user"));
        assert_eq!(find("77").unwrap().uid, 500);
    }

    #[test]
    fn an_unnamed_uid_is_its_own_group_and_at_home_in_the_root() {
        let expected =
            Account { uid: 4242, gid: 4242, groups: vec![], name: None, home: "/".to_owned() };
        assert_eq!(find("4242"), Ok(expected.clone()));
        assert_eq!(find_without_files("4242"), Ok(expected));
    }

    #[test]
    fn an_unnamed_uid_of_an_image_is_in_the_group_of_root() {
        assert_eq!(find("4242:").unwrap().gid, 0);
        assert_eq!(find("1000:"), find("user"));
        assert_eq!(find("user:"), find("user"));
    }

    #[test]
    fn uid_and_gid_are_taken_as_they_are() {
        let account = find("1000:5").unwrap();
        assert_eq!((account.uid, account.gid), (1000, 5));
        assert!(account.groups.is_empty());
        assert_eq!(account.home, "/home/user");
        assert_eq!(find_without_files("8:9").unwrap().gid, 9);
    }

    #[test]
    fn a_group_may_be_named_and_is_the_only_one_then() {
        for user in ["user:wheel", "1000:wheel", "user:10"] {
            let account = find(user).unwrap();
            assert_eq!((account.uid, account.gid), (1000, 10), "{user}");
            assert!(account.groups.is_empty(), "{user}");
            assert_eq!(account.home, "/home/user", "{user}");
        }
    }

    #[test]
    fn who_is_not_there_is_refused() {
        for user in [
            "",
            ":",
            ":5",
            "nobody",
            "broken",
            "signed",
            "everybody",
            "-1",
            "+1",
            "4294967295",
            "4294967296",
            "1:4294967295",
            "user:nobody",
            "1:2:3",
            "# a comment",
        ] {
            assert!(find(user).is_err(), "{user:?} was accepted");
        }
    }

    #[test]
    fn a_sandbox_without_the_files_says_that_ids_work() {
        for user in ["root", "0:root"] {
            let said = find_without_files(user).unwrap_err().to_string();
            assert!(said.contains("the sandbox has no /etc/") && said.contains("give a"), "{said}");
        }
    }

    #[test]
    fn a_home_that_is_no_absolute_path_is_not_used() {
        assert_eq!(find("nohome").unwrap().home, "/");
    }
}

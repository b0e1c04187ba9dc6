//! Who a command runs as, by the sandbox's own /etc/passwd and /etc/group.
//!
//! Both files belong to the sandbox: they may be huge, a pipe, or nonsense. They are read without
//! waiting, up to a bound, and a line that does not parse is passed over.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;

/// A larger file is read this far.
const FILE_MAX: u64 = 1024 * 1024;
/// The kernel's own limit.
const GROUPS_MAX: usize = 65_536;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups; none where the group was given by number.
    pub groups: Vec<u32>,
    /// `None` for a uid that no line of the file names.
    pub name: Option<String>,
    pub home: String,
}

/// Whom a request named and nobody is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoSuchUser {
    NotNumbers(String),
    Unknown(String),
}

impl fmt::Display for NoSuchUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotNumbers(user) => {
                write!(f, "user {user:?} is neither a name nor uid:gid in numbers")
            }
            Self::Unknown(user) => {
                write!(f, "there is no user {user:?} in the sandbox's /etc/passwd")
            }
        }
    }
}

/// Finds `name`, `uid` or `uid:gid` in the sandbox's files.
pub fn find(user: &str) -> Result<Account, NoSuchUser> {
    resolve(user, &read("/etc/passwd"), || read("/etc/group"))
}

fn read(path: &str) -> String {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(path) else {
        return String::new();
    };
    let mut bytes = Vec::new();
    // A file that cannot be read to its end names whom it names so far.
    let _ = file.take(FILE_MAX).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The group file is asked for only when it is needed.
fn resolve(
    user: &str,
    passwd: &str,
    group_file: impl FnOnce() -> String,
) -> Result<Account, NoSuchUser> {
    if let Some((uid, gid)) = user.split_once(':') {
        let (Ok(uid), Ok(gid)) = (uid.parse(), gid.parse()) else {
            return Err(NoSuchUser::NotNumbers(user.to_owned()));
        };
        let entry = entries(passwd).find(|entry| entry.uid == uid);
        return Ok(account(uid, gid, Vec::new(), entry));
    }
    let by_name = entries(passwd).find(|entry| entry.name == user);
    let entry = match (by_name, user.parse::<u32>()) {
        (Some(entry), _) => Some(entry),
        (None, Ok(uid)) => match entries(passwd).find(|entry| entry.uid == uid) {
            Some(entry) => Some(entry),
            // As a group of its own: group 0 would open files that are root's group's.
            None => return Ok(account(uid, uid, Vec::new(), None)),
        },
        (None, Err(_)) => None,
    };
    match entry {
        Some(entry) => {
            let groups = groups_of(entry.name, entry.gid, &group_file());
            Ok(account(entry.uid, entry.gid, groups, Some(entry)))
        }
        None => Err(NoSuchUser::Unknown(user.to_owned())),
    }
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
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        let home = fields.nth(1)?;
        Some(Entry { name, uid, gid, home })
    })
}

fn groups_of(name: &str, gid: u32, group: &str) -> Vec<u32> {
    let mut groups = vec![gid];
    for line in group.lines() {
        let mut fields = line.split(':');
        let (Some(id), Some(members)) = (fields.nth(2), fields.next()) else { continue };
        let Ok(id) = id.parse() else { continue };
        if members.split(',').any(|member| member == name) && !groups.contains(&id) {
            groups.push(id);
        }
    }
    groups.truncate(GROUPS_MAX);
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n\
        # a comment\n\
        broken:x:one:1::/\n\
        user:x:1000:1001:,,,:/home/user:/bin/bash\n\
        77:x:500:500::/odd:/bin/sh\n\
        nohome:x:7:7::relative:/bin/sh\n";
    const GROUP: &str = "root:x:0:\nusers:x:100:other,user\nwheel:x:10:user\nuser:x:1001:user\n";

    fn find(user: &str) -> Result<Account, NoSuchUser> {
        resolve(user, PASSWD, || GROUP.to_owned())
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
        let account = find("4242").unwrap();
        let expected =
            Account { uid: 4242, gid: 4242, groups: vec![], name: None, home: "/".to_owned() };
        assert_eq!(account, expected);
    }

    #[test]
    fn uid_and_gid_are_taken_as_they_are() {
        let account = find("1000:5").unwrap();
        assert_eq!((account.uid, account.gid), (1000, 5));
        assert!(account.groups.is_empty());
        assert_eq!(account.home, "/home/user");
    }

    #[test]
    fn who_is_not_there_is_refused() {
        for user in
            ["", "nobody", "broken", "-1", "4294967296", "user:users", "1:2:3", "# a comment"]
        {
            assert!(find(user).is_err(), "{user:?} was accepted");
        }
    }

    #[test]
    fn a_home_that_is_no_absolute_path_is_not_used() {
        assert_eq!(find("nohome").unwrap().home, "/");
    }
}

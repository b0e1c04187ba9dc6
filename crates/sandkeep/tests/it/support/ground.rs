//! The storage below a test daemon's volumes. One function becomes a test on each: `on_btrfs`, `on_local`, and
//! `on_a_pool` for zfs, which the test runner recognizes by that name and runs alone.

use super::{NoPool, Pool, Setup, obstacle, zfs};

pub enum Ground {
    Btrfs,
    Local,
    Pool(Pool),
}

impl Ground {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Btrfs => "btrfs",
            Self::Local => "local",
            Self::Pool(_) => "zfs",
        }
    }

    /// How a daemon on it is started.
    pub fn setup(&self) -> Setup {
        let storage = match self {
            Self::Btrfs | Self::Local => self.name().to_owned(),
            Self::Pool(pool) => format!("zfs:{}", pool.name),
        };
        Setup::default().argument("--storage").argument(&storage)
    }
}

/// Runs a body on some ground, or says why that cannot be.
pub fn on_ground(
    test: &str,
    ground: impl FnOnce() -> Result<Ground, NoPool>,
    body: impl FnOnce(&Ground),
) {
    if let Some(reason) = obstacle() {
        return eprintln!("SKIP {test}: {reason}");
    }
    match ground() {
        Err(reason) => eprintln!("SKIP {test}: {reason}"),
        Ok(ground) => {
            body(&ground);
            if let Ground::Pool(pool) = &ground {
                // A removed dataset stays for as long as a layer was made from it.
                let told = zfs(&["list", "-H", "-o", "name,sandkeep:dead", "-r", &pool.name]);
                let is_alive = |row: &&str| row.contains("/volumes/") && !row.ends_with("\ton");
                let left = told.lines().filter(is_alive);
                assert_eq!(left.collect::<Vec<_>>(), [""; 0], "no sandbox is there");
            }
        }
    }
}

/// Makes a test on each storage of every function that is named, which is given the ground.
#[macro_export]
macro_rules! on_each_storage {
    ($($body:ident),+ $(,)?) => {$(
        mod $body {
            $crate::on_btrfs_and_local!(@tests $body);

            #[test]
            fn on_a_pool() {
                let ground = || $crate::support::Pool::make().map($crate::support::Ground::Pool);
                $crate::support::on_ground($crate::test_name!(), ground, super::$body);
            }
        }
    )+};
}

/// The same without zfs, for what takes long there and is much the same.
#[macro_export]
macro_rules! on_btrfs_and_local {
    (@tests $body:ident) => {
        #[test]
        fn on_btrfs() {
            let ground = || Ok($crate::support::Ground::Btrfs);
            $crate::support::on_ground($crate::test_name!(), ground, super::$body);
        }

        #[test]
        fn on_local() {
            let ground = || Ok($crate::support::Ground::Local);
            $crate::support::on_ground($crate::test_name!(), ground, super::$body);
        }
    };
    ($($body:ident),+ $(,)?) => {$(
        mod $body {
            $crate::on_btrfs_and_local!(@tests $body);
        }
    )+};
}

//! Keys are paths of arbitrary strings, and a prefix is a path too.

use super::{Factory, Verdict, ensure};
use crate::{Key, Prefix};

pub fn key<const N: usize>(segments: [&str; N]) -> Key {
    Key::new(segments)
}

/// Paths that would collide, or match as each other's prefix, in a careless encoding.
fn nasty() -> Vec<Key> {
    vec![
        key([""]),
        key(["", ""]),
        key(["a"]),
        key(["a", ""]),
        key(["a", "b"]),
        key(["a/b"]),
        key(["a\0b"]),
        key(["a\0", "b"]),
        key(["a", "\0b"]),
        key(["a\0\u{1}b"]),
        key(["a%", "_b"]),
        key(["ab"]),
        key(["A"]),
        key(["é"]),
        key(["e\u{301}"]),
        key(["\u{10FFFF}"]),
        key(["../../etc/passwd"]),
        key(["'; DROP TABLE entries; --"]),
    ]
}

pub async fn keys_hold_any_string(factory: Factory) -> Verdict {
    let store = factory(64);
    for (n, key) in nasty().iter().enumerate() {
        store.create(key, vec![n as u8]).await?;
    }
    for (n, key) in nasty().iter().enumerate() {
        let value = store.get(key).await?.map(|entry| entry.value);
        ensure!(value == Some(vec![n as u8]), "{key:?} holds {value:?} instead of {n}");
    }
    let listed = store.list(&Prefix::all()).await?.entries;
    ensure!(listed.len() == nasty().len(), "{} keys are listed", listed.len());
    Ok(())
}

pub async fn a_prefix_lists_whole_segments_only(factory: Factory) -> Verdict {
    let store = factory(64);
    for key in nasty() {
        store.create(&key, Vec::new()).await?;
    }
    for path in nasty() {
        let segments = path.segments();
        let listed = store.list(&Prefix::new(&segments)).await?.entries;
        let mut listed: Vec<_> = listed.into_iter().map(|entry| entry.key).collect();
        let mut expected = nasty();
        expected.retain(|key| key.segments().starts_with(&segments));
        expected.sort();
        listed.sort();
        ensure!(listed == expected, "{segments:?} lists {listed:?}, not {expected:?}");
    }
    Ok(())
}

pub async fn a_listing_is_in_the_order_of_keys(factory: Factory) -> Verdict {
    let store = factory(64);
    for key in nasty().iter().rev() {
        store.create(key, Vec::new()).await?;
    }
    let listed = store.list(&Prefix::all()).await?.entries;
    ensure!(listed.is_sorted_by(|a, b| a.key < b.key), "{listed:?} is not sorted");
    Ok(())
}

pub async fn one_tenant_cannot_reach_another(factory: Factory) -> Verdict {
    let store = factory(64);
    let tenants = [["a", "b/c"], ["a/b", "c"], ["a\0b", "c"], ["a", "b"], ["", "ab"], ["ab", ""]];
    for [organization, user] in tenants {
        let mine = key(["slots", organization, user, "name"]);
        store.create(&mine, organization.into()).await?;
    }
    for tenant @ [organization, user] in tenants {
        let listed = store.list(&Prefix::new(["slots", organization, user])).await?.entries;
        let mine = listed.len() == 1 && listed[0].value == organization.as_bytes();
        ensure!(mine, "{tenant:?} sees {listed:?}");
    }
    Ok(())
}

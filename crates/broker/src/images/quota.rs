//! Quotas: how many templates an organization and a user may have, and how large these may be. The records are the
//! basis: shared templates belong to nobody, and a layer of several templates counts once.

use std::collections::BTreeMap;

use super::record::{Record, Whose};
use crate::error::Error;
use crate::policy::{Quota, Quotas};
use sandkeep_core::{Owner, TemplateName, limits};
use sandkeep_storage::LayerId;

/// A template that is about to be created.
#[derive(Clone, Copy)]
pub struct Coming<'a> {
    pub owner: &'a Owner,
    /// The template that it would replace does not count.
    pub name: &'a TemplateName,
    /// `None` while its content is unknown.
    pub record: Option<&'a Record>,
}

/// Whether one more template is allowed.
pub fn check(quotas: &Quotas, all: &[(Whose, Record)], coming: Coming<'_>) -> Result<(), Error> {
    let owner = coming.owner;
    let same_organization = |other: &Owner| other.organization == owner.organization;
    let same_user = |other: &Owner| same_organization(other) && other.user == owner.user;
    within(&quotas.organization, "organization", all, coming, same_organization)?;
    within(&quotas.user, "user", all, coming, same_user)
}

/// The total size of an organization's and a user's templates, without the one that is about to be created.
pub fn used(all: &[(Whose, Record)], coming: Coming<'_>) -> [u64; 2] {
    let owner = coming.owner;
    let same_organization = |other: &Owner| other.organization == owner.organization;
    let same_user = |other: &Owner| same_organization(other) && other.user == owner.user;
    [
        bytes(others(all, coming, same_organization).into_iter()),
        bytes(others(all, coming, same_user).into_iter()),
    ]
}

/// The size of the templates of those owners that count.
pub fn bytes_of(all: &[(Whose, Record)], counts: impl Fn(&Owner) -> bool) -> u64 {
    let counts = |whose: &Whose| match whose {
        Whose::Own(owner) => counts(owner),
        Whose::Shared => false,
    };
    bytes(all.iter().filter(|(whose, _)| counts(whose)).map(|(_, record)| record))
}

/// The records that count beside the new one.
fn others<'a>(
    all: &'a [(Whose, Record)],
    coming: Coming<'_>,
    counts: impl Fn(&Owner) -> bool,
) -> Vec<&'a Record> {
    let counts = |whose: &Whose, record: &Record| match whose {
        Whose::Own(owner) => {
            counts(owner) && !(owner == coming.owner && record.name == *coming.name)
        }
        Whose::Shared => false,
    };
    all.iter().filter(|(whose, record)| counts(whose, record)).map(|(_, record)| record).collect()
}

fn within(
    quota: &Quota,
    whose: &'static str,
    all: &[(Whose, Record)],
    coming: Coming<'_>,
    counts: impl Fn(&Owner) -> bool,
) -> Result<(), Error> {
    if quota.templates.is_none() && quota.template_mb.is_none() {
        return Ok(());
    }
    let others = others(all, coming, counts);
    let exceeded = |what, limit: u64, used: u64, asked: u64| {
        let (limit, used, asked) = (limit as f64, used as f64, asked as f64);
        Err(Error::QuotaExceeded { whose, what, limit, used, asked })
    };
    let used = others.len() as u64;
    if let Some(limit) = quota.templates.filter(|limit| used >= *limit) {
        return exceeded("templates", limit, used, 1);
    }
    let used = bytes(others.iter().copied());
    let with = bytes(others.into_iter().chain(coming.record));
    match quota.template_mb {
        Some(limit) if with > limit * limits::MIB => {
            exceeded("template_mb", limit, mebibytes(used), mebibytes(with - used))
        }
        Some(_) | None => Ok(()),
    }
}

/// The size of all layers, each counted once.
fn bytes<'a>(records: impl Iterator<Item = &'a Record>) -> u64 {
    let layers: BTreeMap<&LayerId, u64> =
        records.flat_map(|record| &record.layers).map(|layer| (&layer.id, layer.bytes)).collect();
    layers.values().sum()
}

fn mebibytes(bytes: u64) -> u64 {
    bytes.div_ceil(limits::MIB)
}

#[cfg(test)]
mod tests {
    use super::super::record::{Content, KeptLayer};
    use super::*;

    fn record(name: &str, layers: &[(u8, u64)]) -> Record {
        let layer = |&(id, mebibytes): &(u8, u64)| KeptLayer {
            id: format!("sha256:{}", format!("{id:02x}").repeat(32)).parse().expect("an id"),
            bytes: mebibytes * limits::MIB,
        };
        let content = Content {
            name: name.parse().expect("a name"),
            digest: "sha256:0".to_owned(),
            source: "test".to_owned(),
            layers: layers.iter().map(layer).collect(),
            over: None,
            config: None,
            start: None,
        };
        Record::new(content, jiff::Timestamp::UNIX_EPOCH)
    }

    fn owner(user: &str) -> Owner {
        Owner { user: user.to_owned(), ..Owner::local() }
    }

    fn refused(quotas: &Quotas, all: &[(Whose, Record)], who: &str, new: &Record) -> String {
        let owner = owner(who);
        let coming = Coming { owner: &owner, name: &new.name, record: Some(new) };
        check(quotas, all, coming).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_shared_layer_counts_once_and_what_is_replaced_not_at_all() {
        let user = Quota { templates: Some(2), template_mb: Some(10), ..Quota::default() };
        let quotas = Quotas { user, ..Quotas::default() };
        let own = |user: &str| Whose::Own(owner(user));
        let all = [
            (own("ann"), record("a", &[(1, 6), (2, 1)])),
            (own("bob"), record("b", &[(3, 9)])),
            (Whose::Shared, record("s", &[(4, 99)])),
        ];
        assert_eq!(refused(&quotas, &all, "ann", &record("c", &[(1, 6), (5, 3)])), "");
        let over = refused(&quotas, &all, "ann", &record("c", &[(1, 6), (5, 4)]));
        assert!(
            over.contains("10 template_mb") && over.contains("7 in use, 4 requested"),
            "{over}"
        );
        assert_eq!(refused(&quotas, &all, "ann", &record("a", &[(5, 10)])), "", "it is replaced");
        let more: Vec<_> = all.into_iter().chain([(own("ann"), record("c", &[]))]).collect();
        let over = refused(&quotas, &more, "ann", &record("d", &[]));
        assert!(over.contains("quota of 2 templates"), "{over}");
        assert_eq!(refused(&quotas, &more, "bob", &record("d", &[])), "");
    }

    #[test]
    fn an_organization_counts_all_of_its_users() {
        let organization = Quota { templates: Some(1), ..Quota::default() };
        let quotas = Quotas { organization, ..Quotas::default() };
        let all = [(Whose::Own(owner("ann")), record("a", &[]))];
        assert!(refused(&quotas, &all, "bob", &record("a", &[])).contains("organization"));
        assert_eq!(refused(&quotas, &all, "ann", &record("a", &[])), "");
    }
}

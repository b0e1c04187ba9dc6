//! How much a volume may hold, and how much it does.

/// What a volume may hold. Without a limit only the pool ends it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Of what the tree itself holds.
    pub tree_bytes: Option<u64>,
    /// Of the tree with all its snapshots: what several of them have counts once.
    pub total_bytes: Option<u64>,
}

impl Quota {
    pub const NONE: Self = Self { tree_bytes: None, total_bytes: None };

    pub fn of_tree(bytes: u64) -> Self {
        Self { tree_bytes: Some(bytes), total_bytes: None }
    }

    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }
}

/// So much of so much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    pub used_bytes: u64,
    /// The limit, if one is set.
    pub limit_bytes: Option<u64>,
}

/// How much a volume holds of its own: what is in the layers below it does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub tree: Amount,
    /// The tree with all its snapshots.
    pub total: Amount,
}

/// One of the two limits of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Tree,
    Total,
}

impl Usage {
    /// The limit that keeps the next `bytes` from being written, if one does. Of two, that of the tree: who removes
    /// files inside can do something about it.
    pub fn exceeded_by(&self, bytes: u64) -> Option<Limit> {
        let over = |amount: &Amount| {
            amount.limit_bytes.is_some_and(|limit| amount.used_bytes.saturating_add(bytes) > limit)
        };
        match (over(&self.tree), over(&self.total)) {
            (true, _) => Some(Limit::Tree),
            (false, true) => Some(Limit::Total),
            (false, false) => None,
        }
    }
}

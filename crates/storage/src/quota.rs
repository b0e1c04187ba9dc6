//! The limits of a volume, and its usage.

/// The limits of a volume. Without one, only the pool's size is a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Limit of the tree itself.
    pub tree_bytes: Option<u64>,
    /// Limit of the tree with all its snapshots: shared data counts once.
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

/// A used amount and its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    pub used_bytes: u64,
    /// The limit, if one is set.
    pub limit_bytes: Option<u64>,
}

/// The size of a volume's own data, without the layers below it.
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
    /// The limit that prevents writing the next `bytes`, if any. If both do, that of the tree: it can be resolved by
    /// removing files inside.
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

//! The engine: rules in their order, and a state per directory from which the decisions about everything below follow.

use std::fmt;

use super::pattern::{Pattern, Positions, Weight};
use super::{InvalidRules, Permission, Rule};
use crate::limits;

/// Rules, ready to decide. Valid by construction.
#[derive(Clone, Debug)]
pub struct Rules {
    /// As written.
    rules: Vec<Rule>,
    /// In the order in which they decide.
    ordered: Vec<Ordered>,
}

#[derive(Clone, Debug)]
pub(super) struct Ordered {
    /// Its place in `rules`.
    at: usize,
    pub pattern: Pattern,
    pub permission: Permission,
    priority: i32,
}

/// All that the rules know of a directory: directories with equal states treat equal names below them equally.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// For each rule that can still match something, by its place in the order.
    live: Box<[(u16, Positions)]>,
    /// The `none` rule that hides everything below, as its place in the order.
    hidden_by: Option<u16>,
}

/// What was decided about a path, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision<'a> {
    pub permission: Permission,
    pub reason: Reason<'a>,
    /// For a directory with `none`: whether something below may be visible. Then it shows the way there.
    pub may_lead_on: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason<'a> {
    /// It is the root of the codebase, which is always visible.
    Root,
    NoMatch,
    Rule(&'a Rule),
    /// A directory above it is hidden by this rule, which no rule of a higher priority opens.
    HiddenAbove(&'a Rule),
}

impl<'a> Reason<'a> {
    pub fn rule(&self) -> Option<&'a Rule> {
        match self {
            Self::Root | Self::NoMatch => None,
            Self::Rule(rule) | Self::HiddenAbove(rule) => Some(rule),
        }
    }
}

impl fmt::Display for Decision<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let permission = self.permission;
        match &self.reason {
            Reason::Root => write!(f, "{permission}: the root of the codebase is always visible"),
            Reason::NoMatch => write!(f, "{permission}: no rule matches"),
            Reason::Rule(rule) => write!(f, "{permission}: rule {rule}"),
            Reason::HiddenAbove(rule) => {
                write!(f, "{permission}: a directory above it is hidden by rule {rule}")
            }
        }
    }
}

/// What one step from a directory to a name below it leads to.
struct Step {
    permission: Permission,
    /// The place of the rule that decided.
    by: Option<u16>,
    from_above: bool,
    state: State,
}

impl Rules {
    pub fn new(rules: Vec<Rule>) -> Result<Self, InvalidRules> {
        if rules.len() > limits::RULES_MAX {
            return Err(InvalidRules::TooMany { count: rules.len() });
        }
        let total: usize = rules.iter().map(|rule| rule.pattern.len()).sum();
        if total > limits::RULE_PATTERNS_MAX_BYTES {
            return Err(InvalidRules::TooLong);
        }
        let parse = |(at, rule): (usize, &Rule)| {
            let pattern = Pattern::parse(rule).map_err(|problem| InvalidRules::Pattern {
                at,
                pattern: super::shown(&rule.pattern),
                problem,
            })?;
            Ok(Ordered { at, pattern, permission: rule.permission, priority: rule.priority })
        };
        let mut ordered = rules.iter().enumerate().map(parse).collect::<Result<Vec<_>, _>>()?;
        let rank = |rule: &Ordered| -> (i32, Weight, usize) {
            (rule.priority, rule.pattern.weight(), rule.at)
        };
        ordered.sort_by_key(|rule| std::cmp::Reverse(rank(rule)));
        Ok(Self { rules, ordered })
    }

    /// The rules as written, those of a preset first.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    pub(super) fn ordered(&self) -> &[Ordered] {
        &self.ordered
    }

    /// The state of the root.
    pub fn root(&self) -> State {
        let live = self.ordered.iter().zip(0..).filter_map(|(rule, index)| {
            let at = rule.pattern.start();
            rule.pattern.goes_on(at).then_some((index, at))
        });
        State { live: live.collect(), hidden_by: None }
    }

    /// The permission of the root itself: that of the first rule that is about the whole tree, but at least `view`.
    pub fn of_root(&self) -> Permission {
        let is_whole = |rule: &&Ordered| {
            rule.pattern.matches(rule.pattern.start())
                || rule.pattern.subtree().is_some_and(|path| path.is_empty())
        };
        let first = self.ordered.iter().find(is_whole).map(|rule| rule.permission);
        first.unwrap_or(Permission::None).max(Permission::View)
    }

    /// The permission of a name in a directory.
    pub fn permission(&self, dir: &State, name: &[u8]) -> Permission {
        let (winner, _) = self.winner(dir, name);
        self.effective(dir, winner).0
    }

    /// The permission of a name in a directory, and its state, which matters if it is a directory.
    pub fn step(&self, dir: &State, name: &[u8]) -> (Permission, State) {
        let step = self.take(dir, name);
        (step.permission, step.state)
    }

    /// Whether something below the directory may have at least this permission. `false` is certain.
    pub fn may_reach(&self, dir: &State, wanted: Permission) -> bool {
        let above = dir.hidden_by.map(|rule| self.ordered[usize::from(rule)].priority);
        dir.live.iter().any(|(index, _)| {
            let rule = &self.ordered[usize::from(*index)];
            rule.permission >= wanted && above.is_none_or(|above| rule.priority > above)
        })
    }

    /// Decides about a path relative to the root, and explains it. Empty segments and `.` are ignored.
    pub fn decide(&self, path: impl AsRef<[u8]>) -> Decision<'_> {
        let names = path.as_ref().split(|byte| *byte == b'/');
        let names = names.filter(|name| !name.is_empty() && *name != b".");
        let mut state = self.root();
        let mut last = None;
        for name in names {
            let step = self.take(&state, name);
            last = Some((step.permission, step.by, step.from_above));
            state = step.state;
        }
        let may_lead_on = self.may_reach(&state, Permission::View);
        let Some((permission, by, from_above)) = last else {
            return Decision { permission: self.of_root(), reason: Reason::Root, may_lead_on };
        };
        let rule = by.map(|index| &self.rules[self.ordered[usize::from(index)].at]);
        let reason = match rule {
            None => Reason::NoMatch,
            Some(rule) if from_above => Reason::HiddenAbove(rule),
            Some(rule) => Reason::Rule(rule),
        };
        Decision { permission, reason, may_lead_on }
    }

    fn take(&self, dir: &State, name: &[u8]) -> Step {
        let (winner, live) = self.winner(dir, name);
        let (permission, by, from_above) = self.effective(dir, winner);
        // A rule that hides stays in force below whatever a higher one opens.
        let hidden_by = match by {
            Some(index) if permission == Permission::None => Some(index),
            _ => dir.hidden_by,
        };
        Step { permission, by, from_above, state: State { live: live.into(), hidden_by } }
    }

    /// The first rule that matches the name, and the positions of those that can go on below it.
    fn winner(&self, dir: &State, name: &[u8]) -> (Option<u16>, Vec<(u16, Positions)>) {
        let mut winner = None;
        let mut live = Vec::with_capacity(dir.live.len());
        for (index, from) in &dir.live {
            let pattern = &self.ordered[usize::from(*index)].pattern;
            let at = pattern.step(*from, name);
            if winner.is_none() && pattern.matches(at) {
                winner = Some(*index);
            }
            if pattern.goes_on(at) {
                live.push((*index, at));
            }
        }
        (winner, live)
    }

    fn effective(&self, dir: &State, winner: Option<u16>) -> (Permission, Option<u16>, bool) {
        let rule = |index: u16| &self.ordered[usize::from(index)];
        match (winner, dir.hidden_by) {
            (Some(winner), Some(above)) if rule(winner).priority <= rule(above).priority => {
                (Permission::None, Some(above), true)
            }
            (None, Some(above)) => (Permission::None, Some(above), true),
            (Some(winner), _) => (rule(winner).permission, Some(winner), false),
            (None, None) => (Permission::None, None, false),
        }
    }
}

//! Patterns: parsed once, matched segment by segment.

use super::{Rule, RuleType};
use crate::limits;

/// A set of positions in a pattern: bit `n` is set if the path so far is matched by the first `n` segments.
pub type Positions = u64;

const _: () = assert!(limits::RULE_SEGMENTS_MAX < Positions::BITS as usize);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Literal(Box<[u8]>),
    /// Pieces between the `*`s; at least two.
    Wild(Box<[Box<[u8]>]>),
    /// `**`
    Any,
}

/// Why a text is not a pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPattern {
    #[error("the pattern is empty; ** matches everything")]
    Empty,
    #[error("a pattern has at most {} bytes", limits::RULE_PATTERN_MAX_BYTES)]
    TooLong,
    #[error("a pattern has at most {} segments", limits::RULE_SEGMENTS_MAX)]
    TooDeep,
    #[error("a pattern has no NUL")]
    Nul,
    #[error("type {kind} takes no wildcards; use type glob")]
    Wildcards { kind: RuleType },
    #[error("a path that ends with / is a directory, not a file")]
    FileIsDirectory,
    #[error("end a glob with /** to match everything below")]
    GlobIsDirectory,
    #[error("a segment between two / is empty")]
    EmptySegment,
    #[error("{segment} is not a name; patterns start at the root")]
    NotAName { segment: String },
    #[error("{segment}: ** is a whole segment; use * within one")]
    Stars { segment: String },
    #[error(
        "{segment}: {odd} has no meaning in a glob; use *, several rules, or type file or directory"
    )]
    Odd { segment: String, odd: char },
}

impl Segment {
    fn literal(&self) -> Option<&[u8]> {
        match self {
            Self::Literal(text) => Some(text),
            Self::Wild(_) | Self::Any => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    segments: Box<[Segment]>,
    kind: RuleType,
}

/// Ordered as the second and third step of the order of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Weight {
    kind: u8,
    is_literal: bool,
    leading_literals: usize,
    literals: usize,
    segments: usize,
    characters: usize,
}

impl Pattern {
    pub fn parse(rule: &Rule) -> Result<Self, InvalidPattern> {
        let text = rule.pattern.as_str();
        if text.len() > limits::RULE_PATTERN_MAX_BYTES {
            return Err(InvalidPattern::TooLong);
        }
        if text.contains('\0') {
            return Err(InvalidPattern::Nul);
        }
        let names_directory = text.ends_with('/') && text.len() > 1;
        let inner = text.strip_prefix('/').unwrap_or(text);
        let inner = inner.strip_suffix('/').unwrap_or(inner);
        let kind = rule.kind.unwrap_or(if inner.contains('*') {
            RuleType::Glob
        } else {
            RuleType::Directory
        });
        if kind != RuleType::Glob && inner.contains('*') {
            return Err(InvalidPattern::Wildcards { kind });
        }
        if names_directory && kind == RuleType::File {
            return Err(InvalidPattern::FileIsDirectory);
        }
        if names_directory && kind == RuleType::Glob {
            return Err(InvalidPattern::GlobIsDirectory);
        }
        let segments = match inner {
            "" if kind == RuleType::Directory && !text.is_empty() => Vec::new(),
            "" => return Err(InvalidPattern::Empty),
            inner => inner.split('/').map(|s| segment(s, kind)).collect::<Result<_, _>>()?,
        };
        if segments.len() > limits::RULE_SEGMENTS_MAX {
            return Err(InvalidPattern::TooDeep);
        }
        Ok(Self { segments: segments.into(), kind })
    }

    pub fn weight(&self) -> Weight {
        let is_literal = |s: &&Segment| matches!(s, Segment::Literal(_));
        let characters = |s: &Segment| match s {
            Segment::Literal(text) => text.len(),
            Segment::Wild(pieces) => pieces.iter().map(|piece| piece.len()).sum(),
            Segment::Any => 0,
        };
        let all = self.segments.iter();
        Weight {
            kind: match self.kind {
                RuleType::File => 2,
                RuleType::Directory => 1,
                RuleType::Glob => 0,
            },
            is_literal: all.clone().all(|s| is_literal(&s)),
            leading_literals: all.clone().take_while(is_literal).count(),
            literals: all.clone().filter(is_literal).count(),
            segments: all.clone().filter(|s| **s != Segment::Any).count(),
            characters: all.map(characters).sum(),
        }
    }

    /// The positions at the root of the codebase.
    pub fn start(&self) -> Positions {
        self.skip_any(1)
    }

    /// The positions one segment further.
    pub fn step(&self, from: Positions, name: &[u8]) -> Positions {
        let mut next = 0;
        for (at, segment) in self.segments.iter().enumerate() {
            if from & (1 << at) == 0 {
                continue;
            }
            match segment {
                Segment::Literal(text) if **text == *name => next |= 1 << (at + 1),
                Segment::Wild(pieces) if is_match(pieces, name) => next |= 1 << (at + 1),
                Segment::Any => next |= 1 << at,
                Segment::Literal(_) | Segment::Wild(_) => {}
            }
        }
        if self.kind == RuleType::Directory && self.matches(from) {
            next |= self.end();
        }
        self.skip_any(next)
    }

    /// Whether the path so far is matched.
    pub fn matches(&self, at: Positions) -> bool {
        at & self.end() != 0
    }

    /// Whether any longer path can match.
    pub fn goes_on(&self, at: Positions) -> bool {
        at & !self.end() != 0 || (self.kind == RuleType::Directory && self.matches(at))
    }

    /// The path whose whole subtree is matched, if that is all that the pattern matches; the root is empty, whether or
    /// not the pattern matches it itself.
    pub fn subtree(&self) -> Option<Vec<&[u8]>> {
        let literals = match (self.kind, &*self.segments) {
            (RuleType::File, _) => return None,
            (RuleType::Directory, all) => all,
            (RuleType::Glob, [Segment::Any, Segment::Wild(pieces)])
                if pieces.iter().all(|piece| piece.is_empty()) =>
            {
                &[]
            }
            (RuleType::Glob, [literals @ .., Segment::Any]) => literals,
            (RuleType::Glob, _) => return None,
        };
        literals.iter().map(Segment::literal).collect()
    }

    fn end(&self) -> Positions {
        1 << self.segments.len()
    }

    /// `**` also matches no segment at all.
    fn skip_any(&self, mut at: Positions) -> Positions {
        for (index, segment) in self.segments.iter().enumerate() {
            if at & (1 << index) != 0 && *segment == Segment::Any {
                at |= 1 << (index + 1);
            }
        }
        at
    }
}

fn segment(text: &str, kind: RuleType) -> Result<Segment, InvalidPattern> {
    let own = || super::shown(text);
    match text {
        "" => return Err(InvalidPattern::EmptySegment),
        "." | ".." => return Err(InvalidPattern::NotAName { segment: own() }),
        "**" => return Ok(Segment::Any),
        _ => {}
    }
    if text.contains("**") {
        return Err(InvalidPattern::Stars { segment: own() });
    }
    if kind != RuleType::Glob {
        return Ok(Segment::Literal(text.as_bytes().into()));
    }
    // A caller who knows them from other tools would think that something is protected.
    if let Some(odd) = text.chars().find(|c| matches!(c, '?' | '[' | ']' | '{' | '}' | '\\')) {
        return Err(InvalidPattern::Odd { segment: own(), odd });
    }
    Ok(if text.contains('*') {
        Segment::Wild(text.split('*').map(|piece| piece.as_bytes().into()).collect())
    } else {
        Segment::Literal(text.as_bytes().into())
    })
}

/// Whether the pieces appear in this order, the first at the start and the last at the end. The leftmost occurrence of
/// each leaves most room for the rest, so no choice is ever taken back.
fn is_match(pieces: &[Box<[u8]>], name: &[u8]) -> bool {
    let [first, middle @ .., last] = pieces else { return false };
    let Some(rest) = name.strip_prefix(&**first) else { return false };
    let Some(mut rest) = rest.strip_suffix(&**last) else { return false };
    for piece in middle.iter().filter(|piece| !piece.is_empty()) {
        match rest.windows(piece.len()).position(|window| window == &**piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    true
}

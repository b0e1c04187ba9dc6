//! Rules as callers write them.

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{InvalidPattern, Rule, RulePreset, Rules};
use crate::limits;

/// A preset, own rules, or both. Read from the name of a preset, from a list of rules, or from an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct RulesDraft {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<RulePreset>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRules {
    #[error("{count} rules are more than {}", limits::RULES_MAX)]
    TooMany { count: usize },
    #[error("all patterns together have more than {} bytes", limits::RULE_PATTERNS_MAX_BYTES)]
    TooLong,
    /// `at` counts from 0, the rules of a preset included.
    #[error("rule {pattern:?}: {problem}")]
    Pattern {
        at: usize,
        pattern: String,
        #[source]
        problem: InvalidPattern,
    },
}

impl From<RulePreset> for RulesDraft {
    fn from(preset: RulePreset) -> Self {
        Self { preset: Some(preset), rules: Vec::new() }
    }
}

impl RulesDraft {
    pub fn check(&self) -> Result<Rules, InvalidRules> {
        let mut rules = self.preset.map(RulePreset::rules).unwrap_or_default();
        rules.extend(self.rules.iter().cloned());
        Rules::new(rules)
    }
}

/// The object form.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CodebaseRulesObject)]
struct Object {
    /// The rules of a preset. Own rules with the same rank win over them.
    #[serde(default)]
    preset: Option<RulePreset>,
    #[serde(default, deserialize_with = "bounded")]
    #[schema(value_type = Vec<Rule>)]
    rules: Vec<Rule>,
}

/// Reads a list within its bound, so that a hostile body ends early.
fn bounded<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Rule>, D::Error> {
    struct List;

    impl<'de> Visitor<'de> for List {
        type Value = Vec<Rule>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a list of rules")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<Rule>, A::Error> {
            let mut rules = Vec::new();
            while let Some(rule) = seq.next_element()? {
                if rules.len() == limits::RULES_MAX {
                    return Err(de::Error::custom(format!(
                        "more than {} rules",
                        limits::RULES_MAX
                    )));
                }
                rules.push(rule);
            }
            Ok(rules)
        }
    }

    from.deserialize_seq(List)
}

impl<'de> Deserialize<'de> for RulesDraft {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Form;

        impl<'de> Visitor<'de> for Form {
            type Value = RulesDraft;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("the name of a preset, a list of rules, or an object with them")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<RulesDraft, E> {
                let preset: RulePreset = text.parse().map_err(E::custom)?;
                Ok(preset.into())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<RulesDraft, A::Error> {
                let rules = bounded(SeqAccessDeserializer::new(seq))?;
                Ok(RulesDraft { preset: None, rules })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RulesDraft, A::Error> {
                let object = Object::deserialize(MapAccessDeserializer::new(map))?;
                Ok(RulesDraft { preset: object.preset, rules: object.rules })
            }
        }

        from.deserialize_any(Form)
    }
}

impl utoipa::PartialSchema for RulesDraft {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        use utoipa::openapi::Ref;
        use utoipa::openapi::schema::{ArrayBuilder, OneOfBuilder};
        OneOfBuilder::new()
            .item(Ref::from_schema_name(RulePreset::name()))
            .item(ArrayBuilder::new().items(Ref::from_schema_name("CodebaseRule")))
            .item(Ref::from_schema_name("CodebaseRulesObject"))
            .into()
    }
}

impl ToSchema for RulesDraft {
    fn name() -> std::borrow::Cow<'static, str> {
        "CodebaseRules".into()
    }

    fn schemas(
        schemas: &mut Vec<(String, utoipa::openapi::RefOr<utoipa::openapi::schema::Schema>)>,
    ) {
        use utoipa::PartialSchema;
        schemas.push((RulePreset::name().into_owned(), RulePreset::schema()));
        schemas.push(("CodebaseRule".to_owned(), Rule::schema()));
        schemas.push(("CodebaseRulesObject".to_owned(), Object::schema()));
        Rule::schemas(schemas);
        Object::schemas(schemas);
    }
}

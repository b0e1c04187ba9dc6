//! Schemas with variants, in a form that generators of clients understand.
//!
//! Serde's tagged and flattened enums become `allOf` of a `oneOf` and further fields, with objects inside objects that
//! have no names. Generators refuse the first and cannot name the second. So every variant becomes an object with all of
//! its fields, in the list of schemas, and what has variants is a `oneOf` of references.

use std::collections::BTreeMap;

use utoipa::openapi::schema::{AllOf, Object, OneOfBuilder, Schema};
use utoipa::openapi::{Ref, RefOr};

type Schemas = BTreeMap<String, RefOr<Schema>>;

pub fn name_all(schemas: &mut Schemas) {
    let names: Vec<String> = schemas.keys().cloned().collect();
    for name in names {
        let Some(found) = variants(schemas, &name) else { continue };
        let mut choices = OneOfBuilder::new().description(found.description);
        for variant in found.variants {
            choices = match variant {
                Variant::Named(reference) => choices.item(reference),
                Variant::Inline(item) => choices.item(*item),
                Variant::Fields(tag, fields) => {
                    choices.item(put(schemas, &format!("{name}{}", capitalized(&tag)), *fields))
                }
            };
        }
        schemas.insert(name, RefOr::T(Schema::OneOf(choices.build())));
    }
}

struct Found {
    description: Option<String>,
    variants: Vec<Variant>,
}

enum Variant {
    /// It has a name already.
    Named(Ref),
    /// No object: it stays as it is.
    Inline(Box<RefOr<Schema>>),
    /// What tells it from the others, and all of its fields.
    Fields(String, Box<Object>),
}

/// The variants of a schema; `None` if it has none.
fn variants(schemas: &Schemas, name: &str) -> Option<Found> {
    let (description, choices, common) = match schemas.get(name)? {
        RefOr::T(Schema::OneOf(one)) => (one.description.clone(), one.items.clone(), Vec::new()),
        RefOr::T(Schema::AllOf(all)) => {
            let is_one =
                |item: &&RefOr<Schema>| matches!(resolved(schemas, item), Some(Schema::OneOf(_)));
            let one = all.items.iter().find(is_one)?;
            let Some(Schema::OneOf(choices)) = resolved(schemas, one) else { return None };
            let common: Vec<_> = all.items.iter().filter(|item| *item != one).cloned().collect();
            (all.description.clone(), choices.items.clone(), common)
        }
        _ => return None,
    };
    let common: Vec<Object> =
        common.iter().map(|item| fields(schemas, item)).collect::<Option<_>>()?;
    let variant = |item: RefOr<Schema>| match (&item, fields(schemas, &item)) {
        (RefOr::Ref(reference), _) if common.is_empty() => Some(Variant::Named(reference.clone())),
        (_, None) if common.is_empty() => Some(Variant::Inline(Box::new(item))),
        (_, None) => None,
        (_, Some(own)) => {
            let tag = tag(&own)?;
            let mut all = Object::new();
            all.description.clone_from(&own.description);
            common.iter().chain([&own]).for_each(|part| merge(&mut all, part));
            Some(Variant::Fields(tag, Box::new(all)))
        }
    };
    let variants = choices.into_iter().map(variant).collect::<Option<_>>()?;
    Some(Found { description, variants })
}

fn resolved<'a>(schemas: &'a Schemas, item: &'a RefOr<Schema>) -> Option<&'a Schema> {
    match item {
        RefOr::T(schema) => Some(schema),
        RefOr::Ref(reference) => {
            let name = reference.ref_location.rsplit('/').next()?;
            resolved(schemas, schemas.get(name)?)
        }
    }
}

/// All fields of an object, or of several that are one.
fn fields(schemas: &Schemas, item: &RefOr<Schema>) -> Option<Object> {
    match resolved(schemas, item)? {
        Schema::Object(object) if !object.properties.is_empty() => Some(object.clone()),
        Schema::AllOf(AllOf { items, description, .. }) => {
            let mut all = Object::new();
            all.description.clone_from(description);
            for item in items {
                merge(&mut all, &fields(schemas, item)?);
            }
            Some(all)
        }
        _ => None,
    }
}

fn merge(all: &mut Object, part: &Object) {
    all.properties.extend(part.properties.clone());
    all.required.extend(part.required.iter().cloned());
}

/// The one value of its tag, or the name of a field that it must have.
fn tag(object: &Object) -> Option<String> {
    let value = object.properties.values().find_map(|property| match property {
        RefOr::T(Schema::Object(Object { enum_values: Some(values), .. })) => match &values[..] {
            [serde_json::Value::String(only)] => Some(only.clone()),
            _ => None,
        },
        _ => None,
    });
    value.or_else(|| object.required.first().cloned())
}

/// Puts an object and the objects in it among the schemas, if their names are free.
fn put(schemas: &mut Schemas, name: &str, mut object: Object) -> RefOr<Schema> {
    for (field, property) in &mut object.properties {
        if let RefOr::T(Schema::Object(inner)) = property
            && !inner.properties.is_empty()
        {
            let inner = inner.clone();
            *property = put(schemas, &format!("{name}{}", capitalized(field)), inner);
        }
    }
    let schema = RefOr::T(Schema::Object(object));
    if schemas.contains_key(name) {
        return schema;
    }
    schemas.insert(name.to_owned(), schema);
    RefOr::Ref(Ref::from_schema_name(name))
}

/// `timed_out` becomes `TimedOut`.
fn capitalized(text: &str) -> String {
    let words = text.split(['.', '_', '-']).filter(|word| !word.is_empty());
    words
        .flat_map(|word| {
            let first = word.chars().take(1).map(|first| first.to_ascii_uppercase());
            first.chain(word.chars().skip(1))
        })
        .collect()
}

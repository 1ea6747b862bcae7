//! The cost of a JSON Schema: its size with references followed, and the steps that one value takes.
//!
//! A short schema can stand for a huge one, because each `$ref` is compiled where it stands, and a value can be checked many
//! times in one place. Both are counted before the work is done.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// JSON values in the schemas of one document, with references followed. A document of 256 KiB has at most a fifth of
/// that written down.
pub const MOST_NODES: usize = 50_000;
/// Subschemas inside one another, with references followed: the evaluator needs stack for each.
const DEEPEST: usize = 128;
/// A pattern holds an automaton of up to 64 KiB.
const PATTERN_NODES: usize = 100;
/// Steps that the check of one value may take.
pub const MOST_STEPS: usize = 5_000_000;
/// Evaluations inside one another while a recursive schema follows a value.
const DEEPEST_STEPS: usize = 512;
/// Characters of a text that count as one step.
const TEXT_STEP: usize = 32;

/// How a keyword applies the schemas in it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Applies {
    /// To the same value.
    Here,
    /// To values inside it.
    Inside,
}

/// The form of a keyword's value: a schema, a list of schemas, or schemas by name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    One,
    OneOrList,
    ByName,
}

/// Keywords whose values hold schemas, in every draft.
const APPLICATORS: &[(&str, Applies, Form)] = &[
    ("not", Applies::Here, Form::One),
    ("if", Applies::Here, Form::One),
    ("then", Applies::Here, Form::One),
    ("else", Applies::Here, Form::One),
    ("allOf", Applies::Here, Form::OneOrList),
    ("anyOf", Applies::Here, Form::OneOrList),
    ("oneOf", Applies::Here, Form::OneOrList),
    ("extends", Applies::Here, Form::OneOrList),
    ("disallow", Applies::Here, Form::OneOrList),
    ("dependentSchemas", Applies::Here, Form::ByName),
    ("dependencies", Applies::Here, Form::ByName),
    ("properties", Applies::Inside, Form::ByName),
    ("patternProperties", Applies::Inside, Form::ByName),
    ("additionalProperties", Applies::Inside, Form::One),
    ("unevaluatedProperties", Applies::Inside, Form::One),
    ("propertyNames", Applies::Inside, Form::One),
    ("items", Applies::Inside, Form::OneOrList),
    ("prefixItems", Applies::Inside, Form::OneOrList),
    ("additionalItems", Applies::Inside, Form::One),
    ("unevaluatedItems", Applies::Inside, Form::One),
    ("contains", Applies::Inside, Form::One),
    ("contentSchema", Applies::Inside, Form::One),
];
const REFERENCES: &[&str] = &["$ref", "$dynamicRef", "$recursiveRef"];
/// Schemas under these are only reached by references.
const LIBRARIES: &[&str] = &["$defs", "definitions"];
/// Each of these evaluates the schemas beside it again: at every level between it and a schema that applies to the same value.
const AGAIN: &[&str] = &["unevaluatedProperties", "unevaluatedItems"];

/// Why a schema is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TooComplex {
    Nodes,
    Depth,
    /// It refers to itself without going into the value.
    Circle(String),
    /// Only references within the document can be followed.
    Unknown(String),
    /// A schema with an id of its own changes what references inside it mean.
    Embedded(String),
}

impl std::fmt::Display for TooComplex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TooComplex::Nodes => write!(f, "with its references followed it has more than {MOST_NODES} values"),
            TooComplex::Depth => write!(f, "with its references followed it nests more than {DEEPEST} schemas"),
            TooComplex::Circle(reference) => write!(f, "{reference} leads back to itself without going into the value"),
            TooComplex::Unknown(reference) => {
                write!(f, "{reference} cannot be followed: refer to a place in the same schema, like #/$defs/name")
            }
            TooComplex::Embedded(id) => write!(f, "{id} is an id inside the schema: put it under $defs without one"),
        }
    }
}

/// The check of a value takes too many steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooCostly;

/// The cost of one schema, known when it is compiled.
#[derive(Clone, Debug)]
pub struct Cost {
    /// JSON values with references followed.
    pub nodes: usize,
    /// A value can lead into the same schema again.
    recursive: bool,
    /// JSON pointers of anchors, and of the root under its own id.
    anchors: HashMap<String, String>,
}

impl Cost {
    /// Follows every reference of a schema and counts.
    pub fn of(document: &Value) -> Result<Cost, TooComplex> {
        let mut anchors = HashMap::new();
        find_anchors(document, &mut String::new(), &mut anchors);
        let mut unfolding =
            Unfolding { root: document, anchors: &anchors, open: Vec::new(), left: MOST_NODES, recursive: false };
        unfolding.schema(document, 0, &Repeats::once())?;
        let (nodes, recursive) = (MOST_NODES - unfolding.left, unfolding.recursive);
        Ok(Cost { nodes, recursive, anchors })
    }

    /// The steps that the check of a value takes at most, found by walking schema and value together.
    pub fn steps(&self, document: &Value, value: &Value) -> Result<usize, TooCostly> {
        let mut walk = Walk { cost: self, root: document, left: MOST_STEPS };
        walk.schema(document, value, 0, &Repeats::once())?;
        Ok(MOST_STEPS - walk.left)
    }

    /// True when the sizes alone prove that a check takes at most so many steps.
    pub fn is_surely_within(&self, steps: usize, json: &str) -> bool {
        // A value takes at least one byte and a separator.
        !self.recursive && self.nodes.saturating_mul(json.len() / 2 + 1 + json.len() / TEXT_STEP) <= steps
    }

    /// The schema that a reference names.
    fn target<'v>(&self, root: &'v Value, reference: &str) -> Option<&'v Value> {
        resolve(root, &self.anchors, reference)
    }
}

fn resolve<'v>(root: &'v Value, anchors: &HashMap<String, String>, reference: &str) -> Option<&'v Value> {
    let own_id = root.get("$id").or_else(|| root.get("id")).and_then(Value::as_str);
    let fragment = match reference.split_once('#') {
        Some((before, fragment))
            if before.is_empty() || own_id.is_some_and(|id| id.trim_end_matches('#') == before) =>
        {
            fragment
        }
        None if own_id == Some(reference) => "",
        _ => return None,
    };
    if fragment.is_empty() || fragment.starts_with('/') {
        return root.pointer(&percent_decoded(fragment)?);
    }
    root.pointer(anchors.get(fragment)?)
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
            }
            _ => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok()
}

/// Anchors stand anywhere; where one name stands twice, the first counts, and the compiler refuses the document.
fn find_anchors(value: &Value, pointer: &mut String, anchors: &mut HashMap<String, String>) {
    let length = pointer.len();
    match value {
        Value::Object(fields) => {
            for name in ["$anchor", "$dynamicAnchor"] {
                if let Some(anchor) = fields.get(name).and_then(Value::as_str) {
                    anchors.entry(anchor.to_owned()).or_insert_with(|| pointer.clone());
                }
            }
            for (name, field) in fields {
                super::super::yaml::push_segment(pointer, name);
                find_anchors(field, pointer, anchors);
                pointer.truncate(length);
            }
        }
        Value::Array(items) => {
            for (n, item) in items.iter().enumerate() {
                pointer.push_str(&format!("/{n}"));
                find_anchors(item, pointer, anchors);
                pointer.truncate(length);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// JSON values in a value, itself included.
fn size(value: &Value) -> usize {
    match value {
        Value::Object(fields) => 1 + fields.values().map(size).sum::<usize>(),
        Value::Array(items) => 1 + items.iter().map(size).sum::<usize>(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
    }
}

/// The schemas in one keyword, each with the name under which it stands.
fn schemas_in(value: &Value, form: Form) -> Vec<(Option<&str>, &Value)> {
    match (form, value) {
        (Form::ByName, Value::Object(fields)) => {
            fields.iter().map(|(name, schema)| (Some(name.as_str()), schema)).collect()
        }
        (Form::OneOrList, Value::Array(items)) => items.iter().map(|item| (None, item)).collect(),
        _ => vec![(None, value)],
    }
}

fn applicator(keyword: &str) -> Option<(Applies, Form)> {
    APPLICATORS.iter().find(|(name, ..)| *name == keyword).map(|(_, applies, form)| (*applies, *form))
}

/// How often a schema is compiled or evaluated where it stands, because of `unevaluated…` around it.
#[derive(Clone)]
struct Repeats {
    times: usize,
    /// For each `unevaluated…` around it on the same value: the schemas between.
    between: Vec<usize>,
}

impl Repeats {
    fn once() -> Repeats {
        Repeats { times: 1, between: Vec::new() }
    }

    fn times(&self) -> usize {
        self.between.iter().fold(self.times, |times, between| times.saturating_mul(2 + between))
    }

    /// The repeats of a schema with these fields.
    fn of(&self, fields: &Map<String, Value>) -> Repeats {
        let mut repeats = self.clone();
        repeats.between.extend(AGAIN.iter().filter(|keyword| fields.contains_key(**keyword)).map(|_| 0));
        repeats
    }

    /// The repeats of the schemas in a keyword.
    fn under(&self, applies: Applies) -> Repeats {
        match applies {
            Applies::Here => {
                Repeats { times: self.times, between: self.between.iter().map(|between| between + 1).collect() }
            }
            Applies::Inside => Repeats { times: self.times(), between: Vec::new() },
        }
    }
}

/// Follows references as the compiler does.
struct Unfolding<'v> {
    root: &'v Value,
    anchors: &'v HashMap<String, String>,
    /// Schemas around the present one, each with how often the value was gone into before it.
    open: Vec<(&'v Value, usize)>,
    left: usize,
    recursive: bool,
}

type Unfolded = Result<(), TooComplex>;

impl<'v> Unfolding<'v> {
    fn spend(&mut self, nodes: usize, repeats: &Repeats) -> Unfolded {
        let nodes = nodes.saturating_mul(repeats.times());
        self.left = self.left.checked_sub(nodes).ok_or(TooComplex::Nodes)?;
        Ok(())
    }

    fn schema(&mut self, schema: &'v Value, inside: usize, repeats: &Repeats) -> Unfolded {
        let Value::Object(fields) = schema else { return self.spend(size(schema), repeats) };
        if self.open.len() >= DEEPEST {
            return Err(TooComplex::Depth);
        }
        self.check_id(schema, fields)?;
        self.open.push((schema, inside));
        let repeats = repeats.of(fields);
        self.spend(1, &repeats)?;
        for (keyword, value) in fields {
            self.keyword(keyword, value, inside, &repeats)?;
        }
        self.open.pop();
        Ok(())
    }

    fn keyword(&mut self, keyword: &str, value: &'v Value, inside: usize, repeats: &Repeats) -> Unfolded {
        if REFERENCES.contains(&keyword)
            && let Value::String(reference) = value
        {
            return self.reference(reference, inside, repeats);
        }
        let Some((applies, form)) = applicator(keyword) else {
            let nodes = match keyword {
                "pattern" => PATTERN_NODES,
                _ if LIBRARIES.contains(&keyword) => 1,
                _ => size(value),
            };
            return self.spend(nodes, repeats);
        };
        self.spend(1, repeats)?;
        let below = repeats.under(applies);
        for (_, schema) in schemas_in(value, form) {
            if keyword == "patternProperties" {
                self.spend(PATTERN_NODES, repeats)?;
            }
            self.schema(schema, inside + usize::from(applies == Applies::Inside), &below)?;
        }
        Ok(())
    }

    fn reference(&mut self, reference: &str, inside: usize, repeats: &Repeats) -> Unfolded {
        let target = resolve(self.root, self.anchors, reference);
        let target = target.ok_or_else(|| TooComplex::Unknown(reference.to_owned()))?;
        match self.open.iter().find(|(open, _)| std::ptr::eq(*open, target)) {
            Some((_, before)) if *before == inside => Err(TooComplex::Circle(reference.to_owned())),
            Some(_) => {
                self.recursive = true;
                self.spend(1, repeats)
            }
            None => self.schema(target, inside, &repeats.under(Applies::Here)),
        }
    }

    fn check_id(&self, schema: &Value, fields: &Map<String, Value>) -> Unfolded {
        let dialect = self.root.get("$schema").and_then(Value::as_str).unwrap_or_default();
        let old = dialect.contains("draft-03") || dialect.contains("draft-04");
        let id = fields.get("$id").or_else(|| fields.get("id").filter(|_| old)).and_then(Value::as_str);
        match id.filter(|_| !std::ptr::eq(schema, self.root)) {
            Some(id) => Err(TooComplex::Embedded(id.to_owned())),
            None => Ok(()),
        }
    }
}

/// Goes through schema and value as the evaluator may at worst, without looking at what fits.
struct Walk<'c, 'v> {
    cost: &'c Cost,
    root: &'v Value,
    left: usize,
}

type Walked = Result<(), TooCostly>;

impl<'v> Walk<'_, 'v> {
    fn spend(&mut self, steps: usize, repeats: &Repeats) -> Walked {
        let steps = steps.saturating_mul(repeats.times());
        self.left = self.left.checked_sub(steps).ok_or(TooCostly)?;
        Ok(())
    }

    fn schema(&mut self, schema: &'v Value, value: &Value, depth: usize, repeats: &Repeats) -> Walked {
        if depth > DEEPEST_STEPS {
            return Err(TooCostly);
        }
        let Value::Object(fields) = schema else { return self.spend(1, repeats) };
        let text = value.as_str().map_or(0, |text| text.len() / TEXT_STEP);
        let repeats = repeats.of(fields);
        self.spend(1 + text, &repeats)?;
        fields.iter().try_for_each(|(keyword, of_keyword)| self.keyword(keyword, of_keyword, value, depth, &repeats))
    }

    fn keyword(
        &mut self,
        keyword: &str,
        of_keyword: &'v Value,
        value: &Value,
        depth: usize,
        repeats: &Repeats,
    ) -> Walked {
        if REFERENCES.contains(&keyword)
            && let Some(target) = of_keyword.as_str().and_then(|reference| self.cost.target(self.root, reference))
        {
            return self.schema(target, value, depth + 1, &repeats.under(Applies::Here));
        }
        let Some((applies, form)) = applicator(keyword) else {
            return match keyword {
                "uniqueItems" => self.spend(1 + size(value), repeats),
                _ if LIBRARIES.contains(&keyword) => Ok(()),
                // A list of allowed values is compared with the value one by one.
                _ => self.spend(size(of_keyword), repeats),
            };
        };
        let below = repeats.under(applies);
        for (name, schema) in schemas_in(of_keyword, form) {
            match applies {
                Applies::Here => self.schema(schema, value, depth + 1, &below)?,
                Applies::Inside => self.inside((keyword, name), schema, value, depth + 1, &below)?,
            }
        }
        Ok(())
    }

    /// Applies a schema to the values inside: all of them, but for a property that is named.
    fn inside(
        &mut self,
        (keyword, name): (&str, Option<&str>),
        schema: &'v Value,
        value: &Value,
        depth: usize,
        repeats: &Repeats,
    ) -> Walked {
        match value {
            Value::Object(fields) if keyword == "properties" => match name.and_then(|name| fields.get(name)) {
                Some(field) => self.schema(schema, field, depth, repeats),
                None => self.spend(1, repeats),
            },
            Value::Object(fields) if keyword == "propertyNames" => fields.keys().try_for_each(|name| {
                self.spend(name.len() / TEXT_STEP, repeats)?;
                self.schema(schema, &Value::Null, depth, repeats)
            }),
            Value::Object(fields) => fields.iter().try_for_each(|(name, field)| {
                self.spend(1 + name.len() / TEXT_STEP, repeats)?;
                self.schema(schema, field, depth, repeats)
            }),
            Value::Array(items) => items.iter().try_for_each(|item| self.schema(schema, item, depth, repeats)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => self.spend(1, repeats),
        }
    }
}

//! JSON Schemas of inputs, outputs, forms and signals: compiled once, never resolving anything from outside.

mod cost;

use std::sync::Arc;

use serde_json::Value;

use cost::Cost;
pub use cost::{MOST_NODES, MOST_STEPS, TooComplex, TooCostly};

/// A compiled JSON Schema. Cloning shares it.
#[derive(Clone)]
pub struct Schema {
    document: Arc<Value>,
    validator: Arc<jsonschema::Validator>,
    /// None: an earlier version accepted it, and it would not be accepted today.
    cost: Option<Arc<Cost>>,
}

/// A schema that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    #[error("{0}")]
    TooComplex(TooComplex),
    #[error("{0}")]
    Unusable(String),
}

/// One place where a value is not as its schema says. It names the place and the rule, never the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaFault {
    pub pointer: String,
    pub detail: String,
}

/// Faults reported at most; a hostile value must not make a huge answer.
const MOST_FAULTS: usize = 20;
/// Faults are listed where the check takes at most so many steps: each fault of each alternative is held in memory.
const LISTED_STEPS: usize = 100_000;
const PATTERN_BYTES: usize = 1 << 16;

impl Schema {
    /// Compiles a schema that somebody sends, unless it stands for more than its limits allow.
    pub fn compile(document: &Value) -> Result<Schema, SchemaError> {
        let cost = Cost::of(document).map_err(SchemaError::TooComplex)?;
        let compiled = Schema::of_stored(document).map_err(SchemaError::Unusable)?;
        Ok(Schema { cost: Some(Arc::new(cost)), ..compiled })
    }

    /// Compiles a schema that was accepted before, perhaps by an earlier version with wider limits.
    pub fn of_stored(document: &Value) -> Result<Schema, String> {
        let patterns = jsonschema::PatternOptions::regex().size_limit(PATTERN_BYTES).dfa_size_limit(2 * PATTERN_BYTES);
        let validator =
            jsonschema::options().with_pattern_options(patterns).build(document).map_err(|error| error.to_string())?;
        let cost = Cost::of(document).ok().map(Arc::new);
        Ok(Schema { document: Arc::new(document.clone()), validator: Arc::new(validator), cost })
    }

    pub fn document(&self) -> &Value {
        &self.document
    }

    /// JSON values of the schema with its references followed.
    pub fn nodes(&self) -> usize {
        self.cost.as_ref().map_or(MOST_NODES, |cost| cost.nodes)
    }

    /// The steps that the check of a value takes at most.
    pub fn steps(&self, value: &Value) -> Result<usize, TooCostly> {
        self.cost.as_ref().map_or(Ok(LISTED_STEPS), |cost| cost.steps(&self.document, value))
    }

    /// Checks JSON text. Text that is not JSON is a fault too, and so is a value whose check would take too long.
    pub fn check(&self, json: &str) -> Result<(), Vec<SchemaFault>> {
        let whole = |detail: String| vec![SchemaFault { pointer: String::new(), detail }];
        let value: Value = serde_json::from_str(json).map_err(|error| whole(format!("not JSON: {error}")))?;
        let surely_few = self.cost.as_ref().is_some_and(|cost| cost.is_surely_within(LISTED_STEPS, json));
        let steps = if surely_few { Ok(0) } else { self.steps(&value) };
        match steps {
            Ok(steps) if steps <= LISTED_STEPS => self.listed(&value),
            Ok(_) if self.validator.is_valid(&value) => Ok(()),
            Ok(_) => Err(whole("it is not as its schema says; it is too large to tell where".into())),
            Err(TooCostly) => Err(whole(format!(
                "to check it against its schema takes more than {MOST_STEPS} steps: make the value or the schema smaller"
            ))),
        }
    }

    fn listed(&self, value: &Value) -> Result<(), Vec<SchemaFault>> {
        let faults: Vec<SchemaFault> = self
            .validator
            .iter_errors(value)
            .take(MOST_FAULTS)
            .map(|error| SchemaFault {
                pointer: error.instance_path().to_string(),
                detail: error.masked_with("the value").to_string(),
            })
            .collect();
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }
}

impl std::fmt::Debug for Schema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Schema").field(&self.document).finish()
    }
}

impl PartialEq for Schema {
    fn eq(&self, other: &Schema) -> bool {
        self.document == other.document
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_fault_names_the_place_and_never_the_value() {
        let schema = Schema::compile(&json!({"properties": {"card": {"type": "integer"}}})).unwrap();
        let faults = schema.check(r#"{"card": "4111-secret"}"#).unwrap_err();
        assert_eq!(faults[0].pointer, "/card");
        assert!(!faults[0].detail.contains("secret"), "{}", faults[0].detail);
    }

    #[test]
    fn a_schema_that_points_outside_is_refused_when_it_is_uploaded() {
        assert!(Schema::compile(&json!({"$ref": "https://example.com/schema.json"})).is_err());
        assert!(Schema::compile(&json!({"type": "no such type"})).is_err());
    }

    /// `levels` definitions, each of which refers to the next one twice.
    fn doubling(levels: usize, around: &str) -> Value {
        let name = |level: usize| format!("#/$defs/l{level}");
        let mut schema = json!({ "$ref": name(0), "$defs": { format!("l{levels}"): { "type": "null" } } });
        for level in 0..levels {
            let next = json!({ "$ref": name(level + 1) });
            schema["$defs"][format!("l{level}")] = match around {
                "anyOf" => json!({ "anyOf": [next, next] }),
                _ => json!({ "properties": { "a": next, "b": next } }),
            };
        }
        schema
    }

    fn refusal(schema: &Value) -> TooComplex {
        match Schema::compile(schema) {
            Err(SchemaError::TooComplex(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_short_schema_that_stands_for_a_huge_one_is_refused_before_it_is_compiled() {
        assert!(Schema::compile(&doubling(8, "anyOf")).is_ok());
        for around in ["anyOf", "properties"] {
            assert_eq!(refusal(&doubling(24, around)), TooComplex::Nodes);
        }
        let unevaluated =
            (0..20).fold(json!({}), |inner, _| json!({ "allOf": [inner], "unevaluatedProperties": false }));
        assert_eq!(refusal(&unevaluated), TooComplex::Nodes);
        let chain: serde_json::Map<String, Value> =
            (0..500).map(|n| (n.to_string(), json!({ "$ref": format!("#/$defs/{}", n + 1) }))).collect();
        assert_eq!(refusal(&json!({ "$ref": "#/$defs/0", "$defs": chain })), TooComplex::Depth);
    }

    #[test]
    fn a_schema_may_refer_to_itself_only_inside_the_value() {
        let list = json!({ "properties": { "next": { "$ref": "#" } }, "required": ["x"] });
        let list = Schema::compile(&list).unwrap();
        assert_eq!(list.check(r#"{"x": 1, "next": {"x": 2}}"#), Ok(()));
        assert_eq!(list.check(r#"{"x": 1, "next": {}}"#).unwrap_err()[0].pointer, "/next");
        assert!(matches!(refusal(&json!({ "anyOf": [{ "$ref": "#" }, { "$ref": "#" }] })), TooComplex::Circle(_)));
        let named = json!({ "$ref": "#/$defs/a", "$defs": { "a": { "not": { "$ref": "#/$defs/a" } } } });
        assert!(matches!(refusal(&named), TooComplex::Circle(_)));
    }

    #[test]
    fn references_are_followed_by_pointer_by_anchor_and_by_the_own_id_and_no_others() {
        let schema = json!({
            "$id": "https://example.com/order",
            "properties": {
                "a": { "$ref": "#/$defs/with~1slash%25" }, "b": { "$ref": "#sku" },
                "c": { "$ref": "https://example.com/order#/$defs/sku" },
            },
            "$defs": { "with/slash%": { "type": "string" }, "sku": { "$anchor": "sku", "type": "integer" } },
        });
        let schema = Schema::compile(&schema).unwrap();
        for (json, place) in [(r#"{"a": 1}"#, "/a"), (r#"{"b": ""}"#, "/b"), (r#"{"c": ""}"#, "/c")] {
            assert_eq!(schema.check(json).unwrap_err()[0].pointer, place);
        }
        assert!(matches!(refusal(&json!({ "$ref": "#/$defs/none" })), TooComplex::Unknown(_)));
        let embedded = json!({ "items": { "$id": "https://example.com/b", "type": "null" } });
        assert!(matches!(refusal(&embedded), TooComplex::Embedded(_)));
    }

    #[test]
    fn a_value_that_a_recursive_schema_follows_many_times_is_refused_and_not_checked() {
        let again = json!({ "$ref": "#" });
        let schema = json!({ "anyOf": [{ "properties": { "a": again } }, { "properties": { "a": again } }, { "type": "null" }] });
        let schema = Schema::compile(&schema).unwrap();
        let nested = |levels: usize| (0..levels).fold(json!({}), |inner, _| json!({ "a": inner })).to_string();
        assert_eq!(schema.check(&nested(5)), Ok(()));
        let fault = schema.check(&nested(60)).unwrap_err().remove(0);
        assert!(fault.detail.contains("more than 5000000 steps"), "{}", fault.detail);
    }

    #[test]
    fn a_large_value_is_checked_and_its_faults_are_not_listed() {
        let schema = Schema::compile(&json!({ "items": { "type": "integer", "minimum": 0 } })).unwrap();
        let list = |last: &str| format!("[{}{last}]", "1,".repeat(100_000));
        assert_eq!(schema.check(&list("2")), Ok(()));
        assert!(schema.check(&list("-2")).unwrap_err()[0].detail.contains("too large to tell where"));
    }

    #[test]
    fn a_schema_of_an_earlier_version_still_opens() {
        let nested = json!({ "items": { "$id": "https://example.com/b", "type": "null" } });
        assert_eq!(Schema::of_stored(&nested).unwrap().check("[null]"), Ok(()));
    }

    #[test]
    fn a_regex_bomb_in_a_schema_is_refused_when_it_is_uploaded() {
        assert!(Schema::compile(&json!({"pattern": "((a{100}){100}){100}"})).is_err());
    }
}

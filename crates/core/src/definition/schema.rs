//! JSON Schemas of inputs, outputs, forms and signals: compiled once, never resolving anything from outside.

use std::sync::Arc;

use serde_json::Value;

/// A compiled JSON Schema. Cloning shares it.
#[derive(Clone)]
pub struct Schema {
    document: Arc<Value>,
    validator: Arc<jsonschema::Validator>,
}

/// One place where a value is not as its schema says. It names the place and the rule, never the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaFault {
    pub pointer: String,
    pub detail: String,
}

/// Faults reported at most; a hostile value must not make a huge answer.
const MOST_FAULTS: usize = 20;

impl Schema {
    pub fn compile(document: &Value) -> Result<Schema, String> {
        let validator = jsonschema::options()
            .with_pattern_options(jsonschema::PatternOptions::regex().size_limit(1 << 16))
            .build(document)
            .map_err(|error| error.to_string())?;
        Ok(Schema { document: Arc::new(document.clone()), validator: Arc::new(validator) })
    }

    pub fn document(&self) -> &Value {
        &self.document
    }

    /// Checks JSON text. Text that is not JSON is a fault too.
    pub fn check(&self, json: &str) -> Result<(), Vec<SchemaFault>> {
        let value: Value = serde_json::from_str(json)
            .map_err(|error| vec![SchemaFault { pointer: String::new(), detail: format!("not JSON: {error}") }])?;
        let faults: Vec<SchemaFault> = self
            .validator
            .iter_errors(&value)
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

    #[test]
    fn a_regex_bomb_in_a_schema_is_refused_when_it_is_uploaded() {
        assert!(Schema::compile(&json!({"pattern": "((a{100}){100}){100}"})).is_err());
    }
}

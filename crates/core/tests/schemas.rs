//! Schemas and values made up at random: no schema is compiled and no value is checked beyond what was counted before, and the
//! memory of the process stays bounded. A test of its own, because it measures the process.

#![expect(clippy::disallowed_methods, reason = "what was counted is timed, for people to read")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use abide_core::definition::{MOST_NODES, MOST_STEPS, Schema};
use jsonschema::{Keyword, ValidationError};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const GROWTH_BYTES: usize = 128 << 20;

/// How often schemas were compiled and evaluated, told by a keyword that stands in every schema.
#[derive(Clone, Default)]
struct Counter {
    compiled: Arc<AtomicUsize>,
    evaluated: Arc<AtomicUsize>,
}

impl<'i> Keyword<'i> for Counter {
    fn validate(&self, _: &'i Value) -> Result<(), ValidationError<'i>> {
        self.evaluated.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn is_valid(&self, _: &'i Value) -> bool {
        self.evaluated.fetch_add(1, Ordering::Relaxed);
        true
    }
}

impl Counter {
    fn validator(&self, document: &Value) -> jsonschema::Validator {
        let counter = self.clone();
        let options = jsonschema::options().with_keyword("x-count", move |_, _, _| {
            counter.compiled.fetch_add(1, Ordering::Relaxed);
            Ok(Box::new(counter.clone()))
        });
        options.build(document).expect("what is accepted compiles")
    }
}

fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b", "c"])
}

/// A schema that refers to its six definitions, in every way in which schemas hold schemas.
fn schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        4 => (0..6usize).prop_map(|n| json!({ "$ref": format!("#/$defs/d{n}"), "x-count": true })),
        1 => Just(json!({ "x-count": true, "type": "null" })),
        1 => Just(json!({ "x-count": true, "enum": [1, 2, "x"] })),
        1 => Just(json!({ "x-count": true, "pattern": "^a+$" })),
    ];
    leaf.prop_recursive(4, 24, 3, |inner| {
        let list = prop::collection::vec(inner.clone(), 1..4);
        let by_name = prop::collection::vec((name(), inner.clone()), 1..3).prop_map(|fields| {
            fields.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect::<Map<_, _>>()
        });
        prop_oneof![
            (prop::sample::select(vec!["anyOf", "allOf", "oneOf"]), list)
                .prop_map(|(keyword, list)| json!({ "x-count": true, keyword: list })),
            by_name.prop_map(|fields| json!({ "x-count": true, "properties": fields })),
            (
                prop::sample::select(vec!["items", "additionalProperties", "not", "contains", "propertyNames"]),
                inner.clone()
            )
                .prop_map(|(keyword, one)| json!({ "x-count": true, keyword: one })),
            inner.prop_map(
                |one| json!({ "x-count": true, "allOf": [one], "unevaluatedProperties": { "x-count": true } })
            ),
        ]
    })
}

fn document() -> impl Strategy<Value = Value> {
    let definitions = prop::collection::vec(schema(), 6).prop_map(|schemas| {
        let named = schemas.into_iter().enumerate().map(|(n, schema)| (format!("d{n}"), schema));
        named.collect::<Map<String, Value>>()
    });
    (definitions, schema())
        .prop_map(|(definitions, schema)| json!({ "allOf": [schema], "$defs": definitions, "x-count": true }))
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![Just(json!(null)), Just(json!(1)), Just(json!("aaa")), Just(json!("x"))];
    leaf.prop_recursive(8, 64, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((name(), inner), 0..4).prop_map(|fields| fields
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect::<Map<_, _>>()
                .into()),
        ]
    })
}

/// The most memory that this process has had.
fn peak_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a line");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<usize>().ok()).expect("a number") << 10
}

#[test]
fn no_schema_and_no_value_costs_more_than_was_counted() {
    let before = peak_bytes();
    let began = Instant::now();
    let (accepted, slowest) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(std::env::var("ABIDE_SCHEMAS").ok().and_then(|n| n.parse().ok()).unwrap_or(3_000))
    };
    proptest!(config, |(document in document(), values in prop::collection::vec(value(), 3))| {
        let one = Instant::now();
        let Ok(schema) = Schema::compile(&document) else { return Ok(()) };
        accepted.fetch_add(1, Ordering::Relaxed);
        let counter = Counter::default();
        let validator = counter.validator(&document);
        prop_assert!(schema.nodes() <= MOST_NODES);
        let compiled = counter.compiled.load(Ordering::Relaxed);
        prop_assert!(compiled <= schema.nodes(), "{compiled} compiled, {} counted", schema.nodes());
        for value in &values {
            let _ = schema.check(&value.to_string());
            let Ok(steps) = schema.steps(value) else { continue };
            prop_assert!(steps <= MOST_STEPS);
            counter.evaluated.store(0, Ordering::Relaxed);
            let _ = validator.is_valid(value);
            let evaluated = counter.evaluated.load(Ordering::Relaxed);
            prop_assert!(evaluated <= steps, "{evaluated} evaluated, {steps} counted for {value}");
        }
        slowest.fetch_max(one.elapsed().as_micros() as usize, Ordering::Relaxed);
    });
    let (accepted, slowest) = (accepted.into_inner(), slowest.into_inner());
    println!("{accepted} schemas accepted in {:?}, the slowest in {slowest} µs", began.elapsed());
    assert!(accepted > 300, "there is something to count: {accepted}");

    // The largest that are accepted: doubling references, and a value that fails everywhere.
    let mut levels = json!({ "l13": { "type": "null" } });
    for level in 0..13 {
        let next = json!({ "$ref": format!("#/$defs/l{}", level + 1) });
        levels[format!("l{level}")] = json!({ "anyOf": [next, next] });
    }
    let (mut largest, mut level) = (None, 0);
    while largest.is_none() {
        let document = json!({ "items": { "$ref": format!("#/$defs/l{level}") }, "$defs": levels });
        largest = Schema::compile(&document).ok();
        level += 1;
    }
    let largest = largest.expect("one is small enough");
    assert!(largest.nodes() > MOST_NODES / 4, "it is near the limit: {}", largest.nodes());
    let one = Instant::now();
    for count in [1, 10, 1_000, 100_000] {
        assert!(largest.check(&format!("[{}1]", "1,".repeat(count))).is_err());
    }
    println!("{} nodes checked in {:?}", largest.nodes(), one.elapsed());
    let wide = Schema::compile(&json!({ "items": { "type": "null" } })).expect("a schema");
    assert!(wide.check(&format!("[{}1]", "1,".repeat(500_000))).is_err());
    let grown = peak_bytes() - before;
    println!("the process grew by {} MiB", grown >> 20);
    assert!(grown < GROWTH_BYTES, "{grown} bytes");
}

//! Nothing that anybody can write makes the reader panic, and what it says holds for every text.

use proptest::prelude::*;

use super::*;

/// Pieces from which documents are made.
const TOKENS: &[&str] = &[
    "workflow",
    "steps",
    "finally",
    "id",
    "task",
    "with",
    "when",
    "after",
    "for_each",
    "repeat",
    "approval",
    "signal",
    "child",
    "wait",
    "http",
    "url",
    "headers",
    "on_result",
    "then",
    "go_to",
    "max_visits",
    "join_child",
    "retry",
    "defaults",
    "recovery",
    "deadline",
    "at_deadline",
    "escalate",
    "sensitive",
    "input",
    "output",
    "coded",
    "a",
    "b",
    "w",
    ":",
    ": ",
    "- ",
    "\n",
    "\n  ",
    "\n    ",
    "{",
    "}",
    "[",
    "]",
    ", ",
    "\"",
    "'",
    "#",
    "&a ",
    "*a",
    "<<",
    "!t ",
    "!",
    "|",
    ">",
    "?",
    "%",
    "@",
    "---",
    "...",
    "\t",
    "1",
    "0",
    "-1",
    "1.5",
    "1e999",
    "true",
    "~",
    "30s",
    "P1D",
    "https://x.y",
    "${{ ",
    " }}",
    "input.x",
    "steps.a.output",
    "/a/b",
    "é",
    "\u{feff}",
    "\u{0}",
    "\r\n",
];

fn holds(text: &str) -> Result<(), TestCaseError> {
    match Definition::parse(text) {
        Ok(parsed) => {
            let again = Definition::parse(text).expect("it was read before");
            prop_assert_eq!(again.definition.hash, parsed.definition.hash);
            for step in 0..parsed.definition.steps().len() {
                parsed.definition.sensitive_inputs(step);
            }
        }
        Err(DefinitionError::TooLarge { .. }) => {}
        Err(error) => {
            prop_assert!(!error.faults().is_empty(), "a refusal says why: {:?}", error);
            let lines = text.matches(['\r', '\n']).count() as u32 + 2;
            for fault in error.faults() {
                prop_assert!(fault.line.is_some_and(|line| (1..=lines).contains(&line)), "{:?}", fault);
                prop_assert!(fault.path.is_empty() || fault.path.starts_with('/'), "{:?}", fault);
                prop_assert!(!fault.message.is_empty(), "{:?}", fault);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_text_is_read_or_refused(text in "(?s).{0,200}") {
        holds(&text)?;
    }

    #[test]
    fn any_soup_of_tokens_is_read_or_refused(tokens in prop::collection::vec(prop::sample::select(TOKENS), 0..60)) {
        holds(&tokens.concat())?;
        holds(&of_steps(&format!("  - {{id: a, task: t, {}}}", tokens.concat())))?;
    }

    #[test]
    fn a_valid_document_may_be_damaged_anywhere(
        at in 0usize..3_400,
        cut in 0usize..40,
        insert in prop::sample::select(TOKENS),
    ) {
        let start = floor(at);
        let end = floor((start + cut).min(ORDER.len()));
        holds(&format!("{}{insert}{}", &ORDER[..start], &ORDER[end.max(start)..]))?;
    }

    #[test]
    fn two_lines_of_a_valid_document_may_change_places(a in 0usize..80, b in 0usize..80) {
        let mut lines: Vec<&str> = ORDER.lines().collect();
        let (a, b) = (a % lines.len(), b % lines.len());
        lines.swap(a, b);
        holds(&lines.join("\n"))?;
    }

    #[test]
    fn any_text_is_a_duration_or_not(text in "[0-9a-zA-Z. ]{0,12}|(?s).{0,10}") {
        if let Ok(span) = parse_duration(&text) {
            prop_assert!(span.micros() <= 36_525 * 86_400_000_000);
        }
    }

    #[test]
    fn whatever_is_redacted_stays_json(
        json in any_json(),
        pointers in prop::collection::vec("(/[a-c0-2]){0,3}", 0..4),
    ) {
        let text = json.to_string();
        let redacted = redact(&text, &pointers);
        let value: serde_json::Value = serde_json::from_str(&redacted).expect("it is still JSON");
        for pointer in &pointers {
            if json.pointer(pointer).is_some() {
                let hidden = value.pointer(pointer).is_none_or(|value| value == "[redacted]");
                prop_assert!(hidden, "{} in {}", pointer, redacted);
            }
        }
        prop_assert_eq!(redact(&redacted, &pointers), redacted, "once is enough");
        redact(&format!("{text}]"), &pointers);
    }
}

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<i32>().prop_map(serde_json::Value::from),
        "(?s).{0,5}".prop_map(serde_json::Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
            prop::collection::btree_map("[a-c]", inner, 0..4)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

/// The nearest boundary between characters at or before this byte.
fn floor(at: usize) -> usize {
    (0..=at.min(ORDER.len())).rev().find(|&at| ORDER.is_char_boundary(at)).unwrap_or(0)
}

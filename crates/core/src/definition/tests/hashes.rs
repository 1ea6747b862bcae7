//! Two texts that mean the same have one hash.

use super::*;

fn hash(text: &str) -> crate::ids::Digest {
    parsed(text).definition.hash
}

const PLAIN: &str = "workflow: w\ntitle: Hello\nsteps:\n  - id: a\n    task: t\n    with: {x: 1.5, y: [1, 2], z: ~}\n";

#[test]
fn comments_key_order_quoting_anchors_and_json_do_not_matter() {
    for same in [
        "# a comment\nworkflow: w\ntitle: Hello # another\nsteps:\n  - id: a\n    task: t\n    with: {x: 1.5, y: [1, 2], z: ~}\n",
        "steps: [{with: {z: null, y: [1, 2], x: 1.50}, task: t, id: a}]\ntitle: Hello\nworkflow: w\n",
        "workflow: 'w'\ntitle: \"Hel\\u006co\"\nsteps:\n- id: \"a\"\n  task: |-\n    t\n  with: {x: 15e-1, y: [1, 2], z: }\n",
        "workflow: &name w\ntitle: Hello\nsteps:\n  - id: a\n    task: t\n    with: {x: 1.5, y: [1, 2], z: ~}\n",
        r#"{"workflow": "w", "title": "Hello", "steps": [{"id": "a", "task": "t", "with": {"x": 1.5, "y": [1, 2], "z": null}}]}"#,
    ] {
        assert_eq!(hash(same), hash(PLAIN), "{same}");
    }
}

#[test]
fn everything_that_a_task_could_notice_matters() {
    for (from, to) in [
        ("1.5", "1.25"),
        ("[1, 2]", "[2, 1]"),
        ("[1, 2]", "[1.0, 2]"),
        ("[1, 2]", "['1', 2]"),
        ("z: ~", "z: ''"),
        (", z: ~", ""),
        ("Hello", "hello"),
    ] {
        let other = PLAIN.replace(from, to);
        assert_ne!(hash(&other), hash(PLAIN), "{other}");
    }
}

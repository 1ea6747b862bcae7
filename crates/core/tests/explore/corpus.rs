//! Workflows that together use everything a document can say.

use abide_core::definition::Definition;

pub const DOCUMENTS: &[(&str, &str)] = &[
    ("sequence", SEQUENCE),
    ("branches", BRANCHES),
    ("fan", FAN),
    ("joins", JOINS),
    ("loops", LOOPS),
    ("cases", CASES),
    ("waits", WAITS),
    ("people", PEOPLE),
    ("saga", SAGA),
    ("saga_fan", SAGA_FAN),
    ("children", CHILDREN),
    ("recovery", RECOVERY),
    ("deadlines", DEADLINES),
    ("http", HTTP),
    ("coded", CODED),
    ("finals", FINALS),
    ("any", ANY),
    ("beside", BESIDE),
    ("back", BACK),
    ("left", LEFT),
    ("reject", REJECT),
    ("overrides", OVERRIDES),
    ("cased", CASED),
    ("stuck", STUCK),
    ("stuck too", STUCK),
];

pub const INPUT: &str = r#"{"n":3,"ok":true,"items":[{"sku":"a"},{"sku":"b"},{"sku":"c"}],"account":"acme","none":[]}"#;

pub fn definitions() -> Vec<(String, Definition)> {
    let written = DOCUMENTS.iter().map(|(name, text)| (name.to_string(), text.to_string()));
    written
        .chain(bridges())
        .chain(beside_a_back_off())
        .map(|(name, text)| match Definition::parse(&text) {
            Ok(parsed) => (name, parsed.definition),
            Err(error) => panic!("{name}: {error:?}"),
        })
        .collect()
}

const FIRST: [(&str, &str); 5] = [
    ("sleep", "sleep: 30s"),
    ("signal", "signal: left"),
    ("approval", "approval: { approvers: [ana] }"),
    ("child", "child: sequence"),
    ("work", "task: t.work, retry: { first: 1m }"),
];

/// Each wait beside a step that backs off for long: what is left when the wait is over.
fn beside_a_back_off() -> impl Iterator<Item = (String, String)> {
    FIRST.into_iter().map(|(first, step)| {
        let slow = "{ id: b, after: [], task: t.slow, retry: { first: 1m } }";
        let text = format!("workflow: beside-{first}\nsteps: [ {{ id: a, after: [], {step} }}, {slow} ]\n");
        (format!("beside-{first}"), text)
    })
}

/// One wait straight after another, in all combinations: how a run goes from one rest to the next.
fn bridges() -> impl Iterator<Item = (String, String)> {
    const SECOND: [(&str, &str); 7] = [
        ("sleep", "sleep: 30s"),
        ("signal", "signal: right"),
        ("approval", "approval: { approvers: [ana] }"),
        ("child", "child: sequence"),
        ("auth", "task: t.drive, connection: drive/acme"),
        ("error", "task: t.bad, with: \"${{ input.missing.key + 1 }}\""),
        ("nothing", "task: t.skipped, when: input.n > 100"),
    ];
    FIRST.into_iter().flat_map(|(first, step)| {
        SECOND.into_iter().map(move |(second, next)| {
            let name = format!("{first}-{second}");
            let text = format!("workflow: {name}\nsteps:\n  - {{ id: a, {step} }}\n  - {{ id: b, {next} }}\n");
            (name, text)
        })
    })
}

const SEQUENCE: &str = r#"
workflow: sequence
steps:
  - { id: one, task: t.one }
  - { id: two, task: t.two, with: { from: "${{ steps.one.output }}" }, effect: idempotent }
  - { id: three, task: t.three, when: input.ok, timeout: 20s, retry: { max_attempts: 2 } }
output: { last: "${{ steps.three.output }}" }
"#;

const BRANCHES: &str = r#"
workflow: branches
deadline: 10m
steps:
  - { id: a, task: t.a, after: [] }
  - { id: b, task: t.b, after: [], on_failure: warn }
  - { id: c, task: t.c, after: [a, b], requires: input.ok }
  - { id: d, task: t.d, after: [a], when: input.n > 5 }
  - { id: e, sleep: 30s, after: [b] }
  - { id: f, task: t.f, after: [c, d, e] }
"#;

const FAN: &str = r#"
workflow: fan
steps:
  - { id: each, for_each: input.items, as: item, parallel: 2, task: t.item, with: { sku: "${{ item.sku }}", at: "${{ index }}" } }
  - { id: none, for_each: input.none, task: t.item }
  - { id: after, task: t.after, with: { all: "${{ steps.each.output }}" } }
"#;

const JOINS: &str = r#"
workflow: joins
steps:
  - { id: any, after: [], for_each: input.items, join: any, task: t.any, effect: external }
  - { id: two, after: [], for_each: input.items, join: { at_least: 2 }, task: t.two, recovery: { transient: ask } }
  - { id: share, after: [], for_each: input.items, join: { min_success: 0.6 }, parallel: 1, task: t.share, on_failure: warn }
  - { id: gates, after: [], for_each: input.items, join: any, approval: { title: "Item ${{ index }}?", approvers: [ana], deadline: 1h } }
  - { id: end, after: [any, two, share, gates], task: t.end }
"#;

const LOOPS: &str = r#"
workflow: loops
steps:
  - { id: poll, task: t.poll, with: { before: "${{ previous.output }}" }, repeat: { until: output.done, every: 10s, max: 4, collect: true } }
  - { id: again, task: t.again, repeat: { max: 3 } }
"#;

const CASES: &str = r#"
workflow: cases
steps:
  - { id: first, task: t.first, on_result: [ { when: 'failure.code == "409"', then: skip }, { when: output.bad, then: fail }, { when: 'failure.class == "fatal"', then: complete } ] }
  - { id: second, task: t.second }
  - id: third
    task: t.third
    on_result:
      - { when: output.again, then: { go_to: second, max_visits: 3 } }
      - { when: output.retry, then: retry }
      - { when: output.ahead, then: { go_to: fifth } }
  - { id: fourth, task: t.fourth }
  - { id: fifth, task: t.fifth }
"#;

const WAITS: &str = r#"
workflow: waits
steps:
  - { id: tool, after: [], task: t.tool, effect: external, reconcile: t.find }
  - { id: sign, after: [], signal: document.signed, deadline: 1h }
  - { id: both, after: [], all: [left, right], deadline: 2h, at_deadline: warn }
  - { id: either, after: [], any: [left, other], deadline: 1h, at_deadline: fail }
  - { id: drive, after: [tool], task: t.drive, connection: "drive/${{ input.account }}" }
  - { id: rest, after: [sign], sleep: 1m }
  - { id: end, after: [drive, rest, both, either], task: t.end }
"#;

const PEOPLE: &str = r#"
workflow: people
steps:
  - { id: ask, after: [], approval: { title: Ship it?, subject: { n: "${{ input.n }}" }, approvers: ["role:manager", ana], quorum: 2, not_requester: true, deadline: 2h, at_deadline: { escalate: [boss] }, on_reject: fail } }
  - { id: maybe, after: [], approval: { approvers: [ana], deadline: 1h, at_deadline: approve, on_reject: continue } }
  - { id: open, after: [], approval: { approvers: [ana], deadline: 1h, on_reject: warn } }
  - { id: work, after: [ask, maybe, open], task: t.work, recovery: { permission: fail, lost: hold, validation: fail } }
  - { id: last, approval: { approvers: [ana], deadline: 1h, at_deadline: warn, on_reject: { go_to: work, max_visits: 2 } } }
"#;

const SAGA: &str = r#"
workflow: saga
saga: true
steps:
  - { id: reserve, task: t.reserve, effect: idempotent, compensate: t.release }
  - { id: charge, task: t.charge, effect: external, reconcile: t.find_charge, compensate: { task: t.refund, effect: external, reconcile: t.find_refund }, timeout: 40s }
  - { id: note, task: t.note, effect: external, compensate: t.unnote, after: [reserve] }
  - { id: ship, task: t.ship, after: [charge, note], retry: { max_attempts: 1 } }
finally: [ { id: tell, task: t.tell } ]
"#;

const SAGA_FAN: &str = r#"
workflow: saga_fan
saga: true
steps:
  - { id: book, for_each: input.items, as: seat, parallel: 3, task: t.book, effect: external, reconcile: t.find, compensate: t.unbook, with: { sku: "${{ seat.sku }}" } }
  - { id: pay, task: t.pay, recovery: { transient: compensate } }
  - { id: nap, sleep: 1h }
"#;

const CHILDREN: &str = r#"
workflow: children
steps:
  - { id: stock, after: [], child: sequence, with: { n: 1, ok: true } }
  - { id: loose, after: [], child: sequence, wait: false, with: { n: 2 } }
  - { id: kept, after: [], child: sequence, on_cancel: leave, deadline: 1h, at_deadline: warn, with: { n: 3 } }
  - { id: late, after: [], child: sequence, deadline: 1h, with: { n: 4 } }
  - { id: joined, after: [loose], join_child: loose }
  - { id: end, after: [stock, joined, kept, late], task: t.end }
"#;

const RECOVERY: &str = r#"
workflow: recovery
steps:
  - { id: a, after: [], task: t.a, recovery: { transient: fail, lost: ask } , on_failure: warn }
  - { id: b, after: [], task: t.b, effect: external, reconcile: { task: t.find, retry: { max_attempts: 2 } }, recovery: { fatal: warn } }
  - { id: c, after: [], task: t.c, effect: external, recovery: { outcome_unknown: hold, conflict: retry } }
  - { id: d, after: [], task: t.d, requires: input.ok, verify: output != null, output_schema: { type: [object, "null", number, boolean] }, retry: { max_attempts: 2 } }
  - { id: e, after: [], task: t.e, with: { x: "${{ input.missing.key + 1 }}" } }
"#;

const DEADLINES: &str = r#"
workflow: deadlines
deadline: 1h
steps:
  - { id: slow, after: [], task: t.slow, deadline: 5m, at_deadline: warn, timeout: 1m, effect: external, reconcile: t.find }
  - { id: strict, after: [], task: t.strict, deadline: 10m, connection: "drive/x" }
  - { id: loop, after: [], task: t.loop, repeat: { every: 1m, max: 50 }, deadline: 20m }
  - { id: sign, after: [slow], signal: go, deadline: 5m }
finally: [ { id: tell, task: t.tell }, { id: more, task: t.more } ]
"#;

const HTTP: &str = r#"
workflow: http
steps:
  - { id: label, http: { method: POST, url: "https://example.com/labels/${{ input.n }}", headers: { Authorization: "Bearer ${{ secrets.SHIP }}" }, body: { n: "${{ input.n }}" }, answer: callback } }
  - { id: get, http: { method: GET, url: "https://example.com/x", answer: response } }
"#;

const CODED: &str = r#"
workflow: coded
saga: true
coded: { revision: "3" }
"#;

const FINALS: &str = r#"
workflow: finals
steps:
  - { id: work, task: t.work, on_failure: fail }
  - { id: gate, approval: { approvers: [ana], deadline: 1h, at_deadline: fail } }
finally:
  - { id: clean, task: t.clean, retry: { max_attempts: 1 } }
  - { id: nap, sleep: 10s }
output: { done: "${{ steps.work.output.x }}" }
"#;

const ANY: &str = r#"
workflow: any
steps:
  - { id: one, for_each: input.items, join: any, task: t.one, recovery: { transient: ask } }
"#;

const BESIDE: &str = r#"
workflow: beside
steps:
  - { id: brief, after: [], task: t.brief, deadline: 5s, at_deadline: warn }
  - { id: long, after: [], task: t.long, deadline: 2h, retry: { first: 1m } }
"#;

const BACK: &str = r#"
workflow: back
saga: true
steps:
  - { id: start, task: t.start, effect: idempotent, compensate: t.unstart }
  - { id: side, after: [start], task: t.side, effect: external, compensate: t.unside, reconcile: t.find }
  - { id: check, after: [start], task: t.check, on_result: [ { when: output.again, then: { go_to: start, max_visits: 3 } } ] }
  - { id: end, after: [side, check], task: t.end }
"#;

const LEFT: &str = r#"
workflow: left
steps: [ { id: kept, child: sequence, on_cancel: leave } ]
"#;

const REJECT: &str = r#"
workflow: reject
steps:
  - { id: work, task: t.work }
  - { id: ok, approval: { approvers: [ana], on_reject: { go_to: work, max_visits: 3 } } }
"#;

const OVERRIDES: &str = r#"
workflow: overrides
steps:
  - { id: kid, after: [], child: sequence, recovery: { fatal: retry }, retry: { max_attempts: 3 } }
  - { id: bad, after: [], task: t.bad, with: "${{ input.missing.key + 1 }}", recovery: { validation: retry }, retry: { max_attempts: 2 }, on_failure: warn }
  - { id: unknown, after: [], task: t.unknown, effect: external, recovery: { outcome_unknown: retry }, on_failure: warn }
"#;

const CASED: &str = r#"
workflow: cased
steps:
  - { id: lost, after: [], task: t.lost, deadline: 2m, retry: { first: 5m, max: 5m }, on_result: [ { when: 'failure.class == "lost"', then: skip }, { when: 'failure.code == "deadline"', then: complete } ] }
  - { id: probed, after: [], task: t.probed, effect: external, reconcile: t.find, timeout: 10s, deadline: 15s, on_result: [ { when: 'failure.code == "deadline"', then: complete } ] }
  - { id: broken, after: [], task: t.broken, with: "${{ input.missing.key + 1 }}", on_result: [ { when: 'failure.class == "validation"', then: skip } ] }
"#;

const STUCK: &str = r#"
workflow: stuck
steps:
  - { id: a, task: t.a, retry: { first: 1d, max: 1d, max_attempts: 50 } }
  - { id: b, task: t.b, connection: drive/acme }
"#;

//! The workflows of the simulated world. Handlers tell what they are: `t.` may be repeated, `x.` acts on the outside
//! world, `p.` looks whether it did, `u.` undoes it.

pub const INPUT: &str = r#"{"n":3,"ok":true,"items":[{"sku":"a"},{"sku":"b"},{"sku":"c"}],"account":"acme","none":[]}"#;

/// Names and weights; a weight of 0 is started only by others.
pub const DOCUMENTS: &[(&str, u64, &str)] = &[
    ("order", 6, ORDER),
    ("fan", 3, FAN),
    ("saga", 6, SAGA),
    ("people", 4, PEOPLE),
    ("waits", 4, WAITS),
    ("family", 4, FAMILY),
    ("crowd", 2, CROWD),
    ("coded", 5, CODED),
    ("unsure", 3, UNSURE),
    ("hurried", 3, HURRIED),
    ("drive", 5, DRIVE),
    ("joins", 3, JOINS),
    ("leaf", 1, LEAF),
    ("cases", 3, CASES),
];

const ORDER: &str = r#"
workflow: order
steps:
  - { id: one, task: t.one, retry: { first: 2s } }
  - { id: two, task: t.two, with: { from: "${{ steps.one.output }}" }, effect: idempotent }
  - { id: three, task: t.three, when: input.ok, timeout: 40s, retry: { max_attempts: 2 } }
output: { last: "${{ steps.three.output }}" }
"#;

const FAN: &str = r#"
workflow: fan
steps:
  - { id: each, for_each: input.items, as: item, parallel: 2, task: t.item, with: { sku: "${{ item.sku }}" } }
  - { id: loop, task: t.poll, repeat: { until: output.done, every: 10s, max: 4 } }
  - { id: book, for_each: input.items, as: item, task: x.book, effect: external, reconcile: p.book, on_failure: warn }
  - { id: after, task: t.after, with: { all: "${{ steps.each.output }}" } }
"#;

const SAGA: &str = r#"
workflow: saga
saga: true
steps:
  - { id: reserve, task: t.reserve, effect: idempotent, compensate: u.release }
  - { id: charge, task: x.charge, effect: external, reconcile: p.charge, compensate: { task: x.refund, effect: external, reconcile: p.refund }, timeout: 50s }
  - { id: note, task: x.note, effect: external, reconcile: p.note, compensate: u.unnote, after: [reserve] }
  - { id: ship, task: t.ship, after: [charge, note], retry: { max_attempts: 2 } }
finally: [ { id: tell, task: t.tell } ]
"#;

const PEOPLE: &str = r#"
workflow: people
steps:
  - { id: ask, after: [], approval: { title: Ship it?, subject: { n: "${{ input.n }}" }, approvers: ["role:manager", ana], quorum: 2, not_requester: true, deadline: 20m, at_deadline: { escalate: [boss] }, on_reject: fail } }
  - { id: maybe, after: [], approval: { approvers: [ana], deadline: 10m, at_deadline: approve, on_reject: continue } }
  - { id: work, after: [ask, maybe], task: t.work, recovery: { permission: fail, lost: hold } }
  - { id: last, approval: { approvers: [ana], on_reject: { go_to: work, max_visits: 3 } } }
"#;

const WAITS: &str = r#"
workflow: waits
steps:
  - { id: tool, after: [], task: x.tool, effect: external, reconcile: p.tool }
  - { id: sign, after: [], signal: signed, deadline: 15m, at_deadline: warn }
  - { id: both, after: [], all: [left, right], deadline: 30m, at_deadline: warn }
  - { id: either, after: [], any: [left, other], deadline: 20m }
  - { id: rest, after: [sign], sleep: 1m }
  - { id: end, after: [tool, rest, both, either], task: t.end }
"#;

const FAMILY: &str = r#"
workflow: family
steps:
  - { id: stock, after: [], child: order, with: { n: 1, ok: true } }
  - { id: loose, after: [], child: leaf, wait: false, with: { n: 2 } }
  - { id: kept, after: [], child: drive, on_cancel: leave, deadline: 20m, at_deadline: warn, with: { account: acme } }
  - { id: nobody, after: [], child: nowhere, on_failure: warn }
  - { id: grand, after: [stock], child: crowd, with: { items: [1, 2] } }
  - { id: joined, after: [loose], join_child: loose }
  - { id: end, after: [grand, joined, kept, nobody], task: t.end }
"#;

const CROWD: &str = r#"
workflow: crowd
steps:
  - { id: all, for_each: input.items, as: item, parallel: 24, child: leaf, with: { n: "${{ index }}" } }
  - { id: end, task: t.end }
"#;

const CASES: &str = r#"
workflow: cases
steps:
  - { id: first, task: t.first, on_result: [ { when: 'failure.class == "fatal"', then: skip }, { when: output.again, then: complete } ] }
  - { id: second, task: t.second }
  - { id: third, task: t.third, on_result: [ { when: output.again, then: { go_to: second, max_visits: 4 } } ] }
  - { id: fourth, task: t.fourth }
"#;

const LEAF: &str = r#"
workflow: leaf
steps:
  - { id: nap, sleep: 5s }
  - { id: work, task: t.leaf, retry: { first: 1s, max_attempts: 2 }, on_failure: warn }
"#;

const CODED: &str = r#"
workflow: coded
saga: true
coded: { revision: "3" }
"#;

const UNSURE: &str = r#"
workflow: unsure
steps:
  - { id: a, after: [], task: x.blind, effect: external }
  - { id: b, after: [], task: x.seen, effect: external, reconcile: { task: p.seen, retry: { max_attempts: 2 } }, timeout: 30s, retry: { max_attempts: 4 } }
  - { id: c, after: [], task: x.held, effect: external, recovery: { outcome_unknown: hold } }
  - { id: d, after: [], task: t.strict, requires: input.ok, verify: output != null, retry: { max_attempts: 2 } }
  - { id: e, after: [], task: t.broken, with: "${{ input.missing.key + 1 }}", on_failure: warn }
"#;

const HURRIED: &str = r#"
workflow: hurried
deadline: 15m
steps:
  - { id: slow, after: [], task: x.slow, deadline: 5m, at_deadline: warn, timeout: 1m, effect: external, reconcile: p.slow }
  - { id: loop, after: [], task: t.loop, repeat: { every: 1m, max: 5 }, deadline: 10m }
  - { id: go, after: [slow], signal: go, deadline: 5m }
finally: [ { id: tell, task: t.tell }, { id: more, task: t.more, retry: { max_attempts: 1 } } ]
"#;

const DRIVE: &str = r#"
workflow: drive
steps:
  - { id: copy, task: t.copy, connection: "drive/${{ input.account }}" }
  - { id: send, task: x.send, effect: external, reconcile: p.send, connection: "mail/acme" }
"#;

const JOINS: &str = r#"
workflow: joins
steps:
  - { id: any, after: [], for_each: input.items, join: any, task: x.any, effect: external, reconcile: p.any }
  - { id: two, after: [], for_each: input.items, join: { at_least: 2 }, task: t.two, recovery: { transient: ask } }
  - { id: gates, after: [], for_each: input.items, join: any, approval: { title: "Item?", approvers: [ana], deadline: 10m, at_deadline: warn } }
  - { id: end, after: [any, two, gates], task: t.end }
"#;

//! What is not as it must be: exact status and code for each row of the matrix, and nothing changes.

use std::io::{ErrorKind, Write as _};
use std::time::Duration;

use serde_json::{Value, json};

use crate::stage::Stage;

const HELLO: &str = "workflow: hello
input: { type: object, properties: { name: { type: string } } }
steps:
  - { id: greet, task: greet }
";

const ASKS: &str = "workflow: asks
steps:
  - id: gate
    approval: { title: Go?, approvers: [ana, ben, role:boss], not_requester: true, deadline: 1s, at_deadline: fail }
";

/// Who waits for what it sends, and what it gets.
struct Row {
    name: &'static str,
    heard: (u16, String),
    wants: (u16, &'static str),
}

fn rows(stage: &Stage) -> Vec<Row> {
    let json_type = [("Content-Type", "application/json")];
    let start = |body: &[u8]| stage.send("POST", "/v1/runs", &json_type, body).said();
    let start_with = |body: Value| stage.post("/v1/runs", body).said();
    let claim = |body: Value| stage.post("/v1/tasks/claim", body).said();
    let get = |path: &str| stage.get(path).said();
    let row = |name, heard: (u16, String), wants| Row { name, heard, wants };
    let deep = format!("{{\"workflow\":\"hello\",\"input\":{}1{}}}", "[".repeat(65), "]".repeat(65));
    let very_deep = "[".repeat(100_000);
    let large = format!("{{\"workflow\":\"hello\",\"input\":\"{}\"}}", "x".repeat(1 << 20));
    let gzip = [("Content-Type", "application/json"), ("Content-Encoding", "gzip")];
    let long_uri = format!("/v1/runs?owner_id={}", "x".repeat(17 << 10));
    let long_key = "k".repeat(256);
    let keyed = |key: &str, body: Value| stage.post_with("/v1/runs", &[("Idempotency-Key", key)], body).said();
    vec![
        row("B3 key in the query", get("/v1/runs?api_key=abide_live_x"), (400, "credentials-in-url")),
        row(
            "B2 not a key",
            stage.send("GET", "/v1/runs", &[("Authorization", "Bearer nope")], b"").said(),
            (401, "invalid-credentials"),
        ),
        row("B5 unknown run", get("/v1/runs/run_01M7JNH4EQV5N35XXT4A6NQFW5"), (404, "not-found")),
        row("B5 malformed run", get("/v1/runs/..%2F..%2Fetc"), (404, "not-found")),
        row("B6 unknown path", get("/v1/nothing"), (404, "not-found")),
        row("B6 a run named health", get("/v1/runs/health"), (404, "not-found")),
        row("B7 wrong method", stage.send("DELETE", "/v1/runs", &[], b"").said(), (405, "method-not-allowed")),
        row("B8 accept", stage.send("GET", "/v1/runs", &[("Accept", "text/csv")], b"").said(), (406, "not-acceptable")),
        row(
            "B9 no content type",
            stage.send("POST", "/v1/runs", &[], b"{\"workflow\":\"hello\"}").said(),
            (415, "unsupported-media-type"),
        ),
        row(
            "B9 form",
            stage.send("POST", "/v1/runs", &[("Content-Type", "application/x-www-form-urlencoded")], b"a=b").said(),
            (415, "unsupported-media-type"),
        ),
        row(
            "B10 gzip",
            stage.send("POST", "/v1/runs", &gzip, b"\x1f\x8b").said(),
            (415, "unsupported-content-encoding"),
        ),
        row("B11 empty", start(b""), (400, "malformed-json")),
        row("B11 truncated", start(b"{\"workflow\": \"hel"), (400, "malformed-json")),
        row("B11 trailing", start(b"{\"workflow\": \"hello\"} x"), (400, "malformed-json")),
        row("B11 NaN", start(b"{\"workflow\": \"hello\", \"input\": NaN}"), (400, "malformed-json")),
        row("B11 not UTF-8", start(b"{\"workflow\": \"\xff\"}"), (400, "malformed-json")),
        row("B11 byte order mark", start(b"\xef\xbb\xbf{\"workflow\": \"hello\"}"), (400, "malformed-json")),
        row("B12 depth 65", start(deep.as_bytes()), (400, "json-too-deep")),
        row("B12 100k brackets", start(very_deep.as_bytes()), (400, "json-too-deep")),
        row("B13 twice", start(b"{\"workflow\":\"hello\",\"workflow\":\"other\"}"), (400, "duplicate-key")),
        row("B14 too large", start(large.as_bytes()), (413, "payload-too-large")),
        row("B16 long address", get(&long_uri), (414, "uri-too-long")),
        row("B18 unknown field", start_with(json!({ "workflow": "hello", "wokflow": 1 })), (422, "validation-failed")),
        row("B18 wrong type", start_with(json!({ "workflow": 7 })), (422, "validation-failed")),
        row("B18 missing", start_with(json!({ "input": {} })), (422, "validation-failed")),
        row("B19 negative", start_with(json!({ "workflow": "hello", "version": -1 })), (422, "validation-failed")),
        row(
            "B19 huge",
            start(b"{\"workflow\":\"hello\",\"priority\":99999999999999999999}"),
            (422, "validation-failed"),
        ),
        row("B19 1e400", start(b"{\"workflow\":\"hello\",\"priority\":1e400}"), (422, "validation-failed")),
        row("B20 NUL in a name", start_with(json!({ "workflow": "hel\u{0}lo" })), (422, "validation-failed")),
        row(
            "B20 bidi in a name",
            start_with(json!({ "workflow": "hello", "unique": "a\u{202e}b" })),
            (422, "validation-failed"),
        ),
        row("B20 lone surrogate", start(b"{\"workflow\":\"\\ud800\"}"), (422, "validation-failed")),
        row(
            "B21 NUL in a payload",
            start_with(json!({ "workflow": "hello", "input": { "name": "a\u{0}\u{1f600}" } })),
            (201, ""),
        ),
        row(
            "B22 no zone",
            start_with(json!({ "workflow": "hello", "start_at": "2030-01-01T00:00:00" })),
            (422, "validation-failed"),
        ),
        row(
            "B22 year 99999",
            start_with(json!({ "workflow": "hello", "start_at": "99999-01-01T00:00:00Z" })),
            (422, "validation-failed"),
        ),
        row("B23 limit 0", get("/v1/runs?limit=0"), (422, "validation-failed")),
        row("B23 limit -1", get("/v1/runs?limit=-1"), (422, "validation-failed")),
        row("B23 limit 501", get("/v1/runs?limit=501"), (422, "validation-failed")),
        row("B23 unknown state", get("/v1/runs?state=sleeping"), (422, "validation-failed")),
        row("B23 unknown parameter", get("/v1/runs?sort=asc"), (422, "validation-failed")),
        row("B24 cursor", get("/v1/runs?cursor=zzz"), (400, "invalid-cursor")),
        row(
            "B26 cycle",
            stage
                .apply(
                    "workflow: bad\nsteps:\n  - { id: a, task: x, after: [b] }\n  - { id: b, task: x, after: [a] }\n",
                )
                .said(),
            (422, "definition-invalid"),
        ),
        row("B27 bomb", stage.apply(&bomb()).said(), (422, "definition-too-complex")),
        row(
            "B28 large document",
            stage.apply(&format!("workflow: big\n# {}\n", "x".repeat(256 << 10))).said(),
            (413, "payload-too-large"),
        ),
        row(
            "B30 expression",
            stage
                .apply(&format!("workflow: e\nsteps:\n  - {{ id: a, task: x, when: \"1{}\" }}\n", "+1".repeat(20_000)))
                .said(),
            (422, "expression-too-complex"),
        ),
        row(
            "B31 pattern",
            stage
                .apply("workflow: e\nsteps:\n  - { id: a, task: x, when: \"'a'.matches('((a{100}){100}){100}')\" }\n")
                .said(),
            (422, "expression-too-complex"),
        ),
        row("B33 file", push(stage, "file:///etc/passwd"), (422, "definition-invalid")),
        row("B33 loopback", push(stage, "https://127.0.0.1/x"), (422, "target-not-allowed")),
        row("B33 short loopback", push(stage, "https://127.1/x"), (422, "target-not-allowed")),
        row("B33 hexadecimal", push(stage, "https://0x7f000001/x"), (422, "target-not-allowed")),
        row("B33 v6", push(stage, "https://[::1]/x"), (422, "target-not-allowed")),
        row("B33 mapped", push(stage, "https://[::ffff:10.0.0.1]/x"), (422, "target-not-allowed")),
        row("B33 metadata", push(stage, "https://169.254.169.254/latest"), (422, "target-not-allowed")),
        row("B33 shared", push(stage, "https://100.64.0.1/x"), (422, "target-not-allowed")),
        row("B33 userinfo", push(stage, "https://a@example.com/x"), (422, "target-not-allowed")),
        row("B33 port", push(stage, "https://example.com:22/x"), (422, "target-not-allowed")),
        row("B35 unknown workflow", start_with(json!({ "workflow": "nobody" })), (404, "workflow-not-found")),
        row("B36 input", start_with(json!({ "workflow": "hello", "input": { "name": 7 } })), (422, "input-invalid")),
        row("B37 first", keyed("one", json!({ "workflow": "hello" })), (201, "")),
        row("B37 again", keyed("one", json!({ "workflow": "hello" })), (200, "")),
        row(
            "B38 other body",
            keyed("one", json!({ "workflow": "hello", "input": {} })),
            (422, "idempotency-key-reused"),
        ),
        row("B40 long key", keyed(&long_key, json!({ "workflow": "hello" })), (400, "invalid-idempotency-key")),
        row("B41 id first", start_with(json!({ "workflow": "hello", "run_id": "run_mine" })), (201, "")),
        row("B41 id used", start_with(json!({ "workflow": "hello", "run_id": "run_mine" })), (409, "run-exists")),
        row("B51 no queue", claim(json!({ "worker": "w", "queues": [] })), (422, "validation-failed")),
        row(
            "B51 wait 61 s",
            claim(json!({ "worker": "w", "queues": ["q"], "wait_ms": 61_000 })),
            (422, "validation-failed"),
        ),
        row(
            "B51 1001 tasks",
            claim(json!({ "worker": "w", "queues": ["q"], "max": 1_001 })),
            (422, "validation-failed"),
        ),
        row(
            "S4 the engine's own queue",
            claim(json!({ "worker": "w", "queues": ["abide:http"], "wait_ms": 0 })),
            (422, "validation-failed"),
        ),
        row(
            "S1 the engine's own namespace",
            stage.post("/v1/keys", json!({ "name": "x", "role": "viewer", "namespace": "*" })).said(),
            (422, "validation-failed"),
        ),
        row("B52 nothing", claim(json!({ "worker": "w", "queues": ["nothing-here"], "wait_ms": 0 })), (204, "")),
        row("B58 unknown callback", stage.post("/v1/callbacks/nonsense", json!({})).said(), (404, "not-found")),
        row(
            "B60 host",
            stage.raw(b"GET /v1/runs HTTP/1.1\r\nHost: evil.example\r\n\r\n").said(),
            (421, "misdirected-request"),
        ),
        row(
            "B60 origin",
            stage.send("GET", "/v1/runs", &[("Origin", "https://evil.example")], b"").said(),
            (403, "cross-site-request"),
        ),
        row(
            "B59 cross-site",
            stage
                .send(
                    "POST",
                    "/v1/runs",
                    &[("Sec-Fetch-Site", "cross-site"), ("Content-Type", "application/json")],
                    b"{}",
                )
                .said(),
            (403, "cross-site-request"),
        ),
        row(
            "B47 unknown link",
            stage
                .send(
                    "POST",
                    "/links/nonsense",
                    &[("Content-Type", "application/x-www-form-urlencoded")],
                    b"decision=approve",
                )
                .said(),
            (404, "not-found"),
        ),
    ]
}

fn bomb() -> String {
    let mut text = String::from("workflow: bomb\na0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for n in 1..12 {
        let before = vec![format!("*a{}", n - 1); 9].join(", ");
        text.push_str(&format!("a{n}: &a{n} [{before}]\n"));
    }
    text
}

fn push(stage: &Stage, url: &str) -> (u16, String) {
    stage.apply(&format!("workflow: push\nsteps:\n  - id: a\n    http: {{ method: POST, url: \"{url}\" }}\n")).said()
}

#[test]
fn every_bad_input_has_its_status_and_its_code() {
    let stage = Stage::new();
    assert_eq!(stage.apply(HELLO).status, 201);
    let wrong: Vec<String> = rows(&stage)
        .into_iter()
        .filter(|row| (row.heard.0, row.heard.1.as_str()) != row.wants)
        .map(|row| format!("{}: {:?}, not {:?}", row.name, row.heard, row.wants))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // What was refused has left nothing: only the four that were accepted are there.
    assert_eq!(stage.get("/v1/runs?limit=500").json()["runs"].as_array().map(Vec::len), Some(3));
}

#[test]
fn the_length_of_a_body_is_said_once() {
    let stage = Stage::new();
    for head in ["Content-Length: 2\r\nTransfer-Encoding: chunked", "Content-Length: 2\r\nContent-Length: 3"] {
        let bytes = format!(
            "POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{head}\r\n\r\n{{}}"
        );
        assert_eq!(stage.raw(bytes.as_bytes()).status, 400, "{head}");
    }
    let headers = format!("GET /v1/runs HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "y".repeat(70 << 10));
    assert_eq!(stage.raw(headers.as_bytes()).status, 431);
}

#[test]
fn headers_that_never_end_are_cut_off() {
    let stage = Stage::new();
    let mut stream = stage.connect();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: loc").expect("bytes");
    let began = std::time::Instant::now();
    let mut rest = Vec::new();
    let read = std::io::Read::read_to_end(&mut stream, &mut rest).map_err(|error| error.kind());
    let took = began.elapsed();
    assert!(!matches!(read, Err(ErrorKind::WouldBlock | ErrorKind::TimedOut)), "it is open after {took:?}");
    assert!(took > Duration::from_secs(8), "{took:?}");
    // Others were not kept waiting.
    assert_eq!(stage.get("/healthz").status, 200);
}

#[test]
fn what_cannot_be_decided_says_why() {
    let stage = Stage::new();
    assert_eq!(stage.apply(ASKS).status, 201);
    assert_eq!(stage.apply(HELLO).status, 201);
    let hello = stage.start("hello", json!({}));
    let said = |run: &str, what: &str, body: Value| stage.post(&format!("/v1/runs/{run}/{what}"), body);
    let refused = said(&hello, "approve", json!({ "decision_by": "ana" }));
    assert_eq!(refused.said(), (409, "not-waiting".into()), "B43");
    assert_eq!(refused.json()["current_state"], "queued");
    assert!(refused.json()["allowed"].as_array().is_some_and(|allowed| allowed.iter().any(|to| to == "running")));
    assert_eq!(said(&hello, "rerun", json!({})).said(), (409, "run-not-terminal".into()), "B49");
    assert_eq!(said(&hello, "cancel", json!({ "reason": "enough" })).status, 200);
    assert_eq!(said(&hello, "cancel", json!({ "reason": "again" })).said(), (409, "run-terminal".into()), "B42");
    assert_eq!(said(&hello, "signals/x", json!({})).said(), (409, "run-terminal".into()), "B50");
    assert_eq!(
        said(&hello, "rerun", json!({ "from_step": "nowhere" })).said(),
        (422, "validation-failed".into()),
        "B49"
    );
    let old = stage.post_with(&format!("/v1/runs/{hello}/pin"), &[("If-Match", "\"1\"")], json!({}));
    assert_eq!(old.said(), (412, "version-mismatch".into()), "B25");

    let gate = stage.start("asks", json!({}));
    let eve = said(&gate, "approve", json!({ "decision_by": "eve" }));
    assert_eq!(eve.status, 200, "without keys everybody is in every group: {}", eve.text());
    assert_eq!(said(&gate, "approve", json!({ "decision_by": "eve" })).status, 200, "B44 alike");
    assert_eq!(said(&gate, "approve", json!({ "decision_by": "ben" })).said().0, 409, "B44 another");
    let own = stage.post("/v1/runs", json!({ "workflow": "asks" })).json();
    let own = own["run_id"].as_str().expect("an id");
    assert_eq!(
        said(own, "approve", json!({ "decision_by": "anonymous" })).said(),
        (403, "self-approval-forbidden".into()),
        "B45"
    );
    stage.until(own, "failed");
    assert_eq!(said(own, "approve", json!({ "decision_by": "ana" })).said().0, 409, "B45 late");
}

#[test]
fn leases_are_judged_strictly() {
    let stage = Stage::new();
    assert_eq!(stage.apply(HELLO).status, 201);
    let run = stage.start("hello", json!({}));
    let task = stage.claim("w1");
    let stale = json!({ "task_id": task["task_id"], "epoch": 99 });
    assert_eq!(stage.report(&stale, "heartbeat", json!({})).said(), (409, "lease-lost".into()), "B53");
    let large = json!({ "output": "x".repeat(1 << 20) });
    let other = stage.start("hello", json!({}));
    let too_large = stage.claim("w1");
    let path = format!("/v1/tasks/{}/complete", too_large["task_id"].as_str().expect("a task"));
    let refused = stage.post_with(&path, &[("Abide-Epoch", "1")], large);
    assert_eq!(refused.said(), (413, "payload-too-large".into()), "B56");
    let ended = stage.until(&other, "waiting_on_operator");
    assert_eq!(ended["blocking_reason"]["type"], "correction_required", "B56: the attempt is over: {ended}");
    assert_eq!(stage.state(&run), "running", "the lease of another task is kept");
    assert_eq!(stage.report(&task, "complete", json!({ "output": 1 })).status, 200);
    assert_eq!(stage.report(&task, "complete", json!({ "output": 1 })).status, 200, "B55 alike");
    assert_eq!(stage.report(&task, "complete", json!({ "output": 2 })).said().0, 409, "B55 otherwise");
    assert_eq!(stage.get(&format!("/v1/runs/{run}/steps/greet")).json()["output"], 1);
}

#[test]
fn the_same_key_at_the_same_time_is_asked_to_wait_or_answered_alike() {
    let stage = Stage::new();
    assert_eq!(stage.apply(HELLO).status, 201);
    let stage = &stage;
    let heard: Vec<_> = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..16)
            .map(|_| {
                scope.spawn(|| {
                    stage.post_with("/v1/runs", &[("Idempotency-Key", "k")], json!({ "workflow": "hello" })).said()
                })
            })
            .collect();
        asking.into_iter().map(|one| one.join().expect("an answer")).collect()
    });
    let made = heard.iter().filter(|(status, _)| *status == 201).count();
    let others = heard
        .iter()
        .all(|(status, code)| matches!((status, code.as_str()), (200 | 201, "") | (409, "idempotency-in-progress")));
    assert!(made == 1 && others, "B39: {heard:?}");
    assert_eq!(stage.get("/v1/runs").json()["runs"].as_array().map(Vec::len), Some(1));
}

#[test]
fn callbacks_are_believed_when_they_are_signed() {
    // The secret is the 24 letters below, in base64.
    let stage = Stage::with(&["--callback-secret", "whsec_YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4"]);
    stage.apply("workflow: call\nsteps:\n  - { id: a, task: work }\n");
    stage.start("call", json!({}));
    let task = stage.claim("w");
    let url =
        stage.report(&task, "callbacks", json!({ "name": "scan" })).json()["url"].as_str().expect("a url").to_owned();
    let path = url[url.find("/v1/callbacks").expect("its path")..].to_owned();
    assert_eq!(stage.post(&path, json!({})).said(), (401, "signature-invalid".into()), "B57");
    let signed = |id: &str, timestamp: i64| {
        let secret: abide_engine::push::SigningSecret =
            "whsec_YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4".parse().expect("a secret");
        let signature = abide_engine::push::webhook::sign(&[secret], id, timestamp, b"{}");
        let timestamp = timestamp.to_string();
        let headers =
            [("webhook-id", id), ("webhook-timestamp", timestamp.as_str()), ("webhook-signature", signature.as_str())];
        stage.post_with(&path, &headers, json!({})).said()
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs() as i64;
    assert_eq!(signed("msg1", now - 400), (401, "signature-expired".into()), "B57");
    assert_eq!(signed("msg.1", now).0, 400, "B58");
    assert_eq!(signed("msg1", now), (200, String::new()));
}

#[test]
fn a_flood_is_slowed_down_and_workers_are_not() {
    let stage = Stage::with(&["--rate-limit", "20"]);
    stage.apply(HELLO);
    let run = stage.start("hello", json!({}));
    let task = stage.claim("w");
    let flood: Vec<_> = (0..60).map(|_| stage.get(&format!("/v1/runs/{run}")).said()).collect();
    let slowed = flood.iter().filter(|said| **said == (429, "rate-limited".into())).count();
    assert!(slowed > 0 && slowed < 60, "B63: {flood:?}");
    for _ in 0..60 {
        assert_eq!(stage.report(&task, "heartbeat", json!({})).status, 200, "a lease is not lost to a flood");
    }
}

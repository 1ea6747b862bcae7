//! What is sent, and what each answer does to the run.

use abide_core::contract::RunState;
use abide_engine::push::PushOptions;
use serde_json::{Value, json};

use crate::World;
use crate::stub::{Answer, ok};

const GET: &str = "http: { url: '{stub}/get' }, retry: { max_attempts: 1 }";
const POST: &str = "http: { method: POST, url: '{stub}/post', body: { n: '${{ input.n }}' } }";

#[tokio::test]
async fn a_request_carries_its_run_its_key_and_its_trace_and_its_answer_is_the_output() {
    let world = World::new().await;
    let _push = world.push(world.options());
    let run = world.start(POST).await;
    world.until(&run, RunState::Succeeded).await;
    assert_eq!(world.output(&run).await, json!({ "ok": true }));
    let seen = world.stub.saw(1).await.remove(0);
    assert_eq!((seen.line.as_str(), seen.body.as_slice()), ("POST /post HTTP/1.1", br#"{"n":7}"#.as_slice()));
    assert_eq!((seen.header("abide-run-id"), seen.header("abide-step-id")), (run.as_str(), "a"));
    assert_eq!((seen.header("content-type"), seen.header("idempotency-key").len()), ("application/json", 64));
    let trace: Vec<&str> = seen.header("traceparent").split('-').collect();
    assert_eq!(trace.iter().map(|part| part.len()).collect::<Vec<_>>(), [2, 32, 16, 2]);
    assert!(seen.headers.keys().all(|name| !name.starts_with("webhook-") && name != "abide-callback-url"));
    world.healthy().await;
}

#[tokio::test]
async fn every_answer_has_its_class_and_the_rules_do_the_rest() {
    use RunState::{Failed, RetryScheduled, WaitingOnAuth, WaitingOnOperator};
    let table = [
        (GET, 400, "", "validation", WaitingOnOperator),
        (GET, 401, "", "auth", WaitingOnAuth),
        (GET, 403, "", "permission", WaitingOnOperator),
        (GET, 404, "", "fatal", Failed),
        (GET, 422, "", "validation", WaitingOnOperator),
        (GET, 429, "", "rate_limited", RetryScheduled),
        (GET, 503, "retry-after: 60\r\n", "rate_limited", RetryScheduled),
        (GET, 500, "", "transient", Failed),
        (POST, 500, "", "outcome_unknown", WaitingOnOperator),
        (POST, 408, "", "outcome_unknown", WaitingOnOperator),
        (POST, 404, "", "fatal", Failed),
    ];
    let world = World::new().await;
    let _push = world.push(world.options());
    for (step, status, headers, class, state) in table {
        world.stub.answers([Answer::Says(status, "no", headers)]);
        let run = world.start(step).await;
        world.until(&run, state).await;
        let failure = world.failure(&run).await;
        assert_eq!((&failure["class"], &failure["code"]), (&json!(class), &json!(status.to_string())), "{failure}");
    }
    world.stub.answers([Answer::Says(409, "no", "")]);
    let run = world.start(GET).await;
    assert_eq!(world.failure(&run).await["class"], json!("conflict"));
}

#[tokio::test]
async fn a_refused_connection_was_not_sent_and_silence_after_sending_is_unknown() {
    let world = World::new().await;
    let _push = world.push(PushOptions { allow: vec!["127.0.0.1".into()], ..world.options() });
    let run = world.start("http: { method: POST, url: 'http://127.0.0.1:1/' }, retry: { max_attempts: 1 }").await;
    let failure = world.failure(&run).await;
    assert_eq!((&failure["class"], &failure["code"]), (&json!("transient"), &json!("not_sent")), "{failure}");
    for (answer, timeout) in [(Answer::Hangs, "300ms"), (Answer::Closes, "5s")] {
        world.stub.answers([answer]);
        let run = world.start(&format!("{POST}, timeout: {timeout}")).await;
        let failure = world.failure(&run).await;
        assert_eq!(
            (&failure["class"], &failure["code"]),
            (&json!("outcome_unknown"), &json!("no_answer")),
            "{failure}"
        );
        let run = world.start(&format!("{GET}, timeout: {timeout}")).await;
        assert_eq!(world.failure(&run).await["class"], json!("transient"));
    }
}

#[tokio::test]
async fn every_retry_has_the_same_key() {
    let world = World::new().await;
    world.stub.answers([Answer::Says(500, "", ""), Answer::Closes, ok()]);
    let _push = world.push(world.options());
    let step = "http: { method: PUT, url: '{stub}/' }, retry: { first: 10ms, max_attempts: 5 }";
    let run = world.start(step).await;
    world.until(&run, RunState::Succeeded).await;
    let seen = world.stub.seen();
    assert_eq!(seen.len(), 3);
    assert!(seen.iter().all(|one| one.header("idempotency-key") == seen[0].header("idempotency-key")));
    assert_ne!(seen[0].header("traceparent"), seen[1].header("traceparent"), "but is a span of its own");
}

#[tokio::test]
async fn a_redirect_to_a_metadata_address_is_not_followed() {
    let world = World::new().await;
    let _push = world.push(world.options());
    for (location, code) in [
        ("location: http://169.254.169.254/latest/meta-data\r\n", "target_not_allowed"),
        ("location: /elsewhere\r\n", "redirect"),
    ] {
        world.stub.answers([Answer::Says(302, "", location)]);
        let run = world.start(GET).await;
        world.until(&run, RunState::Failed).await;
        let failure = world.failure(&run).await;
        assert_eq!((&failure["class"], &failure["code"]), (&json!("fatal"), &json!(code)), "{failure}");
    }
    assert_eq!(world.stub.seen().len(), 2);
}

#[tokio::test]
async fn answers_that_are_not_what_they_should_be_harm_nobody() {
    let deep = format!("{}1{}", "[".repeat(5_000), "]".repeat(5_000));
    let large = format!("HTTP/1.1 200 OK\r\ncontent-length: 2000000\r\n\r\n{}", "x".repeat(2_000_000));
    let quotes = "\"".repeat(900_000);
    let answer = |body: &str| format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes();
    let endless = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x-a: b\r\n".repeat(5_000));
    let table = [
        (b"nonsense\r\n\r\n".to_vec(), Some("no_answer")),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf".to_vec(), Some("no_answer")),
        (large.into_bytes(), Some("answer_too_large")),
        (answer(&quotes), Some("answer_refused")),
        (endless.into_bytes(), Some("no_answer")),
        (answer(&deep), None),
        (answer("{\"a\":"), None),
    ];
    let world = World::new().await;
    let _push = world.push(world.options());
    for (bytes, code) in table {
        world.stub.answers([Answer::Bytes(bytes)]);
        let run = world.start(GET).await;
        match code {
            Some(code) => assert_eq!(world.failure(&run).await["code"], json!(code)),
            None => {
                world.until(&run, RunState::Succeeded).await;
                assert!(matches!(world.output(&run).await["text"], Value::String(_)));
            }
        }
    }
    world.healthy().await;
}

#[tokio::test]
async fn both_secrets_of_a_rotation_sign() {
    let secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_bm90IGEgcmVhbCBzZWNyZXQsIGp1c3QgZm9yIHRlc3Rz"];
    let world = World::new().await;
    let signing = secrets.iter().map(|text| text.parse().expect("a secret")).collect();
    let _push = world.push(PushOptions { signing, ..world.options() });
    let run = world.start(POST).await;
    world.until(&run, RunState::Succeeded).await;
    let seen = world.stub.seen().remove(0);
    let (id, timestamp) = (seen.header("webhook-id"), seen.header("webhook-timestamp").parse().expect("seconds"));
    assert_eq!(id, format!("msg_{}", seen.header("idempotency-key")));
    let theirs = secrets.map(|text| {
        let webhook = standardwebhooks::Webhook::new(text).expect("a secret");
        webhook.sign(id, timestamp, &seen.body).expect("a signature")
    });
    assert_eq!(seen.header("webhook-signature"), theirs.join(" "));
}

#[tokio::test]
async fn a_target_that_does_not_prove_who_it_is_gets_nothing() {
    let world = World::new().await;
    let _push = world.push(world.options());
    let url = format!("https://127.0.0.1:{}/", world.stub.port);
    let step = format!("http: {{ method: POST, url: '{url}' }}, timeout: 400ms, retry: {{ max_attempts: 1 }}");
    let run = world.start(&step).await;
    let failure = world.failure(&run).await;
    assert_eq!((&failure["class"], &failure["code"]), (&json!("transient"), &json!("not_sent")), "{failure}");
    assert!(world.stub.seen().is_empty());
}

#[tokio::test]
async fn an_answer_is_the_output_byte_for_byte() {
    let world = World::new().await;
    let _push = world.push(world.options());
    let rows = [
        r#""half an emoji \ud83d""#,
        r#"{"key \ud83d":[1.50 , 18446744073709551616],"a":1,"a":2}"#,
        "1e400",
        "-0",
        r#""nul \u0000""#,
    ];
    for answer in rows {
        world.stub.answers([Answer::Says(200, answer, "")]);
        let run = world.start(GET).await;
        world.until(&run, RunState::Succeeded).await;
        let output = world.engine.payload(&run, "a/output").await.expect("a read");
        assert_eq!(output.as_deref(), Some(answer));
    }
}

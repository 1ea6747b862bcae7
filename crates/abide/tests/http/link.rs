//! The page of a one-time link: it needs no script, keeps what was typed, and shows what was decided elsewhere.

use serde_json::{Value, json};

use crate::stage::{Heard, Stage};

const FORMS: [(&str, &str); 2] =
    [("Content-Type", "application/x-www-form-urlencoded"), ("Accept", "text/html,application/xhtml+xml")];

const GATE: &str = "workflow: gate
steps:
  - id: g
    approval:
      title: \"Pay <b>this</b>?\"
      subject: { amount: 12, to: \"<script>x</script>\" }
      approvers: [ana, ben]
      deadline: 2h
      at_deadline: fail
      form:
        type: object
        required: [account, limit]
        properties:
          account: { type: string, pattern: \"^[A-Z]{2}\", title: Account }
          limit: { type: integer, minimum: 1 }
          urgent: { type: boolean }
";

fn staged() -> (Stage, String) {
    let stage = Stage::new();
    assert_eq!(stage.apply(GATE).status, 201);
    let run = stage.start("gate", json!({}));
    (stage, run)
}

fn link(stage: &Stage, run: &str, whom: &str) -> String {
    let made = stage.post(&format!("/v1/runs/{run}/approvals/g/links"), json!({ "for": whom }));
    let url = made.json()["url"].as_str().expect("a url").to_owned();
    url[url.find("/links").expect("its path")..].to_owned()
}

fn send(stage: &Stage, path: &str, body: &str) -> Heard {
    stage.send("POST", path, &FORMS, body.as_bytes())
}

#[test]
fn the_page_says_everything_that_a_decision_needs() {
    let (stage, run) = staged();
    let page = stage.get(&link(&stage, &run, "ana"));
    let text = page.text();
    for part in [
        "Pay &lt;b&gt;this&lt;/b&gt;?",
        "ana, ben",
        "then it fails",
        "name=\"form/account\"",
        "name=\"form/limit\"",
        &run,
    ] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    let digest = stage.get("/v1/approvals").json()["approvals"][0]["subject_digest"].clone();
    assert!(text.contains(digest.as_str().expect("a digest")));
    assert!(!text.contains("<script"), "{text}");
    let policy = page.header("content-security-policy").expect("a policy");
    assert!(policy.contains("style-src 'self'") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(page.header("cache-control"), Some("no-store"));
}

#[test]
fn a_refused_form_keeps_what_was_typed_and_says_why_at_the_field() {
    let (stage, run) = staged();
    let path = link(&stage, &run, "ana");
    let page = send(&stage, &path, "decision=approve&form%2Faccount=no%20%3Cb%3E&form%2Flimit=&comment=hm%26");
    assert_eq!(page.status, 422);
    let text = page.text();
    assert!(text.contains("value=\"no &lt;b&gt;\"") && text.contains(">\nhm&amp;<"), "{text}");
    assert!(text.contains("id=\"field-limit-fault\"") && text.contains("This is needed."), "{text}");
    // What the schema alone can tell stands at its field, too.
    let page = send(&stage, &path, "decision=approve&form%2Faccount=no&form%2Flimit=0");
    let text = page.text();
    assert_eq!(page.status, 422);
    assert!(text.contains("id=\"field-account-fault\"") && text.contains("id=\"field-limit-fault\""), "{text}");
    assert_eq!(stage.state(&run), "waiting_on_approval", "nothing was decided, and the link still works");

    let done =
        send(&stage, &path, "decision=approve&form%2Faccount=NO1&form%2Flimit=7&form%2Furgent=true&comment=fine");
    assert_eq!(done.status, 200, "{}", done.text());
    assert!(done.text().contains("Approved"));
    let output: Value = stage.get(&format!("/v1/runs/{run}/steps/g")).json()["output"].clone();
    assert_eq!(output["form"], json!({ "account": "NO1", "limit": 7, "urgent": true }));
    assert_eq!((&output["by"], &output["comment"]), (&json!("ana"), &json!("fine")));
}

#[test]
fn a_no_needs_no_form() {
    let (stage, run) = staged();
    let done = send(&stage, &link(&stage, &run, "ben"), "decision=reject&form%2Faccount=&form%2Flimit=&comment=");
    assert_eq!(done.status, 200, "{}", done.text());
    assert!(done.text().contains("Rejected"));
    assert_eq!(stage.state(&run), "failed");
}

#[test]
fn what_was_decided_elsewhere_is_shown() {
    let (stage, run) = staged();
    let (ana, ben) = (link(&stage, &run, "ana"), link(&stage, &run, "ben"));
    let form = json!({ "account": "NO1", "limit": 1 });
    let yes = stage
        .post(&format!("/v1/runs/{run}/approve"), json!({ "decision_by": "ben", "comment": "took it", "form": form }));
    assert_eq!(yes.status, 200, "{}", yes.text());
    let page = stage.get(&ana);
    assert_eq!(page.status, 200, "not an error");
    assert!(page.text().contains("ben") && page.text().contains("approved") && page.text().contains("took it"));
    let late = send(&stage, &ana, "decision=reject");
    assert!(late.text().contains("ben") && late.text().contains("approved"), "{}", late.text());
    assert_eq!(late.header("content-type"), Some("text/html; charset=utf-8"));
    // A program hears the same as a problem.
    let plain = stage.send("POST", &ben, &FORMS[..1], b"decision=reject");
    assert_eq!(plain.said(), (409, "already-decided".into()));
    let gone = stage.get("/links/nonsense");
    assert_eq!((gone.status, gone.header("content-type")), (404, Some("text/html; charset=utf-8")));
}

#[test]
fn a_form_of_our_own_page_is_taken_and_one_of_another_is_not() {
    let (stage, run) = staged();
    let path = link(&stage, &run, "ana");
    // A page that tells no referrer has no origin to tell; the browser says whose form it is.
    let from = |site: &str, origin: &str| {
        let headers: Vec<_> = FORMS.iter().copied().chain([("Origin", origin), ("Sec-Fetch-Site", site)]).collect();
        stage.send("POST", &path, &headers, b"decision=nothing").status
    };
    assert_eq!(from("same-origin", "null"), 422);
    assert_eq!(from("cross-site", "null"), 403);
    assert_eq!(from("cross-site", "https://evil.example"), 403);
}

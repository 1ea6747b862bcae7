//! A worker over HTTP: it offers two handlers, and the server does the rest.
//!
//! `abide dev` or `abide serve` in one terminal, `cargo run -p abide-client --example worker` in another.

use abide_client::{Client, Failure, Work, Worker};
use serde::Deserialize;
use serde_json::{Value, json};

const GREETING: &str = "
workflow: greeting
steps:
  - id: choose
    task: greetings.choose
  - id: send
    task: greetings.send
    effect: external
    with: { text: '${{ steps.choose.output.text }}' }
output: ${{ steps.send.output }}
";

#[derive(Deserialize)]
struct Person {
    name: String,
}

async fn choose(work: Work) -> Result<Value, Failure> {
    // Another input than this is class `validation`: a person is asked to correct it.
    let person: Person = work.input()?;
    Ok(json!({ "text": format!("Hello, {}!", person.name) }))
}

async fn send(work: Work) -> Result<Value, Failure> {
    let input: Value = work.input()?;
    for part in 1..=3 {
        work.check()?;
        work.progress(part, Some(3), Some("sending"));
    }
    // The key is the same for every attempt: whoever is called can tell a repetition from a second wish.
    let message_id = format!("msg_{}", &work.idempotency_key()[..8]);
    // From here on nothing is sent again, even if this worker dies before it answers.
    work.receipt(Some(&message_id), Some(&json!({ "message_id": message_id, "text": input["text"] }))).await?;
    work.created("message", &message_id, None);
    Ok(json!({ "message_id": message_id, "text": input["text"] }))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = std::env::var("ABIDE_SERVER").unwrap_or_else(|_| "http://127.0.0.1:7070".into());
    let client = Client::new(&server)?;
    client.apply("greeting", GREETING).await?;
    let worker =
        Worker::new(client.clone(), "greeter").handle("greetings.choose", choose).handle("greetings.send", send);
    let stop = worker.stopper();
    let working = tokio::spawn(worker.run());

    let run = client.start("greeting", &json!({ "name": "Ana" })).await?;
    let ended = client.ended(&run.run_id).await?;
    println!("{}", ended.summary);
    println!("{}", client.output::<Value>(&run.run_id).await?);

    stop.now();
    working.await??;
    Ok(())
}

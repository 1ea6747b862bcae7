//! A durable function: it searches beside each other, asks a person, sleeps, and writes a report once. Kill it at any
//! moment and start it again: it goes on where it was, and nothing is done twice.
//!
//! `abide dev` or `abide serve` in one terminal, `cargo run -p abide-client --example research` in another; then
//! `abide inbox` and `abide approve RUN --by ana@example.com`.

use std::time::Duration;

use abide_client::{Approval, Client, Ctx, Failure, StepOptions, Worker};
use serde::Deserialize;
use serde_json::{Value, json};

const RESEARCH: &str = "
workflow: research
coded: { revision: '1' }
";

#[derive(Deserialize)]
struct Question {
    topic: String,
}

async fn research(ctx: Ctx, question: Question) -> Result<Value, Failure> {
    let plan: Vec<String> = ctx
        .step("plan", || async {
            Ok(["papers", "news", "talks"].map(|kind| format!("{kind} on {}", question.topic)).into())
        })
        .await?;

    // Beside each other: a repeated name needs a key, because these calls have no order.
    let found: Vec<Value> = ctx
        .all(plan.iter().enumerate().map(|(n, query)| {
            let (ctx, total) = (ctx.keyed(n.to_string()), plan.len() as u64);
            async move {
                let hits =
                    ctx.step_with("search", StepOptions::new().max_attempts(5), |_| search(query.clone())).await?;
                ctx.progress(n as u64 + 1, Some(total), Some(query));
                Ok(hits)
            }
        }))
        .await?;

    let approval = Approval::new(format!("Publish what was found on {}?", question.topic))
        .subject(&found)
        .approver("ana@example.com");
    let decision = ctx.approve("editor", approval).await?;
    ctx.sleep("cool-off", Duration::from_millis(200)).await?;

    // It is looked for by its key first, so that a crash between making and noting it does no harm.
    let page: String = ctx
        .effect("publish")
        .find(|_key| async { Ok(None) })
        .create(|key| async move { Ok(format!("https://example.com/reports/{}", &key[..8])) })
        .await?;
    Ok(json!({ "page": page, "by": decision.by, "sources": found.len() }))
}

async fn search(query: String) -> Result<Value, Failure> {
    Ok(json!({ "query": query, "hits": query.len() }))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = std::env::var("ABIDE_SERVER").unwrap_or_else(|_| "http://127.0.0.1:7070".into());
    let client = Client::new(&server)?;
    client.apply("research", RESEARCH).await?;
    let worker = Worker::new(client.clone(), "researcher").workflow("research", "1", research);
    let stop = worker.stopper();
    let working = tokio::spawn(worker.run());

    let run = client.start("research", &json!({ "topic": "durable execution" })).await?;
    println!("{}", run.run_id);
    let ended = client.ended(&run.run_id).await?;
    println!("{}", ended.summary);
    println!("{}", client.output::<Value>(&run.run_id).await?);

    stop.now();
    working.await??;
    Ok(())
}

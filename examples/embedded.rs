//! Abide inside a program, without a server: an order is charged, waits for Ana, is shipped, and can say at every moment
//! what it is doing and why.
//!
//! `cargo run -p abide-engine --example embedded`

use std::path::Path;

use abide_engine::{Engine, Work};
use serde_json::{Value, json};

const ORDER: &str = "
workflow: order
steps:
  - id: charge
    task: payments.charge
    with: { amount: '${{ input.amount }}' }
    effect: external
    reconcile: payments.find
  - id: manager
    approval: { title: 'Ship order ${{ input.id }}?', approvers: [ana@example.com], deadline: 2h, at_deadline: fail }
  - id: ship
    task: shop.ship
    with: { charge: '${{ steps.charge.output.charge }}' }
output: { label: '${{ steps.ship.output.label }}' }
";

async fn charge(work: Work) -> Result<Value, abide_engine::Fault> {
    let input: Value = work.input()?;
    // The key is the same for every retry: the payment provider charges once, whatever happens to us.
    let charge = format!("ch_{}", &work.task.idempotency_key.to_string()[..8]);
    // From here on nothing is charged again, even if this worker dies before it answers.
    let receipt = json!({ "charge": charge, "amount": input["amount"] });
    work.receipt(Some(&charge), Some(&receipt))
        .await
        .map_err(|error| abide_engine::Fault { message: error.to_string(), ..Default::default() })?;
    Ok(receipt)
}

async fn ship(work: Work) -> Result<Value, abide_engine::Fault> {
    let input: Value = work.input()?;
    Ok(json!({ "label": format!("label for {}", input["charge"].as_str().unwrap_or("?")) }))
}

/// Runs an order to its end and returns what it said on the way.
pub async fn run(directory: &Path) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let engine = Engine::open(directory)?;
    engine.register(ORDER).await?;
    let worker = engine.worker("worker-1").handle("payments.charge", charge).handle("shop.ship", ship);
    let stop = worker.stopper();
    let working = tokio::spawn(worker.run());

    let order = engine.start("order", json!({ "id": 7, "amount": 30 })).await?.run_id;
    let mut said = Vec::new();
    // The charge is done as soon as a decision waits in the inbox.
    while engine.approvals(10).await?.is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    said.push(engine.explain(&order).await?.summary);
    engine.decide(&order, "ana@example.com", true).await?;
    let record = engine.ended(&order).await?;
    said.push(record.summary);
    said.push(engine.payload(&order, "output").await?.map(|output| output.to_string()).unwrap_or_default());

    stop.now();
    engine.shutdown().await;
    working.await??;
    Ok(said)
}

#[tokio::main(flavor = "current_thread")]
#[allow(dead_code, reason = "the tests call `run`")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::temp_dir().join(format!("abide-embedded-{}", std::process::id()));
    for line in run(&directory).await? {
        println!("{line}");
    }
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}

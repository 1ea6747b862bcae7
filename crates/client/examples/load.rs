//! How many steps a server and one worker process do per second: 10 steps a run, 256 runs in flight.
//!
//! `abide serve` in one terminal, `cargo run --release -p abide-client --example load -- [RUNS] [IN_FLIGHT]` in another.

use std::sync::Arc;
use std::time::Duration;

use abide_client::{Client, Ctx, Failure, Work, Worker};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::Instant;

const STEPS: usize = 10;

fn declared() -> String {
    let steps: String = (0..STEPS)
        .map(|n| format!("  - {{ id: s{n}, task: {} }}\n", if n + 1 == STEPS { "last" } else { "step" }))
        .collect();
    format!("workflow: load\nsteps:\n{steps}")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |n: usize, otherwise: usize| arguments.get(n).and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    let (runs, in_flight) = (number(0, 5_000), number(1, 256));
    let coded = arguments.iter().any(|argument| argument == "coded");
    let client = Client::new(&std::env::var("ABIDE_SERVER").unwrap_or_else(|_| "http://127.0.0.1:7070".into()))?;
    client.apply("load", &declared()).await?;
    client.apply("load-coded", "workflow: load-coded\ncoded: { revision: '1' }\n").await?;

    let places = Arc::new(Semaphore::new(in_flight));
    let (freed, of_body) = (places.clone(), places.clone());
    let worker = Worker::new(client.clone(), "load")
        .at_once(in_flight)
        .handle("step", |_: Work| async { Ok(json!({ "ok": true })) })
        .handle("last", move |_: Work| {
            freed.add_permits(1);
            async { Ok(json!({ "ok": true })) }
        })
        .workflow("load-coded", "1", move |ctx: Ctx, _: Value| {
            let freed = of_body.clone();
            async move {
                for _ in 0..STEPS {
                    ctx.step("s", || async { Ok(true) }).await?;
                }
                freed.add_permits(1);
                Ok::<_, Failure>(())
            }
        });
    let stop = worker.stopper();
    let working = tokio::spawn(worker.run());

    let began = Instant::now();
    for _ in 0..runs {
        places.acquire().await?.forget();
        let client = client.clone();
        tokio::spawn(async move {
            let workflow = if coded { "load-coded" } else { "load" };
            if let Err(error) = client.start(workflow, &json!({})).await {
                eprintln!("{error}");
            }
        });
    }
    let _all = tokio::time::timeout(Duration::from_secs(60), places.acquire_many(u32::try_from(in_flight)?)).await??;
    let took = began.elapsed();
    println!("{} steps in {took:.2?}: {:.0} steps/s", runs * STEPS, (runs * STEPS) as f64 / took.as_secs_f64());
    stop.now();
    working.await??;
    Ok(())
}

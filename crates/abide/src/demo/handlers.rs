//! The demo's workers. They behave as the world does: tokens expire, feeds are down, answers are lost, workers hang.

use std::time::Duration;

use abide_core::contract::FailureClass;
use abide_core::ids::{Handler, Queue, WorkerId};
use abide_core::time::Span;
use abide_engine::request::Claim;
use abide_engine::store::Wanted;
use abide_engine::{Done, Engine, Error, Fault, Work};
use serde_json::{Value, json};

const CRAWLER: &str = "crawler-1";
/// From this attempt on the feed answers.
const FEED_ANSWERS_AT: u32 = 5;

/// Works until the engine stops.
pub fn work(engine: &Engine) {
    let drive = engine.clone();
    let worker = engine
        .worker("demo-1")
        .at_once(32)
        .handle("news.search", |_| async { Ok(json!({ "articles": articles() })) })
        .handle("llm.summarise", summarise)
        .handle("drive.write", move |work| write(drive.clone(), work))
        .handle("stock.reserve", |work| async move { Ok(json!({ "id": named("res", &work) })) })
        .handle("stock.release", |_| async { slowly(json!({ "released": true }), 2).await })
        .handle("payments.charge", charge)
        .handle("payments.find_charge", |_| async { Ok(json!({ "found": null })) })
        .handle("payments.refund", |_| async { slowly(json!({ "refunded": true }), 6).await })
        .handle("shipping.book", ship)
        .handle("suppliers.quote", quote)
        .handle("suppliers.order", |work| async move { received(&work, "po", "id").await })
        .handle("suppliers.find_order", |_| async { Ok(json!({ "found": false })) })
        .handle("mail.tell", |_| async { Ok(json!({ "sent": true })) })
        .handle("people.account", account)
        .handle("documents.send", |work| async move { Ok(json!({ "document": named("doc", &work) })) })
        .handle("feeds.fetch", fetch)
        .handle("photos.resize", resize)
        .handle("mail.announce", announce)
        .handle("bank.pay", |_| async { Err(fault(FailureClass::OutcomeUnknown, "no answer after sending")) })
        .handle("bank.find_payment", find_payment)
        .handle("ledger.book", |_| async { Ok(json!({ "booked": true })) })
        .handle("crm.import", import);
    tokio::spawn(async move { ended(worker.run().await) });
    let engine = engine.clone();
    tokio::spawn(async move { ended(crawl(engine).await) });
}

fn ended(how: Result<(), Error>) {
    if let Err(error) = how {
        tracing::error!(%error, "a worker of the demo ended");
    }
}

fn articles() -> Vec<Value> {
    ["a new quay", "an old crane", "a late ferry"].map(|url| json!({ "url": url })).into()
}

async fn summarise(work: Work) -> Done {
    let input: Value = work.input()?;
    slowly(json!(format!("In short: {}.", input["url"].as_str().unwrap_or("nothing"))), 1).await
}

/// The token has expired until somebody reconnects.
async fn write(engine: Engine, work: Work) -> Done {
    let known = engine.connections().await.unwrap_or_default();
    if !known.iter().any(|one| one.tool == "drive" && one.generation > 0) && work.task.answers.is_empty() {
        let expired = fault(FailureClass::Auth, "the token has expired");
        return Err(Fault { tool: Some("drive".into()), ..expired });
    }
    Ok(json!({ "id": named("doc", &work) }))
}

async fn charge(work: Work) -> Done {
    let charge = json!({ "id": named("ch", &work), "status": "captured" });
    // From here on nothing is charged again, even if this worker dies before it answers.
    work.receipt(charge["id"].as_str(), Some(&charge)).await.map_err(unsaid)?;
    Ok(charge)
}

async fn ship(work: Work) -> Done {
    let input: Value = work.input()?;
    match input["order"].as_str() {
        Some(order) if order.starts_with("moon") => Err(fault(FailureClass::Fatal, "no carrier goes to the moon")),
        _ => Ok(json!({ "id": named("sh", &work) })),
    }
}

async fn quote(work: Work) -> Done {
    let input: Value = work.input()?;
    let price = if input["item"].as_str().is_some_and(|item| item.starts_with("laptop")) { 1_380 } else { 420 };
    Ok(json!({ "price": price, "offer": named("offer", &work) }))
}

async fn account(work: Work) -> Done {
    let input: Value = work.input()?;
    let name = input["name"].as_str().unwrap_or("somebody").to_lowercase();
    Ok(json!({ "address": format!("{name}@example.com") }))
}

async fn fetch(work: Work) -> Done {
    match work.task.attempt {
        FEED_ANSWERS_AT.. => Ok(json!({ "entries": 12 })),
        _ => Err(fault(FailureClass::Transient, "the feed does not answer")),
    }
}

async fn resize(work: Work) -> Done {
    let input: Value = work.input()?;
    let photo = input["photo"].as_str().unwrap_or_default();
    // Raw files take long, and this code does not look whether somebody has canceled meanwhile.
    let seconds = if photo.ends_with(".raw") { 8 } else { 2 };
    let number = input["number"].as_u64().unwrap_or(1);
    work.progress(number, input["of"].as_u64(), Some("photos of the album")).await.map_err(unsaid)?;
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    Ok(json!({ "small": photo }))
}

async fn announce(work: Work) -> Done {
    let input: Value = work.input()?;
    match input["photos"].as_u64() {
        Some(..=20) => Ok(json!({ "sent": true })),
        _ => Err(fault(FailureClass::Fatal, "the mail is too large")),
    }
}

/// The bank knows a payment by its key, which is that of the step that paid.
async fn find_payment(work: Work) -> Done {
    slowly(json!({ "found": true, "output": { "payment": named("pay", &work) } }), 3).await
}

async fn import(work: Work) -> Done {
    let input: Value = work.input()?;
    match input["customer"]["postcode"].as_str() {
        Some(_) => Ok(json!({ "id": named("cu", &work) })),
        None => {
            let details = Some(json!({ "pointer": "/customer/postcode" }));
            Err(Fault { details, ..fault(FailureClass::Validation, "the postcode is missing") })
        }
    }
}

/// A worker that takes its first task and hangs: it does not beat and does not answer. What it is given after somebody has
/// looked, it does.
async fn crawl(engine: Engine) -> Result<(), Error> {
    loop {
        let wanted =
            Wanted { queues: vec![Queue::from("default")], handlers: Some(vec![Handler::from("crawler.crawl")]) };
        let until = Some(engine.clock().now() + Span::from_secs(20));
        let claim = Claim { worker: WorkerId::from(CRAWLER), wanted, max: 1, window: None, claim_id: None, until };
        let tasks = match engine.claim(claim).await {
            Ok(tasks) => tasks,
            Err(Error::ShuttingDown) => return Ok(()),
            Err(error) => return Err(error),
        };
        for task in tasks.iter().filter(|task| task.attempt > 1) {
            engine.complete(task, CRAWLER, Some(json!({ "pages": 41 }).to_string().into())).await?;
        }
    }
}

/// A name that is the same for every attempt, as a service makes it from an idempotency key.
fn named(kind: &str, work: &Work) -> String {
    let key = work.task.idempotency_key.to_string();
    format!("{kind}-{}", key.chars().take(6).collect::<String>())
}

/// An external effect whose result is written down as soon as it is known.
async fn received(work: &Work, kind: &str, field: &str) -> Done {
    let id = named(kind, work);
    let result = json!({ field: id });
    work.receipt(Some(&id), Some(&result)).await.map_err(unsaid)?;
    Ok(result)
}

async fn slowly(output: Value, seconds: u64) -> Done {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    Ok(output)
}

fn fault(class: FailureClass, message: &str) -> Fault {
    Fault { class: Some(class), message: message.into(), ..Fault::default() }
}

/// No class: what happened is not known.
fn unsaid(error: Error) -> Fault {
    Fault { message: error.to_string(), ..Fault::default() }
}

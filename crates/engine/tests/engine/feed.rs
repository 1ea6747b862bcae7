//! Following everything: over restarts, from a store that was restored, beside the archive.

use abide_core::contract::RunState;
use abide_core::ids::RunId;
use abide_core::time::Span;
use abide_engine::archive::Retention;
use abide_engine::feed::{Feed, Followed};
use abide_engine::hub::Position;
use abide_engine::{Engine, Options};
use serde_json::json;

use crate::Directory;

const NAP: &str = "workflow: nap\nsteps:\n  - { id: nap, sleep: 1h }\n";

async fn start(engine: &Engine) -> RunId {
    engine.start("nap", json!({})).await.expect("a run").run_id
}

async fn next(feed: &mut Feed) -> RunId {
    match feed.next().await.expect("it can be read") {
        Followed::Change(change) => change.key.run_id,
        other => panic!("{other:?}"),
    }
}

/// Where somebody stands who has seen everything so far.
async fn end(engine: &Engine, after: Position, changes: usize) -> Position {
    let mut feed = engine.follow(Some(after));
    for _ in 0..changes {
        next(&mut feed).await;
    }
    feed.position()
}

#[tokio::test]
async fn who_follows_from_now_on_after_a_restart_sees_only_what_is_new() {
    let directory = Directory::new("seeded");
    let engine = directory.engine();
    engine.register(NAP).await.expect("a document");
    start(&engine).await;
    start(&engine).await;
    let seen = end(&engine, Position::default(), 2).await;
    engine.shutdown().await;
    drop(engine);
    let engine = directory.engine();
    let position = engine.follow(None).position();
    assert!(position.batch >= seen.batch, "{position} is before {seen}");
    let new = start(&engine).await;
    let mut feed = engine.follow(Some(position));
    assert_eq!(next(&mut feed).await, new);
}

/// A backup of the first commits, a position of each lineage.
#[tokio::test]
async fn a_position_that_the_restored_store_never_had_has_expired() {
    let directory = Directory::new("restored");
    let (data, backup) = (directory.path().join("data"), directory.path().join("backup"));
    let engine = Engine::open(&data).expect("an engine");
    engine.register(NAP).await.expect("a document");
    start(&engine).await;
    let before = end(&engine, Position::default(), 1).await;
    engine.backup(&backup).await.expect("a backup");
    let mut lost = before;
    for _ in 0..5 {
        start(&engine).await;
        lost = end(&engine, lost, 1).await;
    }
    engine.shutdown().await;
    let restored = Engine::open(&backup).expect("the backup opens");
    let expired = restored.follow(Some(lost)).next().await.expect("it can be read");
    assert_eq!(expired, Followed::Expired, "it lies beyond what this store has");
    let mut last = before;
    while last.batch <= lost.batch {
        start(&restored).await;
        last = end(&restored, last, 1).await;
    }
    let expired = restored.follow(Some(lost)).next().await.expect("it can be read");
    assert_eq!(expired, Followed::Expired, "another commit has its number now");
    let mut feed = restored.follow(Some(before));
    next(&mut feed).await;
    assert!(feed.position().batch > before.batch, "what both stores have is a position of both");
}

#[tokio::test]
async fn a_run_that_was_archived_meanwhile_is_followed_to_its_end() {
    let directory = Directory::new("archived-feed");
    let retention = Retention::default().with(RunState::Canceled, Span::from_millis(1));
    let engine = Engine::open_with(directory.path(), Options { retention, ..Options::default() }).expect("an engine");
    engine.register(NAP).await.expect("a document");
    let position = engine.follow(None).position();
    let run = start(&engine).await;
    let ended = engine.cancel(&run, "enough").await.expect("canceled").seq;
    while engine.archive().await.expect("archived") == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    let mut feed = engine.follow(Some(position));
    let mut seen = 0;
    while seen < ended {
        let Followed::Change(change) = feed.next().await.expect("it can be read") else { panic!("a change") };
        assert_eq!((&change.key.run_id, change.from_seq), (&run, seen + 1));
        assert_eq!(change.workflow.as_str(), "nap");
        seen = change.to_seq;
    }
    assert_eq!(engine.run(&run).await.expect("a record of the archive").as_of_seq, ended);
}

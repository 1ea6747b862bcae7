//! Reports of many tasks travel together: while a few calls are under way the next one gathers. A lone report goes at once.

use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::error::Error;
use crate::tasks::{Item, Reply, Said, Tasks};

/// How many calls are under way at the same time: one that the server commits, one that it reads.
const CALLS: usize = 2;
/// So that a call stays well below what a server reads.
const MOST_ITEMS: usize = 200;
const MOST_BYTES: usize = 512 * 1024;

/// What became of a report; one that got no answer comes back, to be sent again.
type Outcome = Result<Reply, (Item, Error)>;

struct Report {
    item: Item,
    outcome: oneshot::Sender<Outcome>,
}

/// Where the tasks of a worker hand in what they have to say.
#[derive(Clone)]
pub(crate) struct Reports(mpsc::UnboundedSender<Report>);

impl std::fmt::Debug for Reports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reports")
    }
}

impl Reports {
    /// Sends until every sender is gone.
    pub(crate) fn begin(tasks: Arc<dyn Tasks>) -> Reports {
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(send_all(tasks, receiver));
        Reports(sender)
    }

    pub(crate) async fn tell(&self, item: Item) -> Outcome {
        let (outcome, answer) = oneshot::channel();
        if let Err(mpsc::error::SendError(report)) = self.0.send(Report { item, outcome }) {
            return Err((report.item, stopped()));
        }
        match answer.await {
            Ok(outcome) => outcome,
            Err(_) => unreachable!("every report is answered before its sender is dropped"),
        }
    }
}

fn stopped() -> Error {
    Error::Invalid("the worker has stopped".into())
}

async fn send_all(tasks: Arc<dyn Tasks>, mut receiver: mpsc::UnboundedReceiver<Report>) {
    let calls = Arc::new(Semaphore::new(CALLS));
    let mut left = None;
    while let Ok(call) = calls.clone().acquire_owned().await {
        let first = match left.take() {
            Some(report) => report,
            None => match receiver.recv().await {
                Some(report) => report,
                None => break,
            },
        };
        let mut bytes = first.item.said.weight();
        let mut reports = vec![first];
        while reports.len() < MOST_ITEMS
            && let Ok(report) = receiver.try_recv()
        {
            bytes += report.item.said.weight();
            if bytes > MOST_BYTES {
                left = Some(report);
                break;
            }
            reports.push(report);
        }
        // The address of a callback goes to its worker alone, in an answer of its own.
        let is_alone = |report: &Report| matches!(report.item.said, Said::Callback(_));
        let (alone, together): (Vec<Report>, Vec<Report>) = reports.into_iter().partition(is_alone);
        for report in alone {
            let tasks = tasks.clone();
            tokio::spawn(async move { send(&*tasks, vec![report]).await });
        }
        if together.is_empty() {
            continue;
        }
        let tasks = tasks.clone();
        tokio::spawn(async move {
            send(&*tasks, together).await;
            drop(call);
        });
    }
}

async fn send(tasks: &dyn Tasks, mut reports: Vec<Report>) {
    if reports.len() == 1 {
        let Report { item, outcome } = reports.remove(0);
        let told = tasks.tell(&item).await.map_err(|error| (item, error));
        let _ = outcome.send(told);
        return;
    }
    let (items, outcomes): (Vec<Item>, Vec<_>) =
        reports.into_iter().map(|report| (report.item, report.outcome)).unzip();
    let results = match tasks.batch(&items).await {
        Ok(results) => results,
        Err(error) => items.iter().map(|_| Err(error.clone())).collect(),
    };
    for ((item, outcome), result) in items.into_iter().zip(outcomes).zip(results) {
        let _ = outcome.send(result.map_err(|error| (item, error)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use abide_api::tasks::{ClaimTasks, Stopped, Task};

    use super::*;
    use crate::tasks::Asking;

    /// Takes its time, and remembers how many items each call had.
    #[derive(Default)]
    struct Slow(Mutex<Vec<usize>>);

    impl Tasks for Slow {
        fn claim<'a>(&'a self, _: &'a ClaimTasks) -> Asking<'a, Vec<Task>> {
            Box::pin(async { Ok(Vec::new()) })
        }

        fn tell<'a>(&'a self, _: &'a Item) -> Asking<'a, Reply> {
            self.0.lock().expect("a list").push(1);
            Box::pin(async {
                tokio::time::sleep(Duration::from_millis(10)).await;
                Ok(Reply::Taken)
            })
        }

        fn batch<'a>(&'a self, items: &'a [Item]) -> Asking<'a, Vec<Result<Reply, Error>>> {
            self.0.lock().expect("a list").push(items.len());
            Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(10)).await;
                Ok(items.iter().map(|_| Ok(Reply::Taken)).collect())
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_said_while_calls_are_under_way_travels_together() {
        let slow = Arc::new(Slow::default());
        let reports = Reports::begin(slow.clone());
        let tell = |n: u64| {
            let reports = reports.clone();
            async move {
                // The first two go alone; the rest comes while they are under way.
                tokio::time::sleep(Duration::from_millis(n.min(2))).await;
                let said = Said::Canceled(Stopped { epoch: n });
                reports.tell(Item { task_id: format!("task_{n}"), said }).await.expect("it is taken");
            }
        };
        futures_util::future::join_all((0..50).map(tell)).await;
        assert_eq!(*slow.0.lock().expect("a list"), [1, 1, 48]);
    }
}

//! What many runs have in common: one sentence for each root cause, and one call where one deed helps them all.

use abide_api::Problem;
use abide_core::contract::{ReasonType, RunState};
use abide_engine::reads::{ConnectionView, QueueView};
use serde::Serialize;
use serde_json::{Value, json};

use super::call::Call;

/// Runs that wait for the same thing.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    pub cause: String,
    /// The state in which they rest.
    pub state: RunState,
    pub count: u64,
    pub sentence: String,
    /// The query of `GET /v1/runs` that finds them.
    pub query: String,
    /// One call that helps all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<Value>,
}

/// The largest first. What passes by itself is no group.
pub async fn groups<'a>(
    call: &Call,
    counts: impl Iterator<Item = (&'a String, &'a u64)>,
) -> Result<Vec<Group>, Problem> {
    let connections = call.engine.connections().await?;
    let queues = call.engine.queues().await?;
    let mut groups: Vec<Group> = connections.iter().filter(|one| one.waiting_runs > 0).map(of_connection).collect();
    groups.extend(queues.iter().filter(|queue| queue.depth > 0 && queue.listeners.is_empty()).map(of_queue));
    groups.extend(counts.filter_map(|(cause, count)| of_reason(ReasonType::parse(cause)?, *count)));
    groups.sort_by_key(|group| std::cmp::Reverse(group.count));
    Ok(groups)
}

fn of_connection(one: &ConnectionView) -> Group {
    let name = format!("{}/{}", one.tool, one.account);
    let (tool, account) = (segment(&one.tool), segment(&one.account));
    let action = json!({
        "id": "reconnected", "title": "Reconnect once", "who": ["operator"], "method": "POST",
        "href": format!("/v1/connections/{tool}/{account}/reconnected"), "body": {}, "danger": false,
    });
    Group {
        cause: format!("connection {name}"),
        state: RunState::WaitingOnAuth,
        count: one.waiting_runs,
        sentence: format!("{} for {name} to be reconnected.", several(one.waiting_runs, "run waits", "runs wait")),
        query: query("connection", &name),
        action: Some(action),
    }
}

fn of_queue(queue: &QueueView) -> Group {
    Group {
        cause: format!("queue {}", queue.queue),
        state: RunState::Queued,
        count: queue.depth,
        sentence: format!(
            "{} on queue {}, and no worker listens.",
            several(queue.depth, "task waits", "tasks wait"),
            queue.queue
        ),
        query: query("state", RunState::Queued.as_str()),
        action: None,
    }
}

fn of_reason(reason: ReasonType, count: u64) -> Option<Group> {
    let shared = match reason {
        ReasonType::ApprovalRequired
        | ReasonType::CallbackPending
        | ReasonType::SignalPending
        | ReasonType::LimitFull
        | ReasonType::NoWorkerForRevision
        | ReasonType::RateLimited
        | ReasonType::TransientError
        | ReasonType::LeaseLost
        | ReasonType::Overdue
        | ReasonType::OutcomeUnknown
        | ReasonType::CorrectionRequired
        | ReasonType::PermissionDenied
        | ReasonType::PreconditionFailed
        | ReasonType::BodyChanged
        | ReasonType::PoisonInput
        | ReasonType::UndoFailed
        | ReasonType::OperatorAsked
        | ReasonType::HistoryFull
        | ReasonType::BudgetExhausted => true,
        // Connections and queues are named one by one; the others end by themselves or were somebody's wish.
        ReasonType::OauthReconnectRequired
        | ReasonType::NoWorkerListening
        | ReasonType::StartDelayed
        | ReasonType::ChildOpen
        | ReasonType::Sleeping
        | ReasonType::PausedByOperator
        | ReasonType::CancelGrace => false,
    };
    (shared && count > 1).then(|| Group {
        cause: reason.as_str().to_owned(),
        state: reason.rests_in(),
        count,
        sentence: format!(
            "{} for the same reason: {}",
            several(count, "run rests", "runs rest"),
            continued(reason.means())
        ),
        query: query("blocking_reason", reason.as_str()),
        action: None,
    })
}

fn several(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn continued(sentence: &str) -> String {
    let mut letters = sentence.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

fn query(name: &str, value: &str) -> String {
    form_urlencoded::Serializer::new(String::new()).append_pair(name, value).finish()
}

fn segment(name: &str) -> String {
    percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_many_wait_for_is_reconnected_by_one_call() {
        let waiting_runs = 12;
        let (tool, account) = ("drive".to_owned(), "a b/c".to_owned());
        let view = ConnectionView { tool, account, broken: true, generation: 1, reconnected_at: None, waiting_runs };
        let group = of_connection(&view);
        assert_eq!(group.sentence, "12 runs wait for drive/a b/c to be reconnected.");
        assert_eq!(group.query, "connection=drive%2Fa+b%2Fc");
        assert_eq!(group.action.unwrap()["href"], "/v1/connections/drive/a%20b%2Fc/reconnected");
    }

    #[test]
    fn what_passes_by_itself_is_no_group() {
        assert_eq!(of_reason(ReasonType::Sleeping, 100), None);
        assert_eq!(of_reason(ReasonType::LeaseLost, 1), None);
        let lost = of_reason(ReasonType::LeaseLost, 3).unwrap();
        assert_eq!(lost.sentence, "3 runs rest for the same reason: a worker stopped proving that it lives.");
        assert_eq!(lost.state, RunState::Stalled);
    }
}

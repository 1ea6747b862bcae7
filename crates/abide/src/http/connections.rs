//! Connections to tools: which are broken, who waits, and what goes on when one works again.

use abide_api::engine::identifier;
use abide_api::keys::Role;
use abide_api::runs::{Nothing, ReconnectRun, Released};
use abide_api::{Code, Problem};
use abide_core::run::command::Ask;
use abide_core::run::step::Connection;
use abide_engine::request::{Answer, What};
use serde_json::json;

use super::call::{Answered, Call, Reply, unexpected};
use super::locked;

pub async fn list(call: Call) -> Answered {
    call.only(&[])?;
    let known = call.engine.connections().await?;
    let mut views = Vec::with_capacity(known.len());
    for connection in &known {
        let mut view =
            serde_json::to_value(connection).map_err(|error| Problem::new(Code::Internal, error.to_string()))?;
        let place = (call.who.namespace.to_string(), connection.tool.clone(), connection.account.clone());
        // Where a person reconnects is for those who may, and for nobody else.
        if matches!(call.who.role, Role::Operator | Role::Admin)
            && let Some(url) = locked(&call.api.connect_urls).get(&place)
        {
            view["connect_url"] = url.as_str().into();
        }
        views.push(view);
    }
    Ok(Reply::json(200, &json!({ "connections": views, "next_cursor": null })))
}

pub async fn of_run(call: Call, asked: ReconnectRun) -> Answered {
    let told = call.command(Ask::Reconnect { tool: asked.tool, account: asked.account, generation: None }).await?;
    call.run_answer(200, &told).await
}

fn named(call: &Call) -> Result<Connection, Problem> {
    let tool = identifier("tool", call.param("tool"))?.to_owned();
    let account = identifier("account", call.param("account"))?.to_owned();
    Ok(Connection { tool, account })
}

pub async fn reconnected(call: Call, _: Nothing) -> Answered {
    let connection = named(&call)?;
    let place = (call.who.namespace.to_string(), connection.tool.clone(), connection.account.clone());
    locked(&call.api.connect_urls).remove(&place);
    released(call.ask(What::Reconnected(connection)).await?)
}

pub async fn broken(call: Call, _: Nothing) -> Answered {
    let connection = named(&call)?;
    released(call.ask(What::Broken(connection)).await?)
}

fn released(answer: Answer) -> Answered {
    match answer {
        Answer::Released(released) => Ok(Reply::json(200, &Released { released })),
        other => Err(unexpected(&other)),
    }
}

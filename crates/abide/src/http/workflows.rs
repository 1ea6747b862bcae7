//! Workflow documents: uploaded as they were written, versioned by what they say.

use abide_api::runs::{Applied, Fault};
use abide_api::{Code, Problem};
use abide_core::definition::Definition;
use abide_core::ids::{Digest, WorkflowId};
use abide_core::time::Timestamp;
use abide_engine::Error;
use abide_engine::request::{Answer, Register, What};
use serde::Serialize;

use super::call::{Answered, Call, Reply, unexpected};
use super::graph;

/// `PUT /v1/workflows/{id}`
pub async fn apply(call: Call) -> Answered {
    let document = std::str::from_utf8(&call.body)
        .map_err(|_| Problem::new(Code::MalformedJson, "The document is not UTF-8."))?
        .to_owned();
    let parsed = Definition::parse(&document).map_err(Error::Definition)?;
    let (named, said) = (call.param("workflow_id"), parsed.definition.workflow.as_str());
    if named != said {
        let detail = format!("The document is the workflow {said:?}, and the path names {named:?}.");
        return Err(Problem::invalid("/workflow", detail));
    }
    check_targets(&call, &parsed.definition)?;
    let warnings = parsed.warnings.iter().map(fault).collect();
    match call.ask(What::Register(Box::new(Register { parsed, document }))).await? {
        Answer::Registered { workflow, version, hash, new } => {
            let applied =
                Applied { workflow_id: workflow.to_string(), version, definition_hash: hash.to_string(), warnings };
            Ok(Reply::json(if new { 201 } else { 200 }, &applied))
        }
        other => Err(unexpected(&other)),
    }
}

/// Addresses that stand in the document are judged when it is uploaded; others when they are called.
fn check_targets(call: &Call, definition: &Definition) -> Result<(), Problem> {
    let refused = abide_engine::push::check_document(definition, &call.api.settings.targets);
    let Some((_, first)) = refused.first() else { return Ok(()) };
    let problem = Problem::new(Code::TargetNotAllowed, format!("A step may not call its address: {first}."));
    Err(refused.iter().fold(problem, |problem, (pointer, why)| problem.field(pointer.clone(), why.to_string())))
}

fn fault(fault: &abide_core::definition::Fault) -> Fault {
    Fault {
        code: fault.code.to_string(),
        message: fault.message.clone(),
        pointer: fault.path.clone(),
        line: fault.line.map(u64::from),
        column: fault.column.map(u64::from),
        hint: fault.hint.clone(),
    }
}

pub async fn list(call: Call) -> Answered {
    call.only(&[])?;
    Ok(Reply::list("workflows", call.engine.workflows().await?, None))
}

pub async fn newest(call: Call) -> Answered {
    one(&call, None).await
}

pub async fn versions(call: Call) -> Answered {
    call.only(&[])?;
    let versions = call.engine.versions(&WorkflowId::from(call.param("workflow_id"))).await?;
    Ok(Reply::list("versions", versions, None))
}

pub async fn version(call: Call) -> Answered {
    let text = call.param("version");
    let version = text.parse().map_err(|_| Problem::new(Code::NotFound, "There is no such version."))?;
    one(&call, Some(version)).await
}

async fn one(call: &Call, version: Option<u32>) -> Answered {
    let workflow = WorkflowId::from(call.param("workflow_id"));
    let (stored, definition) = call.engine.workflow(&workflow, version).await?;
    // What the validator said when it was uploaded, said again: warnings are not stored.
    let warnings = Definition::parse(&stored.document).map(|parsed| parsed.warnings).unwrap_or_default();
    let warnings: Vec<Fault> = warnings.iter().map(fault).collect();
    let answer = OneWorkflow {
        workflow_id: &workflow,
        version: stored.version,
        title: &definition.title,
        definition_hash: stored.hash,
        created_at: stored.created_at,
        document: &stored.document,
        warnings,
    };
    Ok(Reply::json(200, &answer))
}

#[derive(Serialize)]
struct OneWorkflow<'a> {
    workflow_id: &'a WorkflowId,
    version: u32,
    title: &'a Option<String>,
    definition_hash: Digest,
    created_at: Timestamp,
    document: &'a str,
    warnings: Vec<Fault>,
}

pub async fn graph(call: Call) -> Answered {
    let workflow = WorkflowId::from(call.param("workflow_id"));
    call.only(&["version"])?;
    let missing = || Problem::new(Code::NotFound, "There is no such version.");
    let version = call.one("version")?.map(|text| text.parse::<u32>().map_err(|_| missing())).transpose()?;
    let (_, definition) = call.engine.workflow(&workflow, version).await?;
    Ok(Reply::json(200, &graph::of(&definition, &[])))
}

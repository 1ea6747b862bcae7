//! Reads a whole document: its own fields, then its steps, then what holds between them.

use std::collections::BTreeMap;

use crate::contract::{FailureClass, Policy};
use crate::ids::{Queue, WorkflowId};
use crate::time::Span;

use super::canonical;
use super::fault::{DefinitionError, Fault, FaultCode, LARGEST_DOCUMENT_BYTES, MOST_FAULTS, Parsed};
use super::graph::{Graph, link};
use super::model::{Body, Defaults, Definition, RetryPolicy, StepDef};
use super::outcome::{read_recovery, read_retry};
use super::reader::{Fields, Reader, Spot, Where, did_you_mean};
use super::scope::{self, Place};
use super::step::read_step;
use super::yaml::{self, clip};

const MOST_STEPS: usize = 1_000;
pub(super) const LONGEST_TITLE: usize = 200;
const LONGEST_ID: usize = 100;
const MOST_POINTERS: usize = 200;

impl Definition {
    /// Reads YAML or JSON, checks everything and compiles it. JSON is read as the YAML that it is, so that its faults
    /// have places too.
    pub fn parse(text: &str) -> Result<Parsed, DefinitionError> {
        Definition::read(text, false)
    }

    /// Reads a document that was accepted before, perhaps by an earlier version with wider limits.
    pub fn parse_stored(text: &str) -> Result<Definition, DefinitionError> {
        Definition::read(text, true).map(|parsed| parsed.definition)
    }

    fn read(text: &str, is_stored: bool) -> Result<Parsed, DefinitionError> {
        if text.len() > LARGEST_DOCUMENT_BYTES {
            return Err(DefinitionError::TooLarge { size: text.len(), limit: LARGEST_DOCUMENT_BYTES });
        }
        let (root, faults) = yaml::read(text)?;
        let mut reader = Reader::after(faults, is_stored);
        let definition = document(&mut reader, &Spot::root(&root));
        match definition {
            Some(definition) if reader.faults.is_empty() => {
                Ok(Parsed { definition, warnings: in_order(reader.warnings) })
            }
            _ => Err(refusal(reader.faults)),
        }
    }
}

/// What the steps need to know of the document around them.
pub(super) struct Outline {
    /// Step ids with their indexes.
    pub(super) ids: BTreeMap<String, usize>,
    /// `finally` steps start at this index.
    pub(super) body: usize,
    pub(super) defaults: Defaults,
    pub(super) saga: bool,
    /// Whether the run as a whole has a deadline.
    pub(super) ends: bool,
}

fn refusal(faults: Vec<Fault>) -> DefinitionError {
    let faults = in_order(faults);
    let any = |code: FaultCode| faults.iter().any(|fault| fault.code == code);
    match (any(FaultCode::TooComplex), any(FaultCode::ExpressionTooComplex)) {
        (true, _) => DefinitionError::TooComplex(faults),
        (false, true) => DefinitionError::ExpressionTooComplex(faults),
        (false, false) => DefinitionError::Invalid(faults),
    }
}

fn in_order(mut faults: Vec<Fault>) -> Vec<Fault> {
    faults.sort_by_key(|fault| (fault.line, fault.column));
    faults.truncate(MOST_FAULTS);
    faults
}

fn document(reader: &mut Reader, root: &Spot<'_>) -> Option<Definition> {
    let mut fields = reader.map(root)?;
    let workflow = fields.require(reader, "workflow").and_then(|spot| workflow_id(reader, &spot));
    let title = fields.take("title").and_then(|spot| reader.short_text(&spot, LONGEST_TITLE));
    let input = fields.take("input").and_then(|spot| reader.schema(&spot));
    let sensitive = fields.take("sensitive").map(|spot| pointers(reader, &spot)).unwrap_or_default();
    let defaults = fields.take("defaults").map(|spot| defaults(reader, &spot)).unwrap_or_else(no_defaults);
    let deadline = fields.take("deadline").and_then(|spot| reader.duration(&spot));
    let saga = fields.take("saga").and_then(|spot| reader.boolean(&spot)).unwrap_or(false);
    if !saga {
        check_saga_of_defaults(reader, root, &defaults);
    }
    let given = Given { defaults: defaults.clone(), deadline, saga, sensitive: &sensitive };
    let (body, output) = body(reader, &mut fields, &given);
    refuse_later(reader, &mut fields);
    fields.finish(reader);
    Some(Definition {
        workflow: workflow?,
        title,
        hash: canonical::hash(&root.node.to_json()),
        input,
        sensitive,
        deadline,
        saga,
        body,
        output,
        defaults,
    })
}

struct Given<'g> {
    defaults: Defaults,
    deadline: Option<Span>,
    saga: bool,
    sensitive: &'g [String],
}

type Output = Option<crate::expression::Template>;

/// The steps or the code, and the output made from the steps.
fn body(reader: &mut Reader, fields: &mut Fields<'_>, given: &Given<'_>) -> (Body, Output) {
    let coded = fields.take("coded");
    let steps = fields.take("steps");
    let finally = fields.take("finally");
    let output = fields.take("output");
    let Some(coded) = coded else {
        let Some(steps) = steps else {
            let place = Where { path: "/steps".into(), ..fields.place() };
            let hint = "a workflow has `steps`, or `coded`";
            reader.fault_with_hint(FaultCode::NoSteps, &place, "`steps` is missing", hint);
            return (Body::Steps(Vec::new()), None);
        };
        if matches!(&steps.node.content, yaml::Content::List(items) if items.is_empty()) {
            reader.fault(FaultCode::NoSteps, &steps.place(), "there are no steps");
        }
        let steps = reader.list(&steps);
        let finally = finally.map(|spot| reader.list(&spot)).unwrap_or_default();
        return all_steps(reader, steps, finally, output, given);
    };
    for (name, spot) in [("steps", steps), ("finally", finally), ("output", output)] {
        if let Some(spot) = spot {
            let message = format!("`{name}` does not fit beside `coded`: the function in a worker decides it");
            reader.fault(FaultCode::DoesNotFit, &spot.place(), message);
        }
    }
    (Body::Coded { revision: revision(reader, &coded).unwrap_or_default() }, None)
}

fn revision(reader: &mut Reader, coded: &Spot<'_>) -> Option<String> {
    let mut fields = reader.map(coded)?;
    let revision = fields.require(reader, "revision").and_then(|spot| {
        if matches!(spot.node.content, yaml::Content::Number(_)) {
            let message = "a revision is text";
            reader.fault_with_hint(FaultCode::WrongType, &spot.place(), message, "quote it: revision: \"3\"");
            return None;
        }
        reader.short_text(&spot, LONGEST_ID)
    });
    fields.finish(reader);
    revision
}

fn all_steps(
    reader: &mut Reader,
    steps: Vec<Spot<'_>>,
    finally: Vec<Spot<'_>>,
    output: Option<Spot<'_>>,
    given: &Given<'_>,
) -> (Body, Output) {
    let body = steps.len();
    let spots: Vec<Spot<'_>> = steps.into_iter().chain(finally).collect();
    if let Some(first_too_many) = spots.get(MOST_STEPS) {
        let message = format!("there are {} steps; at most {MOST_STEPS} are allowed", spots.len());
        reader.fault_with_hint(
            FaultCode::TooManySteps,
            &first_too_many.place(),
            message,
            "put a part of them into a child workflow",
        );
        return (Body::Steps(Vec::new()), None);
    }
    let outline = Outline {
        ids: step_ids(reader, &spots),
        body,
        defaults: given.defaults.clone(),
        saga: given.saga,
        ends: given.deadline.is_some(),
    };
    let places: Vec<Where> = spots.iter().map(Spot::place).collect();
    let mut steps: Vec<StepDef> = spots
        .iter()
        .enumerate()
        .map(|(index, spot)| {
            reader.step = Some(index);
            read_step(reader, spot, index, &outline)
        })
        .collect();
    reader.step = None;
    let output = output.and_then(|spot| reader.template(&spot, Place::Output));
    link(&mut steps);
    let graph = Graph::new(reader, &steps, &places, outline.ids);
    graph.check_jumps(reader, &steps);
    graph.check_joins(reader, &steps);
    graph.warn_of_partial_joins(reader, &steps, &places);
    scope::check(reader, &steps, &graph, given.sensitive);
    (Body::Steps(steps), output)
}

/// The ids of all steps, so that any of them can be named by any other.
fn step_ids(reader: &mut Reader, spots: &[Spot<'_>]) -> BTreeMap<String, usize> {
    let mut ids: BTreeMap<String, usize> = BTreeMap::new();
    for (index, spot) in spots.iter().enumerate() {
        let Some(mut fields) = reader.map(spot) else { continue };
        let Some(id) = fields.require(reader, "id") else { continue };
        let Some(text) = reader.text(&id) else { continue };
        if let Some(problem) = step_id_problem(text) {
            let hint = "a small letter, then small letters, digits, _ : -";
            reader.fault_with_hint(FaultCode::BadId, &id.place(), format!("`{}` {problem}", clip(text)), hint);
        }
        if let Some(first) = ids.get(text) {
            let message = format!("`{}` is already the id of {}", clip(text), spots[*first].path);
            reader.fault(FaultCode::DuplicateId, &id.place(), message);
            continue;
        }
        if text.contains(['-', ':']) {
            let message = format!("`{}` is read in expressions as steps['{0}']", clip(text));
            reader.warn(FaultCode::IdNeedsBrackets, &id.place(), message, "with _ it is read as steps.ID");
        }
        ids.insert(text.to_owned(), index);
    }
    ids
}

fn step_id_problem(id: &str) -> Option<&'static str> {
    let shaped = id.starts_with(|c: char| c.is_ascii_lowercase())
        && id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | ':' | '-'));
    match id {
        "body" => Some("is reserved: it names the body of the run"),
        _ if id.contains(['.', '/']) => Some("looks like the path of one instance of a step"),
        _ if !shaped => Some("is not the id of a step"),
        _ if id.len() > LONGEST_ID => Some("is longer than 100 characters"),
        _ => None,
    }
}

pub(super) fn workflow_id(reader: &mut Reader, spot: &Spot<'_>) -> Option<WorkflowId> {
    let id = reader.text(spot)?;
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let shaped = id.starts_with(plain) && id.chars().all(|c| plain(c) || matches!(c, '.' | '_' | '-'));
    if !shaped || id.len() > LONGEST_ID {
        let hint = "small letters, digits and . _ -, at most 100 of them";
        reader.fault_with_hint(
            FaultCode::BadId,
            &spot.place(),
            format!("`{}` is not the id of a workflow", clip(id)),
            hint,
        );
        return None;
    }
    Some(WorkflowId::from(id))
}

/// A step that is named by its id.
pub(super) fn step_named(reader: &mut Reader, spot: &Spot<'_>, outline: &Outline) -> Option<usize> {
    let id = reader.text(spot)?;
    let found = outline.ids.get(id).copied();
    if found.is_none() && !reader.is_full() {
        let near = did_you_mean(id, outline.ids.keys().map(String::as_str));
        let message = format!("there is no step `{}`", clip(id));
        match near.is_empty() {
            true => reader.fault(FaultCode::UnknownStep, &spot.place(), message),
            false => reader.fault_with_hint(FaultCode::UnknownStep, &spot.place(), message, near.trim_end()),
        }
    }
    found
}

/// JSON pointers into the run's input.
fn pointers(reader: &mut Reader, spot: &Spot<'_>) -> Vec<String> {
    let mut pointers = Vec::new();
    let items = reader.list(spot);
    if items.len() > MOST_POINTERS {
        let message = format!("there are {} pointers; at most {MOST_POINTERS} are allowed", items.len());
        reader.fault_with_hint(FaultCode::TooLong, &spot.place(), message, "name the parts that hold them");
        return pointers;
    }
    for item in items {
        let Some(text) = item.as_text() else {
            reader.text(&item);
            continue;
        };
        let escapes = text.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
        if !text.is_empty() && !text.starts_with('/') || !escapes {
            let message = format!("`{}` is not a JSON pointer into the input", clip(text));
            reader.fault_with_hint(FaultCode::BadPointer, &item.place(), message, "write it as /order/card");
        } else if text.matches('/').count() > 32 {
            reader.fault(FaultCode::BadPointer, &item.place(), "a pointer goes at most 32 levels down");
        } else if !pointers.iter().any(|known| known == text) {
            pointers.push(text.to_owned());
        }
    }
    pointers
}

fn defaults(reader: &mut Reader, spot: &Spot<'_>) -> Defaults {
    let mut defaults = no_defaults();
    let Some(mut fields) = reader.map(spot) else { return defaults };
    if let Some(queue) = fields.take("queue").and_then(|spot| reader.name(&spot)) {
        defaults.queue = Queue::new(queue);
    }
    defaults.timeout = fields.take("timeout").and_then(|spot| reader.duration(&spot));
    defaults.lease = fields.take("lease").and_then(|spot| reader.duration(&spot));
    if let Some(retry) = fields.take("retry") {
        defaults.retry = read_retry(reader, &retry, defaults.retry);
    }
    if let Some(recovery) = fields.take("recovery") {
        defaults.recovery = read_recovery(reader, &recovery);
    }
    fields.finish(reader);
    defaults
}

fn no_defaults() -> Defaults {
    Defaults {
        queue: Queue::from("default"),
        timeout: None,
        lease: None,
        retry: RetryPolicy::default(),
        recovery: BTreeMap::new(),
    }
}

fn check_saga_of_defaults(reader: &mut Reader, root: &Spot<'_>, defaults: &Defaults) {
    let undoes = |(class, policy): (&FailureClass, &Policy)| (*policy == Policy::Compensate).then_some(*class);
    for class in defaults.recovery.iter().filter_map(undoes) {
        let path = format!("/defaults/recovery/{class}");
        let place = Where { at: root.node.nearest(&path).at, path };
        reader.fault_with_hint(
            FaultCode::NeedsSaga,
            &place,
            "`compensate` needs a saga",
            "write `saga: true` in the workflow",
        );
    }
}

/// Fields that a later version will have.
fn refuse_later(reader: &mut Reader, fields: &mut Fields<'_>) {
    for name in ["limits", "schedules"] {
        if let Some(spot) = fields.take_unlisted(name) {
            let hint = format!("remove `{name}`");
            reader.fault_with_hint(
                FaultCode::NotSupported,
                &spot.place(),
                format!("this version does not have `{name}`"),
                hint,
            );
        }
    }
}

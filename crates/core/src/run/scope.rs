//! What the names in expressions mean for one instance of a step. Only what an expression reads is looked up.

use std::sync::Arc;

use super::advance::{Draft, Need, Stop};
use super::decide::http::{CALLBACK_PLACEHOLDER, placeholder};
use super::step::{Group, Role, Step};
use super::{Brief, limits};
use crate::contract::{Failure, StepState};
use crate::definition::StepDef;
use crate::expression::{EvalError, Expression, Reference, Scope, Template, split_list};
use crate::ids::{Path, PayloadName};

/// The instance for which something is evaluated, and what has just come of it.
#[derive(Clone, Default)]
pub(super) struct Here {
    pub parent: Option<Path>,
    /// Number of the item or round.
    pub number: Option<u32>,
    /// The name of the item, in a `for_each`.
    pub item_name: Option<String>,
    pub output: Option<Arc<str>>,
    pub failure: Option<Failure>,
}

impl Here {
    pub fn of(step: &Step, def: &StepDef) -> Here {
        Here::at(step.place.parent.as_ref(), step.place.number, def)
    }

    pub fn at(parent: Option<&Path>, number: Option<u32>, def: &StepDef) -> Here {
        Here {
            parent: parent.cloned(),
            number,
            item_name: def.for_each.as_ref().map(|each| each.name.clone()),
            output: None,
            failure: None,
        }
    }
}

impl Draft<'_> {
    pub(super) fn test(&self, expression: &Expression, here: &Here) -> Result<Result<bool, EvalError>, Stop> {
        let scope = self.scope([expression], here)?;
        Ok(expression.evaluate_bool(&scope))
    }

    /// As `test`, but a missing key means no match.
    pub(super) fn matches(&self, expression: &Expression, here: &Here) -> Result<Result<bool, EvalError>, Stop> {
        let scope = self.scope([expression], here)?;
        Ok(expression.matches(&scope))
    }

    pub(super) fn evaluate(&self, expression: &Expression, here: &Here) -> Result<Result<String, EvalError>, Stop> {
        let scope = self.scope([expression], here)?;
        Ok(expression.evaluate_json(&scope).map(|json| json.into_owned()))
    }

    pub(super) fn render(&self, template: &Template, here: &Here) -> Result<Result<String, EvalError>, Stop> {
        let scope = self.scope(template.references().map(|(_, expression)| expression), here)?;
        Ok(template.render(&scope))
    }

    pub(super) fn render_text(&self, template: &Template, here: &Here) -> Result<Result<String, EvalError>, Stop> {
        let scope = self.scope(template.references().map(|(_, expression)| expression), here)?;
        Ok(template.render_text(&scope))
    }

    /// A title: `?` stands for what is missing.
    pub(super) fn render_title(&self, template: &Template, here: &Here) -> Result<Result<String, EvalError>, Stop> {
        let scope = self.scope(template.references().map(|(_, expression)| expression), here)?;
        Ok(template.render_title(&scope))
    }

    /// As `render`, with null and an entry in the list for each missing key.
    pub(super) fn render_tolerant(
        &self,
        template: &Template,
        here: &Here,
    ) -> Result<Result<(String, Vec<EvalError>), EvalError>, Stop> {
        let scope = self.scope(template.references().map(|(_, expression)| expression), here)?;
        Ok(template.render_tolerant(&scope))
    }

    pub(super) fn scope<'s, 'e>(
        &'s self,
        expressions: impl IntoIterator<Item = &'e Expression>,
        here: &'s Here,
    ) -> Result<Scope<'s>, Stop> {
        let mut scope = Scope::default();
        for expression in expressions {
            for reference in expression.references() {
                let keys: Vec<&str> = reference.keys.iter().map(String::as_str).collect();
                self.bind(&mut scope, &keys, here)?;
            }
        }
        Ok(scope)
    }

    fn bind<'s>(&'s self, scope: &mut Scope<'s>, keys: &[&str], here: &'s Here) -> Result<(), Stop> {
        match keys {
            ["input", ..] => {
                scope.set(&["input"], self.payload(&PayloadName::input())?);
            }
            ["steps", id, field, ..] => {
                let json = self.step_field(id, field)?;
                scope.set(&["steps", id, field], json);
            }
            ["index", ..] => {
                scope.set(&["index"], here.number.unwrap_or(0).to_string());
            }
            ["output", ..] => {
                scope.set(&["output"], here.output.as_deref().unwrap_or("null"));
            }
            ["failure", ..] => {
                scope.set(&["failure"], failure_json(here.failure.as_ref()));
            }
            ["previous", "output", ..] => {
                scope.set(&["previous", "output"], self.previous_output(here)?);
            }
            ["run", "id", ..] => {
                scope.set(&["run", "id"], json_text(self.run.head.run_id.as_str()));
            }
            ["run", "attempt", ..] => {
                scope.set(&["run", "attempt"], self.run.head.attempt.to_string());
            }
            ["secrets", name, ..] => {
                scope.set(&["secrets", name], json_text(&placeholder(name)));
            }
            ["callback", "url", ..] => {
                scope.set(&["callback", "url"], json_text(CALLBACK_PLACEHOLDER));
            }
            [name, ..] if Some(*name) == here.item_name.as_deref() => {
                let json = self.item(here)?;
                scope.set(&[name], json);
            }
            // The validator refuses other names; an expression that still has one sees a missing key.
            _ => {}
        }
        Ok(())
    }

    fn step_field(&self, id: &str, field: &str) -> Result<std::borrow::Cow<'_, str>, Stop> {
        let Some((index, _)) = self.def.step(id) else { return Ok("null".into()) };
        let brief = self.run.head.plan.get(index).copied().unwrap_or(Brief {
            state: StepState::Pending,
            visit: 1,
            tolerated: false,
        });
        let path = Path::of_visit(id, brief.visit);
        Ok(match field {
            "state" => json_text(brief.state.as_str()).into(),
            "output"
                if matches!(brief.state, StepState::Completed | StepState::CaseHandled | StepState::Compensated) =>
            {
                self.payload(&path.payload("output"))?.into()
            }
            "failure" if brief.state.is_ended() => {
                failure_json(self.row(&path)?.and_then(|row| row.failure.as_ref())).into()
            }
            "failures" if brief.state != StepState::Pending => {
                failures_json(self.row(&path)?.and_then(|row| row.group_of.as_deref())).into()
            }
            _ => "null".into(),
        })
    }

    fn previous_output(&self, here: &Here) -> Result<&str, Stop> {
        match (&here.parent, here.number) {
            (Some(parent), Some(round)) if round > 1 => self.payload(&parent.item(round - 1).payload("output")),
            _ => Ok("null"),
        }
    }

    /// The item of a `for_each` instance, cut out of its stored piece.
    fn item(&self, here: &Here) -> Result<&str, Stop> {
        let (Some(parent), Some(number)) = (&here.parent, here.number) else { return Ok("null") };
        let piece = self.payload(&piece_name(parent, number))?;
        let items = split_list(piece).unwrap_or_default();
        Ok(items.get(number as usize % limits::ITEMS_PER_PIECE).copied().unwrap_or("null"))
    }

    /// A payload's text, or the need for it.
    pub(super) fn payload(&self, name: &PayloadName) -> Result<&str, Stop> {
        self.run.payloads.get(name).map(|text| &**text).ok_or_else(|| Stop::needs(Need::Payload(name.clone())))
    }
}

/// The piece of the list that holds an item.
pub(super) fn piece_name(parent: &Path, number: u32) -> PayloadName {
    parent.payload(&format!("items/{}", number as usize / limits::ITEMS_PER_PIECE))
}

pub(super) fn json_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn failure_json(failure: Option<&Failure>) -> String {
    failure.map_or_else(
        || "null".to_owned(),
        |failure| {
            serde_json::json!({
                "kind": failure.kind.as_str(),
                "class": failure.class.as_str(),
                "code": failure.code,
                "message": failure.message,
                "details": failure.details,
            })
            .to_string()
        },
    )
}

fn failures_json(group: Option<&Group>) -> String {
    group.and_then(|group| serde_json::to_string(&group.failures).ok()).unwrap_or_else(|| "[]".to_owned())
}

/// Every name that the expressions of a step read when it is entered or judged.
pub(super) fn reads(def: &StepDef) -> impl Iterator<Item = &Reference> {
    use crate::definition::Action;
    let templates = match &def.action {
        Action::Task { with, .. } | Action::Child { with, .. } => vec![with.as_ref()],
        Action::Http(http) => [Some(&http.url), http.body.as_ref()]
            .into_iter()
            .chain(http.headers.iter().map(|(_, value)| Some(value)))
            .collect(),
        Action::Approval(approval) => vec![approval.title.as_ref(), approval.subject.as_ref()],
        Action::JoinChild { .. } | Action::Sleep(_) | Action::Signal(_) => Vec::new(),
    };
    let conditions = [&def.when, &def.requires, &def.verify].into_iter().filter_map(Option::as_ref);
    let cases = def.on_result.iter().filter_map(|case| case.when.as_ref());
    let list = def.for_each.as_ref().map(|each| &each.list);
    templates
        .into_iter()
        .flatten()
        .chain(def.connection.as_ref())
        .flat_map(|template| template.references().map(|(_, expression)| expression))
        .chain(conditions)
        .chain(cases)
        .chain(list)
        .flat_map(|expression| expression.references())
}

/// Whether this row stands for its items or rounds.
pub(super) fn is_group(step: &Step) -> bool {
    matches!(step.place.role, Role::Fan | Role::Loop)
}

//! Which names an expression may read where it stands, and that nothing sensitive reaches an event.

use super::fault::FaultCode;
use super::graph::Graph;
use super::model::{Action, HttpAnswer, StepDef};
use super::reader::{Reader, Where, did_you_mean};
use super::sensitive::{Reach, Segment, reach};
use super::yaml::clip;

/// Where an expression stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    When,
    Requires,
    Verify,
    Until,
    /// `on_result.when`.
    Case,
    /// `for_each`.
    List,
    With,
    /// The url, a header or the body of `http`.
    Http,
    /// The title or the subject of an approval.
    Approval,
    Connection,
    /// When a sleep ends.
    Wake,
    /// `reconcile.with`.
    Probe,
    /// `compensate.with`.
    Undo,
    /// The output of the run.
    Output,
}

/// One expression in the document: where it stands and what it reads.
#[derive(Debug)]
pub(super) struct Use {
    pub(super) step: Option<usize>,
    pub(super) place: Place,
    pub(super) stands: Where,
    pub(super) reads: Vec<Vec<String>>,
}

impl Place {
    fn name(self) -> &'static str {
        match self {
            Place::When => "`when`",
            Place::Requires => "`requires`",
            Place::Verify => "`verify`",
            Place::Until => "`until`",
            Place::Case => "`on_result`",
            Place::List => "`for_each`",
            Place::With => "`with`",
            Place::Http => "`http`",
            Place::Approval => "an approval",
            Place::Connection => "`connection`",
            Place::Wake => "the end of a sleep",
            Place::Probe => "a probe",
            Place::Undo => "a compensation",
            Place::Output => "the output of the run",
        }
    }

    fn sees_output(self) -> bool {
        matches!(self, Place::Verify | Place::Until | Place::Case | Place::Undo)
    }

    fn sees_failure(self) -> bool {
        matches!(self, Place::Case | Place::Probe)
    }

    /// `when` and the list are read once for the whole step, before there are items.
    fn sees_items(self) -> bool {
        !matches!(self, Place::When | Place::List)
    }

    /// What is read here is written into an event or shown to people.
    fn is_recorded(self) -> bool {
        match self {
            Place::Approval | Place::Connection | Place::Wake | Place::Output => true,
            Place::When
            | Place::Requires
            | Place::Verify
            | Place::Until
            | Place::Case
            | Place::List
            | Place::With
            | Place::Http
            | Place::Probe
            | Place::Undo => false,
        }
    }
}

/// Names that mean something of their own, so that no item may be called like them.
pub(super) const NAMES: [&str; 10] =
    ["input", "steps", "item", "index", "output", "previous", "failure", "run", "secrets", "callback"];

/// Checks every use of an expression in the document.
pub(super) fn check(reader: &mut Reader, steps: &[StepDef], graph: &Graph, sensitive: &[String]) {
    for used in std::mem::take(&mut reader.uses) {
        if reader.is_full() {
            return;
        }
        let mut check = Check { reader, steps, graph, used: &used };
        for keys in &used.reads {
            check.name(keys);
        }
        check.exposure(sensitive);
    }
}

struct Check<'c> {
    reader: &'c mut Reader,
    steps: &'c [StepDef],
    graph: &'c Graph,
    used: &'c Use,
}

impl Check<'_> {
    fn step(&self) -> Option<&StepDef> {
        self.used.step.and_then(|step| self.steps.get(step))
    }

    fn is_called_back(&self) -> bool {
        let action = self.step().map(|step| &step.action);
        matches!(action, Some(Action::Http(http)) if http.answer == HttpAnswer::Callback)
    }

    fn name(&mut self, keys: &[String]) {
        let [name, rest @ ..] = keys else { return };
        let place = self.used.place;
        let item = self.step().and_then(|step| step.for_each.as_ref()).map(|each| each.name.as_str());
        match name.as_str() {
            name if item == Some(name) || name == "index" && item.is_some() => {
                if !place.sees_items() {
                    self.not_here(name, "`when` and `for_each` are read once, before there are items");
                }
            }
            "input" => {}
            "steps" => self.step_read(rest),
            "run" => self.second(name, rest, &["id", "attempt"]),
            "output" if place.sees_output() => {}
            "output" => self.not_here(
                name,
                "it is known in verify, until, on_result and compensate; elsewhere read steps.ID.output",
            ),
            "failure" if place.sees_failure() => {}
            "failure" => self.not_here(name, "it is known in on_result and reconcile; elsewhere read steps.ID.failure"),
            "previous" if self.step().is_some_and(|step| step.repeat.is_some()) => self.second(name, rest, &["output"]),
            "previous" => self.not_here(name, "it is the round before this one, in a step with `repeat`"),
            "secrets" if place == Place::Http && rest.is_empty() => {
                self.bad("secrets", "name the secret: secrets.NAME")
            }
            "secrets" if place == Place::Http => {}
            "secrets" => self.not_here(name, "secrets are read in the url, the headers and the body of `http` alone"),
            "callback" if place == Place::Http && self.is_called_back() => self.second(name, rest, &["url"]),
            "callback" if place == Place::Http => self.not_here(name, "add `answer: callback`"),
            "callback" => {
                self.not_here(name, "callback.url is known in the url, the headers and the body of `http` alone")
            }
            "item" | "index" => match item.map(str::to_owned) {
                Some(called) => self.not_here(name, &format!("the item is called `{called}` in this step")),
                None => self.not_here(name, "it is known in a step with `for_each`"),
            },
            name => self.unknown(name, item.map(str::to_owned)),
        }
    }

    /// `steps.ID.output`, of a step that has ended by then.
    fn step_read(&mut self, rest: &[String]) {
        let Some((id, rest)) = rest.split_first() else {
            return self.bad("steps", "name the step: steps.ID.output");
        };
        let Some(&read) = self.graph.ids.get(id.as_str()) else {
            let near = did_you_mean(id, self.graph.ids.keys().map(String::as_str));
            let message = format!("there is no step `{}`", clip(id));
            let stands = &self.used.stands;
            return match near.is_empty() {
                true => self.reader.fault(FaultCode::UnknownStep, stands, message),
                false => self.reader.fault_with_hint(FaultCode::UnknownStep, stands, message, near.trim_end()),
            };
        };
        let full = format!("steps.{id}");
        self.second(&full, rest, &["output", "state", "failure", "failures"]);
        if let Some(step) = self.used.step
            && !self.graph.may_read(step, read)
        {
            let own = if step == read { "this is the step itself" } else { "it need not have ended when this is read" };
            let hint = if step == read {
                "read `output` in verify and on_result".to_owned()
            } else {
                format!("add `{id}` to `after`")
            };
            let message = format!("`{full}` cannot be read here: {own}");
            self.reader.fault_with_hint(FaultCode::StepNotBefore, &self.used.stands, message, hint);
        }
    }

    fn second(&mut self, name: &str, rest: &[String], allowed: &[&str]) {
        let list = || allowed.iter().map(|key| format!("{name}.{key}")).collect::<Vec<_>>().join(", ");
        match rest.first() {
            Some(key) if allowed.contains(&key.as_str()) => {}
            Some(key) => self.bad(&format!("{name}.{}", clip(key)), &format!("there is {}", list())),
            None => self.bad(name, &format!("say which part: {}", list())),
        }
    }

    fn bad(&mut self, read: &str, hint: &str) {
        let message = format!("`{read}` cannot be read");
        self.reader.fault_with_hint(FaultCode::BadReference, &self.used.stands, message, hint);
    }

    fn not_here(&mut self, name: &str, hint: &str) {
        let message = format!("`{name}` is not known in {} here", self.used.place.name());
        self.reader.fault_with_hint(FaultCode::NameNotAllowed, &self.used.stands, message, hint);
    }

    fn unknown(&mut self, name: &str, item: Option<String>) {
        let names = NAMES.into_iter().filter(|name| *name != "item").chain(item.as_deref());
        let hint = format!("{}names start with input, steps or run", did_you_mean(name, names));
        let message = format!("`{}` is not a name", clip(name));
        self.reader.fault_with_hint(FaultCode::NameNotAllowed, &self.used.stands, message, hint);
    }

    /// Sensitive values may be worked with, but not where they would be written down.
    fn exposure(&mut self, sensitive: &[String]) {
        if !self.used.place.is_recorded() {
            return;
        }
        let read = self.used.reads.iter().find(|keys| {
            let paths = source_paths(self.step(), keys);
            paths.iter().any(|path| sensitive.iter().any(|pointer| reach(path, pointer) != Reach::Apart))
        });
        if let Some(keys) = read {
            let message = format!(
                "`{}` holds a sensitive value, and {} is recorded",
                clip(&keys.join(".")),
                self.used.place.name()
            );
            let hint = "sensitive values may be read in with, http, when, requires, verify, until, on_result, for_each, probes and compensations";
            self.reader.fault_with_hint(FaultCode::SensitiveExposed, &self.used.stands, message, hint);
        }
    }
}

/// The paths into the run's input that a reference stands for: read directly, or as an item of a list from there.
pub(super) fn source_paths<'k>(step: Option<&'k StepDef>, keys: &'k [String]) -> Vec<Vec<Segment<'k>>> {
    let Some((name, rest)) = keys.split_first() else { return Vec::new() };
    let named = |keys: &'k [String]| keys.iter().map(|key| Segment::Name(key));
    if name == "input" {
        return vec![named(rest).collect()];
    }
    let each = step.and_then(|step| step.for_each.as_ref()).filter(|each| each.name == *name);
    let Some(each) = each else { return Vec::new() };
    let lists = each.list.references().iter().map(|reference| reference.keys.as_slice());
    lists
        .filter_map(|keys| keys.split_first().filter(|(name, _)| *name == "input"))
        .map(|(_, list)| match each.list.is_path() {
            true => named(list).chain([Segment::Any]).chain(named(rest)).collect(),
            // A list that is computed may hold anything of what it is computed from.
            false => named(list).collect(),
        })
        .collect()
}

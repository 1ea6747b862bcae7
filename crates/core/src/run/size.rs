//! How large a request is: what waits is counted by it, and what stands in events and rows is bounded by it.

use serde_json::{Value, json};

use super::command::{ApprovalAsked, Ask, BlockOn, ChildOutcome, CodedWait, Fault, Json, Report, Resolution};
use super::limits;

/// Bytes of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Stored once, as rows of their own: inputs, outputs, forms that were filled in.
    pub payloads: usize,
    /// What stands in events and in rows that are written again: messages, details, reasons, names.
    pub words: usize,
}

impl Size {
    fn payload(self, json: Option<&Json>) -> Size {
        Size { payloads: self.payloads + json.map_or(0, |json| json.len()), ..self }
    }

    fn word(self, word: &str) -> Size {
        Size { words: self.words + word.len(), ..self }
    }

    fn words<'a>(self, words: impl IntoIterator<Item = &'a str>) -> Size {
        words.into_iter().fold(self, Size::word)
    }

    fn and(self, other: Size) -> Size {
        Size { payloads: self.payloads + other.payloads, words: self.words + other.words }
    }
}

impl Ask {
    pub fn size(&self) -> Size {
        let none = Size::default();
        match self {
            Ask::Start(start) => {
                let labels = start.labels.iter().flat_map(|(name, value)| [name.as_str(), value.as_str()]);
                none.payload(Some(&start.input)).words(labels).words(start.unique.as_deref())
            }
            Ask::Complete { report, .. } => of_report(report),
            Ask::Fail { fault, .. } => of_fault(fault),
            Ask::Block { on, message, .. } => of_block(on).words(message.as_deref()),
            Ask::Effect { name, external_id, result, .. } => {
                none.payload(result.as_ref()).words(name.as_deref()).words(external_id.as_deref())
            }
            Ask::Steps { done, begin, wait, .. } => {
                let done = done.iter().map(|done| match &done.result {
                    Ok(report) => of_report(report),
                    Err(fault) => of_fault(fault),
                });
                let begin = begin.iter().map(|begin| none.word(begin.step_id.as_str()));
                let wait = wait.iter().map(|wait| of_wait(&wait.on).word(wait.step_id.as_str()));
                done.chain(begin).chain(wait).fold(none, Size::and)
            }
            Ask::Decide { comment, form, .. } => none.payload(form.as_ref()).words(comment.as_deref()),
            Ask::Signal { name, payload } => none.payload(Some(payload)).word(name),
            Ask::CallbackAnswer { payload, .. } => none.payload(Some(payload)),
            Ask::Resolve { action, reason, .. } => of_resolution(action).word(reason),
            Ask::ChildEnded { outcome: ChildOutcome::Ended { output, .. }, .. } => none.payload(output.as_ref()),
            Ask::ChildEnded { outcome: ChildOutcome::Refused { message }, .. } => none.word(message),
            Ask::Heartbeat { progress, .. } => {
                none.words(progress.as_ref().and_then(|progress| progress.message.as_deref()))
            }
            Ask::Callback { name, .. } => none.word(name),
            Ask::Unacceptable { code, message, .. } => none.word(code).word(message),
            Ask::MakeLink { whom, groups, .. } => none.word(whom).words(groups.iter().map(String::as_str)),
            Ask::Cancel { reason, .. } | Ask::Pause { reason } => none.word(reason),
            Ask::Claim { .. }
            | Ask::Canceled { .. }
            | Ask::Undelivered { .. }
            | Ask::Resume { .. }
            | Ask::Reconnect { .. }
            | Ask::RetryNow
            | Ask::Wake
            | Ask::Pin { .. } => none,
        }
    }
}

/// What a message or details may take of a story that was cut.
const PART: usize = limits::WORDS_BYTES / 4;

/// Cuts what is told of a failure so that it can be stored: nobody should lose a lease over a long story.
pub fn cut_story(message: &mut String, details: &mut Option<Value>) {
    message.truncate(message.floor_char_boundary(PART));
    if let Some(told) = details.as_mut().filter(|told| of_value(told) > PART) {
        let mut beginning = told.to_string();
        let bytes = beginning.len();
        beginning.truncate(beginning.floor_char_boundary(PART));
        *told = json!({ "beginning": beginning, "bytes": bytes });
    }
}

fn of_report(report: &Report) -> Size {
    let resources = report.resources.iter().flat_map(|resource| {
        [Some(resource.kind.as_str()), Some(resource.id.as_str()), resource.url.as_deref()].into_iter().flatten()
    });
    Size::default().payload(report.output.as_ref()).words(resources).words(report.warnings.iter().map(String::as_str))
}

fn of_fault(fault: &Fault) -> Size {
    let details = fault.details.as_ref().map_or(0, of_value);
    Size { payloads: 0, words: details }.word(&fault.message).words(fault.code.as_deref())
}

fn of_block(on: &BlockOn) -> Size {
    let none = Size::default();
    match on {
        BlockOn::Approval(approval) => of_approval(approval),
        BlockOn::Operator { reason, recommended } => none.word(reason).words(recommended.as_deref()),
        BlockOn::Child { input, .. } => none.payload(Some(input)),
        BlockOn::Callback { name, .. } | BlockOn::Signal { name, .. } => none.word(name),
        BlockOn::Auth { tool, account } => none.word(tool).words(account.as_deref()),
        BlockOn::Timer { .. } => none,
    }
}

fn of_wait(on: &CodedWait) -> Size {
    let none = Size::default();
    match on {
        CodedWait::Approval(approval) => of_approval(approval),
        CodedWait::Signal { names, .. } => none.words(names.iter().map(String::as_str)),
        CodedWait::Child { input, .. } => none.payload(Some(input)),
        CodedWait::Auth { tool, account } => none.word(tool).words(account.as_deref()),
        CodedWait::Sleep { .. } => none,
    }
}

fn of_approval(approval: &ApprovalAsked) -> Size {
    let size = Size::default().payload(Some(&approval.subject)).word(&approval.title);
    size.words(approval.approvers.iter().map(String::as_str)).words(approval.form.as_deref())
}

fn of_resolution(action: &Resolution) -> Size {
    match action {
        Resolution::Complete { output } => Size::default().payload(output.as_ref()),
        Resolution::Correct { input } => Size::default().payload(Some(input)),
        Resolution::Retry { .. } | Resolution::Skip | Resolution::Compensate | Resolution::Fail => Size::default(),
    }
}

/// About what a value takes as text.
pub fn of_value(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => 2 + text.len(),
        Value::Array(items) => 2 + items.iter().map(|item| 1 + of_value(item)).sum::<usize>(),
        Value::Object(fields) => 2 + fields.iter().map(|(name, value)| 4 + name.len() + of_value(value)).sum::<usize>(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_story_that_is_too_long_is_cut_and_a_short_one_is_not() {
        let (mut message, mut details) = ("no".to_owned(), Some(json!({ "code": 7 })));
        cut_story(&mut message, &mut details);
        assert_eq!((message.as_str(), &details), ("no", &Some(json!({ "code": 7 }))));
        let (mut message, mut details) = ("é".repeat(PART), Some(json!({ "stack": vec!["line"; 10_000] })));
        cut_story(&mut message, &mut details);
        assert_eq!(message.len(), PART);
        let details = details.expect("details");
        assert!(details["beginning"].as_str().is_some_and(|text| text.starts_with("{\"stack\":[\"line\",")));
        assert!(message.len() + of_value(&details) <= limits::WORDS_BYTES);
    }
}

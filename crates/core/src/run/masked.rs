//! What a request says, without the sensitive values of its run: messages, reasons, details and names stand in events, rows
//! and views. Payloads are kept as they are, sealed.

use std::borrow::Cow;

use super::command::{ApprovalAsked, Ask, BlockOn, CodedWait, Command, Fault, Report, StepDone, StepWait};
use super::step::{Progress, Resource};
use crate::mask::Mask;

/// The command as the rules may write it down.
pub(super) fn masked(command: &Command, mask: &Mask) -> Command {
    let mut command = command.clone();
    for evidence in &mut command.evidence {
        text(&mut evidence.reference, mask);
    }
    ask(&mut command.ask, mask);
    command
}

fn text(text: &mut String, mask: &Mask) {
    if let Cow::Owned(masked) = mask.text(text) {
        *text = masked;
    }
}

fn maybe(value: &mut Option<String>, mask: &Mask) {
    value.iter_mut().for_each(|value| text(value, mask));
}

/// What a later task needs as it was: it is revealed to tasks alone.
fn id(value: &mut String, mask: &Mask) {
    if let Cow::Owned(masked) = mask.id(value) {
        *value = masked;
    }
}

fn ask(ask: &mut Ask, mask: &Mask) {
    match ask {
        Ask::Complete { report, .. } => of_report(report, mask),
        Ask::Fail { fault, .. } => of_fault(fault, mask),
        Ask::Block { on, message, .. } => {
            of_block(on, mask);
            maybe(message, mask);
        }
        Ask::Heartbeat { progress, .. } => progress.iter_mut().for_each(|progress| of_progress(progress, mask)),
        Ask::Effect { external_id, .. } => external_id.iter_mut().for_each(|external_id| id(external_id, mask)),
        Ask::Steps { done, wait, .. } => {
            done.iter_mut().for_each(|done| of_done(done, mask));
            wait.iter_mut().for_each(|wait| of_wait(wait, mask));
        }
        Ask::Unacceptable { message, .. } => text(message, mask),
        Ask::Decide { comment, .. } => maybe(comment, mask),
        Ask::Cancel { reason, .. } | Ask::Pause { reason } | Ask::Resolve { reason, .. } => text(reason, mask),
        Ask::Start(_)
        | Ask::Claim { .. }
        | Ask::Undelivered { .. }
        | Ask::Callback { .. }
        | Ask::Canceled { .. }
        | Ask::Resume { .. }
        | Ask::MakeLink { .. }
        | Ask::Reconnect { .. }
        | Ask::Signal { .. }
        | Ask::CallbackAnswer { .. }
        | Ask::RetryNow
        // The failure of a child was masked with all that its parent calls sensitive.
        | Ask::ChildEnded { .. }
        | Ask::Wake
        | Ask::Pin { .. } => {}
    }
}

fn of_report(report: &mut Report, mask: &Mask) {
    report.warnings.iter_mut().for_each(|warning| text(warning, mask));
    for Resource { id: name, url, .. } in &mut report.resources {
        id(name, mask);
        url.iter_mut().for_each(|url| id(url, mask));
    }
}

fn of_fault(fault: &mut Fault, mask: &Mask) {
    text(&mut fault.message, mask);
    maybe(&mut fault.code, mask);
    maybe(&mut fault.tool, mask);
    maybe(&mut fault.account, mask);
    fault.details.iter_mut().for_each(|details| mask.value(details));
}

fn of_progress(progress: &mut Progress, mask: &Mask) {
    maybe(&mut progress.message, mask);
}

fn of_approval(asked: &mut ApprovalAsked, mask: &Mask) {
    text(&mut asked.title, mask);
    if let Some(form) = &mut asked.form
        && let Cow::Owned(masked) = mask.json(form)
    {
        *form = masked.into();
    }
}

fn of_block(on: &mut BlockOn, mask: &Mask) {
    match on {
        BlockOn::Operator { reason, recommended } => {
            text(reason, mask);
            maybe(recommended, mask);
        }
        BlockOn::Approval(asked) => of_approval(asked, mask),
        BlockOn::Auth { tool, account } => {
            text(tool, mask);
            maybe(account, mask);
        }
        BlockOn::Callback { .. } | BlockOn::Signal { .. } | BlockOn::Timer { .. } | BlockOn::Child { .. } => {}
    }
}

fn of_done(done: &mut StepDone, mask: &Mask) {
    match &mut done.result {
        Ok(report) => of_report(report, mask),
        Err(fault) => of_fault(fault, mask),
    }
}

fn of_wait(wait: &mut StepWait, mask: &Mask) {
    match &mut wait.on {
        CodedWait::Approval(asked) => of_approval(asked, mask),
        CodedWait::Auth { tool, account } => {
            text(tool, mask);
            maybe(account, mask);
        }
        CodedWait::Signal { .. } | CodedWait::Sleep { .. } | CodedWait::Child { .. } => {}
    }
}

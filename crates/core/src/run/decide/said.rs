//! What a worker's answer says, as a digest: the same answer given again is recognised, another one is refused.

use serde::Serialize;

use crate::contract::FailureClass;
use crate::ids::{Digest, Fields};
use crate::run::command::{
    ApprovalAsked, Ask, BlockOn, CodedWait, Fault, Report, StepBegin, StepDone, StepWait, leaseless_asks,
};
use crate::time::{Span, Timestamp};

/// Of an answer that ends a lease. Reports that leave it as it is have none.
pub(super) fn digest_of(ask: &Ask) -> Option<Digest> {
    let mut said = Said::default();
    match ask {
        Ask::Complete { report, .. } => said.word("complete").report(report),
        Ask::Fail { fault, .. } => said.word("fail").fault(fault),
        Ask::Block { on, message, .. } => said.word("block").block(on).text(message.as_deref()),
        Ask::Canceled { .. } => said.word("canceled"),
        Ask::Unacceptable { code, .. } => said.word("unacceptable").word(code),
        Ask::Steps { done, begin, wait, .. } => said.word("steps").steps(done, begin, wait),
        Ask::Heartbeat { .. }
        | Ask::Effect { .. }
        | Ask::Callback { .. }
        | Ask::Undelivered { .. }
        | leaseless_asks!() => return None,
    };
    Some(said.0.digest())
}

#[derive(Default)]
struct Said(Fields);

impl Said {
    fn bytes(&mut self, bytes: &[u8]) -> &mut Said {
        self.0.add(bytes);
        self
    }

    fn word(&mut self, word: &str) -> &mut Said {
        self.bytes(word.as_bytes())
    }

    fn number(&mut self, number: u64) -> &mut Said {
        self.bytes(&number.to_le_bytes())
    }

    /// Nothing is something else than an empty text.
    fn text(&mut self, text: Option<&str>) -> &mut Said {
        match text {
            Some(text) => self.number(1).word(text),
            None => self.number(0),
        }
    }

    fn span(&mut self, span: Option<Span>) -> &mut Said {
        self.number(span.map_or(u64::MAX, Span::micros))
    }

    fn instant(&mut self, at: Timestamp) -> &mut Said {
        self.bytes(&at.micros().to_le_bytes())
    }

    /// What is rarely given and has many parts.
    fn parts(&mut self, parts: &impl Serialize) -> &mut Said {
        self.text(serde_json::to_string(parts).ok().as_deref())
    }

    fn report(&mut self, report: &Report) -> &mut Said {
        self.text(report.output.as_deref()).number(report.outcome as u64);
        if report.resources.is_empty() { self } else { self.parts(&report.resources) }
    }

    fn fault(&mut self, fault: &Fault) -> &mut Said {
        self.text(fault.class.map(FailureClass::as_str))
            .word(&fault.message)
            .text(fault.code.as_deref())
            .span(fault.retry_after)
            .parts(&fault.details)
            .text(fault.tool.as_deref())
            .text(fault.account.as_deref())
    }

    fn block(&mut self, on: &BlockOn) -> &mut Said {
        match on {
            BlockOn::Auth { tool, account } => self.word("auth").word(tool).text(account.as_deref()),
            BlockOn::Callback { name, deadline } => self.word("callback").word(name).span(*deadline),
            BlockOn::Signal { name, deadline } => self.word("signal").word(name).span(*deadline),
            BlockOn::Approval(asked) => self.word("approval").approval(asked),
            BlockOn::Timer { until } => self.word("timer").instant(*until),
            BlockOn::Operator { reason, recommended } => {
                self.word("operator").word(reason).text(recommended.as_deref())
            }
            BlockOn::Child { workflow, input } => self.word("child").word(workflow.as_str()).word(input),
        }
    }

    fn approval(&mut self, asked: &ApprovalAsked) -> &mut Said {
        self.word(&asked.title)
            .word(&asked.subject)
            .parts(&asked.approvers)
            .number(u64::from(asked.quorum))
            .number(u64::from(asked.not_requester))
            .span(asked.deadline)
            .parts(&asked.at_deadline)
            .text(asked.form.as_deref())
    }

    fn steps(&mut self, done: &[StepDone], begin: &[StepBegin], wait: &[StepWait]) -> &mut Said {
        for done in done {
            self.word("done").word(done.step_id.as_str()).parts(&done.begun_at);
            match &done.result {
                Ok(report) => self.report(report),
                Err(fault) => self.fault(fault),
            };
        }
        for begin in begin {
            self.begin(begin);
        }
        for wait in wait {
            self.word("wait").word(wait.step_id.as_str()).wait(&wait.on);
        }
        self
    }

    fn begin(&mut self, begin: &StepBegin) -> &mut Said {
        self.word("begin")
            .word(begin.step_id.as_str())
            .number(begin.effect as u64)
            .text(begin.reconcile.as_ref().map(|handler| handler.as_str()))
            .text(begin.compensate.as_ref().map(|handler| handler.as_str()))
            .span(begin.timeout)
            .parts(&begin.retry)
            .text(begin.input_digest.as_deref())
    }

    fn wait(&mut self, on: &CodedWait) -> &mut Said {
        self.word(on.kind());
        match on {
            CodedWait::Approval(asked) => self.approval(asked),
            CodedWait::Signal { names, mode, deadline, at_deadline } => {
                self.parts(names).number(*mode as u64).span(*deadline).parts(at_deadline)
            }
            CodedWait::Sleep { until } => self.instant(*until),
            CodedWait::Child { workflow, version, input, wait, on_cancel, deadline, at_deadline } => self
                .word(workflow.as_str())
                .number(version.map_or(0, u64::from))
                .word(input)
                .number(u64::from(*wait))
                .number(*on_cancel as u64)
                .span(*deadline)
                .parts(at_deadline),
            CodedWait::Auth { tool, account } => self.word(tool).text(account.as_deref()),
        }
    }
}

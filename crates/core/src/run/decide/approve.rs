//! Approvals: bound to what is approved, by those who may, once.

use crate::contract::{Failure, FailureClass, FailureKind};
use crate::definition::{Action, Approval, AtDeadline, OnReject, Schema, StepDef};
use crate::ids::Path;
use crate::run::advance::{Decided, Draft};
use crate::run::command::{ApprovalAsked, Ask, Json, Rejection, Reply};
use crate::run::event::Fact;
use crate::run::limits;
use crate::run::scope::{Here, json_text};
use crate::run::step::{ApprovalWait, Block, Decision, FieldFault, ProofBy, Ref, Step, Wait};
use crate::time::Timestamp;

use super::flow::Opening;

impl Draft<'_> {
    pub(super) fn open_approval(
        &mut self,
        opening: &Opening,
        def: &StepDef,
        approval: &Approval,
        here: &Here,
    ) -> Decided {
        let title = match &approval.title {
            Some(title) => self.render_title(title, here)?,
            None => Ok(def.title.clone().unwrap_or_else(|| def.id.clone())),
        };
        let subject = match &approval.subject {
            Some(subject) => self.render(subject, here)?.map(Some),
            None => Ok(None),
        };
        let (title, subject) = match (title, subject) {
            (Ok(title), Ok(subject)) => (title, subject),
            (Err(error), _) | (_, Err(error)) => return self.open_broken(opening, &error),
        };
        let subject = match subject {
            Some(json) => self.store_input(&opening.path, json.into()),
            None => self.run.head.started.input.clone(),
        };
        self.row_for(opening)?;
        let wait = ApprovalWait {
            title: self.masked(title).into_owned(),
            subject,
            approvers: approval.approvers.clone(),
            quorum: approval.quorum,
            not_requester: approval.not_requester,
            deadline: def.deadline,
            at_deadline: def.at_deadline.clone(),
            escalated: false,
            asked_by_task: false,
            form: None,
        };
        self.wait_for_approval(&opening.path, wait)
    }

    /// An approval that a task or a coded body asks for.
    pub(super) fn ask_for_approval(&mut self, path: &Path, asked: &ApprovalAsked, asked_by_task: bool) -> Decided {
        self.check_size("the subject", &asked.subject)?;
        self.check_json("subject", &asked.subject)?;
        let form = asked.form.as_deref().map(read_form).transpose()?;
        let name = self.numbered(path, "subject");
        let subject = self.store(name, asked.subject.clone());
        let wait = ApprovalWait {
            title: asked.title.clone(),
            subject,
            approvers: asked.approvers.clone(),
            quorum: asked.quorum.max(1),
            not_requester: asked.not_requester,
            deadline: asked.deadline,
            at_deadline: asked.at_deadline.clone(),
            escalated: false,
            asked_by_task,
            form,
        };
        self.wait_for_approval(path, wait)
    }

    pub(super) fn wait_for_approval(&mut self, path: &Path, wait: ApprovalWait) -> Decided {
        let who = if wait.approvers.is_empty() { "an approver".to_owned() } else { wait.approvers.join(" or ") };
        let until = wait.deadline.map(|deadline| self.now + deadline);
        let message = format!("{} Waits for {who}.", super::recover::sentence(&wait.title));
        self.rest(path, Block::new(Wait::Approval(Box::new(wait)), message, self.now).until(until))
    }

    pub(super) fn decide_approval(&mut self, ask: &Ask) -> Decided<Reply> {
        let Ask::Decide { step_id, by, approve, comment, form, subject_digest, via } = ask else {
            return Ok(Reply::Done);
        };
        let path = self.which_approval(step_id.as_ref(), by)?;
        let step = self.must_row(&path)?;
        let open = match &step.block {
            Some(Block { wait: Wait::Approval(wait), until, overdue, .. }) => Some((wait.clone(), *until, *overdue)),
            _ => None,
        };
        let same = |decision: &&Decision| decision.by == *by && decision.approve == *approve;
        if let Some(before) = step.decisions.iter().find(|decision| decision.by == *by) {
            let altered = subject_digest.is_some_and(|digest| digest != before.subject_digest);
            let current = open.as_ref().map_or(before.subject_digest, |(wait, ..)| wait.subject.digest);
            let form_digest = form.as_ref().map(|form| crate::ids::Digest::of(form.as_bytes()));
            let alike = before.form.as_ref().map(|form| form.digest) == form_digest && before.comment == *comment;
            if same(&before) && alike && !altered && before.subject_digest == current {
                return Ok(Reply::Replayed);
            }
            return Err(decided(&path, before));
        }
        let Some((wait, until, overdue)) = open else { return Err(self.not_open(&path, step)) };
        if let Some(given) = subject_digest.filter(|given| *given != wait.subject.digest) {
            return Err(Rejection::SubjectChanged { path, current: wait.subject.digest, given }.into());
        }
        self.check_approver(&path, &wait, by, &self.around.groups)?;
        if let Some(at) = until.filter(|until| *until <= self.now && !overdue && wait.at_deadline.is_some()) {
            return Err(Rejection::ApprovalExpired { path, at }.into());
        }
        let form = self.check_form(&path, &wait, *approve, form.as_ref())?;
        let decision = Decision {
            by: by.clone(),
            approve: *approve,
            at: self.now,
            subject_digest: wait.subject.digest,
            comment: comment.clone(),
            form,
            via: via.clone(),
        };
        let fact =
            if *approve { Fact::ApprovalGiven(decision.clone()) } else { Fact::ApprovalRejected(decision.clone()) };
        self.tell_of(&path, fact)?;
        let given = self.must_row(&path)?.decisions.iter().filter(|decision| decision.approve).count();
        if *approve && given < wait.quorum as usize {
            return Ok(Reply::Recorded);
        }
        self.approval_decided(&path, &wait, &decision)?;
        Ok(Reply::Done)
    }

    /// The approval that is meant: the one named, or the only one open.
    fn which_approval(&self, step_id: Option<&Path>, by: &str) -> Decided<Path> {
        if let Some(path) = step_id {
            return match self.row(path)? {
                Some(_) => Ok(path.clone()),
                None => Err(Rejection::NoStep(path.clone()).into()),
            };
        }
        let mut open = self
            .run
            .open()
            .filter(|step| matches!(step.block.as_ref().map(|block| &block.wait), Some(Wait::Approval(_))));
        let before =
            self.run.head.last_decided.as_ref().filter(|(_, decided_by)| decided_by == by).map(|(path, _)| path);
        match (open.next(), open.next(), before) {
            (Some(only), None, None) => Ok(only.path.clone()),
            (Some(only), None, Some(before)) if only.path == *before => Ok(before.clone()),
            // This may be a repetition of an answer to an earlier approval: it must not decide another one.
            (Some(only), None, Some(_)) => Err(Rejection::StepIdRequired { open: vec![only.path.clone()] }.into()),
            (Some(first), Some(second), _) => {
                let rest = open.map(|step| step.path.clone());
                let open = [first.path.clone(), second.path.clone()].into_iter().chain(rest).collect();
                Err(Rejection::StepIdRequired { open }.into())
            }
            // Repeating an answer is not an error, even when it was the last thing the run waited for.
            (None, _, Some(before)) => Ok(before.clone()),
            (None, _, None) if self.run.is_terminal() => Err(Rejection::RunTerminal(self.state()).into()),
            (None, _, None) => Err(Rejection::NotWaiting { what: "an approval", state: self.state() }.into()),
        }
    }

    fn not_open(&self, path: &Path, step: &Step) -> crate::run::advance::Stop {
        match step.decisions.last() {
            Some(before) => decided(path, before),
            None if step.failure.as_ref().is_some_and(|failure| failure.kind == FailureKind::Expired) => {
                let at = step.ended_at.unwrap_or(self.now);
                Rejection::ApprovalExpired { path: path.clone(), at }.into()
            }
            None if self.run.is_terminal() => Rejection::RunTerminal(self.state()).into(),
            None => Rejection::NotWaiting { what: "an approval", state: self.state() }.into(),
        }
    }

    /// Whether this person may decide, being a member of these groups.
    fn check_approver(&self, path: &Path, wait: &ApprovalWait, by: &str, groups: &[String]) -> Decided {
        let may = wait.approvers.is_empty()
            || wait.approvers.iter().any(|approver| match approver.strip_prefix("role:") {
                Some(role) => groups.iter().any(|group| group == role),
                None => approver == by,
            });
        if !may {
            let approvers = wait.approvers.clone();
            return Err(Rejection::NotAnApprover { path: path.clone(), by: by.into(), approvers }.into());
        }
        if wait.not_requester && self.has_requested(path, by)? {
            return Err(Rejection::SelfApproval { path: path.clone(), by: by.into() }.into());
        }
        Ok(())
    }

    /// Whoever started this run, or the run that it reruns, or made a link to this approval, asks for it.
    fn has_requested(&self, path: &Path, who: &str) -> Decided<bool> {
        Ok(self.has_started(who) || self.must_row(path)?.link_makers.iter().any(|maker| maker == who))
    }

    fn has_started(&self, who: &str) -> bool {
        let started = &self.run.head.started;
        started.requester == who || started.requested_before.iter().any(|before| before == who)
    }

    /// A link is for somebody who may decide. Where the requester may not, neither may a link of theirs.
    pub(super) fn make_link(
        &mut self,
        path: &Path,
        whom: &str,
        groups: &[String],
        expires_at: Timestamp,
    ) -> Decided<Reply> {
        let step = self.row(path)?.ok_or_else(|| Rejection::NoStep(path.clone()))?;
        let Some(Block { wait: Wait::Approval(wait), .. }) = &step.block else {
            return Err(self.not_open(path, step));
        };
        self.check_approver(path, wait, whom, groups)?;
        let maker = &self.actor.id;
        if wait.not_requester && self.has_started(maker) {
            return Err(Rejection::SelfApproval { path: path.clone(), by: maker.clone() }.into());
        }
        self.tell_of(path, Fact::LinkMade { whom: whom.into(), expires_at })?;
        Ok(Reply::Done)
    }

    /// A yes must fill the form in; a no may leave it out, but not fill it in wrongly.
    fn check_form(
        &mut self,
        path: &Path,
        wait: &ApprovalWait,
        approve: bool,
        form: Option<&Json>,
    ) -> Decided<Option<Ref>> {
        let step = self.must_row(path)?;
        let schema = match (&wait.form, &self.spec(step).action) {
            (Some(form), _) => Schema::of_stored(form).ok(),
            (None, Action::Approval(approval)) => approval.form.clone(),
            (None, _) => None,
        };
        if let Some(schema) = schema.filter(|_| approve || form.is_some()) {
            let given = form.map_or("null", |form| &**form);
            if let Err(faults) = schema.check(given) {
                let at_form = |fault: crate::definition::SchemaFault| FieldFault {
                    pointer: format!("/form{}", fault.pointer),
                    detail: fault.detail,
                };
                return Err(Rejection::Invalid(faults.into_iter().map(at_form).collect()).into());
            }
        }
        if let Some(form) = form {
            self.check_size("the form", form)?;
            self.check_json("form", form)?;
        }
        let name = self.numbered(path, "form");
        Ok(form.map(|form| self.store(name, form.clone())))
    }

    fn approval_decided(&mut self, path: &Path, wait: &ApprovalWait, decision: &Decision) -> Decided {
        let output = self.decision_json(decision)?;
        if wait.asked_by_task {
            let name = self.numbered(path, "decision");
            let payload = self.store(name, output);
            return self.deliver(path, "approval", None, Some(payload), Some(decision.by.clone()));
        }
        if decision.approve {
            return self.complete_step(path, Some(output), ProofBy::Engine);
        }
        let def = self.spec(self.must_row(path)?);
        let on_reject = if let Action::Approval(approval) = &def.action { approval.on_reject } else { OnReject::Fail };
        let message = format!(
            "{} rejected it{}",
            decision.by,
            decision.comment.as_deref().map(|comment| format!(": {comment}")).unwrap_or_default()
        );
        let failure = Failure::new(FailureKind::Rejected, FailureClass::Fatal, message, self.now)
            .of(path.clone(), 1)
            .coded("rejected");
        match on_reject {
            OnReject::Continue => self.complete_step(path, Some(output), ProofBy::Engine),
            OnReject::Warn => self.fail_step(path, failure, true),
            OnReject::Fail => {
                if self.take_case(path, &def, Some(output), Some(&failure))? {
                    return Ok(());
                }
                self.fail_step(path, failure, false)
            }
            OnReject::GoTo(jump) if !self.can_jump(jump) => {
                let failure = self.too_many_visits(path, jump, 1);
                self.fail_step(path, failure, false)
            }
            OnReject::GoTo(jump) => {
                let index = self.must_row(path)?.place.index.unwrap_or(0);
                let output = Some(self.store(path.payload("output"), output));
                let failure = Some(Box::new(failure));
                self.tell_of(path, Fact::StepCaseHandled { case: 0, output, failure, undoable: false })?;
                self.jump(path, index, jump)?;
                self.ended(path)
            }
        }
    }

    fn decision_json(&self, decision: &Decision) -> Decided<Json> {
        let form = match &decision.form {
            Some(form) => self.payload(&form.name)?,
            None => "null",
        };
        let comment = decision.comment.as_deref().map_or_else(|| "null".to_owned(), json_text);
        let word = if decision.approve { "approved" } else { "rejected" };
        Ok(format!(
            "{{\"decision\":\"{word}\",\"by\":{},\"at\":\"{}\",\"comment\":{comment},\"form\":{form}}}",
            json_text(&decision.by),
            decision.at
        )
        .into())
    }

    /// The deadline of a wait passed: what was declared for that, or nothing but the fact.
    pub(super) fn wait_is_over(&mut self, path: &Path) -> Decided {
        let step = self.must_row(path)?;
        let def = self.spec(step);
        let (wait, at_deadline) = match step.block.as_ref().map(|block| block.wait.clone()) {
            Some(Wait::Approval(wait)) => {
                let at_deadline = wait.at_deadline.clone();
                (Some(wait), at_deadline)
            }
            _ if self.is_own_wait(path)? => (None, def.at_deadline.clone()),
            _ => (None, None),
        };
        let what = step.block.as_ref().map_or("the wait", |block| match block.wait {
            Wait::Approval(_) => "the approval",
            Wait::Signal { .. } => "the signal",
            Wait::Child { .. } => "the child run",
            Wait::Auth { .. }
            | Wait::Callback { .. }
            | Wait::Timer
            | Wait::Retry { .. }
            | Wait::Lost { .. }
            | Wait::Probe
            | Wait::Operator { .. } => "the answer",
        });
        let message = format!("{what} did not come in time");
        let expired = Failure::new(FailureKind::Expired, FailureClass::Fatal, message, self.now)
            .coded("expired")
            .of(path.clone(), step.attempt.max(1));
        match at_deadline {
            None => self.tell_of(path, Fact::StepOverdue),
            Some(AtDeadline::Fail) => self.expire(path, expired, false),
            Some(AtDeadline::Warn) => self.expire(path, expired, true),
            Some(AtDeadline::Approve) => match wait {
                Some(wait) => {
                    self.tell_of(path, Fact::ApprovalExpired)?;
                    let decision = Decision {
                        by: "deadline".into(),
                        approve: true,
                        at: self.now,
                        subject_digest: wait.subject.digest,
                        comment: None,
                        form: None,
                        via: None,
                    };
                    self.approval_decided(path, &wait, &decision)
                }
                None => self.expire(path, expired, false),
            },
            Some(AtDeadline::Escalate(approvers)) => match wait {
                Some(wait) if !wait.escalated => {
                    let until = self.now + wait.deadline.unwrap_or(crate::time::Span::from_secs(3_600));
                    self.tell_of(path, Fact::ApprovalEscalated { approvers, until })
                }
                _ => self.expire(path, expired, false),
            },
        }
    }

    fn expire(&mut self, path: &Path, failure: Failure, tolerated: bool) -> Decided {
        let step = self.must_row(path)?;
        if matches!(step.block.as_ref().map(|block| &block.wait), Some(Wait::Approval(_))) {
            self.tell_of(path, Fact::ApprovalExpired)?;
        }
        let def = self.spec(self.must_row(path)?);
        if !tolerated && self.take_case(path, &def, None, Some(&failure))? {
            return Ok(());
        }
        self.fail_step(path, failure, tolerated)
    }
}

/// The schema of a form that is asked for; one that cannot be used is refused with the question.
fn read_form(json: &str) -> Decided<serde_json::Value> {
    let (size, limit) = (json.len(), limits::FORM_BYTES);
    if size > limit {
        return Err(Rejection::TooLarge { what: "the form", size, limit }.into());
    }
    let fault = |detail: String| Rejection::Invalid(vec![FieldFault { pointer: "/form".into(), detail }]);
    let form = serde_json::from_str(json).map_err(|error| fault(format!("not JSON: {error}")))?;
    Schema::compile(&form).map_err(|error| fault(format!("not a usable JSON Schema: {error}")))?;
    Ok(form)
}

fn decided(path: &Path, before: &Decision) -> crate::run::advance::Stop {
    Rejection::AlreadyDecided { path: path.clone(), by: before.by.clone(), at: before.at }.into()
}

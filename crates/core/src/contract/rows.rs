// The rows themselves. Random runs are played in the tests and take exactly these: no move outside, no row never taken.

table! {
    /// What a run may do.
    RUN: RunState of Run by Lifecycle {
        start { Queued: START, Paused: START }
        Queued {
            Running: CLAIM,
            WaitingOnTool: START | MOVED,
            WaitingOnAuth: START | MOVED,
            WaitingOnApproval: START | MOVED,
            WaitingOnChild: START | MOVED,
            WaitingOnTimer: START | MOVED,
            WaitingOnOperator: START | MOVED,
            RetryScheduled: MOVED,
            Stalled: MOVED,
            Paused: MOVED | PAUSE,
            Compensating: MOVED | CANCEL,
            CancelRequested: CANCEL,
            Succeeded: START | MOVED,
            CompletedWithWarnings: START | MOVED,
            Failed: START | MOVED,
            Canceled: CANCEL,
        }
        Running {
            Queued: WORK | TIME,
            WaitingOnTool: WORK | TIME,
            WaitingOnAuth: WORK | TIME,
            WaitingOnApproval: WORK | TIME,
            WaitingOnChild: WORK | TIME,
            WaitingOnTimer: WORK | TIME,
            WaitingOnOperator: WORK | TIME,
            RetryScheduled: WORK | TIME,
            Stalled: WORK | TIME,
            Paused: WORK | MOVED | PAUSE,
            Compensating: WORK | TIME,
            CancelRequested: CANCEL,
            Succeeded: WORK | TIME,
            CompletedWithWarnings: WORK | TIME,
            Failed: WORK | TIME,
        }
        WaitingOnTool {
            Queued: MOVED,
            WaitingOnAuth: MOVED,
            WaitingOnApproval: MOVED,
            WaitingOnChild: MOVED,
            WaitingOnTimer: MOVED,
            WaitingOnOperator: MOVED,
            RetryScheduled: MOVED,
            Stalled: MOVED,
            Paused: MOVED | PAUSE,
            Compensating: MOVED | CANCEL,
            CancelRequested: CANCEL,
            Succeeded: MOVED,
            CompletedWithWarnings: MOVED,
            Failed: MOVED,
            Canceled: CANCEL,
        }
        WaitingOnAuth {
            Queued: MOVED,
            WaitingOnTool: MOVED,
            WaitingOnApproval: MOVED,
            WaitingOnChild: MOVED,
            WaitingOnTimer: MOVED,
            WaitingOnOperator: MOVED,
            RetryScheduled: MOVED,
            Stalled: MOVED,
            Paused: MOVED | PAUSE,
            Compensating: MOVED | CANCEL,
            CancelRequested: CANCEL,
            Succeeded: MOVED,
            CompletedWithWarnings: MOVED,
            Failed: MOVED,
            Canceled: CANCEL,
        }
        WaitingOnApproval {
            Queued: MOVED,
            WaitingOnTool: MOVED,
            WaitingOnAuth: MOVED,
            WaitingOnChild: MOVED,
            WaitingOnTimer: MOVED,
            WaitingOnOperator: MOVED,
            RetryScheduled: MOVED,
            Stalled: MOVED,
            Paused: MOVED | PAUSE,
            Compensating: MOVED | CANCEL,
            CancelRequested: CANCEL,
            Succeeded: MOVED,
            CompletedWithWarnings: MOVED,
            Failed: MOVED,
            Canceled: CANCEL,
        }
        WaitingOnChild {
            Queued: MOVED,
            WaitingOnTool: MOVED,
            WaitingOnAuth: MOVED,
            WaitingOnApproval: MOVED,
            WaitingOnTimer: MOVED,
            WaitingOnOperator: MOVED,
            RetryScheduled: MOVED,
            Stalled: MOVED,
            Paused: MOVED | PAUSE,
            Compensating: MOVED | CANCEL,
            CancelRequested: CANCEL,
            Succeeded: MOVED,
            CompletedWithWarnings: MOVED,
            Failed: MOVED,
            Canceled: CANCEL,
        }
        WaitingOnTimer {
            Queued: MOVED,
            WaitingOnTool: MOVED,
            WaitingOnAuth: MOVED,
            WaitingOnApproval: MOVED,
            WaitingOnChild: MOVED,
            WaitingOnOperator: MOVED,
            Paused: MOVED | PAUSE,
            Compensating: MOVED | CANCEL,
            CancelRequested: CANCEL,
            Succeeded: MOVED,
            CompletedWithWarnings: MOVED,
            Failed: MOVED,
            Canceled: CANCEL,
        }
        WaitingOnOperator {
            Queued: MOVED,
            WaitingOnTool: MOVED,
            WaitingOnAuth: MOVED,
            WaitingOnApproval: MOVED,
            WaitingOnChild: MOVED,
            WaitingOnTimer: MOVED,
            RetryScheduled: MOVED,
            Stalled: MOVED,
            Paused: MOVED | PAUSE,
            Compensating: MOVED | CANCEL,
            CancelRequested: CANCEL,
            Succeeded: MOVED,
            CompletedWithWarnings: MOVED,
            Failed: MOVED,
            Canceled: MOVED | CANCEL,
        }
        RetryScheduled {
            Queued: MOVED,
            WaitingOnTool: MOVED,
            WaitingOnAuth: MOVED,
            WaitingOnApproval: MOVED,
            WaitingOnChild: MOVED,
            WaitingOnTimer: MOVED,
            WaitingOnOperator: MOVED,
            Paused: MOVED | PAUSE,
            Compensating: MOVED | CANCEL,
            CancelRequested: CANCEL,
            Succeeded: MOVED,
            CompletedWithWarnings: MOVED,
            Failed: MOVED,
            Canceled: CANCEL,
        }
        Stalled {
            Queued: MOVED,
            WaitingOnTool: MOVED,
            WaitingOnAuth: MOVED,
            WaitingOnApproval: MOVED,
            WaitingOnChild: MOVED,
            WaitingOnTimer: MOVED,
            WaitingOnOperator: MOVED,
            RetryScheduled: MOVED,
            Paused: MOVED | PAUSE,
            Compensating: MOVED | CANCEL,
            CancelRequested: CANCEL,
            Succeeded: MOVED,
            CompletedWithWarnings: MOVED,
            Failed: MOVED,
            Canceled: MOVED | CANCEL,
        }
        Paused {
            Queued: MOVED | CANCEL,
            Running: TIME | OPERATOR,
            WaitingOnTool: MOVED,
            WaitingOnAuth: MOVED,
            WaitingOnApproval: MOVED,
            WaitingOnChild: MOVED | CANCEL,
            WaitingOnTimer: MOVED,
            WaitingOnOperator: MOVED | CANCEL,
            RetryScheduled: MOVED,
            Stalled: MOVED,
            Compensating: MOVED | CANCEL,
            CancelRequested: CANCEL,
            Succeeded: MOVED | CANCEL,
            CompletedWithWarnings: MOVED | CANCEL,
            Failed: MOVED | CANCEL,
            Canceled: CANCEL,
        }
        Compensating {
            WaitingOnOperator: WORK | MOVED | CANCEL,
            Stalled: WORK | MOVED | CANCEL,
            Failed: WORK | MOVED | CANCEL,
            Canceled: WORK | MOVED | CANCEL,
        }
        CancelRequested {
            Compensating: WORK | MOVED,
            Succeeded: WORK | MOVED,
            CompletedWithWarnings: WORK | MOVED,
            Failed: WORK | MOVED,
            Canceled: WORK | MOVED,
        }
    }
}

table! {
    /// What the body may do.
    BODY: BodyState of Workflow by Engine {
        start { Running: START | MOVED }
        Running {
            Completed: START | WORK | MOVED | CANCEL,
            Failed: START | WORK | MOVED | CANCEL,
        }
    }
}

table! {
    /// What an instance of a step may do.
    STEP: StepState of Step by Engine {
        start { Pending: ANY }
        Pending {
            Issued: ANY,
            Running: ANY,
            Waiting: ANY,
            RetryScheduled: ANY,
            Reconciling: ANY,
            Completed: ANY,
            Failed: ANY,
            Skipped: ANY,
            CaseHandled: ANY,
            Canceled: ANY,
        }
        Issued {
            Pending: PAUSE,
            Running: CLAIM,
            Completed: ANY,
            Failed: ANY,
            Canceled: ANY,
        }
        Running {
            Pending: ANY,
            Issued: ANY,
            Waiting: ANY,
            RetryScheduled: ANY,
            Reconciling: ANY,
            Stalled: TIME,
            Completed: ANY,
            Failed: ANY,
            CaseHandled: ANY,
            Canceled: ANY,
        }
        Waiting {
            Pending: ANY,
            Issued: ANY,
            RetryScheduled: ANY,
            Reconciling: ANY,
            Stalled: TIME,
            Completed: ANY,
            Failed: ANY,
            Skipped: ANY,
            CaseHandled: ANY,
            Canceled: ANY,
            UndoFailed: OPERATOR,
        }
        RetryScheduled {
            Pending: ANY,
            Issued: ANY,
            Running: ANY,
            Completed: ANY,
            Failed: ANY,
            Skipped: ANY,
            CaseHandled: ANY,
            Canceled: ANY,
        }
        Reconciling {
            Pending: ANY,
            Issued: ANY,
            Waiting: ANY,
            Stalled: TIME,
            Completed: ANY,
            Failed: ANY,
            Skipped: ANY,
            CaseHandled: ANY,
            Canceled: ANY,
        }
        Stalled {
            Pending: ANY,
            Issued: ANY,
            Waiting: ANY,
            RetryScheduled: ANY,
            Reconciling: ANY,
            Completed: ANY,
            Failed: ANY,
            Skipped: ANY,
            CaseHandled: ANY,
            Canceled: ANY,
        }
        Completed {
            Compensating: ANY,
        }
        Failed {
            Waiting: ANY,
            Reconciling: ANY,
            Completed: ANY,
        }
        Canceled {
            Waiting: ANY,
            Reconciling: ANY,
            Completed: ANY,
        }
        Compensating {
            Compensated: WORK | TIME | OPERATOR,
            UndoFailed: OPERATOR,
        }
    }
}

table! {
    /// What a task may do.
    TASK: TaskState of Task by Engine {
        start { Issued: ANY }
        Issued {
            Claimed: CLAIM => Worker,
            Canceled: ANY | PAUSE,
        }
        Claimed {
            Completed: WORK => Worker,
            Failed: WORK | TIME,
            Blocked: WORK => Worker,
            Lost: TIME,
            Canceled: ANY,
        }
    }
}

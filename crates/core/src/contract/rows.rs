// The rows themselves. A test plays random runs and finds exactly these: no move outside, no row never taken.

table! {
    /// What a task may do.
    TASK: TaskState of Task by Engine {
        start { Issued: Started }
        Issued { Claimed: Claimed [Worker], Canceled: CancelAsked }
        Claimed { Completed: Completed [Worker] }
    }
}

table! {
    /// What the body may do.
    BODY: BodyState of Workflow by Engine {
        start { Running: Started }
        Running { Completed: Completed, Failed: Failed }
    }
}

table! {
    /// What an instance of a step may do.
    STEP: StepState of Step by Engine {
        start { Pending: Started }
    }
}

table! {
    /// What a run may do.
    RUN: RunState of Run by Lifecycle {
        start { Queued: Started, Paused: Started }
        Queued { Running: Claimed, Canceled: CancelAsked }
        Running { Queued: LeaseLost }
        WaitingOnTool { Canceled: CancelAsked }
        WaitingOnAuth { Canceled: CancelAsked }
        WaitingOnApproval { Canceled: CancelAsked }
        WaitingOnChild { Canceled: CancelAsked }
        WaitingOnTimer { Canceled: CancelAsked }
        WaitingOnOperator { Canceled: CancelAsked }
        RetryScheduled { Canceled: CancelAsked }
        Stalled { Canceled: CancelAsked }
        Paused { Canceled: CancelAsked }
        Compensating { Stalled: LeaseLost }
        CancelRequested { Canceled: LeaseLost }
    }
}

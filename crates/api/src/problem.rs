//! Why a request is refused: one table of codes, each with its status, what it means and what to do about it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Where the page of a problem is; its code follows.
pub const PAGES: &str = "/problems/";

macro_rules! codes {
    ($($name:ident $slug:literal $status:literal $title:literal, $means:literal;)*) => {
        /// The stable name of a refusal.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code { $($name,)* }

        impl Code {
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];

            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$name => $slug,)* }
            }

            pub const fn status(self) -> u16 {
                match self { $(Code::$name => $status,)* }
            }

            pub const fn title(self) -> &'static str {
                match self { $(Code::$name => $title,)* }
            }

            /// What it means and what helps.
            pub const fn means(self) -> &'static str {
                match self { $(Code::$name => $means,)* }
            }
        }
    };
}

codes! {
    // The request itself.
    MalformedJson "malformed-json" 400 "The body is not JSON", "The body must be one JSON value in UTF-8 without a byte order mark. `offset` tells where reading stopped.";
    JsonTooDeep "json-too-deep" 400 "The JSON is nested too deeply", "At most 64 levels are read. Flatten the value, or store it elsewhere and pass a reference.";
    DuplicateKey "duplicate-key" 400 "A field is given twice", "A field of the request may be given once. Inside payloads keys are yours.";
    InvalidIdempotencyKey "invalid-idempotency-key" 400 "The Idempotency-Key cannot be used", "A key has 1 to 255 printable ASCII characters. A UUID is a good one.";
    CredentialsInUrl "credentials-in-url" 400 "A key does not belong in a URL", "URLs end up in logs. Send the key as `Authorization: Bearer KEY`, and replace this one.";
    InvalidCursor "invalid-cursor" 400 "The cursor is not one of ours", "Pass `next_cursor` of the page before, unchanged.";
    BadRequest "bad-request" 400 "The request cannot be read", "The detail says what is wrong with it.";
    Unauthenticated "unauthenticated" 401 "A key is needed", "Send `Authorization: Bearer KEY`. `abide key create NAME --role ROLE` makes one.";
    InvalidCredentials "invalid-credentials" 401 "The key is not valid", "It is mistyped, unknown, revoked or expired; for all of these the answer is the same.";
    SignatureInvalid "signature-invalid" 401 "The signature is missing or wrong", "Sign `id.timestamp.body` of exactly the bytes that are sent.";
    SignatureExpired "signature-expired" 401 "The signature is too old", "Its timestamp must be within 300 seconds of now. Check the sender's clock.";
    Forbidden "forbidden" 403 "The key may not do this", "The detail names the key's role and the roles that may.";
    NotLeaseOwner "not-lease-owner" 403 "The lease belongs to another key", "Only the key that claimed a task may report on it.";
    NotAnApprover "not-an-approver" 403 "This person may not decide", "The approval names who may; the detail lists them.";
    SelfApproval "self-approval-forbidden" 403 "Whoever started the run may not approve it", "The approval says `not_requester: true`. Somebody else must decide.";
    CrossSite "cross-site-request" 403 "The request comes from another site", "A browser sent it in the name of a page that is not ours. Add the page's origin with `--allow-origin` if it should be allowed. With a session, only our own pages change things: as JSON, with the header `Abide-Csrf`; programs send a key instead.";
    NotFound "not-found" 404 "There is no such thing", "The id is unknown here, or belongs to another namespace; both are answered alike.";
    WorkflowNotFound "workflow-not-found" 404 "There is no such workflow", "Upload it first: `abide apply FILE`.";
    MethodNotAllowed "method-not-allowed" 405 "The path does not take this method", "`Allow` lists what it takes.";
    NotAcceptable "not-acceptable" 406 "The answer has another form", "This path answers with the type that the detail names.";
    // What is true of a run.
    RunExists "run-exists" 409 "There is such a run already", "The run id is used, or an open run has this `unique` value. `run_id` names it.";
    RunTerminal "run-terminal" 409 "The run has ended", "A run that has ended never changes. `retry` or `rerun` make a new one from it.";
    RunNotTerminal "run-not-terminal" 409 "The run is open", "Only a run that has ended can be rerun. Cancel it first, or wait.";
    LeaseLost "lease-lost" 409 "The lease is over", "It expired, or somebody else holds the task now. Nothing was changed. Stop working on it and claim again.";
    NotClaimable "not-claimable" 409 "The task cannot be claimed", "It is not offered any more, or somebody holds it.";
    AlreadyCompleted "already-completed" 409 "The task was answered already", "It was answered before with something else; the first answer counts.";
    NotWaiting "not-waiting" 409 "Nothing waits for this", "`current_state` tells what the run does instead.";
    AlreadyDecided "already-decided" 409 "It was decided already", "The detail tells by whom and when.";
    SubjectChanged "subject-changed" 409 "What is to be approved has changed", "Look at the subject again and decide with its digest.";
    ApprovalExpired "approval-expired" 409 "The approval has expired", "Its deadline has passed and its outcome has been applied.";
    Compensating "compensating" 409 "The run is undoing its steps", "It cannot be paused or canceled until that is done.";
    NotNow "not-now" 409 "The run's state does not allow this", "`current_state` and `allowed` tell what is possible.";
    CannotResolve "cannot-resolve" 409 "The step cannot be resolved like this", "The detail lists what is possible for it.";
    NothingToRetry "nothing-to-retry" 409 "Nothing is scheduled or stalled", "A retry issues a step that waits to be tried again; this run has none.";
    NotBegun "not-begun" 409 "The body did not begin this step", "Report only steps that were begun under this lease.";
    DuplicateStep "duplicate-step" 409 "Two steps have the same id", "Inside `ctx.all` a repeated name needs a key.";
    TransitionRefused "transition-refused" 409 "The contract has no such transition", "See `GET /v1/contract`.";
    MailboxFull "mailbox-full" 409 "Too many signals wait in this run", "They are consumed when the run waits for them.";
    TooManyEffects "too-many-effects" 409 "The step has too many named effects", "Split the work into several steps.";
    TooDeep "too-deep" 409 "Runs are nested too deeply", "A child of a child of a child … has a limit.";
    IdempotencyInProgress "idempotency-in-progress" 409 "The same key is being worked on", "Wait as long as Retry-After says and ask again with the same key.";
    ShownOnce "shown-once" 409 "It was made, and its secret was shown once", "A key or a link is in one answer only: stored is a hash. If that answer was lost, take away what was made and ask for another one with a new Idempotency-Key.";
    TokenUsed "token-used" 410 "The link or callback was used", "Each works once.";
    TokenExpired "token-expired" 410 "The link or callback has expired", "Ask for a new one.";
    VersionMismatch "version-mismatch" 412 "The run has changed", "If-Match named another version. Read the run again and decide anew.";
    PayloadTooLarge "payload-too-large" 413 "This is too large", "Bodies, inputs and outputs have at most 1 MiB, documents 256 KiB. Store it elsewhere and pass a reference.";
    UriTooLong "uri-too-long" 414 "The address is too long", "At most 16 KiB.";
    UnsupportedMediaType "unsupported-media-type" 415 "The body has a type that is not read here", "Send `Content-Type: application/json` (documents: `application/yaml` too).";
    UnsupportedContentEncoding "unsupported-content-encoding" 415 "Compressed bodies are not read", "Send the body as it is.";
    Misdirected "misdirected-request" 421 "This server is not that host", "The Host header is not one of the allowed names. Add it with `--allow-host`.";
    ValidationFailed "validation-failed" 422 "The request is not as it must be", "`errors` lists each field with what is expected.";
    InputInvalid "input-invalid" 422 "The input is not as the workflow says", "`errors` lists where it differs from the workflow's `input` schema.";
    DefinitionInvalid "definition-invalid" 422 "The document has faults", "`errors` lists every one with line, path and a hint. `abide validate FILE` shows them too.";
    DefinitionTooComplex "definition-too-complex" 422 "The document is too complex", "It nests or repeats more than any workflow needs.";
    ExpressionTooComplex "expression-too-complex" 422 "An expression is too complex", "At most 2 KiB and 256 nodes. Compute it in a step.";
    TargetNotAllowed "target-not-allowed" 422 "This address may not be called", "Only public https addresses may, unless the operator allows more with `--allow-target`.";
    IdempotencyKeyReused "idempotency-key-reused" 422 "The key was used for another request", "One key belongs to one request. Use a new one.";
    StepIdRequired "step-id-required" 422 "Say which approval is meant", "More than one is open: name its `step_id`.";
    RateLimited "rate-limited" 429 "Too many requests", "Wait as long as Retry-After says.";
    TooManyStreams "too-many-streams" 429 "Too many streams are open", "Close some, or read lists instead.";
    HeadersTooLarge "headers-too-large" 431 "The headers are too large", "At most 64 KiB together.";
    Internal "internal" 500 "Something broke in here", "It is logged under `request_id`. Nothing was promised.";
    Overloaded "overloaded" 503 "Too much waits already", "Nothing was written. Try again after Retry-After.";
    StoreUnavailable "store-unavailable" 503 "The store cannot be used right now", "Nothing was written. Try again after Retry-After.";
    ShuttingDown "shutting-down" 503 "The server is stopping", "Try again; another one, or the same one again, will answer.";
    OutcomeUnknown "outcome-unknown" 503 "Nobody knows whether this was written", "Ask again with the same Idempotency-Key: it is done exactly once.";
    StorageFull "storage-full" 507 "The disk is full", "Nothing was written. Reads go on. Make room and try again.";
}

impl Code {
    pub fn parse(slug: &str) -> Option<Code> {
        Code::ALL.iter().copied().find(|code| code.as_str() == slug)
    }

    /// Whether the same request may succeed later without any change.
    pub const fn is_retryable(self) -> bool {
        matches!(
            self,
            Code::IdempotencyInProgress
                | Code::RateLimited
                | Code::TooManyStreams
                | Code::Overloaded
                | Code::StoreUnavailable
                | Code::ShuttingDown
                | Code::OutcomeUnknown
                | Code::StorageFull
        )
    }
}

/// What is wrong with one field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldError {
    /// JSON pointer into the request, or the name of a query parameter.
    pub pointer: String,
    pub detail: String,
}

/// `application/problem+json` (RFC 9457).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Problem {
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    pub detail: String,
    #[serde(default)]
    pub instance: String,
    pub code: String,
    #[serde(default)]
    pub request_id: String,
    /// `none`: nothing was changed; `applied`: it was done before; `unknown`: ask again with the same key.
    pub outcome: String,
    pub retryable: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
    /// `current_state`, `allowed`, `run_id`, `offset` and the like.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl Problem {
    pub fn new(code: Code, detail: impl Into<String>) -> Problem {
        Problem {
            kind: format!("{PAGES}{}", code.as_str()),
            title: code.title().into(),
            status: code.status(),
            detail: detail.into(),
            instance: String::new(),
            code: code.as_str().into(),
            request_id: String::new(),
            outcome: match code {
                Code::OutcomeUnknown => "unknown",
                Code::ShownOnce => "applied",
                _ => "none",
            }
            .into(),
            retryable: code.is_retryable(),
            errors: Vec::new(),
            more: Map::new(),
        }
    }

    pub fn field(mut self, pointer: impl Into<String>, detail: impl Into<String>) -> Problem {
        self.errors.push(FieldError { pointer: pointer.into(), detail: detail.into() });
        self
    }

    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Problem {
        self.more.insert(name.into(), value.into());
        self
    }

    /// A request that is not as it must be, at one place.
    pub fn invalid(pointer: impl Into<String>, detail: impl Into<String>) -> Problem {
        let detail = detail.into();
        Problem::new(Code::ValidationFailed, detail.clone()).field(pointer, detail)
    }

    pub fn is(&self, code: Code) -> bool {
        self.code == code.as_str()
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}): {}", self.title, self.code, self.detail)
    }
}

impl std::error::Error for Problem {}

//! Keys: who may do what, in which namespace.

use abide_core::time::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a key may do. Each role has a column in the table of routes; nothing is allowed that is not in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads states and explanations, never payloads.
    Viewer,
    /// Reads everything; starts, cancels, pauses, resolves.
    Operator,
    /// Claims tasks of its queues and reports on them.
    Worker,
    /// Reads the inbox and decides.
    Approver,
    /// Everything, and manages keys.
    Admin,
}

impl Role {
    pub const ALL: [Role; 5] = [Role::Viewer, Role::Operator, Role::Worker, Role::Approver, Role::Admin];

    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Worker => "worker",
            Role::Approver => "approver",
            Role::Admin => "admin",
        }
    }

    pub fn parse(text: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.as_str() == text)
    }
}

/// `POST /v1/keys`
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateKey {
    /// What people call it.
    pub name: String,
    pub role: Role,
    /// Of a worker: the only queues it may ask for. None: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<String>,
    /// In whose name it acts; without one, its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// `role:GROUP` in `approvers` means these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// May name another person in `decision_by`: a chat bot that passes decisions on, say.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub acts_for_others: bool,
    /// Which tenant it belongs to; only an admin of namespace `default` may name another than its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// A duration such as `90d`; without one the key does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<String>,
}

/// A key as it is listed. The key itself is shown once, when it is made.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct KeyView {
    pub key_id: String,
    pub name: String,
    pub namespace: String,
    pub role: Role,
    pub queues: Vec<String>,
    pub principal: String,
    pub groups: Vec<String>,
    pub acts_for_others: bool,
    #[schemars(with = "String")]
    pub created_at: Timestamp,
    #[schemars(with = "Option<String>")]
    pub expires_at: Option<Timestamp>,
    #[schemars(with = "Option<String>")]
    pub revoked_at: Option<Timestamp>,
    #[schemars(with = "Option<String>")]
    pub last_used_at: Option<Timestamp>,
}

/// The only answer that holds a key.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct NewKey {
    pub key: String,
    #[serde(flatten)]
    pub view: KeyView,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Keys {
    pub keys: Vec<KeyView>,
}

/// `POST /v1/session`
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogIn {
    pub key: String,
}

impl std::fmt::Debug for LogIn {
    /// A key stands in no log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LogIn")
    }
}

/// `GET /v1/session`: who the caller is, and what follows from it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SessionView {
    pub namespace: String,
    pub principal: String,
    pub role: Role,
    pub groups: Vec<String>,
    /// May name another person in `decision_by`. Where there are no keys everybody must name one.
    pub acts_for_others: bool,
    pub sees_payloads: bool,
    /// Whether keys are used here. Without them everybody is admin, and there is nothing to log out of.
    pub uses_keys: bool,
}

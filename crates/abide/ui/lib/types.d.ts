// The API's answers as the screens read them, and what a screen is. The server's schema is the authority; these are the
// fields that are used.

import type { Written } from "./json.js";

export type RunState =
  | "queued" | "running"
  | "waiting_on_tool" | "waiting_on_auth" | "waiting_on_approval" | "waiting_on_child" | "waiting_on_timer" | "waiting_on_operator"
  | "retry_scheduled" | "stalled" | "paused" | "compensating" | "cancel_requested"
  | "succeeded" | "completed_with_warnings" | "failed" | "canceled";

export type Json = null | boolean | number | string | Written | Json[] | { [key: string]: Json };

export interface Reason {
  type: string;
  step_id?: string;
  message: string;
  since: string;
  until?: string;
  overdue?: boolean;
  tool?: string;
  account?: string;
  worker?: string;
  approvers?: string[];
  quorum?: number;
  approved_by?: string[];
  subject_digest?: string;
  title?: string;
  at_deadline?: Json;
  run_ids?: string[];
  children?: number;
  root_cause?: string;
  recommended?: string;
  fields?: { pointer: string; detail: string }[];
  by?: string;
}

export interface NextAction {
  id: string;
  step_id?: string;
  title: string;
  who: string[];
  method: string;
  href: string;
  body: { [field: string]: Json };
  form?: Schema;
  needs?: string[];
  danger: boolean;
}

export interface Evidence { type: string; ref: string; step_id?: string; at?: string }

export interface Failure {
  kind: string;
  class?: string;
  code?: string;
  message: string;
  step_id?: string;
  attempt?: number;
  at?: string;
  details?: Json;
  child_run_id?: string;
  cause?: Failure;
  unknown_effects?: Json[];
}

export interface Warning { message?: string; step_id?: string; at?: string; [field: string]: Json | undefined }

export interface Progress { step_id: string; done: number; total?: number; message?: string; at?: string }

export interface Run {
  run_id: string;
  namespace: string;
  workflow_id: string;
  workflow_version: number;
  state: RunState;
  since: string;
  summary: string;
  attempt: number;
  step_id: string | null;
  blocking_reason: Reason | null;
  blocks: Reason[];
  blocks_count: number;
  lease_owner: string | null;
  lease_epoch: number | null;
  lease_expires_at: string | null;
  last_heartbeat_at: string | null;
  leases: number;
  next_retry_at: string | null;
  closing: { grace_until: string; failure: Failure; undo: boolean } | null;
  undo: { step_id: string | null; left: number; given_up: number } | null;
  handoff: string | null;
  failure: Failure | null;
  warnings: Warning[];
  warnings_count: number;
  evidence_links: Evidence[];
  evidence_count: number;
  next_actions: NextAction[];
  next_actions_count: number;
  progress: Progress | null;
  parent: { run_id: string; step_id: string } | null;
  children: number;
  origin: { kind: string; run_id?: string; from_step?: string } | null;
  owner_id: string | null;
  data_region: string | null;
  labels: { [name: string]: string };
  created_at: string;
  started_at: string | null;
  updated_at: string;
  ended_at: string | null;
  as_of_seq: number;
}

export interface Runs { runs: Run[]; next_cursor: string | null; as_of: number }
export interface Counts { counts: { [name: string]: number } }

export interface RunEvent {
  seq: number;
  at: string;
  actor: { type: string; id: string };
  layer: string;
  kind: string;
  from_state?: string;
  to_state?: string;
  step_id?: string;
  attempt?: number;
  payload: Json;
  evidence: Evidence[];
  hash: string;
}
export interface Events { events: RunEvent[]; next_cursor: string | null }

export interface Step {
  step_id: string;
  title: string | null;
  state: string;
  attempt: number;
  started_at: string;
  ended_at: string | null;
  output: Json;
  output_ref?: { digest: string; size: number };
  resources: { type: string; id: string; url?: string }[];
  receipts: { name: string | null; external_id: string | null; at: string }[];
  retry_safe: boolean;
  proof: { by: string; at: string } | null;
  failure: Failure | null;
  evidence: Evidence[];
}
export interface Steps { steps: Step[]; next_cursor: string | null }

export interface ChainLink { kind: string; id: string; what: string; since?: string; href?: string }
export interface Coming { at?: string | null; what: string }
export interface Triage { question: string; answer: "yes" | "no" | "unknown"; detail: string; proof: Json }
export interface Explanation {
  run_id: string;
  state: RunState;
  summary: string;
  doing: string;
  why: string;
  since: string;
  chain: ChainLink[];
  will_happen: Coming[];
  can_be_done: NextAction[];
  proof: { as_of_seq: number; lease_epoch: number | null; last_heartbeat_at: string | null; fresh_for: string | null; wake_at: string | null };
  parent?: { run_id: string; step_id: string; state?: RunState; summary?: string };
  triage?: Triage[];
}

export interface Handoff {
  run_id: string;
  state: RunState;
  summary: string;
  reached: { step_id: string | null; last_completed: string | null; completed: number; of: number };
  succeeded: { step_id: string; state: string; output: Json; resources: { type: string; id: string; url?: string }[]; external_ids: string[]; retry_safe: boolean; proof: { by: string; at: string } | null }[];
  succeeded_count: number;
  failed: { step_id: string; state: string; attempt: number; failure: Failure }[];
  failed_count: number;
  unknown: { step_id: string; effect: string | null; attempt: number; external_id: string | null; since: string }[];
  late_answers: { step_id: string; worker: string | null; at: string; output: Json }[];
  recommended: { action: string; step_id?: string; why: string } | null;
  actions: NextAction[];
  as_of_seq: number;
}

/** The part of JSON Schema that a form is made of. */
export interface Schema {
  type?: string | string[];
  title?: string;
  description?: string;
  properties?: { [name: string]: Schema };
  required?: string[];
  items?: Schema;
  enum?: Json[];
  const?: Json;
  default?: Json;
  format?: string;
  pattern?: string;
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
  exclusiveMaximum?: number;
  minLength?: number;
  maxLength?: number;
  minItems?: number;
  maxItems?: number;
  additionalProperties?: boolean | Schema;
  [keyword: string]: unknown;
}

/** application/problem+json */
export interface Problem {
  type?: string;
  title: string;
  status: number;
  detail?: string;
  code?: string;
  request_id?: string;
  outcome?: string;
  retryable?: boolean;
  errors?: { pointer: string; detail: string }[];
  current_state?: RunState;
  allowed?: string[];
}

/** Who looks, as the server knows it. */
export interface Session { namespace: string; principal: string; role: string; groups: string[]; acts_for_others: boolean; sees_payloads: boolean; uses_keys: boolean }

/** What may stand inside an element. */
export type Child = Node | string | number | null | undefined | false | Child[];

/** Where the reader is: the address and the parts of the path that the route names. */
export interface Visit { url: URL; params: { [name: string]: string } }

/** Something that can be done from the palette. */
export interface Command { title: string; hint?: string; run: () => void }

/** What a screen gives back when it is mounted. Every part but `unmount` may be left out. */
export interface Mounted {
  /** The address changed and the same screen shows it (a tab, a filter). Without it the screen is mounted anew. */
  update?: (visit: Visit) => void;
  /** Records that changed, in batches of at most one per frame. */
  records?: (runs: Run[]) => void;
  /** Something may have been missed: read again. Also called for the key `r`. */
  resync?: () => void;
  /** What the palette offers here. */
  commands?: () => Command[];
  unmount: () => void;
}

/** A screen is a module with a title and a function that fills its place. */
export interface Screen {
  title: string;
  mount: (place: HTMLElement, visit: Visit) => Mounted;
}

/** live: changes come as they happen; reconnecting: for a moment; stale: nothing is known since then. */
export type LiveState = { state: "live" | "reconnecting" | "stale"; since: number };

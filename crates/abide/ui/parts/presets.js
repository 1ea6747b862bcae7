// Questions that people ask of the list again and again, as queries of the API.

/** @type {{ id: string, title: string, query: string }[]} */
export const PRESETS = [
  { id: "all", title: "All runs", query: "" },
  { id: "needs-me", title: "Needs me", query: "?state=waiting_on_approval&state=waiting_on_operator&state=waiting_on_auth&state=stalled" },
  { id: "stalled", title: "Stalled", query: "?state=stalled" },
  { id: "auth", title: "Waiting on auth", query: "?state=waiting_on_auth" },
  { id: "retrying", title: "Retrying", query: "?state=retry_scheduled" },
  { id: "failing", title: "Failing", query: "?state=failed&state=compensating" },
];

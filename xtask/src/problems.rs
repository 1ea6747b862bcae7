//! A page for every problem code, from the table that the server answers with.

use std::fmt::Write as _;

use abide_api::{Code, Problem};

/// The pages with their paths, and their index.
pub fn pages() -> Vec<(String, String)> {
    let mut pages = vec![("docs/problems/README.md".to_owned(), index())];
    pages.extend(Code::ALL.iter().map(|code| (format!("docs/problems/{}.md", code.as_str()), page(*code))));
    pages
}

fn index() -> String {
    let mut text = String::from(
        "# Problems\n\n\
         Every refusal is `application/problem+json` (RFC 9457). `code` is stable and has a page here, which the server also\n\
         shows at `/problems/CODE`; `detail` is for people and says what was true in this case. `outcome` tells whether\n\
         anything was changed, `retryable` whether the same request may succeed later as it is.\n\n\
         | code | status | means |\n|---|---|---|\n",
    );
    for code in Code::ALL {
        let name = code.as_str();
        let _ = writeln!(text, "| [{name}]({name}.md) | {} | {} |", code.status(), code.title());
    }
    text
}

fn page(code: Code) -> String {
    let (name, title, status, means) = (code.as_str(), code.title(), code.status(), code.means());
    let again = match code.is_retryable() {
        true => "Yes: the same request, unchanged, may succeed later. Wait as long as `Retry-After` says.",
        false => "No: the same request is refused again until something changes.",
    };
    let changed = match code {
        Code::OutcomeUnknown => "Nobody knows: ask again with the same `Idempotency-Key`, and it is done exactly once.",
        Code::Internal => "Nothing was promised: look at the run, or ask again with the same `Idempotency-Key`.",
        _ => "No. A refusal changes nothing.",
    };
    let mut example = Problem::new(code, "What was true in this case.");
    example.instance = "/v1/…".into();
    example.request_id = "req_…".into();
    let example = serde_json::to_string_pretty(&example).expect("a problem is JSON");
    format!(
        "# {title}\n\n`{name}`, status {status}\n\n{means}\n\n\
         | | |\n|---|---|\n| Is it worth trying again? | {again} |\n| Was anything changed? | {changed} |\n\n\
         ```json\n{example}\n```\n\n[All problems](README.md)\n"
    )
}

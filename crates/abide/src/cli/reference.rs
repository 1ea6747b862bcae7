//! The reference of commands, from the very definitions that read them.

use clap::{Command, CommandFactory};

const HEAD: &str = "# The command line

What `abide --help` says, on one page. It is written by the program's own tests: `ABIDE_WRITE_DOCS=1 cargo test -p abide
reference`.

Exit codes: 0 succeeded (also with warnings, said), 1 failed, 2 usage, 3 canceled, 4 still waiting, 5 not reachable,
6 refused. `-o json` is exactly what the server answered, `-o jsonl` one item per line, `-o ids` only ids, for pipes:

```sh
abide runs --state stalled -o ids | xargs -n1 abide retry
```
";

fn markdown() -> String {
    let mut page = HEAD.to_owned();
    let mut root = super::Arguments::command().term_width(100);
    root.build();
    for command in root.get_subcommands().filter(|command| command.get_name() != "help") {
        write_command(&mut page, "abide", command);
    }
    page
}

fn write_command(page: &mut String, before: &str, command: &Command) {
    let name = format!("{before} {}", command.get_name());
    let nested: Vec<&Command> = command.get_subcommands().filter(|command| command.get_name() != "help").collect();
    if nested.is_empty() {
        // Without this a test that runs with variables set would write another page.
        let mut shown = command.clone().mut_args(|argument| argument.hide_env_values(true)).term_width(100);
        let help = shown.render_help().to_string();
        let help: Vec<&str> = help.lines().map(str::trim_end).collect();
        page.push_str(&format!("\n## {name}\n\n```text\n{}\n```\n", help.join("\n").trim_end()));
    }
    nested.into_iter().for_each(|command| write_command(page, &name, command));
}

#[test]
fn the_reference_of_commands_is_fresh() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/cli.md");
    if std::env::var_os("ABIDE_WRITE_DOCS").is_some() {
        std::fs::write(&path, markdown()).expect("it is written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == markdown(), "docs/reference/cli.md is stale: ABIDE_WRITE_DOCS=1 cargo test -p abide reference");
}

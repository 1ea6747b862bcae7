//! Writes what derives from the tables, and counts what the sources are made of: `cargo run -p xtask -- generate | numbers`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use abide_core::contract::document;

mod numbers;
mod problems;

const USAGE: &str = "\
usage: cargo run -p xtask -- generate | numbers

numbers     print how large types, functions, files and the public interface are
generate    write the reference pages, the contract, its schema and its diagram into docs/reference,
            and a page for every problem into docs/problems";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["generate"] => match generate() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("xtask: {error}");
                ExitCode::FAILURE
            }
        },
        ["numbers"] => match numbers::report(&repository()) {
            Ok(report) => {
                print!("{report}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("xtask: {error}");
                ExitCode::FAILURE
            }
        },
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Every generated file: its path in the repository, and what stands in it.
fn generated() -> Vec<(String, String)> {
    let pretty = |value| format!("{value:#}\n");
    let mut files = vec![
        ("docs/reference/contract.md".into(), document::reference_markdown()),
        ("docs/reference/contract.json".into(), pretty(document::contract_json())),
        ("docs/reference/run.schema.json".into(), pretty(document::json_schema())),
        ("docs/reference/contract.mmd".into(), document::mermaid()),
    ];
    files.extend(problems::pages());
    files
}

fn generate() -> std::io::Result<()> {
    for (path, content) in generated() {
        let file = repository().join(&path);
        if std::fs::read_to_string(&file).is_ok_and(|written| written == content) {
            continue;
        }
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(&file, content)?;
        println!("wrote {path}");
    }
    Ok(())
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_files_are_fresh() {
        let stale = |(path, content): (String, String)| {
            let written = std::fs::read_to_string(repository().join(&path)).unwrap_or_default();
            (written != content).then_some(path)
        };
        let stale: Vec<String> = generated().into_iter().filter_map(stale).collect();
        assert!(
            stale.is_empty(),
            "stale: {}; run `cargo run -p xtask -- generate` and commit what it writes",
            stale.join(", ")
        );
    }

    #[test]
    fn no_page_is_left_of_a_problem_that_is_gone() {
        let written = std::fs::read_dir(repository().join("docs/problems")).expect("the pages");
        let generated: Vec<String> = generated().into_iter().map(|(path, _)| path).collect();
        for page in written {
            let page = format!("docs/problems/{}", page.expect("a page").file_name().display());
            assert!(generated.contains(&page), "{page} is of no problem: delete it");
        }
    }
}

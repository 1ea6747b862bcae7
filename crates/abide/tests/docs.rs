//! What the documentation shows is what the program does: every `console` block is run and compared.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A fenced block: what stands after the fence, the lines in it, and where it is.
struct Block {
    info: String,
    lines: Vec<String>,
    line: usize,
}

/// A command of a console block and what it should print. A line with `…` alone stands for any number of lines.
struct Shown {
    command: String,
    output: Vec<String>,
}

#[test]
fn every_console_block_of_the_docs_is_true() {
    let pages = pages();
    let mut played = 0;
    for page in &pages {
        played += play_page(page);
    }
    assert!(played >= 5, "only {played} commands were found in {pages:?}");
}

#[test]
fn every_number_that_doctor_and_tests_name_is_explained() {
    let page = std::fs::read_to_string(repository().join("docs/reference/invariants.md")).expect("a page");
    let explained: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" |").next())
        .flat_map(|numbers| numbers.split(", "))
        .collect();
    let mut named = 0;
    for folder in
        ["crates/engine/src", "crates/engine/tests", "crates/abide/tests", "crates/core/src", "crates/core/tests"]
    {
        for number in numbers_below(&repository().join(folder)) {
            assert!(explained.contains(number.as_str()), "{number}, named below {folder}, is not explained");
            named += 1;
        }
    }
    assert!(named > 60, "there is something to explain: {named}");
}

/// Numbers of invariants in quotes, and numbers of faults and inputs at the beginning of a test's name.
fn numbers_below(folder: &Path) -> BTreeSet<String> {
    let mut numbers = BTreeSet::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            numbers.extend(numbers_below(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).expect("a source");
            numbers.extend(text.split('"').filter(|word| is_number(word, &['I'])).map(str::to_owned));
            for name in text.split("fn ").skip(1).filter_map(|rest| rest.split('(').next()) {
                let words = name.split('_').map(str::to_uppercase);
                numbers.extend(words.take_while(|word| is_number(word, &['F', 'B'])));
            }
        }
    }
    numbers
}

fn is_number(word: &str, letters: &[char]) -> bool {
    let digits = word.strip_prefix(letters).unwrap_or_default();
    !digits.is_empty() && digits.len() <= 2 && digits.bytes().all(|byte| byte.is_ascii_digit())
}

#[test]
fn every_link_between_pages_leads_somewhere() {
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("a page");
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or_default();
            if file.is_empty() || target.contains("://") {
                continue;
            }
            let file = page.parent().expect("a folder").join(file);
            assert!(file.exists(), "{}: {target} leads nowhere", page.display());
        }
    }
}

fn pages() -> Vec<PathBuf> {
    let root = repository();
    let mut pages = vec![root.join("README.md"), root.join("ARCHITECTURE.md")];
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

/// Runs the commands of a page in a folder that has the examples, and every file that the page shows: a block that
/// opens with a language and a name, as in `yaml order.workflow.yaml`.
fn play_page(page: &Path) -> usize {
    let blocks = blocks(&std::fs::read_to_string(page).expect("a page"));
    let shows =
        |block: &&Block| block.info == "console" && block.lines.first().is_some_and(|l| l.starts_with("$ abide"));
    if !blocks.iter().any(|block| shows(&block)) {
        return 0;
    }
    let name = page.strip_prefix(repository()).unwrap_or(page).display().to_string();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name.replace(['/', '.'], "_"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(folder.join("examples")).expect("a folder");
    for example in std::fs::read_dir(repository().join("examples")).expect("there are examples") {
        let example = example.expect("an entry");
        std::fs::copy(example.path(), folder.join("examples").join(example.file_name())).expect("a copy");
    }
    for block in &blocks {
        if let Some((_, file)) = block.info.split_once(' ') {
            std::fs::write(folder.join(file), block.lines.join("\n") + "\n").expect("a file");
        }
    }
    let mut played = 0;
    for block in blocks.iter().filter(shows) {
        for shown in shown(block) {
            let printed = printed(&shown.command, &folder);
            let lines: Vec<&str> = printed.lines().collect();
            assert!(
                matches(&lines, &shown.output),
                "{name}, block at line {}: `{}` prints\n{printed}",
                block.line,
                shown.command
            );
            played += 1;
        }
    }
    played
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in page.lines().enumerate() {
        match (open.take(), line.strip_prefix("```")) {
            (None, Some(info)) => open = Some(Block { info: info.into(), lines: Vec::new(), line: number + 1 }),
            (None, None) => {}
            (Some(block), Some(_)) => blocks.push(block),
            (Some(mut block), None) => {
                block.lines.push(line.into());
                open = Some(block);
            }
        }
    }
    blocks
}

fn shown(block: &Block) -> Vec<Shown> {
    let mut shown: Vec<Shown> = Vec::new();
    for line in &block.lines {
        match (line.strip_prefix("$ "), shown.last_mut()) {
            (Some(command), _) => shown.push(Shown { command: command.into(), output: Vec::new() }),
            (None, Some(last)) => last.output.push(line.clone()),
            (None, None) => {}
        }
    }
    shown
}

fn printed(command: &str, folder: &Path) -> String {
    let bin = Path::new(env!("CARGO_BIN_EXE_abide")).parent().expect("a folder");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let ran = Command::new("sh")
        .args(["-c", &format!("exec 2>&1; {command}")])
        .current_dir(folder)
        .env("PATH", path)
        .output();
    String::from_utf8(ran.expect("a shell").stdout).expect("text")
}

fn matches(printed: &[&str], shown: &[String]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((line, rest)) if line.trim() == "…" => {
            (0..=printed.len()).any(|skipped| matches(&printed[skipped..], rest))
        }
        Some((line, rest)) => printed.first().is_some_and(|first| first == line) && matches(&printed[1..], rest),
    }
}

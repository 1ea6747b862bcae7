//! The numbers of the house: how large its types, functions and files are. Read from the sources as rustfmt leaves them, where an
//! item ends at the brace under its first letter.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const LONG_FILE: usize = 400;
const CRATES: [&str; 5] = ["core", "engine", "api", "client", "abide"];

/// What one source file adds.
#[derive(Default)]
struct Counts {
    /// Methods by crate and type, over all of its `impl` blocks without a trait.
    methods: BTreeMap<String, usize>,
    public: usize,
    documented: usize,
    wildcards: usize,
    nested_results: usize,
    /// Lines of every function.
    functions: Vec<usize>,
    long_files: Vec<(usize, String)>,
}

/// The numbers of this checkout, as lines for people.
pub fn report(repository: &Path) -> std::io::Result<String> {
    let mut counts = Counts::default();
    for name in CRATES {
        let mut files = Vec::new();
        sources(&repository.join("crates").join(name).join("src"), &mut files)?;
        files.sort();
        for file in files {
            let path = file.strip_prefix(repository).unwrap_or(&file).display().to_string();
            counts.add(name, &path, &std::fs::read_to_string(&file)?);
        }
    }
    Ok(counts.told(repository))
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            sources(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(())
}

impl Counts {
    fn add(&mut self, of_crate: &str, path: &str, text: &str) {
        // Tests at the end of a file are not the house.
        let text = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or(text);
        let lines: Vec<&str> = text.lines().collect();
        if lines.len() > LONG_FILE {
            self.long_files.push((lines.len(), path.to_owned()));
        }
        let (mut implemented, mut has_doc) = (None, false);
        for (at, line) in lines.iter().enumerate() {
            if let Some(head) = line.strip_prefix("impl") {
                implemented = type_of(head).map(|name| format!("{of_crate}::{name}"));
            } else if *line == "}" {
                implemented = None;
            }
            let code = line.trim_start();
            self.wildcards += usize::from(code.starts_with("_ =>"));
            self.nested_results += usize::from(code.contains("<Result<"));
            if is_public(code) {
                self.public += 1;
                self.documented += usize::from(has_doc);
            }
            if is_function(code) && !code.ends_with(';') {
                self.functions.push(lines_of(&lines[at..]));
                if let Some(name) = implemented.clone().filter(|_| line.len() - code.len() == 4) {
                    *self.methods.entry(name).or_default() += 1;
                }
            }
            has_doc = code.starts_with("///") || (has_doc && code.starts_with("#["));
        }
    }

    fn told(mut self, repository: &Path) -> String {
        self.functions.sort_unstable();
        self.long_files.sort_unstable_by(|one, other| other.cmp(one));
        let share = |share: f64| self.functions[((self.functions.len() - 1) as f64 * share) as usize];
        let mut largest: Vec<_> = self.methods.iter().collect();
        largest.sort_by(|one, other| other.1.cmp(one.1));
        let largest: Vec<String> = largest.iter().take(5).map(|(name, count)| format!("{name} {count}")).collect();
        let mut out = String::new();
        let _ = writeln!(out, "methods on the largest types   {}", largest.join(", "));
        let _ = writeln!(out, "public items                   {} ({} documented)", self.public, self.documented);
        let _ = writeln!(out, "`_ =>` arms                    {}", self.wildcards);
        let _ = writeln!(out, "nested results                 {}", self.nested_results);
        let _ = writeln!(out, "functions                      {}", self.functions.len());
        let _ =
            writeln!(out, "lines of a function            p50 {}, p90 {}, p99 {}", share(0.5), share(0.9), share(0.99));
        let _ = writeln!(out, "files over {LONG_FILE} lines            {}", self.long_files.len());
        for (lines, path) in &self.long_files {
            let _ = writeln!(out, "    {lines:>4} {path}");
        }
        for profile in ["release", "dist"] {
            if let Ok(program) = std::fs::metadata(repository.join("target").join(profile).join("abide")) {
                let _ = writeln!(out, "program, {profile:<8}              {:.1} MB", program.len() as f64 / 1e6);
            }
        }
        out
    }
}

/// The type of an `impl` without a trait.
fn type_of(head: &str) -> Option<String> {
    if head.contains(" for ") {
        return None;
    }
    // What stands after the parameters: `<S: Store> Lane<S> {`.
    let mut depth = 0;
    let start = head.char_indices().find(|(_, letter)| {
        depth += i32::from(*letter == '<') - i32::from(*letter == '>');
        depth == 0 && letter.is_alphabetic()
    })?;
    let name = head[start.0..].split(|letter: char| !letter.is_alphanumeric() && letter != '_').next()?;
    Some(name.to_owned())
}

fn is_public(code: &str) -> bool {
    let kinds = ["fn ", "async fn ", "const ", "struct ", "enum ", "trait ", "type ", "mod ", "static ", "unsafe "];
    code.strip_prefix("pub ").is_some_and(|rest| kinds.iter().any(|kind| rest.starts_with(kind)))
}

fn is_function(code: &str) -> bool {
    let mut rest = code;
    if let Some(after) = rest.strip_prefix("pub") {
        rest = after.split_once(' ').map_or("", |(_, after)| after);
    }
    for word in ["const ", "async "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    rest.starts_with("fn ")
}

/// From a function's first line to the brace under it; a body on the same line is one.
fn lines_of(lines: &[&str]) -> usize {
    let Some(first) = lines.first() else { return 0 };
    let indent = first.len() - first.trim_start().len();
    if first.ends_with('}') {
        return 1;
    }
    let ends = |line: &&str| {
        line.trim_start().starts_with('}') && line.len() - line.trim_start().len() == indent && !line.ends_with('{')
    };
    lines.iter().skip(1).position(ends).map_or(lines.len(), |at| at + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_functions_and_public_items_are_counted() {
        let text = "\
/// Runs things.
pub struct Lane;

impl<S: Store<A>> Lane<S> {
    /// One.
    pub fn one(&self) -> u8 {
        match self {
            _ => 1,
        }
    }

    async fn two(
        &self,
    ) -> Result<Result<(), A>, B> {
        Ok(Ok(()))
    }
}

impl Clone for Lane {
    fn clone(&self) -> Lane { Lane }
}

pub(crate) fn three() {}

#[cfg(test)]
mod tests {
    fn four() {}
}
";
        let mut counts = Counts::default();
        counts.add("engine", "x.rs", text);
        assert_eq!(counts.methods, BTreeMap::from([("engine::Lane".to_owned(), 2)]));
        assert_eq!((counts.public, counts.documented), (2, 2));
        assert_eq!((counts.wildcards, counts.nested_results), (1, 1));
        assert_eq!(counts.functions, [5, 5, 1, 1]);
    }
}

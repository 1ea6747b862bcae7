//! YAML (and with it JSON) as a tree that remembers where everything stands.
//!
//! The parser's events are read here rather than through serde, because serde stops at the first fault and loses
//! the places of keys. The meaning of plain words is that of the YAML 1.2 core schema: `yes`, `no` and `on` are text.

use std::collections::HashSet;

use serde_json::{Number, Value};
use serde_saphyr::granit_parser::{ErrorKind, Event, Parser, ScalarStyle, ScanError, Span, Tag};

use super::fault::{DefinitionError, Fault, FaultCode, MOST_FAULTS};

/// Mappings and lists inside each other, aliases followed.
const DEEPEST: usize = 64;
/// Keys and values, aliases followed. A document of the largest size with a thousand steps stays far below.
const MOST_NODES: usize = 50_000;
/// Text in keys and values, aliases followed.
const MOST_TEXT_BYTES: usize = 1024 * 1024;

/// Keys on the way to one value, together: every fault and every expression carries its path.
const LONGEST_PATH_BYTES: usize = 2_000;

/// A place in the text, from 1; columns are in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct At {
    pub(super) line: u32,
    pub(super) column: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) content: Content,
    pub(super) at: At,
}

#[derive(Clone, Debug)]
pub(super) enum Content {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) text: String,
    pub(super) at: At,
}

impl Node {
    /// What the node is, in words for people.
    pub(super) fn kind(&self) -> &'static str {
        match &self.content {
            Content::Null => "nothing",
            Content::Bool(_) => "true or false",
            Content::Number(_) => "a number",
            Content::Text(_) => "text",
            Content::List(_) => "a list",
            Content::Map(_) => "a mapping",
        }
    }

    pub(super) fn to_json(&self) -> Value {
        match &self.content {
            Content::Null => Value::Null,
            Content::Bool(value) => Value::Bool(*value),
            Content::Number(number) => Value::Number(number.clone()),
            Content::Text(text) => Value::String(text.clone()),
            Content::List(items) => Value::Array(items.iter().map(Node::to_json).collect()),
            Content::Map(entries) => {
                Value::Object(entries.iter().map(|(key, value)| (key.text.clone(), value.to_json())).collect())
            }
        }
    }

    /// The node at a JSON pointer, or as far as the pointer leads.
    pub(super) fn nearest(&self, pointer: &str) -> &Node {
        let mut node = self;
        for segment in pointer.split('/').skip(1) {
            let segment = segment.replace("~1", "/").replace("~0", "~");
            let next = match &node.content {
                Content::List(items) => segment.parse().ok().and_then(|index: usize| items.get(index)),
                Content::Map(entries) => entries.iter().find(|(key, _)| key.text == segment).map(|(_, value)| value),
                Content::Null | Content::Bool(_) | Content::Number(_) | Content::Text(_) => None,
            };
            match next {
                Some(next) => node = next,
                None => break,
            }
        }
        node
    }

    fn weight(&self) -> Weight {
        let own = Weight { nodes: 1, bytes: 0, depth: 0, path: 0 };
        match &self.content {
            Content::Null | Content::Bool(_) | Content::Number(_) => own,
            Content::Text(text) => Weight { bytes: text.len(), ..own },
            Content::List(items) => items.iter().fold(Weight { depth: 1, ..own }, |sum, item| sum.with(item.weight())),
            Content::Map(entries) => entries
                .iter()
                .fold(Weight { depth: 1, ..own }, |sum, (key, value)| sum.with(value.weight().under(&key.text))),
        }
    }
}

/// How large a tree is.
#[derive(Clone, Copy)]
struct Weight {
    nodes: usize,
    /// Of text.
    bytes: usize,
    depth: usize,
    /// Bytes of the keys on the longest way down.
    path: usize,
}

impl Weight {
    fn with(self, child: Weight) -> Weight {
        Weight {
            nodes: self.nodes + child.nodes,
            bytes: self.bytes + child.bytes,
            depth: self.depth.max(child.depth + 1),
            path: self.path.max(child.path),
        }
    }

    fn under(self, key: &str) -> Weight {
        Weight { nodes: self.nodes + 1, bytes: self.bytes + key.len(), path: self.path + key.len(), ..self }
    }
}

/// Reads one document. Faults that leave a tree behind (a key written twice, a tag) are returned beside it.
pub(super) fn read(text: &str) -> Result<(Node, Vec<Fault>), DefinitionError> {
    let mut tree = Tree::new(text);
    let options = serde_saphyr::granit_parser::options! {
        flow_nesting_limit: DEEPEST + 1,
        block_nesting_limit: DEEPEST + 1,
        emit_comments: false,
    };
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event.map_err(|error| scan_fault(text, tree.path(), &error))?;
        tree.take(event, &span)?;
    }
    let root = tree.root.ok_or_else(|| {
        invalid(
            FaultCode::MissingField,
            At { line: 1, column: 1 },
            "the document is empty",
            Some("write `workflow: ID` and `steps:`"),
        )
    })?;
    Ok((root, tree.faults))
}

struct Tree<'t> {
    text: &'t str,
    open: Vec<Open>,
    root: Option<Node>,
    /// By anchor id; none while the anchored value is still open.
    anchors: Vec<Option<Node>>,
    faults: Vec<Fault>,
    nodes: usize,
    bytes: usize,
    kept: usize,
}

/// A mapping or list whose end has not been read yet.
struct Open {
    at: At,
    anchor: usize,
    items: Items,
}

enum Items {
    List(Vec<Node>),
    Map { entries: Vec<(Key, Node)>, names: HashSet<String>, merges: Vec<Node>, key: Option<PendingKey> },
}

enum PendingKey {
    Name(Key),
    Merge,
    /// A key that is no name; its value is read and dropped.
    Unusable,
}

impl<'t> Tree<'t> {
    fn new(text: &'t str) -> Tree<'t> {
        Tree {
            text,
            open: Vec::new(),
            root: None,
            anchors: Vec::new(),
            faults: Vec::new(),
            nodes: 0,
            bytes: 0,
            kept: 0,
        }
    }

    fn take(&mut self, event: Event<'_>, span: &Span) -> Result<(), DefinitionError> {
        let at = place(span.tag_start.as_ref().unwrap_or(&span.start));
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.count(1, text.len(), at)?;
                if self.key(&text, style, anchor, at)? {
                    return Ok(());
                }
                let node = self.scalar(&text, style, tag.as_deref(), at);
                self.close(node, anchor)
            }
            Event::Alias(anchor) => self.alias(anchor, at),
            Event::SequenceStart(_, anchor, tag) => {
                self.refuse_tag(tag.as_deref(), at);
                self.start(Items::List(Vec::new()), anchor, at)
            }
            Event::MappingStart(_, anchor, tag) => {
                self.refuse_tag(tag.as_deref(), at);
                self.start(
                    Items::Map { entries: Vec::new(), names: HashSet::new(), merges: Vec::new(), key: None },
                    anchor,
                    at,
                )
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::DocumentStart(..) if self.root.is_some() => Err(invalid(
                FaultCode::YamlSyntax,
                at,
                "a second document starts here",
                Some("one text holds one workflow; remove the `---`"),
            )),
            Event::DocumentStart(..) | Event::DocumentEnd | Event::StreamStart | Event::StreamEnd => Ok(()),
            Event::Anchor(..) | Event::UnresolvedAlias(_) | _ => Ok(()),
        }
    }

    fn start(&mut self, items: Items, anchor: usize, at: At) -> Result<(), DefinitionError> {
        self.count(1, 0, at)?;
        if self.open.len() >= DEEPEST {
            return Err(too_complex(at, format!("values are nested more than {DEEPEST} deep")));
        }
        if anchor > 0 {
            self.keep(anchor, None, at)?;
        }
        self.open.push(Open { at, anchor, items });
        Ok(())
    }

    fn end(&mut self) -> Result<(), DefinitionError> {
        let Some(open) = self.open.pop() else { return Ok(()) };
        let content = match open.items {
            Items::List(items) => Content::List(items),
            Items::Map { entries, names, merges, .. } => Content::Map(self.merged(entries, names, merges)),
        };
        self.close(Node { content, at: open.at }, open.anchor)
    }

    /// Takes a scalar that stands where a key is due, exactly as it is written.
    fn key(&mut self, text: &str, style: ScalarStyle, anchor: usize, at: At) -> Result<bool, DefinitionError> {
        let path_bytes = self.path_bytes();
        let Some(Open { items: Items::Map { key: pending @ None, .. }, .. }) = self.open.last_mut() else {
            return Ok(false);
        };
        if path_bytes + text.len() > LONGEST_PATH_BYTES {
            return Err(path_too_long(at));
        }
        let plain = style == ScalarStyle::Plain;
        *pending = Some(match text {
            "<<" if plain => PendingKey::Merge,
            _ => PendingKey::Name(Key { text: text.to_owned(), at }),
        });
        if anchor > 0 {
            self.keep(anchor, Some(Node { content: Content::Text(text.to_owned()), at }), at)?;
        }
        Ok(true)
    }

    /// Puts a finished node where it belongs: as an item, as a key, as the value of a key, or as the document.
    fn close(&mut self, node: Node, anchor: usize) -> Result<(), DefinitionError> {
        if anchor > 0 {
            self.keep(anchor, Some(node.clone()), node.at)?;
        }
        let Some(open) = self.open.last_mut() else {
            self.root.get_or_insert(node);
            return Ok(());
        };
        match &mut open.items {
            Items::List(items) => items.push(node),
            Items::Map { key: pending @ None, .. } => match &node.content {
                Content::Text(text) => *pending = Some(PendingKey::Name(Key { text: text.clone(), at: node.at })),
                Content::Null | Content::Bool(_) | Content::Number(_) | Content::List(_) | Content::Map(_) => {
                    *pending = Some(PendingKey::Unusable);
                    let fault = unusable_key(self.text, &node, self.path());
                    self.report(fault);
                }
            },
            Items::Map { entries, names, merges, key } => match key.take() {
                Some(PendingKey::Name(key)) if !names.insert(key.text.clone()) => {
                    let fault = duplicate_key(&key, self.path());
                    self.report(fault);
                }
                Some(PendingKey::Name(key)) => entries.push((key, node)),
                Some(PendingKey::Merge) => merges.push(node),
                Some(PendingKey::Unusable) | None => {}
            },
        }
        Ok(())
    }

    /// An alias stands for a copy of what it names; what is inside keeps the place where it is written.
    fn alias(&mut self, anchor: usize, at: At) -> Result<(), DefinitionError> {
        let Some(Some(node)) = self.anchors.get(anchor) else {
            return Err(too_complex(at, "an alias stands inside the value that it names".into()));
        };
        let weight = node.weight();
        if self.open.len() + weight.depth > DEEPEST {
            return Err(too_complex(
                at,
                format!("with its aliases followed, values are nested more than {DEEPEST} deep"),
            ));
        }
        if self.path_bytes() + weight.path > LONGEST_PATH_BYTES {
            return Err(path_too_long(at));
        }
        let node = Node { content: node.content.clone(), at };
        self.count(weight.nodes, weight.bytes, at)?;
        self.close(node, 0)
    }

    /// Merge keys (`<<`) add what the mapping does not say itself; of several, the first wins.
    fn merged(
        &mut self,
        mut entries: Vec<(Key, Node)>,
        mut names: HashSet<String>,
        merges: Vec<Node>,
    ) -> Vec<(Key, Node)> {
        let sources = merges.into_iter().flat_map(|merge| match merge.content {
            Content::List(items) => items,
            Content::Map(_) | Content::Null | Content::Bool(_) | Content::Number(_) | Content::Text(_) => vec![merge],
        });
        for source in sources {
            if let Content::Map(added) = source.content {
                entries.extend(added.into_iter().filter(|(key, _)| names.insert(key.text.clone())));
            } else {
                let message = format!("`<<` takes a mapping or a list of mappings; this is {}", source.kind());
                self.report(fault(FaultCode::WrongType, source.at, self.path(), message, None));
            }
        }
        entries
    }

    /// Remembers what an anchor names. Anchors inside anchors are kept several times, so they count again.
    fn keep(&mut self, anchor: usize, node: Option<Node>, at: At) -> Result<(), DefinitionError> {
        self.kept += node.as_ref().map_or(1, |node| node.weight().nodes);
        if self.kept > MOST_NODES {
            return Err(too_complex(at, format!("anchors name more than {MOST_NODES} values")));
        }
        if self.anchors.len() <= anchor {
            self.anchors.resize(anchor + 1, None);
        }
        self.anchors[anchor] = node;
        Ok(())
    }

    fn path_bytes(&self) -> usize {
        let keys = self.open.iter().map(|open| match &open.items {
            Items::Map { key: Some(PendingKey::Name(key)), .. } => key.text.len(),
            Items::Map { .. } | Items::List(_) => 0,
        });
        keys.sum()
    }

    fn report(&mut self, fault: Fault) {
        if self.faults.len() < MOST_FAULTS {
            self.faults.push(fault);
        }
    }

    /// The JSON pointer to what is being read.
    fn path(&self) -> String {
        let mut path = String::new();
        for open in &self.open {
            match &open.items {
                Items::List(items) => path.push_str(&format!("/{}", items.len())),
                Items::Map { key: Some(PendingKey::Name(key)), .. } => push_segment(&mut path, &key.text),
                Items::Map { .. } => {}
            }
        }
        path
    }

    fn count(&mut self, nodes: usize, bytes: usize, at: At) -> Result<(), DefinitionError> {
        self.nodes += nodes;
        self.bytes += bytes;
        if self.nodes > MOST_NODES {
            return Err(too_complex(at, format!("the document has more than {MOST_NODES} values, aliases followed")));
        }
        if self.bytes > MOST_TEXT_BYTES {
            return Err(too_complex(
                at,
                format!("the document has more than {MOST_TEXT_BYTES} bytes of text, aliases followed"),
            ));
        }
        Ok(())
    }

    /// A tag of YAML's own is followed where it asks for text; any other is taken back into the text it was part of.
    fn scalar(&mut self, text: &str, style: ScalarStyle, tag: Option<&Tag>, at: At) -> Node {
        let text = match tag.filter(|tag| !tag.is_yaml_core_schema()) {
            Some(tag) => format!("!{} {text}", tag.suffix()).trim_end().to_owned(),
            None => text.to_owned(),
        };
        let is_text = style != ScalarStyle::Plain || tag.is_some_and(|tag| tag.is_yaml_core_schema_tag("str"));
        self.refuse_tag(tag, at);
        let content = if is_text { Content::Text(text) } else { self.plain(&text, at) };
        Node { content, at }
    }

    fn plain(&mut self, text: &str, at: At) -> Content {
        match text {
            "" | "~" | "null" | "Null" | "NULL" => return Content::Null,
            "true" | "True" | "TRUE" => return Content::Bool(true),
            "false" | "False" | "FALSE" => return Content::Bool(false),
            _ => {}
        }
        match number(text) {
            Some(Ok(number)) => Content::Number(number),
            None => Content::Text(text.to_owned()),
            Some(Err(why)) => {
                let message = format!("`{}` {why}", clip(text));
                self.report(fault(FaultCode::OutOfRange, at, self.path(), message, Some("quote it to mean text")));
                Content::Text(text.to_owned())
            }
        }
    }

    /// `!name` is a tag to YAML, and the start of `!ready` to somebody who writes a condition.
    fn refuse_tag(&mut self, tag: Option<&Tag>, at: At) {
        if tag.is_some_and(|tag| !tag.is_yaml_core_schema()) {
            self.report(fault(
                FaultCode::UnquotedExpression,
                at,
                self.path(),
                "YAML reads a `!` here as the start of a tag".into(),
                Some("quote it: \"!…\""),
            ));
        }
    }
}

/// A plain scalar that the core schema reads as a number, or why it cannot be one.
fn number(text: &str) -> Option<Result<Number, &'static str>> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF" | ".nan" | ".NaN" | ".NAN") {
        return Some(Err("is a number that JSON does not have"));
    }
    let radix = [("0x", 16), ("0o", 8)].into_iter().find_map(|(mark, radix)| Some((text.strip_prefix(mark)?, radix)));
    if let Some((digits, radix)) = radix {
        let shaped = !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix));
        return shaped
            .then(|| u64::from_str_radix(digits, radix).map(Number::from).map_err(|_| "is too large a number"));
    }
    let starts = unsigned.strip_prefix('.').unwrap_or(unsigned).starts_with(|first: char| first.is_ascii_digit());
    if !starts || !unsigned.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-')) {
        return None;
    }
    if unsigned.chars().all(|c| c.is_ascii_digit()) {
        let text = text.strip_prefix('+').unwrap_or(text);
        let whole = text.parse::<u64>().map(Number::from).or_else(|_| text.parse::<i64>().map(Number::from));
        return Some(whole.map_err(|_| "is too large a number"));
    }
    let value: f64 = text.parse().ok()?;
    Some(Number::from_f64(value).ok_or("is too large a number"))
}

fn unusable_key(source: &str, node: &Node, path: String) -> Fault {
    if line_of(source, node.at).contains("{{") {
        let message = "YAML reads `{{` here as the start of a mapping".into();
        return fault(FaultCode::UnquotedExpression, node.at, path, message, Some("quote it: \"${{ … }}\""));
    }
    fault(FaultCode::WrongType, node.at, path, format!("a key is text; this is {}", node.kind()), None)
}

fn duplicate_key(key: &Key, mut path: String) -> Fault {
    push_segment(&mut path, &key.text);
    fault(
        FaultCode::DuplicateKey,
        key.at,
        path,
        format!("`{}` is written twice in this mapping", clip(&key.text)),
        None,
    )
}

/// A syntax error, and whether an unquoted expression is the likely cause.
fn scan_fault(text: &str, mut path: String, error: &ScanError) -> DefinitionError {
    let at = place(error.marker());
    if matches!(error.kind(), ErrorKind::RecursionLimitExceeded) {
        return too_complex(at, format!("values are nested more than {DEEPEST} deep"));
    }
    let line = line_of(text, at);
    if !holds_bare_expression(line) {
        return DefinitionError::Invalid(vec![fault(FaultCode::YamlSyntax, at, path, error.info(), None)]);
    }
    // The parser stops before it tells the key of the line.
    if let Some((name, _)) = field_of(line).filter(|(name, _)| !path.split('/').any(|segment| segment == *name)) {
        push_segment(&mut path, name);
    }
    let message = format!("YAML takes a part of this expression for its own: {}", error.info());
    let hint = "quote it: put the whole value between double or single quotes";
    DefinitionError::Invalid(vec![fault(FaultCode::UnquotedExpression, at, path, message, Some(hint))])
}

/// Fields whose values are expressions even without `${{ }}`.
const EXPRESSION_FIELDS: [&str; 5] = ["when", "requires", "verify", "until", "for_each"];

/// Whether a line has an expression without quotes, which is then the likely cause of its syntax error.
fn holds_bare_expression(line: &str) -> bool {
    let before_marks = line.find("${{").map(|start| &line[..start]);
    let in_template = before_marks.is_some_and(|before| !before.contains(['"', '\'']));
    let in_field = field_of(line).is_some_and(|(name, value)| EXPRESSION_FIELDS.contains(&name) && !is_quoted(value));
    in_template || in_field
}

fn field_of(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.trim_start_matches([' ', '-', '{', '\t']).split_once(':')?;
    Some((name.trim(), value.trim())).filter(|(name, value)| !name.is_empty() && !value.is_empty())
}

fn is_quoted(value: &str) -> bool {
    ['"', '\''].iter().any(|&quote| {
        value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)).is_some_and(|inner| !inner.contains(quote))
    })
}

fn line_of(text: &str, at: At) -> &str {
    match (at.line as usize).checked_sub(1) {
        Some(index) => text.lines().nth(index).unwrap_or(""),
        None => "",
    }
}

fn place(marker: &serde_saphyr::granit_parser::Marker) -> At {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    At { line: number(marker.line()).max(1), column: number(marker.col()).saturating_add(1) }
}

fn fault(code: FaultCode, at: At, path: String, message: String, hint: Option<&str>) -> Fault {
    Fault { code, line: Some(at.line), column: Some(at.column), path, message, hint: hint.map(str::to_owned) }
}

fn invalid(code: FaultCode, at: At, message: &str, hint: Option<&str>) -> DefinitionError {
    DefinitionError::Invalid(vec![fault(code, at, String::new(), message.to_owned(), hint)])
}

fn path_too_long(at: At) -> DefinitionError {
    too_complex(at, format!("the keys that lead here have more than {LONGEST_PATH_BYTES} bytes"))
}

fn too_complex(at: At, message: String) -> DefinitionError {
    DefinitionError::TooComplex(vec![fault(FaultCode::TooComplex, at, String::new(), message, None)])
}

/// Adds one segment to a JSON pointer.
pub(super) fn push_segment(path: &mut String, segment: &str) {
    path.push('/');
    path.push_str(&segment.replace('~', "~0").replace('/', "~1"));
}

/// Text short enough for a message.
pub(super) fn clip(text: &str) -> String {
    const LONGEST: usize = 60;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

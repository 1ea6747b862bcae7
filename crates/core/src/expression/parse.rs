//! Parses the text of an expression, within limits that hold for any text: the stack it needs is bounded by `MAX_DEPTH`.

use std::sync::Arc;

use super::ast::{Access, Base, Conversion, Macro, Method, Node, Operator, Path, Pattern, Step};
use super::error::CompileError;
use super::json::Key;
use super::lex::{Lexer, Token};
use super::pattern;
use super::value::Value;
use super::{MAX_DEPTH, MAX_NODES, MAX_PATTERNS};

pub(super) fn parse(text: &str) -> Result<Node, CompileError> {
    let mut parser = Parser::new(text)?;
    let root = parser.expression()?;
    if *parser.token() != Token::End {
        return Err(parser.unexpected("the expression is complete before it"));
    }
    Ok(root)
}

struct Parser<'t> {
    tokens: Vec<(Token<'t>, usize)>,
    at: usize,
    nodes: usize,
    depth: usize,
    /// The variable of the macro whose body is being read.
    variable: Option<&'t str>,
    patterns: Vec<(String, Arc<Pattern>)>,
}

/// An operator between two values.
#[derive(Clone, Copy)]
enum Infix {
    Or,
    And,
    Apply(Operator),
}

/// Each with its rank: what ranks higher binds more tightly.
const INFIXES: [(&str, usize, Infix); 14] = [
    ("||", 0, Infix::Or),
    ("&&", 1, Infix::And),
    ("==", 2, Infix::Apply(Operator::Equal)),
    ("!=", 2, Infix::Apply(Operator::Unequal)),
    ("<=", 2, Infix::Apply(Operator::LessOrEqual)),
    (">=", 2, Infix::Apply(Operator::GreaterOrEqual)),
    ("<", 2, Infix::Apply(Operator::Less)),
    (">", 2, Infix::Apply(Operator::Greater)),
    ("in", 2, Infix::Apply(Operator::In)),
    ("+", 3, Infix::Apply(Operator::Add)),
    ("-", 3, Infix::Apply(Operator::Subtract)),
    ("*", 4, Infix::Apply(Operator::Multiply)),
    ("/", 4, Infix::Apply(Operator::Divide)),
    ("%", 4, Infix::Apply(Operator::Remainder)),
];

impl<'t> Parser<'t> {
    fn new(text: &'t str) -> Result<Parser<'t>, CompileError> {
        let mut lexer = Lexer::new(text);
        let mut tokens = Vec::new();
        while tokens.last().is_none_or(|(token, _)| *token != Token::End) {
            tokens.push(lexer.next()?);
        }
        Ok(Parser { tokens, at: 0, nodes: 0, depth: 0, variable: None, patterns: Vec::new() })
    }

    fn expression(&mut self) -> Result<Node, CompileError> {
        self.deeper(1)?;
        let condition = self.infix(0)?;
        let node = if self.take("?") {
            let then = self.expression()?;
            self.expect(":", "a choice is written `condition ? one : other`")?;
            let otherwise = self.expression()?;
            self.node(Node::Choice(Box::new([condition, then, otherwise])))?
        } else {
            condition
        };
        self.depth -= 1;
        Ok(node)
    }

    /// Values between operators of this rank and above. One function for all ranks keeps the stack of a level small.
    fn infix(&mut self, lowest: usize) -> Result<Node, CompileError> {
        let mut left = self.unary()?;
        while let Some((rank, infix)) = self.next_infix().filter(|(rank, _)| *rank >= lowest) {
            self.at += 1;
            let right = self.infix(rank + 1)?;
            self.count_node()?;
            left = joined(left, infix, right);
        }
        Ok(left)
    }

    fn next_infix(&self) -> Option<(usize, Infix)> {
        let (Token::Sign(spelled) | Token::Name(spelled)) = self.token() else { return None };
        INFIXES.iter().find(|row| row.0 == *spelled).map(|row| (row.1, row.2))
    }

    fn unary(&mut self) -> Result<Node, CompileError> {
        let mut signs = Vec::new();
        while let Token::Sign(sign @ ("!" | "-")) = *self.token() {
            signs.push(sign);
            self.at += 1;
            self.deeper(1)?;
        }
        let depth = signs.len();
        let mut node = self.operand(&mut signs)?;
        for sign in signs.into_iter().rev() {
            node = self.node(if sign == "!" { Node::Not(Box::new(node)) } else { Node::Negate(Box::new(node)) })?;
        }
        self.depth -= depth;
        Ok(node)
    }

    /// An integer takes the minus before it, because the smallest one has no positive counterpart.
    fn operand(&mut self, signs: &mut Vec<&str>) -> Result<Node, CompileError> {
        let Token::Int(magnitude) = *self.token() else { return self.access() };
        let negative = signs.last() == Some(&"-");
        let int = if negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() };
        let Some(int) = int else {
            return Err(CompileError::syntax(self.offset(), "an integer is out of range", "integers are 64 bits"));
        };
        if negative {
            signs.pop();
        }
        self.at += 1;
        self.node(Node::Literal(Value::Int(int)))
    }

    fn access(&mut self) -> Result<Node, CompileError> {
        let offset = self.offset();
        let base = self.primary()?;
        if !self.continues() {
            return Ok(base);
        }
        // Parentheses around the first part change nothing: `(a.?b).orValue(c)`.
        let mut access = if let Node::Access(access) = base {
            access
        } else {
            Access { base: Base::Node(Box::new(base)), steps: Vec::new(), offset }
        };
        while self.continues() {
            let step = self.step(access.is_optional())?;
            self.count_node()?;
            access.extend(step);
        }
        Ok(Node::Access(access))
    }

    fn continues(&self) -> bool {
        matches!(self.token(), Token::Sign("." | "["))
    }

    fn step(&mut self, is_optional: bool) -> Result<Step, CompileError> {
        let is_index = self.take("[");
        if !is_index {
            self.expect(".", "members are read as a.b")?;
        }
        let optional = self.take("?");
        if is_index {
            return self.index(optional);
        }
        let offset = self.offset();
        let name = self.name("a key or method stands behind `.`; keys that are not names are read as a['key']")?;
        if !self.take("(") {
            return Ok(Step::Key { key: Key::from(name), optional });
        }
        if optional {
            return Err(CompileError::syntax(offset, "`.?` stands before a method", "it tests keys only: a.?b"));
        }
        self.method(name, offset, is_optional)
    }

    fn index(&mut self, optional: bool) -> Result<Step, CompileError> {
        let index = self.expression()?;
        self.expect("]", "an index ends with `]`")?;
        Ok(match constant_key(&index) {
            Some(key) => Step::Key { key, optional },
            None => Step::Index { index, optional },
        })
    }

    /// A method after its opening parenthesis.
    fn method(&mut self, name: &'t str, offset: usize, is_optional: bool) -> Result<Step, CompileError> {
        match (name, is_optional) {
            ("orValue", true) => return Ok(Step::OrValue(self.only_argument()?)),
            ("hasValue", true) => return self.expect(")", "hasValue() takes nothing").map(|()| Step::HasValue),
            ("orValue" | "hasValue", false) => {
                let fault = format!("{name}() stands behind a value that is always there");
                return Err(CompileError::syntax(offset, fault, "test the key before it: a.?b.orValue(c)"));
            }
            (_, true) => {
                let fault = format!("{name}() stands behind a key that may be missing");
                return Err(CompileError::syntax(offset, fault, "say what is meant then: a.?b.orValue(c)"));
            }
            (_, false) => {}
        }
        if let Some((_, kind)) = Macro::NAMES.into_iter().find(|row| row.0 == name) {
            return self.macro_body(offset).map(|body| Step::Macro(kind, Box::new(body)));
        }
        if name == "matches" {
            return self.pattern().map(Step::Matches);
        }
        let Some((_, method, least, most)) = Method::NAMES.into_iter().find(|row| row.0 == name) else {
            return Err(unknown(name, offset, "method", method_names()));
        };
        let arguments = self.list(")")?;
        if (least..=most).contains(&arguments.len()) {
            return Ok(Step::Method(method, arguments));
        }
        let takes = if least == most { format!("{least}") } else { format!("{least} or {most}") };
        let fault = format!("{name}() is given {} arguments", arguments.len());
        Err(CompileError::syntax(offset, fault, format!("it takes {takes}")))
    }

    /// `variable, body)`
    fn macro_body(&mut self, offset: usize) -> Result<Node, CompileError> {
        if self.variable.is_some() {
            return Err(CompileError::too_complex(
                offset,
                "a macro stands inside another; at most one level is allowed",
            ));
        }
        let hint = "a macro is written list.all(item, item > 0)";
        let name = self.name(hint)?;
        self.expect(",", hint)?;
        self.variable = Some(name);
        let body = self.expression()?;
        self.variable = None;
        self.expect(")", hint)?;
        Ok(body)
    }

    /// Patterns are literals, so that what they cost is known at upload.
    fn pattern(&mut self) -> Result<Arc<Pattern>, CompileError> {
        let (Token::Text(source), offset) = self.tokens[self.at].clone() else {
            return Err(self.unexpected("matches() takes a literal pattern, such as r'[0-9]+'"));
        };
        self.at += 1;
        self.count_node()?;
        self.expect(")", "matches() takes one literal pattern")?;
        if let Some((_, known)) = self.patterns.iter().find(|(known, _)| *known == source) {
            return Ok(Arc::clone(known));
        }
        if self.patterns.len() == MAX_PATTERNS {
            return Err(CompileError::too_complex(offset, format!("it has more than {MAX_PATTERNS} patterns")));
        }
        let pattern = Arc::new(pattern::compile(&source, offset)?);
        self.patterns.push((source, Arc::clone(&pattern)));
        Ok(pattern)
    }

    fn primary(&mut self) -> Result<Node, CompileError> {
        let (token, offset) = self.tokens[self.at].clone();
        match token {
            Token::Sign("(") => {
                self.at += 1;
                let node = self.expression()?;
                self.expect(")", "a parenthesis is not closed")?;
                Ok(node)
            }
            Token::Sign("[") => {
                self.at += 1;
                let items = self.list("]")?;
                self.node(Node::List(items))
            }
            Token::Sign("{") => self.map(),
            Token::Double(double) => self.literal(Value::Double(double)),
            Token::Text(text) => self.literal(Value::string(text)),
            Token::Name("true") => self.literal(Value::Bool(true)),
            Token::Name("false") => self.literal(Value::Bool(false)),
            Token::Name("null") => self.literal(Value::Null),
            Token::Name(name) if name != "in" => self.named(name, offset),
            Token::Name(_) | Token::Sign(_) | Token::Int(_) | Token::End => {
                Err(self.unexpected("a value belongs here"))
            }
        }
    }

    fn named(&mut self, name: &'t str, offset: usize) -> Result<Node, CompileError> {
        self.at += 1;
        if self.take("(") {
            return self.call(name, offset);
        }
        let base = if self.variable == Some(name) {
            Base::Variable
        } else {
            Base::Path(Path { keys: vec![Key::from(name)], optional_from: None, slot: 0 })
        };
        self.node(Node::Access(Access { base, steps: Vec::new(), offset }))
    }

    fn call(&mut self, name: &str, offset: usize) -> Result<Node, CompileError> {
        if name == "has" {
            if let Node::Access(access) = self.only_argument()?
                && access.only_reads()
            {
                return self.node(Node::Has(access));
            }
            return Err(CompileError::syntax(offset, "has() is given no path", "it tests a path: has(input.name)"));
        }
        let Some((_, conversion)) = Conversion::NAMES.into_iter().find(|row| row.0 == name) else {
            let names = Conversion::NAMES.iter().map(|row| row.0).chain(["has"]).collect();
            return Err(unknown(name, offset, "function", names));
        };
        let argument = self.only_argument()?;
        self.node(Node::Convert(conversion, Box::new(argument)))
    }

    fn only_argument(&mut self) -> Result<Node, CompileError> {
        let argument = self.expression()?;
        self.expect(")", "it takes one argument")?;
        Ok(argument)
    }

    fn literal(&mut self, value: Value) -> Result<Node, CompileError> {
        self.at += 1;
        self.node(Node::Literal(value))
    }

    fn map(&mut self) -> Result<Node, CompileError> {
        self.at += 1;
        let mut entries = Vec::new();
        while !self.take("}") {
            let key = self.expression()?;
            self.expect(":", "a map is written {'key': value}")?;
            entries.push((key, self.expression()?));
            if !self.take(",") {
                self.expect("}", "a map is written {'key': value}")?;
                break;
            }
        }
        self.node(Node::Map(entries))
    }

    /// Expressions up to the closing sign; a comma may stand behind the last.
    fn list(&mut self, close: &'static str) -> Result<Vec<Node>, CompileError> {
        let mut items = Vec::new();
        while !self.take(close) {
            items.push(self.expression()?);
            if !self.take(",") {
                self.expect(close, "items stand apart by `,`")?;
                break;
            }
        }
        Ok(items)
    }

    fn name(&mut self, hint: &str) -> Result<&'t str, CompileError> {
        let Token::Name(name) = *self.token() else { return Err(self.unexpected(hint)) };
        self.at += 1;
        Ok(name)
    }

    fn expect(&mut self, sign: &'static str, hint: &str) -> Result<(), CompileError> {
        if self.take(sign) { Ok(()) } else { Err(self.unexpected(hint)) }
    }

    fn take(&mut self, sign: &'static str) -> bool {
        let is_next = *self.token() == Token::Sign(sign);
        self.at += usize::from(is_next);
        is_next
    }

    fn token(&self) -> &Token<'t> {
        &self.tokens[self.at].0
    }

    fn offset(&self) -> usize {
        self.tokens[self.at].1
    }

    fn node(&mut self, node: Node) -> Result<Node, CompileError> {
        self.count_node().map(|()| node)
    }

    fn count_node(&mut self) -> Result<(), CompileError> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(CompileError::too_complex(self.offset(), format!("it has more than {MAX_NODES} parts")));
        }
        Ok(())
    }

    fn deeper(&mut self, levels: usize) -> Result<(), CompileError> {
        self.depth += levels;
        if self.depth > MAX_DEPTH {
            return Err(CompileError::too_complex(self.offset(), format!("it nests more than {MAX_DEPTH} deep")));
        }
        Ok(())
    }

    fn unexpected(&self, hint: &str) -> CompileError {
        let found = match self.token() {
            Token::End => "the expression ends too early".to_owned(),
            Token::Name(name) => format!("unexpected `{name}`"),
            Token::Sign(sign) => format!("unexpected `{sign}`"),
            Token::Int(_) | Token::Double(_) => "unexpected number".to_owned(),
            Token::Text(_) => "unexpected text".to_owned(),
        };
        CompileError::syntax(self.offset(), found, hint)
    }
}

/// Grows the chain on the left. Parentheses there change nothing, because chains are applied from left to right.
fn joined(left: Node, infix: Infix, right: Node) -> Node {
    match (infix, left) {
        (Infix::Or, Node::Or(mut operands)) => {
            operands.push(right);
            Node::Or(operands)
        }
        (Infix::And, Node::And(mut operands)) => {
            operands.push(right);
            Node::And(operands)
        }
        (Infix::Apply(operator), Node::Chain(first, mut rest)) => {
            rest.push((operator, right));
            Node::Chain(first, rest)
        }
        (Infix::Or, left) => Node::Or(vec![left, right]),
        (Infix::And, left) => Node::And(vec![left, right]),
        (Infix::Apply(operator), left) => Node::Chain(Box::new(left), vec![(operator, right)]),
    }
}

fn constant_key(index: &Node) -> Option<Key> {
    let Node::Literal(index) = index else { return None };
    if let Value::Int(index) = index {
        return usize::try_from(*index).ok().map(Key::Index);
    }
    index.as_str().map(Key::from)
}

fn method_names() -> Vec<&'static str> {
    let macros = Macro::NAMES.iter().map(|row| row.0);
    Method::NAMES.iter().map(|row| row.0).chain(macros).chain(["matches", "orValue", "hasValue"]).collect()
}

fn unknown(name: &str, offset: usize, kind: &str, known: Vec<&str>) -> CompileError {
    let nearest = known.iter().min_by_key(|candidate| distance(name, candidate));
    let hint = match nearest {
        Some(nearest) if distance(name, nearest) <= name.len().div_ceil(3) => format!("did you mean `{nearest}`?"),
        _ => format!("known are {}", known.join(", ")),
    };
    CompileError::syntax(offset, format!("unknown {kind} `{name}`"), hint)
}

/// How many letters must change, without regard to case, to make one name of the other.
fn distance(one: &str, other: &str) -> usize {
    let other = other.to_ascii_lowercase();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.to_ascii_lowercase().bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in other.bytes().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

//! A compiled expression as a tree. Chains of operators and of accesses are lists, so that only real nesting is deep.

use std::sync::Arc;

use regex::Regex;

use super::json::Key;
use super::value::Value;

#[derive(Debug)]
pub(super) enum Node {
    Literal(Value),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
    Access(Access),
    Has(Access),
    Not(Box<Node>),
    Negate(Box<Node>),
    /// `a || b || c`
    Or(Vec<Node>),
    /// `a && b && c`
    And(Vec<Node>),
    /// Operators of one rank, applied from left to right.
    Chain(Box<Node>, Vec<(Operator, Node)>),
    /// `condition ? then : otherwise`
    Choice(Box<[Node; 3]>),
    Convert(Conversion, Box<Node>),
}

/// A value and what is done to it from left to right: `base.key[index].method()`.
#[derive(Debug)]
pub(super) struct Access {
    pub(super) base: Base,
    pub(super) steps: Vec<Step>,
    /// Where it begins in the source.
    pub(super) offset: usize,
}

#[derive(Debug)]
pub(super) enum Base {
    Path(Path),
    /// The variable of the macro around; there is at most one.
    Variable,
    Node(Box<Node>),
}

/// A name of the scope and the constant keys that follow it.
#[derive(Clone, Debug)]
pub(super) struct Path {
    pub(super) keys: Vec<Key>,
    /// The first key that may be missing, when there is a `?` in the path.
    pub(super) optional_from: Option<usize>,
    /// Its place among the expression's paths: each is read once in an evaluation.
    pub(super) slot: usize,
}

#[derive(Debug)]
pub(super) enum Step {
    Key { key: Key, optional: bool },
    Index { index: Node, optional: bool },
    Method(Method, Vec<Node>),
    Matches(Arc<Pattern>),
    Macro(Macro, Box<Node>),
    OrValue(Node),
    HasValue,
}

#[derive(Debug)]
pub(super) struct Pattern {
    pub(super) regex: Regex,
    /// Units of fuel for each byte of text it is tried on.
    pub(super) fuel_per_byte: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

/// The functions of one argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conversion {
    Size,
    Int,
    Double,
    String,
    Bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Size,
    Contains,
    StartsWith,
    EndsWith,
    LowerAscii,
    UpperAscii,
    Trim,
    Split,
    Join,
    Replace,
    Substring,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Macro {
    All,
    Exists,
    ExistsOne,
    Map,
    Filter,
}

impl Access {
    /// Appends a step; a constant key right behind a path becomes part of the path.
    pub(super) fn extend(&mut self, step: Step) {
        match (&mut self.base, step) {
            (Base::Path(path), Step::Key { key, optional }) if self.steps.is_empty() => {
                if optional && path.optional_from.is_none() {
                    path.optional_from = Some(path.keys.len());
                }
                path.keys.push(key);
            }
            (Base::Path(_) | Base::Variable | Base::Node(_), step) => self.steps.push(step),
        }
    }

    /// Whether it is a name and keys, constant or computed, and nothing else.
    pub(super) fn only_reads(&self) -> bool {
        !matches!(self.base, Base::Node(_))
            && self.steps.iter().all(|step| matches!(step, Step::Key { .. } | Step::Index { .. }))
    }

    /// Whether its value may be absent without being an error.
    pub(super) fn is_optional(&self) -> bool {
        let from_path = matches!(&self.base, Base::Path(Path { optional_from: Some(_), .. }));
        self.steps.iter().fold(from_path, |optional, step| match step {
            Step::Key { optional: begins, .. } | Step::Index { optional: begins, .. } => optional || *begins,
            Step::Method(..) | Step::Matches(_) | Step::Macro(..) | Step::OrValue(_) | Step::HasValue => false,
        })
    }

    /// The path this access is, when it is nothing else.
    pub(super) fn as_path(&self) -> Option<&Path> {
        match &self.base {
            Base::Path(path) if self.steps.is_empty() => Some(path),
            Base::Path(_) | Base::Variable | Base::Node(_) => None,
        }
    }
}

impl Operator {
    pub(super) fn sign(self) -> &'static str {
        match self {
            Operator::Equal => "==",
            Operator::Unequal => "!=",
            Operator::Less => "<",
            Operator::LessOrEqual => "<=",
            Operator::Greater => ">",
            Operator::GreaterOrEqual => ">=",
            Operator::In => "in",
            Operator::Add => "+",
            Operator::Subtract => "-",
            Operator::Multiply => "*",
            Operator::Divide => "/",
            Operator::Remainder => "%",
        }
    }
}

impl Conversion {
    pub(super) const NAMES: [(&'static str, Conversion); 5] = [
        ("size", Conversion::Size),
        ("int", Conversion::Int),
        ("double", Conversion::Double),
        ("string", Conversion::String),
        ("bool", Conversion::Bool),
    ];
}

impl Method {
    /// The name, the method, and how many arguments it takes at least and at most.
    pub(super) const NAMES: [(&'static str, Method, usize, usize); 11] = [
        ("size", Method::Size, 0, 0),
        ("contains", Method::Contains, 1, 1),
        ("startsWith", Method::StartsWith, 1, 1),
        ("endsWith", Method::EndsWith, 1, 1),
        ("lowerAscii", Method::LowerAscii, 0, 0),
        ("upperAscii", Method::UpperAscii, 0, 0),
        ("trim", Method::Trim, 0, 0),
        ("split", Method::Split, 1, 1),
        ("join", Method::Join, 0, 1),
        ("replace", Method::Replace, 2, 2),
        ("substring", Method::Substring, 1, 2),
    ];

    pub(super) fn name(self) -> &'static str {
        Method::NAMES.iter().find(|row| row.1 == self).map_or("", |row| row.0)
    }
}

impl Macro {
    pub(super) const NAMES: [(&'static str, Macro); 5] = [
        ("all", Macro::All),
        ("exists", Macro::Exists),
        ("exists_one", Macro::ExistsOne),
        ("map", Macro::Map),
        ("filter", Macro::Filter),
    ];

    pub(super) fn name(self) -> &'static str {
        Macro::NAMES.iter().find(|row| row.1 == self).map_or("", |row| row.0)
    }
}

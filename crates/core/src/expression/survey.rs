//! Looks once over a compiled tree: what it reads, and whether every key that may be missing is dealt with.

use super::Reference;
use super::ast::{Access, Base, Node, Path, Step};
use super::error::CompileError;
use super::json::Key;

/// What an expression reads.
#[derive(Default)]
pub(super) struct Survey {
    pub(super) references: Vec<Reference>,
    /// How many paths there are; each has been given its slot.
    pub(super) paths: usize,
}

pub(super) fn survey(root: &mut Node) -> Result<Survey, CompileError> {
    let mut survey = Survey::default();
    if let Node::Access(access) = root {
        // At the top a missing key is null, so that it needs no `orValue`.
        survey.access(access, false)?;
    } else {
        survey.node(root)?;
    }
    Ok(survey)
}

impl Survey {
    fn node(&mut self, node: &mut Node) -> Result<(), CompileError> {
        match node {
            Node::Literal(_) => Ok(()),
            Node::List(nodes) | Node::Or(nodes) | Node::And(nodes) => self.nodes(nodes),
            Node::Map(entries) => entries.iter_mut().try_for_each(|(key, value)| {
                self.node(key)?;
                self.node(value)
            }),
            Node::Has(access) => self.access(access, true),
            Node::Access(access) if access.is_optional() => Err(loose_optional(access)),
            Node::Access(access) => self.access(access, false),
            Node::Not(inner) | Node::Negate(inner) | Node::Convert(_, inner) => self.node(inner),
            Node::Chain(first, rest) => {
                self.node(first)?;
                rest.iter_mut().try_for_each(|(_, operand)| self.node(operand))
            }
            Node::Choice(parts) => self.nodes(&mut parts[..]),
        }
    }

    fn nodes(&mut self, nodes: &mut [Node]) -> Result<(), CompileError> {
        nodes.iter_mut().try_for_each(|node| self.node(node))
    }

    fn access(&mut self, access: &mut Access, in_has: bool) -> Result<(), CompileError> {
        match &mut access.base {
            Base::Path(path) => self.path(path, in_has),
            Base::Variable => {}
            Base::Node(node) => self.node(node)?,
        }
        access.steps.iter_mut().try_for_each(|step| match step {
            Step::Index { index, .. } => self.node(index),
            Step::Method(_, arguments) => self.nodes(arguments),
            Step::Macro(_, body) => self.node(body),
            Step::OrValue(node) => self.node(node),
            Step::Key { .. } | Step::Matches(_) | Step::HasValue => Ok(()),
        })
    }

    fn path(&mut self, path: &mut Path, in_has: bool) {
        path.slot = self.paths;
        self.paths += 1;
        let tested = in_has || path.optional_from.is_some();
        let keys: Vec<String> = path.keys.iter().map(spelled).collect();
        match self.references.iter_mut().find(|known| known.keys == keys) {
            Some(known) => known.tested &= tested,
            None => self.references.push(Reference { keys, tested }),
        }
    }
}

fn spelled(key: &Key) -> String {
    match key {
        Key::Name(name) => name.clone(),
        Key::Index(index) => index.to_string(),
    }
}

fn loose_optional(access: &Access) -> CompileError {
    let fault = "a key that may be missing is used as if it were there";
    CompileError::syntax(access.offset, fault, "say what is meant then: a.?b.orValue(c), or test it: a.?b.hasValue()")
}

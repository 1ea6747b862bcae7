//! What the names in an expression mean: JSON texts filed under the first keys of the paths that lead to them.

use std::borrow::Cow;
use std::ops::Range;

use super::json::{self, Key};

/// The values an expression may read. Of two prefixes that fit a path the longer one wins.
///
/// It is built for every evaluation, so that all names share one buffer and setting a name seldom allocates.
#[derive(Clone, Debug, Default)]
pub struct Scope<'s> {
    names: String,
    name_ends: Vec<usize>,
    entries: Vec<Entry<'s>>,
}

#[derive(Clone, Debug)]
struct Entry<'s> {
    /// Which of the scope's names are the prefix.
    prefix: Range<usize>,
    json: Cow<'s, str>,
}

/// Where a path leads before any JSON is read.
pub(super) enum Found<'a, 's> {
    /// Into this text, after so many of its keys.
    Text { json: &'a Cow<'s, str>, consumed: usize },
    /// To a name that has only longer names below it, as `steps` has.
    Branch,
    /// Nowhere: the key at this place is unknown.
    Missing { at: usize },
}

impl<'s> Scope<'s> {
    /// Files a JSON text under a prefix such as `["steps", "charge", "output"]`.
    pub fn set(&mut self, prefix: &[&str], json: impl Into<Cow<'s, str>>) -> &mut Self {
        let json = json.into();
        if let Some(at) = self.entries.iter().position(|entry| self.prefix_of(entry).eq(prefix.iter().copied())) {
            self.entries[at].json = json;
            return self;
        }
        let from = self.name_ends.len();
        for name in prefix {
            self.names.push_str(name);
            self.name_ends.push(self.names.len());
        }
        self.entries.push(Entry { prefix: from..self.name_ends.len(), json });
        self
    }

    pub(super) fn find(&self, keys: &[Key]) -> Found<'_, 's> {
        let mut best: Option<&Entry<'s>> = None;
        let mut shared_most = 0;
        for entry in &self.entries {
            let shared = self.shared_keys(entry, keys);
            shared_most = shared_most.max(shared);
            if shared == entry.prefix.len() && best.is_none_or(|held| held.prefix.len() < shared) {
                best = Some(entry);
            }
        }
        match best {
            Some(entry) => Found::Text { json: &entry.json, consumed: entry.prefix.len() },
            None if shared_most == keys.len() => Found::Branch,
            None => Found::Missing { at: shared_most },
        }
    }

    /// The names that may follow these keys.
    pub(super) fn names_below(&self, keys: &[Key]) -> Vec<String> {
        let mut names = Vec::new();
        for entry in self.entries.iter().filter(|entry| self.shared_keys(entry, keys) == keys.len()) {
            if let Some(name) = self.prefix_of(entry).nth(keys.len())
                && !names.iter().any(|known| known == name)
            {
                names.push(name.to_owned());
            }
        }
        names
    }

    /// The JSON object of everything filed below these keys.
    pub(super) fn assemble(&self, keys: &[Key]) -> String {
        let mut out = String::from("{");
        for (position, name) in self.names_below(keys).into_iter().enumerate() {
            if position > 0 {
                out.push(',');
            }
            json::push_string(&mut out, &name);
            out.push(':');
            let below: Vec<Key> = keys.iter().cloned().chain([Key::Name(name)]).collect();
            match self.find(&below) {
                Found::Text { json, .. } => out.push_str(json),
                Found::Branch | Found::Missing { .. } => out.push_str(&self.assemble(&below)),
            }
        }
        out.push('}');
        out
    }

    fn prefix_of(&self, entry: &Entry<'s>) -> impl Iterator<Item = &str> {
        entry.prefix.clone().map(|at| {
            let from = if at == 0 { 0 } else { self.name_ends[at - 1] };
            &self.names[from..self.name_ends[at]]
        })
    }

    fn shared_keys(&self, entry: &Entry<'s>, keys: &[Key]) -> usize {
        let pairs = self.prefix_of(entry).zip(keys);
        pairs.take_while(|(name, key)| matches!(key, Key::Name(asked) if asked == name)).count()
    }
}

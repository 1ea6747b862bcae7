//! The outside world: what was really done under which key. Probes and operators answer from it truthfully.

use std::collections::BTreeMap;

use abide_core::ids::Digest;

#[derive(Clone, Debug)]
#[expect(dead_code, reason = "read by people, when something happened twice")]
pub struct Deed {
    pub at: i64,
    pub worker: String,
    pub place: String,
    /// Done by somebody who no longer had the right to.
    pub late: bool,
}

#[derive(Debug, Default)]
pub struct Outside {
    deeds: BTreeMap<Digest, Vec<Deed>>,
    pub external: u64,
    pub late: u64,
}

impl Outside {
    /// Does it. Says what is wrong when it must not happen twice and does.
    pub fn perform(&mut self, key: Digest, deed: Deed, once: bool) -> Option<String> {
        let before = self.deeds.entry(key).or_default();
        self.external += u64::from(once);
        self.late += u64::from(deed.late);
        let first = before.iter().find(|deed| !deed.late).cloned();
        let twice = first.filter(|_| once && !deed.late);
        let told = twice.map(|first| format!("{first:?} and again {deed:?}"));
        before.push(deed);
        told
    }

    pub fn happened(&self, key: &Digest) -> bool {
        self.deeds.contains_key(key)
    }
}

//! Names of things: one type per id, so that a worker's name cannot be passed where a run is meant.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use ring::digest;
use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            pub fn new(text: impl Into<Arc<str>>) -> Self {
                $name(text.into())
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                $name(text.into())
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
    };
}

text_id!(
    /// A tenant.
    Namespace
);
text_id!(
    /// One execution: `run_` and a ULID.
    RunId
);
text_id!(
    /// One unit of leased work: `task_01J….7.charge`, made of its run, the event that issued it and its path, so that
    /// whoever holds one finds the run without a table.
    TaskId
);
text_id!(
    /// The name a worker gives itself; a new one for every process.
    WorkerId
);
text_id!(
    /// The id of a workflow document.
    WorkflowId
);
text_id!(
    /// The name under which workers offer code.
    Handler
);
text_id!(
    /// Where tasks wait for a worker.
    Queue
);
text_id!(
    /// An instance of a step: `reserve.3` (item), `poll.4` (round), `charge.v2` (second visit).
    Path
);
text_id!(
    /// The name of one stored payload of a run: `input`, `charge/output`, `reserve/items/2`.
    PayloadName
);

impl Path {
    /// The `n`th item or round of this step.
    pub fn item(&self, n: u32) -> Path {
        Path::new(format!("{self}.{n}"))
    }

    pub fn probe(&self) -> Path {
        Path::new(format!("{self}.probe"))
    }

    pub fn undo(&self) -> Path {
        Path::new(format!("{self}.undo"))
    }

    /// The path of a step at its `visit`th visit; the first has the step's own name.
    pub fn of_visit(step: &str, visit: u32) -> Path {
        if visit <= 1 { Path::from(step) } else { Path::new(format!("{step}.v{visit}")) }
    }

    pub fn payload(&self, what: &str) -> PayloadName {
        PayloadName::new(format!("{self}/{what}"))
    }
}

impl TaskId {
    /// The task that event `seq` of a run issues at a path.
    pub fn of(run: &RunId, seq: u64, path: &Path) -> TaskId {
        TaskId::new(format!("task_{}.{seq}.{path}", run.as_str().trim_start_matches("run_")))
    }

    /// The run and the path that this task belongs to; nothing when it is no task's id.
    pub fn place(&self) -> Option<(RunId, Path)> {
        let (run, rest) = self.as_str().strip_prefix("task_")?.split_once('.')?;
        let (seq, path) = rest.split_once('.')?;
        seq.parse::<u64>().ok().filter(|_| !path.is_empty())?;
        Some((RunId::new(format!("run_{run}")), Path::from(path)))
    }
}

impl PayloadName {
    pub fn input() -> PayloadName {
        PayloadName::from("input")
    }

    /// The sensitive values of the run, so that they are recognised where they are repeated.
    pub fn sensitive() -> PayloadName {
        PayloadName::from("sensitive")
    }

    pub fn output() -> PayloadName {
        PayloadName::from("output")
    }
}

/// One counter per run that every claim raises; a write that carries an older one is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl Epoch {
    pub fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// SHA-256 of some bytes, written in hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    pub fn of(bytes: &[u8]) -> Digest {
        Digest::from(digest::digest(&digest::SHA256, bytes))
    }

    /// A digest over several fields, as [`Fields`] makes it.
    pub fn of_fields<'a>(fields: impl IntoIterator<Item = &'a [u8]>) -> Digest {
        let mut said = Fields::default();
        fields.into_iter().for_each(|field| said.add(field));
        said.digest()
    }
}

impl From<digest::Digest> for Digest {
    fn from(digest: digest::Digest) -> Digest {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.as_ref());
        Digest(bytes)
    }
}

/// A digest over fields that come one by one; each is preceded by its length, so that no two lists of fields look alike.
#[derive(Clone)]
pub struct Fields(digest::Context);

impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fields").finish_non_exhaustive()
    }
}

impl Default for Fields {
    fn default() -> Fields {
        Fields(digest::Context::new(&digest::SHA256))
    }
}

impl Fields {
    pub fn add(&mut self, field: &[u8]) {
        self.0.update(&(field.len() as u64).to_le_bytes());
        self.0.update(field);
    }

    pub fn digest(self) -> Digest {
        Digest::from(self.0.finish())
    }
}

impl Digest {
    /// Hands its hexadecimal digits over, without making a text of them first.
    fn in_hex<T>(&self, then: impl FnOnce(&str) -> T) -> T {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 64];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.0) {
            pair[0] = HEX[usize::from(byte >> 4)];
            pair[1] = HEX[usize::from(byte & 15)];
        }
        then(std::str::from_utf8(&text).unwrap_or_default())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.in_hex(|text| f.write_str(text))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.in_hex(|text| serializer.serialize_str(text))
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Digest, D::Error> {
        struct Hex;
        impl serde::de::Visitor<'_> for Hex {
            type Value = Digest;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("64 hexadecimal digits")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Digest, E> {
                Digest::parse(text).ok_or_else(|| E::custom("a digest is 64 hexadecimal digits"))
            }
        }
        // Every event that is read has one, so it is not copied first.
        deserializer.deserialize_str(Hex)
    }
}

impl Digest {
    /// Reads 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Digest> {
        parse_hex(text).map(Digest)
    }
}

fn parse_hex(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    let mut bytes = [0; 32];
    if digits.len() != 64 {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
    }
    Some(bytes)
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

/// A ULID made from what is known, so that the rules need no randomness: its time is `at` (ids sort by time, which
/// stores like), the rest is a digest of the run, the event and a number within it.
pub fn derived_ulid(at: Timestamp, run: &RunId, seq: u64, n: u32) -> String {
    let digest = Digest::of_fields([b"id".as_slice(), run.as_str().as_bytes(), &seq.to_le_bytes(), &n.to_le_bytes()]);
    let millis = (at.micros().max(0) as u128 / 1_000) & ((1 << 48) - 1);
    let low = digest.0[..10].iter().fold(0u128, |low, byte| low << 8 | u128::from(*byte));
    ulid_text(millis << 80 | low)
}

/// A fraction in 0..1 that looks random and is the same every time it is asked for.
pub fn derived_fraction(run: &RunId, seq: u64, n: u32) -> f64 {
    let digest =
        Digest::of_fields([b"jitter".as_slice(), run.as_str().as_bytes(), &seq.to_le_bytes(), &n.to_le_bytes()]);
    let bits = digest.0[..6].iter().fold(0u64, |bits, byte| bits << 8 | u64::from(*byte));
    bits as f64 / (1u64 << 48) as f64
}

/// Crockford's base 32, 26 digits for 128 bits.
fn ulid_text(value: u128) -> String {
    const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    (0..26).rev().map(|place| DIGITS[(value >> (place * 5) & 31) as usize] as char).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_ids_sort_by_time_and_are_the_same_each_time() {
        let run = RunId::from("run_01");
        let early = derived_ulid(Timestamp::from_micros(1_000_000), &run, 7, 0);
        let late = derived_ulid(Timestamp::from_micros(2_000_000), &run, 7, 0);
        assert!(early < late);
        assert_eq!(early.len(), 26);
        assert_eq!(early, derived_ulid(Timestamp::from_micros(1_000_000), &run, 7, 0));
        assert_ne!(early, derived_ulid(Timestamp::from_micros(1_000_000), &run, 7, 1));
    }

    #[test]
    fn a_task_tells_where_it_belongs() {
        let (run, path) = (RunId::from("run_01J"), Path::from("reserve.3.undo"));
        let task = TaskId::of(&run, 7, &path);
        assert_eq!(task.as_str(), "task_01J.7.reserve.3.undo");
        assert_eq!(task.place(), Some((run, path)));
        for wrong in ["", "task_", "task_01J", "task_01J.7", "task_01J.7.", "task_01J.x.charge", "run_01J.7.charge"] {
            assert_eq!(TaskId::from(wrong).place(), None, "{wrong}");
        }
    }

    #[test]
    fn a_digest_survives_being_written_and_read() {
        let digest = Digest::of(b"abide");
        let json = serde_json::to_string(&digest).unwrap();
        assert_eq!(serde_json::from_str::<Digest>(&json).unwrap(), digest);
        assert_eq!(Digest::parse(&digest.to_string().to_uppercase()), Some(digest));
        for wrong in ["xyz".to_owned(), "g".repeat(64), "0".repeat(63), "0".repeat(65), "/:@`".repeat(16)] {
            assert!(serde_json::from_value::<Digest>(wrong.clone().into()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn fields_do_not_run_into_each_other() {
        assert_ne!(Digest::of_fields([b"ab".as_slice(), b"c"]), Digest::of_fields([b"a".as_slice(), b"bc"]));
    }
}

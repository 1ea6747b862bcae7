//! Payloads that a document calls sensitive are stored sealed: whoever reads the database, its WAL or a backup, but not the
//! key beside it, reads nothing. What is sealed is bound to its row: bytes that were moved to another row do not open.

use std::io::Write as _;
use std::path::Path;

use abide_core::ids::Digest;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use super::{StoreError, Stored};
use crate::ids::random;

/// No JSON and no packed run begins like this.
const MARK: &[u8] = b"\0sealed\x01";
const ID: usize = 4;

/// The file in the data directory that holds the keys, one a line in hexadecimal digits. The first one seals, all of them
/// open: to change the key, put a new line on top.
pub const FILE: &str = "seal.key";

#[derive(Debug)]
pub struct Keys(Vec<Key>);

#[derive(Debug)]
struct Key {
    id: [u8; ID],
    cipher: LessSafeKey,
}

impl Key {
    fn new(bytes: &[u8; 32]) -> Stored<Key> {
        let hash = Digest::of(bytes).0;
        let cipher =
            UnboundKey::new(&AES_256_GCM, bytes).map_err(|_| StoreError::Failed("a key is unusable".into()))?;
        Ok(Key { id: [hash[0], hash[1], hash[2], hash[3]], cipher: LessSafeKey::new(cipher) })
    }
}

impl Keys {
    /// A key that lives as long as the store: for stores in memory.
    pub fn fleeting() -> Stored<Keys> {
        Ok(Keys(vec![Key::new(&random())?]))
    }

    /// The keys of a data directory; none when it has no file of them.
    pub fn of(directory: &Path) -> Stored<Keys> {
        let path = directory.join(FILE);
        let failed = |why: &str| StoreError::Failed(format!("{}: {why}", path.display()));
        if !path.exists() {
            return Ok(Keys(Vec::new()));
        }
        refuse_if_others_can_read(&path).map_err(|why| failed(&why))?;
        let text = std::fs::read_to_string(&path).map_err(|error| failed(&error.to_string()))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let keys = lines.map(|line| match Digest::parse(line) {
            Some(bytes) => Key::new(&bytes.0),
            None => Err(failed("a key is 64 hexadecimal digits, one a line")),
        });
        Ok(Keys(keys.collect::<Stored<_>>()?))
    }

    /// The same, with a new key where there was none: nothing may be sealed with a key that is not on the disk.
    pub fn of_or_new(directory: &Path) -> Stored<Keys> {
        let path = directory.join(FILE);
        if !path.exists() {
            let failed = |error: std::io::Error| StoreError::Failed(format!("cannot make {}: {error}", path.display()));
            write_new(directory, &path).map_err(failed)?;
        }
        Keys::of(directory)
    }

    pub fn seal(&self, plain: &[u8], about: &str) -> Stored<Vec<u8>> {
        let Some(key) = self.0.first() else { return Err(StoreError::Failed("there is no key to seal with".into())) };
        let nonce: [u8; NONCE_LEN] = random();
        let mut sealed = plain.to_vec();
        let unnamed = Nonce::assume_unique_for_key(nonce);
        key.cipher
            .seal_in_place_append_tag(unnamed, Aad::from(about.as_bytes()), &mut sealed)
            .map_err(|_| StoreError::Failed("something cannot be sealed".into()))?;
        Ok([MARK, &key.id, &nonce, &sealed].concat())
    }

    /// What was sealed, opened; anything else as it is.
    pub fn open(&self, stored: &[u8], about: &str) -> Stored<Vec<u8>> {
        let Some((id, rest)) = stored.strip_prefix(MARK).and_then(|rest| rest.split_at_checked(ID)) else {
            return Ok(stored.to_vec());
        };
        let Some(key) = self.0.iter().find(|key| key.id == id) else {
            let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
            return Err(StoreError::Corrupt(format!("it is sealed with key {id}, which is not in {FILE}")));
        };
        let broken = || StoreError::Corrupt("what is sealed was changed, or belongs to another row".into());
        let (nonce, rest) = rest.split_at_checked(NONCE_LEN).ok_or_else(broken)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| broken())?;
        let mut opened = rest.to_vec();
        let length =
            key.cipher.open_in_place(nonce, Aad::from(about.as_bytes()), &mut opened).map_err(|_| broken())?.len();
        opened.truncate(length);
        Ok(opened)
    }
}

/// Complete and durable under its name, or not there.
fn write_new(directory: &Path, path: &Path) -> std::io::Result<()> {
    let unfinished = directory.join("seal.key.unfinished");
    let _ = std::fs::remove_file(&unfinished);
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&unfinished)?;
    writeln!(file, "{}", Digest(random()))?;
    file.sync_all()?;
    std::fs::rename(&unfinished, path)?;
    std::fs::File::open(directory)?.sync_all()
}

#[cfg(unix)]
fn refuse_if_others_can_read(path: &Path) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(path).map_err(|error| error.to_string())?.permissions().mode();
    match mode & 0o077 {
        0 => Ok(()),
        _ => Err(format!("others can read this key (mode {:o}): chmod 600 it", mode & 0o777)),
    }
}

#[cfg(not(unix))]
fn refuse_if_others_can_read(_: &Path) -> Result<(), String> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_opens_in_its_own_row_with_its_own_key_and_nowhere_else() {
        let (keys, others) = (Keys::fleeting().unwrap(), Keys::fleeting().unwrap());
        let sealed = keys.seal(b"{\"card\":4711}", "1/input").unwrap();
        assert!(!sealed.windows(4).any(|four| four == b"4711"));
        assert_eq!(keys.open(&sealed, "1/input").unwrap(), b"{\"card\":4711}");
        assert!(keys.open(&sealed, "2/input").unwrap_err().to_string().contains("another row"));
        assert!(others.open(&sealed, "1/input").unwrap_err().to_string().contains("not in seal.key"));
        for at in MARK.len()..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(keys.open(&changed, "1/input").is_err(), "byte {at}");
        }
        assert_eq!(keys.open(b"{\"card\":1}", "1/input").unwrap(), b"{\"card\":1}", "the rest is as it is");
    }

    #[test]
    fn a_key_is_made_once_kept_from_others_and_changed_by_a_line_on_top() {
        let directory = std::env::temp_dir().join(format!("abide-seal-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join(FILE);
        let sealed = Keys::of_or_new(&directory).unwrap().seal(b"1", "row").unwrap();
        assert_eq!(Keys::of_or_new(&directory).unwrap().open(&sealed, "row").unwrap(), b"1");
        let old = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{}\n{old}", Digest::of(b"new"))).unwrap();
        let keys = Keys::of(&directory).unwrap();
        assert_eq!(keys.open(&sealed, "row").unwrap(), b"1");
        assert_ne!(keys.seal(b"1", "row").unwrap()[..MARK.len() + ID], sealed[..MARK.len() + ID]);
        #[cfg(unix)]
        {
            let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
            std::fs::set_permissions(&path, open).unwrap();
            assert!(Keys::of(&directory).unwrap_err().to_string().contains("chmod 600"));
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }
}

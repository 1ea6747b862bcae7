//! What SQLite takes for the end of the WAL. It stops reading at the first frame whose checksum is wrong, which after a power
//! cut is where the writing stopped. A frame that was damaged later looks the same, and what was committed after it would be
//! gone without a word. The difference shows: a commit is synced before the next one is written, so behind a frame that was
//! merely not written there is never a whole commit that another one follows.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::Path;

use super::super::{StoreError, Stored};

const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;
/// Of a file whose header does not say it.
const USUAL_PAGE: usize = 4_096;
const BUFFER: usize = 1 << 20;

/// Refuses a WAL of which SQLite would leave out commits that were made.
pub(super) fn check(wal: &Path) -> Stored {
    let failed = |error: std::io::Error| StoreError::Failed(format!("cannot read {}: {error}", wal.display()));
    let file = match File::open(wal) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        file => file.map_err(failed)?,
    };
    match lost_after(|| file.try_clone().and_then(from_its_beginning)).map_err(failed)? {
        None => Ok(()),
        Some(at) => Err(StoreError::Damaged(format!(
            "{0} is sound up to byte {at} only, and commits that came after it would be lost without a word. Restore a \
             backup; or, to go on without them, keep a copy and cut it there: truncate -s {at} {0}",
            wal.display()
        ))),
    }
}

fn from_its_beginning(mut file: File) -> std::io::Result<BufReader<File>> {
    std::io::Seek::rewind(&mut file)?;
    Ok(BufReader::with_capacity(BUFFER, file))
}

/// Where commits end that SQLite reads, if others follow that it would not.
fn lost_after<R: Read>(open: impl Fn() -> std::io::Result<R>) -> std::io::Result<Option<u64>> {
    let mut reader = open()?;
    let Some(header) = read::<R, HEADER>(&mut reader)? else { return Ok(None) };
    let magic = word(&header, 0, true);
    let page = Some(word(&header, 8, true) as usize).filter(|page| page.is_power_of_two() && *page >= 512);
    let (page, said) = (page.unwrap_or(USUAL_PAGE), (word(&header, 24, true), word(&header, 28, true)));
    let big_endian = magic & 1 == 1;
    let worked_out = checksum((0, 0), &header[..24], big_endian);
    if magic >> 1 == 0x377f_0682 >> 1 && said == worked_out {
        let salts = header[16..24].to_vec();
        return follow(&mut reader, page, vec![(big_endian, said)], Some(salts));
    }
    // Nothing of it would be read. Which byte is wrong is not known, nor whether it is one of those that matter here.
    let seeds = [false, true].into_iter().flat_map(|big| [(big, said), (big, checksum((0, 0), &header[..24], big))]);
    let follows = follow(&mut reader, page, seeds.collect(), None)?;
    Ok(follows.map(|_| 0))
}

type Sums = (u32, u32);

/// Reads frame after frame. Each seed is one way in which the sums may begin; a WAL whose header is wrong (no salts are
/// expected) is damaged before its first frame.
fn follow(
    reader: &mut impl Read,
    page: usize,
    mut seeds: Vec<(bool, Sums)>,
    mut salts: Option<Vec<u8>>,
) -> std::io::Result<Option<u64>> {
    let mut damaged = salts.is_none();
    let (mut end, mut committed, mut at) = (HEADER as u64, false, HEADER as u64);
    let mut bytes = vec![0; page];
    while let Some(head) = read::<_, FRAME_HEADER>(reader)? {
        if reader.read_exact(&mut bytes).is_err() {
            break;
        }
        at += (FRAME_HEADER + page) as u64;
        let said = (word(&head, 16, true), word(&head, 20, true));
        let sums = |(big, seed): (bool, Sums)| checksum(checksum(seed, &head[..8], big), &bytes, big);
        let fits = *salts.get_or_insert_with(|| head[8..16].to_vec()) == head[8..16];
        let commits = word(&head, 4, true) != 0;
        match seeds.iter().copied().find(|seed| fits && sums(*seed) == said) {
            // A whole commit that SQLite would not read, and a frame that was written after it.
            Some(_) if damaged && committed => return Ok(Some(end)),
            Some((big, _)) => {
                seeds = vec![(big, said)];
                committed |= damaged && commits;
                if commits && !damaged {
                    end = at;
                }
            }
            None if damaged => break,
            None => {
                damaged = true;
                committed = commits;
                seeds = seeds.iter().flat_map(|seed| [(seed.0, said), (seed.0, sums(*seed))]).collect();
            }
        }
    }
    Ok(None)
}

/// So many bytes, if there still are.
fn read<R: Read, const N: usize>(reader: &mut R) -> std::io::Result<Option<[u8; N]>> {
    let mut bytes = [0; N];
    match reader.read_exact(&mut bytes) {
        Ok(()) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

fn word(bytes: &[u8], at: usize, big_endian: bool) -> u32 {
    let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).unwrap_or_default();
    if big_endian { u32::from_be_bytes(four) } else { u32::from_le_bytes(four) }
}

/// As the file format says: two sums over pairs of words, which go on from frame to frame.
fn checksum((mut one, mut two): Sums, bytes: &[u8], big_endian: bool) -> Sums {
    for pair in bytes.chunks_exact(8) {
        one = one.wrapping_add(word(pair, 0, big_endian)).wrapping_add(two);
        two = two.wrapping_add(word(pair, 4, big_endian)).wrapping_add(one);
    }
    (one, two)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: usize = FRAME_HEADER + USUAL_PAGE;

    /// A WAL of so many commits as SQLite writes it, each of some frames, and where each of them ends.
    fn wal(name: &str, commits: usize) -> (Vec<u8>, Vec<usize>) {
        let directory = std::env::temp_dir().join(format!("abide-wal-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let db = rusqlite::Connection::open(directory.join("abide.db")).expect("a database");
        db.execute_batch(
            "pragma journal_mode = wal; pragma wal_autocheckpoint = 0; create table t (a integer, b text)",
        )
        .expect("a table");
        let mut ends = Vec::new();
        for n in 0..commits {
            db.execute("insert into t values (?1, ?2)", rusqlite::params![n as i64, "x".repeat(6_000)]).expect("a row");
            ends.push(std::fs::metadata(directory.join("abide.db-wal")).expect("a WAL").len() as usize);
        }
        let bytes = std::fs::read(directory.join("abide.db-wal")).expect("a WAL");
        drop(db);
        std::fs::remove_dir_all(directory).expect("removed");
        (bytes, ends)
    }

    fn found(bytes: &[u8]) -> Option<u64> {
        lost_after(|| Ok(bytes)).expect("it can be read")
    }

    #[test]
    fn what_was_written_is_sound_and_so_is_each_of_its_beginnings() {
        let (bytes, _) = wal("sound", 12);
        assert!(bytes.len() > HEADER + 20 * FRAME, "{}", bytes.len());
        for end in (0..bytes.len()).step_by(499) {
            assert_eq!(found(&bytes[..end]), None, "cut at {end}");
        }
        assert_eq!(found(&bytes), None);
    }

    #[test]
    fn a_bit_that_changed_before_a_commit_that_another_follows_is_found_where_it_cuts() {
        let (bytes, ends) = wal("flipped", 12);
        let last = ends[ends.len() - 2];
        for at in (0..bytes.len()).step_by(251) {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            let before =
                ends.iter().copied().filter(|end| *end <= at).max().unwrap_or(if at < HEADER { 0 } else { HEADER });
            let first = HEADER + FRAME * 2;
            match found(&flipped) {
                Some(cut) => assert!(cut as usize <= at && (cut as usize >= before.min(first)), "{at}: {cut} {before}"),
                // Only the last commit: the writing may have stopped there.
                None => assert!(at >= ends[ends.len() - 3], "nobody saw the change at {at}, before {last}"),
            }
            assert_eq!(found(&flipped[..before.max(HEADER)]), None, "what the advice leaves is sound");
        }
    }

    /// A commit was lost with the power, and a shorter one was written over its beginning: the rest of it is still there, with
    /// its end.
    #[test]
    fn frames_that_an_earlier_writer_left_behind_the_end_mean_nothing() {
        let (bytes, ends) = wal("left", 6);
        let (lost, after) = (ends[3], ends[4]);
        assert!(after - lost >= 2 * FRAME);
        let mut mixed = bytes[..after].to_vec();
        let before = &bytes[lost - FRAME..];
        let seed = (word(before, 16, true), word(before, 20, true));
        let shorter = &mut mixed[lost..lost + FRAME];
        shorter[4..8].copy_from_slice(&9_u32.to_be_bytes());
        shorter[FRAME_HEADER..].fill(7);
        let big = word(&bytes, 0, true) & 1 == 1;
        let (one, two) = checksum(checksum(seed, &shorter[..8], big), &shorter[FRAME_HEADER..], big);
        shorter[16..20].copy_from_slice(&one.to_be_bytes());
        shorter[20..24].copy_from_slice(&two.to_be_bytes());
        assert_eq!(found(&mixed), None);
        // Were another commit chained to it, it had been there.
        let mut followed = mixed;
        followed.extend(&bytes[after..ends[5]]);
        assert_eq!(found(&followed), Some((lost + FRAME) as u64));
    }
}

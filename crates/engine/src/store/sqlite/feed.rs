//! What each commit touched, packed into its batch row: a reader of everything goes through them in the order of the
//! commits and skips none.

use super::super::Touched;

/// Numbers in seven-bit groups.
pub fn encode(touched: &[Touched]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(touched.len() * 6);
    for one in touched {
        number(&mut bytes, one.no as u64);
        number(&mut bytes, one.from_seq);
        number(&mut bytes, one.to_seq - one.from_seq);
    }
    bytes
}

pub fn decode(bytes: &[u8]) -> Option<Vec<Touched>> {
    let mut rest = bytes;
    let mut touched = Vec::new();
    while !rest.is_empty() {
        let no = i64::try_from(take(&mut rest)?).ok()?;
        let from_seq = take(&mut rest)?;
        let to_seq = from_seq.checked_add(take(&mut rest)?)?;
        touched.push(Touched { no, from_seq, to_seq });
    }
    Some(touched)
}

fn number(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn take(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_touched_is_read_back() {
        let touched = vec![
            Touched { no: 1, from_seq: 1, to_seq: 4 },
            Touched { no: 1_000_000, from_seq: 128, to_seq: 128 },
            Touched { no: i64::MAX, from_seq: u64::MAX - 1, to_seq: u64::MAX },
        ];
        assert_eq!(decode(&encode(&touched)), Some(touched));
        assert_eq!(decode(&[0x80]), None);
    }
}

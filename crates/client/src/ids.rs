//! The only source of randomness in the SDK: names that nobody else may use.

use std::fmt::Write as _;

/// 128 random bits as text: an idempotency key, the id of a claim, the tail of a worker's name.
pub(crate) fn fresh() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system gives randomness");
    bytes.iter().fold(String::with_capacity(32), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Between half of a pause and all of it, so that many clients do not come back at the same instant.
pub(crate) fn jittered(pause: std::time::Duration) -> std::time::Duration {
    let mut byte = [0; 1];
    getrandom::fill(&mut byte).expect("the operating system gives randomness");
    pause.mul_f64(0.5 + f64::from(byte[0]) / 512.0)
}

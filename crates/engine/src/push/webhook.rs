//! Standard Webhooks: how a receiver knows that a request is ours, and that it is recent.

use abide_core::time::Timestamp;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// How far the sender's clock may be from ours, in seconds.
const WINDOW: i64 = 300;

/// A secret that both sides know: `whsec_` and 24 to 64 bytes in base64.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningSecret(Vec<u8>);

impl std::fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SigningSecret(..)")
    }
}

/// It does not repeat what was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a signing secret is `whsec_` and 24 to 64 bytes in base64")]
pub struct BadSecret;

impl std::str::FromStr for SigningSecret {
    type Err = BadSecret;

    fn from_str(text: &str) -> Result<SigningSecret, BadSecret> {
        let bytes = text.trim().strip_prefix("whsec_").and_then(|text| STANDARD.decode(text).ok()).ok_or(BadSecret)?;
        if (24..=64).contains(&bytes.len()) { Ok(SigningSecret(bytes)) } else { Err(BadSecret) }
    }
}

impl SigningSecret {
    fn signature(&self, id: &str, timestamp: i64, body: &[u8]) -> [u8; 32] {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of any length will do");
        for part in [id.as_bytes(), b".", timestamp.to_string().as_bytes(), b".", body] {
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }
}

/// The value of `webhook-signature`: one signature per secret, so that a receiver can change over without a gap.
pub fn sign(secrets: &[SigningSecret], id: &str, timestamp: i64, body: &[u8]) -> String {
    let signatures = secrets.iter().map(|secret| STANDARD.encode(secret.signature(id, timestamp, body)));
    signatures.map(|signature| format!("v1,{signature}")).collect::<Vec<_>>().join(" ")
}

/// What came with a request that says it is signed.
#[derive(Clone, Copy, Debug)]
pub struct Signed<'a> {
    /// `webhook-id`.
    pub id: &'a str,
    /// `webhook-timestamp`, in seconds.
    pub timestamp: &'a str,
    /// `webhook-signature`.
    pub signature: &'a str,
    /// The body as it came, byte for byte.
    pub body: &'a [u8],
}

/// Why a signed request is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unverified {
    #[error("`webhook-id` is empty, too long or has a dot in it")]
    BadId,
    #[error("no signature of this request was made with a secret that is known here")]
    BadSignature,
    #[error("`webhook-timestamp` is more than {WINDOW} seconds away from now")]
    Expired,
}

impl Unverified {
    pub fn code(self) -> &'static str {
        match self {
            Unverified::BadId => "validation-failed",
            Unverified::BadSignature => "signature-invalid",
            Unverified::Expired => "signature-expired",
        }
    }
}

/// Believes a request that one of the secrets has signed, and not long ago. The comparison takes the same time wherever two
/// signatures differ.
pub fn verify(secrets: &[SigningSecret], signed: Signed<'_>, now: Timestamp) -> Result<(), Unverified> {
    if signed.id.is_empty() || signed.id.len() > 256 || signed.id.contains('.') {
        return Err(Unverified::BadId);
    }
    let timestamp: i64 = signed.timestamp.parse().map_err(|_| Unverified::BadSignature)?;
    let given = signed.signature.split(' ').filter_map(|one| STANDARD.decode(one.strip_prefix("v1,")?).ok());
    let given: Vec<Vec<u8>> = given.take(16).collect();
    let mut is_ours = false;
    for secret in secrets {
        let expected = secret.signature(signed.id, timestamp, signed.body);
        for one in &given {
            is_ours |= bool::from(one.as_slice().ct_eq(&expected));
        }
    }
    if !is_ours {
        return Err(Unverified::BadSignature);
    }
    let now = now.micros() / 1_000_000;
    if now.abs_diff(timestamp) > WINDOW.unsigned_abs() { Err(Unverified::Expired) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const NEW: &str = "whsec_bm90IGEgcmVhbCBzZWNyZXQsIGp1c3QgZm9yIHRlc3Rz";

    fn secret(text: &str) -> SigningSecret {
        text.parse().expect("a secret")
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn the_vector_of_the_specification_comes_out() {
        let signature = sign(&[secret(OLD)], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b"{\"test\": 2432232314}");
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn another_implementation_agrees_with_both_signatures_of_a_rotation() {
        let signature = sign(&[secret(OLD), secret(NEW)], "msg_1", 1_700_000_000, b"{}");
        for text in [OLD, NEW] {
            let theirs = standardwebhooks::Webhook::new(text).expect("a secret");
            let expected = theirs.sign("msg_1", 1_700_000_000, b"{}").expect("a signature");
            assert!(signature.split(' ').any(|one| one == expected), "{signature} has no {expected}");
            let signed = Signed { id: "msg_1", timestamp: "1700000000", signature: &expected, body: b"{}" };
            assert_eq!(verify(&[secret(text)], signed, at(1_700_000_000)), Ok(()));
        }
    }

    #[test]
    fn what_was_changed_or_is_not_of_now_is_not_believed() {
        let signature = sign(&[secret(OLD)], "msg_1", 1_000_000, b"body");
        let good = Signed { id: "msg_1", timestamp: "1000000", signature: &signature, body: b"body" };
        let secrets = [secret(NEW), secret(OLD)];
        let table = [
            (good, 1_000_000, Ok(())),
            (good, 1_000_300, Ok(())),
            (good, 999_700, Ok(())),
            (good, 1_000_301, Err(Unverified::Expired)),
            (good, 999_699, Err(Unverified::Expired)),
            (Signed { body: b"bodY", ..good }, 1_000_000, Err(Unverified::BadSignature)),
            (Signed { id: "msg_2", ..good }, 1_000_000, Err(Unverified::BadSignature)),
            (Signed { id: "msg.1", ..good }, 1_000_000, Err(Unverified::BadId)),
            (Signed { id: "", ..good }, 1_000_000, Err(Unverified::BadId)),
            (Signed { timestamp: "1000001", ..good }, 1_000_000, Err(Unverified::BadSignature)),
            (Signed { timestamp: "soon", ..good }, 1_000_000, Err(Unverified::BadSignature)),
            (Signed { signature: "", ..good }, 1_000_000, Err(Unverified::BadSignature)),
            (Signed { signature: "v1,", ..good }, 1_000_000, Err(Unverified::BadSignature)),
            (Signed { signature: &signature[3..], ..good }, 1_000_000, Err(Unverified::BadSignature)),
        ];
        for (signed, now, expected) in table {
            assert_eq!(verify(&secrets, signed, at(now)), expected, "{signed:?} at {now}");
        }
        assert_eq!(verify(&[secret(NEW)], good, at(1_000_000)), Err(Unverified::BadSignature));
    }

    #[test]
    fn a_secret_has_24_to_64_bytes_and_is_never_shown() {
        let of = |bytes: usize| format!("whsec_{}", STANDARD.encode(vec![7; bytes]));
        for (text, good) in [(of(23), false), (of(24), true), (of(64), true), (of(65), false), ("abc".into(), false)] {
            assert_eq!(text.parse::<SigningSecret>().is_ok(), good, "{text}");
        }
        assert_eq!(format!("{:?}", secret(OLD)), "SigningSecret(..)");
    }
}

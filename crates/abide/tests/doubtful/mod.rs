//! The doubtful cases of JSON, which every door and every reader has to pass on as they are, and texts that are no JSON.

#![allow(dead_code, reason = "each test file uses its part")]

/// What a JSON text may be, however little other programs agree on its value. (A bare null is no value where one may be left
/// out.)
pub fn doubtful() -> Vec<String> {
    let deep = format!("{}1{}", "[".repeat(58), "]".repeat(58));
    let fixed = [
        r#""half an emoji \ud83d""#,
        r#""\udc00\ud800 the wrong way round""#,
        r#"{"key \ud83d":1}"#,
        r#""nul \u0000 in the middle""#,
        r#""\uffff \ufdd0""#,
        "\"\u{ffff}\"",
        "\"\u{2028}\u{2029}\"",
        "\"\u{7f}\"",
        r#""\/\b\f\n\r\t\"\\""#,
        r#""caf\u00e9""#,
        r#""\uD83D\uDE00""#,
        "1e400",
        "-1e400",
        "1e-400",
        "123123e100000",
        "18446744073709551616",
        "18446744073709551617",
        "-9223372036854775809",
        "0.1234567890123456789012345",
        "-0",
        "-0.0",
        "1.0",
        "1",
        "1.50",
        "1E+2",
        "0e0",
        r#"{"a":1,"a":2}"#,
        r#"{"":0,"":1}"#,
        "[ 1 ,\t2 ,\n3 ]",
        "{ \"a\" : [ ] }",
        "[null]",
        "false",
        "\"\"",
        "[]",
        "{}",
    ];
    let long = [deep, "7".repeat(5_000), format!("-0.{}1", "0".repeat(5_000)), format!("\"{}\"", "x".repeat(100_000))];
    fixed.into_iter().map(String::from).chain(long).collect()
}

/// Texts that are not JSON.
pub fn broken() -> Vec<Vec<u8>> {
    let deep = format!("{}1{}", "[".repeat(65), "]".repeat(65));
    let fixed: [&[u8]; 21] = [
        b"NaN",
        b"Infinity",
        b"-",
        b"[1,]",
        b"{\"a\":1,}",
        b"{'a':1}",
        b"{\"a\"}",
        b"{1:2}",
        b"{a:1}",
        b"\"\xff\"",
        b"\"\xed\xa0\xbd\"",
        b"\xef\xbb\xbf1",
        b"01",
        b"1.",
        b"+1",
        b".5",
        b"[1",
        b"\"a\tb\"",
        b"\"\\x41\"",
        b"\"\\u12\"",
        b"// 1",
    ];
    fixed.iter().map(|bytes| bytes.to_vec()).chain([deep.into_bytes()]).collect()
}

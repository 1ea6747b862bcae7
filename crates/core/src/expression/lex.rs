//! Cuts the text of an expression into tokens.

use super::error::CompileError;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token<'t> {
    /// The magnitude alone: whether it fits depends on the minus before it.
    Int(u64),
    Double(f64),
    Text(String),
    Name(&'t str),
    Sign(&'static str),
    End,
}

/// Longer signs come before the signs they begin with.
const SIGNS: &[&str] = &[
    "&&", "||", "==", "!=", "<=", ">=", "?", ":", ".", ",", "(", ")", "[", "]", "{", "}", "<", ">", "+", "-", "*", "/",
    "%", "!",
];

pub(super) struct Lexer<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Lexer<'t> {
    pub(super) fn new(text: &'t str) -> Lexer<'t> {
        Lexer { text, at: 0 }
    }

    /// The next token and where it begins; `End` again and again after the last.
    pub(super) fn next(&mut self) -> Result<(Token<'t>, usize), CompileError> {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r']).len();
        let from = self.at;
        let rest = &self.text[from..];
        let mut bytes = rest.bytes();
        let token = match (bytes.next(), bytes.next()) {
            (None, _) => Token::End,
            (Some(b'0'..=b'9'), _) | (Some(b'.'), Some(b'0'..=b'9')) => self.number()?,
            (Some(b'r' | b'R'), Some(b'"' | b'\'')) => self.raw_text()?,
            (Some(b'"' | b'\''), _) => self.text()?,
            (Some(b'a'..=b'z' | b'A'..=b'Z' | b'_'), _) => self.name(),
            _ => self.sign()?,
        };
        Ok((token, from))
    }

    fn name(&mut self) -> Token<'t> {
        Token::Name(self.take_while(|char| char.is_ascii_alphanumeric() || char == '_'))
    }

    fn sign(&mut self) -> Result<Token<'t>, CompileError> {
        let rest = &self.text[self.at..];
        if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            self.at += sign.len();
            return Ok(Token::Sign(sign));
        }
        let char = rest.chars().next().unwrap_or(' ');
        let hint = match char {
            '=' => "equality is written `==`",
            '&' => "`and` is written `&&`",
            '|' => "`or` is written `||`",
            '`' => "text stands in single or double quotes",
            '$' => "`${{` stands only around the whole expression",
            _ => "names are ASCII letters, digits and `_`; other keys are read as a['key']",
        };
        Err(CompileError::syntax(self.at, format!("unexpected `{}`", char.escape_debug()), hint))
    }

    fn number(&mut self) -> Result<Token<'t>, CompileError> {
        let from = self.at;
        let token = if self.text[from..].starts_with("0x") || self.text[from..].starts_with("0X") {
            self.at += 2;
            let digits = self.take_while(|char| char.is_ascii_hexdigit());
            u64::from_str_radix(digits, 16).ok().map(Token::Int)
        } else {
            self.decimal()
        };
        if !self.take_while(|char| char.is_ascii_alphanumeric() || char == '_').is_empty() {
            let hint = "numbers are written `12`, `0x1F`, `1.5` or `1e6`, and apart from names";
            return Err(CompileError::syntax(from, "a number ends in a letter", hint));
        }
        token.ok_or_else(|| {
            CompileError::syntax(from, "a number is out of range", "integers are 64 bits, doubles finite")
        })
    }

    fn decimal(&mut self) -> Option<Token<'t>> {
        let from = self.at;
        self.take_while(|char| char.is_ascii_digit());
        let mut is_double = false;
        if self.peek(0) == Some(b'.') && self.peek(1).is_some_and(|byte| byte.is_ascii_digit()) {
            is_double = true;
            self.at += 1;
            self.take_while(|char| char.is_ascii_digit());
        }
        let signed = usize::from(matches!(self.peek(1), Some(b'+' | b'-')));
        if matches!(self.peek(0), Some(b'e' | b'E')) && self.peek(1 + signed).is_some_and(|byte| byte.is_ascii_digit())
        {
            is_double = true;
            self.at += 1 + signed;
            self.take_while(|char| char.is_ascii_digit());
        }
        let digits = &self.text[from..self.at];
        if is_double {
            digits.parse().ok().filter(|double: &f64| double.is_finite()).map(Token::Double)
        } else {
            digits.parse().ok().map(Token::Int)
        }
    }

    /// Text in which a backslash is a backslash, for patterns.
    fn raw_text(&mut self) -> Result<Token<'t>, CompileError> {
        let from = self.at;
        self.at += 1;
        let quote = self.next_char().unwrap_or('"');
        let inner = self.take_while(|char| char != quote && char != '\n').to_owned();
        self.closing(from, quote)?;
        Ok(Token::Text(inner))
    }

    fn text(&mut self) -> Result<Token<'t>, CompileError> {
        let from = self.at;
        let quote = self.next_char().unwrap_or('"');
        let mut text = String::new();
        loop {
            text.push_str(self.take_while(|char| char != quote && char != '\\' && char != '\n'));
            if self.peek(0) != Some(b'\\') {
                self.closing(from, quote)?;
                return Ok(Token::Text(text));
            }
            text.push(self.escape()?);
        }
    }

    fn closing(&mut self, from: usize, quote: char) -> Result<(), CompileError> {
        match self.next_char() {
            Some(char) if char == quote => Ok(()),
            _ => {
                Err(CompileError::syntax(from, "a text is not closed", format!("end it with {quote} on the same line")))
            }
        }
    }

    fn escape(&mut self) -> Result<char, CompileError> {
        let from = self.at;
        self.at += 1;
        let escaped = match self.next_char() {
            Some('n') => Some('\n'),
            Some('r') => Some('\r'),
            Some('t') => Some('\t'),
            Some('a') => Some('\x07'),
            Some('b') => Some('\x08'),
            Some('f') => Some('\x0c'),
            Some('v') => Some('\x0b'),
            Some(char @ ('\\' | '\'' | '"' | '`' | '?')) => Some(char),
            Some('x' | 'X') => self.code_point(2, 16),
            Some('u') => self.code_point(4, 16),
            Some('U') => self.code_point(8, 16),
            Some('0'..='3') => {
                self.at -= 1;
                self.code_point(3, 8)
            }
            _ => None,
        };
        let hint = r"use \\ for a backslash, \n, \t, \uXXXX, or r'...' for a pattern";
        escaped.ok_or_else(|| CompileError::syntax(from, "unknown escape", hint))
    }

    fn code_point(&mut self, digits: usize, radix: u32) -> Option<char> {
        let code =
            self.text.get(self.at..self.at + digits).filter(|code| code.chars().all(|char| char.is_digit(radix)))?;
        self.at += digits;
        u32::from_str_radix(code, radix).ok().and_then(char::from_u32)
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.text.as_bytes().get(self.at + ahead).copied()
    }

    fn next_char(&mut self) -> Option<char> {
        let char = self.text[self.at..].chars().next()?;
        self.at += char.len_utf8();
        Some(char)
    }

    fn take_while(&mut self, is_part: impl Fn(char) -> bool) -> &'t str {
        let rest = &self.text[self.at..];
        let length = rest.find(|char| !is_part(char)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }
}

/// Where the `}}` stands that ends an expression, given the text behind `${{`. Braces of maps and in texts do not count.
pub(super) fn closing_braces(text: &str) -> Result<Option<usize>, CompileError> {
    let mut lexer = Lexer::new(text);
    let mut open = 0usize;
    loop {
        match lexer.next()? {
            (Token::End, _) => return Ok(None),
            (Token::Sign("{"), _) => open += 1,
            (Token::Sign("}"), at) if open == 0 && text[at..].starts_with("}}") => return Ok(Some(at)),
            (Token::Sign("}"), _) => open = open.saturating_sub(1),
            _ => {}
        }
    }
}

//! Documents from files and from standard input.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use abide_core::definition::LARGEST_DOCUMENT_BYTES;

/// A document as text, and the name under which faults are reported.
pub struct Source {
    pub name: String,
    pub text: String,
}

/// Why there is no text to read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    #[error("{}: {cause}", name.display())]
    Io { name: PathBuf, cause: io::Error },
    #[error("{}: it is not UTF-8 text", name.display())]
    NotText { name: PathBuf },
    #[error("{}: it has more than {LARGEST_DOCUMENT_BYTES} bytes, and no more are read", name.display())]
    TooLarge { name: PathBuf },
}

impl Source {
    /// Reads a file; `-` is standard input.
    pub fn read(path: &Path) -> Result<Source, Unreadable> {
        let name = path.to_owned();
        let bytes = match path.as_os_str() == "-" {
            true => bytes_of(io::stdin().lock()),
            false => std::fs::File::open(path).and_then(bytes_of),
        };
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(cause) => return Err(Unreadable::Io { name, cause }),
        };
        if bytes.len() > LARGEST_DOCUMENT_BYTES {
            return Err(Unreadable::TooLarge { name });
        }
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Source { name: path.display().to_string(), text }),
            Err(_) => Err(Unreadable::NotText { name }),
        }
    }
}

/// One byte more than allowed is enough to know, however large the file.
fn bytes_of(reader: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(LARGEST_DOCUMENT_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

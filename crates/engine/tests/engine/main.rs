//! The engine as a program uses it, on real files.

mod archive;
mod doctor;
#[path = "../../../../examples/embedded.rs"]
mod embedded;
mod feed;
mod here;
mod keep;
mod live;
mod reads;
mod runs;
mod sealed;
mod unreadable;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use abide_engine::Engine;

/// A directory of its own for one test, gone when the test is over.
#[derive(Debug)]
pub struct Directory(PathBuf);

impl Directory {
    pub fn new(name: &str) -> Directory {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let number = MADE.fetch_add(1, Ordering::SeqCst);
        let path = std::env::temp_dir().join(format!("abide-{name}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory for the test");
        Directory(path)
    }

    pub fn engine(&self) -> Engine {
        Engine::open(&self.0).expect("an engine opens")
    }

    pub fn path(&self) -> &std::path::Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn the_example_tells_what_its_order_does() {
    let directory = Directory::new("example");
    let said = embedded::run(directory.path()).await.expect("the example runs");
    assert!(said[0].contains("ana@example.com"), "{said:?}");
    assert!(said[2].contains("label for ch_"), "{said:?}");
}

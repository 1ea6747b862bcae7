//! An engine that dies while it sends an `http` step: before the request leaves, while it is answered, before the answer is
//! recorded. The target is a socket of this process.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use abide_engine::Engine;

use crate::files::copy;
use crate::kills::healthy;
use crate::{Directory, PATIENCE, Process, runtime, store, work};

/// When the engine dies that sent the first request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Dies {
    Never,
    /// The target has the request and says nothing.
    Unanswered,
    /// The target has answered, so many milliseconds ago.
    Answered(u64),
}

/// A target that tells the idempotency key of every request, and may kill who sent the first one.
struct Target {
    address: String,
    keys: Receiver<String>,
    kill: std::sync::mpsc::Sender<(u32, Dies)>,
}

impl Target {
    fn new() -> Target {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let ((saw, keys), (kill, orders)) = (channel(), channel::<(u32, Dies)>());
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let (mut request, mut bytes) = (Vec::new(), [0; 4096]);
                while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                    match stream.read(&mut bytes) {
                        Ok(read @ 1..) => request.extend_from_slice(&bytes[..read]),
                        _ => break,
                    }
                }
                let request = String::from_utf8_lossy(&request).to_lowercase();
                let key = request.lines().find_map(|line| line.strip_prefix("idempotency-key: "));
                let _ = saw.send(key.unwrap_or("none").to_owned());
                let (process, dies) = orders.try_recv().unwrap_or((0, Dies::Never));
                if dies != Dies::Unanswered {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{\"paid\":true}");
                }
                if let Dies::Answered(after) = dies {
                    std::thread::sleep(Duration::from_millis(after));
                }
                if dies != Dies::Never {
                    let _ = Command::new("kill").args(["-9", &process.to_string()]).status();
                }
            }
        });
        Target { address, keys, kill }
    }

    /// A store with one run whose step is sent to this target.
    fn prepare(&self, data: &Path) {
        let engine = Engine::open(data).expect("an engine");
        let document = format!(
            "workflow: pay\nsteps:\n  - {{ id: only, http: {{ method: PUT, url: 'http://{}/' }} }}\n",
            self.address
        );
        runtime().block_on(async {
            engine.register(&document).await.expect("a document");
            work::start_of(&engine, "k", "pay").await.expect("a run");
            engine.shutdown().await;
        });
    }

    fn engine(&self, data: &Path, settings: &[(&str, &str)]) -> Process {
        let mut settings = settings.to_vec();
        settings.push(("ABIDE_CRASH_TARGET", &self.address));
        Process::start("push", data, &settings)
    }

    /// The next engine ends the run, whose step is completed once; all requests had one key.
    fn converges(&self, data: &Path, sent_before: Vec<String>, most: usize) {
        let next = self.engine(data, &[]);
        let said = next.until("ended", PATIENCE);
        assert!(said.last().is_some_and(|line| line.ends_with("succeeded")), "{said:?}");
        next.kill();
        let mut sent = sent_before;
        sent.extend(self.keys.try_iter());
        assert!(
            (1..=most).contains(&sent.len()) && sent.iter().all(|key| *key == sent[0] && key != "none"),
            "{sent:?}"
        );
        for run in store::runs(data).values() {
            assert_eq!(run.count("step.completed"), 1);
        }
        healthy(data);
    }
}

/// F4: a request whose engine died after the lease was committed, and before it was sent, is sent by the next engine.
#[test]
fn f4_what_was_leased_and_not_sent_when_the_engine_died_is_sent_by_the_next() {
    let (directory, target) = (Directory::new("unsent"), Target::new());
    target.prepare(&directory.data());
    let mut n = 0;
    for trial in 0..60 {
        n += 1;
        let place = directory.path().join(format!("unsent-{trial}"));
        copy(&directory.data(), &place);
        let failpoint = format!("before_answer:{n}");
        let process = target.engine(&place, &[("ABIDE_FAILPOINT", &failpoint)]);
        assert!(process.listen(PATIENCE, &mut Vec::new()), "it came to no answer {n}");
        process.kill();
        let leased = store::runs(&place).values().any(|run| run.count("task.claimed") == 1);
        let sent: Vec<String> = target.keys.try_iter().collect();
        match leased {
            true if sent.is_empty() => return target.converges(&place, sent, 1),
            // The keeper commits too: this time the lease came earlier than the time before.
            true => n = 0,
            false => assert!(sent.is_empty(), "it was sent without a lease"),
        }
    }
    panic!("no engine died with a lease");
}

/// F5: a request that was sent, perhaps answered, and not recorded is sent again with the same key and recorded once.
#[test]
fn f5_what_was_sent_and_not_recorded_when_the_engine_died_is_recorded_once() {
    for dies in [Dies::Unanswered, Dies::Answered(0), Dies::Answered(2), Dies::Answered(20)] {
        let (directory, target) = (Directory::new("unrecorded"), Target::new());
        target.prepare(&directory.data());
        let process = target.engine(&directory.data(), &[]);
        target.kill.send((process.id(), dies)).expect("a target");
        assert!(process.listen(PATIENCE, &mut Vec::new()), "{dies:?}: nobody killed it");
        process.kill();
        target.converges(&directory.data(), Vec::new(), 2);
    }
}

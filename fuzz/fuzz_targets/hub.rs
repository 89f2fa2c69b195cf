//! What a Hub answers: a model is pulled from a server on loopback that sends the parts of an
//! input, one for each connection. Parts are set apart by a line `====`.
#![no_main]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use thane_hub::{Check, Hub, Places};

const BETWEEN: &[u8] = b"\n====\n";

/// The answers that are left, last first.
type Answers = Arc<Mutex<Vec<Vec<u8>>>>;

fuzz_target!(|data: &[u8]| {
    let (endpoint, answers) = server();
    *answers.lock().unwrap_or_else(PoisonError::into_inner) = parts(data);
    let Ok(folder) = tempfile::tempdir() else {
        return;
    };
    let hub = Hub {
        attempts: 1,
        patience: Duration::from_secs(1),
        catalog: Vec::new(),
        ..Hub::new(Places {
            endpoint: endpoint.clone(),
            ..Places::in_folder(folder.path().join("cache"))
        })
    };
    if let Ok(files) = hub.pull("hf:org/name", Check::Bytes) {
        assert!(
            files.path.starts_with(folder.path()),
            "{} is outside of the cache",
            files.path.display()
        );
    }
    let outside: Vec<_> = std::fs::read_dir(folder.path())
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name() != "cache")
        .collect();
    assert!(
        outside.is_empty(),
        "{outside:?} were written outside of the cache"
    );
});

fn parts(data: &[u8]) -> Vec<Vec<u8>> {
    let mut rest = data;
    let mut out = Vec::new();
    while let Some(at) = rest.windows(BETWEEN.len()).position(|w| w == BETWEEN) {
        out.push(rest[..at].to_vec());
        rest = &rest[at + BETWEEN.len()..];
    }
    out.push(rest.to_vec());
    out.reverse();
    out
}

/// The server of this process, one connection at a time.
fn server() -> &'static (String, Answers) {
    static SERVER: OnceLock<(String, Answers)> = OnceLock::new();
    SERVER.get_or_init(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap_or_else(|e| panic!("{e}"));
        let address = listener.local_addr().unwrap_or_else(|e| panic!("{e}"));
        let answers = Answers::default();
        let left = Arc::clone(&answers);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let answer = left.lock().unwrap_or_else(PoisonError::into_inner).pop();
                // A request fits one read on loopback; the answer does not depend on it.
                let mut request = [0; 4096];
                let _ = stream.read(&mut request);
                let _ = stream.write_all(&answer.unwrap_or_default());
            }
        });
        (format!("http://{address}"), answers)
    })
}

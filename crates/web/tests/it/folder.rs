//! A host whose files are on the disk, as a page has them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use thane_audit_web::{Answer, Host, answer};

/// A folder or a file that was dropped.
pub struct Dropped {
    name: String,
    files: Vec<(String, PathBuf)>,
    n_read: AtomicUsize,
    phases: Mutex<Vec<String>>,
}

impl Dropped {
    pub fn new(path: &Path) -> Arc<Self> {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let mut files = Vec::new();
        match path.is_dir() {
            true => walk(path, "", &mut files),
            false => files.push((name.clone(), path.to_owned())),
        }
        Arc::new(Self {
            name,
            files,
            n_read: AtomicUsize::new(0),
            phases: Mutex::default(),
        })
    }

    /// The answer to an audit with these other fields of the question.
    pub fn audit(self: &Arc<Self>, mut question: Value) -> Result<Answer, String> {
        let file = |(path, at): &(String, PathBuf)| {
            let bytes = fs::metadata(at).unwrap().len();
            json!({"path": path, "bytes": bytes})
        };
        question["ask"] = "audit".into();
        question["name"] = self.name.clone().into();
        question["files"] = self.files.iter().map(file).collect();
        let host: Arc<dyn Host> = self.clone();
        answer(question.to_string().as_bytes(), &host)
    }

    /// Bytes that were read so far.
    pub fn n_read(&self) -> usize {
        self.n_read.load(Ordering::Relaxed)
    }

    pub fn phases(&self) -> Vec<String> {
        self.phases.lock().unwrap().clone()
    }
}

impl Host for Dropped {
    fn read(&self, file: usize, offset: usize, out: &mut [u8]) {
        let bytes = fs::read(&self.files[file].1).unwrap();
        out.copy_from_slice(&bytes[offset..offset + out.len()]);
        self.n_read.fetch_add(out.len(), Ordering::Relaxed);
    }

    fn hear(&self, phase: &str) {
        self.phases.lock().unwrap().push(phase.to_owned());
    }
}

fn walk(folder: &Path, inside: &str, files: &mut Vec<(String, PathBuf)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{inside}{}", entry.file_name().to_str().unwrap());
        match entry.path().is_dir() {
            true => walk(&entry.path(), &format!("{path}/"), files),
            false => files.push((path, entry.path())),
        }
    }
}

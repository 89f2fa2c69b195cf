//! A web server on a port of this machine that answers as a test wants, and a Hub built on it.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::fixture::{PATIENCE, git_hash, sha256};

#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub headers: HashMap<String, String>,
    /// The body, if the request gives its length.
    pub body: Vec<u8>,
}

pub struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// The connection closes after so many bytes of the body.
    pub cut: Option<usize>,
    /// The pause after each byte, of the head too where `slow_head` is set.
    pub pause: Option<Duration>,
    pub slow_head: bool,
    /// The body comes in chunks, without its length, and again and again.
    pub endless: bool,
}

impl Reply {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: body.into(),
            cut: None,
            pause: None,
            slow_head: false,
            endless: false,
        }
    }

    /// A byte each `pause`.
    pub fn slowly(self, pause: Duration) -> Self {
        Self {
            pause: Some(pause),
            ..self
        }
    }

    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// Answers until the test's process ends.
pub struct Server {
    pub url: String,
    log: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub fn start(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let log = Arc::new(Mutex::new(Vec::new()));
        let (shared, answer) = (Arc::clone(&log), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, answer) = (Arc::clone(&shared), Arc::clone(&answer));
                std::thread::spawn(move || serve(stream, &log, &*answer));
            }
        });
        Self { url, log }
    }

    pub fn requests(&self) -> Vec<Request> {
        self.log.lock().unwrap().clone()
    }
}

fn serve(stream: TcpStream, log: &Mutex<Vec<Request>>, answer: &dyn Fn(&Request) -> Reply) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let Some(request) = read(&stream) else { return };
    log.lock().unwrap().push(request.clone());
    let reply = answer(&request);
    let mut head = format!("HTTP/1.1 {} X\r\nConnection: close\r\n", reply.status);
    if reply.endless {
        head += "Transfer-Encoding: chunked\r\n";
    } else if !reply
        .headers
        .iter()
        .any(|(name, _)| *name == "Content-Length")
    {
        head += &format!("Content-Length: {}\r\n", reply.body.len());
    }
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += "\r\n";
    let body = &reply.body[..reply.cut.unwrap_or(reply.body.len())];
    let send =
        |bytes: &[u8], pause: Option<Duration>| (&stream).write_all_with(bytes, pause).is_ok();
    if !send(head.as_bytes(), reply.pause.filter(|_| reply.slow_head)) || request.method == "HEAD" {
        return;
    }
    if reply.endless {
        let chunk = [format!("{:x}\r\n", body.len()).as_bytes(), body, b"\r\n"].concat();
        while send(&chunk, None) {}
    } else {
        send(body, reply.pause);
    }
}

trait WriteSlowly: Write {
    /// All bytes at once, or one by one with a pause behind each.
    fn write_all_with(&mut self, bytes: &[u8], pause: Option<Duration>) -> std::io::Result<()> {
        let Some(pause) = pause else {
            return self.write_all(bytes);
        };
        bytes.chunks(1).try_for_each(|byte| {
            std::thread::sleep(pause);
            self.write_all(byte)
        })
    }
}

impl WriteSlowly for &TcpStream {}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut from = BufReader::new(stream);
    let mut line = || {
        let mut line = String::new();
        from.read_line(&mut line).ok()?;
        Some(line.trim_end().to_owned()).filter(|line| !line.is_empty())
    };
    let first = line()?;
    let mut words = first.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = HashMap::new();
    while let Some(line) = line() {
        let (name, value) = line.split_once(':')?;
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    if headers.get("expect").is_some_and(|e| e == "100-continue") {
        let mut to = stream;
        to.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?;
    }
    let is_chunked = headers
        .get("transfer-encoding")
        .is_some_and(|e| e == "chunked");
    let body = match is_chunked {
        true => chunks(&mut from)?,
        false => {
            let length = headers.get("content-length").and_then(|n| n.parse().ok());
            let mut body = vec![0; length.unwrap_or(0)];
            from.read_exact(&mut body).ok()?;
            body
        }
    };
    Some(Request {
        method,
        path,
        headers,
        body,
    })
}

/// A body that comes in chunks.
fn chunks(from: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        from.read_line(&mut line).ok()?;
        let len = usize::from_str_radix(line.trim(), 16).ok()?;
        let mut chunk = vec![0; len + 2];
        from.read_exact(&mut chunk).ok()?;
        if len == 0 {
            return Some(body);
        }
        body.extend_from_slice(&chunk[..len]);
    }
}

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Changes an answer for a large file's bytes: called with the request, its count from 0, and the
/// answer.
pub type Mend = dyn Fn(&Request, usize, Reply) -> Reply + Send + Sync;

/// `org/name` on a Hub, its large files on another host as in life.
pub struct Hub {
    pub api: Server,
    pub store: Server,
}

impl Hub {
    /// Names that end in `.json` are small files; others are large ones, found by their sha256.
    pub fn start(files: &[(&str, &[u8])], mend: Box<Mend>) -> Self {
        Self::with_api(files, mend, Box::new(|_, _, reply| reply))
    }

    /// Also changes the answers of the endpoint, which has the listing and the small files.
    pub fn with_api(files: &[(&str, &[u8])], mend: Box<Mend>, mend_api: Box<Mend>) -> Self {
        let files: HashMap<String, Vec<u8>> = files
            .iter()
            .map(|(n, b)| ((*n).to_owned(), b.to_vec()))
            .collect();
        let blobs: HashMap<String, Vec<u8>> = files
            .values()
            .map(|b| (format!("/{}?sig=secret", sha256(b)), b.clone()))
            .collect();
        let count = Mutex::new(0);
        let store = Server::start(move |request| {
            let nth = {
                let mut count = count.lock().unwrap();
                *count += 1;
                *count - 1
            };
            let reply = blobs
                .get(&request.path)
                .map_or_else(|| Reply::new(404, ""), |body| ranged(request, body));
            mend(request, nth, reply)
        });
        let at = store.url.clone();
        let count = Mutex::new(0);
        let api = Server::start(move |request| {
            let nth = {
                let mut count = count.lock().unwrap();
                *count += 1;
                *count - 1
            };
            mend_api(request, nth, answer(request, &files, &at))
        });
        Self { api, store }
    }

    pub fn of(files: &[(&str, &[u8])]) -> Self {
        Self::start(files, Box::new(|_, _, reply| reply))
    }
}

pub fn ranged(request: &Request, body: &[u8]) -> Reply {
    let range = request.headers.get("range").and_then(|range| {
        let (from, to) = range.strip_prefix("bytes=")?.split_once('-')?;
        let last = body.len().checked_sub(1)?;
        let to = if to.is_empty() {
            last
        } else {
            to.parse::<usize>().ok()?.min(last)
        };
        Some((from.parse::<usize>().ok()?, to))
    });
    let Some((from, to)) = range.filter(|(from, to)| from <= to) else {
        return Reply::new(200, body);
    };
    let range = format!("bytes {from}-{to}/{}", body.len());
    Reply::new(206, &body[from..=to]).with("Content-Range", range)
}

fn answer(request: &Request, files: &HashMap<String, Vec<u8>>, store: &str) -> Reply {
    if let Some(revision) = request.path.strip_prefix("/api/models/org/name/revision/") {
        if revision != "main" && revision != COMMIT {
            return Reply::new(404, "").with("X-Error-Code", "RevisionNotFound");
        }
        let names: Vec<String> = files
            .keys()
            .map(|name| format!("{{\"rfilename\":\"{name}\"}}"))
            .collect();
        return Reply::new(
            200,
            format!(
                "{{\"sha\":\"{COMMIT}\",\"siblings\":[{}]}}",
                names.join(",")
            ),
        );
    }
    if let Some(name) = request.path.strip_prefix("/small/") {
        let reply = Reply::new(200, files[name].clone()).with("X-Repo-Commit", COMMIT);
        return reply.with("ETag", format!("\"{}\"", git_hash(&files[name])));
    }
    let name = request
        .path
        .strip_prefix("/org/name/resolve/")
        .and_then(|rest| Some(rest.split_once('/')?.1));
    match name.and_then(|name| Some((name, files.get(name)?))) {
        None => Reply::new(404, "").with("X-Error-Code", "RepoNotFound"),
        Some((name, _)) if name.ends_with(".json") => Reply::new(307, "")
            .with("Location", format!("/small/{name}"))
            .with("X-Repo-Commit", COMMIT),
        Some((_, body)) => Reply::new(302, "")
            .with("Location", format!("{store}/{}?sig=secret", sha256(body)))
            .with("X-Repo-Commit", COMMIT)
            .with("X-Linked-Etag", format!("\"{}\"", sha256(body)))
            .with("X-Linked-Size", body.len().to_string()),
    }
}

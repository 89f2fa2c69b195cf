//! A Hub on a port of this machine that also takes pushes: repositories with branches, small files
//! in commits, and large ones in a store on another port, by Git LFS.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::fixture::{git_hash, sha256};
use crate::server::{Reply, Request, Server, ranged};

/// Entries of a page of a list of files: few, so that lists have several pages.
const PAGE: usize = 7;
/// Files of this size or more are large ones, and so are those with these endings.
const LARGE: usize = 4096;
const ALWAYS_LARGE: [&str; 4] = [".bin", ".gguf", ".safetensors", ".mlmodel"];

/// A file of a commit.
#[derive(Clone, Debug, PartialEq)]
pub enum Blob {
    Small(Vec<u8>),
    Large(String),
}

pub type Files = BTreeMap<String, Blob>;

#[derive(Default)]
pub struct State {
    /// Branches by `org/name` and revision.
    pub branches: HashMap<(String, String), String>,
    pub commits: HashMap<String, Files>,
    /// The store's files by their sha256.
    pub objects: HashMap<String, Vec<u8>>,
    /// Parts of uploads that were not completed.
    pub parts: HashMap<(String, usize), Vec<u8>>,
    /// Bodies of uploads to the store and of commits, in bytes.
    pub received: usize,
    /// Bytes of files that were sent.
    pub sent: usize,
    pub n_commits: usize,
    pub private: bool,
    /// Bytes of a part of an upload; 0 for uploads in one.
    pub part_bytes: usize,
}

/// Changes an answer of the endpoint or of the store.
pub type Lie = dyn Fn(&Request, Reply) -> Reply + Send + Sync;

pub struct Publisher {
    pub api: Server,
    pub store: Server,
    pub state: Arc<Mutex<State>>,
}

impl Publisher {
    pub fn new() -> Self {
        Self::lying(|_, reply| reply)
    }

    /// A Hub whose answers are changed.
    pub fn lying(lie: impl Fn(&Request, Reply) -> Reply + Send + Sync + 'static) -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let lie: Arc<Lie> = Arc::new(lie);
        let (of_store, lie_of_store) = (Arc::clone(&state), Arc::clone(&lie));
        let store = Server::start(move |request| {
            let reply = in_store(request, &mut of_store.lock().unwrap());
            lie_of_store(request, reply)
        });
        let (of_api, at) = (Arc::clone(&state), store.url.clone());
        let api = Server::start(move |request| {
            let reply = answer(request, &mut of_api.lock().unwrap(), &at);
            lie(request, reply)
        });
        Self { api, store, state }
    }

    /// The files of a branch, with the bytes of large ones.
    pub fn files(&self, repo: &str, revision: &str) -> BTreeMap<String, Vec<u8>> {
        let state = self.state.lock().unwrap();
        let commit = &state.branches[&(repo.to_owned(), revision.to_owned())];
        let files = state.commits[commit].iter();
        let bytes = |blob: &Blob| match blob {
            Blob::Small(bytes) => bytes.clone(),
            Blob::Large(sha256) => state.objects[sha256].clone(),
        };
        files
            .map(|(path, blob)| (path.clone(), bytes(blob)))
            .collect()
    }

    /// Puts files into a branch, as somebody else's push.
    pub fn put(&self, repo: &str, files: &[(&str, &[u8])]) {
        let mut state = self.state.lock().unwrap();
        let mut tree = Files::new();
        for (path, bytes) in files {
            let blob = match is_large(path, bytes.len()) {
                false => Blob::Small(bytes.to_vec()),
                true => {
                    state.objects.insert(sha256(bytes), bytes.to_vec());
                    Blob::Large(sha256(bytes))
                }
            };
            tree.insert((*path).to_owned(), blob);
        }
        state.commit(repo, "main", tree);
    }

    /// Bytes of uploads and commits, and of downloads, since the last call.
    pub fn traffic(&self) -> [usize; 2] {
        let mut state = self.state.lock().unwrap();
        [
            std::mem::take(&mut state.received),
            std::mem::take(&mut state.sent),
        ]
    }
}

impl State {
    fn commit(&mut self, repo: &str, revision: &str, files: Files) -> String {
        self.n_commits += 1;
        let text = format!("{repo} {revision} {} {files:?}", self.n_commits);
        let commit = sha256(text.as_bytes())[..40].to_owned();
        self.commits.insert(commit.clone(), files);
        let branch = (repo.to_owned(), revision.to_owned());
        self.branches.insert(branch, commit.clone());
        commit
    }

    /// The commit that a revision names.
    fn find(&self, repo: &str, revision: &str) -> Option<String> {
        let branch = (repo.to_owned(), revision.to_owned());
        let named = self.branches.get(&branch).cloned();
        named.or_else(|| {
            self.commits
                .contains_key(revision)
                .then(|| revision.to_owned())
        })
    }
}

fn is_large(path: &str, len: usize) -> bool {
    len > 0 && (len >= LARGE || ALWAYS_LARGE.iter().any(|end| path.ends_with(end)))
}

fn in_store(request: &Request, state: &mut State) -> Reply {
    let path = request.path.split('?').next().unwrap_or_default();
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    match (request.method.as_str(), &parts[..]) {
        ("PUT", ["up", oid]) => {
            state.received += request.body.len();
            if sha256(&request.body) != *oid {
                return Reply::new(400, "");
            }
            state
                .objects
                .insert((*oid).to_owned(), request.body.clone());
            Reply::new(200, "").with("ETag", "\"whole\"")
        }
        ("PUT", ["part", oid, n]) => {
            state.received += request.body.len();
            let n = n.parse().unwrap();
            state
                .parts
                .insert(((*oid).to_owned(), n), request.body.clone());
            Reply::new(200, "").with("ETag", format!("\"part-{n}\""))
        }
        ("GET" | "HEAD", [oid]) => match state.objects.get(*oid) {
            None => Reply::new(404, ""),
            Some(bytes) => sent(request, bytes.clone(), state),
        },
        _ => Reply::new(404, ""),
    }
}

fn sent(request: &Request, bytes: Vec<u8>, state: &mut State) -> Reply {
    let reply = ranged(request, &bytes);
    if request.method == "GET" {
        state.sent += reply.body.len();
    }
    reply
}

fn answer(request: &Request, state: &mut State, store: &str) -> Reply {
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    let path = path.replace("%2F", "/");
    let host = request.headers.get("host").map_or("", String::as_str);
    let is_signed = request.headers.contains_key("authorization");
    if request.method == "POST" && !is_signed && !path.starts_with("/api/validate-yaml") {
        return Reply::new(401, "");
    }
    if path == "/api/repos/create" {
        return create(&parsed(request), host, state);
    }
    if path == "/api/validate-yaml" {
        return reply(&json!({"errors": [], "warnings": []}));
    }
    if let Some(rest) = path.strip_prefix("/lfs/complete/") {
        return complete(rest, &parsed(request), state);
    }
    if path == "/lfs/verify" {
        let body = parsed(request);
        let known = state.objects.get(body["oid"].as_str().unwrap());
        let is_right = known.is_some_and(|bytes| body["size"] == bytes.len());
        return Reply::new(if is_right { 200 } else { 404 }, "");
    }
    if let Some(rest) = path.strip_prefix("/api/models/") {
        return of_model(request, rest, query, state);
    }
    if let Some((repo, _)) = path.split_once(".git/info/lfs/objects/batch") {
        assert!(repo.len() > 1);
        return batch(&parsed(request), host, store, state);
    }
    match path.trim_start_matches('/').split_once("/resolve/") {
        Some((repo, rest)) => resolve(request, repo, rest, store, state),
        None => Reply::new(404, ""),
    }
}

fn parsed(request: &Request) -> Value {
    serde_json::from_slice(&request.body).unwrap_or_default()
}

fn reply(value: &Value) -> Reply {
    Reply::new(200, value.to_string()).with("Content-Type", "application/json")
}

fn not_found() -> Reply {
    Reply::new(404, "").with("X-Error-Code", "RepoNotFound")
}

fn create(body: &Value, host: &str, state: &mut State) -> Reply {
    let name = body["name"].as_str().unwrap_or_default();
    let repo = match body["organization"].as_str() {
        Some(organization) => format!("{organization}/{name}"),
        None => format!("me/{name}"),
    };
    if state.find(&repo, "main").is_some() {
        return Reply::new(409, "{}");
    }
    state.private = body["visibility"] == "private";
    let attributes = Blob::Small(b"*.bin filter=lfs\n".to_vec());
    state.commit(
        &repo,
        "main",
        [(".gitattributes".to_owned(), attributes)].into(),
    );
    reply(&json!({"url": format!("http://{host}/{repo}"), "name": repo, "id": repo}))
}

/// Splits `org/name/action/rest`.
fn of_model(request: &Request, rest: &str, query: &str, state: &mut State) -> Reply {
    let mut parts = rest.splitn(4, '/');
    let repo = format!(
        "{}/{}",
        parts.next().unwrap(),
        parts.next().unwrap_or_default()
    );
    let (action, revision) = (
        parts.next().unwrap_or("revision"),
        parts.next().unwrap_or("main"),
    );
    if action == "branch" {
        let Some(from) = state.find(&repo, "main") else {
            return not_found();
        };
        state.branches.insert((repo, revision.to_owned()), from);
        return reply(&json!({}));
    }
    let Some(commit) = state.find(&repo, revision) else {
        return not_found();
    };
    match action {
        "revision" => info(&repo, &commit, state),
        "tree" => tree(&commit, request, query, state),
        "preupload" => preupload(&parsed(request), &commit, state),
        "commit" => {
            state.received += request.body.len();
            committed(
                request,
                (&repo, revision, &commit),
                query.contains("create_pr=1"),
                state,
            )
        }
        _ => Reply::new(404, ""),
    }
}

fn info(repo: &str, commit: &str, state: &State) -> Reply {
    let names = state.commits[commit].keys();
    let siblings: Vec<Value> = names.map(|name| json!({"rfilename": name})).collect();
    reply(&json!({
        "_id": "1", "id": repo, "modelId": repo, "sha": commit, "siblings": siblings,
        "private": state.private, "tags": [], "downloads": 0, "likes": 0,
        "lastModified": "2026-11-28T00:00:00.000Z", "createdAt": "2026-11-28T00:00:00.000Z",
    }))
}

fn tree(commit: &str, request: &Request, query: &str, state: &State) -> Reply {
    let cursor = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("cursor="));
    let from: usize = cursor.map_or(0, |n| n.parse().unwrap());
    let files = &state.commits[commit];
    let entry = |(path, blob): (&String, &Blob)| match blob {
        Blob::Small(bytes) => json!({
            "type": "file", "oid": git_hash(bytes), "size": bytes.len(), "path": path,
        }),
        Blob::Large(oid) => {
            let size = state.objects[oid].len();
            json!({
                "type": "file", "oid": git_hash(oid.as_bytes()), "size": size, "path": path,
                "lfs": {"oid": oid, "size": size, "pointerSize": 130},
            })
        }
    };
    let page: Vec<Value> = files.iter().skip(from).take(PAGE).map(entry).collect();
    let reply = reply(&Value::from(page));
    match from + PAGE < files.len() {
        false => reply,
        true => {
            let path = request.path.split('?').next().unwrap();
            let host = &request.headers["host"];
            let next = format!(
                "<http://{host}{path}?recursive=true&cursor={}>",
                from + PAGE
            );
            reply.with("Link", format!("{next}; rel=\"next\""))
        }
    }
}

fn hash_of(blob: &Blob) -> String {
    match blob {
        Blob::Small(bytes) => git_hash(bytes),
        Blob::Large(oid) => oid.clone(),
    }
}

fn preupload(body: &Value, commit: &str, state: &State) -> Reply {
    let there = &state.commits[commit];
    let stored = |file: &Value| {
        let (path, size) = (
            file["path"].as_str().unwrap(),
            file["size"].as_u64().unwrap(),
        );
        let sample = STANDARD.decode(file["sample"].as_str().unwrap()).unwrap();
        assert_eq!(sample.len() as u64, size.min(512));
        let mode = if is_large(path, size as usize) {
            "lfs"
        } else {
            "regular"
        };
        let oid = there.get(path).map(hash_of);
        json!({"path": path, "uploadMode": mode, "shouldIgnore": false, "oid": oid})
    };
    let files: Vec<Value> = body["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(stored)
        .collect();
    reply(&json!({"files": files, "commitOid": commit}))
}

fn batch(body: &Value, host: &str, store: &str, state: &State) -> Reply {
    let part_bytes = state.part_bytes;
    let object = |object: &Value| {
        let (oid, size) = (
            object["oid"].as_str().unwrap(),
            object["size"].as_u64().unwrap(),
        );
        let mut answer = json!({"oid": oid, "size": size});
        if state.objects.contains_key(oid) {
            return answer;
        }
        let verify = json!({"href": format!("http://{host}/lfs/verify")});
        let upload = match part_bytes > 0 && size as usize > part_bytes {
            false => json!({"href": format!("{store}/up/{oid}?sig=secret")}),
            true => {
                let mut header = json!({"chunk_size": part_bytes.to_string()});
                for n in 1..=(size as usize).div_ceil(part_bytes) {
                    header[format!("{n:05}")] = format!("{store}/part/{oid}/{n}?sig=secret").into();
                }
                json!({"href": format!("http://{host}/lfs/complete/{oid}"), "header": header})
            }
        };
        answer["actions"] = json!({"upload": upload, "verify": verify});
        answer
    };
    let objects: Vec<Value> = body["objects"]
        .as_array()
        .unwrap()
        .iter()
        .map(object)
        .collect();
    let transfer = if part_bytes > 0 { "multipart" } else { "basic" };
    reply(&json!({"transfer": transfer, "objects": objects}))
}

fn complete(oid: &str, body: &Value, state: &mut State) -> Reply {
    let mut whole = Vec::new();
    for (i, part) in body["parts"].as_array().unwrap().iter().enumerate() {
        let n = part["partNumber"].as_u64().unwrap() as usize;
        assert_eq!((n, &part["etag"]), (i + 1, &format!("\"part-{n}\"").into()));
        whole.extend(state.parts.remove(&(oid.to_owned(), n)).unwrap());
    }
    if sha256(&whole) != oid {
        return Reply::new(400, "");
    }
    state.objects.insert(oid.to_owned(), whole);
    reply(&json!({}))
}

fn committed(
    request: &Request,
    (repo, revision, parent): (&str, &str, &str),
    is_request: bool,
    state: &mut State,
) -> Reply {
    let host = &request.headers["host"];
    let mut files = state.commits[parent].clone();
    let text = String::from_utf8(request.body.clone()).unwrap();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let value = &line["value"];
        let path = value["path"].as_str().unwrap_or_default().to_owned();
        match line["key"].as_str().unwrap() {
            "header" => {
                let stated = value["parentCommit"].as_str();
                if stated.is_some_and(|stated| stated != parent) {
                    return Reply::new(412, "");
                }
            }
            "file" => {
                let bytes = STANDARD.decode(value["content"].as_str().unwrap()).unwrap();
                files.insert(path, Blob::Small(bytes));
            }
            "lfsFile" => {
                let oid = value["oid"].as_str().unwrap();
                if !state.objects.contains_key(oid) {
                    return Reply::new(400, "");
                }
                files.insert(path, Blob::Large(oid.to_owned()));
            }
            "deletedFile" => drop(files.remove(&path)),
            other => panic!("{other}"),
        }
    }
    let revision = if is_request { "refs/pr/1" } else { revision };
    let commit = state.commit(repo, revision, files);
    let url = is_request.then(|| format!("http://{host}/{repo}/discussions/1"));
    reply(&json!({
        "success": true, "commitOid": commit, "commitUrl": format!("http://{host}/{repo}/commit/{commit}"),
        "hookOutput": "", "pullRequestUrl": url,
    }))
}

fn resolve(request: &Request, repo: &str, rest: &str, store: &str, state: &mut State) -> Reply {
    let found = ["refs/pr/1", "main"].iter().find_map(|known| {
        let file = rest.strip_prefix(known)?.strip_prefix('/')?;
        Some((*known, file))
    });
    let found = found.or_else(|| rest.split_once('/'));
    let commit = found.and_then(|(revision, _)| state.find(repo, revision));
    let (Some((_, file)), Some(commit)) = (found, commit) else {
        return not_found();
    };
    let file = file.replace("%20", " ");
    match state.commits[&commit].get(&file).cloned() {
        None => Reply::new(404, "").with("X-Error-Code", "EntryNotFound"),
        Some(Blob::Small(bytes)) => {
            let etag = format!("\"{}\"", git_hash(&bytes));
            sent(request, bytes, state)
                .with("ETag", etag)
                .with("X-Repo-Commit", commit)
        }
        Some(Blob::Large(oid)) => Reply::new(302, "")
            .with("Location", format!("{store}/{oid}?sig=secret"))
            .with("X-Repo-Commit", commit)
            .with("X-Linked-Etag", format!("\"{oid}\""))
            .with("X-Linked-Size", state.objects[&oid].len().to_string()),
    }
}

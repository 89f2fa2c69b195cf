//! Bodies of requests to a server with a language model, an embedding model and a reranker. The
//! first byte chooses the route, the rest is the body.
#![no_main]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use libfuzzer_sys::fuzz_target;
use thane_cpu::{Cpu, Numerics};
use thane_engine::pages::PageForm;
use thane_hub::{Hub, Places};
use thane_mil::budget::Budget;
use thane_runtime::{LanguageOptions, Model};
use thane_serve::{
    Hooks, KeepAlive, KeptPrompts, LoadError, Loadable, ModelOptions, ModelTask, Options, Served,
    Server, name_of,
};

/// The routes that take JSON; `fuzz/make_seeds.py` has the same order.
const PATHS: [&str; 21] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/perplexity/v1/embeddings",
    "/perplexity/v1/contextualizedembeddings",
    "/api/chat",
    "/api/generate",
    "/api/embed",
    "/api/embeddings",
    "/api/show",
    "/embed",
    "/embed_all",
    "/similarity",
    "/tokenize",
    "/decode",
    "/rerank",
    "/models/tiny-chat",
];

fuzz_target!(|data: &[u8]| {
    thane_fuzz::pass_guarded_panics();
    let Some((first, body)) = data.split_first() else {
        return;
    };
    let path = PATHS[usize::from(first.wrapping_sub(b'a')) % PATHS.len()];
    let (status, answer) = ask(path, body).expect("the server answers");
    assert!(status < 500, "{path}: {status} {answer}");
    let (is_refused, folder) = (status >= 400, models().display().to_string());
    assert!(
        !is_refused || answer.starts_with('{') && !answer.contains(&folder),
        "{path}: {status} {answer}"
    );
});

/// The status and the body of an answer.
fn ask(path: &str, body: &[u8]) -> io::Result<(u16, String)> {
    static CONNECTION: Mutex<Option<BufReader<TcpStream>>> = Mutex::new(None);
    let mut kept = CONNECTION.lock().unwrap_or_else(PoisonError::into_inner);
    // It may have been idle for too long.
    for is_last in [false, true] {
        let mut stream = match kept.take() {
            Some(stream) => stream,
            None => BufReader::new(TcpStream::connect(server())?),
        };
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        let sent = stream
            .get_mut()
            .write_all(&[head.as_bytes(), body].concat());
        match sent.and_then(|()| answer(&mut stream)) {
            Err(error) if is_last => return Err(error),
            Err(_) => {}
            Ok(found) => {
                *kept = Some(stream);
                return Ok(found);
            }
        }
    }
    Err(io::ErrorKind::NotConnected.into())
}

fn answer(stream: &mut impl BufRead) -> io::Result<(u16, String)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let status = head.get(9..12).and_then(|status| status.parse().ok());
    let length = head.split("content-length: ").nth(1);
    let length = length.and_then(|rest| rest.lines().next()?.parse().ok());
    let mut body = Vec::new();
    match length {
        Some(n) => stream.take(n).read_to_end(&mut body).map(drop)?,
        None => chunks(stream, &mut body)?,
    }
    let body = String::from_utf8(body).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok((status.ok_or(io::ErrorKind::InvalidData)?, body))
}

fn chunks(stream: &mut impl BufRead, body: &mut Vec<u8>) -> io::Result<()> {
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let n = u64::from_str_radix(line.trim(), 16).map_err(|_| io::ErrorKind::InvalidData)?;
        stream.by_ref().take(n).read_to_end(body)?;
        stream.read_line(&mut String::new())?;
        if n == 0 {
            return Ok(());
        }
    }
}

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models")
}

/// The address of the server, which runs as long as the process.
fn server() -> SocketAddr {
    static ADDRESS: OnceLock<SocketAddr> = OnceLock::new();
    *ADDRESS.get_or_init(|| start().expect("the tiny models are served"))
}

fn start() -> Result<SocketAddr, Box<dyn std::error::Error>> {
    let options = ModelOptions {
        language: LanguageOptions {
            context: Some(64),
            ..LanguageOptions::default()
        },
        n_slots: 2,
        n_queue: 6,
        answer_time: None,
        deterministic: false,
        grammars: None,
        budget: Budget::unlimited(),
        prompts: KeptPrompts {
            memory: 1 << 20,
            folder: None,
            form: PageForm::Exact,
            numerics: String::new(),
            complain: |_| {},
        },
    };
    let hub = Hub::new(Places::in_folder(models()));
    let folders = ["tiny-chat", "tiny-embed/bert-mean", "tiny-rerank/bert"];
    let all = folders
        .iter()
        .map(|folder| -> Result<Loadable, Box<dyn std::error::Error>> {
            let path = models().join(folder).display().to_string();
            let files = hub.resolve(&path)?;
            let model = Model::from_files(files.clone())?;
            let (id, options) = (name_of(&model), options.clone());
            let given = id.clone();
            let load = move || {
                let model = Model::from_files(files.clone());
                let cpu = Cpu::new(Numerics::F32, 1);
                let served =
                    model.and_then(|model| Served::start(model, &given, &cpu, &options, &()));
                served.map_err(|error| LoadError {
                    lacks_memory: false,
                    cause: Box::new(error),
                })
            };
            Ok(Loadable {
                id,
                aliases: Vec::new(),
                task: ModelTask::of(&model)?,
                at_start: true,
                keep_alive: KeepAlive::FOREVER,
                n_queue: 6,
                load: Box::new(load),
            })
        });
    let all = all.collect::<Result<Vec<Loadable>, _>>()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = Server::new(listener, all, Options::default())?;
    std::thread::spawn(move || {
        server.run(&Hooks {
            on_ready: &|| Ok(()),
            is_stopped: &|| false,
            wants_reload: &|| false,
        })
    });
    Ok(address)
}

//! Accepts connections until the server is to stop, and lets running answers finish.

use std::io;
use std::net::TcpListener;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use thane_mil::budget::Budget;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;

use crate::connections::{Answering, Connections};
use crate::cors::Cors;
use crate::guard::Guard;
use crate::half_closed::{Watched, gone};
use crate::kept::Store;
use crate::log::{Log, LogSink};
use crate::patience::{Patient, bound_unsent};
use crate::rate::Limits;
use crate::roster::{LoadError, Loadable, Pull, ReloadSink, Roster};
use crate::routes::{App, now_s, router};
use crate::tls::Tls;
use crate::upload::Uploads;

/// Limits of a server.
#[derive(Clone)]
pub struct Options {
    /// The keys of which clients must send one; none for no key.
    pub api_keys: Vec<String>,
    /// Most requests of a key, or of all clients if there are no keys, in a minute.
    pub requests_per_minute: Option<NonZeroU32>,
    /// Most tokens of a key, or of all clients, in 24 hours.
    pub tokens_per_day: Option<NonZeroU64>,
    /// Pages of other sites that may ask.
    pub cors: Cors,
    /// The certificate; `None` for connections without TLS.
    pub tls: Option<Tls>,
    /// Most bytes of the body of a request.
    pub max_body_bytes: usize,
    /// Most bytes of a package that is uploaded to be audited, packed and unpacked.
    pub max_upload_bytes: usize,
    /// Limits the memory for bodies, uploads and answers.
    pub budget: Budget,
    /// Most time of an audit. Models have times of their own.
    pub answer_time: Option<Duration>,
    /// Bytes of memory that the process has, if the system says so.
    pub resident_bytes: fn() -> Option<u64>,
    /// Gets an entry of each request; `None` for no log.
    pub log: Option<LogSink>,
    /// Tells whoever runs the server what clients are not told.
    pub complain: fn(&str),
    /// Hears of models that were loaded again.
    pub reloaded: ReloadSink,
    /// Downloads models that clients ask for (`POST /api/pull`); `None` refuses them.
    pub pull: Option<Pull>,
    /// Most connections; for one more, the one that was idle for longest is closed, first of those
    /// without a key.
    pub max_connections: usize,
    /// How long running answers may take after the server is to stop.
    pub grace: Duration,
    /// How long a client may take to send the head of a request, or its body, and how long writes
    /// of an answer may wait for it in all; what it takes wins time back. An idle connection is
    /// closed after it.
    pub patience: Duration,
}

impl Default for Options {
    /// 4 MiB: 2,048 texts of 512 tokens, or a prompt of a million. 256 connections: each may hold a
    /// body. 512 MiB: models of 250 million fp16 weights.
    fn default() -> Self {
        Self {
            api_keys: Vec::new(),
            requests_per_minute: None,
            tokens_per_day: None,
            cors: Cors::default(),
            tls: None,
            max_body_bytes: 4 << 20,
            max_upload_bytes: 512 << 20,
            budget: Budget::unlimited(),
            answer_time: None,
            resident_bytes: || None,
            log: None,
            complain: |_| {},
            reloaded: Arc::new(|_, _| {}),
            pull: None,
            max_connections: 256,
            grace: Duration::from_secs(10),
            patience: Duration::from_secs(30),
        }
    }
}

/// What a running server asks and tells its caller.
pub struct Hooks<'a> {
    /// Called when all models are loaded that are loaded at start.
    pub on_ready: &'a dyn Fn() -> io::Result<()>,
    /// Whether the server is to stop; asked several times a second.
    pub is_stopped: &'a dyn Fn() -> bool,
    /// Whether the models are to be loaded again, since it was asked last.
    pub wants_reload: &'a dyn Fn() -> bool,
}

/// Why a server ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A model that is loaded at start was not.
    #[error("a model could not be loaded: {}", .0.cause)]
    Load(LoadError),
    /// The system, or a stream to which the caller writes.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// All routes over these models.
pub(crate) fn routes(roster: &Arc<Roster>, options: &Options, guard: Guard) -> Router {
    let budget = &options.budget;
    let app = App {
        roster: Arc::clone(roster),
        body: (options.max_body_bytes, options.patience),
        uploads: Uploads {
            max_bytes: options.max_upload_bytes,
            budget: budget.clone(),
            answer_time: options.answer_time,
            turn: Arc::new(Semaphore::new(1)),
        },
        resident_bytes: options.resident_bytes,
        has_keys: options.api_keys.len() > 1,
        started: now_s(),
        responses: Store::new(budget.clone()),
    };
    let log = Log::new(options.log.clone(), budget.clone());
    router(app, guard, log)
}

/// A server with its models.
pub struct Server {
    listener: TcpListener,
    roster: Arc<Roster>,
    router: Router,
    options: Options,
}

impl Server {
    /// Time in which a client must agree on a key (TLS).
    const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
    /// Bytes of the head of a request; what is read at once may exceed it.
    const HEAD_BYTES: usize = 64 << 10;
    /// Least time in which prompts are stored at the end.
    const CLOSE_TIME: Duration = Duration::from_millis(500);
    /// Threads that encode prompts.
    pub(crate) const ENCODERS: usize = 4;

    /// A server on an open port.
    pub fn new(listener: TcpListener, models: Vec<Loadable>, options: Options) -> io::Result<Self> {
        let is_loopback = listener.local_addr()?.ip().is_loopback();
        let limits = Limits {
            requests_per_minute: options.requests_per_minute,
            tokens_per_day: options.tokens_per_day,
        };
        let mut guard = Guard::new(&options.api_keys, limits, is_loopback);
        guard.cors = options.cors.clone();
        let roster = Arc::new(Roster::new(models, options.pull.clone(), options.complain));
        Ok(Self {
            listener,
            router: routes(&roster, &options, guard),
            roster,
            options,
        })
    }

    /// Serves until [`Hooks::is_stopped`] returns true. Then the port is closed, idle connections
    /// end, and running answers finish within [`Options::grace`]. Requests are taken while models
    /// are being loaded. Prompts that are to outlive the server are stored last, in what is left of
    /// that time, or in half a second.
    pub fn run(self, hooks: &Hooks<'_>) -> Result<(), RunError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(Self::ENCODERS)
            .build()?;
        let roster = Arc::clone(&self.roster);
        let served = runtime.block_on(self.serve(hooks));
        // A prompt that is still being encoded has nobody who waits for it.
        runtime.shutdown_background();
        let end = served.as_ref().map_or_else(|_| Instant::now(), |end| *end);
        roster.close(end.max(Instant::now() + Self::CLOSE_TIME));
        served.map(|_| ())
    }

    /// Returns when the server should have ended.
    async fn serve(self, hooks: &Hooks<'_>) -> Result<Instant, RunError> {
        self.listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        let connections = Connections::new(self.options.max_connections);
        let mut waiting = None;
        let graceful = GracefulShutdown::new();
        let tls = self.options.tls.as_ref().map(Tls::acceptor);
        let mut starting = tokio::spawn(Arc::clone(&self.roster).start());
        let mut is_ready = false;
        tokio::spawn(Arc::clone(&self.roster).sweep());
        loop {
            let accepted = async {
                if waiting.is_none() {
                    waiting = Some(listener.accept().await?.0);
                }
                let place = connections.place().await;
                let stream = waiting.take().zip(place);
                stream.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))
            };
            let accepted = tokio::select! {
                accepted = accepted => accepted,
                started = &mut starting, if !is_ready => {
                    started.map_err(io::Error::other)?.map_err(RunError::Load)?;
                    is_ready = true;
                    (hooks.on_ready)()?;
                    continue;
                }
                () = stop(hooks.is_stopped) => break,
                () = stop(hooks.wants_reload), if is_ready => {
                    let heard = Arc::clone(&self.options.reloaded);
                    tokio::spawn(Arc::clone(&self.roster).reload(heard));
                    continue;
                }
            };
            let Ok((stream, place)) = accepted else {
                // Too many open files, most likely: some will be closed.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            // Pieces of answers are small, and none waits for the next.
            let _ = stream.set_nodelay(true);
            bound_unsent(&stream);
            let socket = Arc::new(stream);
            let stream = Patient::new(Watched(Arc::clone(&socket)), self.options.patience);
            let service = Answering::new(self.router.clone(), &place);
            let patience = self.options.patience;
            let (tls, watcher) = (tls.clone(), graceful.watcher());
            let answered = async move {
                let Some(tls) = tls else {
                    return connect(stream, service, (watcher, patience)).await;
                };
                let agreed = tokio::time::timeout(Self::HANDSHAKE_TIME, tls.accept(stream));
                if let Ok(Ok(stream)) = agreed.await {
                    connect(stream, service, (watcher, patience)).await;
                }
            };
            tokio::spawn(async move {
                // What is dropped here frees the client's slots and places in queues.
                tokio::select! {
                    () = answered => {}
                    () = gone(&socket) => {}
                    () = place.connection.closed() => {}
                }
            });
        }
        let end = Instant::now() + self.options.grace;
        drop(listener);
        let _ = tokio::time::timeout(self.options.grace, graceful.shutdown()).await;
        Ok(end)
    }
}

/// Answers the requests of a connection until it is closed.
async fn connect<S>(stream: S, service: Answering, (watcher, patience): (Watcher, Duration))
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(patience)
        .max_buf_size(Server::HEAD_BYTES)
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service);
    // The client's connection, and the client's failure.
    let _ = watcher.watch(connection).await;
}

/// Waits until the caller says so.
pub(crate) async fn stop(is_due: &dyn Fn() -> bool) {
    while !is_due() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Mutex, mpsc};

    use super::*;
    use crate::keep_alive::KeepAlive;
    use crate::model::ModelTask;

    /// A connection to a server on which `first` was sent.
    fn send(address: SocketAddr, first: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).unwrap();
        let long = Duration::from_secs(300);
        stream.set_read_timeout(Some(long)).unwrap();
        stream.set_write_timeout(Some(long)).unwrap();
        stream.write_all(first.as_bytes()).unwrap();
        stream
    }

    fn read(mut stream: TcpStream) -> String {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// Runs a server of no models, with room for so many connections and so much patience, while
    /// `test` lasts.
    fn served((max_connections, patience): (usize, Duration), test: impl FnOnce(SocketAddr)) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let options = Options {
            max_connections,
            patience,
            ..Options::default()
        };
        let server = Server::new(listener, Vec::new(), options).unwrap();
        let is_stopped = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let hooks = Hooks {
                    on_ready: &|| Ok(()),
                    is_stopped: &|| is_stopped.load(Ordering::Relaxed),
                    wants_reload: &|| false,
                };
                server.run(&hooks).unwrap();
            });
            test(address);
            is_stopped.store(true, Ordering::Relaxed);
        });
    }

    /// Until a model is loaded that is loaded at start, the server is alive and not ready.
    #[test]
    fn a_server_is_alive_before_it_is_ready() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (fail, failure) = mpsc::channel::<LoadError>();
        let failure = Mutex::new(failure);
        let model = Loadable {
            id: "slow".to_owned(),
            aliases: Vec::new(),
            task: ModelTask::Generate,
            at_start: true,
            keep_alive: KeepAlive::FOREVER,
            n_queue: 1,
            load: Box::new(move || Err(failure.lock().unwrap().recv().unwrap())),
        };
        let server = Server::new(listener, vec![model], Options::default()).unwrap();
        std::thread::scope(move |scope| {
            let running = scope.spawn(move || {
                server.run(&Hooks {
                    on_ready: &|| Ok(()),
                    is_stopped: &|| false,
                    wants_reload: &|| false,
                })
            });
            let get = |path: &str| {
                let head = "HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
                read(send(address, &format!("GET {path} {head}")))
            };
            assert!(get("/ready").starts_with("HTTP/1.1 503"));
            assert!(get("/health").starts_with("HTTP/1.1 200"));
            let listed = get("/v1/models");
            assert!(listed.contains("\"loaded\":false"), "{listed}");
            fail.send(LoadError::new(io::Error::other("no model")))
                .unwrap();
            let ended = running.join().unwrap().unwrap_err();
            assert!(matches!(ended, RunError::Load(_)), "{ended}");
        });
    }

    /// Connections on which nothing comes make room long before their time is over.
    #[test]
    fn silent_connections_lock_nobody_out() {
        served((3, Duration::from_secs(300)), |address| {
            let line = "GET /health HTTP/1.1\r\nHost: localhost\r\n";
            let silent: Vec<TcpStream> = (0..6).map(|_| send(address, "")).collect();
            for _ in 0..3 {
                let last = send(address, &format!("{line}Connection: close\r\n\r\n"));
                assert!(read(last).starts_with("HTTP/1.1 200 OK"));
            }
            for stream in silent.into_iter().take(3) {
                assert_eq!(read(stream), "");
            }
        });
    }

    /// There is room for one connection, so each client waits until the server is rid of the one
    /// before.
    #[test]
    fn slow_clients_lose_their_connections() {
        served((1, Duration::from_millis(300)), |address| {
            let line = "GET / HTTP/1.1\r\nHost: localhost\r\n";
            let silent = send(address, "");
            let slow_head = send(address, line);
            let never_reads = send(address, &format!("{line}\r\n").repeat(5000));
            let post = "POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\n\
                        Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{";
            let slow_body = send(address, post);
            let last = send(address, &format!("{line}Connection: close\r\n\r\n"));
            assert!(read(last).starts_with("HTTP/1.1 200 OK"));
            assert_eq!(read(silent), "");
            assert!(!read(slow_head).contains("200"));
            let refused = read(slow_body);
            assert!(refused.starts_with("HTTP/1.1 408"), "{refused}");
            assert!(refused.contains("expected the body within"), "{refused}");
            drop(never_reads);
        });
    }
}

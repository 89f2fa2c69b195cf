//! The connections of a server, of which there are only so many. Where all places are taken, the
//! one that has been idle for longest is closed for a new one, if nothing of it runs: first those
//! whose requests had no key, so that whoever has none cannot lock out those who have one, or who
//! watch the server. A connection with a key makes room where no other is idle.

use crate::threads::lock;
use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// The connections that are open.
pub(crate) struct Connections {
    places: Arc<Semaphore>,
    open: Mutex<Open>,
    /// Hears that a connection may have become idle.
    became_idle: Notify,
}

#[derive(Default)]
struct Open {
    connections: HashMap<u64, Arc<Connection>>,
    /// Counts what connections do, so that each has an order in which it was last used.
    n_uses: u64,
}

/// A connection, as its requests know it.
pub(crate) struct Connection {
    id: u64,
    has_key: AtomicBool,
    state: Mutex<State>,
    closed: Notify,
}

#[derive(Default)]
struct State {
    used: u64,
    has_asked: bool,
    /// Answers that were not sent to their end.
    n_running: usize,
}

/// A place, which is free again when this is dropped.
pub(crate) struct Place {
    pub connection: Arc<Connection>,
    all: Arc<Connections>,
    _permit: OwnedSemaphorePermit,
}

impl Connections {
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            places: Arc::new(Semaphore::new(most)),
            open: Mutex::default(),
            became_idle: Notify::new(),
        })
    }

    /// A place for a connection that was accepted; waits while all are taken and none is idle.
    pub async fn place(self: &Arc<Self>) -> Option<Place> {
        let permit = match Arc::clone(&self.places).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => self.wait().await?,
        };
        let mut open = self.open();
        open.n_uses += 1;
        let connection = Arc::new(Connection {
            id: open.n_uses,
            has_key: AtomicBool::new(false),
            state: Mutex::new(State {
                used: open.n_uses,
                ..State::default()
            }),
            closed: Notify::new(),
        });
        open.connections
            .insert(connection.id, Arc::clone(&connection));
        Some(Place {
            connection,
            all: Arc::clone(self),
            _permit: permit,
        })
    }

    async fn wait(&self) -> Option<OwnedSemaphorePermit> {
        loop {
            // What has come on connections is read first: they may be idle no more.
            tokio::task::yield_now().await;
            let freed = Arc::clone(&self.places).acquire_owned();
            if self.close_idlest() {
                return freed.await.ok();
            }
            tokio::select! {
                permit = freed => return permit.ok(),
                () = self.became_idle.notified() => {}
            }
        }
    }

    /// Closes the connection that was idle for longest, of those without a key if there is one.
    /// Returns whether there was any.
    fn close_idlest(&self) -> bool {
        let mut open = self.open();
        let idle = open.connections.values().filter_map(|connection| {
            let state = connection.state();
            let has_key = connection.has_key.load(Ordering::Relaxed);
            let is_idle = state.n_running == 0;
            is_idle.then_some((has_key, state.used, connection.id))
        });
        let Some((.., id)) = idle.min() else {
            return false;
        };
        if let Some(connection) = open.connections.remove(&id) {
            connection.closed.notify_one();
        }
        true
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        lock(&self.open)
    }
}

impl Connection {
    /// Notes that a request had a key of this server.
    pub fn note_key(&self) {
        self.has_key.store(true, Ordering::Relaxed);
    }

    /// Returns when the connection is to be closed.
    pub async fn closed(&self) {
        self.closed.notified().await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.all.open().connections.remove(&self.connection.id);
    }
}

/// An answer that was not sent to its end.
struct Running {
    connection: Arc<Connection>,
    all: Arc<Connections>,
}

impl Running {
    fn start(connection: &Arc<Connection>, all: &Arc<Connections>) -> Self {
        connection.state().n_running += 1;
        Self {
            connection: Arc::clone(connection),
            all: Arc::clone(all),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let used = {
            let mut open = self.all.open();
            open.n_uses += 1;
            open.n_uses
        };
        let mut state = self.connection.state();
        state.n_running -= 1;
        state.used = used;
        self.all.became_idle.notify_one();
    }
}

/// Answers the requests of a connection, one in each round of the thread that has all connections:
/// a client that sends many at once holds up nobody.
pub(crate) struct Answering {
    service: TowerToHyperService<Router>,
    connection: Arc<Connection>,
    all: Arc<Connections>,
}

impl Answering {
    pub fn new(router: Router, place: &Place) -> Self {
        Self {
            service: TowerToHyperService::new(router),
            connection: Arc::clone(&place.connection),
            all: Arc::clone(&place.all),
        }
    }
}

impl Service<Request<Incoming>> for Answering {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let running = Running::start(&self.connection, &self.all);
        let is_first = !std::mem::replace(&mut self.connection.state().has_asked, true);
        let connection = Arc::clone(&self.connection);
        request.extensions_mut().insert(connection);
        let answer = self.service.call(request);
        Box::pin(async move {
            // Others had their turn while the connection was accepted.
            if !is_first {
                tokio::task::yield_now().await;
            }
            let response = answer.await?;
            // The body is dropped when it was sent, and `running` with it.
            Ok(response.map(|body| {
                Body::new(body.map_err(move |error| {
                    let _ = &running;
                    error
                }))
            }))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::atomic::AtomicUsize;

    use axum::routing::get;
    use hyper_util::rt::TokioIo;

    use super::*;

    /// Requests that come at once are answered one after another, and others have their turn
    /// between two of them.
    #[test]
    fn a_connection_gets_one_answer_in_each_round() {
        const N: usize = 20;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build();
        runtime.unwrap().block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let mut client = std::net::TcpStream::connect(address).unwrap();
            let line = "GET / HTTP/1.1\r\nHost: localhost\r\n";
            let all_but_last = format!("{line}\r\n").repeat(N - 1);
            write!(client, "{all_but_last}{line}Connection: close\r\n\r\n").unwrap();

            let n_rounds = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&n_rounds);
            tokio::spawn(async move {
                loop {
                    counted.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            });
            let answered_in = Arc::new(Mutex::new(Vec::new()));
            let noted = Arc::clone(&answered_in);
            let note = move || {
                noted.lock().unwrap().push(n_rounds.load(Ordering::Relaxed));
                async {}
            };
            let place = Connections::new(1).place().await.unwrap();
            let service = Answering::new(Router::new().route("/", get(note)), &place);
            let (stream, _) = listener.accept().await.unwrap();
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            connection.await.unwrap();
            let answered_in = answered_in.lock().unwrap();
            assert_eq!(answered_in.len(), N);
            assert!(
                answered_in.windows(2).all(|w| w[0] < w[1]),
                "{answered_in:?}"
            );
        });
    }

    /// Which of several connections makes room for another, by what they have done.
    #[test]
    fn the_connection_that_was_idle_for_longest_makes_room() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async {
            let all = Connections::new(4);
            let mut places = Vec::new();
            for _ in 0..4 {
                places.push(all.place().await.unwrap());
            }
            let [keyed, busy, served, silent] = [0, 1, 2, 3].map(|i: usize| &places[i].connection);
            keyed.note_key();
            let running = Running::start(busy, &all);
            drop(Running::start(served, &all));
            assert!(all.close_idlest());
            silent.closed().await;
            assert!(all.close_idlest());
            served.closed().await;
            assert!(all.close_idlest());
            keyed.closed().await;
            assert!(!all.close_idlest(), "one has an answer");
            drop(running);
            assert!(all.close_idlest());
            busy.closed().await;
            assert!(!all.close_idlest());
            // A new one waits until a place is free.
            let (new, ()) = tokio::join!(all.place(), async {
                tokio::task::yield_now().await;
                places.clear();
            });
            drop(new.unwrap());
            assert!(all.open().connections.is_empty());
        });
    }
}

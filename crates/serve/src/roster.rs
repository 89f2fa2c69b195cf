//! The models of a server by their names. A model is loaded at start or when it is asked for, and
//! is unloaded when nobody has asked for it for a time, or when another one needs its memory.

use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use thane_runtime::{Model, RuntimeError};
use tokio::sync::{Mutex as Turn, OwnedSemaphorePermit, Semaphore, oneshot};

use crate::error::ApiError;
use crate::keep_alive::KeepAlive;
use crate::model::{ModelOptions, ModelTask, Served, name_of};
use crate::threads::{join_within, lock};

/// Most time that a request waits for its model to be loaded.
const LOAD_PATIENCE: Duration = Duration::from_secs(600);
/// Most time that a request which was broken off may take to let go of its model.
const RELEASE_TIME: Duration = Duration::from_secs(2);
/// Names that clients of `huggingface_hub` send to a server that has one model.
const ANY_MODEL: &[&str] = &["dummy", "tgi"];
/// How often models are looked at that nobody asks for.
const SWEEP_TIME: Duration = Duration::from_millis(500);

/// Why a model was not loaded.
#[derive(Debug)]
pub struct LoadError {
    /// Whether there would be memory for it if others were unloaded.
    pub lacks_memory: bool,
    /// What is wrong, for whoever runs the server.
    pub cause: Box<dyn Error + Send + Sync>,
}

/// Hears of a model that was loaded again, by its name, or why it was not.
pub type ReloadSink = Arc<dyn Fn(&str, Result<(), LoadError>) + Send + Sync>;

/// Downloads a model, which takes long, and tells how far it is.
pub type Pull = Arc<dyn Fn(&str, PullProgress) -> Result<Loadable, LoadError> + Send + Sync>;

/// Hears of a download: of what, how many bytes are there, and how many it has. Returns whether
/// anybody waits for it.
pub type PullProgress = Arc<dyn Fn(&str, u64, Option<u64>) -> bool + Send + Sync>;

/// A model that can be loaded.
pub struct Loadable {
    /// The name that clients use.
    pub id: String,
    /// Other names that clients may use.
    pub aliases: Vec<String>,
    /// What the model does.
    pub task: ModelTask,
    /// Whether the server is ready only once the model is loaded.
    pub at_start: bool,
    /// How long the model stays loaded after the last request.
    pub keep_alive: KeepAlive,
    /// Most requests that wait for the model to be loaded.
    pub n_queue: usize,
    /// Loads the model from its files as they are now, which may take minutes.
    pub load: Box<dyn Fn() -> Result<Served, LoadError> + Send + Sync>,
}

impl LoadError {
    /// Not for want of memory.
    pub fn new(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            lacks_memory: false,
            cause: cause.into(),
        }
    }
}

impl Loadable {
    /// A model that is loaded at start by `load`, which gets its name, and stays loaded.
    pub fn new(
        model: &Model,
        load: impl Fn(&str) -> Result<Served, LoadError> + Send + Sync + 'static,
    ) -> Result<Self, RuntimeError> {
        let (id, own) = (name_of(model), name_of(model));
        Ok(Self {
            id,
            aliases: Vec::new(),
            task: ModelTask::of(model)?,
            at_start: true,
            keep_alive: KeepAlive::FOREVER,
            n_queue: ModelOptions::default().n_queue,
            load: Box::new(move || load(&own)),
        })
    }
}

/// A model, loaded or not.
pub(crate) struct Entry {
    given: Loadable,
    waiting: Arc<Semaphore>,
    state: Mutex<State>,
}

struct State {
    served: Option<Arc<Served>>,
    /// When the model was last asked for, or at work.
    used: Instant,
    keep_alive: KeepAlive,
    /// Most tokens of a prompt or an input, once it was loaded.
    max_tokens: Option<usize>,
}

/// The models of a server.
pub(crate) struct Roster {
    entries: RwLock<Vec<Arc<Entry>>>,
    /// Downloads further ones.
    pull: Option<Pull>,
    /// One model is downloaded at a time.
    pulling: Arc<Semaphore>,
    /// One model is loaded at a time.
    turn: Turn<()>,
    /// Tells whoever runs the server what clients are not told.
    complain: fn(&str),
}

impl Roster {
    pub fn new(models: Vec<Loadable>, pull: Option<Pull>, complain: fn(&str)) -> Self {
        let entries = models.into_iter().map(|model| Arc::new(Entry::new(model)));
        Self {
            entries: RwLock::new(entries.collect()),
            pull,
            pulling: Arc::new(Semaphore::new(1)),
            turn: Turn::new(()),
            complain,
        }
    }

    /// Models that are loaded and stay so.
    pub fn of_loaded(models: Vec<Served>) -> Self {
        let loadable = |served: &Served| Loadable {
            id: served.id().to_owned(),
            aliases: Vec::new(),
            task: served.kind(),
            at_start: true,
            keep_alive: KeepAlive::FOREVER,
            n_queue: 1,
            load: Box::new(|| Err(LoadError::new("the model is loaded once"))),
        };
        let roster = Self::new(models.iter().map(loadable).collect(), None, |_| {});
        for (entry, served) in roster.entries().iter().zip(models) {
            entry.put(served);
        }
        roster
    }

    /// All models.
    pub fn entries(&self) -> Vec<Arc<Entry>> {
        let entries = self.entries.read();
        entries.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether clients may ask for downloads.
    pub fn pulls(&self) -> bool {
        self.pull.is_some()
    }

    /// The turn of a download, or a refusal if another one runs.
    pub fn pull_turn(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        Arc::clone(&self.pulling).try_acquire_owned().map_err(|_| {
            let message = "another model is being pulled, and one is pulled at a time";
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, message).retry_after(5)
        })
    }

    /// Downloads a model that is not there yet, and serves it from now on. Takes long, and needs
    /// the turn.
    pub fn pull(&self, name: &str, progress: PullProgress) -> Result<(), ApiError> {
        let Some(pull) = &self.pull else {
            return Err(ApiError::failed("models cannot be pulled"));
        };
        if self.find(name).is_ok() {
            return Ok(());
        }
        let model = pull(name, progress).map_err(|error| {
            (self.complain)(&format!("pull {name}: {}", error.cause));
            ApiError::failed("the model could not be pulled: the server's log says why")
        })?;
        if self.find(&model.id).is_err() {
            let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
            entries.push(Arc::new(Entry::new(model)));
        }
        Ok(())
    }

    /// The model of this name: as the server has it, by an alias, without what is before the name
    /// in `hf:org/name@revision`, or, if there is one language model, by a name of [`ANY_MODEL`].
    pub fn find(&self, name: &str) -> Result<Arc<Entry>, ApiError> {
        let entries = self.entries();
        let by = |is: fn(&Entry, &str) -> bool| entries.iter().find(|entry| is(entry, name));
        let by_id = by(|entry, name| entry.id() == name);
        let by_alias = || by(|entry, name| entry.aliases().iter().any(|alias| alias == name));
        let by_hub_name = || by(|entry, name| hub_name(entry.id()) == name);
        let known = by_id.or_else(by_alias).or_else(by_hub_name);
        let is_any = ANY_MODEL.contains(&name);
        let any = || only_language_model(&entries).filter(|_| is_any);
        known.or_else(any).cloned().ok_or_else(|| {
            let names = entries.iter().flat_map(|entry| entry.names());
            let names: Vec<&str> = names.map(String::as_str).collect();
            let message = format!("expected one of {}, found `{name}`", names.join(", "));
            ApiError::new(StatusCode::NOT_FOUND, message)
                .with_param("model")
                .with_code("model_not_found")
        })
    }

    /// The models that are loaded.
    pub fn loaded(&self) -> Vec<Arc<Served>> {
        let entries = self.entries();
        entries.iter().filter_map(|entry| entry.loaded()).collect()
    }

    /// Whether models that were given as loaded may be unloaded.
    pub fn unloads(&self) -> bool {
        let entries = self.entries();
        let mut given = entries.iter().map(|entry| &entry.given);
        given.any(|given| !given.at_start || given.keep_alive != KeepAlive::FOREVER)
    }

    /// Whether all models are loaded that are at start. One that was unloaded since comes back.
    pub fn is_ready(&self) -> bool {
        let entries = self.entries();
        let mut first = entries.iter().filter(|entry| entry.given.at_start);
        first.all(|entry| entry.state().max_tokens.is_some())
    }

    /// Loads the models that are loaded at start.
    pub async fn start(self: Arc<Self>) -> Result<(), LoadError> {
        for entry in self.entries().iter().filter(|entry| entry.given.at_start) {
            // None of them makes room for another.
            self.load(entry, false).await?;
        }
        Ok(())
    }

    /// A loaded model. If it is not loaded, waits until it is.
    pub async fn get(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<Arc<Served>, ApiError> {
        if let Some(served) = entry.take_up() {
            return Ok(served);
        }
        let Ok(place) = Arc::clone(&entry.waiting).try_acquire_owned() else {
            let message = "the model is being loaded, and too many requests wait for it";
            return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, message)
                .with_code("queue_full")
                .retry_after(5));
        };
        // Loading goes on if this client leaves: the next one wants the same.
        let (roster, of_load) = (Arc::clone(self), Arc::clone(entry));
        let loading = tokio::spawn(async move {
            let loaded = roster.load(&of_load, true).await;
            drop(place);
            loaded.map_err(|error| roster.refused(&of_load, &error))
        });
        match tokio::time::timeout(LOAD_PATIENCE, loading).await {
            Ok(Ok(loaded)) => loaded,
            Ok(Err(_)) => Err(ApiError::failed("the model could not be loaded")),
            Err(_) => Err(unavailable("the model is still being loaded", 30)),
        }
    }

    /// What clients are told of a model that could not be loaded.
    fn refused(&self, entry: &Entry, error: &LoadError) -> ApiError {
        (self.complain)(&format!("{}: {}", entry.id(), error.cause));
        if error.lacks_memory {
            return unavailable("there is too little free memory for the model", 5);
        }
        ApiError::failed("the model could not be loaded: the server's log says why")
    }

    /// Loads a model. If there is too little memory for it, unloads idle ones where that is
    /// allowed.
    async fn load(&self, entry: &Arc<Entry>, may_unload: bool) -> Result<Arc<Served>, LoadError> {
        let _turn = self.turn.lock().await;
        loop {
            if let Some(served) = entry.take_up() {
                return Ok(served);
            }
            let of_thread = Arc::clone(entry);
            let error = match apart(move || (of_thread.given.load)()).await {
                Ok(served) => {
                    let served = entry.put(served);
                    entry.state().used = Instant::now();
                    return Ok(served);
                }
                Err(error) => error,
            };
            let may_help = may_unload && error.lacks_memory;
            if !may_help || !self.make_room().await {
                return Err(error);
            }
        }
    }

    /// Loads the models again that are loaded, one after another. Running and waiting answers are
    /// given with the model as it was; a model that cannot be loaded stays.
    pub async fn reload(self: Arc<Self>, heard: ReloadSink) {
        for entry in &self.entries() {
            let _turn = self.turn.lock().await;
            if entry.loaded().is_none() {
                continue;
            }
            let of_thread = Arc::clone(entry);
            let loaded = apart(move || of_thread.load_same()).await;
            // The thread of the model before ends with its last answer.
            heard(entry.id(), loaded.map(|served| drop(entry.put(served))));
        }
    }

    /// Unloads the idle model that was not used for longest; false if there is none.
    async fn make_room(&self) -> bool {
        let mut idle = self.entries();
        idle.sort_by_key(|entry| entry.state().used);
        for entry in idle {
            if let Some(served) = entry.take_if(|_| true) {
                unload(served).await;
                return true;
            }
        }
        false
    }

    /// Unloads models that nobody has asked for in their time, until the server ends.
    pub async fn sweep(self: Arc<Self>) {
        loop {
            tokio::time::sleep(SWEEP_TIME).await;
            for entry in &self.entries() {
                if let Some(served) = entry.take_if(State::is_over) {
                    unload(served).await;
                }
            }
        }
    }

    /// Waits for the threads of models that nobody uses any more, until `end`: they store prompts.
    pub fn close(&self, end: Instant) {
        let entries = self.entries();
        let served = entries.iter().map(|entry| entry.state().served.take());
        let served = served.flatten().filter_map(alone);
        // All of them begin before the first is waited for.
        let threads: Vec<JoinHandle<()>> = served.map(Served::release).collect();
        for thread in threads {
            join_within(thread, end.saturating_duration_since(Instant::now()));
        }
    }
}

impl Entry {
    fn new(given: Loadable) -> Self {
        let state = State {
            served: None,
            used: Instant::now(),
            keep_alive: given.keep_alive,
            max_tokens: None,
        };
        Self {
            waiting: Arc::new(Semaphore::new(given.n_queue.max(1))),
            state: Mutex::new(state),
            given,
        }
    }

    pub fn id(&self) -> &str {
        &self.given.id
    }

    pub fn aliases(&self) -> &[String] {
        &self.given.aliases
    }

    /// The name, then the aliases.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        [&self.given.id].into_iter().chain(&self.given.aliases)
    }

    /// Loads the model, which must do what it did before: clients have asked for that.
    fn load_same(&self) -> Result<Served, LoadError> {
        let served = (self.given.load)()?;
        let (expected, found) = (self.given.task, served.kind());
        if expected == found {
            return Ok(served);
        }
        let (expected, found) = (expected.name(), found.name());
        let cause = format!("expected a model with the task {expected}, found {found}");
        Err(LoadError::new(cause))
    }

    pub fn task(&self) -> ModelTask {
        self.given.task
    }

    /// Most tokens of a prompt or an input; `None` if the model was never loaded.
    pub fn max_tokens(&self) -> Option<usize> {
        self.state().max_tokens
    }

    /// The model, if it is loaded.
    pub fn loaded(&self) -> Option<Arc<Served>> {
        self.state().served.clone()
    }

    /// Changes how long the model stays loaded.
    pub fn keep_for(&self, keep_alive: KeepAlive) {
        self.state().keep_alive = keep_alive;
    }

    /// How long the model stays loaded.
    pub fn keep_alive(&self) -> KeepAlive {
        self.state().keep_alive
    }

    /// The model for a request, if it is loaded.
    fn take_up(&self) -> Option<Arc<Served>> {
        let mut state = self.state();
        state.used = Instant::now();
        state.served.clone()
    }

    /// Serves with this model from now on.
    fn put(&self, served: Served) -> Arc<Served> {
        let served = Arc::new(served);
        let mut state = self.state();
        state.max_tokens = Some(served.max_tokens());
        state.served = Some(Arc::clone(&served));
        served
    }

    /// Takes the model away if nobody uses it and `is_due`.
    fn take_if(&self, is_due: impl Fn(&State) -> bool) -> Option<Served> {
        let mut state = self.state();
        let served = state.served.take()?;
        // Nobody else can get the model while the state is locked.
        match Arc::try_unwrap(served) {
            Ok(served) if served.places().n_taken() == 0 => {
                if is_due(&state) {
                    return Some(served);
                }
                state.served = Some(Arc::new(served));
            }
            Ok(busy) => {
                state.used = Instant::now();
                state.served = Some(Arc::new(busy));
            }
            Err(shared) => {
                state.used = Instant::now();
                state.served = Some(shared);
            }
        }
        None
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Whether the model has been idle for its time.
    fn is_over(&self) -> bool {
        let limit = self.keep_alive.0;
        limit.is_some_and(|limit| self.used.elapsed() >= limit)
    }
}

/// The language model, if there is one and no other.
fn only_language_model(entries: &[Arc<Entry>]) -> Option<&Arc<Entry>> {
    let is_one = |entry: &&Arc<Entry>| entry.task() == ModelTask::Generate;
    let mut found = entries.iter().filter(is_one);
    found.next().filter(|_| found.next().is_none())
}

fn unavailable(message: &str, seconds: u32) -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
        .with_code("model_unavailable")
        .retry_after(seconds)
}

/// Drops a model, and waits until its thread has given its memory back.
async fn unload(served: Served) {
    let dropped = apart(move || {
        served.stop();
        Ok(())
    });
    let _ = dropped.await;
}

/// Runs what takes long on a thread of its own.
async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LoadError> + Send + 'static,
) -> Result<T, LoadError> {
    let (done, result) = oneshot::channel();
    let thread = std::thread::Builder::new().name("load".to_owned());
    let spawned = thread.spawn(move || {
        let _ = done.send(work());
    });
    spawned.map_err(LoadError::new)?;
    let stopped = |_| LoadError::new("the thread that loads the model has stopped");
    result.await.map_err(stopped)?
}

/// What nobody else holds. Requests that were broken off let go of their model soon, on threads of
/// their own.
fn alone<T>(shared: Arc<T>) -> Option<T> {
    let start = Instant::now();
    while Arc::strong_count(&shared) > 1 && start.elapsed() < RELEASE_TIME {
        std::thread::sleep(Duration::from_millis(1));
    }
    Arc::into_inner(shared)
}

/// The name of a model of the Hub alone, which clients of its maker's API send.
fn hub_name(id: &str) -> &str {
    let name = id
        .strip_prefix("hf:")
        .and_then(|path| path.split('/').nth(1));
    name.map_or(id, |name| name.split('@').next().unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_waited_for_that_a_request_lets_go_of() {
        let shared = Arc::new(5);
        let held = Arc::clone(&shared);
        // Before the model is waited for, or while it is.
        let request = std::thread::spawn(move || drop(held));
        assert_eq!(alone(shared), Some(5));
        request.join().unwrap();
    }

    #[test]
    fn models_of_the_hub_have_their_name_alone_too() {
        for (id, name) in [
            ("hf:perplexity-ai/pplx-embed-v1-0.6b", "pplx-embed-v1-0.6b"),
            ("hf:org/name@main", "name"),
            ("hf:org/name/file.gguf@main", "name"),
            ("minilm", "minilm"),
            ("hf:odd", "hf:odd"),
        ] {
            assert_eq!(hub_name(id), name);
        }
    }
}

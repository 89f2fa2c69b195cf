//! The calls of a language model whose functions have fixed lengths, as a chain for `engine`.
//!
//! A chain is made of what a contract says and of nothing else, so that any other host can do the
//! same: the role of a port says what it is fed, or where it goes.

use std::collections::BTreeMap;
use std::sync::Arc;

use thane_calls::{Call, Calls, Given, Head, HostHead, Kept, Ring, StreamingCache};
use thane_engine::chain::{self, Cache, Chain, Feed, Input, Logits, Rows, Step};
use thane_mil::backend::Limits;
use thane_mil::types::DType;

use crate::contract::{Port, Ports};
use crate::heads::{self, dims};
use crate::tables::Tables;

/// The chain of a language model. `vocab_size` and `context` are those of the model.
///
/// # Errors
///
/// In words, if functions, inputs or tables do not fit together.
pub fn chain(
    calls: &Calls,
    functions: &BTreeMap<String, Ports>,
    tables: &Tables,
    (vocab_size, context): (usize, usize),
) -> Result<Chain, String> {
    let has_all = |call: &&Call| call.functions.iter().all(|f| functions.contains_key(f));
    let present: Vec<&Call> = calls.calls.iter().filter(has_all).collect();
    let mut lengths: Vec<usize> = present.iter().map(|call| call.context).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let is_recurrent = is_recurrent(functions);
    let mut host = Host {
        sizes: (vocab_size, context),
        window: calls.window,
        streaming: calls.streaming,
        functions,
        tables,
        caches: Vec::new(),
        slots: vec![("hidden_states".to_owned(), 0)],
    };
    let mut states: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let (mut all, mut lanes) = (Vec::new(), Vec::new());
    for &facts in &present {
        let length = lengths.binary_search(&facts.context).unwrap_or(0);
        for (chunk, function) in facts.functions.iter().enumerate() {
            // What layers without attention remember is the same state in all lengths.
            let states_of = functions[function].states.iter();
            for state in states_of.filter(|state| state.role == "key_value_cache") {
                let names = states.entry(chunk).or_default();
                if names.len() == length {
                    names.push(state.name.clone());
                }
            }
        }
        check_call(facts)?;
        let kind = if facts.lanes > 1 {
            &mut lanes
        } else {
            &mut all
        };
        kind.push(chain::Call {
            n_tokens: facts.n_tokens(),
            padded: facts.tokens > 1 && !is_recurrent,
            positions: 0..facts.context,
            gives: Some(facts.logits),
            length,
            steps: host.steps(facts)?,
            head: host.head(facts, &calls.head)?,
        });
    }
    host.check_sizes()?;
    for facts in &present {
        heads::check_outputs((facts, &calls.head), functions, (tables, vocab_size))?;
    }
    if lengths.last() != Some(&context) {
        return Err(format!(
            "expected functions of a context of {context}, found {lengths:?}"
        ));
    }
    if !all.iter().any(|call| call.n_tokens == 1 || call.padded) {
        return Err(
            "expected a function that takes one token, found none: convert with decode".to_owned(),
        );
    }
    let rings = host.rings(context);
    check_rings(&rings, &all)?;
    Ok(Chain {
        context,
        vocab_size,
        calls: all,
        lanes,
        logits: logits(&calls.head, (&present, functions)),
        slot_bytes: host.slots.into_iter().map(|(_, n_bytes)| n_bytes).collect(),
        caches: host.caches,
        states: states
            .into_values()
            .filter(|names| names.len() > 1)
            .collect(),
        // States that hold all tokens so far together cannot go back.
        rings,
        rewind_limit: if is_recurrent { 0 } else { usize::MAX },
    })
}

/// A call has functions, each once. Sequences side by side have one token each.
fn check_call(call: &Call) -> Result<(), String> {
    let mut names: Vec<&String> = call.functions.iter().collect();
    names.sort_unstable();
    names.dedup();
    if names.is_empty() || names.len() < call.functions.len() {
        return Err(format!(
            "expected a call of functions that differ, found {:?} for {} tokens",
            call.functions, call.tokens
        ));
    }
    let fits = call.tokens > 0 && (call.lanes == 1 || (call.lanes > 1 && call.tokens == 1));
    if fits && (call.lanes == 1 || call.logits == Given::Each) {
        return Ok(());
    }
    Err(format!(
        "expected a call of some tokens, or of one token each of some lanes with the logits of \
         each, found {} tokens of {} lanes in {}",
        call.tokens,
        call.lanes,
        call.functions.join(", ")
    ))
}

/// Caches that do not keep all tokens keep what the first token of a call attends to, with the
/// tokens of the call.
fn check_rings(rings: &[Ring], calls: &[chain::Call]) -> Result<(), String> {
    let most = calls.iter().map(|call| call.n_tokens).max().unwrap_or(1);
    let misfit = |ring: &&Ring| ring.window.saturating_add(most) > ring.n_rows;
    match rings.iter().find(misfit) {
        None => Ok(()),
        Some(Ring { n_rows, window }) => Err(format!(
            "expected caches that keep {n_rows} tokens to have a window and a pool of at most {} \
             tokens, since calls have up to {most}, found {window}",
            n_rows.saturating_sub(most)
        )),
    }
}

/// How outputs become logits.
fn logits(
    head: &Head<HostHead>,
    (calls, functions): (&[&Call], &BTreeMap<String, Ports>),
) -> Logits {
    match head {
        Head::Greatest(n) => Logits::Top {
            tokens: "top_tokens".to_owned(),
            logits: "top_logits".to_owned(),
            n: *n,
        },
        Head::Host(_) => Logits::Joined(vec!["logits".to_owned()]),
        Head::Logits => {
            let called = calls.iter().flat_map(|call| &call.functions);
            let outputs = called.flat_map(|name| &functions[name].outputs);
            let mut names: Vec<String> = Vec::new();
            for port in outputs.filter(|port| port.role == "logits") {
                if !names.contains(&port.name) {
                    names.push(port.name.clone());
                }
            }
            Logits::Joined(names)
        }
    }
}

/// Whether layers remember all tokens so far together: tokens that mean nothing would spoil it.
fn is_recurrent(functions: &BTreeMap<String, Ports>) -> bool {
    let ports = functions
        .values()
        .flat_map(|ports| ports.states.iter().chain(&ports.inputs));
    let mut roles = ports.map(|port| port.role.as_str());
    roles.any(|role| ["convolution_cache", "recurrent_state"].contains(&role))
}

/// What the host holds, as far as it is known yet.
struct Host<'a> {
    /// Tokens of the vocabulary, and of the context.
    sizes: (usize, usize),
    window: Option<usize>,
    streaming: Option<StreamingCache>,
    functions: &'a BTreeMap<String, Ports>,
    tables: &'a Tables,
    caches: Vec<Cache>,
    /// Names of the values that are passed on from chunk to chunk or from call to call, with the
    /// bytes that they have before the first call.
    slots: Vec<(String, usize)>,
}

impl Host<'_> {
    fn steps(&mut self, call: &Call) -> Result<Vec<Step>, String> {
        let functions = self.functions;
        let mut hidden: Option<&Port> = None;
        let mut steps = Vec::new();
        for name in &call.functions {
            let ports = &functions[name];
            let mut inputs = Vec::new();
            for port in &ports.inputs {
                let fault = |what: String| format!("input `{}` of `{name}`: {what}", port.name);
                let shape: Option<Vec<usize>> = port.shape.iter().copied().collect();
                let shape = shape.ok_or_else(|| fault("expected a fixed shape".to_owned()))?;
                if port.role == "hidden_states" && hidden.is_none_or(|h| h.shape != port.shape) {
                    let given = hidden.map_or("nothing".to_owned(), |h| dims(&h.shape));
                    return Err(fault(format!(
                        "expected {} of the chunk before, which gives {given}",
                        dims(&port.shape)
                    )));
                }
                let dtype = dtype(port).map_err(fault)?;
                inputs.push(Input {
                    name: port.name.clone(),
                    dtype,
                    feed: self.feed(port, call, (dtype, &shape)).map_err(fault)?,
                    shape,
                });
            }
            let (mut keeps, mut stores) = (Vec::new(), Vec::new());
            for port in &ports.outputs {
                match port.role.as_str() {
                    "hidden_states" => {
                        hidden = Some(port);
                        keeps.push((port.name.clone(), 0));
                    }
                    "final_hidden_states" => {
                        keeps.push((port.name.clone(), self.slot(heads::INPUT, 0)));
                    }
                    "per_layer_vectors" => {
                        keeps.push((port.name.clone(), self.slot("per_layer_vectors", 0)));
                    }
                    "new_keys" | "new_values" => {
                        let cache = port.name.replacen("new_k", "k_cache", 1);
                        let cache = cache.replacen("new_v", "v_cache", 1);
                        let dtype = dtype(port)?;
                        let cache = self.cache(&cache, (dtype, &port.shape, call.lanes), false)?;
                        stores.push((port.name.clone(), cache));
                        let given = port.name.replacen("new_", "given_", 1);
                        keeps.push((port.name.clone(), self.slot(&given, 0)));
                    }
                    "new_convolution_cache" | "new_recurrent_state" => {
                        let before = port.name.replacen("new_", "", 1);
                        let slot = self.memory(&before, port, call.lanes)?;
                        keeps.push((port.name.clone(), slot));
                    }
                    _ => {}
                }
            }
            steps.push(Step {
                function: name.clone(),
                inputs,
                keeps,
                stores,
            });
        }
        Ok(steps)
    }

    /// The function that computes logits from what a call gives, if that is for the host to do.
    fn head(&mut self, call: &Call, head: &Head<HostHead>) -> Result<Vec<Step>, String> {
        let last = call.functions.last().map(|name| &self.functions[name]);
        let outputs = last.map(|ports| &ports.outputs[..]).unwrap_or_default();
        let given = outputs.iter().find(|port| port.role == heads::INPUT);
        let (Head::Host(_), Some(port)) = (head, given) else {
            return Ok(Vec::new());
        };
        let shape: Option<Vec<usize>> = port.shape.iter().copied().collect();
        let shape = shape.ok_or_else(|| format!("`{}`: expected a fixed shape", port.name))?;
        let n_tokens = shape.last().copied().unwrap_or(0);
        let input = Input {
            name: heads::INPUT.to_owned(),
            dtype: dtype(port)?,
            shape,
            feed: Feed::Slot(self.slot(heads::INPUT, 0)),
        };
        Ok(vec![Step {
            function: heads::function_name(n_tokens),
            inputs: vec![input],
            keeps: Vec::new(),
            stores: Vec::new(),
        }])
    }

    /// What an input is set to, by its role.
    fn feed(
        &mut self,
        port: &Port,
        call: &Call,
        (dtype, shape): (DType, &[usize]),
    ) -> Result<Feed, String> {
        let table = |n_rows: usize| {
            let table = self.tables.get(&port.name);
            let table = table.ok_or("expected a table, found none")?;
            if table.n_rows() >= n_rows {
                return Ok(table.clone());
            }
            let found = table.n_rows();
            Err(format!("expected a table of {n_rows} rows, found {found}"))
        };
        let n_columns = |at: usize| shape.get(at).copied().unwrap_or(0);
        let feed = match port.role.as_str() {
            "tokens" => Feed::Tokens,
            "position" => Feed::Positions,
            "mask" => Feed::Mask {
                window: None,
                kept: Kept::ring(call.context),
            },
            "sliding_mask" => Feed::Mask {
                window: Some(self.sliding_window()?),
                kept: Kept::ring(n_columns(3).saturating_sub(call.tokens)),
            },
            "streaming_mask" => {
                let facts = self.streaming()?;
                Feed::Mask {
                    window: Some(facts.window),
                    kept: facts.kept(call.context),
                }
            }
            "cache_slot" if port.name == "write_begin" => Feed::WriteBegin,
            "cache_slot" => Feed::WriteEnd,
            "selection" => Feed::LastToken,
            "hidden_states" => Feed::Slot(0),
            "per_layer_vectors" => Feed::Slot(self.slot("per_layer_vectors", 0)),
            "token_row" => Feed::TokenColumns(table(self.sizes.0)?),
            "position_row" => Feed::PositionColumns(table(self.sizes.1)?),
            "key_cache" | "value_cache" => {
                Feed::Cache(self.cache(&port.name, (dtype, &port.shape, call.lanes), true)?)
            }
            "streaming_key_cache" | "streaming_value_cache" => {
                let facts = self.streaming()?;
                let idx = self.cache(&port.name, (dtype, &port.shape, call.lanes), true)?;
                if call.context == self.sizes.1 {
                    self.caches[idx].kept = facts.kept(call.context);
                }
                Feed::Cache(idx)
            }
            "given_keys" | "given_values" => Feed::Slot(self.slot(&port.name, 0)),
            "convolution_cache" | "recurrent_state" => {
                Feed::Slot(self.memory(&port.name, port, call.lanes)?)
            }
            role => return Err(format!("the role `{role}` is not that of an input")),
        };
        self.check_shape(&feed, port, (call, shape))?;
        Ok(feed)
    }

    /// Whether an input has the shape of what it is set to.
    fn check_shape(
        &self,
        feed: &Feed,
        port: &Port,
        (call, shape): (&Call, &[usize]),
    ) -> Result<(), String> {
        let n_columns = |at: usize| shape.get(at).copied().unwrap_or(0);
        let n = call.n_tokens();
        let with_call = |rows: usize| rows.saturating_add(call.tokens);
        let streaming = self.streaming;
        let rows_of = |facts: StreamingCache| facts.rows(self.sizes.1, call.context);
        // Lanes have a mask each.
        let masks = [call.lanes, call.tokens];
        let columns = |table: &Arc<dyn Rows>| {
            let at = if port.name.starts_with("rotary_") {
                2
            } else {
                1
            };
            n_columns(at) == table.n_columns()
        };
        let fits = match feed {
            Feed::Tokens => *shape == [1, n],
            Feed::Positions => *shape == [n],
            // Sliding-window layers may keep fewer rows than the context.
            Feed::Mask { window, kept } if port.role != "sliding_mask" => {
                let rows = window.and(streaming).map_or(kept.ring, rows_of);
                *shape == [1, masks[0], masks[1], with_call(rows)]
            }
            Feed::Mask { .. } => {
                shape.len() == 4 && shape[1..3] == masks && n_columns(3) <= with_call(call.context)
            }
            Feed::LastToken => *shape == [1, 1, 1, n],
            Feed::TokenColumns(table) | Feed::PositionColumns(table) => {
                shape.last() == Some(&n) && columns(table)
            }
            Feed::Cache(_) if port.role.starts_with("streaming") => {
                let rows = self.streaming()?.rows(self.sizes.1, call.context);
                if rows != n_columns(2) {
                    return Err(format!(
                        "expected {rows} rows, which `streaming` says, found {}",
                        n_columns(2)
                    ));
                }
                true
            }
            Feed::Cache(_) => {
                let rows = n_columns(2);
                rows == call.context || (self.window.is_some() && rows < call.context)
            }
            _ => true,
        };
        if fits {
            return Ok(());
        }
        Err(format!(
            "shape {shape:?} does not fit a call of {n} tokens, a context of {} and its table",
            call.context
        ))
    }

    /// The caches that keep fewer tokens than the context.
    fn rings(&self, context: usize) -> Vec<Ring> {
        let streams = |cache: &&Cache| cache.kept.sinks > 0 || cache.kept.pool.is_some();
        let rows = self.caches.iter().filter(|cache| !streams(cache));
        let rows = rows.map(|cache| cache.n_rows);
        let n_rows = rows.filter(|n| *n < context).min();
        let sliding = n_rows.zip(self.window);
        let sliding = sliding.map(|(n_rows, window)| Ring { n_rows, window });
        let streaming = self.streaming.as_ref().map(StreamingCache::ring);
        sliding.into_iter().chain(streaming).collect()
    }

    /// What a contract says of heads that do not see all tokens.
    fn streaming(&self) -> Result<StreamingCache, String> {
        let facts = self.streaming;
        let facts = facts.ok_or("expected `streaming` in the contract, found none")?;
        if facts.pool == Some(0) || facts.ring == 0 || facts.window == 0 {
            let what = "expected `window`, `ring` and `pool` of 1 or more in `streaming`";
            return Err(what.to_owned());
        }
        Ok(facts)
    }

    /// What a contract says of layers that see the last tokens only.
    fn sliding_window(&self) -> Result<usize, String> {
        let window = self.window.filter(|window| *window > 0);
        window.ok_or_else(|| "expected a `window` of 1 or more in the contract".to_owned())
    }

    fn cache(
        &mut self,
        name: &str,
        (dtype, shape, lanes): (DType, &[Option<usize>], usize),
        is_input: bool,
    ) -> Result<usize, String> {
        let dim = |at: usize| shape.get(at).copied().flatten().unwrap_or(0);
        // Outputs have a row for each token of the call, and shorter contexts fewer rows.
        let n_rows = if is_input { dim(2) } else { 0 };
        let n_heads = dim(1) / lanes.max(1);
        if n_heads * lanes != dim(1) {
            return Err(format!(
                "expected heads of {lanes} lanes in `{name}`, found {}",
                dims(shape)
            ));
        }
        if let Some(at) = self.caches.iter().position(|cache| cache.name == name) {
            let known = &mut self.caches[at];
            if (known.n_heads, known.row, known.dtype) != (n_heads, dim(3), dtype) {
                return Err(format!(
                    "expected {} heads of {} {} elements in `{name}`, found {}",
                    known.n_heads,
                    known.row,
                    known.dtype.name(),
                    dims(shape)
                ));
            }
            known.n_rows = known.n_rows.max(n_rows);
            if known.kept == Kept::ring(known.kept.ring) {
                known.kept = Kept::ring(known.n_rows);
            }
            return Ok(at);
        }
        self.caches.push(Cache {
            name: name.to_owned(),
            n_rows,
            kept: Kept::ring(n_rows),
            n_heads,
            row: dim(3),
            dtype,
        });
        Ok(self.caches.len() - 1)
    }

    /// Refuses caches that are larger than a state may be, before they are allocated.
    fn check_sizes(&self) -> Result<(), String> {
        let most = Limits::default().state_bytes;
        for cache in &self.caches {
            let rows = cache.n_heads.checked_mul(cache.n_rows);
            let elements = rows.and_then(|rows| rows.checked_mul(cache.row));
            let bytes = elements.and_then(|n| cache.dtype.byte_len(n));
            if bytes.is_none_or(|bytes| bytes > most) {
                return Err(format!(
                    "cache `{}` takes more than {most} bytes",
                    cache.name
                ));
            }
        }
        Ok(())
    }

    /// The slot of what a layer remembers of a sequence, zeros before the first call. `port` takes
    /// or gives that of all lanes.
    fn memory(&mut self, name: &str, port: &Port, lanes: usize) -> Result<usize, String> {
        let n_rows = port.shape.get(1).copied().flatten().unwrap_or(0);
        if !n_rows.is_multiple_of(lanes.max(1)) {
            return Err(format!(
                "expected what {lanes} lanes remember in `{}`, found {}",
                port.name,
                dims(&port.shape)
            ));
        }
        let mut sizes = port.shape.iter();
        let n_elements = sizes.try_fold(1usize, |n, dim| n.checked_mul((*dim)?));
        let n_bytes = n_elements.map(|n| dtype(port).map(|dtype| dtype.byte_len(n)));
        let most = Limits::default().state_bytes;
        let n_bytes = n_bytes.transpose()?.flatten().filter(|n| *n <= most);
        let n_bytes =
            n_bytes.ok_or_else(|| format!("`{}` takes more than {most} bytes", port.name))?;
        let (one, slot) = (
            n_bytes / lanes.max(1),
            self.slot(name, n_bytes / lanes.max(1)),
        );
        if self.slots[slot].1 == one {
            return Ok(slot);
        }
        Err(format!(
            "expected {} bytes of a sequence in `{}`, as other functions have, found {one}",
            self.slots[slot].1, port.name
        ))
    }

    /// The slot `name`, which begins as so many zero bytes.
    fn slot(&mut self, name: &str, n_bytes: usize) -> usize {
        if let Some(at) = self.slots.iter().position(|(slot, _)| slot == name) {
            return at;
        }
        self.slots.push((name.to_owned(), n_bytes));
        self.slots.len() - 1
    }
}

fn dtype(port: &Port) -> Result<DType, String> {
    DType::from_name(&port.dtype).ok_or_else(|| format!("unknown type `{}`", port.dtype))
}

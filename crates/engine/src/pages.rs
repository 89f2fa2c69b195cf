//! Keys and values of tokens beside the caches of sequences, so that a prompt need not be computed
//! again after its sequence has gone.
//!
//! Pages of [`PAGE_TOKENS`] tokens form a prefix tree: a page stands for its tokens and all tokens
//! before them, so prompts of an owner that begin alike share pages. A sequence takes pages by
//! copying them into its cache, which costs a hundredth of computing them. Whoever has most pages
//! makes room: the owner's pages that were not used for longest are dropped first, the last page of
//! a prefix before those that lead to it. A [`PageStore`] may keep them.

mod form;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use thane_mil::backend::{Instance, RunError};
use thane_mil::budget::{Budget, Reclaim, Reservation};
use thane_mil::types::DType;

pub use form::PageForm;

use crate::error::GenerateError;
use crate::sequence::Sequence;

/// Tokens of a page.
pub const PAGE_TOKENS: usize = 64;

/// Keeps pages beyond memory. A page is named by all tokens up to its end, which begin a sequence;
/// where it has an owner, two numbers for that are before them.
pub trait PageStore: Send {
    /// Whether it has a page.
    fn has(&mut self, tokens: &[u32]) -> bool;

    /// The `n_bytes` of a page; `None` if it has none, or if they are not those that were put. What
    /// has another length is not read.
    fn get(&mut self, tokens: &[u32], n_bytes: usize) -> Option<Vec<u8>>;

    /// Keeps a page, if it can.
    fn put(&mut self, tokens: &[u32], bytes: &[u8]);
}

/// The pages of a model.
pub struct Pages {
    caches: Vec<Rows>,
    /// Bytes of a page.
    page_bytes: usize,
    /// Most bytes of all pages.
    limit: usize,
    /// Bytes of that limit that are used beside pages.
    n_beside: usize,
    /// The first is the root, which has no tokens; `None` for those that were dropped.
    nodes: Vec<Option<Node>>,
    /// The roots of other owners than 0, which are never dropped.
    roots: BTreeMap<u64, usize>,
    unused: Vec<usize>,
    /// Nodes of each owner by their last use. A node is used after those behind it, so the first
    /// has none.
    by_use: BTreeMap<u64, BTreeSet<(u64, usize)>>,
    clock: u64,
    store: Option<Box<dyn PageStore>>,
    budget: Budget,
}

/// A state [1, heads, context, row] of keys or values.
struct Rows {
    state: String,
    n_heads: usize,
    context: usize,
    /// Elements of a row, which is that of a token.
    row: usize,
    dtype: DType,
    /// How pages hold the rows.
    form: PageForm,
}

/// A page.
struct Node {
    owner: u64,
    parent: usize,
    tokens: Vec<u32>,
    bytes: Vec<u8>,
    children: BTreeMap<Vec<u32>, usize>,
    used: u64,
    is_stored: bool,
    /// The memory of its bytes.
    _held: Option<Reservation>,
}

/// Rows of tokens that fill no page.
pub(crate) struct Tail {
    range: Range<usize>,
    bytes: Vec<u8>,
}

const ROOT: usize = 0;

impl Pages {
    /// No pages yet, of at most `limit` bytes in all, of the states that hold keys and values.
    ///
    /// # Errors
    ///
    /// If the instance has no such state, or one of another shape than [1, heads, context, row].
    pub fn new(instance: &dyn Instance, states: &[String], limit: usize) -> Result<Self, RunError> {
        let caches = states.iter().map(|name| {
            let view = instance.state(name)?;
            let [1, n_heads, context, row] = *view.shape else {
                return Err(RunError::Shape {
                    name: name.clone(),
                    expected: "[1, heads, context, row]".to_owned(),
                    given: view.shape.to_vec(),
                });
            };
            Ok(Rows {
                state: name.clone(),
                n_heads,
                context,
                row,
                dtype: view.dtype,
                form: PageForm::Exact,
            })
        });
        let caches = caches.collect::<Result<Vec<Rows>, RunError>>()?;
        Ok(Self {
            page_bytes: caches.iter().map(Rows::page_bytes).sum(),
            caches,
            limit,
            n_beside: 0,
            nodes: vec![Some(Node::root(0))],
            roots: BTreeMap::new(),
            unused: Vec::new(),
            by_use: BTreeMap::new(),
            clock: 0,
            store: None,
            budget: Budget::default(),
        })
    }

    /// The same, which hold keys and values in this form. What is taken from other pages than
    /// [`PageForm::Exact`] is not exactly what was computed.
    pub fn with_form(self, form: PageForm) -> Self {
        let caches = self.caches.into_iter().map(|rows| Rows {
            form: form.of(rows.dtype),
            ..rows
        });
        let caches: Vec<Rows> = caches.collect();
        Self {
            page_bytes: caches.iter().map(Rows::page_bytes).sum(),
            caches,
            ..self
        }
    }

    /// The same, as far as this budget has memory for them.
    pub fn with_budget(self, budget: Budget) -> Self {
        Self { budget, ..self }
    }

    /// The same, with a store for what does not stay in memory.
    pub fn with_store(self, store: Box<dyn PageStore>) -> Self {
        Self {
            store: Some(store),
            ..self
        }
    }

    /// Bytes of all pages in memory.
    pub fn n_bytes(&self) -> usize {
        self.by_use.values().map(BTreeSet::len).sum::<usize>() * self.page_bytes
    }

    /// Number of tokens at the start of an owner's `tokens` that pages hold.
    pub fn n_known(&mut self, owner: u64, tokens: &[u32]) -> usize {
        let n_pages = self.walk(owner, tokens);
        let Some(store) = &mut self.store else {
            return n_pages * PAGE_TOKENS;
        };
        let rest = n_pages..tokens.len() / PAGE_TOKENS;
        let stored = rest.map(|i| name_of(owner, &tokens[..(i + 1) * PAGE_TOKENS]));
        let n_stored = stored.take_while(|name| store.has(name)).count();
        (n_pages + n_stored) * PAGE_TOKENS
    }

    /// Makes the cache of a sequence hold what pages have of a prompt, if that is more than it
    /// holds.
    ///
    /// # Errors
    ///
    /// If a state cannot be written. The sequence then holds what it held of the prompt.
    pub(crate) fn restore(
        &mut self,
        prompt: &[u32],
        sequence: &mut Sequence,
        instance: &mut dyn Instance,
    ) -> Result<(), GenerateError> {
        let most = prompt.len().saturating_sub(1).min(sequence.context());
        let owner = sequence.owner();
        let n_known = self.n_known(owner, prompt).min(most);
        let n_cached = sequence.n_cached(prompt);
        if n_known <= n_cached {
            return Ok(());
        }
        sequence.begin(prompt)?;
        let end = self.load(owner, prompt, n_cached..n_known, instance)?;
        sequence.extend(&prompt[n_cached..end]);
        Ok(())
    }

    /// The rows of those of an owner's `tokens` that no page has, out of the states of `instance`;
    /// `None` if they are none, or more than a page.
    pub(crate) fn tail(
        &self,
        owner: u64,
        tokens: &[u32],
        instance: &dyn Instance,
    ) -> Result<Option<Tail>, RunError> {
        let n_pages = self.walk(owner, tokens);
        let range = n_pages * PAGE_TOKENS..tokens.len();
        if range.is_empty() || range.len() > PAGE_TOKENS {
            return Ok(None);
        }
        let bytes = self.copy_in(range.start, instance)?;
        Ok(bytes.map(|bytes| Tail { range, bytes }))
    }

    /// Adds the rows of a tail of `prompt` to a sequence that holds all tokens before.
    pub(crate) fn add_tail(
        &self,
        (tail, prompt): (&Tail, &[u32]),
        sequence: &mut Sequence,
        instance: &mut dyn Instance,
    ) -> Result<(), RunError> {
        let range = tail.range.clone();
        if sequence.tokens() == &prompt[..range.start] {
            self.copy_out(&tail.bytes, range.start, range.clone(), instance)?;
            sequence.extend(&prompt[range]);
        }
        Ok(())
    }

    /// Copies the rows of `tokens[range]` to the states of `instance`, as far as pages of the owner
    /// have them. Returns the end of what was copied.
    ///
    /// # Errors
    ///
    /// If a state cannot be written.
    pub fn load(
        &mut self,
        owner: u64,
        tokens: &[u32],
        range: Range<usize>,
        instance: &mut dyn Instance,
    ) -> Result<usize, RunError> {
        let mut at = self.root_of(owner);
        let mut end = range.start;
        let mut path = Vec::new();
        for (i, page) in tokens[..range.end].chunks(PAGE_TOKENS).enumerate() {
            let start = i * PAGE_TOKENS;
            // The last page may be wanted in part.
            let whole = tokens.get(start..start + PAGE_TOKENS);
            let Some(whole) = whole else { break };
            let wanted = range.start.max(start)..start + page.len();
            let known = self.node(at).children.get(whole).copied();
            let next = match known {
                Some(next) => {
                    let bytes = &self.node(next).bytes;
                    self.copy_out(bytes, start, wanted.clone(), instance)?;
                    Some(next)
                }
                None => {
                    let prefix = name_of(owner, &tokens[..start + PAGE_TOKENS]);
                    let (store, n_bytes) = (self.store.as_mut(), self.page_bytes);
                    let stored = store.and_then(|store| store.get(&prefix, n_bytes));
                    let Some(bytes) = stored.filter(|bytes| bytes.len() == n_bytes) else {
                        break;
                    };
                    self.copy_out(&bytes, start, wanted.clone(), instance)?;
                    self.insert(at, whole, (bytes, true))
                }
            };
            end = end.max(wanted.end);
            let Some(next) = next else { break };
            path.push(next);
            at = next;
        }
        self.touch(&path);
        self.shrink();
        Ok(end)
    }

    /// Keeps the whole pages of an owner's `tokens`, whose rows are in the states of `instance`.
    ///
    /// # Errors
    ///
    /// If a state cannot be read.
    pub fn save(
        &mut self,
        owner: u64,
        tokens: &[u32],
        instance: &dyn Instance,
    ) -> Result<(), RunError> {
        if self.page_bytes > self.limit.saturating_sub(self.n_beside) || self.page_bytes == 0 {
            return Ok(());
        }
        let (mut at, mut path) = (self.root_of(owner), Vec::new());
        for (i, page) in tokens.as_chunks::<PAGE_TOKENS>().0.iter().enumerate() {
            let known = self.node(at).children.get(&page[..]).copied();
            let next = match known {
                Some(next) => Some(next),
                None => {
                    let bytes = self.copy_in(i * PAGE_TOKENS, instance)?;
                    bytes.and_then(|bytes| self.insert(at, page, (bytes, false)))
                }
            };
            let Some(next) = next else { break };
            path.push(next);
            at = next;
        }
        self.touch(&path);
        self.shrink();
        Ok(())
    }

    /// Puts one page into the store that it does not have yet. Returns whether there was one.
    pub fn store_one(&mut self) -> bool {
        let is_new = |at: &usize| self.nodes[*at].as_ref().is_some_and(|node| !node.is_stored);
        let by_use = self.by_use.values();
        let latest = by_use.filter_map(|nodes| nodes.iter().rev().find(|(_, at)| is_new(at)));
        let Some(&(_, at)) = latest.max().filter(|_| self.store.is_some()) else {
            return false;
        };
        self.put(at);
        true
    }

    /// The number of pages in memory along an owner's `tokens`.
    fn walk(&self, owner: u64, tokens: &[u32]) -> usize {
        let Some(mut at) = self.known_root(owner) else {
            return 0;
        };
        let pages = tokens.as_chunks::<PAGE_TOKENS>().0.iter();
        let is_known = |page: &&[u32; PAGE_TOKENS]| {
            let next = self.node(at).children.get(&page[..]);
            at = next.copied().unwrap_or(at);
            next.is_some()
        };
        pages.take_while(is_known).count()
    }

    fn known_root(&self, owner: u64) -> Option<usize> {
        match owner {
            0 => Some(ROOT),
            owner => self.roots.get(&owner).copied(),
        }
    }

    /// The root of the pages of an owner.
    fn root_of(&mut self, owner: u64) -> usize {
        self.known_root(owner).unwrap_or_else(|| {
            self.nodes.push(Some(Node::root(owner)));
            let at = self.nodes.len() - 1;
            self.roots.insert(owner, at);
            at
        })
    }

    fn node(&self, at: usize) -> &Node {
        self.nodes[at].as_ref().unwrap_or_else(|| self.root())
    }

    /// What stands for a page that was dropped, of which no other page knows.
    fn root(&self) -> &Node {
        self.nodes[ROOT]
            .as_ref()
            .expect("the root is never dropped")
    }

    /// Adds a page behind `parent`, if there is memory for it.
    fn insert(
        &mut self,
        parent: usize,
        tokens: &[u32],
        (bytes, is_stored): (Vec<u8>, bool),
    ) -> Option<usize> {
        let held = self.budget.reserve_spare(self.page_bytes)?;
        let owner = self.node(parent).owner;
        let node = Node {
            owner,
            parent,
            tokens: tokens.to_vec(),
            bytes,
            children: BTreeMap::new(),
            used: 0,
            is_stored,
            _held: Some(held),
        };
        let at = self.unused.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            self.nodes.len() - 1
        });
        self.nodes[at] = Some(node);
        if let Some(parent) = &mut self.nodes[parent] {
            parent.children.insert(tokens.to_vec(), at);
        }
        self.by_use.entry(owner).or_default().insert((0, at));
        Some(at)
    }

    /// Marks the pages of a prefix as used now, the first of them last.
    fn touch(&mut self, path: &[usize]) {
        for &at in path.iter().rev() {
            self.clock += 1;
            if let Some(node) = &mut self.nodes[at] {
                let by_use = self.by_use.entry(node.owner).or_default();
                by_use.remove(&(node.used, at));
                node.used = self.clock;
                by_use.insert((node.used, at));
            }
        }
    }

    /// What the pages count against.
    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Leaves so many bytes of the limit to what is kept beside pages.
    pub(crate) fn leave(&mut self, n_bytes: usize) {
        self.n_beside = n_bytes;
        self.shrink();
    }

    /// Drops pages until the rest is within the limit.
    fn shrink(&mut self) {
        self.shrink_to(self.limit.saturating_sub(self.n_beside));
    }

    fn shrink_to(&mut self, limit: usize) {
        while self.n_bytes() > limit {
            let by_use = self.by_use.values();
            let oldest = by_use.filter_map(|nodes| Some((nodes.len(), Reverse(*nodes.first()?))));
            let Some((_, Reverse((used, at)))) = oldest.max() else {
                return;
            };
            if self.store.is_some() {
                self.put(at);
            }
            let owner = self.node(at).owner;
            if let Some(by_use) = self.by_use.get_mut(&owner) {
                by_use.remove(&(used, at));
            }
            let Some(node) = self.nodes[at].take() else {
                return;
            };
            if let Some(parent) = &mut self.nodes[node.parent] {
                parent.children.remove(&node.tokens);
            }
            self.unused.push(at);
        }
    }

    /// Puts a page into the store, if it is not there.
    fn put(&mut self, at: usize) {
        let mut pages = Vec::new();
        let mut up = at;
        while up != ROOT {
            pages.push(up);
            up = self.node(up).parent;
        }
        let pages = pages.iter().rev();
        let tokens: Vec<u32> = pages.flat_map(|at| self.node(*at).tokens.clone()).collect();
        let (Some(store), Some(node)) = (&mut self.store, &mut self.nodes[at]) else {
            return;
        };
        // It may have been dropped, and computed again. What the store has may be damaged.
        if !node.is_stored && store.get(&tokens, node.bytes.len()).is_none() {
            store.put(&tokens, &node.bytes);
        }
        node.is_stored = true;
    }

    /// The rows of the page that begins at token `start`; `None` if they have no such form.
    fn copy_in(&self, start: usize, instance: &dyn Instance) -> Result<Option<Vec<u8>>, RunError> {
        let mut bytes = Vec::with_capacity(self.page_bytes);
        for rows in &self.caches {
            let from = instance.state(&rows.state)?.bytes;
            for head in 0..rows.n_heads {
                let of_head = rows.bytes(head, start..start + PAGE_TOKENS);
                let part = from.get(of_head).ok_or_else(|| rows.misfit())?;
                if !rows.form.encode(part, (rows.dtype, rows.row), &mut bytes) {
                    return Ok(None);
                }
            }
        }
        Ok(Some(bytes))
    }

    /// Copies the rows of the tokens `wanted` out of the page of these bytes that begins at
    /// `start`.
    fn copy_out(
        &self,
        bytes: &[u8],
        start: usize,
        wanted: Range<usize>,
        instance: &mut dyn Instance,
    ) -> Result<(), RunError> {
        if wanted.is_empty() {
            return Ok(());
        }
        let mut from = bytes;
        for rows in &self.caches {
            let to = instance.state_mut(&rows.state)?;
            let size = rows.form.row_bytes(rows.dtype, rows.row);
            let at = |token: usize| (token - start) * size;
            let part = at(wanted.start)..at(wanted.end);
            for head in 0..rows.n_heads {
                let split = from.split_at_checked(PAGE_TOKENS * size);
                let (of_head, rest) = split.ok_or_else(|| rows.misfit())?;
                from = rest;
                let to = to.get_mut(rows.bytes(head, wanted.clone()));
                let to = to.ok_or_else(|| rows.misfit())?;
                let stored = &of_head[part.clone()];
                rows.form.decode(stored, (rows.dtype, rows.row), to);
            }
        }
        Ok(())
    }
}

/// The name of a page in a store.
fn name_of(owner: u64, tokens: &[u32]) -> Cow<'_, [u32]> {
    match owner {
        0 => tokens.into(),
        owner => [&marks(owner), tokens].concat().into(),
    }
}

/// Two numbers for an owner.
fn marks(owner: u64) -> [u32; 2] {
    [(owner >> 32) as u32, owner as u32]
}

impl Node {
    /// The node before all pages of an owner.
    fn root(owner: u64) -> Self {
        Self {
            owner,
            parent: ROOT,
            tokens: name_of(owner, &[]).into_owned(),
            bytes: Vec::new(),
            children: BTreeMap::new(),
            used: 0,
            is_stored: true,
            _held: None,
        }
    }
}

impl Reclaim for Pages {
    fn held_bytes(&self) -> usize {
        self.n_bytes()
    }

    fn reclaim(&mut self, n_bytes: usize) -> bool {
        let n_before = self.n_bytes();
        self.shrink_to(n_before.saturating_sub(n_bytes));
        self.n_bytes() < n_before
    }
}

impl Rows {
    /// Bytes of a row of the state.
    fn row_bytes(&self) -> usize {
        self.row * self.dtype.bits() / 8
    }

    /// Bytes of a page of them.
    fn page_bytes(&self) -> usize {
        PAGE_TOKENS * self.n_heads * self.form.row_bytes(self.dtype, self.row)
    }

    /// Where the rows of these tokens are in the state.
    fn bytes(&self, head: usize, tokens: Range<usize>) -> Range<usize> {
        let at = |token: usize| (head * self.context + token) * self.row_bytes();
        at(tokens.start)..at(tokens.end)
    }

    fn misfit(&self) -> RunError {
        RunError::NoState(self.state.clone())
    }
}

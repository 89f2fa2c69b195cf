//! Where and how prompts are kept in pages.

use thane_engine::generate::Session;
use thane_engine::pages::{PageForm, PageStore, Pages};
use thane_engine::sessions::Sessions;
use thane_mil::backend::{Backend, RunError};
use thane_mil::budget::Budget;
use thane_mil::types::Type;

use crate::error::RuntimeError;
use crate::language_model::LanguageModel;

/// Where and how prompts are kept in pages.
pub struct PageOptions {
    /// Most bytes of all pages in memory.
    pub most_bytes: usize,
    /// What the pages count against.
    pub budget: Budget,
    /// How pages hold keys and values.
    pub form: PageForm,
    /// What keeps pages beyond memory.
    pub store: Option<Box<dyn PageStore>>,
}

impl PageOptions {
    /// Pages with these options.
    pub(crate) fn set(self, pages: Pages) -> Pages {
        let pages = pages.with_form(self.form).with_budget(self.budget);
        match self.store {
            Some(store) => pages.with_store(store),
            None => pages,
        }
    }
}

impl LanguageModel {
    /// [`Self::sessions`] that keep prompts: in pages, and at most half of the bytes as whole
    /// caches, or all where layers without attention have no pages. Functions of fixed length keep
    /// none.
    pub fn paged_sessions(
        &self,
        backend: &dyn Backend,
        n: usize,
        options: PageOptions,
    ) -> Result<Sessions, RuntimeError> {
        let mut sessions = self.sessions(backend, n)?;
        if n > 0 {
            let (most_bytes, budget) = (options.most_bytes, options.budget.clone());
            let is_paged = self.set_pages(&mut sessions, options)?;
            sessions.keep_whole(most_bytes / if is_paged { 2 } else { 1 }, budget);
        }
        Ok(sessions)
    }

    /// Lets sessions of this model take prompts from pages, and keep them there. Returns false for
    /// a model that has no pages.
    pub(crate) fn set_pages(
        &self,
        sessions: &mut Sessions,
        options: PageOptions,
    ) -> Result<bool, RuntimeError> {
        let new = |states: &[String], limit| sessions.new_pages(states, limit);
        let pages = self.pages(options, new)?;
        let has_pages = pages.is_some();
        pages
            .into_iter()
            .for_each(|pages| sessions.set_pages(pages));
        Ok(has_pages)
    }

    /// Lets a session of this model take prompts from pages, and keep them there. Returns false for
    /// a model that has no pages, as functions of fixed length and layers without attention.
    pub fn keep_prompts(
        &self,
        session: &mut Session,
        options: PageOptions,
    ) -> Result<bool, RuntimeError> {
        let new = |states: &[String], limit| session.new_pages(states, limit);
        let pages = self.pages(options, new)?;
        let has_pages = pages.is_some();
        pages.into_iter().for_each(|pages| session.set_pages(pages));
        Ok(has_pages)
    }

    /// The pages that `new` makes of states and a limit in bytes; `None` for a model that has none.
    fn pages(
        &self,
        options: PageOptions,
        new: impl FnOnce(&[String], usize) -> Result<Pages, RunError>,
    ) -> Result<Option<Pages>, RuntimeError> {
        let states = self.paged_states();
        if states.is_empty() {
            return Ok(None);
        }
        let pages = new(&states, options.most_bytes);
        let pages = pages.map_err(|e| RuntimeError::Start(Box::new(e)))?;
        Ok(Some(options.set(pages)))
    }

    /// The states of keys and values that pages can hold; none for functions of fixed length, and
    /// none where a layer remembers tokens in another state, without which pages would be wrong: a
    /// short convolution (LFM2) or a recurrent memory.
    pub(crate) fn paged_states(&self) -> Vec<String> {
        if self.info.fixed.is_some() || self.info.recurrent {
            return Vec::new();
        }
        let function = self.program.function("decode").into_iter();
        let inputs = function.flat_map(|f| f.body().inputs.iter().map(|v| f.value(*v)));
        let states = inputs.filter(|input| matches!(input.ty, Type::State(_)));
        let mut names: Vec<String> = states.map(|state| state.name.clone()).collect();
        let is_cache = |name: &String| name.starts_with("k_cache_") || name.starts_with("v_cache_");
        if !names.iter().all(is_cache) {
            names.clear();
        }
        names
    }
}

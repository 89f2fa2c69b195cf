//! Where and how prompts are kept in pages.

use thane_engine::pages::{PageForm, PageStore, Pages};
use thane_mil::budget::Budget;

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

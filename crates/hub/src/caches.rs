//! The caches of models.

/// A cache of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Thane's own, with models of the catalog.
    Own,
    /// The one in Hugging Face's layout, which other programs share.
    Hub,
}

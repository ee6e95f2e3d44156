//! Pages that controllers add to what a process serves.

use std::sync::Arc;

/// Makes a page from the pairs of a query.
pub type MakePage = Arc<dyn Fn(&[(String, String)]) -> String + Send + Sync>;

/// A page of a controller's own.
#[derive(Clone)]
pub struct Page {
    /// Its path.
    pub path: String,
    /// What it is made of.
    pub media_type: &'static str,
    /// Makes it from the pairs of a query. It must be quick and must not wait.
    pub make: MakePage,
}

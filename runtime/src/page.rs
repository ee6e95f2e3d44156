//! Pages that controllers add to the served ones.

use std::sync::Arc;

/// A function that renders a page for the names and values of a query.
pub type MakePage = Arc<dyn Fn(&[(String, String)]) -> String + Send + Sync>;

/// A page of a controller.
#[derive(Clone)]
pub struct Page {
    /// The path under which the page is served.
    pub path: String,
    /// The content type of the response.
    pub media_type: &'static str,
    /// Renders the page for the names and values of a query. It must not block.
    pub make: MakePage,
}

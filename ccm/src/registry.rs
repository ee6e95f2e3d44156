//! All cloud controllers. No other file lists them.

use crate::context::Descriptor;

/// All controllers, in the order in which they start.
pub const CONTROLLERS: &[Descriptor] = &[
    crate::controllers::node::DESCRIPTOR,
    crate::controllers::node_lifecycle::DESCRIPTOR,
    crate::controllers::route::DESCRIPTOR,
    crate::controllers::service::DESCRIPTOR,
    crate::controllers::tagging::DESCRIPTOR,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::controllers::UPSTREAM;

    #[test]
    fn status_page_lists_the_registry() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/status.md");
        component::status::check(&page, "ccm", &component::status::table(UPSTREAM, CONTROLLERS)).expect("outdated");
    }
}

//! Texts of errors with their causes.

/// Returns the text of an error and of its causes. A cause whose text is already contained is left out.
pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

/// Returns the text of a client error and its causes, without the prefix that `kube` adds.
pub(super) fn problem(error: kube::Error) -> String {
    match error {
        kube::Error::Service(cause) => with_causes(&*cause),
        other => with_causes(&other),
    }
}

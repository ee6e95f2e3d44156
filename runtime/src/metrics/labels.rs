//! Labels of samples.

/// Labels of one sample.
pub type Labels<const N: usize> = [(&'static str, String); N];

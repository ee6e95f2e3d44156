//! A stack for the recursion over deep expressions.

use std::panic::resume_unwind;
use std::thread::{self, Builder};

/// Size of the stack. Only the used part is in memory.
const STACK_BYTES: usize = 64 << 20;

/// Expressions of up to this length in bytes use the caller's stack: each level of nesting takes at least one byte.
const MAX_SHORT_BYTES: usize = 100;

/// Runs `work`, which recurses over the expression `text`, on a stack that suffices for the deepest one. Returns `None`
/// if no thread could be started.
pub fn with_deep_stack<T: Send>(text: &str, work: impl FnOnce() -> T + Send) -> Option<T> {
    if text.len() <= MAX_SHORT_BYTES {
        return Some(work());
    }
    thread::scope(|scope| {
        let thread = Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work).ok()?;
        Some(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

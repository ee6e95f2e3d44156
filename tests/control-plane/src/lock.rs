//! Locks that stay usable after a panic, for `xtask` and the test crates that do not depend on `runtime`.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even after a holder panicked. A test's panic must not hide its reason behind others.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! Locks that stay usable after a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, also after a holder panicked. Each critical section leaves its data consistent, and a worker's panic
/// must not stop the others.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn mutex_is_usable_after_its_holder_panicked() {
        let mutex = Arc::new(Mutex::new(1));
        let held = mutex.clone();
        let panicked = std::thread::spawn(move || {
            let _guard = lock(&held);
            panic!("while holding the lock");
        });
        assert!(panicked.join().is_err());
        assert_eq!(*lock(&mutex), 1);
    }
}

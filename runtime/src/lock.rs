//! Locks that stay usable after a panic.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

/// Locks a mutex, even after a holder panicked. Each critical section leaves its data consistent, and a worker's panic
/// must not stop the others.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Like [`lock`]. Returns `None` if another thread holds the mutex.
pub fn try_lock<T: ?Sized>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Locks for reading, even after a writer panicked, for the reason of [`lock`].
pub fn read<T: ?Sized>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for writing, even after a writer panicked, for the reason of [`lock`].
pub fn write<T: ?Sized>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
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
        assert_eq!(try_lock(&mutex).as_deref(), Some(&1));
        let _held = lock(&mutex);
        assert!(try_lock(&mutex).is_none());
    }

    #[test]
    fn read_write_lock_is_usable_after_its_writer_panicked() {
        let shared = Arc::new(RwLock::new(1));
        let held = shared.clone();
        let panicked = std::thread::spawn(move || {
            let _guard = write(&held);
            panic!("while holding the lock");
        });
        assert!(panicked.join().is_err());
        *write(&shared) += 1;
        assert_eq!(*read(&shared), 2);
    }
}

//! The synchronization types that `protocol` uses. The loom test replaces this module with loom's
//! types.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
pub(crate) use std::sync::{Mutex, PoisonError};

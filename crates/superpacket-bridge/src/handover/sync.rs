//! What `protocol` is made of here; a model checker puts its own in this place.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
pub(crate) use std::sync::{Mutex, PoisonError};

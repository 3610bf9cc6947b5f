//! Steering from outside.

mod hash;
mod order;

//! Tests of steering through its public API.

mod hash;
mod order;

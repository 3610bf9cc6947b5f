//! Experiments without kernel, clock and threads: what a card and the engine do is counted, and
//! every run counts the same.

mod card;
mod stream;

pub(crate) use card::{Counts, receive};
pub(crate) use stream::{Acknowledgements, Segments};

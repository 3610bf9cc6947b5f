//! The model NIC and its input, for experiments without kernel, clock and threads. Every run
//! gives the same counts.

mod card;
mod stream;

pub(crate) use card::{CardCounts, receive};
pub(crate) use stream::{Acknowledgements, Segments};

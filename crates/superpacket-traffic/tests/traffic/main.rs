//! Frames, generated traffic, and the check that is independent of the engine.

mod check;
mod frame;
mod generate;

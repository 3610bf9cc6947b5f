//! Tests of frames, generated traffic, and the independent checker.

mod check;
mod frame;
mod generate;

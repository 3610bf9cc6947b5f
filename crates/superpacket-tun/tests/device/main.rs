//! Tests of readers and writers with a device in memory, whose failures the tests choose.

mod linear;
mod memory;
mod read;
mod write;

//! Copies a capture frame by frame and prints the speed, which is the limit for programs based on
//! this crate.
//!
//! ```text
//! cargo run --release -p superpacket-captures --example copy_capture -- IN OUT
//! ```

use std::process::ExitCode;
use std::time::Instant;

use superpacket_captures::file::{
    CaptureError, OutputFormat, Reader, Sink, Source, Writer, same_file,
};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    let [input, output] = paths.as_slice() else { return Err("usage: copy_capture IN OUT".into()) };
    if same_file(input, output)? {
        return Err("IN and OUT are the same file".into());
    }
    let start = Instant::now();
    let (frames, bytes) = copy(input, output)?;
    let seconds = start.elapsed().as_secs_f64();
    let rate = bytes as f64 / seconds / 1e9;
    eprintln!("{frames} frames, {bytes} bytes in {seconds:.3} s: {rate:.2} GB/s");
    Ok(())
}

fn copy(input: &str, output: &str) -> Result<(u64, u64), CaptureError> {
    let mut reader = Reader::open(input)?;
    let mut writer = Writer::create(output, OutputFormat::for_path(output, reader.format()))?;
    let mut bytes = 0;
    while let Some(frame) = reader.next_frame()? {
        bytes += frame.data.len() as u64;
        writer.copy(&frame)?;
    }
    if let Some(truncated) = reader.truncated() {
        eprintln!("warning: {truncated}");
    }
    Ok((writer.finish()?, bytes))
}

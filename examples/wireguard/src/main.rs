//! A WireGuard endpoint: gotatun's protocol over superpacket's TUN device and sockets.
//!
//! ```text
//! superpacket-wireguard wg0 wg0.conf
//! ip address add 10.0.0.1/24 dev wg0
//! ```

#![forbid(unsafe_code)]

mod config;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use gotatun::device::{DeviceBuilder, DeviceTransports};
use superpacket_gotatun::{Sockets, split};
use superpacket_tun::Tun;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use config::Config;

/// A WireGuard endpoint with offloads: packets of 64 KB to and from the host, runs of datagrams to
/// and from peers.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Name of the TUN device to create.
    interface: String,
    /// File with keys and peers, as for `wg setconf`, and an MTU.
    config: PathBuf,
    /// Number of threads. gotatun encrypts in one task and decrypts in another, so more than two
    /// threads cost more than they gain.
    #[arg(long, default_value = "2")]
    threads: NonZeroUsize,
    /// Merge packets from peers without verifying their checksums. A packet that was damaged before
    /// its peer sealed it may then arrive with a correct checksum.
    #[arg(long)]
    trusted_input: bool,
    /// Use gotatun's own TUN device and socket, without offloads.
    #[cfg(feature = "plain")]
    #[arg(long)]
    plain: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime =
        Builder::new_multi_thread().worker_threads(arguments.threads.get()).enable_all().build();
    match runtime.context("tokio").and_then(|runtime| runtime.block_on(endpoint(arguments))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("superpacket-wireguard: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn endpoint(arguments: Arguments) -> Result<()> {
    let config =
        Config::read(&arguments.config).with_context(|| arguments.config.display().to_string())?;
    let mut builder = DeviceBuilder::new()
        .with_private_key(config.private_key)
        .with_listen_port(config.listen_port)
        .with_peers(config.peers);
    if let Some(mark) = config.mark {
        builder = builder.with_fwmark(mark);
    }
    #[cfg(feature = "plain")]
    if arguments.plain {
        let device = builder.with_default_udp().create_tun(&arguments.interface)?.build().await?;
        return run(device).await;
    }
    let tun = Tun::builder(&arguments.interface).mtu(config.mtu).up(true).open()?;
    tun.switches().set_trusted_input(arguments.trusted_input);
    let (to_host, from_host) = split(tun, |error| eprintln!("TUN device: {error}"))?;
    run(builder.with_udp(Sockets).with_ip_pair(to_host, from_host).build().await?).await
}

/// Runs until a signal, or until the device is gone.
async fn run<T: DeviceTransports>(mut device: gotatun::device::Device<T>) -> Result<()> {
    let (mut interrupt, mut terminate) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        () = device.wait() => {}
    }
    device.stop().await;
    Ok(())
}

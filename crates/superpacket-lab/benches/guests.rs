//! CPU time that a gigabyte costs between two guests behind UNIX sockets, of which one, both or
//! none have offloads; what merging in the bridge saves a guest without TSO and its receiver; and
//! what batches save when they are written to a stream.
//!
//! `cargo bench -p superpacket-lab --bench guests [-- [--rounds N] [--megabytes N]]`: each round
//! measures all pairs in turn. A row has the median cost, and how many times cheaper that is than
//! two guests without offloads: the median of the rounds' ratios, with the least and the greatest.
//! A cost is the CPU time of this process, of which guests, load and bridge are threads. That of
//! sender and receiver leaves out the bridge's threads.

use std::fs;
use std::io::Read;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use superpacket::packet::{Layer, RxChecksum};
use superpacket::virtio::Format;
use superpacket_bridge::Bridge;
use superpacket_bridge::settings::{BridgeSettings, PortSettings};
use superpacket_lab::{
    CpuTime, GuestForm, GuestSocket, Host, LabError, Paired, Route, SocketGuest, Summary, TcpBulk,
    Until,
};
use superpacket_port::features::Feature;
use superpacket_port::{Outgoing, TxBatch, open};

superpacket_lab::enter_user_namespace_before_main!();

/// A guest, and the options of its port.
#[derive(Clone, Copy)]
struct Cable {
    name: &'static str,
    form: GuestForm,
    options: &'static str,
}

const PLAIN: Cable = Cable { name: "none", form: GuestForm::PLAIN, options: "?" };
const HEADER: Cable =
    Cable { name: "header", form: GuestForm::with_header(Format::Buffers), options: "?header=12" };
const STRIPPED: Cable =
    Cable { name: "stripped", form: GuestForm::STRIPPED, options: "?offload=on" };

/// The pairs of a table; the first one is that against which the others are compared.
const PAIRS: [[Cable; 2]; 7] = [
    [PLAIN, PLAIN],
    [HEADER, HEADER],
    [STRIPPED, STRIPPED],
    [HEADER, PLAIN],
    [PLAIN, HEADER],
    [STRIPPED, PLAIN],
    [PLAIN, STRIPPED],
];

fn system(action: &'static str) -> impl Fn(std::io::Error) -> LabError {
    move |error| LabError::system(action, error)
}

/// CPU seconds per gigabyte.
#[derive(Clone, Copy)]
struct Cost {
    /// Of guests, load and bridge together.
    total: f64,
    /// Of the two guests, without the bridge.
    guests: f64,
}

/// Returns the CPU time so far of the bridge's threads, in seconds.
fn bridge_seconds() -> Result<f64, LabError> {
    let tasks = fs::read_dir("/proc/self/task").map_err(system("reading /proc/self/task"))?;
    // Threads that end meanwhile are left out.
    let nanoseconds = tasks.flatten().filter_map(|task| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        let times = fs::read_to_string(task.path().join("schedstat")).ok()?;
        let run: u64 = times.split_ascii_whitespace().next()?.parse().ok()?;
        name.starts_with("superpacket-").then_some(run)
    });
    Ok(nanoseconds.sum::<u64>() as f64 / 1e9)
}

/// Returns what a gigabyte costs from the first guest to the second. `gro` says whether the bridge
/// merges what it receives.
fn cost(kind: &str, cables: [Cable; 2], gro: bool, bytes: u64) -> Result<Cost, LabError> {
    let folder = tempfile::tempdir().map_err(system("a folder"))?;
    let paths = ["a", "b"].map(|name| folder.path().join(name));
    let text =
        |side: usize| format!("unix:{}{}{kind}", paths[side].display(), cables[side].options);
    let ports = [text(0), text(1)]
        .map(|text| {
            let mut port = PortSettings::new(text.parse().expect("a port string"));
            port.features = port.features.set(Feature::GenericReceiveOffload, gro);
            port
        })
        .to_vec();
    let settings = BridgeSettings { ports, ..BridgeSettings::default() };
    let bridge = Bridge::start(settings)
        .map_err(|error| LabError::system(error.to_string(), std::io::Error::other("a bridge")))?;
    let guest = |side: usize| {
        let socket = connect(&paths[side], kind).map_err(system("connecting a guest"))?;
        let host = Host::new(["A", "B"][side])?;
        SocketGuest::start(&host, side as u8 + 1, cables[side].form, socket)
    };
    let (a, b) = (guest(0)?, guest(1)?);
    let start = Instant::now();
    while bridge.ports().iter().any(|port| port.state != "up") {
        assert!(start.elapsed() < Duration::from_secs(10), "the links never are up");
        std::thread::sleep(Duration::from_millis(10));
    }
    let route = Route::ipv4(&a.station, &b.station);
    let load = |bytes| TcpBulk { until: Until::Bytes(bytes), ..TcpBulk::default() }.run(&route);
    load(1 << 20)?;
    let (before, bridge_before) = (CpuTime::of_this_process().total(), bridge_seconds()?);
    load(bytes)?;
    let total = (CpuTime::of_this_process().total() - before).as_secs_f64();
    let guests = total - (bridge_seconds()? - bridge_before);
    let gigabytes = bytes as f64 / 1e9;
    Ok(Cost { total: total / gigabytes, guests: guests / gigabytes })
}

/// Measures what merging saves a guest without TSO that sends to one that takes super-packets.
fn merging(rounds: usize, bytes: u64) -> Result<(), LabError> {
    println!(
        "\n| socket | the bridge's GRO | CPU s/GB, all | times cheaper | sender and receiver | times cheaper |\n|---|---|---|---|---|---|"
    );
    for (name, kind) in [("stream", ""), ("datagram", "&type=datagram")] {
        let mut costs = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for (gro, costs) in [false, true].into_iter().zip(&mut costs) {
                costs.push(cost(kind, [PLAIN, HEADER], gro, bytes)?);
            }
        }
        let columns = [|cost: &Cost| cost.total, |cost: &Cost| cost.guests].map(|column| {
            costs.each_ref().map(|costs| costs.iter().map(column).collect::<Vec<_>>())
        });
        for (index, state) in ["off", "on"].into_iter().enumerate() {
            let cells = columns.each_ref().map(|column| {
                let Paired { ratio, .. } = Paired::new(&column[0], &column[index]);
                let median = Summary::new(&column[index]).median;
                format!(
                    "{median:.2} | {:.2} ({:.2} to {:.2})",
                    ratio.median, ratio.least, ratio.greatest
                )
            });
            println!("| {name} | {state} | {} | {} |", cells[0], cells[1]);
        }
    }
    Ok(())
}

fn connect(path: &Path, kind: &str) -> std::io::Result<GuestSocket> {
    if kind.is_empty() {
        return UnixStream::connect(path).map(GuestSocket::Stream);
    }
    let socket = UnixDatagram::bind(path.with_extension("guest"))?;
    socket.connect(path)?;
    socket.send(b"VFKT")?;
    Ok(GuestSocket::Datagram(socket))
}

/// Returns the CPU nanoseconds per frame of `length` bytes that a port writes to a stream in
/// batches of `batch`, and that a peer reads.
fn write_cost(length: usize, batch: usize) -> Result<f64, LabError> {
    let folder = tempfile::tempdir().map_err(system("a folder"))?;
    let path = folder.path().join("port");
    let mut port =
        open(&format!("unix:{}", path.display()).parse().expect("a port string")).expect("opens");
    let mut receiver = port.receivers().remove(0);
    let mut transmitter = port.transmitter().expect("an end");
    let mut peer = UnixStream::connect(&path).map_err(system("connecting"))?;
    receiver.poll(&mut Vec::new(), 1).expect("nothing arrives");
    let (mut outgoing, mut frames) = (Outgoing::new(), TxBatch::new());
    for _ in 0..batch {
        frames.push_bytes(&mut outgoing, &vec![2; length], RxChecksum::None, None, Layer::Ethernet);
    }
    let total = (1 << 18) / batch * batch;
    let before = CpuTime::of_this_process().total();
    let reader = std::thread::spawn(move || {
        let (mut bytes, mut missing) = (vec![0; 1 << 18], total * (length + 4));
        while missing != 0 {
            missing -= peer.read(&mut bytes).expect("the port writes");
        }
    });
    for _ in 0..total / batch {
        let mut from = 0;
        while from < batch {
            from += transmitter.transmit(&outgoing, &frames, from).sent;
            if from < batch {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }
    while !reader.is_finished() {
        let _ = receiver.poll(&mut Vec::new(), 1);
        std::thread::sleep(Duration::from_micros(100));
    }
    let seconds = (CpuTime::of_this_process().total() - before).as_secs_f64();
    reader.join().expect("all was read");
    Ok(seconds * 1e9 / total as f64)
}

fn main() -> Result<(), LabError> {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let (mut rounds, mut megabytes) = (7, 256);
    while let Some(argument) = arguments.next() {
        let number = arguments.next().and_then(|value| value.parse().ok()).expect("a number");
        match argument.as_str() {
            "--rounds" => rounds = number,
            "--megabytes" => megabytes = number,
            _ => panic!("{argument}: --rounds or --megabytes"),
        }
    }
    println!(
        "| socket | from guest with | to guest with | CPU s/GB | times cheaper than none to none |\n|---|---|---|---|---|"
    );
    for (name, kind) in [("stream", ""), ("datagram", "&type=datagram")] {
        let mut costs = vec![Vec::new(); PAIRS.len()];
        for _ in 0..rounds {
            for (pair, costs) in PAIRS.into_iter().zip(&mut costs) {
                costs.push(cost(kind, pair, true, megabytes as u64 * 1_000_000)?.total);
            }
        }
        for ([from, to], cost) in PAIRS.into_iter().zip(&costs) {
            let Paired { ratio, .. } = Paired::new(&costs[0], cost);
            println!(
                "| {name} | {} | {} | {:.2} | {:.2} ({:.2} to {:.2}) |",
                from.name,
                to.name,
                Summary::new(cost).median,
                ratio.median,
                ratio.least,
                ratio.greatest
            );
        }
    }
    merging(rounds, megabytes as u64 * 1_000_000)?;
    println!(
        "\n| frames written to a stream | CPU ns per frame | times cheaper than one by one |\n|---|---|---|"
    );
    for length in [64, 1514] {
        let mut costs = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for (batch, costs) in [1, 16, 64].into_iter().zip(&mut costs) {
                costs.push(write_cost(length, batch)?);
            }
        }
        for (batch, cost) in [1, 16, 64].into_iter().zip(&costs) {
            let Paired { ratio, .. } = Paired::new(&costs[0], cost);
            println!(
                "| {length} bytes, {batch} at once | {:.0} | {:.2} ({:.2} to {:.2}) |",
                Summary::new(cost).median,
                ratio.median,
                ratio.least,
                ratio.greatest
            );
        }
    }
    Ok(())
}

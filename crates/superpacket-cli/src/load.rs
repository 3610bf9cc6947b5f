//! `superpacket load`: runs the lab's load generator between two network namespaces that exist
//! already.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use superpacket_lab::{
    BulkReport, CpuTime, Direction, Host, LabError, MachineUsage, PatternFile, Pinning, Route,
    Source, TcpBulk, TcpTransactions, UdpBulk, Until, service_demand,
};

use crate::CommandOutcome;
use crate::amount::{nanoseconds, size};
use crate::cpus::CpuList;
use crate::failure::Failure;
use crate::report::{columns, figures, print, printable, show};

/// Seed of the bytes that are sent if all received bytes are to be compared.
const PATTERN_KEY: u64 = 0x5eed;

/// The kind of load, named after netperf's tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LoadKind {
    /// TCP_STREAM: as many bytes as possible, from memory
    Stream,
    /// TCP_SENDFILE: as many bytes as possible, from a file in memory
    Sendfile,
    /// TCP_RR: requests and answers, one at a time on each connection
    Rr,
    /// UDP_STREAM: datagrams from the client to the server
    Udp,
}

/// The direction in which the load is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LoadDirection {
    /// From the client to the server
    Forward,
    /// From the server to the client
    Reverse,
    /// Both at once, on separate connections
    Both,
}

/// The arguments of `superpacket load`.
#[derive(Clone, Debug, Args)]
pub(crate) struct LoadArguments {
    /// Kind of load
    #[arg(value_enum)]
    kind: LoadKind,
    /// An address of the server that the client reaches
    address: IpAddr,
    /// The client's network namespace: a process in it, a name, or a path
    #[arg(long, value_name = "NETNS")]
    client: Option<String>,
    /// The server's network namespace
    #[arg(long, value_name = "NETNS")]
    server: Option<String>,
    /// Duration of the load
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "10s")]
    time: Duration,
    /// Bytes to send on each connection, in place of a time
    #[arg(long, value_name = "BYTES", value_parser = size, conflicts_with = "time")]
    bytes: Option<u64>,
    /// Connections at the same time (in each direction)
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..))]
    connections: u16,
    /// Threads at each end, over which the connections are spread [default: one per CPU that the
    /// end may use, at most one per connection]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Direction of the bytes
    #[arg(long, value_enum, default_value = "forward")]
    direction: LoadDirection,
    /// Bytes per send call [default: 128k], per request and answer [default: 1], or per datagram
    /// [default: 1400]
    #[arg(long, value_name = "BYTES", value_parser = size)]
    message: Option<u64>,
    /// Datagrams per second; without it, as many as the kernel accepts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// Datagrams per send call, handed over as one super-packet (UDP_SEGMENT); with more than 1 the
    /// receiver accepts merged datagrams (UDP_GRO)
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=128))]
    segments: u16,
    /// CPUs of the client's threads (0-3,8)
    #[arg(long, value_name = "LIST", value_parser = CpuList::read)]
    client_cpus: Option<CpuList>,
    /// CPUs of the server's threads
    #[arg(long, value_name = "LIST", value_parser = CpuList::read)]
    server_cpus: Option<CpuList>,
    /// Compare every byte
    #[arg(long)]
    verify: bool,
    /// Print the result as JSON
    #[arg(short, long)]
    json: bool,
}

/// The result of the measurement, as it is printed.
#[derive(Debug, Default, Serialize)]
struct LoadReport {
    /// The name of the measurement in netperf.
    test: &'static str,
    connections: u16,
    /// Numbers of threads: the client's, then the server's.
    #[serde(skip_serializing_if = "Option::is_none")]
    threads: Option<[usize; 2]>,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    gigabits_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transactions_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_us: Option<Latency>,
    #[serde(skip_serializing_if = "Option::is_none")]
    datagrams: Option<Datagrams>,
    /// CPU time of the sending threads (with TCP_RR: the client's), in percent of one CPU.
    sender_cpu: f64,
    /// CPU time of the receiving threads (with TCP_RR: the server's), in percent of one CPU.
    receiver_cpu: f64,
    /// CPU time of the whole machine, in percent of all CPUs.
    machine_cpu: f64,
    /// CPU time of the whole machine in microseconds per 1,024 bytes, or per transaction; netperf
    /// calls this the service demand.
    service_demand_us: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    retransmitted_segments: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Latency {
    mean: f64,
    p50: f64,
    p99: f64,
    longest: f64,
}

#[derive(Debug, Serialize)]
struct Datagrams {
    sent: u64,
    received: u64,
    lost: u64,
    out_of_order: u64,
    most_merged: u64,
}

/// Runs `superpacket load`: generates the load and prints the result.
pub(crate) fn run(arguments: &LoadArguments) -> Result<CommandOutcome, Failure> {
    arguments.check()?;
    match arguments.load() {
        Ok(report) => {
            show(arguments.json, &report, || report.text(columns()))?;
            Ok(CommandOutcome::Done)
        }
        Err(error @ (LabError::Stalled { .. } | LabError::Corrupted { .. })) => {
            print(&format!("superpacket: {}\n", printable(&error.to_string())), true)?;
            Ok(CommandOutcome::Failed)
        }
        Err(error) => Err(Failure::Load(error)),
    }
}

impl LoadArguments {
    /// Returns an error if the options contradict each other, before anything runs.
    fn check(&self) -> Result<(), Failure> {
        let only = |option: &str, kinds: &[LoadKind], given: bool| match given
            && !kinds.contains(&self.kind)
        {
            true => Err(Failure::Usage(format!("{option} is not for {}", kind_name(self.kind)))),
            false => Ok(()),
        };
        only("--bytes", &[LoadKind::Stream, LoadKind::Sendfile], self.bytes.is_some())?;
        only(
            "--direction",
            &[LoadKind::Stream, LoadKind::Sendfile],
            self.direction != LoadDirection::Forward,
        )?;
        only("--threads", &[LoadKind::Rr], self.threads.is_some())?;
        only("--rate", &[LoadKind::Udp], self.rate.is_some())?;
        only("--segments", &[LoadKind::Udp], self.segments != 1)?;
        only(
            "--message",
            &[LoadKind::Stream, LoadKind::Rr, LoadKind::Udp],
            self.message.is_some(),
        )?;
        if let Some(message @ (0 | 0x4000_0001..)) = self.message {
            return Err(Failure::Usage(format!("--message {message}: expected 1 byte to 1 GiB")));
        }
        if self.bytes == Some(0) {
            return Err(Failure::Usage("--bytes 0: expected at least 1".into()));
        }
        Ok(())
    }

    /// Generates the load between the two network namespaces, and returns the result.
    fn load(&self) -> Result<LoadReport, LabError> {
        let (client, server) =
            (host("client", self.client.as_deref())?, host("server", self.server.as_deref())?);
        let route = Route { client: &client, server: &server, address: self.address };
        let numbers = |list: &Option<CpuList>| CpuList::numbers(list.as_ref());
        let pinning =
            Pinning { client: numbers(&self.client_cpus), server: numbers(&self.server_cpus) };
        match self.kind {
            LoadKind::Stream => self.tcp_bulk(&route, Source::Memory, pinning),
            LoadKind::Sendfile => {
                // Like netperf, sends a file of a few megabytes again and again.
                let length = self.bytes.unwrap_or(64 << 20).min(64 << 20);
                let file = PatternFile::new(length, PATTERN_KEY)?;
                self.tcp_bulk(&route, Source::File(file), pinning)
            }
            LoadKind::Rr => self.tcp_transactions(&route, pinning),
            LoadKind::Udp => self.udp_bulk(&route, pinning),
        }
    }

    /// Measures the throughput of TCP like netperf's TCP_STREAM or TCP_SENDFILE.
    fn tcp_bulk(
        &self,
        route: &Route<'_>,
        source: Source,
        pinning: Pinning,
    ) -> Result<LoadReport, LabError> {
        let load = TcpBulk {
            flows: usize::from(self.connections),
            until: self.bytes.map_or(Until::Time(self.time), Until::Bytes),
            direction: match self.direction {
                LoadDirection::Forward => Direction::Forward,
                LoadDirection::Reverse => Direction::Reverse,
                LoadDirection::Both => Direction::Both,
            },
            source,
            message: self.message.unwrap_or(128 << 10) as usize,
            verify: self.pattern_key(),
            pinning,
            ..TcpBulk::default()
        };
        Ok(self.bulk_report(&load.run(route)?))
    }

    /// Measures requests and answers over TCP like netperf's TCP_RR.
    fn tcp_transactions(
        &self,
        route: &Route<'_>,
        pinning: Pinning,
    ) -> Result<LoadReport, LabError> {
        let message = self.message.unwrap_or(1) as usize;
        let load = TcpTransactions {
            connections: usize::from(self.connections),
            request: message,
            answer: message,
            time: self.time,
            verify: self.pattern_key(),
            pinning,
            threads: self.threads.map(usize::from),
            ..TcpTransactions::default()
        };
        let report = load.run(route)?;
        let microseconds = |duration: Duration| duration.as_secs_f64() * 1e6;
        let latency = &report.latency;
        let threads = [report.client_threads.len(), report.server_threads.len()];
        Ok(LoadReport {
            threads: Some(threads),
            transactions_per_second: Some(report.per_second()),
            latency_us: Some(Latency {
                mean: microseconds(latency.mean()),
                p50: microseconds(latency.percentile(0.5)),
                p99: microseconds(latency.percentile(0.99)),
                longest: microseconds(latency.longest()),
            }),
            service_demand_us: quotient(
                report.machine.total.busy() * 1e6,
                report.transactions as f64,
            ),
            ..self.report(
                "TCP_RR",
                report.seconds,
                report.client(),
                report.server(),
                &report.machine,
            )
        })
    }

    /// Measures the throughput of UDP like netperf's UDP_STREAM.
    fn udp_bulk(&self, route: &Route<'_>, pinning: Pinning) -> Result<LoadReport, LabError> {
        let load = UdpBulk {
            flows: usize::from(self.connections),
            datagram: self.message.unwrap_or(1400) as usize,
            time: self.time,
            segments: usize::from(self.segments),
            gro: self.segments > 1,
            datagrams_per_second: self.rate.map(f64::from),
            verify: self.pattern_key(),
            pinning,
            ..UdpBulk::default()
        };
        let report = load.run(route)?;
        let (sent, received, lost) = (report.sent, report.received, report.lost());
        Ok(LoadReport {
            gigabits_per_second: Some(report.gigabits_per_second()),
            datagrams: Some(Datagrams {
                sent,
                received,
                lost,
                out_of_order: report.out_of_order,
                most_merged: report.most_merged,
            }),
            service_demand_us: machine_demand(&report.machine, report.bytes),
            ..self.report(
                "UDP_STREAM",
                report.seconds,
                report.sender,
                report.receiver,
                &report.machine,
            )
        })
    }

    /// Returns the seed for the pattern of bytes to send, or `None` if the received bytes are not
    /// to be compared.
    fn pattern_key(&self) -> Option<u64> {
        self.verify.then_some(PATTERN_KEY)
    }

    /// Returns the result of a measurement like TCP_STREAM or TCP_SENDFILE.
    fn bulk_report(&self, report: &BulkReport) -> LoadReport {
        let directions = || report.forward.iter().chain(&report.reverse);
        let sum = |cpu: fn(&superpacket_lab::DirectionReport) -> CpuTime| {
            directions().map(cpu).fold(CpuTime::default(), |sum, cpu| sum + cpu)
        };
        let seconds = directions().map(|direction| direction.seconds).fold(0.0, f64::max);
        let segments = directions()
            .flat_map(|direction| &direction.flows)
            .map(|flow| u64::from(flow.retransmitted_segments))
            .sum();
        let test = if self.kind == LoadKind::Sendfile { "TCP_SENDFILE" } else { "TCP_STREAM" };
        LoadReport {
            gigabits_per_second: Some(report.gigabits_per_second()),
            service_demand_us: machine_demand(&report.machine, report.bytes()),
            retransmitted_segments: Some(segments),
            ..self.report(
                test,
                seconds,
                sum(|direction| direction.sender),
                sum(|direction| direction.receiver),
                &report.machine,
            )
        }
    }

    /// Returns the fields of the result that all kinds of load have.
    fn report(
        &self,
        test: &'static str,
        seconds: f64,
        sender: CpuTime,
        receiver: CpuTime,
        machine: &MachineUsage,
    ) -> LoadReport {
        let percent = |cpu: CpuTime| 100.0 * quotient(cpu.total().as_secs_f64(), seconds);
        LoadReport {
            test,
            connections: self.connections,
            seconds,
            sender_cpu: percent(sender),
            receiver_cpu: percent(receiver),
            machine_cpu: 100.0 * machine.total.utilisation(),
            ..LoadReport::default()
        }
    }
}

impl LoadReport {
    /// Formats the result like netperf, with figures below their names. The figures are in one
    /// line, or in as many as lines of `width` columns require.
    fn text(&self, width: usize) -> String {
        let mut columns: Vec<(&str, String)> = vec![("s", format!("{:.1}", self.seconds))];
        let mut add =
            |name, value: Option<String>| columns.extend(value.map(|value| (name, value)));
        add("Gb/s", self.gigabits_per_second.map(|rate| format!("{rate:.2}")));
        add("1/s", self.transactions_per_second.map(|rate| format!("{rate:.0}")));
        if let Some(latency) = &self.latency_us {
            let values = [
                ("mean us", latency.mean),
                ("p50 us", latency.p50),
                ("p99 us", latency.p99),
                ("longest us", latency.longest),
            ];
            values.into_iter().for_each(|(name, value)| add(name, Some(format!("{value:.1}"))));
        }
        if let Some(datagrams) = &self.datagrams {
            let values = [
                ("sent", datagrams.sent),
                ("received", datagrams.received),
                ("lost", datagrams.lost),
            ];
            values.into_iter().for_each(|(name, value)| add(name, Some(value.to_string())));
            add("most merged", Some(datagrams.most_merged.to_string()));
        }
        add("sender %", Some(format!("{:.0}", self.sender_cpu)));
        add("receiver %", Some(format!("{:.0}", self.receiver_cpu)));
        add("machine %", Some(format!("{:.0}", self.machine_cpu)));
        let demand =
            if self.transactions_per_second.is_some() { "us/transaction" } else { "us/KB" };
        add(demand, Some(format!("{:.3}", self.service_demand_us)));
        add("sent again", self.retransmitted_segments.map(|segments| segments.to_string()));
        let connections = if self.connections == 1 {
            "1 connection".to_owned()
        } else {
            format!("{} connections", self.connections)
        };
        let threads = match self.threads {
            None => String::new(),
            Some([1, 1]) => ", 1 thread at each end".to_owned(),
            Some([client, server]) if client == server => {
                format!(", {client} threads at each end")
            }
            Some([client, server]) => {
                format!(", threads: client {client}, server {server}")
            }
        };
        format!("{}, {connections}{threads}\n{}", self.test, figures(&columns, width))
    }
}

/// Opens the network namespace that an argument names: by the number of a process in it, by its
/// name, or by its path.
fn host(name: &str, namespace: Option<&str>) -> Result<Host, LabError> {
    let path = match namespace {
        None => return Host::of_this_thread(name),
        Some(path) if path.contains('/') => PathBuf::from(path),
        Some(number) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
            PathBuf::from(format!("/proc/{number}/ns/net"))
        }
        Some(name) => PathBuf::from("/run/netns").join(name),
    };
    Host::of_file(name, &path)
}

/// Returns the CPU time of the whole machine in microseconds per 1,024 bytes sent.
fn machine_demand(machine: &MachineUsage, bytes: u64) -> f64 {
    service_demand(Duration::from_secs_f64(machine.total.busy()), bytes)
}

fn quotient(over: f64, under: f64) -> f64 {
    if under > 0.0 { over / under } else { 0.0 }
}

fn kind_name(kind: LoadKind) -> String {
    kind.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn duration(text: &str) -> Result<Duration, String> {
    match nanoseconds(text)? {
        time @ 10_000_000..=86_400_000_000_000 => Ok(Duration::from_nanos(time)),
        _ => Err("10ms to 24h".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::arguments::{Arguments, Command};

    fn parse(arguments: &str) -> Result<LoadArguments, String> {
        let arguments = Arguments::try_parse_from(
            ["superpacket", "load"].into_iter().chain(arguments.split_ascii_whitespace()),
        );
        match arguments.map_err(|error| error.to_string())?.command {
            Command::Load(load) => load.check().map(|()| *load).map_err(|error| error.to_string()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn contradicting_options_are_named() {
        for (arguments, says) in [
            ("stream", "<ADDRESS>"),
            ("stream nowhere", "invalid"),
            ("fast 10.0.0.1", "stream, sendfile, rr, udp"),
            ("stream 10.0.0.1 --rate 5", "--rate is not for stream"),
            ("rr 10.0.0.1 --bytes 5", "--bytes is not for rr"),
            ("stream 10.0.0.1 --threads 2", "--threads is not for stream"),
            ("udp 10.0.0.1 --threads 2", "--threads is not for udp"),
            ("rr 10.0.0.1 --threads 0", "0"),
            ("udp 10.0.0.1 --direction reverse", "--direction is not for udp"),
            ("sendfile 10.0.0.1 --message 5", "--message is not for sendfile"),
            ("stream 10.0.0.1 --message 0", "--message 0: expected 1 byte"),
            ("stream 10.0.0.1 --bytes 0", "--bytes 0: expected at least 1"),
            ("stream 10.0.0.1 --time 5", "write 50us"),
            ("stream 10.0.0.1 --time 1us", "10ms to 24h"),
            ("stream 10.0.0.1 --time 1s --bytes 5", "cannot be used with"),
            ("stream 10.0.0.1 --client-cpus 3-1", "3-1"),
            (
                "stream 10.0.0.1 --server-cpus 8000",
                "--server-cpus <LIST>': CPU 8000 is not available to this program",
            ),
            ("stream 10.0.0.1 --client-cpus=", "--client-cpus <LIST>': a list of CPUs"),
            ("stream 10.0.0.1 --connections 0", "0"),
        ] {
            let error = parse(arguments).expect_err(arguments);
            assert!(error.contains(says), "{arguments}: {error}");
        }
        assert!(
            parse("udp ::1 --rate 5 --segments 10 --message 100 --time 50ms --verify --json")
                .is_ok()
        );
    }

    #[test]
    fn columns_are_as_wide_as_they_must_be() {
        let report = LoadReport {
            test: "TCP_RR",
            connections: 500,
            seconds: 1.0,
            transactions_per_second: Some(123_456.0),
            latency_us: Some(Latency { mean: 1.0, p50: 2.0, p99: 3.0, longest: 4.0 }),
            service_demand_us: 7.25,
            ..LoadReport::default()
        };
        let expected = "TCP_RR, 500 connections
    s     1/s  mean us  p50 us  p99 us  longest us  sender %  receiver %  machine %  us/transaction
  1.0  123456      1.0     2.0     3.0         4.0         0           0          0           7.250
";
        assert_eq!(report.text(100), expected);
        let narrow = "TCP_RR, 500 connections
    s     1/s  mean us  p50 us  p99 us  longest us  sender %  receiver %
  1.0  123456      1.0     2.0     3.0         4.0         0           0
  machine %  us/transaction
          0           7.250
";
        assert_eq!(report.text(80), narrow);
        for (threads, heading) in [
            ([1, 1], "TCP_RR, 500 connections, 1 thread at each end\n"),
            ([4, 4], "TCP_RR, 500 connections, 4 threads at each end\n"),
            ([4, 2], "TCP_RR, 500 connections, threads: client 4, server 2\n"),
        ] {
            let report = LoadReport {
                test: "TCP_RR",
                connections: 500,
                threads: Some(threads),
                ..LoadReport::default()
            };
            assert!(report.text(80).starts_with(heading), "{}", report.text(80));
        }
    }
}

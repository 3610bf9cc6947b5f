//! An HTTP server for Prometheus, from which it reads the bridge's counters.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use superpacket_bridge::Bridge;
use superpacket_bridge::report::{
    PortCounter, PortReport, PortStats, QueueStats, SteeringReport, WorkerReport,
};

use crate::serve::{Answer, Bounds, Rejection, Server, ServerProtocol};

/// Limits of the metrics server. Prometheus needs one connection for a moment, and its request has
/// a few hundred bytes.
const BOUNDS: Bounds = Bounds {
    connections: 16,
    question: 8192,
    patience: Duration::from_secs(5),
    stall: Duration::from_secs(1),
};

/// A thread that answers `GET /metrics`. It stops when this value is dropped.
#[derive(Debug)]
pub struct MetricsServer {
    _server: Server,
    address: SocketAddr,
}

impl MetricsServer {
    /// Starts a server that answers all clients of the listener with the counters of `bridge`.
    ///
    /// # Errors
    /// The error of the operating system if it cannot provide a thread or a descriptor.
    pub fn start(listener: TcpListener, bridge: Arc<Bridge>) -> io::Result<Self> {
        let read = move || Reports {
            stats: bridge.stats(),
            ports: bridge.ports(),
            steering: bridge.steering(),
        };
        MetricsServer::start_within(listener, BOUNDS, read)
    }

    fn start_within(
        listener: TcpListener,
        bounds: Bounds,
        read: impl Fn() -> Reports + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let mut registry = Registry::default();
        registry.register_collector(Box::new(ReportCollector { read: Box::new(read) }));
        let server =
            Server::start("metrics", listener.into(), bounds, Arc::default(), Http { registry })?;
        Ok(MetricsServer { _server: server, address })
    }

    /// Returns the address and port on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// The part of HTTP/1.1 (RFC 9112) that Prometheus needs: `GET /metrics`, with one answer per
/// connection.
struct Http {
    registry: Registry,
}

impl ServerProtocol for Http {
    fn refusal(&self, _: BorrowedFd<'_>) -> Option<Vec<u8>> {
        None
    }

    fn answer(&mut self, received: &[u8], _: bool) -> Answer {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut request = httparse::Request::new(&mut headers);
        let (consumed, text) = match request.parse(received) {
            Ok(httparse::Status::Partial) => return Answer::Incomplete,
            Ok(httparse::Status::Complete(length)) => {
                (length, self.respond(request.method, request.path))
            }
            Err(error) => (
                received.len().min(BOUNDS.question),
                plain("400 Bad Request", "", &format!("not HTTP: {error}\n")),
            ),
        };
        Answer::Reply { consumed, text, close: true }
    }

    fn rejection(&self, rejection: Rejection) -> Vec<u8> {
        match rejection {
            Rejection::TooManyConnections => plain(
                "503 Service Unavailable",
                "",
                "too many connections: this one was idle longest\n",
            ),
            Rejection::QueueFull => {
                plain("503 Service Unavailable", "", "too many requests wait for their turn\n")
            }
            Rejection::NoThread(error) => plain(
                "503 Service Unavailable",
                "",
                &format!("no thread can be started: {error}\n"),
            ),
            Rejection::Panicked(message) => {
                plain("500 Internal Server Error", "", &format!("the bridge panicked: {message}\n"))
            }
            Rejection::TooLong => {
                plain("431 Request Header Fields Too Large", "", "the request is too long\n")
            }
            Rejection::Late => {
                plain("408 Request Timeout", "", "the request did not come in time\n")
            }
        }
    }
}

impl Http {
    fn respond(&self, method: Option<&str>, target: Option<&str>) -> Vec<u8> {
        let path = target.map(|target| target.split_once('?').map_or(target, |(path, _)| path));
        match (method, path) {
            (Some("GET"), Some("/metrics")) => {
                let mut text = String::new();
                match encode(&mut text, &self.registry) {
                    Ok(()) => response(
                        "200 OK",
                        "application/openmetrics-text; version=1.0.0; charset=utf-8",
                        "",
                        &text,
                    ),
                    Err(error) => plain("500 Internal Server Error", "", &format!("{error}\n")),
                }
            }
            (Some("GET"), _) => plain("404 Not Found", "", "there is only /metrics\n"),
            _ => plain("405 Method Not Allowed", "Allow: GET\r\n", "there is only GET\n"),
        }
    }
}

fn plain(status: &str, headers: &str, body: &str) -> Vec<u8> {
    response(status, "text/plain; charset=utf-8", headers, body)
}

fn response(status: &str, kind: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{headers}Connection: close\r\n\r\n{body}")
        .into_bytes()
}

/// The reports of a bridge from which the metrics are made.
struct Reports {
    stats: Vec<PortStats>,
    ports: Vec<PortReport>,
    steering: SteeringReport,
}

/// A collector that reads the bridge's reports whenever Prometheus requests the metrics.
struct ReportCollector {
    read: Box<dyn Fn() -> Reports + Send + Sync>,
}

impl fmt::Debug for ReportCollector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ReportCollector")
    }
}

/// The description of a queue's counter: name without `_total`, help text, unit, a function that
/// returns the port's queues, and one that reads the value for a queue.
type QueueCounter = (
    &'static str,
    &'static str,
    Option<Unit>,
    fn(&PortStats) -> &[QueueStats],
    fn(&QueueStats) -> Option<u64>,
);

const QUEUE_COUNTERS: [QueueCounter; 5] = [
    (
        "rx_queue_packets",
        "Packets received by a queue",
        None,
        |port| &port.rx_queues,
        |queue| Some(queue.packets),
    ),
    (
        "rx_queue",
        "Bytes received by a queue",
        Some(Unit::Bytes),
        |port| &port.rx_queues,
        |queue| Some(queue.bytes),
    ),
    (
        "rx_queue_drops",
        "Packets for which a receive queue had no room",
        None,
        |port| &port.rx_queues,
        |queue| queue.drops,
    ),
    (
        "tx_queue_packets",
        "Packets given to the port by a transmit queue",
        None,
        |port| &port.tx_queues,
        |queue| Some(queue.packets),
    ),
    (
        "tx_queue",
        "Bytes given to the port by a transmit queue",
        Some(Unit::Bytes),
        |port| &port.tx_queues,
        |queue| Some(queue.bytes),
    ),
];

/// The description of a worker's counter: name without `_total`, help text, and a function that
/// reads the value.
type WorkerCounter = (&'static str, &'static str, fn(&WorkerReport) -> u64);

const WORKER_COUNTERS: [WorkerCounter; 4] = [
    (
        "processed",
        "Packets processed by the workers of a CPU, a super-packet counted once",
        |worker| worker.processed,
    ),
    ("turns", "Turns that backlogs had, each of dev_weight packets at most", |worker| worker.turns),
    ("wake_ups", "Times that the workers of a CPU were woken for packets", |worker| {
        worker.wake_ups
    }),
    ("panics", "Panics of the workers of a CPU, caught", |worker| worker.panics),
];

impl Collector for ReportCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Reports { stats, ports, steering } = (self.read)();
        for PortCounter { name, help, read } in PortStats::COUNTERS {
            // The encoder appends the unit to the name.
            let (name, unit) = match name.strip_suffix("_bytes") {
                Some(name) => (name, Some(Unit::Bytes)),
                None => (*name, None),
            };
            let name = format!("superpacket_port_{name}");
            let mut family =
                encoder.encode_descriptor(&name, help, unit.as_ref(), MetricType::Counter)?;
            for port in &stats {
                ConstCounter::new(read(port))
                    .encode(family.encode_family(&[("port", port.port.as_str())])?)?;
            }
        }
        let mut family = encoder.encode_descriptor(
            "superpacket_port_drops",
            "Received packets that were dropped",
            None,
            MetricType::Counter,
        )?;
        for port in &stats {
            for (cause, count) in &port.drops {
                let labels = [("port", port.port.as_str()), ("cause", cause.as_str())];
                ConstCounter::new(*count).encode(family.encode_family(&labels)?)?;
            }
        }
        for (name, help, unit, queues, read) in QUEUE_COUNTERS {
            let name = format!("superpacket_port_{name}");
            let mut family =
                encoder.encode_descriptor(&name, help, unit.as_ref(), MetricType::Counter)?;
            for port in &stats {
                for queue in queues(port) {
                    let Some(count) = read(queue) else { continue };
                    let number = queue.queue.to_string();
                    let labels = [("port", port.port.as_str()), ("queue", number.as_str())];
                    ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        let help = "Packets that left aggregation, by the reason for which they left as they did";
        let mut family = encoder.encode_descriptor(
            "superpacket_port_reasons",
            help,
            None,
            MetricType::Counter,
        )?;
        for port in &stats {
            for (reason, count) in &port.reasons {
                let labels = [("port", port.port.as_str()), ("reason", reason.as_str())];
                ConstCounter::new(*count).encode(family.encode_family(&labels)?)?;
            }
        }
        let mut family = encoder.encode_descriptor(
            "superpacket_port_up",
            "1 if packets can pass the port",
            None,
            MetricType::Gauge,
        )?;
        for port in &ports {
            ConstGauge::new(i64::from(port.state == "up"))
                .encode(family.encode_family(&[("port", port.port.as_str())])?)?;
        }
        let mut family = encoder.encode_descriptor(
            "superpacket_port_reopened",
            "Times that the port was opened again",
            None,
            MetricType::Counter,
        )?;
        for port in &ports {
            ConstCounter::new(port.reopened)
                .encode(family.encode_family(&[("port", port.port.as_str())])?)?;
        }
        for (name, help, read) in WORKER_COUNTERS {
            let name = format!("superpacket_worker_{name}");
            let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
            for worker in &steering.workers {
                ConstCounter::new(read(worker))
                    .encode(family.encode_family(&[("cpu", worker.cpu.to_string().as_str())])?)?;
            }
        }
        let panics = "Panics of the threads that receive, caught";
        let metric = encoder.encode_descriptor(
            "superpacket_receive_panics",
            panics,
            None,
            MetricType::Counter,
        )?;
        ConstCounter::new(steering.receive_panics).encode(metric)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Instant;

    use super::*;

    fn serve(bounds: Bounds) -> MetricsServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        MetricsServer::start_within(listener, bounds, reports).expect("starts")
    }

    /// Returns reports of two ports and a worker, with different values of the counters.
    fn reports() -> Reports {
        let queue =
            |queue, packets, bytes, drops| vec![QueueStats { queue, packets, bytes, drops }];
        let stats = |port: &str| PortStats {
            port: port.into(),
            rx_packets: 7,
            rx_bytes: 8000,
            merged: 9,
            lro_no_desc: 3,
            tx_full: 12,
            tx_refused: 13,
            drops: [("too_long".into(), 5), ("table \"full\"".into(), 6)].into(),
            reasons: [("sequence".into(), 4)].into(),
            rx_queues: queue(0, 7, 8000, Some(2)),
            tx_queues: queue(3, 1, 60, None),
            ..PortStats::default()
        };
        let port = |port: &str| PortReport {
            port: port.into(),
            string: port.into(),
            state: "up".into(),
            error: None,
            mtu: 1500,
            hardware_address: None,
            queues: 1,
            reopened: 2,
            addresses: 3,
            settings: Default::default(),
        };
        let worker = WorkerReport {
            cpu: 1,
            state: "running".into(),
            processed: 11,
            turns: 12,
            wake_ups: 13,
            panics: 14,
        };
        let steering = SteeringReport {
            settings: Default::default(),
            possible_cpus: 4,
            usable_cpus: "0-3".into(),
            workers: vec![worker],
            receive_panics: 15,
        };
        let names = ["packet:a", "tap:b"];
        Reports { stats: names.map(stats).into(), ports: names.map(port).into(), steering }
    }

    fn ask(server: &MetricsServer, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(server.address()).expect("connects");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("bounded");
        // The write fails if the server closes the connection first.
        let _ = stream.write_all(request);
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text);
        String::from_utf8(text).expect("UTF-8")
    }

    #[test]
    fn counters_have_the_names_and_labels_of_the_documentation() {
        let server = serve(BOUNDS);
        let answer = ask(&server, b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
        let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(
            head.contains("Content-Type: application/openmetrics-text; version=1.0.0"),
            "{head}"
        );
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
        for line in [
            "# TYPE superpacket_port_rx_packets counter",
            "superpacket_port_rx_packets_total{port=\"packet:a\"} 7",
            "superpacket_port_rx_bytes_total{port=\"tap:b\"} 8000",
            "superpacket_port_merged_total{port=\"packet:a\"} 9",
            "superpacket_port_drops_total{port=\"packet:a\",cause=\"too_long\"} 5",
            "superpacket_port_drops_total{port=\"packet:a\",cause=\"table \\\"full\\\"\"} 6",
            "superpacket_port_lro_no_desc_total{port=\"packet:a\"} 3",
            "superpacket_port_tx_full_total{port=\"packet:a\"} 12",
            "superpacket_port_tx_refused_total{port=\"tap:b\"} 13",
            "superpacket_port_reasons_total{port=\"tap:b\",reason=\"sequence\"} 4",
            "superpacket_port_rx_queue_packets_total{port=\"packet:a\",queue=\"0\"} 7",
            "superpacket_port_rx_queue_bytes_total{port=\"packet:a\",queue=\"0\"} 8000",
            "superpacket_port_rx_queue_drops_total{port=\"tap:b\",queue=\"0\"} 2",
            "superpacket_port_tx_queue_packets_total{port=\"tap:b\",queue=\"3\"} 1",
            "superpacket_port_tx_queue_bytes_total{port=\"tap:b\",queue=\"3\"} 60",
            "superpacket_port_up{port=\"packet:a\"} 1",
            "superpacket_port_reopened_total{port=\"packet:a\"} 2",
            "superpacket_port_flow_moves_total{port=\"packet:a\"} 0",
            "superpacket_worker_processed_total{cpu=\"1\"} 11",
            "superpacket_worker_panics_total{cpu=\"1\"} 14",
            "superpacket_receive_panics_total 15",
        ] {
            assert!(body.lines().any(|known| known == line), "{line}\n{body}");
        }
        assert!(body.ends_with("# EOF\n"));
    }

    #[test]
    fn a_panic_is_an_answer_too_and_others_are_served() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let server =
            MetricsServer::start_within(listener, BOUNDS, || panic!("on purpose")).expect("starts");
        let answer = ask(&server, b"GET /metrics HTTP/1.1\r\n\r\n");
        assert!(
            answer.starts_with("HTTP/1.1 500 ")
                && answer.contains("the bridge panicked: on purpose"),
            "{answer}"
        );
        assert!(ask(&server, b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    }

    #[test]
    fn anything_else_is_refused_in_http() {
        let server = serve(BOUNDS);
        for (request, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
            (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", "200"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"\x16\x03\x01\x02\x00\x01\x00", "400"),
            (&[&b"GET /metrics HTTP/1.1\r\nX: "[..], &[b'x'; 100_000]].concat(), "431"),
        ] {
            let answer = ask(&server, request);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {answer}");
        }
    }

    #[test]
    fn who_does_not_finish_a_request_is_cut_off() {
        let server = serve(Bounds { patience: Duration::from_millis(200), ..BOUNDS });
        assert!(ask(&server, b"GET /metrics HTTP/1.1\r\n").starts_with("HTTP/1.1 408 "));
    }

    #[test]
    fn clients_that_say_nothing_lock_nobody_out() {
        let server = serve(BOUNDS);
        let silent: Vec<TcpStream> =
            (0..100).map(|_| TcpStream::connect(server.address()).expect("connects")).collect();
        let started = Instant::now();
        assert!(ask(&server, b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
        drop(silent);
    }

    #[test]
    fn clients_that_send_a_byte_now_and_then_lock_nobody_out() {
        let server = serve(BOUNDS);
        let mut slow: Vec<TcpStream> = (0..BOUNDS.connections)
            .map(|_| TcpStream::connect(server.address()).expect("connects"))
            .collect();
        for byte in *b"GET /met" {
            for stream in &mut slow {
                // The write fails on connections that the server has closed.
                let _ = stream.write_all(&[byte]);
            }
            let started = Instant::now();
            assert!(ask(&server, b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
            assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
        }
    }
}

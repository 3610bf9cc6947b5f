//! Hosts joined by a bridge, of which each may or may not have its super-packets cut by its own
//! kernel, and each port by the engine, the kernel or nobody.

use std::ops::Deref;
use std::thread;
use std::time::Duration;

use superpacket_bridge::Bridge;
use superpacket_bridge::settings::{BridgeSettings, PortSettings};
use superpacket_port::features::{Feature, FeatureSet};

use crate::cpu::pin_this_thread;
use crate::error::{Context, LabError};
use crate::experiment::Cpus;
use crate::experiment::spent::{Clocks, Load, Spent};
use crate::host::Host;
use crate::link::{Link, SizeLimits};
use crate::load::{Pinning, Route, TcpBulk, TcpTransactions, UdpBulk, Until};
use crate::topology::Station;

use super::refused;

/// What a port of the bridge is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A packet socket on one end of a veth pair, whose other end is the host's.
    Packet,
    /// A TAP device, which is the host's.
    Tap,
}

/// A host and the port that it hangs on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) kind: Kind,
    /// The host's device takes the super-packets of its stack; else the stack cuts them before.
    pub(crate) host_tso: bool,
    /// `gso_max_size` of the host's device in bytes, where it is to differ.
    pub(crate) gso_max_size: Option<u32>,
    /// Of packet sockets: the device that they send through takes super-packets; else the kernel
    /// cuts them right before it.
    pub(crate) device_tso: bool,
    /// The offloads that the port is asked.
    pub(crate) features: FeatureSet,
    /// Super-packets with PSH, as the host's kernel hands over, merge further in the bridge.
    pub(crate) gro_past_push: bool,
}

impl Place {
    /// A host and a port that have every offload but aggregation: it would join again what was cut,
    /// and its gain is another experiment's.
    pub(crate) fn new(kind: Kind) -> Self {
        let features = PortSettings::new(port_string("memory:any"))
            .features
            .without(Feature::GenericReceiveOffload);
        Self {
            kind,
            host_tso: true,
            gso_max_size: None,
            device_tso: true,
            features,
            gro_past_push: false,
        }
    }

    /// The host's stack cuts its super-packets itself.
    pub(crate) fn cut_by_its_host(self) -> Self {
        Self { host_tso: false, ..self }
    }

    /// What leaves by this port is cut by the kernel, right before the device.
    pub(crate) fn cut_by_the_kernel(self) -> Self {
        Self { device_tso: false, ..self }
    }

    /// What leaves by this port is cut by the engine.
    pub(crate) fn cut_by_the_engine(self) -> Self {
        let features = self
            .features
            .without(Feature::TcpSegmentationOffload)
            .without(Feature::TxUdpSegmentation);
        Self { device_tso: false, features, ..self }
    }

    /// The port takes frames in one piece only.
    pub(crate) fn linear(self) -> Self {
        Self { features: self.features.without(Feature::ScatterGather), ..self }
    }
}

/// Hosts and the bridge between them. All goes with it.
#[derive(Debug)]
pub(crate) struct Bridged {
    /// The hosts, in the order of their places.
    pub(crate) stations: Vec<Station>,
    /// The bridge's side of each veth pair; `None` for a TAP device.
    pub(crate) sides: Vec<Option<Link>>,
    _bridge: Bridge,
    pinning: Pinning,
}

impl Bridged {
    /// Makes the hosts and starts the bridge; it and loads run on these CPUs.
    ///
    /// # Errors
    /// [`LabError::Forbidden`] where namespaces are refused; what the kernel or the bridge refuses.
    pub(crate) fn new(places: &[Place], cpus: &Cpus) -> Result<Self, LabError> {
        let middle = Host::new("M")?;
        let mut ports = Vec::new();
        let mut ends = Vec::new();
        for (number, place) in (1u8..).zip(places) {
            let host = Host::new(&format!("H{number}"))?;
            let text = match place.kind {
                Kind::Packet => {
                    let (link, side) =
                        Link::veth(&host, "eth0", &middle, &format!("port-{number}"))?;
                    side.set_features(&[
                        ("tcp-segmentation-offload", place.device_tso),
                        ("tx-udp-segmentation", place.device_tso),
                    ])?;
                    let text = format!("packet:{}", side.name());
                    ends.push(Err((link, side)));
                    text
                }
                Kind::Tap => {
                    ends.push(Ok(host));
                    format!("tap:tap-{number}")
                }
            };
            let mut port = PortSettings::new(text.parse().map_err(|error| refused(&text, &error))?);
            (port.features, port.gro_past_push) = (place.features, place.gro_past_push);
            ports.push(port);
        }
        let settings = BridgeSettings { ports, ..BridgeSettings::default() };
        let bridge = middle.run(|| {
            // Threads run where the thread that starts them may run.
            pin_this_thread(&cpus.bridge)?;
            Bridge::start(settings).map_err(|error| refused("the bridge", &error))
        })?;
        let (mut stations, mut sides) = (Vec::new(), Vec::new());
        for ((number, place), end) in (1u8..).zip(places).zip(ends) {
            let (link, side) = match end {
                Err((link, side)) => (link, Some(side)),
                Ok(host) => {
                    let link = middle.link(&format!("tap-{number}")).move_to(&host)?;
                    link.up()?;
                    (link, None)
                }
            };
            link.set_features(&[
                ("tcp-segmentation-offload", place.host_tso),
                ("tx-udp-segmentation", place.host_tso),
            ])?;
            if let Some(size) = place.gso_max_size {
                link.set_size_limits(SizeLimits {
                    gso_max_size: Some(size),
                    gso_ipv4_max_size: Some(size),
                    ..SizeLimits::default()
                })?;
            }
            stations.push(Station::new(link, number)?);
            sides.push(side);
        }
        Ok(Self { stations, sides, _bridge: bridge, pinning: cpus.pinning() })
    }

    /// From one host to another.
    pub(crate) fn route(&self, from: usize, to: usize, ip: Ip) -> Route<'_> {
        let (from, to) = (&self.stations[from], &self.stations[to]);
        match ip {
            Ip::V4 => Route::ipv4(from, to),
            Ip::V6 => Route::ipv6(from, to),
        }
    }

    /// Has addresses resolved and learned and buffers grown, before anything is timed.
    ///
    /// # Errors
    /// As [`TcpTransactions::run`].
    pub(crate) fn greet(&self, route: &Route<'_>) -> Result<(), LabError> {
        TcpTransactions { time: Duration::from_millis(5), ..TcpTransactions::default() }
            .run(route)?;
        TcpBulk { until: Until::Time(Duration::from_millis(20)), ..TcpBulk::default() }
            .run(route)
            .map(drop)
    }

    /// Runs a bulk load.
    ///
    /// # Errors
    /// As [`TcpBulk::run`].
    pub(crate) fn tcp(&self, load: &TcpBulk, route: &Route<'_>) -> Result<Carried, LabError> {
        let (load, before) =
            (TcpBulk { pinning: self.pinning.clone(), ..load.clone() }, Clocks::now()?);
        Carried::new(&(&load.run(route)?).into(), &before)
    }

    /// Runs a load of datagrams. What was lost is not carried.
    ///
    /// # Errors
    /// As [`UdpBulk::run`].
    pub(crate) fn udp(&self, load: &UdpBulk, route: &Route<'_>) -> Result<Carried, LabError> {
        let (load, before) =
            (UdpBulk { pinning: self.pinning.clone(), ..load.clone() }, Clocks::now()?);
        Carried::new(&(&load.run(route)?).into(), &before)
    }
}

/// Several arrangements, made and taken down all at once: for each socket that goes, the kernel
/// waits until no CPU looks at it any more, and may wait for all together.
#[derive(Debug)]
pub(crate) struct Several(Vec<Bridged>);

/// Makes arrangements all at once; each as it came out, in this order.
pub(crate) fn arrange(arrangements: &[Vec<Place>], cpus: &Cpus) -> Vec<Result<Bridged, LabError>> {
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for places in arrangements {
            let thread = thread::Builder::new()
                .name("lab:arrange".into())
                .spawn_scoped(scope, || Bridged::new(places, cpus));
            threads.push(thread.context(|| "starting a thread".into()));
        }
        let join = |thread: thread::ScopedJoinHandle<'_, Result<Bridged, LabError>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(|thread| thread.and_then(join)).collect()
    })
}

impl Several {
    /// Makes them, in this order.
    ///
    /// # Errors
    /// As [`Bridged::new`].
    pub(crate) fn new(arrangements: &[Vec<Place>], cpus: &Cpus) -> Result<Self, LabError> {
        // What was made is taken down together, also where one could not be.
        let (mut several, mut failed) = (Self::none(), None);
        for made in arrange(arrangements, cpus) {
            match made {
                Ok(bridged) => several.push(bridged),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(several), Err)
    }

    /// None as yet.
    pub(crate) const fn none() -> Self {
        Self(Vec::new())
    }

    /// Adds one that was made.
    pub(crate) fn push(&mut self, bridged: Bridged) {
        self.0.push(bridged);
    }
}

impl Deref for Several {
    type Target = [Bridged];

    fn deref(&self) -> &[Bridged] {
        &self.0
    }
}

impl Drop for Several {
    fn drop(&mut self) {
        thread::scope(|scope| {
            for bridged in self.0.drain(..) {
                // Where no thread can be started, it is taken down here.
                let _ = thread::Builder::new().spawn_scoped(scope, move || drop(bridged));
            }
        });
    }
}

/// A version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ip {
    V4,
    V6,
}

/// What a load carried, and what it cost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Carried {
    /// 10^6 bytes of payload a second, as received.
    pub(crate) megabytes: f64,
    /// CPU time.
    pub(crate) spent: Spent,
}

impl Carried {
    fn new(load: &Load, before: &Clocks) -> Result<Self, LabError> {
        let megabytes =
            if load.seconds > 0.0 { load.bytes as f64 / load.seconds / 1e6 } else { 0.0 };
        Ok(Self { megabytes, spent: before.spent(load)? })
    }

    /// 10^6 bits of payload a second.
    pub(crate) fn megabits(&self) -> f64 {
        self.megabytes * 8.0
    }
}

fn port_string(text: &str) -> superpacket_port::PortSpec {
    text.parse().expect("a port string of the lab's own is well formed")
}

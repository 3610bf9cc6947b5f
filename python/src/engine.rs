//! The engine for people who experiment: packets in, super-packets out.

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList};
use superpacket::aggregate::{Aggregator as Engine, HashKey, MAX_BIG_LENGTH, Mode, Policy, Reason};
use superpacket::packet::{Layer, RxPacket};
use superpacket::segment::{
    ChecksumOutput, Gso, GsoKind, GsoPacket, SegmentError as CutError, SegmentOptions, SegmentSize,
    Segmenter as Cutter,
};
use superpacket::super_packet::{Metadata, SuperPacket as Emitted};
use superpacket::wire::{IpVersion, MAX_HEADER, Protocol, parse};
use superpacket_captures::{MAX_FLOWS, MAX_PACKETS};

use crate::errors::{OptionsError, SegmentError};

/// A constant key, so that the same packets give the same super-packets.
const KEY: HashKey = HashKey::new(0x7375_7065_7270_6163_6b65_7400_7079_7468);

/// Returns the member of the package's enum of reasons.
fn reason<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    static REASON: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    REASON.import(py, "superpacket._reasons", "Reason")?.call1((name,))
}

/// Returns the names of the engine's reasons, for the test that compares them with the enum.
#[pyfunction]
pub(crate) fn engine_reasons() -> Vec<&'static str> {
    Reason::ALL.iter().map(|reason| reason.name()).collect()
}

/// Returns the names of the errors for which a packet cannot be cut, for the same test.
#[pyfunction]
pub(crate) fn segment_errors() -> Vec<&'static str> {
    CutError::NAMES.to_vec()
}

/// A packet that left the aggregator, merged or single.
#[pyclass(frozen, module = "superpacket")]
pub(crate) struct SuperPacket {
    data: Py<PyBytes>,
    metadata: Metadata,
}

#[pymethods]
impl SuperPacket {
    /// Its bytes.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        self.data.bind(py).clone()
    }

    /// How many received packets it stands for.
    #[getter]
    fn packets(&self) -> u32 {
        self.metadata.packets
    }

    /// Why it left as it is.
    #[getter]
    fn reason<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        reason(py, self.metadata.reason.name())
    }

    /// Bytes of payload in each of its segments but the last; None if it merged with no other, or
    /// cannot be cut again.
    #[getter]
    fn segment_size(&self) -> Option<usize> {
        self.metadata.gso.map(|gso| gso.size.get())
    }

    /// Pure ACKs that it absorbed.
    #[getter]
    fn absorbed_acks(&self) -> u32 {
        self.metadata.absorbed_acks
    }

    /// Time of arrival of its last packet, in nanoseconds.
    #[getter]
    fn time(&self) -> u64 {
        self.metadata.time
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        self.data(py)
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        self.data.bind(py).as_bytes().len()
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!(
            "<SuperPacket of {}: {} bytes, {}>",
            self.metadata.packets,
            self.__len__(py),
            self.metadata.reason.name()
        )
    }
}

/// Merges packets as GRO or LRO does: packets in, super-packets out.
#[pyclass(module = "superpacket")]
pub(crate) struct Aggregator {
    engine: Engine<Box<[u8]>>,
    layer: Layer,
    left: Vec<(Vec<u8>, Metadata)>,
}

/// The layer that packets begin at.
fn layer(name: &str) -> PyResult<Layer> {
    match name {
        "ethernet" => Ok(Layer::Ethernet),
        "ip" => Ok(Layer::Ip),
        other => Err(OptionsError::new_err(format!(
            "layer: {other:?} is neither \"ethernet\" nor \"ip\""
        ))),
    }
}

/// Refuses an option as the commands do.
fn within(name: &str, value: u32, least: u32, most: u32) -> PyResult<()> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(OptionsError::new_err(format!("{name}: {value} is not between {least} and {most}")))
}

impl Aggregator {
    /// Steps the engine; gives what left.
    fn step<'py>(
        &mut self,
        py: Python<'py>,
        step: impl FnOnce(&mut Engine<Box<[u8]>>, &mut dyn FnMut(Emitted<'_, Box<[u8]>>)),
    ) -> PyResult<Bound<'py, PyList>> {
        let left = &mut self.left;
        step(&mut self.engine, &mut |packet| {
            let mut data = Vec::with_capacity(packet.length());
            packet.copy_to(&mut data);
            left.push((data, packet.metadata));
        });
        let packets = PyList::empty(py);
        for (data, metadata) in self.left.drain(..) {
            packets.append(SuperPacket { data: PyBytes::new(py, &data).unbind(), metadata })?;
        }
        Ok(packets)
    }
}

#[pymethods]
impl Aggregator {
    /// Holds nothing yet.
    #[new]
    #[pyo3(signature = (*, mode="gro", udp=true, acks=false, max_bytes=65_535, max_packets=None, max_flows=None, layer="ethernet"))]
    fn new(
        mode: &str,
        udp: bool,
        acks: bool,
        max_bytes: u32,
        max_packets: Option<u32>,
        max_flows: Option<u32>,
        layer: &str,
    ) -> PyResult<Aggregator> {
        let base = match mode {
            "gro" if acks => {
                return Err(OptionsError::new_err(
                    "acks: needs mode=\"lro\", since pure ACKs merge for local delivery only",
                ));
            }
            "gro" => Policy::gro().with_mode(Mode::Gro { udp }),
            "lro" if acks => Policy::lro_with_acks(),
            "lro" => Policy::lro(),
            other => {
                return Err(OptionsError::new_err(format!(
                    "mode: {other:?} is neither \"gro\" nor \"lro\""
                )));
            }
        };
        within("max_bytes", max_bytes, 68, MAX_BIG_LENGTH)?;
        if let Some(packets) = max_packets {
            within("max_packets", packets, 1, MAX_PACKETS)?;
        }
        if let Some(flows) = max_flows {
            within("max_flows", flows, 1, MAX_FLOWS)?;
        }
        let policy = base
            .with_max_bytes(max_bytes)
            .with_max_packets(max_packets.unwrap_or(base.max_packets))
            .with_max_flows(max_flows.unwrap_or(base.max_flows));
        Ok(Aggregator {
            engine: Engine::new(policy, KEY),
            layer: self::layer(layer)?,
            left: Vec::new(),
        })
    }

    /// Takes a packet that arrived at a time in nanoseconds; gives what leaves because of it.
    #[pyo3(signature = (packet, time=0))]
    fn receive<'py>(
        &mut self,
        py: Python<'py>,
        packet: &[u8],
        time: u64,
    ) -> PyResult<Bound<'py, PyList>> {
        let mut received = RxPacket::new(Box::from(packet)).with_time(time);
        received.layer = self.layer;
        self.step(py, |engine, sink| engine.receive(received, time, sink))
    }

    /// Ends a poll, as a driver does: everything held leaves.
    fn poll_end<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.step(py, |engine, sink| engine.poll_end(0, sink))
    }

    /// Lets everything leave because the caller asks for it.
    fn flush<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.step(py, |engine, sink| engine.flush_all(sink))
    }

    /// Packets held at this moment, a merged one counted once.
    #[getter]
    fn held(&self) -> u64 {
        self.engine.counters().held
    }

    /// What was counted so far, by name.
    #[getter]
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counters = self.engine.counters();
        let dict = PyDict::new(py);
        for (name, value) in [
            ("packets_in", counters.packets_in),
            ("packets_out", counters.packets_out),
            ("bytes_in", counters.bytes_in),
            ("bytes_out", counters.bytes_out),
            ("super_packets", counters.super_packets),
            ("merged", counters.merged),
            ("absorbed_acks", counters.absorbed_acks),
            ("held", counters.held),
            ("held_bytes", counters.held_bytes),
        ] {
            dict.set_item(name, value)?;
        }
        Ok(dict)
    }

    /// How many packets left for each reason; adds up to the packets out.
    #[getter]
    fn reasons<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (why, count) in self.engine.counters().reasons().filter(|&(_, count)| count > 0) {
            dict.set_item(reason(py, why.name())?, count)?;
        }
        Ok(dict)
    }
}

/// Cuts super-packets into the packets that a wire would have carried.
#[pyclass(module = "superpacket")]
pub(crate) struct Segmenter {
    engine: Cutter,
    layer: Layer,
}

fn refused(py: Python<'_>, error: &CutError) -> PyErr {
    let exception = SegmentError::new_err(error.to_string());
    match exception.value(py).setattr(intern!(py, "name"), error.name()) {
        Ok(()) => exception,
        Err(other) => other,
    }
}

impl Segmenter {
    fn cut<'py>(
        &mut self,
        py: Python<'py>,
        packet: &GsoPacket<'_, &[u8]>,
        checksum: ChecksumOutput,
    ) -> PyResult<Bound<'py, PyList>> {
        let options = SegmentOptions::default().with_checksum(checksum);
        let mut segments = Vec::new();
        let plan = self.engine.segment(packet, &options, |segment| {
            let mut bytes = Vec::with_capacity(segment.length());
            segment.copy_to(&mut bytes);
            segments.push(bytes);
        });
        plan.map_err(|error| refused(py, &error))?;
        PyList::new(py, segments.iter().map(|segment| PyBytes::new(py, segment)))
    }

    /// How to cut a packet of bytes: by its headers, into segments of so many bytes of payload or
    /// so that they fit an MTU.
    fn gso(
        &self,
        py: Python<'_>,
        packet: &[u8],
        size: Option<usize>,
        mtu: Option<usize>,
    ) -> PyResult<Gso> {
        let header = packet.get(..MAX_HEADER).unwrap_or(packet);
        let layout = parse(header, packet.len(), self.layer).map_err(|unparsed| {
            SegmentError::new_err(format!("headers: {}", unparsed.reason.name()))
        })?;
        let kind = match (layout.protocol, layout.version) {
            (Protocol::Tcp, IpVersion::V4) => GsoKind::Tcp4,
            (Protocol::Tcp, IpVersion::V6) => GsoKind::Tcp6,
            (Protocol::Udp, _) => GsoKind::Udp,
            (Protocol::Dccp, _) => GsoKind::Dccp,
        };
        let size = match (size, mtu) {
            (Some(size), None) => SegmentSize::new(size).ok_or_else(|| {
                OptionsError::new_err(format!("size: {size} is not between 1 and 65535"))
            })?,
            (None, Some(mtu)) => SegmentSize::for_mtu(&layout, kind, mtu).ok_or_else(|| {
                let needed = usize::from(layout.payload) + 1;
                refused(py, &CutError::SegmentTooSmall { needed, got: mtu })
            })?,
            _ => {
                return Err(PyValueError::new_err(
                    "bytes are cut by size=, payload in a segment, or by mtu=",
                ));
            }
        };
        Ok(Gso::new(kind, size))
    }
}

#[pymethods]
impl Segmenter {
    /// Cuts packets that begin at a layer.
    #[new]
    #[pyo3(signature = (*, layer="ethernet"))]
    fn new(layer: &str) -> PyResult<Segmenter> {
        Ok(Segmenter { engine: Cutter::new(), layer: self::layer(layer)? })
    }

    /// Cuts a packet: a SuperPacket into the very packets that merged in it, bytes by the size of
    /// segments or by an MTU.
    #[pyo3(signature = (packet, *, size=None, mtu=None))]
    fn segment<'py>(
        &mut self,
        py: Python<'py>,
        packet: &Bound<'py, PyAny>,
        size: Option<usize>,
        mtu: Option<usize>,
    ) -> PyResult<Bound<'py, PyList>> {
        if let Ok(packet) = packet.cast::<SuperPacket>() {
            let packet = packet.get();
            let data = packet.data.bind(py);
            return match packet.metadata.gso {
                Some(gso) if size.is_none() && mtu.is_none() => {
                    let output = ChecksumOutput::AsMerged;
                    let bytes = data.as_bytes();
                    let whole = GsoPacket::linear(&bytes, gso)
                        .with_layer(packet.metadata.layer)
                        .with_checksum(packet.metadata.checksum);
                    self.cut(py, &whole, output)
                }
                Some(_) => Err(PyValueError::new_err(
                    "a SuperPacket is cut as it merged: without size= and mtu=",
                )),
                None if packet.metadata.packets == 1 => PyList::new(py, [data]),
                None => Err(SegmentError::new_err(
                    "what LRO merged cannot be cut into the same packets again",
                )),
            };
        }
        let bytes: &[u8] = packet.extract()?;
        let gso = self.gso(py, bytes, size, mtu)?;
        let whole = GsoPacket::linear(&bytes, gso).with_layer(self.layer);
        self.cut(py, &whole, ChecksumOutput::Full)
    }

    /// What was counted so far, by name.
    #[getter]
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counters = self.engine.counters();
        let dict = PyDict::new(py);
        dict.set_item("packets", counters.packets)?;
        dict.set_item("segments", counters.segments)?;
        dict.set_item("refused", counters.refused())?;
        Ok(dict)
    }
}

//! Packets as Python has them: light objects over a block of bytes that several share.

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::{Arc, OnceLock};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PySlice, PyString};
use superpacket::wire::{IpVersion, Layout};
use superpacket_captures::file::{Frame, FrameOptions, OptionForm, Timestamp};
use superpacket_captures::{Interface, LinkType, PacketSink, Packets};
use superpacket_steer::FlowTuple;

use crate::layers::{Layers, MAC, mac_text, with_address};
use crate::pickled::PickledPackets;

/// All of a packet but its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) start: u32,
    pub(crate) length: u32,
    pub(crate) original_length: u32,
    pub(crate) interface: u32,
    pub(crate) link_type: LinkType,
    pub(crate) time: Option<Timestamp>,
    /// Where its options end in the block's.
    options_end: u32,
    form: OptionForm,
    segment_size: Option<NonZeroU16>,
}

/// Packets that were read together, gathered without the interpreter's lock.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub(crate) bytes: Vec<u8>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) options: Vec<u8>,
    /// The interfaces that the packets refer to.
    pub(crate) interfaces: Arc<[Interface]>,
    /// Number of the first packet, from 1.
    pub(crate) first: u64,
}

impl Gathered {
    /// Adds a frame.
    #[inline]
    pub(crate) fn add(&mut self, frame: &Frame<'_>) {
        if self.entries.is_empty() {
            self.first = frame.number;
        }
        self.entries.push(Entry {
            start: self.bytes.len() as u32,
            length: frame.data.len() as u32,
            original_length: frame.original_length,
            interface: frame.interface,
            link_type: frame.link_type(),
            time: frame.time,
            options_end: (self.options.len() + frame.options.bytes().len()) as u32,
            form: frame.options.form(),
            segment_size: frame.options.segment_size(),
        });
        self.bytes.extend_from_slice(frame.data);
        self.options.extend_from_slice(frame.options.bytes());
        if frame.interfaces.len() != self.interfaces.len() {
            self.interfaces = frame.interfaces.into();
        }
    }

    /// Forgets all packets, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
        self.options.clear();
    }
}

/// Packets that lie in one `bytes` object, which lives as long as one of them does.
#[pyclass(frozen)]
#[derive(Debug)]
pub(crate) struct Block {
    bytes: Py<PyBytes>,
    view: Py<PyMemoryView>,
    entries: Box<[Entry]>,
    options: Box<[u8]>,
    pub(crate) interfaces: Arc<[Interface]>,
    first: u64,
}

impl Block {
    /// Hands what was gathered to Python.
    pub(crate) fn new(py: Python<'_>, gathered: &Gathered) -> PyResult<Py<Block>> {
        let bytes = PyBytes::new(py, &gathered.bytes);
        let view = PyMemoryView::from(&bytes)?;
        let block = Block {
            bytes: bytes.unbind(),
            view: view.unbind(),
            entries: gathered.entries.as_slice().into(),
            options: gathered.options.as_slice().into(),
            interfaces: Arc::clone(&gathered.interfaces),
            first: gathered.first,
        };
        Py::new(py, block)
    }

    fn data<'a>(&'a self, py: Python<'a>, entry: &Entry) -> &'a [u8] {
        let range = entry.start as usize..(entry.start + entry.length) as usize;
        self.bytes.bind(py).as_bytes().get(range).unwrap_or(&[])
    }

    /// A packet as a frame of a capture.
    pub(crate) fn frame<'a>(&'a self, py: Python<'a>, index: usize) -> Frame<'a> {
        let entry = &self.entries[index];
        let before = index.checked_sub(1).map_or(0, |before| self.entries[before].options_end);
        let options = self.options.get(before as usize..entry.options_end as usize).unwrap_or(&[]);
        Frame {
            number: self.first + index as u64,
            interface: entry.interface,
            time: entry.time,
            data: self.data(py, entry),
            original_length: entry.original_length,
            options: FrameOptions::new(options, entry.form).with_segment_size(entry.segment_size),
            interfaces: &self.interfaces,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

/// A packet of a capture.
///
/// `data` is a memoryview of what was captured, without a copy: the block that the packet was read
/// in stays in memory as long as one of its packets, or a view of one, is referred to. Addresses,
/// ports and offsets are looked for when they are first asked for.
#[pyclass(frozen, module = "superpacket")]
#[derive(Debug)]
pub(crate) struct Packet {
    block: Py<Block>,
    index: u32,
    layers: OnceLock<Layers>,
}

impl Packet {
    #[inline]
    pub(crate) fn new(block: Py<Block>, index: usize) -> Packet {
        Packet { block, index: index as u32, layers: OnceLock::new() }
    }

    #[inline]
    pub(crate) fn entry(&self) -> Entry {
        self.block.get().entries[self.index as usize]
    }

    #[inline]
    pub(crate) fn bytes<'a>(&'a self, py: Python<'a>) -> &'a [u8] {
        self.block.get().data(py, &self.entry())
    }

    /// The packet as a frame of its capture.
    pub(crate) fn frame<'a>(&'a self, py: Python<'a>) -> Frame<'a> {
        self.block.get().frame(py, self.index as usize)
    }

    #[inline]
    fn layers(&self, py: Python<'_>) -> &Layers {
        self.layers.get_or_init(|| {
            let entry = self.entry();
            Layers::find(entry.link_type, self.bytes(py), entry.original_length)
        })
    }

    fn view<'py>(&self, py: Python<'py>, start: usize, end: usize) -> PyResult<Bound<'py, PyAny>> {
        let at = self.entry().start as usize;
        self.block.get().view.bind(py).get_item(PySlice::new(
            py,
            (at + start) as isize,
            (at + end) as isize,
            1,
        ))
    }

    fn offset(&self, py: Python<'_>, of: impl Fn(&Layout) -> u16) -> Option<usize> {
        let layers = self.layers(py);
        layers.layout.as_ref().map(|layout| layers.link + usize::from(of(layout)))
    }
}

fn mac<'py>(py: Python<'py>, address: &[u8; MAC]) -> Bound<'py, PyString> {
    PyString::new(py, str::from_utf8(&mac_text(address)).unwrap_or_default())
}

fn address<'py>(py: Python<'py>, address: IpAddr) -> Bound<'py, PyString> {
    with_address(address, &mut String::new(), |text| PyString::new(py, text))
}

#[pymethods]
impl Packet {
    /// The packet's number in its capture, from 1.
    #[getter]
    fn number(&self) -> u64 {
        self.block.get().first + u64::from(self.index)
    }

    /// When it was captured, in nanoseconds since 1970; None where the capture does not say.
    #[getter]
    fn time(&self) -> Option<u64> {
        self.entry().time.map(|time| time.nanoseconds())
    }

    /// The bytes captured, as a memoryview without a copy.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.view(py, 0, self.entry().length as usize)
    }

    /// What it begins with: a number of https://www.tcpdump.org/linktypes.html, 1 for Ethernet.
    #[getter]
    fn link_type(&self) -> u16 {
        self.entry().link_type.0
    }

    /// Its interface: an index into the capture's `interfaces`.
    #[getter]
    fn interface(&self) -> u32 {
        self.entry().interface
    }

    /// The name of its interface, if the capture has one.
    #[getter]
    fn interface_name(&self, py: Python<'_>) -> Option<String> {
        self.frame(py).interface().name().map(|name| name.into_owned())
    }

    /// What its capture remarks on it: the comments of a pcapng packet.
    #[getter]
    fn comments(&self, py: Python<'_>) -> Vec<String> {
        let comments = self.frame(py).options.comments();
        comments.map(|comment| String::from_utf8_lossy(comment).into_owned()).collect()
    }

    /// Bytes of payload in each of its segments but the last, if it was merged in this process;
    /// None otherwise, as files do not say it.
    #[getter]
    fn segment_size(&self) -> Option<u16> {
        self.entry().segment_size.map(NonZeroU16::get)
    }

    /// How many bytes were captured.
    #[getter]
    fn captured_length(&self) -> u32 {
        self.entry().length
    }

    /// How many bytes it had on the wire, as the capture says it.
    #[getter]
    fn original_length(&self) -> u32 {
        self.entry().original_length
    }

    /// Version of the innermost IP header, 4 or 6; None if it is not IP.
    #[getter]
    fn version(&self, py: Python<'_>) -> Option<u8> {
        self.layers(py).tuple.map(|tuple| match tuple.version() {
            IpVersion::V4 => 4,
            IpVersion::V6 => 6,
        })
    }

    /// Source address of the innermost IP header.
    #[getter]
    fn source<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyString>> {
        self.layers(py).tuple.as_ref().map(|tuple| address(py, tuple.source()))
    }

    /// Destination address of the innermost IP header.
    #[getter]
    fn destination<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyString>> {
        self.layers(py).tuple.as_ref().map(|tuple| address(py, tuple.destination()))
    }

    /// Source port; None in fragments and in protocols other than TCP, UDP and DCCP.
    #[getter]
    fn source_port(&self, py: Python<'_>) -> Option<u16> {
        self.layers(py).tuple.as_ref().and_then(FlowTuple::ports).map(|[source, _]| source)
    }

    /// Destination port; None in fragments and in protocols other than TCP, UDP and DCCP.
    #[getter]
    fn destination_port(&self, py: Python<'_>) -> Option<u16> {
        self.layers(py)
            .tuple
            .as_ref()
            .and_then(FlowTuple::ports)
            .map(|[_, destination]| destination)
    }

    /// The IP protocol's number of the innermost IP header: 6 for TCP, 17 for UDP.
    #[getter]
    fn protocol(&self, py: Python<'_>) -> Option<u8> {
        self.layers(py).tuple.as_ref().and_then(FlowTuple::protocol)
    }

    /// The outermost tunnel around the innermost headers, such as "vxlan" or "gre".
    #[getter]
    fn tunnel(&self, py: Python<'_>) -> Option<&'static str> {
        self.layers(py).tunnel().map(|outer| outer.tunnel.name())
    }

    /// Source address of the outermost tunnel.
    #[getter]
    fn tunnel_source<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyString>> {
        let [source, _] = self.layers(py).tunnel_ends(self.bytes(py))?;
        Some(address(py, source))
    }

    /// Destination address of the outermost tunnel.
    #[getter]
    fn tunnel_destination<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyString>> {
        let [_, destination] = self.layers(py).tunnel_ends(self.bytes(py))?;
        Some(address(py, destination))
    }

    /// The network identifier (VNI) of the outermost tunnel, if it is VXLAN or Geneve.
    #[getter]
    fn vni(&self, py: Python<'_>) -> Option<u32> {
        self.layers(py).vni(self.bytes(py))
    }

    /// Source address of the frame's own Ethernet header, as "02:00:00:00:00:01".
    #[getter]
    fn source_mac<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyString>> {
        self.layers(py).macs(self.bytes(py)).map(|[_, source]| mac(py, source))
    }

    /// Destination address of the frame's own Ethernet header.
    #[getter]
    fn destination_mac<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyString>> {
        self.layers(py).macs(self.bytes(py)).map(|[destination, _]| mac(py, destination))
    }

    /// The identifier in the outermost VLAN tag of the frame's own Ethernet header.
    #[getter]
    fn vlan(&self, py: Python<'_>) -> Option<u16> {
        self.layers(py).vlan(self.bytes(py))
    }

    /// Time to live, or hop limit, of the innermost IP header.
    #[getter]
    fn ttl(&self, py: Python<'_>) -> Option<u8> {
        self.layers(py).ttl(self.bytes(py))
    }

    /// Identification of the innermost IP header, if it is IPv4.
    #[getter]
    fn ip_id(&self, py: Python<'_>) -> Option<u16> {
        self.layers(py).ip_id(self.bytes(py))
    }

    /// TCP flags: 1 for FIN, 2 SYN, 4 RST, 8 PSH, 16 ACK, 32 URG, 64 ECE, 128 CWR.
    #[getter]
    fn tcp_flags(&self, py: Python<'_>) -> Option<u8> {
        self.layers(py).tcp(self.bytes(py)).map(|header| header.flags())
    }

    /// TCP sequence number.
    #[getter]
    fn sequence(&self, py: Python<'_>) -> Option<u32> {
        self.layers(py).tcp(self.bytes(py)).map(|header| header.sequence())
    }

    /// TCP acknowledgement number.
    #[getter]
    fn acknowledgement(&self, py: Python<'_>) -> Option<u32> {
        self.layers(py).tcp(self.bytes(py)).map(|header| header.acknowledgement())
    }

    /// TCP window as it is in the header, not scaled.
    #[getter]
    fn window(&self, py: Python<'_>) -> Option<u16> {
        self.layers(py).tcp(self.bytes(py)).map(|header| header.window())
    }

    /// Bytes of payload of TCP, UDP or DCCP by the IP header's length; fewer may have been
    /// captured.
    #[getter]
    fn payload_length(&self, py: Python<'_>) -> Option<u32> {
        self.layers(py).payload_length()
    }

    /// Where the innermost IP header begins, in bytes from the start of `data`.
    #[getter]
    fn network_offset(&self, py: Python<'_>) -> Option<usize> {
        let layers = self.layers(py);
        layers.network.map(|network| layers.link + usize::from(network))
    }

    /// Where the header of TCP, UDP or DCCP begins, in bytes from the start of `data`.
    #[getter]
    fn transport_offset(&self, py: Python<'_>) -> Option<usize> {
        self.offset(py, |layout| layout.transport)
    }

    /// Where the payload of TCP, UDP or DCCP begins, in bytes from the start of `data`.
    #[getter]
    fn payload_offset(&self, py: Python<'_>) -> Option<usize> {
        self.offset(py, |layout| layout.payload)
    }

    /// The payload of TCP, UDP or DCCP as far as it was captured, as a memoryview without a copy.
    #[getter]
    fn payload<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let length = self.entry().length as usize;
        self.layers(py).payload(length).map(|(start, end)| self.view(py, start, end)).transpose()
    }

    fn __len__(&self) -> usize {
        self.entry().length as usize
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.bytes(py))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, PickledPackets)> {
        let mut one = Packets::new();
        copy_in_place(&self.frame(py), &mut one);
        Ok((py.get_type::<Packet>().getattr("_of")?, PickledPackets::new(py, &one, self.number())?))
    }

    /// Makes a packet of what it was pickled as.
    #[staticmethod]
    #[pyo3(signature = (*state))]
    fn _of(py: Python<'_>, state: PickledPackets) -> PyResult<Packet> {
        Ok(Packet::new(block_of(py, &state.packets(py)?, state.first())?, 0))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let end = |address: IpAddr, port: Option<u16>| match (address, port) {
            (IpAddr::V6(address), Some(port)) => format!("[{address}]:{port}"),
            (address, Some(port)) => format!("{address}:{port}"),
            (address, None) => address.to_string(),
        };
        let flow = match self.layers(py).tuple {
            Some(tuple) => {
                let (from, to) =
                    tuple.ports().map_or((None, None), |[from, to]| (Some(from), Some(to)));
                format!(", {} > {}", end(tuple.source(), from), end(tuple.destination(), to))
            }
            None => String::new(),
        };
        format!("<Packet {}: {} bytes{flow}>", self.number(), self.entry().length)
    }
}

/// Adds a packet to others of the same capture: its interface keeps its place.
pub(crate) fn copy_in_place(frame: &Frame<'_>, packets: &mut Packets) {
    // Memory takes whatever comes.
    if packets.interfaces().len() != frame.interfaces.len() {
        let _ = packets.declare(frame.interfaces);
    }
    let _ = packets.packet(&frame.record(), frame.data);
}

/// Makes a block of packets of which the first has this number.
pub(crate) fn block_of(py: Python<'_>, packets: &Packets, first: u64) -> PyResult<Py<Block>> {
    if u32::try_from(packets.bytes().len()).is_err() {
        return Err(PyValueError::new_err(
            "the packets have more than 4 GiB together: write them to a file",
        ));
    }
    let mut gathered = Gathered::default();
    packets.iter().for_each(|frame| gathered.add(&frame));
    gathered.first = first;
    Block::new(py, &gathered)
}

/// The interfaces of a capture as Python has them: link type, and name if there is one.
pub(crate) fn interface_pairs(interfaces: &[Interface]) -> Vec<(u16, Option<String>)> {
    interfaces
        .iter()
        .map(|interface| (interface.link_type.0, interface.name().map(|name| name.into_owned())))
        .collect()
}

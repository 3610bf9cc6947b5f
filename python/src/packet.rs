//! Packets as Python has them: light objects over a block of bytes that several share.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PySlice, PyString};
use superpacket::wire::{IpVersion, Layout};
use superpacket_captures::file::Frame;
use superpacket_captures::{Interface, LinkType, Packets};
use superpacket_steer::FlowTuple;

use crate::columns::{Columns, as_bytes, converted};
use crate::errors::command_error;
use crate::layers::{Layers, with_address};

/// All of a packet but its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) start: u32,
    pub(crate) length: u32,
    pub(crate) original_length: u32,
    pub(crate) interface: u32,
    pub(crate) link_type: LinkType,
    /// In nanoseconds since 1970.
    pub(crate) time: Option<u64>,
}

/// Packets that were read together, gathered without the interpreter's lock.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub(crate) bytes: Vec<u8>,
    pub(crate) entries: Vec<Entry>,
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
            time: frame.time.map(|time| time.nanoseconds()),
        });
        self.bytes.extend_from_slice(frame.data);
    }

    /// Forgets all packets, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }
}

/// Packets that lie in one `bytes` object, which lives as long as one of them does.
#[pyclass(frozen)]
#[derive(Debug)]
pub(crate) struct Block {
    bytes: Py<PyBytes>,
    view: Py<PyMemoryView>,
    entries: Box<[Entry]>,
    first: u64,
}

impl Block {
    /// Hands what was gathered to Python.
    pub(crate) fn new(py: Python<'_>, gathered: &Gathered) -> PyResult<Py<Block>> {
        let bytes = PyBytes::new(py, &gathered.bytes);
        let view = PyMemoryView::from(&bytes)?;
        let entries = gathered.entries.as_slice().into();
        Py::new(
            py,
            Block { bytes: bytes.unbind(), view: view.unbind(), entries, first: gathered.first },
        )
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
        let entry = self.entry();
        self.block
            .get()
            .bytes
            .bind(py)
            .as_bytes()
            .get(entry.start as usize..(entry.start + entry.length) as usize)
            .unwrap_or(&[])
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
        self.entry().time
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
        self.layers(py).layout.and_then(|layout| layout.outer).map(|outer| outer.tunnel.name())
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

/// Packets in memory: what commands read when they are given packets, and write when they are given
/// no file.
#[pyclass(module = "superpacket", sequence)]
#[derive(Debug, Default)]
pub(crate) struct PacketList {
    packets: Arc<Packets>,
    /// The same for Python, made when a packet is first asked for.
    block: OnceLock<Py<Block>>,
}

impl PacketList {
    pub(crate) fn from_packets(packets: Packets) -> PacketList {
        PacketList { packets: Arc::new(packets), block: OnceLock::new() }
    }

    /// The packets, which commands read while Python goes on.
    pub(crate) fn packets(&self) -> Arc<Packets> {
        Arc::clone(&self.packets)
    }

    fn block(&self, py: Python<'_>) -> PyResult<&Py<Block>> {
        if let Some(block) = self.block.get() {
            return Ok(block);
        }
        if u32::try_from(self.packets.bytes().len()).is_err() {
            return Err(PyValueError::new_err(
                "the packets have more than 4 GiB together: write them to a file",
            ));
        }
        let mut gathered = Gathered::default();
        self.packets.iter().for_each(|frame| gathered.add(&frame));
        let block = Block::new(py, &gathered)?;
        Ok(self.block.get_or_init(|| block))
    }
}

#[pymethods]
impl PacketList {
    #[new]
    fn new() -> PacketList {
        PacketList::default()
    }

    /// Appends a packet to the list: its bytes, its link type, its capture time in nanoseconds
    /// since 1970, and its length on the wire in bytes, if that was longer.
    #[pyo3(signature = (data, link_type=1, time=None, original_length=None))]
    fn append(
        &mut self,
        py: Python<'_>,
        data: &[u8],
        link_type: u16,
        time: Option<u64>,
        original_length: Option<u64>,
    ) -> PyResult<()> {
        self.block = OnceLock::new();
        let original_length = original_length.unwrap_or(data.len() as u64);
        let packets = Arc::make_mut(&mut self.packets);
        packets
            .push_cut(LinkType(link_type), time, data, original_length)
            .map_err(|error| command_error(py, error))
    }

    fn __len__(&self) -> usize {
        self.packets.len()
    }

    fn __getitem__(&self, py: Python<'_>, index: isize) -> PyResult<Packet> {
        let length = self.packets.len() as isize;
        let place = if index < 0 { index + length } else { index };
        if !(0..length).contains(&place) {
            return Err(PyIndexError::new_err(format!("packet {index} of {length}")));
        }
        Ok(Packet::new(self.block(py)?.clone_ref(py), place as usize))
    }

    fn __iter__(&self, py: Python<'_>) -> PyResult<PacketIterator> {
        Ok(PacketIterator { block: self.block(py)?.clone_ref(py), next: 0 })
    }

    /// Returns the packets as columns: see `Capture.to_arrow`.
    #[pyo3(signature = (*, batch_size=65_536, data=false, addresses="text"))]
    fn to_arrow(&self, batch_size: usize, data: bool, addresses: &str) -> PyResult<Columns> {
        Columns::of_packets(self.packets(), batch_size, data, as_bytes(addresses)?)
    }

    /// Returns the packets as a pandas DataFrame, or with `batch_size` an iterator of DataFrames of
    /// so many packets; needs pandas and pyarrow.
    #[pyo3(signature = (*, batch_size=None, data=false))]
    fn to_pandas<'py>(
        &self,
        py: Python<'py>,
        batch_size: Option<usize>,
        data: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        converted(py, "pandas", batch_size, |size| self.to_arrow(size, data, "text"))
    }

    /// Returns the packets as numpy arrays, by the columns' names, or with `batch_size` an iterator
    /// of such arrays of so many packets; needs numpy.
    #[pyo3(signature = (*, batch_size=None))]
    fn to_numpy<'py>(
        &self,
        py: Python<'py>,
        batch_size: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        converted(py, "numpy", batch_size, |size| self.to_arrow(size, false, "bytes"))
    }

    fn __repr__(&self) -> String {
        format!(
            "<PacketList of {} packets, {} bytes>",
            self.packets.len(),
            self.packets.bytes().len()
        )
    }
}

/// Gives the packets of a list from the first to the last.
#[pyclass]
pub(crate) struct PacketIterator {
    block: Py<Block>,
    next: usize,
}

#[pymethods]
impl PacketIterator {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&mut self, py: Python<'_>) -> Option<Packet> {
        if self.next == self.block.get().len() {
            return None;
        }
        let packet = Packet::new(self.block.clone_ref(py), self.next);
        self.next += 1;
        Some(packet)
    }
}

/// The interfaces of a capture as Python has them: link type, and name if there is one.
pub(crate) fn interface_pairs(interfaces: &[Interface]) -> Vec<(u16, Option<String>)> {
    interfaces
        .iter()
        .map(|interface| (interface.link_type.0, interface.name().map(|name| name.into_owned())))
        .collect()
}

//! Lists of packets in memory.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::PySlice;
use superpacket_captures::Packets;

use crate::columns::{Columns, as_bytes, converted};
use crate::offered::{Details, with_frame};
use crate::packet::{Block, Packet, block_of, copy_in_place};
use crate::pickled::PickledPackets;
use crate::writer::write_frames;

/// Packets in memory: what commands read when they are given packets, and write when they are given
/// no file.
///
/// `PacketList(packets)` takes whatever `coalesce` takes as packets; a slice of a list is a list.
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

    /// Copies packets of any kind.
    pub(crate) fn gather(packets: &Bound<'_, PyAny>, link_type: u16) -> PyResult<PacketList> {
        let mut list = PacketList::default();
        for packet in packets.try_iter()? {
            list.add(&packet?, Details { link_type, ..Details::default() })?;
        }
        Ok(list)
    }

    fn add(&mut self, packet: &Bound<'_, PyAny>, details: Details) -> PyResult<()> {
        self.block = OnceLock::new();
        let number = self.packets.len() as u64 + 1;
        with_frame(packet, number, details, |frame| {
            Arc::make_mut(&mut self.packets).push_frame(frame);
            Ok(())
        })
    }

    /// The packets, which commands read while Python goes on.
    pub(crate) fn packets(&self) -> Arc<Packets> {
        Arc::clone(&self.packets)
    }

    fn block(&self, py: Python<'_>) -> PyResult<&Py<Block>> {
        if let Some(block) = self.block.get() {
            return Ok(block);
        }
        let block = block_of(py, &self.packets, 1)?;
        Ok(self.block.get_or_init(|| block))
    }
}

#[pymethods]
impl PacketList {
    /// Copies packets: bytes, tuples (seconds, packet), packets of this package, scapy or dpkt.
    /// `link_type` is that of packets that do not say it.
    #[new]
    #[pyo3(signature = (packets=None, link_type=1))]
    fn new(packets: Option<&Bound<'_, PyAny>>, link_type: u16) -> PyResult<PacketList> {
        packets
            .map_or_else(|| Ok(PacketList::default()), |packets| Self::gather(packets, link_type))
    }

    /// Appends a packet to the list: a packet of this package, of scapy or of dpkt, or its bytes.
    ///
    /// The rest is said of bytes, or replaces what the packet says: link type, capture time in
    /// nanoseconds since 1970, length on the wire in bytes, if that was longer, name of the
    /// interface, and comments, each cut to 1,000 bytes.
    #[pyo3(signature = (data, link_type=1, time=None, original_length=None, *, interface=None, comments=None))]
    fn append(
        &mut self,
        data: &Bound<'_, PyAny>,
        link_type: u16,
        time: Option<u64>,
        original_length: Option<u64>,
        interface: Option<String>,
        comments: Option<Vec<String>>,
    ) -> PyResult<()> {
        self.add(data, Details { link_type, time, original_length, interface, comments })
    }

    /// Writes the packets to a capture with their times, interfaces and comments. `.pcap` or
    /// `.pcapng` in the name says which kind it is (pcapng if it says neither), `.gz` or `.zst`
    /// behind it how it is compressed. The file takes its place when it is complete.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let packets = self.packets();
        write_frames(py, path, &packets)
    }

    fn __len__(&self) -> usize {
        self.packets.len()
    }

    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        index: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let length = self.packets.len() as isize;
        if let Ok(slice) = index.cast::<PySlice>() {
            let places = slice.indices(length)?;
            let mut chosen = Packets::new();
            for step in 0..places.slicelength as isize {
                let place = (places.start + step * places.step) as usize;
                if let Some(frame) = self.packets.get(place) {
                    copy_in_place(&frame, &mut chosen);
                }
            }
            return Ok(Bound::new(py, PacketList::from_packets(chosen))?.into_any());
        }
        let index: isize = index.extract()?;
        let place = if index < 0 { index + length } else { index };
        if !(0..length).contains(&place) {
            return Err(PyIndexError::new_err(format!("packet {index} of {length}")));
        }
        let packet = Packet::new(self.block(py)?.clone_ref(py), place as usize);
        Ok(Bound::new(py, packet)?.into_any())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, PickledPackets)> {
        let of = py.get_type::<PacketList>().getattr("_of")?;
        Ok((of, PickledPackets::new(py, &self.packets, 1)?))
    }

    /// Makes a list of what it was pickled as.
    #[staticmethod]
    #[pyo3(signature = (*state))]
    fn _of(py: Python<'_>, state: PickledPackets) -> PyResult<PacketList> {
        Ok(PacketList::from_packets(state.packets(py)?))
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

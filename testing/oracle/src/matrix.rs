//! The matrix: the kernel's results for super-packets with many combinations of headers, from
//! packet sockets, TAP and TUN devices.

use std::collections::BTreeMap;
use std::fmt;

use superpacket::virtio::{Format, Header, Offload};
use superpacket::{Layer, RxChecksum};
use superpacket_lab::{CapturedFrame, LabError};

use crate::cells::MatrixCell;
use crate::kernel::{KernelAnswer, KernelGso};
use crate::router::Router;

/// A kind of socket or device by which a program hands super-packets to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Entrance {
    /// A packet socket with virtio headers, on a device without offloads.
    PacketSocket,
    /// A TAP device in a bridge, whose other port is a device without offloads.
    Tap,
    /// A TUN device in a router, which forwards to another TUN device without offloads.
    Tun,
}

impl Entrance {
    /// All entrances, in the order of the matrix's columns.
    pub const ALL: [Entrance; 3] = [Entrance::PacketSocket, Entrance::Tap, Entrance::Tun];

    /// Returns the name of the entrance in the matrix.
    pub const fn name(self) -> &'static str {
        match self {
            Entrance::PacketSocket => "packet socket",
            Entrance::Tap => "TAP and bridge",
            Entrance::Tun => "TUN and router",
        }
    }
}

/// What the kernel made of a super-packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// The kernel's segments are equal to the engine's, byte for byte.
    Segments,
    /// The kernel delivered the super-packet unchanged.
    Whole,
    /// The kernel delivered packets that differ from the engine's segments, as the text describes.
    Other(String),
    /// The call that hands the super-packet to the kernel failed with this error.
    Refused(String),
    /// The call succeeded, but the kernel delivered no packet.
    Dropped,
}

impl Answer {
    fn of(emitted: &[Vec<u8>], cell: &MatrixCell) -> Self {
        match (emitted, cell.cut()) {
            ([], _) => Answer::Dropped,
            ([whole], _) if *whole == cell.bytes() => Answer::Whole,
            (emitted, Ok(ours)) if emitted == ours => Answer::Segments,
            (emitted, Ok(ours)) => Answer::Other(difference(emitted, &ours, cell)),
            (emitted, Err(error)) => {
                Answer::Other(format!("{} packets; the engine: {error}", emitted.len()))
            }
        }
    }

    fn refused(error: &std::io::Error) -> Self {
        let names = [(12, "ENOMEM"), (22, "EINVAL"), (90, "EMSGSIZE")];
        let name = names.iter().find(|(number, _)| error.raw_os_error() == Some(*number));
        Answer::Refused(name.map_or_else(|| error.to_string(), |(_, name)| (*name).to_owned()))
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Segments => formatter.write_str("segments"),
            Answer::Whole => formatter.write_str("whole"),
            Answer::Other(what) => write!(formatter, "OTHER BYTES ({what})"),
            Answer::Refused(error) => write!(formatter, "refused, {error}"),
            Answer::Dropped => formatter.write_str("DROPPED"),
        }
    }
}

/// Returns the names of the header fields in which the kernel's packets differ from the engine's
/// segments. If their number or lengths differ, returns a message about that instead.
fn difference(theirs: &[Vec<u8>], ours: &[Vec<u8>], cell: &MatrixCell) -> String {
    if theirs.len() != ours.len() {
        return format!("{} packets for {}", theirs.len(), ours.len());
    }
    let mut fields: Vec<&str> = Vec::new();
    for (theirs, ours) in theirs.iter().zip(ours) {
        if theirs.len() != ours.len() {
            return "lengths".into();
        }
        for field in (0..ours.len()).filter(|&at| theirs[at] != ours[at]).map(|at| cell.field(at)) {
            if !fields.contains(&field) {
                fields.push(field);
            }
        }
    }
    fields.join(", ")
}

/// The kernel's results for each super-packet of the matrix.
#[derive(Debug, Default)]
pub struct Matrix {
    /// The rows of the matrix, one for each super-packet.
    pub rows: Vec<Row>,
}

/// The kernel's results for one super-packet.
#[derive(Clone, Debug)]
pub struct Row {
    /// The super-packet that the kernel receives.
    pub cell: MatrixCell,
    /// `Ok` if a virtio header can describe the super-packet; otherwise the engine's reason why
    /// not.
    pub header: Result<(), String>,
    /// The kernel's result at each entrance that accepts the super-packet.
    pub answers: BTreeMap<Entrance, Answer>,
}

impl Matrix {
    /// Gives the running kernel each super-packet of the matrix, and collects the results.
    ///
    /// # Errors
    ///
    /// [`LabError::Forbidden`] where namespaces are forbidden; other errors of the lab.
    pub fn ask() -> Result<Self, LabError> {
        let mut kernels = vec![(Entrance::PacketSocket, KernelGso::new()?)];
        let tap = match KernelGso::of_tunnels() {
            // Before Linux 6.17, TAP devices accept no super-packets in tunnels.
            Err(LabError::Unsupported { .. }) => KernelGso::of_plain_tap(),
            other => other,
        };
        kernels.push((Entrance::Tap, tap?));
        let mut router = Router::new()?;
        let mut rows = Vec::new();
        for cell in MatrixCell::all() {
            let mut answers = BTreeMap::new();
            for (entrance, kernel) in &mut kernels {
                let answer = match kernel.offer(cell.header(), &cell.bytes())? {
                    KernelAnswer::Refused(error) => Answer::refused(&error),
                    KernelAnswer::Taken(frames) => Answer::of(
                        &frames.iter().map(CapturedFrame::with_tag).collect::<Vec<_>>(),
                        &cell,
                    ),
                };
                answers.insert(*entrance, answer);
            }
            if let Some(cell) = cell.at_ip() {
                let answer = match router.offer(cell.header(), &cell.bytes())? {
                    KernelAnswer::Refused(error) => Answer::refused(&error),
                    KernelAnswer::Taken(packets) => Answer::of(&packets, &cell.after_hop()),
                };
                answers.insert(Entrance::Tun, answer);
            }
            rows.push(Row { header: virtio_header(&cell), answers, cell });
        }
        Ok(Matrix { rows })
    }
}

/// Returns the engine's error if no virtio header can describe the super-packet.
fn virtio_header(cell: &MatrixCell) -> Result<(), String> {
    let (header, bytes) = (cell.header(), cell.bytes());
    let checksum = RxChecksum::Partial { start: header.csum_start, offset: header.csum_offset };
    let offload = Offload::new(checksum, Some(cell.gso()));
    match Header::describe(&offload, Format::Tunnel, &bytes, bytes.len(), Layer::Ethernet) {
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

impl fmt::Display for Matrix {
    /// Writes a Markdown table in which rows with the same results are joined: first protocols,
    /// then tunnels, then link headers.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.rows.iter().map(|row| {
            let answers = Entrance::ALL.map(|entrance| {
                row.answers.get(&entrance).map_or_else(|| "-".into(), Answer::to_string)
            });
            let header = if row.header.is_ok() { "yes" } else { "none" };
            let answers = format!("{header} | {}", answers.join(" | "));
            (
                row.cell.protocol.to_owned(),
                (row.cell.link.to_owned(), row.cell.special.to_owned(), answers),
            )
        });
        let by_protocol =
            join_rows(rows, ", ").into_iter().map(|(protocols, (link, special, answers))| {
                let all = protocols.split(", ").count() == 4;
                (special, (if all { "all".to_owned() } else { protocols }, link, answers))
            });
        let by_tunnel = join_rows(by_protocol, "; ")
            .into_iter()
            .map(|(specials, (protocols, link, answers))| (link, (protocols, specials, answers)));
        let names = Entrance::ALL.map(Entrance::name).join(" | ");
        writeln!(
            formatter,
            "| link header | tunnel, or what is special | protocol | header | {names} |\n|---|---|---|---|---|---|---|"
        )?;
        for (links, (protocols, specials, answers)) in join_rows(by_tunnel, "; ") {
            writeln!(formatter, "| {links} | {specials} | {protocols} | {answers} |")?;
        }
        Ok(())
    }
}

/// Joins the names of rows that are equal except for their names, in the order in which the rows
/// first appear.
fn join_rows<T: PartialEq>(
    rows: impl Iterator<Item = (String, T)>,
    between: &str,
) -> Vec<(String, T)> {
    let mut joined: Vec<(String, T)> = Vec::new();
    for (name, rest) in rows {
        match joined.iter_mut().find(|(_, other)| *other == rest) {
            Some((names, _)) => {
                names.push_str(between);
                names.push_str(&name);
            }
            None => joined.push((name, rest)),
        }
    }
    joined
}

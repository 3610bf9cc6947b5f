//! The two BPF programs of the kernel path, assembled as instructions: a socket filter and a TCX
//! program.
//!
//! ```text
//! frame -> socket filter: may the kernel forward it? -- no --> packet socket (the bridge)
//!                                |
//!                               yes: notes the egress interface in the packet buffer (`cb`)
//!                                v
//!          TCX program: redirects frames that have the note
//! ```
//! The filter alone decides, so each frame takes exactly one of the ways, also while the maps
//! change.

use std::mem::offset_of;

use super::shared::{EPOCH_BITS, ForwardingCounts, PortState, Rules, StationState};
use crate::system::bpf::Instruction;
use crate::system::bpf::code::*;

/// The file descriptors of the BPF maps that the filter program uses, and the numbers for indexing
/// them.
#[derive(Clone, Copy, Debug)]
pub(super) struct FilterMaps {
    /// Hash table that maps a station's key (its address and VLAN) to the index of its state in
    /// `states`.
    pub(super) stations: i32,
    pub(super) states: i32,
    pub(super) ports: i32,
    /// The counters, one per port and CPU.
    pub(super) counts: i32,
    /// Number of counters per port.
    pub(super) cpus: u32,
}

/// Two numbers that the filter writes into the packet buffer (`cb`), and by which the TCX program
/// recognises the frames to redirect.
pub(super) type Mark = [u32; 2];

/// Bit of a station key above the VLAN number, which tells that the key contains an Ethernet
/// address.
const ETHERNET_KEY: i32 = 1 << 12;

/// EtherTypes of VLAN tags. A frame whose tag is still in its bytes goes to the bridge.
const TAGS: [i32; 2] = [0x8100, 0x88a8];

/// Minimum age in nanoseconds at which a station's timestamp is written again. Writing less often
/// spares the CPUs contention for its cache line.
const TIME_STEP: i32 = 1 << 26;

// Offsets of fields in `struct __sk_buff`.
const LEN: usize = 0;
const VLAN_TCI: usize = 24;
const CB: usize = 48;
const GSO_SIZE: usize = 176;

// Numbers of BPF helper functions (`enum bpf_func_id`).
const MAP_LOOKUP: i32 = 1;
const GET_SMP_PROCESSOR_ID: i32 = 8;
const REDIRECT: i32 = 23;
const KTIME_GET_COARSE_NS: i32 = 160;

/// The TCX program's verdict for frames that it leaves alone (`TCX_NEXT`).
const NEXT: i32 = -1;

/// The filter's return value with which the socket receives the whole frame.
const WHOLE: i32 = -1;

/// The register with the top of the stack.
const STACK: u8 = 10;

// Places on the stack.
const SOURCE_KEY: i16 = -8;
const DESTINATION_KEY: i16 = -16;
const INDEX: i16 = -20;
const EGRESS_PORT: i16 = -24;
const INGRESS_PORT: i16 = -32;

/// A jump target in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    /// The socket receives the frame, and the port's current epoch is stored in the state of the
    /// frame's source.
    ToSocket,
    /// The socket receives the frame.
    Accept,
    /// The source's timestamp is recent enough, and is not written again.
    SourceSeen,
    /// The destination's timestamp is recent enough, and is not written again.
    DestinationUsed,
    /// The frame is a super-packet.
    SuperPacket,
    /// The frame fits the egress port.
    Fits,
    /// The kernel forwards the frame.
    Forwarded,
    /// The port's current epoch is stored in the state of the frame's source.
    Note,
    /// The TCX program leaves the frame alone.
    Next,
}

/// Instructions under construction. Registers are numbers from 0 to 10.
#[derive(Debug, Default)]
struct Assembler {
    instructions: Vec<Instruction>,
    /// Positions of jumps, with their targets.
    jumps: Vec<(usize, Label)>,
    labels: Vec<(Label, usize)>,
}

impl Assembler {
    fn add(&mut self, code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> &mut Self {
        self.instructions.push(Instruction::new(code, to, from, offset, immediate));
        self
    }

    /// Adds a jump. It compares the register `register` with the register `from`, or with the
    /// number `immediate`.
    fn jump(&mut self, code: u8, register: u8, from: u8, immediate: i32, to: Label) -> &mut Self {
        self.jumps.push((self.instructions.len(), to));
        self.add(code, register, from, 0, immediate)
    }

    fn label(&mut self, label: Label) -> &mut Self {
        self.labels.push((label, self.instructions.len()));
        self
    }

    /// Looks up the key at the stack offset `key` in a map. Register 0 then contains the value's
    /// address. If the map does not contain the key, the program jumps to `missing`.
    fn look_up(&mut self, map: i32, key: i16, missing: Label) -> &mut Self {
        self.add(LOAD_DOUBLE, 1, PSEUDO_MAP_FD, 0, map)
            .add(0, 0, 0, 0, 0)
            .add(MOVE_REGISTER, 2, STACK, 0, 0)
            .add(ADD, 2, 0, 0, i32::from(key))
            .add(CALL, 0, 0, 0, MAP_LOOKUP)
            .jump(JUMP_IF_EQUAL, 0, 0, 0, missing)
    }

    /// Looks up the state of the station whose key is at the stack offset `key`.
    fn look_up_station(&mut self, maps: &FilterMaps, key: i16, missing: Label) -> &mut Self {
        self.look_up(maps.stations, key, missing)
            .add(LOAD_WORD, 1, 0, 0, 0)
            .add(STORE_REGISTER_WORD, STACK, 1, INDEX, 0)
            .look_up(maps.states, INDEX, missing)
    }

    /// Looks up the port with this index.
    fn look_up_port(&mut self, maps: &FilterMaps, port: u32, missing: Label) -> &mut Self {
        self.add(STORE_WORD, STACK, 0, INDEX, port as i32).look_up(maps.ports, INDEX, missing)
    }

    /// Stores the time in register 6 in a field of the state in register 7, unless the field's
    /// value is recent. Changes registers 1 and 2.
    fn store_time(&mut self, field: usize, recent: Label) -> &mut Self {
        self.add(LOAD_LONG, 1, 7, field as i16, 0)
            .add(MOVE_REGISTER, 2, 6, 0, 0)
            .add(SUBTRACT_REGISTER, 2, 1, 0, 0)
            .jump(JUMP_IF_NOT_GREATER, 2, 0, TIME_STEP, recent)
            .add(STORE_REGISTER_LONG, 7, 6, field as i16, 0)
            .label(recent)
    }

    /// Adds one packet, and the number of bytes in register 8, to this CPU's counters of the port
    /// whose index is in register 6.
    fn count(&mut self, maps: &FilterMaps, packets: usize, bytes: usize) -> &mut Self {
        self.add(CALL, 0, 0, 0, GET_SMP_PROCESSOR_ID)
            .add(MULTIPLY, 6, 0, 0, maps.cpus as i32)
            .add(ADD_REGISTER, 6, 0, 0, 0)
            .add(STORE_REGISTER_WORD, STACK, 6, INDEX, 0)
            .look_up(maps.counts, INDEX, Label::Forwarded)
            .add(LOAD_LONG, 1, 0, packets as i16, 0)
            .add(ADD, 1, 0, 0, 1)
            .add(STORE_REGISTER_LONG, 0, 1, packets as i16, 0)
            .add(LOAD_LONG, 1, 0, bytes as i16, 0)
            .add(ADD_REGISTER, 1, 8, 0, 0)
            .add(STORE_REGISTER_LONG, 0, 1, bytes as i16, 0)
    }

    /// Loads the packet buffer's address into register 6 and the frame's EtherType into register 7,
    /// and stores the station keys of its source and destination on the stack.
    fn keys(&mut self) -> &mut Self {
        self.add(MOVE_REGISTER, 6, 1, 0, 0)
            // The keys: the address in 6 bytes, the VLAN in 12 bits, and a bit for the kind. These
            // loads convert to the machine's byte order, and need the packet buffer in register 6.
            .add(LOAD_FRAME_WORD, 0, 0, 0, 0)
            .add(MOVE_REGISTER, 8, 0, 0, 0)
            .add(SHIFT_LEFT, 8, 0, 0, 16)
            .add(LOAD_FRAME_HALF, 0, 0, 0, 4)
            .add(OR_REGISTER, 8, 0, 0, 0)
            .add(LOAD_FRAME_HALF, 0, 0, 0, 6)
            .add(MOVE_REGISTER, 7, 0, 0, 0)
            .add(SHIFT_LEFT, 7, 0, 0, 32)
            .add(LOAD_FRAME_WORD, 0, 0, 0, 8)
            .add(OR_REGISTER, 7, 0, 0, 0)
            .add(LOAD_WORD, 1, 6, VLAN_TCI as i16, 0)
            .add(AND, 1, 0, 0, 0x0fff)
            .add(OR, 1, 0, 0, ETHERNET_KEY)
            .add(SHIFT_LEFT, 1, 0, 0, 48)
            .add(OR_REGISTER, 7, 1, 0, 0)
            .add(OR_REGISTER, 8, 1, 0, 0)
            .add(STORE_REGISTER_LONG, STACK, 7, SOURCE_KEY, 0)
            .add(STORE_REGISTER_LONG, STACK, 8, DESTINATION_KEY, 0)
            .add(LOAD_FRAME_HALF, 0, 0, 0, 12)
            .add(MOVE_REGISTER, 7, 0, 0, 0)
    }

    /// Ends the filter with the code for frames that the socket receives.
    fn accept(&mut self, maps: &FilterMaps, port: u32) -> &mut Self {
        use Label::Accept;
        // The frame is counted first. Rules and source are read afterwards: rules that are set, or
        // a source that is added, in between then find a count that includes the frame.
        self.label(Label::ToSocket)
            .add(LOAD_LONG, 7, STACK, INGRESS_PORT, 0)
            .add(MOVE, 8, 0, 0, 1)
            .add(SHIFT_LEFT, 8, 0, 0, EPOCH_BITS)
            .add(ATOMIC_LONG, 7, 8, offset_of!(PortState, received) as i16, ATOMIC_FETCH_ADD)
            .add(LOAD_WORD, 1, 7, offset_of!(PortState, rules) as i16, 0)
            .jump(JUMP_IF_EQUAL, 1, 0, 0, Accept)
            .look_up_station(maps, SOURCE_KEY, Accept)
            // The state of a source at another port refers to that port's epochs.
            .add(LOAD_WORD, 1, 0, offset_of!(StationState, port) as i16, 0)
            .jump(JUMP_IF_EQUAL, 1, 0, 0, Label::Note)
            .jump(JUMP_IF_NOT_EQUAL, 1, 0, port as i32 + 1, Accept)
            .label(Label::Note)
            .add(STORE_REGISTER_WORD, 0, 8, offset_of!(StationState, epoch) as i16, 0)
            .label(Accept)
            .add(MOVE, 0, 0, 0, WHOLE)
            .add(EXIT, 0, 0, 0, 0)
    }

    /// Resolves all jumps to their distances, and returns the program.
    fn finish(mut self) -> Vec<Instruction> {
        for (position, target) in self.jumps {
            let label = self.labels.iter().find(|(label, _)| *label == target);
            let (_, to) = label.expect("each jump has a label");
            self.instructions[position].offset = (to - position - 1) as i16;
        }
        self.instructions
    }
}

/// Returns the socket filter of the port with index `port`.
///
/// It keeps a frame from the socket, and notes the egress interface in the packet buffer, if the
/// kernel may forward the frame:
/// - Source and destination are known, and at different ports. The source is at this port.
/// - Both ports allow it ([`Rules`]), and the frame fits the egress port.
/// - The bridge has sent all earlier frames of the source that the socket received.
pub(super) fn filter(maps: &FilterMaps, port: u32, mark: Mark) -> Vec<Instruction> {
    use Label::{Accept, Fits, SuperPacket, ToSocket};
    let mut program = Assembler::default();
    program
        .keys()
        .look_up_port(maps, port, Accept)
        .add(STORE_REGISTER_LONG, STACK, 0, INGRESS_PORT, 0)
        .add(LOAD_WORD, 1, 0, offset_of!(PortState, rules) as i16, 0)
        .jump(JUMP_IF_EQUAL, 1, 0, 0, ToSocket)
        .jump(JUMP_IF_EQUAL, 7, 0, TAGS[0], ToSocket)
        .jump(JUMP_IF_EQUAL, 7, 0, TAGS[1], ToSocket)
        // Register 9: the source's state.
        .look_up_station(maps, SOURCE_KEY, ToSocket)
        .add(MOVE_REGISTER, 9, 0, 0, 0)
        .add(LOAD_WORD, 1, 9, offset_of!(StationState, port) as i16, 0)
        .jump(JUMP_IF_NOT_EQUAL, 1, 0, port as i32 + 1, ToSocket)
        // Register 7: the destination's state.
        .look_up_station(maps, DESTINATION_KEY, ToSocket)
        .add(MOVE_REGISTER, 7, 0, 0, 0)
        .add(LOAD_WORD, 1, 7, offset_of!(StationState, port) as i16, 0)
        .jump(JUMP_IF_EQUAL, 1, 0, 0, ToSocket)
        .jump(JUMP_IF_EQUAL, 1, 0, port as i32 + 1, ToSocket)
        .add(ADD, 1, 0, 0, -1)
        .add(STORE_REGISTER_WORD, STACK, 1, EGRESS_PORT, 0)
        // Register 8: the egress port.
        .look_up(maps.ports, EGRESS_PORT, ToSocket)
        .add(MOVE_REGISTER, 8, 0, 0, 0)
        .add(LOAD_LONG, 0, STACK, INGRESS_PORT, 0)
        .add(LOAD_WORD, 1, 0, offset_of!(PortState, rules) as i16, 0)
        .add(LOAD_WORD, 2, 8, offset_of!(PortState, rules) as i16, 0)
        .add(MOVE_REGISTER, 3, 1, 0, 0)
        .add(AND_REGISTER, 3, 2, 0, 0)
        .jump(JUMP_IF_SET, 3, 0, Rules::ISOLATED as i32, ToSocket)
        .add(AND, 3, 0, 0, Rules::ENABLED as i32)
        .jump(JUMP_IF_EQUAL, 3, 0, 0, ToSocket)
        .add(LOAD_LONG, 3, 0, offset_of!(PortState, received) as i16, 0)
        .add(SHIFT_LEFT, 3, 0, 0, EPOCH_BITS)
        .add(SHIFT_RIGHT, 3, 0, 0, EPOCH_BITS)
        .add(LOAD_WORD, 4, 9, offset_of!(StationState, epoch) as i16, 0)
        .jump(JUMP_IF_EQUAL_REGISTER, 3, 4, 0, ToSocket)
        .add(LOAD_WORD, 3, 8, offset_of!(PortState, max_frame) as i16, 0)
        .add(LOAD_WORD, 4, 6, GSO_SIZE as i16, 0)
        .jump(JUMP_IF_NOT_EQUAL, 4, 0, 0, SuperPacket)
        .add(LOAD_WORD, 4, 6, LEN as i16, 0)
        .jump(JUMP_IF_GREATER_REGISTER, 4, 3, 0, ToSocket)
        .jump(JUMP, 0, 0, 0, Fits)
        // The segments of a super-packet are at most as long as the ingress port's frames.
        .label(SuperPacket)
        .add(AND, 2, 0, 0, Rules::SUPER_PACKETS as i32)
        .jump(JUMP_IF_EQUAL, 2, 0, 0, ToSocket)
        .add(LOAD_WORD, 4, 0, offset_of!(PortState, max_frame) as i16, 0)
        .jump(JUMP_IF_GREATER_REGISTER, 4, 3, 0, ToSocket)
        .label(Fits)
        .add(MOVE, 1, 0, 0, mark[0] as i32)
        .add(STORE_REGISTER_WORD, 6, 1, CB as i16, 0)
        .add(MOVE, 1, 0, 0, mark[1] as i32)
        .add(STORE_REGISTER_WORD, 6, 1, CB as i16 + 4, 0)
        .add(LOAD_WORD, 1, 8, offset_of!(PortState, interface) as i16, 0)
        .add(STORE_REGISTER_WORD, 6, 1, CB as i16 + 8, 0)
        // From here on the frame is the kernel's. Register 8: its length; 6: the time.
        .add(LOAD_WORD, 8, 6, LEN as i16, 0)
        .add(CALL, 0, 0, 0, KTIME_GET_COARSE_NS)
        .add(MOVE_REGISTER, 6, 0, 0, 0)
        .store_time(offset_of!(StationState, used), Label::DestinationUsed)
        .add(MOVE_REGISTER, 7, 9, 0, 0)
        .store_time(offset_of!(StationState, seen), Label::SourceSeen)
        .add(MOVE, 6, 0, 0, port as i32)
        .count(
            maps,
            offset_of!(ForwardingCounts, rx_packets),
            offset_of!(ForwardingCounts, rx_bytes),
        )
        .add(LOAD_WORD, 6, STACK, EGRESS_PORT, 0)
        .count(
            maps,
            offset_of!(ForwardingCounts, tx_packets),
            offset_of!(ForwardingCounts, tx_bytes),
        )
        .label(Label::Forwarded)
        .add(MOVE, 0, 0, 0, 0)
        .add(EXIT, 0, 0, 0, 0)
        .accept(maps, port);
    program.finish()
}

/// Returns the TCX program, which redirects a frame to the interface that the filter has written
/// into the packet buffer.
pub(super) fn redirect(mark: Mark) -> Vec<Instruction> {
    let mut program = Assembler::default();
    program
        .add(LOAD_WORD, 2, 1, CB as i16, 0)
        .add(MOVE, 3, 0, 0, mark[0] as i32)
        .add(SHIFT_LEFT, 3, 0, 0, 32)
        .add(SHIFT_RIGHT, 3, 0, 0, 32)
        .jump(JUMP_IF_NOT_EQUAL_REGISTER, 2, 3, 0, Label::Next)
        .add(LOAD_WORD, 2, 1, CB as i16 + 4, 0)
        .add(MOVE, 3, 0, 0, mark[1] as i32)
        .add(SHIFT_LEFT, 3, 0, 0, 32)
        .add(SHIFT_RIGHT, 3, 0, 0, 32)
        .jump(JUMP_IF_NOT_EQUAL_REGISTER, 2, 3, 0, Label::Next)
        .add(MOVE, 2, 0, 0, 0)
        .add(STORE_REGISTER_WORD, 1, 2, CB as i16, 0)
        .add(LOAD_WORD, 1, 1, CB as i16 + 8, 0)
        .add(CALL, 0, 0, 0, REDIRECT)
        .add(EXIT, 0, 0, 0, 0)
        .label(Label::Next)
        .add(MOVE, 0, 0, 0, NEXT)
        .add(EXIT, 0, 0, 0, 0);
    program.finish()
}

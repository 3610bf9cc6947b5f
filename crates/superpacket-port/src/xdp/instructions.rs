//! The XDP program's instructions.

use crate::system::bpf::Instruction;
use crate::system::bpf::code::*;

/// Magic value that the program stores before a frame to tell that the frame's hash follows.
/// Whoever reads the hash clears the value, so that no later frame in the same chunk inherits the
/// hash.
pub(super) const MARK: u32 = 0x5350_4858;

/// Number of bytes that the program stores before a frame: [`MARK`] and the hash, 4 bytes each in
/// the machine's byte order. A hash of 0 means none.
pub(super) const METADATA: usize = 8;

/// The action for frames without a socket: the interface's own network stack receives them.
const XDP_PASS: i32 = 2;

// Numbers of BPF helper functions (`enum bpf_func_id`).
const REDIRECT_MAP: i32 = 51;
const ADJUST_META: i32 = 54;

// Offsets of fields in `struct xdp_md`.
const DATA: i16 = 0;
const DATA_META: i16 = 8;
const RX_QUEUE_INDEX: i16 = 16;

/// Returns the program `return bpf_redirect_map(&map, context->rx_queue_index, XDP_PASS);`
///
/// If `hash` is given, the number of the kernel function `bpf_xdp_metadata_rx_hash`, the program
/// first reserves [`METADATA`] bytes before the frame, if possible, and stores the hash there.
pub(super) fn program(map: i32, hash: Option<i32>) -> Vec<Instruction> {
    let mut program = vec![Instruction::new(MOVE_REGISTER, 6, 1, 0, 0)];
    if let Some(function) = hash {
        // Stack: the hash at -4, and its unused type (`enum xdp_rss_hash_type`) at -8.
        program.extend([
            Instruction::new(MOVE, 2, 0, 0, -(METADATA as i32)),
            Instruction::new(CALL, 0, 0, 0, ADJUST_META),
            // Skips this part if the driver has no room for metadata.
            Instruction::new(JUMP_IF_NOT_EQUAL, 0, 0, 17, 0),
            Instruction::new(STORE_DOUBLE, 10, 0, -8, 0),
            Instruction::new(MOVE_REGISTER, 1, 6, 0, 0),
            Instruction::new(MOVE_REGISTER, 2, 10, 0, 0),
            Instruction::new(ADD, 2, 0, 0, -4),
            Instruction::new(MOVE_REGISTER, 3, 10, 0, 0),
            Instruction::new(ADD, 3, 0, 0, -8),
            Instruction::new(CALL, 0, PSEUDO_KFUNC_CALL, 0, function),
            Instruction::new(JUMP_IF_EQUAL, 0, 0, 1, 0),
            // The device has no hash for this frame.
            Instruction::new(STORE_DOUBLE, 10, 0, -8, 0),
            Instruction::new(LOAD_WORD, 1, 6, DATA_META, 0),
            Instruction::new(LOAD_WORD, 2, 6, DATA, 0),
            Instruction::new(MOVE_REGISTER, 3, 1, 0, 0),
            Instruction::new(ADD, 3, 0, 0, METADATA as i32),
            // The verifier requires this bounds check.
            Instruction::new(JUMP_IF_GREATER_REGISTER, 3, 2, 3, 0),
            Instruction::new(STORE_WORD, 1, 0, 0, MARK as i32),
            Instruction::new(LOAD_WORD, 4, 10, -4, 0),
            Instruction::new(STORE_REGISTER_WORD, 1, 4, 4, 0),
        ]);
    }
    program.extend([
        Instruction::new(LOAD_WORD, 2, 6, RX_QUEUE_INDEX, 0),
        Instruction::new(LOAD_DOUBLE, 1, PSEUDO_MAP_FD, 0, map),
        Instruction::new(0, 0, 0, 0, 0),
        Instruction::new(MOVE, 3, 0, 0, XDP_PASS),
        Instruction::new(CALL, 0, 0, 0, REDIRECT_MAP),
        Instruction::new(EXIT, 0, 0, 0, 0),
    ]);
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn the_program_in_bytes() {
        let hex = |program: Vec<Instruction>| {
            let word = |instruction: Instruction| {
                let [a, b] = instruction.offset.to_le_bytes();
                let [c, d, e, f] = instruction.immediate.to_le_bytes();
                let bytes = [instruction.code, instruction.registers, a, b, c, d, e, f];
                bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
            };
            program.into_iter().map(word).collect::<Vec<_>>().join(" ")
        };
        let plain = "bf16000000000000 6162100000000000 1811000007000000 0000000000000000 b703000002000000 8500000033000000 9500000000000000";
        assert_eq!(hex(program(7, None)), plain);
        let hashing = program(7, Some(99));
        assert_eq!(size_of::<Instruction>(), 8);
        // Both jumps that skip the metadata lead to the start of the plain program.
        let lands = |code: u8| {
            let at = hashing
                .iter()
                .position(|instruction| instruction.code == code)
                .expect("it is there");
            hashing[at + 1 + hashing[at].offset as usize]
        };
        let common = program(7, None)[1];
        assert_eq!((lands(JUMP_IF_NOT_EQUAL), lands(JUMP_IF_GREATER_REGISTER)), (common, common));
        assert!(hex(hashing).ends_with(&plain[17..]));
    }
}

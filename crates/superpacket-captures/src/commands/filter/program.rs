//! Programs for the virtual machine of the BSD Packet Filter, which decide whether a frame matches
//! (McCanne and Jacobson, "The BSD Packet Filter", 1993).
//!
//! The meaning of each instruction is that of libpcap's `bpf_filter.c`. In particular, a read
//! beyond the captured bytes ends the program, and the frame does not match.

/// An instruction of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    /// Class, size, mode and operation of the instruction, in bits that the constants of this type
    /// name.
    code: u16,
    /// Number of instructions to skip if a condition is true.
    if_true: u8,
    /// Number of instructions to skip if a condition is false.
    if_false: u8,
    /// The constant of the instruction (`k` of `struct bpf_insn`).
    operand: u32,
}

impl Instruction {
    /// Reads an instruction from its four fields as decimal numbers: `code jt jf k`.
    pub(super) fn from_decimal(text: &str) -> Option<Self> {
        let mut fields = text.split(' ');
        Some(Instruction {
            code: fields.next()?.parse().ok()?,
            if_true: fields.next()?.parse().ok()?,
            if_false: fields.next()?.parse().ok()?,
            operand: fields.next()?.parse().ok()?,
        })
    }
}

// The classes of instructions (BPF_CLASS).
const LD: u16 = 0x00;
const LDX: u16 = 0x01;
const ST: u16 = 0x02;
const STX: u16 = 0x03;
const ALU: u16 = 0x04;
const JMP: u16 = 0x05;
const RET: u16 = 0x06;

// Where a value is loaded from (BPF_MODE).
const IMM: u16 = 0x00;
const ABS: u16 = 0x20;
const IND: u16 = 0x40;
const MEM: u16 = 0x60;
const LEN: u16 = 0x80;
const MSH: u16 = 0xa0;

// How many bytes of the frame are loaded (BPF_SIZE); 0 means 4.
const HALF: u16 = 0x08;
const BYTE: u16 = 0x10;

/// Bit of the code that selects a register as the operand: the index register (BPF_X) or, in a
/// return instruction, the accumulator (BPF_A).
const REGISTER: u16 = 0x08;
const ACCUMULATOR: u16 = 0x10;

/// Bit of the code of a register copy: from the accumulator to the index register (BPF_TAX) if it
/// is clear, and back if it is set (BPF_TXA).
const TXA: u16 = 0x80;

/// A compiled filter.
#[derive(Debug)]
pub(super) struct Program(Vec<Instruction>);

impl Program {
    pub(super) fn new(instructions: Vec<Instruction>) -> Self {
        Program(instructions)
    }

    /// Returns whether a frame matches the filter. `original_length` is its length on the wire in
    /// bytes, of which fewer may have been captured.
    pub(super) fn matches(&self, frame: &[u8], original_length: u32) -> bool {
        self.run(frame, original_length).is_some_and(|accepted| accepted > 0)
    }

    /// Returns how many bytes of a frame the program accepts; `None` if it reads beyond the frame,
    /// or divides by zero.
    fn run(&self, frame: &[u8], original_length: u32) -> Option<u32> {
        let (mut accumulator, mut index) = (0u32, 0u32);
        let mut memory = [0u32; 16];
        let mut next = 0usize;
        loop {
            let Instruction { code, if_true, if_false, operand } = *self.0.get(next)?;
            next += 1;
            let value = if code & REGISTER != 0 { index } else { operand };
            match code & 0x07 {
                class @ (LD | LDX) => {
                    let loaded = match code & 0xe0 {
                        IMM => operand,
                        ABS => load(frame, operand, code)?,
                        IND => load(frame, index.checked_add(operand)?, code)?,
                        MEM => *memory.get(operand as usize)?,
                        LEN => original_length,
                        // The length of an IPv4 header, from its first byte.
                        MSH => (load(frame, operand, BYTE)? & 0x0f) << 2,
                        _ => return None,
                    };
                    *(if class == LD { &mut accumulator } else { &mut index }) = loaded;
                }
                ST => *memory.get_mut(operand as usize)? = accumulator,
                STX => *memory.get_mut(operand as usize)? = index,
                ALU => accumulator = compute(code, accumulator, value)?,
                JMP => {
                    let holds = match code & 0xf0 {
                        // `protochain` jumps backwards, by a negative operand.
                        0x00 => {
                            next = next.checked_add_signed(operand as i32 as isize)?;
                            continue;
                        }
                        0x10 => accumulator == value,
                        0x20 => accumulator > value,
                        0x30 => accumulator >= value,
                        0x40 => accumulator & value != 0,
                        _ => return None,
                    };
                    next += usize::from(if holds { if_true } else { if_false });
                }
                RET if code & ACCUMULATOR != 0 => return Some(accumulator),
                RET => return Some(operand),
                _ if code & TXA != 0 => accumulator = index,
                _ => index = accumulator,
            }
        }
    }
}

/// Returns the number at an offset of a frame. Its size in bytes is given by the instruction's
/// code.
fn load(frame: &[u8], offset: u32, code: u16) -> Option<u32> {
    let rest = frame.get(offset as usize..)?;
    Some(match code & 0x18 {
        BYTE => u32::from(*rest.first()?),
        HALF => u32::from(u16::from_be_bytes(*rest.first_chunk()?)),
        _ => u32::from_be_bytes(*rest.first_chunk()?),
    })
}

/// Applies the arithmetic operation in `code` to the accumulator and a value; `None` for a division
/// by zero.
fn compute(code: u16, accumulator: u32, value: u32) -> Option<u32> {
    Some(match code & 0xf0 {
        0x00 => accumulator.wrapping_add(value),
        0x10 => accumulator.wrapping_sub(value),
        0x20 => accumulator.wrapping_mul(value),
        0x30 => accumulator.checked_div(value)?,
        0x40 => accumulator | value,
        0x50 => accumulator & value,
        0x60 => accumulator.checked_shl(value).unwrap_or(0),
        0x70 => accumulator.checked_shr(value).unwrap_or(0),
        0x80 => accumulator.wrapping_neg(),
        0x90 => accumulator.checked_rem(value)?,
        0xa0 => accumulator ^ value,
        _ => return None,
    })
}

//! Codes of BPF instructions, from `linux/bpf_common.h` and `linux/bpf.h`.
//!
//! A code is for an immediate operand, unless its name ends with `REGISTER`.

pub(crate) const JUMP: u8 = 0x05;
pub(crate) const ADD: u8 = 0x07;
pub(crate) const ADD_REGISTER: u8 = 0x0f;
pub(crate) const JUMP_IF_EQUAL: u8 = 0x15;
pub(crate) const LOAD_DOUBLE: u8 = 0x18;
pub(crate) const JUMP_IF_EQUAL_REGISTER: u8 = 0x1d;
pub(crate) const SUBTRACT_REGISTER: u8 = 0x1f;
pub(crate) const LOAD_FRAME_WORD: u8 = 0x20;
pub(crate) const MULTIPLY: u8 = 0x27;
pub(crate) const LOAD_FRAME_HALF: u8 = 0x28;
pub(crate) const JUMP_IF_GREATER_REGISTER: u8 = 0x2d;
pub(crate) const JUMP_IF_SET: u8 = 0x45;
pub(crate) const OR: u8 = 0x47;
pub(crate) const OR_REGISTER: u8 = 0x4f;
pub(crate) const JUMP_IF_NOT_EQUAL: u8 = 0x55;
pub(crate) const AND: u8 = 0x57;
pub(crate) const JUMP_IF_NOT_EQUAL_REGISTER: u8 = 0x5d;
pub(crate) const AND_REGISTER: u8 = 0x5f;
pub(crate) const LOAD_WORD: u8 = 0x61;
pub(crate) const STORE_WORD: u8 = 0x62;
pub(crate) const STORE_REGISTER_WORD: u8 = 0x63;
pub(crate) const SHIFT_LEFT: u8 = 0x67;
pub(crate) const SHIFT_RIGHT: u8 = 0x77;
pub(crate) const LOAD_LONG: u8 = 0x79;
pub(crate) const STORE_DOUBLE: u8 = 0x7a;
pub(crate) const STORE_REGISTER_LONG: u8 = 0x7b;
pub(crate) const CALL: u8 = 0x85;
pub(crate) const EXIT: u8 = 0x95;
pub(crate) const JUMP_IF_NOT_GREATER: u8 = 0xb5;
pub(crate) const MOVE: u8 = 0xb7;
pub(crate) const MOVE_REGISTER: u8 = 0xbf;
pub(crate) const ATOMIC_LONG: u8 = 0xdb;

/// Immediate operand of an atomic instruction that adds, and returns the previous value.
pub(crate) const ATOMIC_FETCH_ADD: i32 = 0x01;

/// Value of the source register field in an instruction that loads the address of a map, given by
/// its descriptor.
pub(crate) const PSEUDO_MAP_FD: u8 = 1;
/// Value of the source register field in an instruction that calls a kernel function (kfunc), given
/// by its BTF number.
pub(crate) const PSEUDO_KFUNC_CALL: u8 = 2;

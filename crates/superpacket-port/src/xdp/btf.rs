//! Kernel functions callable from BPF programs (kfuncs), found by name in the kernel's type
//! information (BTF).

use std::{fs, io};

/// File with the kernel's type information (`CONFIG_DEBUG_INFO_BTF`).
const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

/// The first two bytes of BTF data.
const MAGIC: u16 = 0xeb9f;

// Kinds of types (`linux/btf.h`).
const KIND_FUNC: u32 = 12;

/// Returns the number by which programs call the kernel function `name`.
///
/// # Errors
/// If the BTF data is missing or unreadable, or lacks the function. The message names the file.
pub(super) fn kernel_function(name: &str) -> io::Result<i32> {
    let failure = |kind, what: &str| io::Error::new(kind, format!("{KERNEL_BTF}: {what}"));
    let bytes = fs::read(KERNEL_BTF).map_err(|error| failure(error.kind(), &error.to_string()))?;
    let number = function(&bytes, name).ok_or_else(|| {
        failure(io::ErrorKind::InvalidData, "not valid BTF, or of an unknown version")
    })?;
    number.ok_or_else(|| {
        failure(io::ErrorKind::NotFound, &format!("the kernel has no function {name}"))
    })
}

/// Returns the number of the kernel function `name` in BTF data, or `Some(None)` if there is no
/// such function. `None` means that the bytes are not BTF, or contain unknown kinds of types.
fn function(bytes: &[u8], name: &str) -> Option<Option<i32>> {
    let word =
        |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?));
    let magic = u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?);
    if magic != MAGIC {
        return None;
    }
    // `struct btf_header`: magic, version, flags, header length, then the positions of types and
    // strings after the header.
    let [header, types, types_length, strings, strings_length] = [4, 8, 12, 16, 20].map(word);
    let section = |offset: Option<u32>, length: Option<u32>| {
        let start = (header? as usize).checked_add(offset? as usize)?;
        bytes.get(start..start.checked_add(length? as usize)?)
    };
    let strings = section(strings, strings_length)?;
    let mut types = section(types, types_length)?;
    // Number 0 is `void`, which has no entry.
    for number in 1.. {
        let Some((description, rest)) = types.split_first_chunk::<12>() else { break };
        // `struct btf_type`: offset of the name, kind and count, and a size or type.
        let [a, b, c, d, e, f, g, h, ..] = *description;
        let (name_offset, info) =
            (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]));
        let (kind, count) = (info >> 24 & 0x1f, info as usize & 0xffff);
        let more = match kind {
            // Pointers, forward declarations, `typedef`, `volatile`, `const`, `restrict`,
            // functions, floating-point numbers, type tags.
            2 | 7..=12 | 16 | 18 => 0,
            // Integers, variables, declaration tags.
            1 | 14 | 17 => 4,
            // Arrays.
            3 => 12,
            // Structures, unions, data sections, 64-bit enumerations.
            4 | 5 | 15 | 19 => 12 * count,
            // Enumerations, prototypes.
            6 | 13 => 8 * count,
            _ => return None,
        };
        let found = strings.get(name_offset as usize..)?.strip_prefix(name.as_bytes());
        if kind == KIND_FUNC && found.is_some_and(|rest| rest.first() == Some(&0)) {
            return Some(Some(number));
        }
        types = rest.get(more..)?;
    }
    Some(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BTF data with an integer, a structure with one member, and two functions whose names have a
    /// common prefix.
    fn description() -> Vec<u8> {
        let strings = b"\0int\0pair\0first\0hash_all\0hash\0";
        let at = |name: &str| {
            strings
                .windows(name.len() + 1)
                .position(|window| window == [name.as_bytes(), b"\0"].concat())
                .expect(name) as u32
        };
        let types: Vec<u32> = [
            &[at("int"), 1 << 24, 4, 32][..],
            &[at("pair"), 4 << 24 | 1, 4, at("first"), 1, 0],
            &[0, 13 << 24 | 1, 1, at("first"), 1],
            &[at("hash_all"), 12 << 24, 3],
            &[at("hash"), 12 << 24 | 1, 3],
        ]
        .concat();
        let types: Vec<u8> = types.into_iter().flat_map(u32::to_ne_bytes).collect();
        let header = [24, 0, types.len() as u32, types.len() as u32, strings.len() as u32]
            .map(u32::to_ne_bytes)
            .concat();
        [&MAGIC.to_ne_bytes()[..], &[1, 0], &header, &types, strings].concat()
    }

    #[test]
    fn functions_are_found_by_their_whole_name() {
        let bytes = description();
        assert_eq!(function(&bytes, "hash"), Some(Some(5)));
        assert_eq!(function(&bytes, "hash_all"), Some(Some(4)));
        assert_eq!(function(&bytes, "has"), Some(None));
        assert_eq!(function(&bytes, "pair"), Some(None), "it is no function");
    }

    #[test]
    fn what_is_cut_or_unknown_is_refused() {
        let mut bytes = description();
        for length in 0..bytes.len() {
            assert_eq!(function(&bytes[..length], "nothing"), None, "{length} bytes");
        }
        bytes[24 + 4..24 + 8].copy_from_slice(&(31u32 << 24).to_ne_bytes());
        assert_eq!(function(&bytes, "hash"), None, "a kind of type that is not known");
    }

    #[test]
    fn this_kernels_functions_are_found() {
        match kernel_function("bpf_xdp_metadata_rx_hash") {
            Ok(number) => assert!(number > 0),
            Err(error) if error.kind() == io::ErrorKind::NotFound => eprintln!("SKIPPED: {error}"),
            Err(error) => panic!("{error}"),
        }
        let error = kernel_function("no such function").expect_err("no function has such a name");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}

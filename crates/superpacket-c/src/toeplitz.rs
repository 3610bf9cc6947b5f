//! The Toeplitz hash of receive-side scaling.

#![expect(unsafe_code, reason = "the border to C")]

use std::ffi::c_void;

use superpacket::wire::MAX_HEADER;
use superpacket_steer::{Toeplitz, ToeplitzKey};

use crate::memory::{bytes, check_range, place};
use crate::object::{free, new, with_ref};
use crate::packet::{CheckedPacket, layer, sp_packet};
use crate::status::sp_status::{self, SP_NONE, SP_OK};
use crate::status::{Failure, guard};

/// Length of a key in bytes, enough for IPv6 addresses and ports.
pub const SP_TOEPLITZ_KEY: usize = 40;

const _: () = assert!(SP_TOEPLITZ_KEY == ToeplitzKey::LENGTH);

/// Both directions of a connection have the same hash: the XOR of both end points is hashed.
pub const SP_TOEPLITZ_SYMMETRIC: u32 = 1;

/// The tables of one key: 36 KiB. They never change, so any number of threads may use them.
pub struct sp_toeplitz {
    toeplitz: Toeplitz,
}

/// Computes the tables of a key.
///
/// \param key SP_TOEPLITZ_KEY bytes, in the order of ethtool -x; read during the call. NULL:
/// Microsoft's published key, the default of many devices.
/// \param length length of the key: SP_TOEPLITZ_KEY, or 0 if key is NULL.
/// \param flags 0 or SP_TOEPLITZ_SYMMETRIC.
/// \param out receives the new object. Free it with sp_toeplitz_free.
/// \return SP_OK; SP_ERROR_LENGTH for another length; SP_ERROR_NULL, SP_ERROR_ARGUMENT.
/// \note Any thread may call it at any time. Ends the process if there is no memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_toeplitz_new(
    key: *const c_void,
    length: usize,
    flags: u32,
    out: *mut *mut sp_toeplitz,
) -> sp_status {
    guard(|| {
        // SAFETY: `out` is NULL or the caller's memory for a pointer.
        unsafe {
            new(out, || {
                if flags & !SP_TOEPLITZ_SYMMETRIC != 0 {
                    return Err(Failure::Argument { what: "flags", got: u64::from(flags) });
                }
                let key = match (key.is_null(), length) {
                    (true, 0) => ToeplitzKey::MICROSOFT,
                    (false, SP_TOEPLITZ_KEY) => {
                        check_range("key", key, length)?;
                        // SAFETY: the caller's bytes, of a length that has been checked.
                        let bytes = bytes(key, length);
                        ToeplitzKey::new(bytes.try_into().map_err(|_| Failure::Null("key"))?)
                    }
                    (true, _) => return Err(Failure::Null("key")),
                    (false, _) => {
                        return Err(Failure::Length {
                            what: "the length of the key",
                            got: length,
                            limit: SP_TOEPLITZ_KEY,
                        });
                    }
                };
                let toeplitz = Toeplitz::new(&key);
                let toeplitz = if flags & SP_TOEPLITZ_SYMMETRIC != 0 {
                    toeplitz.symmetric()
                } else {
                    toeplitz
                };
                Ok(sp_toeplitz { toeplitz })
            })
        }
    })
}

/// Frees the tables of a key.
///
/// \param toeplitz the tables; NULL does nothing. No call may be running in another thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_toeplitz_free(toeplitz: *mut sp_toeplitz) {
    // SAFETY: NULL, or made by `sp_toeplitz_new`, not freed yet, and not in use.
    unsafe { free(toeplitz) };
}

/// Hashes bytes: addresses and ports in the order of the specification. Bytes behind the 36th are
/// ignored.
///
/// \param toeplitz the tables.
/// \param bytes the bytes; NULL if length is 0.
/// \param length number of bytes.
/// \param hash receives the hash.
/// \return SP_OK; SP_ERROR_NULL, SP_ERROR_LENGTH, SP_ERROR_ARGUMENT.
/// \note Any number of threads may call it at the same time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_toeplitz_bytes(
    toeplitz: *const sp_toeplitz,
    bytes: *const c_void,
    length: usize,
    hash: *mut u32,
) -> sp_status {
    guard(|| {
        // SAFETY: `toeplitz` is NULL, or made by `sp_toeplitz_new`; `hash` is NULL or the caller's
        // memory for a number; the bytes are the caller's, and their length is checked.
        unsafe {
            with_ref("toeplitz", toeplitz, |toeplitz| {
                check_range("bytes", bytes, length)?;
                let place = place("hash", hash)?;
                place.write(toeplitz.toeplitz.hash(self::bytes(bytes, length)));
                Ok(SP_OK)
            })
        }
    })
}

/// Hashes the innermost addresses and ports of a packet, as devices do. Of fragments, and of
/// protocols other than TCP, UDP and DCCP, only the addresses are hashed.
///
/// \param toeplitz the tables.
/// \param packet the packet, of which only the headers are read.
/// \param layer where the packet starts: SP_LAYER_ETHERNET or SP_LAYER_IP.
/// \param hash receives the hash.
/// \return SP_OK; SP_NONE if it is not IP, and nothing is written; SP_ERROR_NULL, SP_ERROR_LENGTH,
/// SP_ERROR_ARGUMENT.
/// \note Any number of threads may call it at the same time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_toeplitz_packet(
    toeplitz: *const sp_toeplitz,
    packet: *const sp_packet,
    layer: u32,
    hash: *mut u32,
) -> sp_status {
    guard(|| {
        // SAFETY: `toeplitz` is NULL, or made by `sp_toeplitz_new`; `hash` is NULL or the caller's
        // memory for a number; the packet is the caller's, unchanged during the call.
        unsafe {
            with_ref("toeplitz", toeplitz, |toeplitz| {
                let layer = self::layer(layer)?;
                let packet = CheckedPacket::check_one(packet)?;
                let place = place("hash", hash)?;
                let mut gathered = [0; MAX_HEADER];
                match toeplitz.toeplitz.hash_frame(
                    packet.header(&mut gathered),
                    packet.length(),
                    layer,
                ) {
                    Some(found) => {
                        place.write(found.0);
                        Ok(SP_OK)
                    }
                    None => Ok(SP_NONE),
                }
            })
        }
    })
}

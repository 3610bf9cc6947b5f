//! Programs that others wrote, at the bridge's UNIX sockets: QEMU with an emulated guest, and
//! passt. Every byte is compared.
//!
//! They are ignored unless asked for, since they boot virtual machines: `.ci/run guests`.

mod emulated;
mod passt;
mod qemu;
mod served;

superpacket_lab::enter_user_namespace_before_main!();

//! The bridge between real hosts: the kernel's TCP and UDP on both sides, every byte compared.

mod addresses;
mod balance;
mod carried;
mod gro_table;
mod joined;
mod kernel_path;
mod loops;
mod lro;
mod matrix;
mod numbered;
mod offloads;
mod ports;
mod rates;
mod steering;
mod too_big;
mod traffic;
mod unix;
mod vhost;

superpacket_lab::enter_user_namespace_before_main!();

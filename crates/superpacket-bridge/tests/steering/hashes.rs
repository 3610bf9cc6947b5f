//! Tests that a hash reported by the device is used, and none is computed.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use superpacket_bridge::settings::PerQueue;

use crate::traffic::{Joined, mask, two_cpus};

/// Steers packets from this port for a while, and returns how many hashes were reported, and how
/// many were computed.
fn hashes(name: &str, input: &str, prepare: impl FnOnce(&Joined)) -> Option<[u64; 2]> {
    let cpus = two_cpus()?;
    let mut joined = Joined::new(name, input, |settings| {
        settings.ports[0].steering.rps_cpus = PerQueue::all(mask(&cpus))
    });
    prepare(&joined);
    let running = joined.run(50, Arc::new(AtomicU32::new(u32::MAX)));
    std::thread::sleep(Duration::from_millis(100));
    running.stop();
    let stats = joined.input();
    let asked = stats.steered + stats.drops["backlog"] + stats.drops["flow_limit"];
    assert!(
        asked > 100 && stats.hashes_reported + stats.hashes_computed == asked,
        "each packet's hash is needed once: {stats:?}"
    );
    Some([stats.hashes_reported, stats.hashes_computed])
}

#[test]
fn what_the_device_reports_is_not_computed() {
    if let Some([reported, computed]) =
        hashes("reported", "nic:link=reported-in,ring=2048,full=wait", |_| ())
    {
        assert!(reported > 0 && computed == 0, "{reported} reported, {computed} computed");
    }
}

#[test]
fn what_no_device_reports_is_computed() {
    if let Some([reported, computed]) = hashes("computed", "memory:computed-in?slots=8192", |_| ())
    {
        assert!(reported == 0 && computed > 0, "{reported} reported, {computed} computed");
    }
}

#[test]
fn a_device_that_is_not_believed_is_not_asked() {
    let prepare = |joined: &Joined| drop(joined.set("hash_device", "off"));
    if let Some([reported, computed]) =
        hashes("disbelieved", "nic:link=disbelieved-in,ring=2048,full=wait", prepare)
    {
        assert!(reported == 0 && computed > 0, "{reported} reported, {computed} computed");
    }
}

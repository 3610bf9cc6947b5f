//! An idle bridge uses no CPU time, and idle clients do not block others.

use super::*;

#[test]
fn idle_clients_of_the_control_socket_do_not_block_others() {
    let Some(network) = TestNetwork::new() else { return };
    let _bridge = network.bridge(&PORTS);
    let mut silent = std::os::unix::net::UnixStream::connect(network.socket()).expect("connects");
    silent.write_all(b"{\"request\":").expect("is read");
    let mut other = std::os::unix::net::UnixStream::connect(network.socket()).expect("connects");
    other.write_all(b"{\"request\":\"version\"}\nnonsense\n").expect("is read");
    other.shutdown(std::net::Shutdown::Write).expect("ends");
    let mut text = String::new();
    other.read_to_string(&mut text).expect("answers");
    assert!(text.contains("\"protocol\":2") && text.contains("malformed"), "{text}");
    assert!(network.reaches());
}

#[test]
fn an_idle_bridge_costs_nothing() {
    let Some(network) = TestNetwork::new() else { return };
    let running = network.bridge(&PORTS);
    assert!(network.reaches(), "{}", network.log());
    std::thread::sleep(Duration::from_millis(300));
    let before = ticks(running.id());
    std::thread::sleep(Duration::from_secs(2));
    let used = ticks(running.id()) - before;
    assert!(
        used * 50 <= 2 * rustix::param::clock_ticks_per_second(),
        "{used} ticks in two seconds without traffic"
    );
}

//! Tests of the address table.

use super::statics::STATIC_WAYS;
use super::*;

const A: AddressKey = AddressKey(1 << 60 | 0xa);

/// Returns the port where an address was last seen, when port `from` looks it up.
fn port_of(table: &AddressTable, key: AddressKey, from: u16, now: u64) -> Option<u16> {
    table.find(key, from, now).map(|located| located.port)
}

/// Returns the ports to which a packet for an address is sent that port `from` received.
fn ports_of(table: &AddressTable, key: AddressKey, from: u16, now: u64) -> Vec<u16> {
    table
        .find(key, from, now)
        .into_iter()
        .flat_map(|located| [Some(located.port), located.other])
        .flatten()
        .collect()
}

/// Returns made-up hardware addresses in a VLAN, one for each number.
fn behind(numbers: std::ops::Range<u16>, vlan: u16) -> BTreeSet<Station> {
    numbers
        .map(|number| Station { vlan, address: [2, 0, 0, 1, (number >> 8) as u8, number as u8] })
        .collect()
}

#[test]
fn static_entries_do_not_age_move_or_get_replaced() {
    let table = AddressTable::new(64, Duration::from_secs(1));
    table.set_limit(1, 0);
    table.set_limit(2, 64);
    let stations = behind(0..1, 7);
    let station = *stations.first().expect("one");
    let key = AddressKey::from(station);
    table.set_static(1, &stations);
    assert_eq!(port_of(&table, key, OTHER, 1), Some(1), "nobody has heard it");
    for now in 1..20_000 {
        table.learn(key, 2, now);
        assert_eq!(port_of(&table, key, OTHER, now), Some(1), "{now}");
        if now % 1_000 == 0 {
            flood(&table, 2, 500, now);
            table.expire(now);
        }
    }
    table.forget(1);
    table.flush(|_, _| true);
    assert_eq!(port_of(&table, key, OTHER, 20_000), Some(1));
    assert_eq!(
        (table.count(1), table.shares.held(1), table.shares.held(2)),
        (0, 0, 0),
        "it is not learned"
    );
    // The same address in another VLAN is another station.
    let other = Station { vlan: 8, ..station };
    table.learn(other.into(), 2, 20_000);
    assert_eq!(
        (port_of(&table, other.into(), OTHER, 20_000), port_of(&table, key, OTHER, 20_000)),
        (Some(2), Some(1))
    );
    // Without the static entry, the address is learned normally.
    table.set_static(1, &BTreeSet::new());
    assert_eq!((port_of(&table, key, OTHER, 20_000), table.look_up(station)), (None, None));
    table.learn(key, 2, 20_000);
    assert_eq!((port_of(&table, key, OTHER, 20_000), table.shares.held(2)), (Some(2), 2));
}

#[test]
fn a_static_entry_takes_the_place_of_a_learned_one_and_of_another_port() {
    let table = AddressTable::new(64, Duration::from_secs(300));
    let stations = behind(0..1, 0);
    let key = AddressKey::from(*stations.first().expect("one"));
    table.learn(key, 2, 1);
    assert_eq!(table.shares.held(2), 1);
    table.set_static(1, &stations);
    assert_eq!(
        (port_of(&table, key, OTHER, 2), table.shares.held(2), table.shares.held(1)),
        (Some(1), 0, 0)
    );
    table.set_static(3, &stations);
    table.set_static(1, &BTreeSet::new());
    assert_eq!(port_of(&table, key, OTHER, 2), Some(3));
    table.close(3);
    assert_eq!(port_of(&table, key, OTHER, 2), None, "it goes with its port");
}

#[test]
fn a_static_address_at_two_ports_is_a_hint_of_a_loop() {
    for (count, placed) in [(1, 1), (100, 32)] {
        let table = AddressTable::new(64, Duration::from_secs(300));
        let stations = behind(0..count, 0);
        table.set_static(1, &stations);
        let unplaced = table.statics.unplaced.load(Ordering::Relaxed);
        assert!(u32::from(count) - unplaced <= placed, "{unplaced} of {count}");
        for &station in &stations {
            table.learn(station.into(), 1, 1_000);
        }
        assert!(!table.loops.is_suspected(1_000));
        table.learn((*stations.last().expect("some")).into(), 2, 1_001);
        assert!(table.loops.is_suspected(1_001));
    }
}

#[test]
fn static_entries_without_room_in_their_set_still_apply() {
    let table = AddressTable::new(WAYS, Duration::from_secs(300));
    table.set_limit(2, WAYS as u32);
    let stations = behind(0..50, 0);
    stations.iter().for_each(|&station| table.learn(station.into(), 2, 1));
    table.set_static(1, &stations);
    assert_eq!(table.statics.unplaced.load(Ordering::Relaxed), 50 - STATIC_WAYS as u32);
    for &station in &stations {
        table.learn(station.into(), 2, 2);
        assert_eq!(port_of(&table, station.into(), OTHER, 2), Some(1), "{station}");
        assert_eq!(
            table.look_up(station).map(|known| (known.port, known.is_static)),
            Some((1, true))
        );
    }
    flood(&table, 2, 100, 3);
    assert_eq!(
        (table.count(2), table.list(|_, _| true).len()),
        (WAYS - STATIC_WAYS, 50 + WAYS - STATIC_WAYS)
    );
    assert_eq!(table.flush(|_, port| port == 2), WAYS - STATIC_WAYS);
    // Half of the static entries are removed.
    table.set_static(1, &behind(0..25, 0));
    let found = stations
        .iter()
        .filter(|&&station| port_of(&table, station.into(), OTHER, 4) == Some(1))
        .count();
    assert_eq!((found, table.list(|_, _| true).len()), (25, 25));
    table.set_static(1, &BTreeSet::new());
    assert_eq!(
        (table.statics.unplaced.load(Ordering::Relaxed), table.list(|_, _| true)),
        (0, Vec::new())
    );
}

#[test]
fn static_entries_hold_while_threads_learn_and_others_come_and_go() {
    let table = AddressTable::new(16, Duration::from_secs(300));
    (0..4).for_each(|port| table.set_limit(port, 16));
    let kept = behind(0..20, 0);
    table.set_static(0, &kept);
    std::thread::scope(|scope| {
        for port in 1..3u16 {
            let (table, kept) = (&table, &kept);
            scope.spawn(move || {
                for round in 0..300 {
                    for &station in kept {
                        table.learn(station.into(), port, 1 + round);
                        assert_eq!(port_of(table, station.into(), port, 1 + round), Some(0));
                    }
                    flood(table, port, 40, 1 + round);
                }
            });
        }
        for round in 0..300 {
            table.set_static(3, &behind(100..100 + round % 30, 0));
            table.flush(|_, port| port == 1);
        }
    });
    table.set_static(3, &BTreeSet::new());
    table.set_static(0, &BTreeSet::new());
    table.flush(|_, _| true);
    assert_eq!((0..4).map(|port| table.shares.held(port)).collect::<Vec<_>>(), [0; 4]);
    assert_eq!(table.statics.unplaced.load(Ordering::Relaxed), 0);
    assert!(table.sets.iter().flatten().all(|entry| entry.key.load(Ordering::Relaxed) == 0));
}

/// A port with no addresses behind it, for lookups.
const OTHER: u16 = 1000;

fn table() -> AddressTable {
    AddressTable::new(64, Duration::from_secs(1))
}

#[test]
fn an_address_is_found_until_it_expires() {
    let table = table();
    assert_eq!(port_of(&table, A, OTHER, 1), None);
    table.learn(A, 3, 1);
    assert_eq!(port_of(&table, A, OTHER, 101), Some(3));
    assert_eq!(port_of(&table, A, OTHER, 102), None, "a second is 100 ticks");
    table.learn(A, 3, 50);
    assert_eq!(port_of(&table, A, OTHER, 149), Some(3));
    table.forget(3);
    assert_eq!(port_of(&table, A, OTHER, 149), None);
}

#[test]
fn addresses_are_separate_per_vlan() {
    let address = [2, 0, 0, 0, 0, 1];
    let (plain, tagged) = (AddressKey::ethernet(address, 0), AddressKey::ethernet(address, 5));
    assert_ne!(plain, tagged);
    let table = table();
    table.learn(plain, 1, 1);
    table.learn(tagged, 2, 1);
    assert_eq!(
        (port_of(&table, plain, OTHER, 2), port_of(&table, tagged, OTHER, 2)),
        (Some(1), Some(2))
    );
}

#[test]
fn a_host_that_moves_is_followed() {
    let table = AddressTable::new(64, Duration::from_secs(300));
    table.learn(A, 1, 1);
    table.learn(A, 2, 50);
    assert_eq!(port_of(&table, A, OTHER, 50), Some(1), "it has just been heard there");
    table.learn(A, 2, 102);
    assert_eq!(port_of(&table, A, OTHER, 102), Some(2));
    table.learn(A, 1, 110);
    assert_eq!(port_of(&table, A, OTHER, 110), Some(1), "back home");
}

#[test]
fn a_forged_address_stays_with_its_port() {
    let table = AddressTable::new(64, Duration::from_secs(300));
    table.learn(A, 1, 1);
    // The attacker sends all the time, the host twice per second.
    for now in 2..30_000 {
        table.learn(A, 2, now);
        if now % 50 == 0 {
            table.learn(A, 1, now);
        }
        assert_eq!(port_of(&table, A, OTHER, now), Some(1), "{now}");
    }
    assert!(table.loops.is_suspected(30_000), "an address at two ports is a hint");
}

#[test]
fn repeated_theft_of_an_address_works_for_less_and_less_time() {
    let table = AddressTable::new(64, Duration::from_secs(300));
    let (mut stolen, mut rounds) = (0, 0);
    // The host sends every five seconds, the attacker all the time.
    for now in 1..120_000 {
        if now % 500 == 1 {
            table.learn(A, 1, now);
            assert_eq!(
                port_of(&table, A, OTHER, now),
                Some(1),
                "its first word brings it back: {now}"
            );
            rounds += 1;
        }
        table.learn(A, 2, now);
        stolen += u64::from(port_of(&table, A, OTHER, now) == Some(2));
    }
    assert!(rounds == 240 && stolen < 5_000, "{stolen} ticks of 120,000");
}

#[test]
fn a_moved_host_gets_a_new_home_port_in_time() {
    let table = AddressTable::new(64, Duration::from_secs(10));
    table.learn(A, 1, 1);
    for now in (150..4_000).step_by(20) {
        table.learn(A, 2, now);
    }
    // The host returns to its first port after a long time, so it counts as new there.
    table.learn(A, 1, 4_000);
    assert_eq!(port_of(&table, A, OTHER, 4_000), Some(2));
}

#[test]
fn a_disputed_address_lies_behind_both_ports() {
    let table = AddressTable::new(64, Duration::from_secs(10));
    (1..3).for_each(|port| table.set_limit(port, 0));
    table.learn(A, 1, 1);
    // One frame with the address of a host that has been silent for 1.5 s.
    table.learn(A, 2, 151);
    for now in 151..1_000 {
        assert_eq!(ports_of(&table, A, OTHER, now), [2, 1], "{now}");
        // A packet never leaves by its ingress port.
        assert_eq!(
            (ports_of(&table, A, 2, now), ports_of(&table, A, 1, now)),
            (vec![1], vec![2]),
            "{now}"
        );
        assert!(
            [OTHER, 1, 2]
                .iter()
                .all(|&from| table.find(A, from, now).is_some_and(|located| located.is_disputed))
        );
    }
    // The dispute ends when the host sends again.
    table.learn(A, 1, 1_000);
    assert_eq!(
        (ports_of(&table, A, OTHER, 1_000), ports_of(&table, A, 1, 1_000)),
        (vec![1], vec![1])
    );
    assert!(!table.find(A, OTHER, 1_000).expect("known").is_disputed);
}

#[test]
fn a_moved_host_receives_its_packets_during_the_dispute() {
    let table = AddressTable::new(64, Duration::from_secs(10));
    table.learn(A, 1, 1);
    let mut settled = None;
    for now in 150..4_000 {
        table.learn(A, 2, now);
        let ports = ports_of(&table, A, OTHER, now);
        assert!(ports == [2, 1] && settled.is_none() || ports == [2], "{now}: {ports:?}");
        settled = settled.or((ports == [2]).then_some(now - 150));
    }
    // A dispute lasts one to two ageing times.
    assert!(settled.is_some_and(|ticks| (1_000..=2_000).contains(&ticks)), "{settled:?}");
}

#[test]
fn a_dispute_ends_when_a_port_is_removed() {
    for (gone, left) in [(1, vec![2]), (2, vec![])] {
        let table = AddressTable::new(64, Duration::from_secs(300));
        table.learn(A, 1, 1);
        table.learn(A, 2, 151);
        table.forget(gone);
        assert_eq!(
            ports_of(&table, A, OTHER, 152),
            left,
            "{gone}: whoever has this port next gets nothing"
        );
    }
}

#[test]
fn disputes_are_logged_once_per_second() {
    let table = table();
    let said = (1..=1_000).filter(|&now| table.may_warn(now)).count();
    assert_eq!(said, 10);
}

#[test]
fn a_full_set_replaces_the_oldest_entry() {
    let table = AddressTable::new(WAYS, Duration::from_secs(1000));
    let keys: Vec<_> =
        (0..100).map(|number| AddressKey::ethernet([2, 0, 0, 0, 0, number], 0)).collect();
    for (tick, key) in keys.iter().enumerate() {
        table.learn(*key, 7, 1 + tick as u64);
    }
    assert_eq!(table.count(7), WAYS);
    assert!(keys[96..].iter().all(|key| port_of(&table, *key, OTHER, 100) == Some(7)));
}

/// Makes a port learn made-up addresses.
fn flood(table: &AddressTable, port: u16, count: u32, now: u64) {
    for number in 0..count {
        let [a, b, c, d] = number.to_be_bytes();
        table.learn(AddressKey::ethernet([6, port as u8, a, b, c, d], 0), port, now);
    }
}

fn stations(port: u16, count: u8) -> Vec<AddressKey> {
    (0..count).map(|number| AddressKey::ethernet([2, 0, 0, 0, port as u8, number], 0)).collect()
}

#[test]
fn a_port_has_no_more_addresses_than_its_limit() {
    let table = AddressTable::new(1024, Duration::from_secs(10));
    table.set_limit(1, 100);
    table.set_limit(2, 0);
    flood(&table, 1, 10_000, 1);
    assert_eq!((table.count(1), table.shares.held(1)), (100, 100));
    flood(&table, 2, 10_000, 1);
    assert_eq!((table.count(2), table.shares.held(2)), (512, 512), "half of the table");
    table.set_limit(1, 200);
    flood(&table, 1, 10_000, 1);
    assert_eq!(table.shares.held(1), 200);
    // Expired addresses make room for others.
    table.expire(1_500);
    assert_eq!((table.shares.held(1), table.shares.held(2)), (0, 0));
    flood(&table, 2, 100, 1_500);
    table.close(2);
    assert_eq!((table.shares.held(2), table.shares.ports()), (0, 1));
}

#[test]
fn the_port_with_most_addresses_loses_first() {
    let table = AddressTable::new(8192, Duration::from_secs(300));
    (0..3).for_each(|port| table.set_limit(port, 8192));
    flood(&table, 0, 100_000, 1);
    assert_eq!(table.shares.held(0), 8192);
    // Hosts that come later find room, and keep it.
    let hosts: Vec<Vec<AddressKey>> = (1..3).map(|port| stations(port, 50)).collect();
    for (port, keys) in (1..).zip(&hosts) {
        keys.iter().for_each(|&key| table.learn(key, port, 2));
    }
    flood(&table, 0, 200_000, 3);
    for (port, keys) in (1..).zip(&hosts) {
        let known =
            keys.iter().filter(|&&key| port_of(&table, key, OTHER, 4) == Some(port)).count();
        assert_eq!(known, 50, "port {port}");
    }
    assert_eq!((table.shares.held(0), table.count(0)), (8092, 8092));
}

#[test]
fn consecutive_addresses_fill_all_sets_with_any_secret() {
    for _ in 0..100 {
        let table = AddressTable::new(1024, Duration::from_secs(10));
        let mut addresses = vec![0; table.sets.len()];
        for number in 0..12_800u32 {
            let [a, b, c, d] = number.to_be_bytes();
            addresses[table.index(AddressKey::ethernet([6, 0, a, b, c, d], 0))] += 1;
        }
        // Each set has 50 on average; with random numbers, one in 10^9 sets has fewer than 15 or
        // more than 105.
        assert!(addresses.iter().all(|count| (15..=105).contains(count)), "{addresses:?}");
    }
}

#[test]
fn used_addresses_stay_while_their_port_is_within_its_share() {
    let table = AddressTable::new(WAYS, Duration::from_secs(3000));
    (0..4).for_each(|port| table.set_limit(port, WAYS as u32));
    let [lonely, wanted] = stations(1, 2)[..] else { panic!("two") };
    table.learn(lonely, 1, 1);
    table.learn(wanted, 1, 2);
    assert_eq!(
        port_of(&table, lonely, 1, 3),
        Some(1),
        "asked for by its own port, which is not counted"
    );
    assert_eq!(port_of(&table, wanted, 2, 3), Some(1));
    flood(&table, 2, 2, 4);
    // The share of each port is one address, and port 1 has two addresses. It loses the one to
    // which no other host has sent.
    flood(&table, 3, 1, 5);
    assert_eq!((port_of(&table, lonely, 1, 6), port_of(&table, wanted, 1, 6)), (None, Some(1)));
    flood(&table, 3, 100, 7);
    assert_eq!(port_of(&table, wanted, 1, 8), Some(1));
    // A minute later the address that was sent to can be replaced like any other.
    flood(&table, 1, 100, 8_000);
    assert_eq!(port_of(&table, wanted, 1, 8_000), None);
}

#[test]
fn counts_are_right_with_concurrent_threads() {
    let table = AddressTable::new(256, Duration::from_secs(10));
    (0..4).for_each(|port| table.set_limit(port, 256));
    std::thread::scope(|scope| {
        for port in 0..4u16 {
            let table = &table;
            scope.spawn(move || {
                for round in 0..50 {
                    flood(table, port, 500, 1 + round * 7);
                    // The same addresses, at another port each time.
                    stations(9, 200)
                        .iter()
                        .for_each(|&key| table.learn(key, port, 1 + round * 1_200));
                    if round % 10 == 9 {
                        table.forget(port);
                    }
                }
            });
        }
    });
    let held: Vec<_> = (0..4).map(|port| table.shares.held(port)).collect();
    let occupied = |port| {
        let entries =
            table.sets.iter().flatten().filter(|entry| entry.key.load(Ordering::Relaxed) != 0);
        entries
            .filter(|entry| EntryState(entry.seen.load(Ordering::Relaxed)).port() == port)
            .count() as u32
    };
    assert_eq!(held, (0..4).map(occupied).collect::<Vec<_>>());
}

#[test]
fn threads_see_whole_entries() {
    let table = AddressTable::new(WAYS, Duration::from_secs(1000));
    std::thread::scope(|scope| {
        for thread in 0..2u16 {
            let table = &table;
            scope.spawn(move || {
                for round in 0..20_000u64 {
                    let number = (round * 7 + u64::from(thread)) % 16;
                    let key = AddressKey::ethernet([2, 0, 0, 0, 0, number as u8], 0);
                    table.learn(key, number as u16, 1 + round / 100);
                    if let Some(port) = port_of(table, key, OTHER, 1 + round / 100) {
                        assert_eq!(port, number as u16);
                    }
                }
            });
        }
    });
}

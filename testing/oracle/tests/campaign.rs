//! A short campaign: merged packets are segmented into the original ones.

#![cfg(target_os = "linux")]

use superpacket_oracle::campaign::{Campaign, CampaignTotals};

#[test]
fn every_packet_comes_back_as_it_was() {
    for seed in 0..4 {
        let mut campaign = Campaign::new(seed);
        let mut totals = CampaignTotals::default();
        while totals.packets < 50_000 {
            totals = campaign.poll().unwrap_or_else(|fault| panic!("seed {seed}: {}", fault.text));
        }
        // Each way of using an engine occurs, and merges packets.
        assert_eq!(campaign.by_face().len(), 8, "{:?}", campaign.by_face());
        for (face, totals) in campaign.by_face() {
            // LRO merges far fewer packets of this traffic.
            let share = if *face == "LRO" { 80 } else { 12 };
            assert!(
                totals.merged > totals.packets / share && totals.super_packets > 0,
                "{face}: {totals:?}"
            );
        }
        // About half of all packets of this traffic merge.
        assert!(
            totals.merged > totals.packets / 3 && totals.super_packets * 3 < totals.merged,
            "{totals:?}"
        );
    }
}

#[test]
fn a_seed_gives_the_same_polls_again() {
    let run = |seed| {
        let mut campaign = Campaign::new(seed);
        (0..500).map(|_| campaign.poll().map_err(|fault| fault.text)).collect::<Vec<_>>()
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

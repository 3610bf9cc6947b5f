//! The command `superpacket-oracle`: compares Linux's GRO and GSO with superpacket's, and counts
//! the differences by kind.

#![forbid(unsafe_code)]

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    command::main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> std::process::ExitCode {
    eprintln!("superpacket-oracle: there is no Linux kernel to compare with");
    std::process::ExitCode::from(2)
}

#[cfg(target_os = "linux")]
mod command {
    use std::process::ExitCode;
    use std::time::Instant;

    use clap::{Parser, Subcommand};
    use indicatif::{ProgressBar, ProgressStyle};
    use superpacket::virtio::Format;
    use superpacket_lab::{LabError, enter_user_namespace_if_needed};
    use superpacket_oracle::Kind;
    use superpacket_oracle::campaign::{Campaign, CampaignTotals};
    use superpacket_oracle::kernel::{KernelGro, KernelGso};
    use superpacket_oracle::matrix::Matrix;
    use superpacket_oracle::merged::Merged;
    use superpacket_oracle::run::{self, RunFault, RunReport};
    use superpacket_oracle::segment::GeneratedPackets;
    use superpacket_oracle::traffic::{Batches, combinations, in_two_tunnels};

    /// Compares Linux's GRO and GSO with superpacket's, on this machine, in network namespaces.
    ///
    /// Both sides receive generated frames and segment super-packets. The differences are counted
    /// by kind and printed in Markdown. A difference that no kind explains ends the run with status
    /// 1; its frames are saved in a capture file.
    #[derive(Debug, Parser)]
    #[command(version, args_conflicts_with_subcommands = true)]
    struct Arguments {
        #[command(subcommand)]
        command: Option<Command>,
        /// Number of frames to receive
        #[arg(long, value_name = "COUNT", default_value_t = 1_000_000)]
        frames: u64,
        /// Number of generated super-packets to segment, outside tunnels and again in tunnels
        ///
        /// A quarter of this number of merged super-packets is segmented as well. These are slower:
        /// an emulated guest takes 32 ms for each.
        #[arg(long, value_name = "COUNT", default_value_t = 100_000)]
        packets: u64,
        /// Seed of the random numbers: the same seed gives the same frames
        #[arg(long, value_name = "NUMBER", default_value_t = 1)]
        seed: u64,
    }

    #[derive(Debug, Subcommand)]
    enum Command {
        /// Gives this kernel one super-packet of each kind, and prints the results
        ///
        /// The table is in Markdown, by link header, tunnel, extension headers, size and flags, for
        /// packet sockets, TAP and TUN devices. It says whether the segments are the same as the
        /// engine's, byte for byte.
        Matrix,
        /// Aggregates generated packets, segments the results and compares, without a kernel
        ///
        /// Every packet must come back once, byte for byte, in the order of its flow. Otherwise the
        /// run ends with status 1, and the frames of the poll are saved in a capture file.
        Campaign {
            /// Number of packets to aggregate
            #[arg(long, value_name = "COUNT", default_value_t = 100_000_000)]
            packets: u64,
            /// Seed of the random numbers: the same seed gives the same packets
            #[arg(long, value_name = "NUMBER", default_value_t = 1)]
            seed: u64,
        },
    }

    pub(super) fn main() -> ExitCode {
        let arguments = Arguments::parse();
        if let Some(Command::Campaign { packets, seed }) = arguments.command {
            return campaign(packets, seed);
        }
        // If the kernel refuses the user namespace, creating the first network namespace reports
        // the reason.
        let _ = enter_user_namespace_if_needed();
        if let Some(Command::Matrix) = arguments.command {
            return matrix();
        }
        let begun = Instant::now();
        let report = match compare(&arguments) {
            Ok(report) => report,
            Err(error) => {
                eprintln!("superpacket-oracle: {error}");
                return ExitCode::from(2);
            }
        };
        print(&report, &arguments, begun.elapsed().as_secs_f64());
        for (number, fault) in report.faults.iter().enumerate() {
            eprintln!(
                "superpacket-oracle: seed {}: a difference that no kind explains\n{}",
                arguments.seed, fault.text
            );
            save(fault, &format!("superpacket-oracle-{}-{number}.pcap", arguments.seed));
        }
        ExitCode::from(u8::from(!report.faults.is_empty()))
    }

    fn matrix() -> ExitCode {
        match Matrix::ask() {
            Ok(matrix) => {
                print!("Linux {}.\n\n{matrix}", kernel_release());
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("superpacket-oracle: {error}");
                ExitCode::from(2)
            }
        }
    }

    fn kernel_release() -> String {
        std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
    }

    fn save(fault: &RunFault, name: &str) {
        match fault.save(name) {
            Ok(path) => eprintln!("superpacket-oracle: its frames are in {}", path.display()),
            Err(error) => eprintln!("superpacket-oracle: its frames could not be saved: {error}"),
        }
    }

    /// Number of polls between updates of the progress bar.
    const POLLS: u64 = 10_000;

    fn campaign(packets: u64, seed: u64) -> ExitCode {
        let begun = Instant::now();
        let style = ProgressStyle::with_template(
            "{wide_bar:.cyan/dim} {human_pos}/{human_len} packets, {per_sec}, {eta}",
        );
        let bar = ProgressBar::new(packets).with_style(style.expect("a right template"));
        let mut campaign = Campaign::new(seed);
        let mut totals = CampaignTotals::default();
        while totals.packets < packets {
            totals = match campaign.poll() {
                Ok(totals) => totals,
                Err(fault) => {
                    bar.finish_and_clear();
                    eprintln!("superpacket-oracle: seed {seed}: {}", fault.text);
                    save(&fault, &format!("superpacket-campaign-{seed}.pcap"));
                    return ExitCode::from(1);
                }
            };
            if totals.polls.is_multiple_of(POLLS) {
                bar.set_position(totals.packets);
            }
        }
        bar.finish_and_clear();
        let seconds = begun.elapsed().as_secs_f64();
        println!(
            "Seed {seed}, {seconds:.0} s, {:.2} million packets per second.\n{} packets in {} polls: {} merged in {} super-packets and came back by segmentation, {} left alone. Each came back once, byte for byte, in the order of its flow. Exceptions: from LRO only the payload comes back, and behind a virtio header identifications that stay the same are numbered anew.",
            totals.packets as f64 / seconds / 1e6,
            totals.packets,
            totals.polls,
            totals.merged,
            totals.super_packets,
            totals.packets - totals.merged
        );
        println!(
            "\n| used | packets | merged | super-packets | came back with other identifications |\n|---|---|---|---|---|"
        );
        for (name, totals) in campaign.by_face() {
            println!(
                "| {name} | {} | {} | {} | {} |",
                totals.packets, totals.merged, totals.super_packets, totals.renumbered
            );
        }
        ExitCode::SUCCESS
    }

    /// The number of generated super-packets that are segmented for each merged one. Segmenting
    /// merged ones takes far longer.
    const MERGED_SHARE: u64 = 4;

    fn compare(arguments: &Arguments) -> Result<RunReport, LabError> {
        let mut kernel = KernelGro::new()?;
        let mut report = RunReport { rules: kernel.rules(), ..RunReport::default() };
        let mut batches = Batches::new(arguments.seed, combinations(kernel.rules()));
        run::receive(&mut kernel, &mut batches, arguments.frames, &mut report)?;
        let nested = in_two_tunnels(kernel.rules());
        if !nested.is_empty() {
            run::receive(
                &mut kernel,
                &mut Batches::new(arguments.seed, nested),
                arguments.frames,
                &mut report,
            )?;
            run::receive_behind_geneve(&mut kernel, &mut report)?;
        }
        if report.faults.is_empty() {
            let generated = GeneratedPackets::new(arguments.seed);
            segment(KernelGso::new()?, generated, Format::Plain, arguments, &mut report)?;
        }
        if report.faults.is_empty() {
            match KernelGso::of_tunnels() {
                Ok(kernel) => {
                    let generated = GeneratedPackets::in_tunnels(arguments.seed);
                    segment(kernel, generated, Format::Tunnel, arguments, &mut report)?;
                }
                Err(error @ LabError::Unsupported { .. }) => {
                    eprintln!("superpacket-oracle: super-packets in tunnels are skipped: {error}")
                }
                Err(error) => return Err(error),
            }
        }
        Ok(report)
    }

    /// Segments generated super-packets, and super-packets that an engine merges for a device with
    /// this virtio header format.
    fn segment(
        mut kernel: KernelGso,
        mut generated: GeneratedPackets,
        format: Format,
        arguments: &Arguments,
        report: &mut RunReport,
    ) -> Result<(), LabError> {
        run::segment(&mut kernel, &mut generated, arguments.packets, report)?;
        let merged = arguments.packets.div_ceil(MERGED_SHARE);
        run::segment(&mut kernel, &mut Merged::new(arguments.seed, format), merged, report)
    }

    fn print(report: &RunReport, arguments: &Arguments, seconds: f64) {
        println!("Linux {}, seed {}, {seconds:.0} s.", kernel_release(), arguments.seed);
        let rules = report.rules;
        let rules = [
            (rules.vlans, "VLAN tags"),
            (rules.vxlan, "VXLAN"),
            (rules.geneve, "Geneve"),
            (rules.gro_hint, "a GRO hint in two tunnels"),
            (rules.fixed_ids, "the same identification without DF"),
            (rules.cwr, "CWR"),
            (rules.first_cwr, "CWR on the first alone"),
        ];
        let names = |merges: bool| {
            rules
                .iter()
                .filter(|(rule, _)| *rule == merges)
                .map(|(_, name)| *name)
                .collect::<Vec<_>>()
                .join(", ")
        };
        println!("Packets merge with {}; not with {}.", names(true), names(false));
        println!(
            "Received: {} frames, of which the kernel merged {}; {} polls were repeated.",
            report.frames, report.merged, report.repeated
        );
        if report.rules.gro_hint {
            println!(
                "With a GRO hint: {} of these, of which the kernel merged {}. Behind its Geneve device: {} merged packets, the same bytes.",
                report.hinted, report.hinted_merged, report.behind_geneve
            );
        } else {
            println!("No frames were in two tunnels: this kernel has no GRO hint.");
        }
        println!(
            "Segmented: {} super-packets into {} segments, the same bytes; both sides refused {}.\n",
            report.packets, report.segments, report.refused
        );
        println!("| difference | count | promise |\n|---|---|---|");
        for kind in Kind::ALL {
            println!(
                "| {} | {} | {} |",
                kind.name(),
                report.kinds.get(kind).unwrap_or(&0),
                kind.promise()
            );
        }
    }
}

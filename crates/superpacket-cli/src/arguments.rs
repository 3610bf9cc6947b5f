//! The arguments of the program: its commands, with their help texts and examples.

use clap::{Parser, Subcommand};
use clap_complete::Shell;

use crate::captures::analyze::AnalyzeArguments;
use crate::captures::check::CheckArguments;
use crate::captures::coalesce::CoalesceArguments;
use crate::captures::segment::SegmentArguments;
use crate::captures::steer::SteerArguments;
use crate::captures::verify::VerifyArguments;
use crate::extcap::ExtcapArguments;
use crate::generate::GenerateArguments;

/// Aggregate, segment, verify and analyze packet captures, and bridge live ports, by the rules of
/// LRO, GRO, TSO and GSO
///
/// Captures are pcap or pcapng files, plain or compressed with gzip or zstd; `-` is standard input
/// or output. `tcp://HOST:PORT` connects to another program and reads or writes a capture there
/// (PCAP-over-IP); `tcp-listen://ADDRESS:PORT` waits for one connection. Memory use stays below
/// 64 MB, whatever the file's size, except for `analyze --flows`.
///
/// Commands that read captures may read one that is still being made. They write what they have
/// whenever nothing arrives. Ctrl-C (SIGINT), SIGTERM or SIGHUP ends the input: the output is
/// completed, and the report printed. A second signal ends the program, and leaves no output.
///
/// An output file gets its name when it is complete. It takes over the permissions of the file that
/// it replaces, except set-id bits, and except write permission for others if you do not own that
/// file. If the output is a symbolic link that you or root own, the link stays and its target is
/// written; any other link is refused.
#[derive(Debug, Parser)]
#[command(name = "superpacket", version, max_term_width = 110, subcommand_required = true, arg_required_else_help = true, after_help = EXIT_CODES, after_long_help = EXIT_CODES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 the check failed, 2 bad usage or unreadable input, 3 not all packets could be judged (check).";

/// The commands of the program.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Merge the packets of each flow into super-packets, as GRO or LRO would have
    #[command(after_help = "Examples:
  superpacket coalesce in.pcap -o out.pcap
  superpacket coalesce in.pcapng.zst -o out.pcapng --batch 0 --hold 3600s
  superpacket coalesce in.pcap -o out.pcap --mode lro --acks
  superpacket coalesce in.pcap -o web.pcap --filter 'tcp port 443'
  tcpdump -U -w - -i eth0 | superpacket coalesce - -o - | tcpdump -r -
  tcpdump -U -w - | superpacket coalesce - -o tcp-listen://127.0.0.1:57012
  superpacket coalesce tcp://127.0.0.1:57012 -o out.pcap
  superpacket coalesce trace.pcap --rotated --follow -o out.pcap

If nothing arrives from a pipe, connection or followed file, held packets leave after --hold of \
real time, and the output is flushed. The first Ctrl-C completes the output.

Packets stay in order. A merged packet has the place and the time of its first packet; with --mode \
lro, of its last packet if that one acknowledges more. Its checksums are right.

Packets that cannot be merged pass unchanged, except for checksums that the sender left to its \
network card: these are completed and counted, unless --keep-partial is given. Packets with wrong \
checksums do not merge; --fix-checksums corrects and counts them.

Options of pcapng packets (comments, flags) are kept; a merged packet has the options of its \
last packet, except a hash of its bytes.

Other blocks of a pcapng file, such as TLS keys, stay in their place, before the packets that are \
held meanwhile. The report counts those that the output cannot hold.")]
    Coalesce(CoalesceArguments),
    /// Cut frames above the MTU into the frames that a wire would have carried
    #[command(after_help = "Examples:
  superpacket segment in.pcap -o out.pcap
  superpacket segment in.pcapng -o out.pcapng --mtu 9000
  superpacket segment in.pcap -o - | tcpreplay -i eth0 -
  superpacket segment in.pcap -o tcp://127.0.0.1:4242
  superpacket segment in.pcap -o out.pcap --fragment
  superpacket segment anonymised.pcap -o out.pcap --fix-checksums
  superpacket segment in.pcap -o out.pcap --filter 'host 10.0.0.1'

TCP and DCCP are always segmented. A UDP datagram above the MTU is segmented with --udp-size, if \
it was several datagrams (USO, UDP GRO), or fragmented with --fragment, if it was one. \
--fragment also cuts all other packets above the MTU: over IPv4 if the don't-fragment bit is \
clear, over IPv6 with a fragment header. Only the sender's host could have added that header, no \
router may (RFC 8200, section 4.5). Frames that cannot be cut pass and are counted by reason.

Checksums that the sender left to its network card are completed and counted, also in frames that \
are not cut; --keep-partial leaves these. Frames above the MTU whose checksums are wrong stay \
uncut. --fix-checksums corrects them: after an anonymiser, for example, or after LRO that kept the \
checksum of the first packet. With --strict such frames are an error (exit code 2).")]
    Segment(SegmentArguments),
    /// Aggregate (GRO), segment again, and compare byte for byte
    #[command(after_help = "Examples:
  superpacket verify in.pcap
  superpacket verify captures/*.pcap* --batch 0 --hold 3600s
  superpacket verify in.pcap --filter 'not udp'

Exit code 1 if a byte differs.")]
    Verify(VerifyArguments),
    /// Judge whether another implementation merged or cut these packets faithfully
    #[command(after_help = "Examples:
  superpacket check merged.pcapng --origin received.pcap
  superpacket check cut.pcap --origin sent.records --rules reversible
  superpacket check merged.records --origin received.pcap --json | jq .by_rule
  superpacket check merged.pcap --origin received.pcap --filter 'tcp port 443'

FILE is the implementation's output, ORIGIN its input. Each is a capture, or a file of records \
whose packets may have a virtio_net_hdr (docs/check.md describes both formats). Whether packets \
were merged or segmented is determined per packet: an output packet stands for one input packet, \
for several, or for a part of one.

If the header of an input packet says how to segment it, the output is compared with the \
segments that the kernel would make. Properties that cannot be judged without a header are \
listed.

With the rules \"linux\", packets whose IPv4 identifications are all the same may merge, and a \
packet that Linux does not merge may overtake held packets of its flow. With \"reversible\", a \
packet and its header alone must restore every byte, in order.

Exit codes: 0 faithful; 1 a rule is broken; 2 bad usage or unreadable input; 3 no rule is \
broken, but some packets could not be judged: a file was cut short, a signal ended the reading, \
a snap length cut packets, or a header of the input contradicts its packet.")]
    Check(CheckArguments),
    /// Show what LRO, GRO, GRO with UDP and pure-ACK aggregation would merge, and why packets
    /// stayed apart
    #[command(after_help = "Examples:
  superpacket analyze in.pcap
  superpacket analyze *.pcap.gz --html report.html
  superpacket analyze in.pcap --json | jq .policies.gro_udp.reasons
  superpacket analyze in.pcap --filter 'tcp port 443 or udp port 443'
  superpacket analyze trace.pcap --rotated
  tcpdump -U -w - -i eth0 | superpacket analyze -
  superpacket analyze in.pcap --flows flows.csv
  sort -t, -k12,12nr flows.csv | head

The last two list the flows whose packets merge most: column 12 of the flows is packets_saved. \
docs/captures.md describes the columns. A flow has one direction, and takes about 300 bytes of \
memory. A million flows of each capture are listed, and the packets of all others are in one row.

Text is as wide as the terminal, and 80 columns in a pipe; file names may be longer.")]
    Analyze(AnalyzeArguments),
    /// Show how a capture's flows and packets would spread over the CPUs of a host (RPS)
    #[command(after_help = "Examples:
  superpacket steer in.pcap --cpus ff
  superpacket steer in.pcap --cpu-list 0-3,8 --symmetric
  superpacket steer in.pcap --cpus 1,00000000 --html report.html
  superpacket steer in.pcap --cpus f --json | jq '.cpus, .imbalance'
  superpacket steer in.pcap --cpus ff --filter 'greater 1000'

A flow's CPU is the one that the kernel chooses: the Toeplitz hash of the addresses and ports is \
scaled to the number of CPUs in the mask. Fragments, and protocols other than TCP, UDP and DCCP, \
are hashed by their addresses alone. An empty mask switches steering off. The flow limit is \
shown for an overload in which every backlog stays at least half full: it drops packets of a \
flow that has more than half of the last 128. --json lists the first 100,000 flows; the packets \
of all others are only counted by CPU.")]
    Steer(Box<SteerArguments>),
    /// Write a capture of generated traffic
    #[command(after_help = "Examples:
  superpacket generate bulk.pcap --size 1G
  superpacket generate super.pcap --size 1G --uncut
  superpacket generate flows.pcap --size 200M --flows 1000000 --payload 100
  superpacket generate demo.pcap.gz --workload mixed --size 1M

The same arguments give the same file.")]
    Generate(GenerateArguments),
    /// Let Wireshark list superpacket as an interface: the merged packets of a live capture, and
    /// the ports of running bridges
    #[command(after_help = "Examples:
  superpacket extcap --install
  tshark -D
  tshark -i superpacket -o extcap.superpacket.device:lo -a duration:5
  superpacket extcap --install --control /run/my-bridge/control.sock
  superpacket extcap --uninstall

In Wireshark, the gear beside the interface superpacket opens a dialog with the options; tshark \
takes them as preferences, as above. Dumpcap captures, so whoever may capture with Wireshark may \
do so with this interface. The packets are merged as by `superpacket coalesce`.

The ports of a bridge have interfaces such as superpacket:packet:eth0, with the packets that \
`superpacket monitor` shows (Linux). Bridges at the default control sockets are found, and those \
that --control names.

--install writes a script with the path of this program into the personal extcap folders of \
Wireshark: ~/.local/lib/wireshark/extcap, and for versions before 4.2 ~/.config/wireshark/extcap; \
on Windows %APPDATA%\\Wireshark\\extcap.")]
    Extcap(Box<ExtcapArguments>),
    /// Repeat the measurements of five mailing-list messages about these offloads on this machine
    #[cfg(target_os = "linux")]
    #[command(after_help = "Examples:
  superpacket lab all --quick
  superpacket lab all --quick --full
  superpacket lab all --html report.html
  superpacket lab lro --rounds 20 --seconds 2
  superpacket lab gso --model --json | jq .marks
  superpacket lab rps --sender-cpus 0-3 --receiver-cpus 4-7 --bridge-cpus 8-15

The hosts are network namespaces, joined by the ports, engine and bridge of this program. Kernel \
TCP runs at both ends, and the machine's own network is not touched. Each ratio has a target, \
and the report says whether it was reached, or that there was nothing to spare because no CPU \
was idle; the ratio of the source's figures is shown beside it \
if there is one. --full prints the tables. Variants are measured in turn; figures are medians \
with the range of half the rounds. Where namespaces are forbidden, only the counts that need \
none are shown. Without --quick, all experiments take about a quarter of an hour.

Exit codes: 0 done, whether targets are reached or not; 1 an experiment failed; 2 bad usage or \
an unwritable file; 130 interrupted.")]
    Lab(crate::lab::LabArguments),
    /// Load a path between two network namespaces, in the shape of netperf
    #[cfg(target_os = "linux")]
    #[command(after_help = "Examples:
  superpacket load stream 10.0.0.2 --client $A --server $B --time 10s
  superpacket load rr 10.0.0.2 --client left --server right --connections 500
  superpacket load sendfile 10.0.0.2 --server right --bytes 1G --server-cpus 1
  superpacket load udp 10.0.0.2 --client left --server right --rate 100000

This process runs both ends. In one namespace the server listens at the address, on a port that \
the kernel chooses; the client connects from the other namespace. A namespace is the number of a \
process in it, a name of ip-netns(8), or a path; the default is the namespace in which the \
program was started. With --verify every byte is compared. The CPU times of sender and receiver \
cover their threads, system calls included; the machine's covers everything that runs on it.

Exit codes: 0 done; 1 bytes were lost, changed or stalled; 2 bad usage, or no connection.")]
    Load(Box<crate::load::LoadArguments>),
    #[cfg(target_os = "linux")]
    #[command(flatten)]
    Live(crate::live::LiveCommand),
    /// Print a completion script for a shell
    #[command(after_help = "Examples:
  source <(superpacket completions bash)
  source <(superpacket completions zsh)
  superpacket completions fish | source

The script completes commands, options and files. It fits the version of the program that printed \
it; if it is kept in a file, print it again after each update.")]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print a man page (roff)
    #[command(after_help = "Examples:
  superpacket man | man -l -
  superpacket man coalesce > superpacket-coalesce.1")]
    Man {
        /// The command to describe; without it, the program
        command: Option<String>,
    },
}

/// What SIGINT, SIGTERM and SIGHUP do to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalHandling {
    /// The first signal ends the command's input, and the second one the program.
    EndsInput,
    /// A signal ends the program.
    EndsProgram,
    /// The command handles signals itself.
    Own,
}

impl Command {
    /// Returns what signals do to the command.
    pub(crate) fn signal_handling(&self) -> SignalHandling {
        match self {
            Command::Coalesce(_)
            | Command::Segment(_)
            | Command::Verify(_)
            | Command::Check(_)
            | Command::Analyze(_)
            | Command::Steer(_) => SignalHandling::EndsInput,
            Command::Extcap(_) => SignalHandling::Own,
            #[cfg(target_os = "linux")]
            Command::Lab(_) => SignalHandling::Own,
            #[cfg(target_os = "linux")]
            Command::Live(command) if command.handles_signals() => SignalHandling::Own,
            _ => SignalHandling::EndsProgram,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definitions_are_consistent() {
        Arguments::command().debug_assert();
    }

    /// Returns the paragraphs of the texts that come after the options in the commands' help.
    fn paragraphs() -> Vec<(String, String)> {
        let program = Arguments::command();
        let each = program.get_subcommands().flat_map(|command| {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            help.split("\n\n")
                .map(|text| (command.get_name().to_owned(), text.to_owned()))
                .collect::<Vec<_>>()
        });
        each.collect()
    }

    #[test]
    fn lists_fit_80_columns_and_paragraphs_are_broken_by_the_terminal_alone() {
        for (command, text) in paragraphs() {
            if text.starts_with("Example") || text.starts_with("Settings") {
                assert!(text.lines().all(|line| line.chars().count() <= 80), "{command}: {text}");
            } else {
                assert!(!text.trim_end().contains('\n'), "{command}: {text}");
            }
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn every_option_of_a_port_that_a_help_names_exists() {
        let (mut named, directory) = (0, std::env::temp_dir());
        let texts: Vec<_> = paragraphs().into_iter().map(|(_, text)| text).collect();
        for word in texts.iter().flat_map(|text| {
            text.split(|character: char| character.is_whitespace() || "()".contains(character))
        }) {
            let Some((port, options)) = word.trim_matches(['.', ',', '\'']).split_once('?') else {
                continue;
            };
            let (kind, _) = port.split_once(':').expect("a port string");
            // Options are checked before this name is used, which no interface or file has.
            let absent = if kind == "pcap" {
                directory.join("absent.pcap").display().to_string()
            } else {
                "absent0".to_owned()
            };
            let spec: superpacket_port::PortSpec =
                format!("{kind}:{absent}?{options}").parse().expect(word);
            let error = superpacket_model::open(&spec).map(|_| ()).expect_err("there is none");
            assert!(!matches!(error, superpacket_port::PortError::Spec(_)), "{word}: {error}");
            named += 1;
        }
        assert!(named >= 2, "{named} are named");
    }

    #[test]
    fn json_is_j_for_short_in_every_command_that_has_it() {
        fn with_json(command: &clap::Command, path: &str, found: &mut Vec<String>) {
            let path = format!("{path} {}", command.get_name());
            for argument in command.get_arguments() {
                let is_json = argument.get_long() == Some("json");
                assert_eq!(
                    argument.get_short() == Some('j'),
                    is_json,
                    "{path}: {}",
                    argument.get_id()
                );
                if is_json {
                    found.push(path.clone());
                }
            }
            command.get_subcommands().for_each(|command| with_json(command, &path, found));
        }
        let mut program = Arguments::command();
        program.build();
        let mut found = Vec::new();
        with_json(&program, "", &mut found);
        for command in ["check", "stats", "fdb", "lab", "load"] {
            assert!(found.contains(&format!(" superpacket {command}")), "{command}: {found:?}");
        }
        // Options must also be accepted after words such as `show`, which are no subcommands.
        for line in
            ["stats -j", "fdb show -j", "vlan show dev left -j", "check a --origin b -j", "top -j"]
        {
            let words = std::iter::once("superpacket").chain(line.split(' '));
            assert!(Arguments::try_parse_from(words).is_ok(), "{line}");
        }
    }

    #[test]
    fn every_command_that_reads_has_examples_and_json() {
        for command in Arguments::command().get_subcommands() {
            assert!(
                command.get_after_help().is_some_and(|help| help.to_string().contains("Example")),
                "{}",
                command.get_name()
            );
            let prints_a_report = !matches!(command.get_name(), "completions" | "extcap" | "man");
            assert_eq!(
                command.get_arguments().any(|argument| argument.get_id() == "json"),
                prints_a_report,
                "{}",
                command.get_name()
            );
        }
    }
}

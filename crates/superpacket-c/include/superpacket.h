/**
 * \file superpacket.h
 * libsuperpacket: aggregation (GRO, LRO) and segmentation (TSO, GSO) of packets in the caller's own
 * buffers, checksums, Toeplitz hashes.
 *
 * Made from the library's sources: do not edit. SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * - Packets are pointers and lengths, each with a pointer of the caller's own (token). Packets that
 *   a call puts out are arrays of struct iovec, which point into the caller's packets, and into the
 *   caller's memory for headers. There are no callbacks.
 * - The library allocates when an object is made, while its tables grow to what the traffic needs,
 *   and when a name of a counter or a reason is first requested. All other calls allocate nothing.
 * - Different threads may use an object, but only one at a time. A call that finds its object in
 *   use returns SP_ERROR_BUSY. Functions without an object may be called by any thread at any time.
 * - For NULL, a pointer that is not aligned, an impossible length, or a number that is not one of
 *   the named values, an error is returned, and nothing has happened. sp_message() describes the
 *   error. The library cannot detect a wild pointer, or memory that is shorter than the caller says.
 * - Checksums are verified before packets merge, unless a device has verified them or the caller
 *   sets SP_POLICY_TRUSTED_INPUT.
 * - Memory that the caller provides for outputs must overlap neither the packets nor other outputs.
 */


#ifndef SUPERPACKET_H
#define SUPERPACKET_H

#include <stddef.h>
#include <stdint.h>

#ifdef _WIN32
/** A range of memory, with the fields of POSIX's struct iovec. */
typedef struct sp_iovec {
    void *iov_base;
    size_t iov_len;
} sp_iovec;
#else
#include <sys/uio.h>
/** A range of memory: the struct iovec of writev(2). */
typedef struct iovec sp_iovec;
#endif

/**
 * No tunnel.
 */
#define SP_TUNNEL_NONE 0

/**
 * VXLAN over UDP: the inner packet is an Ethernet frame.
 */
#define SP_TUNNEL_VXLAN 1

/**
 * Geneve over UDP: the inner packet is an Ethernet frame or an IP packet.
 */
#define SP_TUNNEL_GENEVE 2

/**
 * GRE: the inner packet is an IP packet or an Ethernet frame.
 */
#define SP_TUNNEL_GRE 3

/**
 * IP directly in IP: IPIP, SIT, IPv4 or IPv6 in IPv6.
 */
#define SP_TUNNEL_IP 4

/**
 * Maximum length of a packet, and of each of its buffers: 16 MiB.
 */
#define SP_MAX_LENGTH (1 << 24)

/**
 * The state of the checksums is unknown. They are verified in software where needed.
 */
#define SP_CHECKSUM_NONE 0

/**
 * The device verified checksum_level + 1 transport checksums, from the outermost on. UDP checksums
 * of 0 are not counted.
 */
#define SP_CHECKSUM_VERIFIED 1

/**
 * checksum_sum is the one's-complement sum of all bytes behind the 14 bytes of the Ethernet header
 * (of all bytes, if the packet starts at IP), in host byte order.
 */
#define SP_CHECKSUM_SUM 2

/**
 * The checksum field holds the sum of the pseudo-header, not inverted, and must be completed.
 * checksum_start is where the sum starts, in bytes from the start of the packet. checksum_offset
 * is the position of the checksum field, in bytes from checksum_start.
 */
#define SP_CHECKSUM_PARTIAL 3

/**
 * The packet is no super-packet.
 */
#define SP_GSO_NONE 0

/**
 * TCP over IPv4.
 */
#define SP_GSO_TCP4 1

/**
 * TCP over IPv6.
 */
#define SP_GSO_TCP6 2

/**
 * UDP datagrams of equal size; the last one may be shorter (USO).
 */
#define SP_GSO_UDP 3

/**
 * One UDP datagram, to be split into IP fragments (UFO).
 */
#define SP_GSO_UDP_FRAGMENTS 4

/**
 * DCCP data packets.
 */
#define SP_GSO_DCCP 5

/**
 * The field hash contains a flow hash from the device.
 */
#define SP_OFFLOAD_HASH 1

/**
 * All segments have the super-packet's IPv4 identification. Without this flag, the identification
 * increments by one with each segment.
 */
#define SP_OFFLOAD_FIXED_ID 2

/**
 * All segments have the super-packet's identification in the outer IPv4 header of a tunnel; in the
 * outermost one, if there are two tunnels.
 */
#define SP_OFFLOAD_FIXED_OUTER_ID 4

/**
 * All segments have CWR if the super-packet has it. Without this flag, only the first segment has
 * it.
 */
#define SP_OFFLOAD_CWR_ALL 8

/**
 * The merged packets had partial checksums.
 */
#define SP_OFFLOAD_MERGED_PARTIAL 16

/**
 * All segments have the super-packet's identification in the IPv4 header of the second of two
 * tunnels.
 */
#define SP_OFFLOAD_FIXED_NESTED_ID 32

/**
 * Maximum number of buffers of a packet that is to be aggregated, the first included.
 */
#define SP_MAX_BUFFERS 17

/**
 * Maximum number of buffers of any other packet, such as a merged packet that is to be segmented,
 * the first included.
 */
#define SP_MAX_RANGES 1024

/**
 * Maximum packets per call.
 */
#define SP_MAX_PACKETS (1 << 20)

/**
 * Maximum header memory per output in bytes: the headers of a packet, and a virtio_net_hdr.
 */
#define SP_MAX_HEADER 320

/**
 * Packets start at the Ethernet header.
 */
#define SP_LAYER_ETHERNET 0

/**
 * Packets start at the IP header, as with TUN devices.
 */
#define SP_LAYER_IP 1

/**
 * Generic receive offload of TCP and DCCP: merged packets can be segmented into the original
 * frames.
 */
#define SP_MODE_GRO 0

/**
 * As SP_MODE_GRO, also for UDP datagrams of equal length.
 */
#define SP_MODE_GRO_UDP 1

/**
 * Large receive offload, only for local delivery. Acknowledgements, windows and timestamps take
 * the newest values.
 */
#define SP_MODE_LRO 2

/**
 * As SP_MODE_LRO, and pure ACKs are absorbed into the newest one.
 */
#define SP_MODE_LRO_ACKS 3

/**
 * Checksums of unknown state count as correct, and payloads are not read. A damaged packet may
 * then merge, and completing the partial checksum makes it look correct. A cipher does not prevent
 * this: it proves that the peer sent these bytes, not that they reached the peer intact. Without
 * effect if merged packets leave with complete checksums.
 */
#define SP_POLICY_TRUSTED_INPUT 1

/**
 * Merged packets leave with partial checksums, for a device or a kernel that completes them. A
 * stack that verifies checksums treats such a packet as damaged.
 */
#define SP_POLICY_PARTIAL_CHECKSUMS 2

/**
 * The hash key of the flow table is the field key instead of a random number, for reproducible
 * tests.
 */
#define SP_POLICY_FIXED_KEY 4

/**
 * virtio_net_hdr in host byte order: the default of TUN and packet sockets.
 */
#define SP_ORDER_NATIVE 0

/**
 * virtio_net_hdr in little-endian order: virtio 1.0, TUN after TUNSETVNETLE.
 */
#define SP_ORDER_LITTLE 1

/**
 * virtio_net_hdr in big-endian order: TUN after TUNSETVNETBE.
 */
#define SP_ORDER_BIG 2

/**
 * Default limit of ranges per packet. With two ranges of headers, it is the maximum of writev(2)
 * on Linux.
 */
#define SP_DEFAULT_FRAGMENTS 1022

/**
 * The transport checksums of segments are complete.
 */
#define SP_OUTPUT_FULL 0

/**
 * The checksums of segments hold the sum of the pseudo-header, for a device that completes them.
 * The payload is not read.
 */
#define SP_OUTPUT_PARTIAL 1

/**
 * The checksums of segments are partial or complete, as those of the merged packets were.
 */
#define SP_OUTPUT_AS_MERGED 2

/**
 * Length of a key in bytes, enough for IPv6 addresses and ports.
 */
#define SP_TOEPLITZ_KEY 40

/**
 * Both directions of a connection have the same hash: the XOR of both end points is hashed.
 */
#define SP_TOEPLITZ_SYMMETRIC 1

/**
 * The result of a call: SP_OK, a positive number that is no error, or a negative number for an
 * error.
 *
 * Further values may be added. Treat unknown negative values as errors. Before C23 the type
 * sp_status is int32_t, so that it has 32 bits with every compiler.
 */
enum sp_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * The call is complete.
     */
    SP_OK = 0,
    /**
     * The sp_space is full. Use its outputs. The function's comment names the call that continues.
     */
    SP_FULL = 1,
    /**
     * There is no result: no checksum in this packet, no flow to hash, or no held flow.
     */
    SP_NONE = 2,
    /**
     * A pointer that must not be NULL is NULL.
     */
    SP_ERROR_NULL = -1,
    /**
     * A length or a count is above its limit, or reaches beyond the end of the address space.
     */
    SP_ERROR_LENGTH = -2,
    /**
     * A value is not one of the allowed ones, or a reserved field is not 0.
     */
    SP_ERROR_ARGUMENT = -3,
    /**
     * The size of a structure is smaller than in any release, or larger than this library knows
     * and the rest of the structure is not 0.
     */
    SP_ERROR_STRUCTURE = -4,
    /**
     * The space, or a buffer, has no room for a single output or for all segments.
     */
    SP_ERROR_SPACE = -5,
    /**
     * An earlier call returned SP_FULL and has been neither continued nor abandoned.
     */
    SP_ERROR_UNFINISHED = -6,
    /**
     * The packets are not those of the call that is to be continued.
     */
    SP_ERROR_OTHER_PACKETS = -7,
    /**
     * A fault of the library was caught in this call or an earlier one. From then on, the object
     * refuses all calls except its sp_..._free.
     */
    SP_ERROR_INTERNAL = -8,
    /**
     * A transport checksum is wrong.
     */
    SP_ERROR_CHECKSUM = -9,
    /**
     * An IPv4 header checksum is wrong.
     */
    SP_ERROR_IP_CHECKSUM = -10,
    /**
     * A virtio_net_hdr contradicts its packet, or none can describe it.
     */
    SP_ERROR_VIRTIO = -11,
    /**
     * The object is in use by another call: in another thread, or in code that a signal handler
     * interrupted. This call had no effect. Calls that only read counters or a deadline are not
     * refused.
     */
    SP_ERROR_BUSY = -12,
    /**
     * The headers of a packet cannot be parsed.
     */
    SP_ERROR_HEADERS = -16,
    /**
     * The gso_type does not match the packet's headers.
     */
    SP_ERROR_KIND = -17,
    /**
     * The packet is shorter than its headers say.
     */
    SP_ERROR_TRUNCATED = -18,
    /**
     * An inner length field contradicts an outer length field.
     */
    SP_ERROR_INNER_LENGTH = -19,
    /**
     * The packet has more segments than allowed.
     */
    SP_ERROR_TOO_MANY_SEGMENTS = -20,
    /**
     * A segment is too long for the length fields of its headers.
     */
    SP_ERROR_SEGMENT_TOO_LONG = -21,
    /**
     * A segment has no room for its headers.
     */
    SP_ERROR_SEGMENT_TOO_SMALL = -22,
    /**
     * A DCCP checksum covers more than the shortest segment holds.
     */
    SP_ERROR_COVERAGE = -23,
    /**
     * The packet must not be fragmented.
     */
    SP_ERROR_DONT_FRAGMENT = -24,
    /**
     * A partial checksum lies outside its packet.
     */
    SP_ERROR_CHECKSUM_PLACE = -25,
    /**
     * A header is longer than the headers of the packet that were parsed.
     */
    SP_ERROR_HEADER_LENGTH = -26,
    /**
     * A partial checksum cannot be completed.
     */
    SP_ERROR_PARTIAL_CHECKSUM = -28,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sp_status sp_status;
#else
typedef int32_t sp_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * An aggregator for the packets of one receive queue. It may hold packets across calls.
 *
 * Different threads may use it, but only one at a time. Its tables grow as the traffic needs and
 * keep their size; after that, calls allocate no memory.
 */
typedef struct sp_aggregator sp_aggregator;

/**
 * An aggregator of batches: it borrows the packets of one call, and holds none between calls,
 * except after SP_FULL.
 *
 * Different threads may use it, but only one at a time. Its tables grow as the traffic needs and
 * keep their size; after that, calls allocate no memory.
 */
typedef struct sp_batch sp_batch;

/**
 * A segmenter of super-packets. Only creating it allocates memory.
 *
 * Different threads may use it, but only one at a time.
 */
typedef struct sp_segmenter sp_segmenter;

/**
 * The tables of one key: 36 KiB. They never change, so any number of threads may use them.
 */
typedef struct sp_toeplitz sp_toeplitz;

/**
 * The aggregation policy.
 *
 * Set all of it to 0, then size to sizeof(struct sp_policy), then the fields that differ from the
 * default: 0 is the default of each field. Later releases add fields at its end. A program
 * compiled with an older header passes the older size, and gets the defaults of the newer fields.
 */
typedef struct sp_policy {
    /**
     * sizeof(struct sp_policy).
     */
    size_t size;
    /**
     * SP_MODE_GRO or another mode.
     */
    uint32_t mode;
    /**
     * SP_LAYER_ETHERNET or SP_LAYER_IP.
     */
    uint32_t layer;
    /**
     * SP_POLICY_TRUSTED_INPUT and other flags. 0: the library verifies every checksum that no
     * device has verified.
     */
    uint32_t flags;
    /**
     * Length of the virtio_net_hdr before each packet that a batch puts out: 10, 12, 20 or 24
     * bytes, or 0 for none. With a header, merged packets have partial checksums, which the header
     * asks the device to complete.
     */
    uint32_t virtio_length;
    /**
     * Byte order of the virtio_net_hdr: SP_ORDER_NATIVE or another SP_ORDER constant.
     */
    uint32_t virtio_order;
    /**
     * Maximum length of a merged packet, in bytes from the outermost IP header on. 0: 65,535. Up
     * to 524,280 for TCP (BIG TCP).
     */
    uint32_t max_bytes;
    /**
     * Maximum number of packets that are merged into one packet. 0: no limit.
     */
    uint32_t max_packets;
    /**
     * Maximum number of UDP datagrams that are merged into one packet. 0: 64.
     */
    uint32_t max_datagrams;
    /**
     * Maximum number of buffer ranges per packet. 0: SP_DEFAULT_FRAGMENTS.
     */
    uint32_t max_fragments;
    /**
     * Maximum number of held flows. 0: 1,024, or 8 for LRO.
     */
    uint32_t max_flows;
    /**
     * Maximum total length of held frames, in bytes. 0: 32 MiB.
     */
    uint64_t max_held_bytes;
    /**
     * Time for which an sp_aggregator may hold a flow past sp_aggregator_poll_end, in nanoseconds.
     * 0: none. An sp_batch ignores it.
     */
    uint64_t hold_time;
    /**
     * With SP_POLICY_FIXED_KEY: the key of 128 bits.
     */
    uint64_t key[2];
} sp_policy;

/**
 * The metadata of a packet. If all fields are zero, nothing is known.
 *
 * The library accepts what it writes: the metadata of an output is valid for the packet made of
 * that output.
 */
typedef struct sp_offload {
    /**
     * State of the checksums: SP_CHECKSUM_NONE or another SP_CHECKSUM constant.
     */
    uint8_t checksum;
    /**
     * With SP_CHECKSUM_VERIFIED: number of verified checksums, minus one.
     */
    uint8_t checksum_level;
    /**
     * With SP_CHECKSUM_PARTIAL: where the sum starts, in bytes from the start of the packet.
     */
    uint16_t checksum_start;
    /**
     * With SP_CHECKSUM_PARTIAL: position of the checksum field, in bytes from checksum_start.
     */
    uint16_t checksum_offset;
    /**
     * With SP_CHECKSUM_SUM: the sum that the comment of this constant describes.
     */
    uint16_t checksum_sum;
    /**
     * How to segment the packet: SP_GSO_NONE or another SP_GSO constant.
     */
    uint8_t gso_type;
    /**
     * SP_OFFLOAD_HASH and the other SP_OFFLOAD flags.
     */
    uint8_t flags;
    /**
     * Payload bytes per segment, except the last; at least 1, unless gso_type is SP_GSO_NONE.
     */
    uint16_t gso_size;
    /**
     * The flow hash, with SP_OFFLOAD_HASH.
     */
    uint32_t hash;
    /**
     * Protocol of a VLAN tag that the device stripped from the frame, 0x8100 or 0x88a8; 0: none.
     */
    uint16_t vlan_protocol;
    /**
     * Priority, drop eligibility and VLAN ID of the stripped tag; see vlan_protocol.
     */
    uint16_t vlan_control;
    /**
     * Must be 0.
     */
    uint32_t reserved;
} sp_offload;

/**
 * A packet in the caller's buffers: a received packet, or a super-packet to be segmented.
 *
 * The library reads its bytes during the call, and never writes to them. The layout of this
 * structure does not change while the library keeps its soname.
 */
typedef struct sp_packet {
    /**
     * The first buffer of the packet.
     */
    const void *data;
    /**
     * Length of the first buffer in bytes; at most SP_MAX_LENGTH.
     */
    size_t length;
    /**
     * The buffers of the packet after the first one; NULL if there are none.
     */
    const sp_iovec *rest;
    /**
     * Number of buffers in rest: at most SP_MAX_BUFFERS - 1 for a packet that is to be aggregated,
     * and SP_MAX_RANGES - 1 for any other.
     */
    uint32_t rest_count;
    /**
     * Must be 0.
     */
    uint32_t reserved;
    /**
     * A value of the caller, which is returned with each range of the packet. The library does not
     * dereference it.
     */
    void *token;
    /**
     * The packet's metadata.
     */
    struct sp_offload offload;
} sp_packet;

/**
 * A packet that a call puts out: a merged packet, a packet that did not merge, or a segment.
 *
 * The layout of this structure does not change while the library keeps its soname.
 */
typedef struct sp_output {
    /**
     * The bytes of the packet, in order: ranges in the space's array iov.
     */
    sp_iovec *iov;
    /**
     * Number of ranges; at least 1.
     */
    uint32_t iov_count;
    /**
     * Number of bytes of the first range that are in the space's header memory: a virtio_net_hdr,
     * if the policy asks for one, and the headers of a merged packet or a segment. 0: none; the
     * first range is in the caller's buffers.
     */
    uint32_t header_length;
    /**
     * The token of the packet in whose buffer each range lies, and NULL for a range in header
     * memory. This points into the space's array tokens. NULL if the space has no such array.
     *
     * In SP_MODE_GRO and SP_MODE_GRO_UDP, the tokens name all packets that merged, in the order of
     * their payload. A packet in several buffers occurs several times in a row. If a device
     * refuses the merged packet, the original packets can be sent instead.
     */
    void **tokens;
    /**
     * Total length of all ranges in bytes.
     */
    size_t length;
    /**
     * The token of the first packet in this output.
     */
    void *token;
    /**
     * Number of received packets that this output represents, absorbed ACKs included; 1 for a
     * segment.
     */
    uint32_t packets;
    /**
     * Number of absorbed ACKs that this output represents, whose own bytes are not in it.
     */
    uint32_t absorbed_acks;
    /**
     * Maximum payload of a packet in this output, in bytes; 0 if unknown.
     */
    uint32_t largest_payload;
    /**
     * The reason why this output left the aggregator, a number for sp_reason_name; 0 for a
     * segment.
     */
    uint32_t reason;
    /**
     * The metadata of the output.
     */
    struct sp_offload offload;
} sp_output;

/**
 * Positions of the headers in a packet, in bytes from its start (behind the virtio_net_hdr, if
 * there is one).
 *
 * A device needs these lengths to segment the packet. The link header has outer_network bytes in a
 * tunnel, and network bytes otherwise. The IP header has transport - network bytes. If all fields
 * are zero, the headers are unknown. The layout of this structure does not change while the
 * library keeps its soname.
 */
typedef struct sp_layout {
    /**
     * Position of the IP header; in a tunnel, of the inner one.
     */
    uint16_t network;
    /**
     * Position of the TCP, UDP or DCCP header.
     */
    uint16_t transport;
    /**
     * Position of the payload, which is also the length of all headers.
     */
    uint16_t payload;
    /**
     * In a tunnel: position of the outermost IP header.
     */
    uint16_t outer_network;
    /**
     * In a tunnel: position of the header behind the outermost IP header, which is that of UDP or
     * GRE, or the inner IP header.
     */
    uint16_t outer_transport;
    /**
     * In a tunnel in a tunnel: position of the IP header of the second tunnel.
     */
    uint16_t nested_network;
    /**
     * In a tunnel in a tunnel: position of the UDP header of the second tunnel.
     */
    uint16_t nested_transport;
    /**
     * Version of the IP header at network: 4 or 6. 0: the headers are unknown.
     */
    uint8_t ip_version;
    /**
     * Protocol at transport: 6 (TCP), 17 (UDP) or 33 (DCCP).
     */
    uint8_t protocol;
    /**
     * Kind of the outermost tunnel, or SP_TUNNEL_NONE.
     */
    uint8_t tunnel;
    /**
     * In a tunnel: version of the outermost IP header, 4 or 6.
     */
    uint8_t outer_ip_version;
    /**
     * Kind of the second tunnel, or SP_TUNNEL_NONE.
     */
    uint8_t nested_tunnel;
    /**
     * In a tunnel in a tunnel: version of the second tunnel's IP header, 4 or 6.
     */
    uint8_t nested_ip_version;
} sp_layout;

/**
 * The caller's memory for outputs.
 *
 * Set size to sizeof(struct sp_space), and the pointers with their sizes. Each call fills the
 * arrays from their start, overwrites the previous outputs, and sets the fields whose names end in
 * _used. The library keeps none of the pointers.
 */
typedef struct sp_space {
    /**
     * sizeof(struct sp_space). Later releases add fields at the end, for which 0 means the old
     * behaviour.
     */
    size_t size;
    /**
     * Memory for the outputs.
     */
    struct sp_output *outputs;
    /**
     * Maximum number of outputs; at least 1.
     */
    size_t outputs_max;
    /**
     * Memory for the ranges of outputs.
     */
    sp_iovec *iov;
    /**
     * Maximum number of ranges; at least the policy's max_fragments + 2, and SP_MAX_BUFFERS + 2.
     */
    size_t iov_max;
    /**
     * Memory for the token of each range's packet: an array of iov_max, to which the field tokens
     * of outputs points. NULL if tokens are not needed.
     */
    void **tokens;
    /**
     * Memory for headers, one after the other.
     */
    uint8_t *headers;
    /**
     * Size of headers in bytes; at least SP_MAX_HEADER.
     */
    size_t headers_max;
    /**
     * Separate memory for the headers of each output, instead of headers and headers_max: an array
     * of outputs_max pointers to SP_MAX_HEADER bytes each. The headers of output n are written to
     * where pointer n points. NULL: headers is used.
     */
    void *const *header_places;
    /**
     * Set by the library: number of outputs.
     */
    size_t outputs_used;
    /**
     * Set by the library: number of ranges.
     */
    size_t iov_used;
    /**
     * Set by the library: number of header bytes.
     */
    size_t headers_used;
    /**
     * Memory for the header positions of each output: an array of outputs_max, whose element n
     * belongs to output n. NULL if they are not needed. The layouts of sp_segment's outputs are
     * all zero.
     */
    struct sp_layout *layouts;
} sp_space;

/**
 * Options of segmentation. Set all of it to 0, then size to sizeof(struct sp_segment_options),
 * then the fields that differ from the default. Later releases add fields at its end.
 */
typedef struct sp_segment_options {
    /**
     * sizeof(struct sp_segment_options).
     */
    size_t size;
    /**
     * Where the packet starts: SP_LAYER_ETHERNET or SP_LAYER_IP.
     */
    uint32_t layer;
    /**
     * How the checksums of segments are written: SP_OUTPUT_FULL or another SP_OUTPUT constant.
     */
    uint32_t checksum;
    /**
     * Maximum number of segments; a packet that needs more is refused. 0: no limit.
     */
    uint32_t max_segments;
    /**
     * Identification of IPv6 fragments, with SP_GSO_UDP_FRAGMENTS; the caller must not use one
     * twice. 0: the segmenter chooses a different one for each packet.
     */
    uint32_t fragment_id;
} sp_segment_options;

/**
 * Number and lengths of a packet's segments.
 */
typedef struct sp_plan {
    /**
     * Number of segments; at least 1.
     */
    size_t segments;
    /**
     * Length of each segment except the last, in bytes, headers included. If there is only one
     * segment, the length of that.
     */
    size_t segment_length;
    /**
     * Length of the last segment in bytes; at most segment_length.
     */
    size_t last_length;
} sp_plan;

/**
 * The result of sp_segment_headers.
 */
typedef struct sp_headers {
    /**
     * Number of segments, and their lengths including headers.
     */
    struct sp_plan plan;
    /**
     * Length of the headers of each segment in bytes. 0: the only segment is the unchanged packet.
     */
    size_t header_length;
    /**
     * Offset of the first segment's payload in the packet, in bytes. The payloads of the next
     * segments follow directly; each except the last has plan.segment_length - header_length
     * bytes.
     */
    size_t payload_start;
    /**
     * The metadata of each segment.
     */
    struct sp_offload offload;
} sp_headers;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns the version of the loaded library: "0.1.0".
 *
 * \return a static string.
 * \note Any thread may call it at any time.
 */
const char *sp_version(void);

/**
 * Creates an aggregator of batches.
 *
 * \param policy how to aggregate; read during the call.
 * \param out receives the new object, or NULL on an error. Free it with sp_batch_free.
 * \return SP_OK; SP_ERROR_NULL; SP_ERROR_STRUCTURE or SP_ERROR_ARGUMENT if the policy has a size
 * or a value that is not allowed; SP_ERROR_INTERNAL if the system has no random numbers.
 * \note Any thread may call it at any time. Ends the process if there is no memory.
 */
sp_status sp_batch_new(const struct sp_policy *policy, struct sp_batch **out);

/**
 * Frees an aggregator of batches. The packets of an unfinished call belong to the caller again.
 *
 * \param batch the aggregator; NULL does nothing. No call may be running in another thread.
 */
void sp_batch_free(struct sp_batch *batch);

/**
 * Aggregates packets, in order, and writes all packets that result, merged or unchanged, to the
 * outputs of the sp_space.
 *
 * An output consists of ranges in the packets' own buffers, except for its headers, which are in
 * the space's header memory. A packet that did not merge leaves unchanged. When the call returns
 * SP_OK, every packet is in exactly one output. In SP_MODE_LRO_ACKS, an ACK may instead have been
 * absorbed by an output.
 *
 * On SP_FULL, use the outputs, and then call sp_batch_continue. No packet is lost.
 *
 * \param batch the aggregator.
 * \param packets an array. The array and the packets' buffers must not change until this call, or
 * the sp_batch_continue after it that returns SP_OK, has returned. The library keeps no pointer to
 * them after that.
 * \param count number of packets; at most SP_MAX_PACKETS. 0 does nothing.
 * \param space filled from its start.
 * \return SP_OK; SP_FULL; SP_ERROR_UNFINISHED if an earlier call returned SP_FULL and was neither
 * continued nor abandoned; SP_ERROR_NULL, SP_ERROR_LENGTH, SP_ERROR_ARGUMENT or SP_ERROR_STRUCTURE
 * for an invalid argument; SP_ERROR_SPACE if the space has no room for a single output;
 * SP_ERROR_INTERNAL. On an error no packet was processed, and the space's _used fields are 0.
 * \note Only one thread at a time may use an sp_batch.
 */
sp_status sp_batch_aggregate(struct sp_batch *batch,
                             const struct sp_packet *packets,
                             size_t count,
                             struct sp_space *space);

/**
 * Continues a call of sp_batch_aggregate that returned SP_FULL. The sp_space is filled from its
 * start again, with the next outputs.
 *
 * \param batch the aggregator.
 * \param packets the same array as in the call that returned SP_FULL.
 * \param count the same number as in the call that returned SP_FULL.
 * \param space the same space or another.
 * \return as sp_batch_aggregate; SP_FULL if there are still more outputs; SP_ERROR_OTHER_PACKETS
 * if no call returned SP_FULL, or one with other packets did.
 * \note Only one thread at a time may use an sp_batch.
 */
sp_status sp_batch_continue(struct sp_batch *batch,
                            const struct sp_packet *packets,
                            size_t count,
                            struct sp_space *space);

/**
 * Abandons a call that returned SP_FULL. The packets that it has not put out belong to the caller,
 * who may send them unchanged or drop them.
 *
 * \param batch the aggregator.
 * \return the minimum number of outputs that were still missing; 0 if no call returned SP_FULL, or
 * for NULL.
 * \note Only one thread at a time may use an sp_batch.
 */
size_t sp_batch_abandon(struct sp_batch *batch);

/**
 * Verifies the checksums of a packet: IPv4 header checksums, and those of TCP, UDP or DCCP and of
 * a tunnel around it. All bytes of the packet are read.
 *
 * \param packet the packet; must not change during the call. Of its offload, only
 * SP_CHECKSUM_PARTIAL is used.
 * \param layer where the packet starts: SP_LAYER_ETHERNET or SP_LAYER_IP.
 * \return SP_OK if all are correct; SP_NONE if the IPv4 header checksums are correct and there is
 * no transport checksum to verify: a UDP datagram without one, or a partial one;
 * SP_ERROR_CHECKSUM; SP_ERROR_IP_CHECKSUM; SP_ERROR_HEADERS if it is not TCP, UDP or DCCP over IP,
 * or is a fragment; SP_ERROR_TRUNCATED; SP_ERROR_INNER_LENGTH; SP_ERROR_NULL, SP_ERROR_LENGTH,
 * SP_ERROR_ARGUMENT.
 * \note Any thread may call it at any time.
 */
sp_status sp_checksum_verify(const struct sp_packet *packet, uint32_t layer);

/**
 * Completes a partial checksum of TCP, UDP, DCCP or SCTP in place.
 *
 * \param packet the whole packet, in one buffer of the caller; the checksum field is written.
 * \param length length of the packet in bytes.
 * \param layer where the packet starts: SP_LAYER_ETHERNET or SP_LAYER_IP.
 * \param start where the sum starts, in bytes from the start of the packet: csum_start of a
 * virtio_net_hdr.
 * \param offset position of the checksum field, in bytes from start: csum_offset.
 * \return SP_OK; SP_ERROR_CHECKSUM_PLACE if the field lies outside the bytes that it covers;
 * SP_ERROR_PARTIAL_CHECKSUM if it cannot be completed, with the reason in sp_message;
 * SP_ERROR_NULL, SP_ERROR_LENGTH, SP_ERROR_ARGUMENT. On an error the packet is unchanged.
 * \note Any thread may call it at any time.
 */
sp_status sp_checksum_complete(void *packet,
                               size_t length,
                               uint32_t layer,
                               uint16_t start,
                               uint16_t offset);

/**
 * Computes the one's-complement sum of bytes (RFC 1071). A checksum field holds its complement.
 *
 * \param bytes the bytes; NULL if length is 0. Must not change during the call.
 * \param length number of bytes; at most SP_MAX_LENGTH.
 * \param sum receives the sum in host byte order, as if each pair of bytes were a big-endian
 * number.
 * \return SP_OK; SP_ERROR_NULL, SP_ERROR_LENGTH, SP_ERROR_ARGUMENT.
 * \note Any thread may call it at any time.
 */
sp_status sp_checksum_sum(const void *bytes, size_t length, uint16_t *sum);

/**
 * Copies bytes and sums them in the same pass.
 *
 * \param to the destination; must not overlap `from`.
 * \param from the source; must not change during the call.
 * \param length number of bytes; at most SP_MAX_LENGTH.
 * \param sum receives the sum, as with sp_checksum_sum.
 * \return SP_OK; SP_ERROR_NULL, SP_ERROR_LENGTH; SP_ERROR_ARGUMENT also if the ranges overlap. On
 * an error nothing is written.
 * \note Any thread may call it at any time.
 */
sp_status sp_checksum_copy(void *to, const void *from, size_t length, uint16_t *sum);

/**
 * Returns the name of a counter of an aggregator or batch, such as "packets_in".
 *
 * At any time packets_in = packets_out + merged + held.
 *
 * \param index from 0 on. Numbers may change between releases, names do not.
 * \return a static string; NULL behind the last counter.
 * \note Any thread may call it at any time.
 */
const char *sp_counter_name(size_t index);

/**
 * Returns the name of a reason why a packet left an aggregator, such as "push".
 *
 * \param index from 0 on: the field reason of an sp_output. Numbers may change between releases,
 * names do not.
 * \return a static string; NULL behind the last reason.
 * \note Any thread may call it at any time.
 */
const char *sp_reason_name(size_t index);

/**
 * Returns the name of a counter of a segmenter, such as "segments". Counters whose names begin
 * with "refused_" divide "refused" by error.
 *
 * At any time packets = cut + passed + refused, and payload_in = payload_out.
 *
 * \param index from 0 on. Numbers may change between releases, names do not.
 * \return a static string; NULL behind the last counter.
 * \note Any thread may call it at any time.
 */
const char *sp_segment_counter_name(size_t index);

/**
 * Reads the counters of a batch.
 *
 * \param batch the object.
 * \param values receives the values: number n is that of sp_counter_name(n). Numbers behind the
 * last counter are set to 0.
 * \param max room in values.
 * \return SP_OK; SP_ERROR_NULL, SP_ERROR_LENGTH, SP_ERROR_ARGUMENT.
 * \note Only one thread at a time may use an sp_batch.
 */
sp_status sp_batch_counters(const struct sp_batch *batch, uint64_t *values, size_t max);

/**
 * Reads how many packets left a batch for each reason. The sum of these numbers is packets_out.
 *
 * \param batch the object.
 * \param values receives the values: number n is that of sp_reason_name(n). Numbers behind the
 * last reason are set to 0.
 * \param max room in values.
 * \return SP_OK; SP_ERROR_NULL, SP_ERROR_LENGTH, SP_ERROR_ARGUMENT.
 * \note Only one thread at a time may use an sp_batch.
 */
sp_status sp_batch_reasons(const struct sp_batch *batch, uint64_t *values, size_t max);

/**
 * Reads the counters of an aggregator, as sp_batch_counters.
 *
 * \param aggregator the object.
 * \param values, max as for sp_batch_counters.
 * \return as sp_batch_counters.
 * \note Only one thread at a time may use an sp_aggregator.
 */
sp_status sp_aggregator_counters(const struct sp_aggregator *aggregator,
                                 uint64_t *values,
                                 size_t max);

/**
 * Reads how many packets left an aggregator for each reason, as sp_batch_reasons.
 *
 * \param aggregator the object.
 * \param values, max as for sp_batch_reasons.
 * \return as sp_batch_reasons.
 * \note Only one thread at a time may use an sp_aggregator.
 */
sp_status sp_aggregator_reasons(const struct sp_aggregator *aggregator,
                                uint64_t *values,
                                size_t max);

/**
 * Reads the counters of a segmenter.
 *
 * \param segmenter the object.
 * \param values receives the values: number n is that of sp_segment_counter_name(n). Numbers
 * behind the last counter are set to 0.
 * \param max room in values.
 * \return SP_OK; SP_ERROR_NULL, SP_ERROR_LENGTH, SP_ERROR_ARGUMENT.
 * \note Only one thread at a time may use an sp_segmenter.
 */
sp_status sp_segmenter_counters(const struct sp_segmenter *segmenter, uint64_t *values, size_t max);

/**
 * Creates an aggregator that may hold packets across calls.
 *
 * \param policy how to aggregate; read during the call. virtio_length must be 0; describe the
 * outputs with sp_virtio_write and SP_POLICY_PARTIAL_CHECKSUMS.
 * \param out receives the new object, or NULL on an error. Free it with sp_aggregator_free.
 * \return as sp_batch_new.
 * \note Any thread may call it at any time. Ends the process if there is no memory.
 */
sp_status sp_aggregator_new(const struct sp_policy *policy, struct sp_aggregator **out);

/**
 * Frees an aggregator. The packets that it held belong to the caller again.
 *
 * \param aggregator the aggregator; NULL does nothing. No call may be running in another thread.
 */
void sp_aggregator_free(struct sp_aggregator *aggregator);

/**
 * Receives packets, in order. The packets that leave the aggregator are written to the outputs of
 * the sp_space. The others are held until sp_aggregator_poll_end or a later packet of their flow.
 *
 * The bytes of each packet must not change until sp_aggregator_done returns its token. The array
 * itself is not kept.
 *
 * On SP_FULL, use the outputs, and then call the function again, with more packets or with none
 * (count 0). The aggregator has all packets, and continues where it stopped.
 *
 * \param aggregator the aggregator.
 * \param packets an array of packets with one buffer each: rest_count must be 0.
 * \param count number of packets; at most SP_MAX_PACKETS.
 * \param now the time in nanoseconds, of any clock, from which the policy's hold_time counts.
 * \param space filled from its start.
 * \return SP_OK; SP_FULL; or an error of sp_batch_aggregate, in which case no packet was received.
 * \note Only one thread at a time may use an sp_aggregator.
 */
sp_status sp_aggregator_receive(struct sp_aggregator *aggregator,
                                const struct sp_packet *packets,
                                size_t count,
                                uint64_t now,
                                struct sp_space *space);

/**
 * Ends a poll: puts out all held flows or, with a hold_time, those held at least that long.
 *
 * \param aggregator the aggregator.
 * \param now the time, as for sp_aggregator_receive.
 * \param space filled from its start.
 * \return SP_OK; SP_FULL: use the outputs, then call again; or an error of sp_batch_aggregate.
 * \note Only one thread at a time may use an sp_aggregator.
 */
sp_status sp_aggregator_poll_end(struct sp_aggregator *aggregator,
                                 uint64_t now,
                                 struct sp_space *space);

/**
 * Puts out all held packets, regardless of the hold_time.
 *
 * \param aggregator the aggregator.
 * \param space filled from its start.
 * \return SP_OK; SP_FULL: use the outputs, then call again; or an error of sp_batch_aggregate.
 * \note Only one thread at a time may use an sp_aggregator.
 */
sp_status sp_aggregator_flush(struct sp_aggregator *aggregator, struct sp_space *space);

/**
 * Returns the tokens of packets that are no longer needed: their outputs were put out, or they
 * were absorbed. Each token is returned once. Call it after the outputs have been used.
 *
 * \param aggregator the aggregator.
 * \param tokens receives the tokens.
 * \param max room in tokens.
 * \param count receives the number of tokens written.
 * \return SP_OK; SP_FULL if there are more; SP_ERROR_NULL, SP_ERROR_LENGTH, SP_ERROR_ARGUMENT.
 * \note Only one thread at a time may use an sp_aggregator.
 */
sp_status sp_aggregator_done(struct sp_aggregator *aggregator,
                             void **tokens,
                             size_t max,
                             size_t *count);

/**
 * Returns the time at which the flow that has been held longest reaches the policy's hold_time.
 * Call sp_aggregator_poll_end at that time.
 *
 * \param aggregator the aggregator.
 * \param time receives the time, in nanoseconds of the clock given to sp_aggregator_receive.
 * \return SP_OK; SP_NONE if no flow is held, and nothing is written; SP_ERROR_NULL,
 * SP_ERROR_ARGUMENT.
 * \note Only one thread at a time may use an sp_aggregator.
 */
sp_status sp_aggregator_deadline(const struct sp_aggregator *aggregator, uint64_t *time);

/**
 * Creates a segmenter.
 *
 * \param out receives the new object. Free it with sp_segmenter_free.
 * \return SP_OK; SP_ERROR_NULL or SP_ERROR_ARGUMENT for out.
 * \note Any thread may call it at any time. Ends the process if there is no memory.
 */
sp_status sp_segmenter_new(struct sp_segmenter **out);

/**
 * Frees a segmenter.
 *
 * \param segmenter the segmenter; NULL does nothing. No call may be running in another thread.
 */
void sp_segmenter_free(struct sp_segmenter *segmenter);

/**
 * Returns the number and lengths of a packet's segments, without segmenting or counting it.
 *
 * \param segmenter the segmenter.
 * \param packet the packet, with gso_type and gso_size in its offload. Its bytes must not change
 * during the call.
 * \param options the options; NULL for an Ethernet frame, complete checksums and no limit.
 * \param plan receives the result.
 * \return as sp_segment, without SP_ERROR_SPACE.
 * \note Only one thread at a time may use an sp_segmenter.
 */
sp_status sp_segment_plan(struct sp_segmenter *segmenter,
                          const struct sp_packet *packet,
                          const struct sp_segment_options *options,
                          struct sp_plan *plan);

/**
 * Segments a packet. Headers are written to the space's header memory, and the payload stays in
 * the packet's buffers. The payload is read only if a checksum needs it.
 *
 * The space needs room for all segments: one output per segment, two ranges per segment and one
 * more per buffer of the packet, and SP_MAX_HEADER bytes of headers per segment. sp_segment_plan
 * returns the number of segments. A packet without gso_type is put out as one segment. Its
 * checksum is completed if it is partial and options ask for SP_OUTPUT_FULL.
 *
 * \param segmenter the segmenter.
 * \param packet the packet. Its bytes must not change before the segments have been sent.
 * \param options as for sp_segment_plan.
 * \param space filled from its start, with all segments or none.
 * \return SP_OK; SP_ERROR_SPACE if not all segments fit; SP_ERROR_HEADERS to
 * SP_ERROR_PARTIAL_CHECKSUM if the packet cannot be segmented; SP_ERROR_NULL, SP_ERROR_LENGTH,
 * SP_ERROR_ARGUMENT or SP_ERROR_STRUCTURE for an invalid argument; SP_ERROR_INTERNAL. On an error
 * there is no output.
 * \note Only one thread at a time may use an sp_segmenter.
 */
sp_status sp_segment(struct sp_segmenter *segmenter,
                     const struct sp_packet *packet,
                     const struct sp_segment_options *options,
                     struct sp_space *space);

/**
 * Segments a packet into buffers, one per segment. Headers and payload are written one after the
 * other, and are summed in the same pass.
 *
 * \param segmenter the segmenter.
 * \param packet the packet. Its bytes must not change during the call.
 * \param options as for sp_segment_plan.
 * \param buffers the caller's memory for segments, which must not overlap each other or the
 * packet. Each has iov_len bytes, of which the first `offset` stay unchanged. lengths says how
 * much of each was written.
 * \param count number of buffers.
 * \param offset where the segments start in their buffers, in bytes.
 * \param lengths an array of count, which receives the length of each segment without the offset.
 * \param plan receives the number and lengths of the segments; NULL if they are not needed.
 * \return as sp_segment; SP_ERROR_SPACE or SP_ERROR_TOO_MANY_SEGMENTS if the buffers have no room
 * for all segments. On an error nothing was written.
 * \note Only one thread at a time may use an sp_segmenter.
 */
sp_status sp_segment_each(struct sp_segmenter *segmenter,
                          const struct sp_packet *packet,
                          const struct sp_segment_options *options,
                          const sp_iovec *buffers,
                          size_t count,
                          size_t offset,
                          size_t *lengths,
                          struct sp_plan *plan);

/**
 * Segments a packet into one buffer, with its segments one after the other. Segment n starts at n
 * times plan->segment_length, as for Linux's UDP_SEGMENT.
 *
 * \param segmenter the segmenter.
 * \param packet the packet. Its bytes must not change during the call.
 * \param options as for sp_segment_plan.
 * \param buffer the caller's memory, which must not overlap the packet.
 * \param size size of the buffer in bytes.
 * \param plan receives the number and lengths of the segments.
 * \return as sp_segment; SP_ERROR_SPACE if the segments do not fit. On an error nothing was
 * written.
 * \note Only one thread at a time may use an sp_segmenter.
 */
sp_status sp_segment_linear(struct sp_segmenter *segmenter,
                            const struct sp_packet *packet,
                            const struct sp_segment_options *options,
                            void *buffer,
                            size_t size,
                            struct sp_plan *plan);

/**
 * Determines how to segment a packet so that its segments fit an MTU, and writes gso_type and
 * gso_size to its offload. A packet without gso_type is segmented by its protocol: TCP, or UDP
 * datagrams.
 *
 * \param packet the packet, of which only the headers are read; its offload is changed.
 * \param layer where the packet starts: SP_LAYER_ETHERNET or SP_LAYER_IP.
 * \param mtu maximum length of a segment, in bytes from the outermost IP header on.
 * \return SP_OK, also if the packet fits and is unchanged; SP_ERROR_HEADERS;
 * SP_ERROR_SEGMENT_TOO_SMALL if the MTU has no room for the headers; SP_ERROR_NULL,
 * SP_ERROR_LENGTH, SP_ERROR_ARGUMENT.
 * \note Any thread may call it at any time.
 */
sp_status sp_gso_for_mtu(struct sp_packet *packet, uint32_t layer, size_t mtu);

/**
 * Segments a packet as sp_segment does, but writes only the headers. The caller's own descriptors
 * refer to the payload.
 *
 * \param segmenter the segmenter.
 * \param packet the packet. Its bytes must not change before the segments have been sent.
 * \param options as for sp_segment_plan.
 * \param places an array of count pointers to SP_MAX_HEADER bytes each, which must not overlap
 * each other or the packet. The headers of segment n are written to where pointer n points.
 * \param count maximum number of segments.
 * \param headers receives the result.
 * \return as sp_segment; SP_ERROR_SPACE if there are more segments than places; SP_ERROR_ARGUMENT
 * for SP_GSO_UDP_FRAGMENTS, whose headers differ in length. On an error nothing was written to the
 * places.
 * \note Only one thread at a time may use an sp_segmenter.
 */
sp_status sp_segment_headers(struct sp_segmenter *segmenter,
                             const struct sp_packet *packet,
                             const struct sp_segment_options *options,
                             void *const *places,
                             size_t count,
                             struct sp_headers *headers);

/**
 * Segments the data of one read(2) from a device, a virtio_net_hdr and a packet, into buffers, as
 * sp_segment_each. Segments have complete checksums. A packet that is no super-packet is one
 * segment.
 *
 * \param segmenter the segmenter.
 * \param virtio_length length of the header: 10, 12, 20 or 24 bytes.
 * \param virtio_order byte order of the header: SP_ORDER_NATIVE or another.
 * \param layer where packets start: SP_LAYER_ETHERNET, or SP_LAYER_IP for a TUN device.
 * \param read the data. Must not change during the call.
 * \param length length of the data in bytes.
 * \param buffers, count, offset, lengths, plan as for sp_segment_each.
 * \return as sp_segment_each, and SP_ERROR_VIRTIO if the header contradicts the packet. On an
 * error nothing was written.
 * \note Only one thread at a time may use an sp_segmenter.
 */
sp_status sp_split_each(struct sp_segmenter *segmenter,
                        uint32_t virtio_length,
                        uint32_t virtio_order,
                        uint32_t layer,
                        const void *read,
                        size_t length,
                        const sp_iovec *buffers,
                        size_t count,
                        size_t offset,
                        size_t *lengths,
                        struct sp_plan *plan);

/**
 * Segments the data of one read(2) like sp_split_each, but into one buffer, like
 * sp_segment_linear.
 *
 * \param segmenter the segmenter.
 * \param virtio_length, virtio_order, layer, read, length as for sp_split_each.
 * \param buffer, size, plan as for sp_segment_linear.
 * \return as sp_split_each.
 * \note Only one thread at a time may use an sp_segmenter.
 */
sp_status sp_split_linear(struct sp_segmenter *segmenter,
                          uint32_t virtio_length,
                          uint32_t virtio_order,
                          uint32_t layer,
                          const void *read,
                          size_t length,
                          void *buffer,
                          size_t size,
                          struct sp_plan *plan);

/**
 * Returns the text of a status, in English, such as "the space is too small".
 *
 * \param status any number; an unknown status results in "unknown status".
 * \return a static string, never NULL.
 * \note Any thread may call it at any time.
 */
const char *sp_strerror(int status);

/**
 * Returns the name of a status, such as "SP_ERROR_SPACE".
 *
 * \param status any number; an unknown status results in "SP_UNKNOWN".
 * \return a static string, never NULL.
 * \note Any thread may call it at any time.
 */
const char *sp_errname(int status);

/**
 * Writes the details of the last failed call on this thread: which argument, which length, and the
 * expected value.
 *
 * As with snprintf(3), the text is truncated to fit, and ends with a zero byte unless `size` is 0.
 *
 * \param text the caller's memory; may be NULL if `size` is 0.
 * \param size size of the memory in bytes.
 * \return the length of the whole text, without the zero byte.
 * \note Any thread may call it at any time, for its own calls.
 */
size_t sp_message(char *text, size_t size);

/**
 * Computes the tables of a key.
 *
 * \param key SP_TOEPLITZ_KEY bytes, in the order of ethtool -x; read during the call. NULL:
 * Microsoft's published key, the default of many devices.
 * \param length length of the key: SP_TOEPLITZ_KEY, or 0 if key is NULL.
 * \param flags 0 or SP_TOEPLITZ_SYMMETRIC.
 * \param out receives the new object. Free it with sp_toeplitz_free.
 * \return SP_OK; SP_ERROR_LENGTH for another length; SP_ERROR_NULL, SP_ERROR_ARGUMENT.
 * \note Any thread may call it at any time. Ends the process if there is no memory.
 */
sp_status sp_toeplitz_new(const void *key, size_t length, uint32_t flags, struct sp_toeplitz **out);

/**
 * Frees the tables of a key.
 *
 * \param toeplitz the tables; NULL does nothing. No call may be running in another thread.
 */
void sp_toeplitz_free(struct sp_toeplitz *toeplitz);

/**
 * Hashes bytes: addresses and ports in the order of the specification. Bytes behind the 36th are
 * ignored.
 *
 * \param toeplitz the tables.
 * \param bytes the bytes; NULL if length is 0.
 * \param length number of bytes.
 * \param hash receives the hash.
 * \return SP_OK; SP_ERROR_NULL, SP_ERROR_LENGTH, SP_ERROR_ARGUMENT.
 * \note Any number of threads may call it at the same time.
 */
sp_status sp_toeplitz_bytes(const struct sp_toeplitz *toeplitz,
                            const void *bytes,
                            size_t length,
                            uint32_t *hash);

/**
 * Hashes the innermost addresses and ports of a packet, as devices do. Of fragments, and of
 * protocols other than TCP, UDP and DCCP, only the addresses are hashed.
 *
 * \param toeplitz the tables.
 * \param packet the packet, of which only the headers are read.
 * \param layer where the packet starts: SP_LAYER_ETHERNET or SP_LAYER_IP.
 * \param hash receives the hash.
 * \return SP_OK; SP_NONE if it is not IP, and nothing is written; SP_ERROR_NULL, SP_ERROR_LENGTH,
 * SP_ERROR_ARGUMENT.
 * \note Any number of threads may call it at the same time.
 */
sp_status sp_toeplitz_packet(const struct sp_toeplitz *toeplitz,
                             const struct sp_packet *packet,
                             uint32_t layer,
                             uint32_t *hash);

/**
 * Reads the virtio_net_hdr before a packet, checks it against the packet, and makes an sp_packet
 * of both, for sp_segment and other functions.
 *
 * A header that contradicts the packet's own headers is refused.
 *
 * \param virtio_length length of the header: 10, 12, 20 or 24 bytes.
 * \param virtio_order byte order of the header: SP_ORDER_NATIVE or another.
 * \param layer where the packet starts: SP_LAYER_ETHERNET, or SP_LAYER_IP for a TUN device.
 * \param read the data of read(2): the header, and the packet behind it. Must not change during
 * the call.
 * \param length length of the data in bytes.
 * \param packet receives the packet. It points to the data, and is valid as long as the data is
 * unchanged. Its token is NULL.
 * \return SP_OK; SP_ERROR_VIRTIO, with the wrong field in sp_message; SP_ERROR_NULL,
 * SP_ERROR_LENGTH, SP_ERROR_ARGUMENT. On an error nothing is written.
 * \note Any thread may call it at any time.
 */
sp_status sp_virtio_read(uint32_t virtio_length,
                         uint32_t virtio_order,
                         uint32_t layer,
                         const void *read,
                         size_t length,
                         struct sp_packet *packet);

/**
 * Writes the virtio_net_hdr that describes a packet.
 *
 * \param virtio_length length of the header: 10, 12, 20 or 24 bytes.
 * \param virtio_order byte order of the header: SP_ORDER_NATIVE or another.
 * \param layer where the packet starts: SP_LAYER_ETHERNET, or SP_LAYER_IP for a TUN device.
 * \param packet the packet, of which only the headers are read. Must not change during the call.
 * \param header receives the header.
 * \param size room for the header in bytes; at least virtio_length.
 * \return SP_OK; SP_ERROR_VIRTIO if no header of this length can express the packet's offload: a
 * super-packet with a complete checksum, DCCP, a tunnel; SP_ERROR_SPACE; SP_ERROR_NULL,
 * SP_ERROR_LENGTH, SP_ERROR_ARGUMENT. On an error nothing is written.
 * \note Any thread may call it at any time.
 */
sp_status sp_virtio_write(uint32_t virtio_length,
                          uint32_t virtio_order,
                          uint32_t layer,
                          const struct sp_packet *packet,
                          void *header,
                          size_t size);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SUPERPACKET_H */

/**
 * \file superpacket.h
 * libsuperpacket: aggregation (GRO, LRO) and segmentation (TSO, GSO) of packets in the caller's own
 * buffers, checksums, Toeplitz hashes.
 *
 * Made from the library's sources: do not edit. SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * - Packets are pointers and lengths, with a pointer of the caller's own for each. What leaves is
 *   arrays of struct iovec that point into these packets, and into header memory of the caller's.
 *   There are no callbacks.
 * - The library allocates when an object is made, while its tables grow to what the traffic needs,
 *   and when a name of a counter or a reason is first asked for; otherwise not.
 * - An object is used by one thread at a time, not always the same. A call that finds its object in
 *   use returns SP_ERROR_BUSY. Functions without an object may be called by any thread at any time.
 * - NULL, a pointer that is not aligned, a length that cannot be, a number that names nothing: an
 *   error is returned, and nothing has happened. sp_message() says what was wrong. The library cannot
 *   find out that a pointer is wild, or that memory is not as long as was said.
 * - Checksums are verified before packets merge, unless a device has verified them or the caller
 *   sets SP_POLICY_TRUSTED_INPUT.
 * - Memory that is given for outputs overlaps neither the packets nor other outputs.
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
 * The most bytes of a packet, and of one buffer of it: 16 MiB.
 */
#define SP_MAX_LENGTH (1 << 24)

/**
 * Nothing is known of the checksums: they are verified in software where it matters.
 */
#define SP_CHECKSUM_NONE 0

/**
 * The device verified checksum_level + 1 transport checksums, the outermost first; UDP checksums
 * of 0 are not counted.
 */
#define SP_CHECKSUM_VERIFIED 1

/**
 * checksum_sum is the one's-complement sum of everything after the 14 bytes of the Ethernet
 * header (of everything, in a packet that starts at IP), as a number of the host.
 */
#define SP_CHECKSUM_SUM 2

/**
 * The checksum field holds the sum of the pseudo-header, not inverted, and somebody must fill it
 * in: checksum_start says where to start summing, in bytes from the start of the packet, and
 * checksum_offset where the field lies from there.
 */
#define SP_CHECKSUM_PARTIAL 3

/**
 * No super-packet.
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
 * UDP datagrams of equal size, of which the last may be shorter (USO).
 */
#define SP_GSO_UDP 3

/**
 * One UDP datagram, to be cut into IP fragments (UFO).
 */
#define SP_GSO_UDP_FRAGMENTS 4

/**
 * DCCP data packets.
 */
#define SP_GSO_DCCP 5

/**
 * The field hash holds a flow hash that the device reported.
 */
#define SP_OFFLOAD_HASH 1

/**
 * All segments have the super-packet's IPv4 identification; else it counts up by one.
 */
#define SP_OFFLOAD_FIXED_ID 2

/**
 * The same of the outer IPv4 header of a tunnel; the outermost, if there are two.
 */
#define SP_OFFLOAD_FIXED_OUTER_ID 4

/**
 * All segments carry CWR if the super-packet does; else the first only.
 */
#define SP_OFFLOAD_CWR_ALL 8

/**
 * The packets that merged had partial checksums.
 */
#define SP_OFFLOAD_MERGED_PARTIAL 16

/**
 * All segments have the super-packet's identification in the outer IPv4 header of a tunnel in a
 * tunnel.
 */
#define SP_OFFLOAD_FIXED_NESTED_ID 32

/**
 * The most buffers of a packet that is to be aggregated, the first included.
 */
#define SP_MAX_BUFFERS 17

/**
 * The most buffers of any other packet, the first included: what merged, and is to be cut again.
 */
#define SP_MAX_RANGES 1024

/**
 * The most packets of one call.
 */
#define SP_MAX_PACKETS (1 << 20)

/**
 * The most bytes of header memory that one output takes: headers of a packet, and a
 * virtio_net_hdr.
 */
#define SP_MAX_HEADER 320

/**
 * Packets start at the Ethernet header.
 */
#define SP_LAYER_ETHERNET 0

/**
 * Packets start at the IP header: TUN devices.
 */
#define SP_LAYER_IP 1

/**
 * Generic receive offload of TCP and DCCP: what merges can be cut again into the very same frames.
 */
#define SP_MODE_GRO 0

/**
 * As SP_MODE_GRO, and UDP datagrams of equal length too.
 */
#define SP_MODE_GRO_UDP 1

/**
 * Large receive offload: for local delivery only; acknowledgements, windows and timestamps take
 * the newest values.
 */
#define SP_MODE_LRO 2

/**
 * As SP_MODE_LRO, and pure ACKs are absorbed into the newest.
 */
#define SP_MODE_LRO_ACKS 3

/**
 * Checksums of which nothing is known count as correct, and no payload is read. A damaged packet
 * may then merge, and whoever completes the partial checksum makes it correct. A cipher does not
 * prevent this: it proves that the peer sent these bytes, not that they reached the peer intact.
 * Without effect where merged packets leave with complete checksums.
 */
#define SP_POLICY_TRUSTED_INPUT 1

/**
 * What merges leaves with a partial checksum, for a device or a kernel that completes it. A stack
 * that verifies checksums takes such a packet for damaged.
 */
#define SP_POLICY_PARTIAL_CHECKSUMS 2

/**
 * The flow table is keyed by key, not by random numbers: for tests that repeat.
 */
#define SP_POLICY_FIXED_KEY 4

/**
 * virtio_net_hdr in the byte order of the machine: TUN and packet sockets, if nobody asked for
 * another.
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
 * The limit of ranges in one packet, if the policy says 0: with two headers no more than writev(2)
 * takes on Linux.
 */
#define SP_DEFAULT_FRAGMENTS 1022

/**
 * The segments' transport checksums are whole.
 */
#define SP_OUTPUT_FULL 0

/**
 * They hold the sum of the pseudo-header, for a device that fills in the rest: no payload is read.
 */
#define SP_OUTPUT_PARTIAL 1

/**
 * As the packets had them that merged.
 */
#define SP_OUTPUT_AS_MERGED 2

/**
 * The length of a key in bytes: enough for IPv6 addresses and ports.
 */
#define SP_TOEPLITZ_KEY 40

/**
 * Both directions of a connection have the same hash: the XOR of both ends is hashed.
 */
#define SP_TOEPLITZ_SYMMETRIC 1

/**
 * What a call returns: SP_OK, a positive number that is no error, or a negative one.
 *
 * Further values may be added. Treat a negative value that you do not know as an error. Before C23
 * the type sp_status is int32_t, so that it has 32 bits whatever the compiler.
 */
enum sp_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * All is done.
     */
    SP_OK = 0,
    /**
     * The space is full. Use what is in it; the function's comment names the call that goes on.
     */
    SP_FULL = 1,
    /**
     * There is nothing to say: no checksum in this packet, no flow to hash, nothing held.
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
     * A value is none of those that are allowed, or a reserved field is not 0.
     */
    SP_ERROR_ARGUMENT = -3,
    /**
     * The size of a structure is smaller than in any release; or it is larger than this library
     * knows, and what lies beyond is not 0.
     */
    SP_ERROR_STRUCTURE = -4,
    /**
     * The space, or a buffer, is too small for what must go into it at once.
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
     * A fault of the library was caught in this call or an earlier one. The object refuses all
     * calls but its sp_..._free from then on.
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
     * The object is in use by another call: in another thread, or in the code that a signal
     * handler interrupted. This call has done nothing. Calls that only read counters or a deadline
     * are not refused.
     */
    SP_ERROR_BUSY = -12,
    /**
     * The headers of a packet cannot be read.
     */
    SP_ERROR_HEADERS = -16,
    /**
     * The gso_type is not that of the packet's headers.
     */
    SP_ERROR_KIND = -17,
    /**
     * The packet is shorter than its headers say.
     */
    SP_ERROR_TRUNCATED = -18,
    /**
     * An inner length field contradicts the one outside it.
     */
    SP_ERROR_INNER_LENGTH = -19,
    /**
     * More segments than are allowed.
     */
    SP_ERROR_TOO_MANY_SEGMENTS = -20,
    /**
     * A segment does not fit its length fields.
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
     * A header is longer than the headers that were parsed.
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
 * Aggregates packets of one receive queue, and may hold them across calls.
 *
 * One thread at a time may use it, not always the same. Its tables grow to what the traffic needs,
 * and stay: after that, calls allocate nothing.
 */
typedef struct sp_aggregator sp_aggregator;

/**
 * Aggregates the packets of one call, which are borrowed for it: nothing is held between calls,
 * but for one that returned SP_FULL.
 *
 * One thread at a time may use it, not always the same. Its tables grow to what the traffic needs,
 * and stay: after that, calls allocate nothing.
 */
typedef struct sp_batch sp_batch;

/**
 * Cuts super-packets. Allocates nothing but itself.
 *
 * One thread at a time may use it, not always the same.
 */
typedef struct sp_segmenter sp_segmenter;

/**
 * The tables of one key: 36 KiB. It never changes, so any number of threads may use it at a time.
 */
typedef struct sp_toeplitz sp_toeplitz;

/**
 * How packets are aggregated.
 *
 * Set all of it to 0, then size to sizeof(struct sp_policy), then what is to differ: 0 is the
 * usual value of each field. Later releases add fields at its end; a program that was compiled
 * with an older header gives the older size, and has the usual values of those.
 */
typedef struct sp_policy {
    /**
     * sizeof(struct sp_policy).
     */
    size_t size;
    /**
     * SP_MODE_GRO or another.
     */
    uint32_t mode;
    /**
     * SP_LAYER_ETHERNET or SP_LAYER_IP.
     */
    uint32_t layer;
    /**
     * SP_POLICY_TRUSTED_INPUT and others. 0: every checksum is verified that no device verified.
     */
    uint32_t flags;
    /**
     * Length of the virtio_net_hdr before each packet that leaves a batch: 10, 12, 20 or 24 bytes,
     * or 0 for none. With one, what merges has partial checksums, which it asks the device to
     * complete.
     */
    uint32_t virtio_length;
    /**
     * Its byte order: SP_ORDER_NATIVE or another.
     */
    uint32_t virtio_order;
    /**
     * The longest merged packet, in bytes from the outermost IP header. 0: 65,535. Up to 524,280
     * for TCP (BIG TCP).
     */
    uint32_t max_bytes;
    /**
     * The most packets in one. 0: no limit.
     */
    uint32_t max_packets;
    /**
     * The most UDP datagrams in one. 0: 64.
     */
    uint32_t max_datagrams;
    /**
     * The most ranges of buffers in one. 0: SP_DEFAULT_FRAGMENTS.
     */
    uint32_t max_fragments;
    /**
     * The most flows held at a time. 0: 1,024, or 8 for LRO.
     */
    uint32_t max_flows;
    /**
     * The most bytes of frames held at a time. 0: 32 MiB.
     */
    uint64_t max_held_bytes;
    /**
     * How long an sp_aggregator may hold a flow past sp_aggregator_poll_end, in nanoseconds. 0:
     * not at all. Means nothing for an sp_batch.
     */
    uint64_t hold_time;
    /**
     * With SP_POLICY_FIXED_KEY: 128 bits.
     */
    uint64_t key[2];
} sp_policy;

/**
 * What is known of a packet besides its bytes. All zero: nothing.
 *
 * What the library writes, it also takes: that of an output fits the packet that is made of it.
 */
typedef struct sp_offload {
    /**
     * SP_CHECKSUM_NONE or another.
     */
    uint8_t checksum;
    /**
     * With SP_CHECKSUM_VERIFIED: how many checksums more than one.
     */
    uint8_t checksum_level;
    /**
     * With SP_CHECKSUM_PARTIAL: where to start summing, in bytes from the start of the packet.
     */
    uint16_t checksum_start;
    /**
     * With SP_CHECKSUM_PARTIAL: where the field lies, in bytes from checksum_start.
     */
    uint16_t checksum_offset;
    /**
     * With SP_CHECKSUM_SUM: the sum.
     */
    uint16_t checksum_sum;
    /**
     * SP_GSO_NONE, or how the packet is to be cut.
     */
    uint8_t gso_type;
    /**
     * SP_OFFLOAD_HASH and others.
     */
    uint8_t flags;
    /**
     * Bytes of payload in each segment but the last, if gso_type is not SP_GSO_NONE: at least 1.
     */
    uint16_t gso_size;
    /**
     * The flow hash, with SP_OFFLOAD_HASH.
     */
    uint32_t hash;
    /**
     * 0x8100 or 0x88a8 of a VLAN tag that the device took out of the frame; 0: none.
     */
    uint16_t vlan_protocol;
    /**
     * Priority, drop eligibility and VLAN ID of that tag.
     */
    uint16_t vlan_control;
    /**
     * Must be 0.
     */
    uint32_t reserved;
} sp_offload;

/**
 * A packet in the caller's buffers: a received one, or a super-packet to be cut.
 *
 * The library reads its bytes during the call and writes none of them. The layout of this
 * structure is fixed for as long as the library has its soname.
 */
typedef struct sp_packet {
    /**
     * The first bytes, or all.
     */
    const void *data;
    /**
     * How many these are: at most SP_MAX_LENGTH.
     */
    size_t length;
    /**
     * The buffers behind the first; NULL if there are none.
     */
    const sp_iovec *rest;
    /**
     * How many: at most SP_MAX_BUFFERS - 1 of a packet that is to be aggregated, SP_MAX_RANGES - 1
     * of any other.
     */
    uint32_t rest_count;
    /**
     * Must be 0.
     */
    uint32_t reserved;
    /**
     * The caller's own; comes back with each range of the packet. The library does not look at
     * what it points to.
     */
    void *token;
    /**
     * What is known besides.
     */
    struct sp_offload offload;
} sp_packet;

/**
 * A packet that leaves: what merged, a packet that merged with no other, or a segment.
 *
 * Its layout is fixed for as long as the library has its soname.
 */
typedef struct sp_output {
    /**
     * Its bytes, in order: ranges in the space's array iov.
     */
    sp_iovec *iov;
    /**
     * How many ranges: at least 1.
     */
    uint32_t iov_count;
    /**
     * How many bytes of the first range lie in the space's header memory: a virtio_net_hdr, if one
     * was asked for, and the headers of what merged or was cut. 0: none, and the first range is
     * the caller's.
     */
    uint32_t header_length;
    /**
     * Of each range, the token of the packet that it lies in, NULL for one in header memory:
     * places in the space's array tokens. NULL if the space has none.
     *
     * In SP_MODE_GRO and SP_MODE_GRO_UDP they name all packets that merged, in the order of their
     * payload: each once, or several times in a row if it lies in several buffers. A device that
     * refuses what merged can so be given the originals.
     */
    void **tokens;
    /**
     * The bytes of all ranges together.
     */
    size_t length;
    /**
     * The token of its first packet.
     */
    void *token;
    /**
     * How many received packets it stands for, absorbed ACKs included: 1 for a segment.
     */
    uint32_t packets;
    /**
     * How many pure ACKs are among them whose own bytes are not in it.
     */
    uint32_t absorbed_acks;
    /**
     * The largest payload of a packet in it, in bytes; 0 where that is not known.
     */
    uint32_t largest_payload;
    /**
     * Why it left as it is: a number for sp_reason_name. 0 for a segment.
     */
    uint32_t reason;
    /**
     * What is known of it besides its bytes.
     */
    struct sp_offload offload;
} sp_output;

/**
 * Where the headers of a packet lie, in bytes from its start (behind the virtio_net_hdr, if there
 * is one).
 *
 * A device needs these lengths to segment the packet: the link header has outer_network bytes in a
 * tunnel and network bytes otherwise, the IP header has transport - network. All zero: the headers
 * are not known. The layout of this structure is fixed for as long as the library has its soname.
 */
typedef struct sp_layout {
    /**
     * The IP header; in a tunnel the inner one.
     */
    uint16_t network;
    /**
     * The TCP, UDP or DCCP header behind it.
     */
    uint16_t transport;
    /**
     * The payload, and so the length of all headers.
     */
    uint16_t payload;
    /**
     * In a tunnel: the outermost IP header.
     */
    uint16_t outer_network;
    /**
     * In a tunnel: the header behind the outermost IP header. It is that of UDP or GRE, or the
     * inner IP header.
     */
    uint16_t outer_transport;
    /**
     * In a tunnel in a tunnel: the IP header of the second tunnel.
     */
    uint16_t nested_network;
    /**
     * In a tunnel in a tunnel: the UDP header behind that.
     */
    uint16_t nested_transport;
    /**
     * 4 or 6: the version of the IP header at network. 0: the headers are not known.
     */
    uint8_t ip_version;
    /**
     * The protocol at transport: 6 (TCP), 17 (UDP) or 33 (DCCP).
     */
    uint8_t protocol;
    /**
     * SP_TUNNEL_NONE, or the kind of the outermost tunnel.
     */
    uint8_t tunnel;
    /**
     * In a tunnel: the version of the outermost IP header, 4 or 6.
     */
    uint8_t outer_ip_version;
    /**
     * SP_TUNNEL_NONE, or the kind of the second tunnel.
     */
    uint8_t nested_tunnel;
    /**
     * In a tunnel in a tunnel: the version of its IP header, 4 or 6.
     */
    uint8_t nested_ip_version;
} sp_layout;

/**
 * Memory of the caller's for what leaves a call.
 *
 * Set size to sizeof(struct sp_space), and the pointers with their numbers. The library fills the
 * arrays from their start on with each call, and sets the fields whose names end in _used; what an
 * earlier call put there is overwritten. It keeps no pointer to any of them.
 */
typedef struct sp_space {
    /**
     * sizeof(struct sp_space). Later releases add fields at the end, of which 0 means "as ever".
     */
    size_t size;
    /**
     * For the packets that leave.
     */
    struct sp_output *outputs;
    /**
     * How many fit: at least 1.
     */
    size_t outputs_max;
    /**
     * For their ranges.
     */
    sp_iovec *iov;
    /**
     * How many fit: at least the policy's max_fragments + 2, and SP_MAX_BUFFERS + 2.
     */
    size_t iov_max;
    /**
     * For the token of the packet that each range lies in: an array of iov_max, to which the field
     * tokens of the outputs points. NULL if they are not wanted.
     */
    void **tokens;
    /**
     * For headers, one behind the other.
     */
    uint8_t *headers;
    /**
     * How many bytes fit: at least SP_MAX_HEADER.
     */
    size_t headers_max;
    /**
     * For headers apart from each other, in place of headers and headers_max: an array of
     * outputs_max pointers to SP_MAX_HEADER bytes each; the headers of output n go to where
     * pointer n points. NULL: they go to headers.
     */
    void *const *header_places;
    /**
     * Set by the library: how many outputs there are.
     */
    size_t outputs_used;
    /**
     * Set by the library: how many ranges there are.
     */
    size_t iov_used;
    /**
     * Set by the library: how many bytes of headers there are.
     */
    size_t headers_used;
    /**
     * For where the headers of each output lie: an array of outputs_max, of which element n
     * belongs to output n. NULL if this is not wanted. The layout of what sp_segment cuts is all
     * zero.
     */
    struct sp_layout *layouts;
} sp_space;

/**
 * How to cut. Set all of it to 0, then size to sizeof(struct sp_segment_options), then what is to
 * differ. Later releases add fields at its end.
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
     * How the transport checksums are to stand: SP_OUTPUT_FULL or another.
     */
    uint32_t checksum;
    /**
     * The most segments; a packet that needs more is refused. 0: no limit.
     */
    uint32_t max_segments;
    /**
     * The identification of IPv6 fragments, with SP_GSO_UDP_FRAGMENTS: the caller sees to it that
     * it does not repeat. 0: one of the segmenter's own, which differ from each other.
     */
    uint32_t fragment_id;
} sp_segment_options;

/**
 * How many segments a packet gives, and how long they are.
 */
typedef struct sp_plan {
    /**
     * How many: at least 1.
     */
    size_t segments;
    /**
     * The length of each but the last in bytes, headers included; of the last, if it is the only
     * one.
     */
    size_t segment_length;
    /**
     * The length of the last: at most segment_length.
     */
    size_t last_length;
} sp_plan;

/**
 * What sp_segment_headers says of the segments whose headers it wrote.
 */
typedef struct sp_headers {
    /**
     * How many segments, and how long they are with their headers.
     */
    struct sp_plan plan;
    /**
     * The length of the headers of each in bytes. 0: it is the packet as it came.
     */
    size_t header_length;
    /**
     * Where the first segment's payload starts in the packet, in bytes. That of the next follows
     * it, and so on: of each but the last, plan.segment_length - header_length bytes.
     */
    size_t payload_start;
    /**
     * What is known of each segment besides its bytes.
     */
    struct sp_offload offload;
} sp_headers;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns the version of the library that is loaded: "0.1.0".
 *
 * \return a string of the library's own, valid for ever.
 * \note Any thread may call it at any time.
 */
const char *sp_version(void);

/**
 * Makes an aggregator of batches.
 *
 * \param policy how to aggregate; read during the call.
 * \param out where the new object goes; set to NULL on an error. Give it to sp_batch_free.
 * \return SP_OK; SP_ERROR_NULL; SP_ERROR_STRUCTURE, SP_ERROR_ARGUMENT if the policy has a size or
 * a value that is not allowed; SP_ERROR_INTERNAL if the system gives no random numbers.
 * \note Any thread may call it at any time. Ends the process if memory cannot be had.
 */
sp_status sp_batch_new(const struct sp_policy *policy, struct sp_batch **out);

/**
 * Frees an aggregator of batches. Packets of an unfinished call are forgotten: they are the
 * caller's.
 *
 * \param batch NULL does nothing. No call may be under way in another thread.
 */
void sp_batch_free(struct sp_batch *batch);

/**
 * Aggregates packets, in order, and puts all that leaves into the space.
 *
 * An output's ranges lie in the packets' own buffers, but for its headers, which lie in the
 * space's header memory. A packet that merged with no other leaves as it came. When the call
 * returns SP_OK every packet is in exactly one output, or, in SP_MODE_LRO_ACKS, an ACK may have
 * been absorbed by one.
 *
 * On SP_FULL, use the outputs that are there; then call sp_batch_continue. No packet is lost.
 *
 * \param batch the aggregator.
 * \param packets an array, and the buffers that its packets point to: the caller's, unchanged
 * until this call, or the sp_batch_continue after it that returns SP_OK, has returned. The library
 * keeps no pointer to them beyond that.
 * \param count how many: at most SP_MAX_PACKETS. 0 does nothing.
 * \param space filled from its start.
 * \return SP_OK; SP_FULL; SP_ERROR_UNFINISHED if an earlier call returned SP_FULL and has been
 * neither continued nor abandoned; SP_ERROR_NULL, SP_ERROR_LENGTH, SP_ERROR_ARGUMENT,
 * SP_ERROR_STRUCTURE for what is given; SP_ERROR_SPACE if the space could not take even one
 * output; SP_ERROR_INTERNAL. On an error no packet has been looked at, and the space's _used
 * fields are 0.
 * \note One thread at a time for each sp_batch.
 */
sp_status sp_batch_aggregate(struct sp_batch *batch,
                             const struct sp_packet *packets,
                             size_t count,
                             struct sp_space *space);

/**
 * Goes on with a call of sp_batch_aggregate that returned SP_FULL: the space is filled from its
 * start again, with what comes next.
 *
 * \param batch the aggregator.
 * \param packets the very array of that call.
 * \param count as in that call.
 * \param space any; it need not be the same.
 * \return as sp_batch_aggregate; SP_FULL once more if there is still more; SP_ERROR_OTHER_PACKETS
 * if there is no such call, or its packets were others.
 * \note One thread at a time for each sp_batch.
 */
sp_status sp_batch_continue(struct sp_batch *batch,
                            const struct sp_packet *packets,
                            size_t count,
                            struct sp_space *space);

/**
 * Gives up a call that returned SP_FULL: what it has not put out is forgotten. The packets are the
 * caller's to send as they are, or to drop.
 *
 * \param batch the aggregator.
 * \return how many outputs it would have been at least; 0 if there was no such call, or for NULL.
 * \note One thread at a time for each sp_batch.
 */
size_t sp_batch_abandon(struct sp_batch *batch);

/**
 * Verifies the checksums of a packet: those of its IPv4 headers, of TCP, UDP or DCCP, and of a
 * tunnel around it. All its bytes are read.
 *
 * \param packet the packet. Its offload is looked at for SP_CHECKSUM_PARTIAL alone. Must not
 * change during the call.
 * \param layer where it starts.
 * \return SP_OK if all are right; SP_NONE if those of IPv4 headers are right and there is no
 * transport checksum to verify: a UDP datagram without one, or a partial one; SP_ERROR_CHECKSUM;
 * SP_ERROR_IP_CHECKSUM; SP_ERROR_HEADERS if it is not TCP, UDP or DCCP over IP, or a fragment;
 * SP_ERROR_TRUNCATED; SP_ERROR_INNER_LENGTH; SP_ERROR_NULL, SP_ERROR_LENGTH, SP_ERROR_ARGUMENT.
 * \note Any thread may call it at any time.
 */
sp_status sp_checksum_verify(const struct sp_packet *packet, uint32_t layer);

/**
 * Completes a partial checksum of TCP, UDP, DCCP or SCTP where it lies.
 *
 * \param packet the whole packet, in one buffer of the caller's; the checksum field is written.
 * \param length how many bytes.
 * \param layer where the packet starts.
 * \param start where to start summing, in bytes from the start of the packet: csum_start of a
 * virtio_net_hdr.
 * \param offset where the field lies from there: csum_offset.
 * \return SP_OK; SP_ERROR_CHECKSUM_PLACE if the field lies outside what it covers;
 * SP_ERROR_PARTIAL_CHECKSUM if it cannot be completed, and sp_message tells why; SP_ERROR_NULL,
 * SP_ERROR_LENGTH, SP_ERROR_ARGUMENT. On an error the packet has not been touched.
 * \note Any thread may call it at any time.
 */
sp_status sp_checksum_complete(void *packet,
                               size_t length,
                               uint32_t layer,
                               uint16_t start,
                               uint16_t offset);

/**
 * Computes the one's-complement sum of bytes (RFC 1071): what a checksum field holds is its
 * complement.
 *
 * \param bytes the bytes; NULL if length is 0. Must not change during the call.
 * \param length how many: at most SP_MAX_LENGTH.
 * \param sum where the sum goes, as a number of the host: as if each pair of bytes were read as a
 * big-endian number.
 * \return SP_OK; SP_ERROR_NULL, SP_ERROR_LENGTH, SP_ERROR_ARGUMENT.
 * \note Any thread may call it at any time.
 */
sp_status sp_checksum_sum(const void *bytes, size_t length, uint16_t *sum);

/**
 * Copies bytes and sums them in the same pass.
 *
 * \param to where to; apart from `from`.
 * \param from where from. Must not change during the call.
 * \param length how many: at most SP_MAX_LENGTH.
 * \param sum where the sum goes, as that of sp_checksum_sum.
 * \return SP_OK; SP_ERROR_NULL, SP_ERROR_LENGTH; SP_ERROR_ARGUMENT also if the ranges overlap. On
 * an error nothing is written.
 * \note Any thread may call it at any time.
 */
sp_status sp_checksum_copy(void *to, const void *from, size_t length, uint16_t *sum);

/**
 * Names a counter of an aggregator or batch: "packets_in".
 *
 * At any time packets_in = packets_out + merged + held.
 *
 * \param index from 0 on. The numbers may differ between releases, the names do not.
 * \return a string of the library's own, valid for ever; NULL behind the last.
 * \note Any thread may call it at any time.
 */
const char *sp_counter_name(size_t index);

/**
 * Names a reason for which a packet left an aggregator as it did: "push".
 *
 * \param index from 0 on: the field reason of an sp_output. The numbers may differ between
 * releases, the names do not.
 * \return a string of the library's own, valid for ever; NULL behind the last.
 * \note Any thread may call it at any time.
 */
const char *sp_reason_name(size_t index);

/**
 * Names a counter of a segmenter: "segments". Those whose names begin with "refused_" count by
 * error what "refused" counts in all.
 *
 * At any time packets = cut + passed + refused, and payload_in = payload_out.
 *
 * \param index from 0 on. The numbers may differ between releases, the names do not.
 * \return a string of the library's own, valid for ever; NULL behind the last.
 * \note Any thread may call it at any time.
 */
const char *sp_segment_counter_name(size_t index);

/**
 * Reads the counters of a batch.
 *
 * \param batch the object.
 * \param values where they go: number n is that of sp_counter_name(n); what is behind the last
 * counter is set to 0.
 * \param max how many there is room for.
 * \return SP_OK; SP_ERROR_NULL, SP_ERROR_LENGTH, SP_ERROR_ARGUMENT.
 * \note One thread at a time for each sp_batch.
 */
sp_status sp_batch_counters(const struct sp_batch *batch, uint64_t *values, size_t max);

/**
 * Reads how many packets left a batch for each reason. They add up to packets_out.
 *
 * \param batch the object.
 * \param values where they go: number n is that of sp_reason_name(n); what is behind the last
 * reason is set to 0.
 * \param max how many there is room for.
 * \return SP_OK; SP_ERROR_NULL, SP_ERROR_LENGTH, SP_ERROR_ARGUMENT.
 * \note One thread at a time for each sp_batch.
 */
sp_status sp_batch_reasons(const struct sp_batch *batch, uint64_t *values, size_t max);

/**
 * Reads the counters of an aggregator, as sp_batch_counters.
 *
 * \param aggregator the object.
 * \param values, max as for sp_batch_counters.
 * \return as sp_batch_counters.
 * \note One thread at a time for each sp_aggregator.
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
 * \note One thread at a time for each sp_aggregator.
 */
sp_status sp_aggregator_reasons(const struct sp_aggregator *aggregator,
                                uint64_t *values,
                                size_t max);

/**
 * Reads the counters of a segmenter.
 *
 * \param segmenter the object.
 * \param values where they go: number n is that of sp_segment_counter_name(n); what is behind the
 * last counter is set to 0.
 * \param max how many there is room for.
 * \return SP_OK; SP_ERROR_NULL, SP_ERROR_LENGTH, SP_ERROR_ARGUMENT.
 * \note One thread at a time for each sp_segmenter.
 */
sp_status sp_segmenter_counters(const struct sp_segmenter *segmenter, uint64_t *values, size_t max);

/**
 * Makes an aggregator that may hold packets across calls.
 *
 * \param policy how to aggregate; read during the call. virtio_length must be 0: describe the
 * outputs by sp_virtio_write, with SP_POLICY_PARTIAL_CHECKSUMS.
 * \param out where the new object goes; set to NULL on an error. Give it to sp_aggregator_free.
 * \return as sp_batch_new.
 * \note Any thread may call it at any time. Ends the process if memory cannot be had.
 */
sp_status sp_aggregator_new(const struct sp_policy *policy, struct sp_aggregator **out);

/**
 * Frees an aggregator. What it held is forgotten: all packets are the caller's again.
 *
 * \param aggregator NULL does nothing. No call may be under way in another thread.
 */
void sp_aggregator_free(struct sp_aggregator *aggregator);

/**
 * Takes packets, in order. What leaves goes into the space; the rest is held until
 * sp_aggregator_poll_end or a later packet of its flow.
 *
 * From now on each packet's bytes must stay as they are, until sp_aggregator_done gives its token.
 * The array itself is not kept.
 *
 * On SP_FULL, use the outputs that are there; then call again, with more packets or with none
 * (count 0): the aggregator has them all, and goes on where it stopped.
 *
 * \param aggregator the aggregator.
 * \param packets an array of packets of one buffer each: rest_count must be 0.
 * \param count how many: at most SP_MAX_PACKETS.
 * \param now the time in nanoseconds, of any clock, from which the policy's hold_time counts.
 * \param space filled from its start.
 * \return SP_OK; SP_FULL; or an error as those of sp_batch_aggregate: then none of the packets has
 * been taken.
 * \note One thread at a time for each sp_aggregator.
 */
sp_status sp_aggregator_receive(struct sp_aggregator *aggregator,
                                const struct sp_packet *packets,
                                size_t count,
                                uint64_t now,
                                struct sp_space *space);

/**
 * Ends a poll: puts out every flow that is held, or, with a hold_time, those that have been held
 * for as long.
 *
 * \param aggregator the aggregator.
 * \param now the time, as for sp_aggregator_receive.
 * \param space filled from its start.
 * \return SP_OK; SP_FULL: use the outputs, then call again; or an error as those of
 * sp_batch_aggregate.
 * \note One thread at a time for each sp_aggregator.
 */
sp_status sp_aggregator_poll_end(struct sp_aggregator *aggregator,
                                 uint64_t now,
                                 struct sp_space *space);

/**
 * Puts out all that is held, whatever the hold_time.
 *
 * \param aggregator the aggregator.
 * \param space filled from its start.
 * \return SP_OK; SP_FULL: use the outputs, then call again; or an error as those of
 * sp_batch_aggregate.
 * \note One thread at a time for each sp_aggregator.
 */
sp_status sp_aggregator_flush(struct sp_aggregator *aggregator, struct sp_space *space);

/**
 * Gives back the tokens of packets that are done with: their outputs have been put out, or they
 * were absorbed. Each token comes once. Call it when the outputs have been used.
 *
 * \param aggregator the aggregator.
 * \param tokens where to put them.
 * \param max how many fit.
 * \param count where the number goes that was put there.
 * \return SP_OK; SP_FULL if there are more; SP_ERROR_NULL, SP_ERROR_LENGTH, SP_ERROR_ARGUMENT.
 * \note One thread at a time for each sp_aggregator.
 */
sp_status sp_aggregator_done(struct sp_aggregator *aggregator,
                             void **tokens,
                             size_t max,
                             size_t *count);

/**
 * Tells when the flow that has been held longest will have been held for the policy's hold_time:
 * when to call sp_aggregator_poll_end next.
 *
 * \param aggregator the aggregator.
 * \param time where the time goes, in nanoseconds of the clock that sp_aggregator_receive was
 * given.
 * \return SP_OK; SP_NONE if nothing is held, and nothing is written; SP_ERROR_NULL,
 * SP_ERROR_ARGUMENT.
 * \note One thread at a time for each sp_aggregator.
 */
sp_status sp_aggregator_deadline(const struct sp_aggregator *aggregator, uint64_t *time);

/**
 * Makes a segmenter.
 *
 * \param out where the new object goes. Give it to sp_segmenter_free.
 * \return SP_OK; SP_ERROR_NULL, SP_ERROR_ARGUMENT for out.
 * \note Any thread may call it at any time. Ends the process if memory cannot be had.
 */
sp_status sp_segmenter_new(struct sp_segmenter **out);

/**
 * Frees a segmenter.
 *
 * \param segmenter NULL does nothing. No call may be under way in another thread.
 */
void sp_segmenter_free(struct sp_segmenter *segmenter);

/**
 * Tells how many segments a packet would give, and how long. Cuts and counts nothing.
 *
 * \param segmenter the segmenter.
 * \param packet the packet, with gso_type and gso_size in its offload. Its bytes are the caller's,
 * and must not change during the call.
 * \param options NULL: an Ethernet frame, whole checksums, no limit.
 * \param plan where the answer goes.
 * \return as sp_segment, without SP_ERROR_SPACE.
 * \note One thread at a time for each sp_segmenter.
 */
sp_status sp_segment_plan(struct sp_segmenter *segmenter,
                          const struct sp_packet *packet,
                          const struct sp_segment_options *options,
                          struct sp_plan *plan);

/**
 * Cuts a packet into segments of header bytes, in the space's header memory, and payload where it
 * lies. Payload is read only where a checksum needs it.
 *
 * The space must have room for all segments: as many outputs, two ranges for each and one more for
 * each buffer of the packet, and SP_MAX_HEADER bytes of headers for each. sp_segment_plan tells
 * how many segments there are. A packet without gso_type comes out whole, as one segment, with its
 * checksum filled in if that is partial and SP_OUTPUT_FULL is asked for.
 *
 * \param segmenter the segmenter.
 * \param packet the packet. Its bytes are the caller's, and must not change before the segments
 * have been sent.
 * \param options as for sp_segment_plan.
 * \param space filled from its start; all or nothing.
 * \return SP_OK; SP_ERROR_SPACE if not all segments fit; SP_ERROR_HEADERS to
 * SP_ERROR_PARTIAL_CHECKSUM if the packet cannot be cut; SP_ERROR_NULL, SP_ERROR_LENGTH,
 * SP_ERROR_ARGUMENT, SP_ERROR_STRUCTURE for what is given; SP_ERROR_INTERNAL. On an error there is
 * no output.
 * \note One thread at a time for each sp_segmenter.
 */
sp_status sp_segment(struct sp_segmenter *segmenter,
                     const struct sp_packet *packet,
                     const struct sp_segment_options *options,
                     struct sp_space *space);

/**
 * Cuts a packet into buffers, one for each segment: headers and payload are written behind each
 * other, and summed in the same pass.
 *
 * \param segmenter the segmenter.
 * \param packet the packet. Its bytes must not change during the call.
 * \param options as for sp_segment_plan.
 * \param buffers the caller's memory for segments: each has iov_len bytes, of which the first
 * `offset` are left as they are. Apart from each other and from the packet. How much of each is
 * written is said in lengths.
 * \param count how many buffers.
 * \param offset where the segments start in their buffers, in bytes.
 * \param lengths an array of count: the length of each segment goes there, without the offset.
 * \param plan where the number and lengths of the segments go; NULL if they are not wanted.
 * \return as sp_segment; SP_ERROR_SPACE or SP_ERROR_TOO_MANY_SEGMENTS if the buffers do not take
 * all segments. On an error nothing has been written.
 * \note One thread at a time for each sp_segmenter.
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
 * Cuts a packet into one buffer, its segments behind each other: segment n starts at n times
 * plan->segment_length, as UDP_SEGMENT of Linux has it.
 *
 * \param segmenter the segmenter.
 * \param packet the packet. Its bytes must not change during the call.
 * \param options as for sp_segment_plan.
 * \param buffer the caller's memory, apart from the packet.
 * \param size how many bytes it has.
 * \param plan where the number and lengths of the segments go.
 * \return as sp_segment; SP_ERROR_SPACE if they do not fit. On an error nothing has been written.
 * \note One thread at a time for each sp_segmenter.
 */
sp_status sp_segment_linear(struct sp_segmenter *segmenter,
                            const struct sp_packet *packet,
                            const struct sp_segment_options *options,
                            void *buffer,
                            size_t size,
                            struct sp_plan *plan);

/**
 * Finds out how a packet is to be cut so that its segments fit an MTU, and writes gso_type and
 * gso_size into its offload: for a packet that says nothing of it, TCP if it is TCP, UDP datagrams
 * if it is UDP.
 *
 * \param packet the packet, of which only the headers are read; its offload is changed.
 * \param layer where it starts.
 * \param mtu the most bytes of a segment, from the outermost IP header on.
 * \return SP_OK, also if the packet fits and nothing was changed; SP_ERROR_HEADERS;
 * SP_ERROR_SEGMENT_TOO_SMALL if the MTU has no room for the headers; SP_ERROR_NULL,
 * SP_ERROR_LENGTH, SP_ERROR_ARGUMENT.
 * \note Any thread may call it at any time.
 */
sp_status sp_gso_for_mtu(struct sp_packet *packet, uint32_t layer, size_t mtu);

/**
 * Cuts as sp_segment does, but writes headers alone: for a caller whose own descriptors are to
 * refer to the payload, which he walks himself.
 *
 * \param segmenter the segmenter.
 * \param packet the packet. Its bytes are the caller's, and must not change before the segments
 * have been sent.
 * \param options as for sp_segment_plan.
 * \param places an array of count pointers to SP_MAX_HEADER bytes each, apart from each other and
 * from the packet: the headers of segment n go to where pointer n points.
 * \param count how many segments there may be.
 * \param headers where the answer goes.
 * \return as sp_segment; SP_ERROR_SPACE if there are more segments than places;
 * SP_ERROR_ARGUMENT for SP_GSO_UDP_FRAGMENTS, whose headers differ in length. On an error no place
 * has been written.
 * \note One thread at a time for each sp_segmenter.
 */
sp_status sp_segment_headers(struct sp_segmenter *segmenter,
                             const struct sp_packet *packet,
                             const struct sp_segment_options *options,
                             void *const *places,
                             size_t count,
                             struct sp_headers *headers);

/**
 * Cuts what one read(2) of a device gave, a virtio_net_hdr and a packet, into what a wire carries,
 * with complete checksums: into buffers, as sp_segment_each. A packet that is no super-packet is
 * one segment.
 *
 * \param segmenter the segmenter.
 * \param virtio_length the length of the header: 10, 12, 20 or 24.
 * \param virtio_order its byte order: SP_ORDER_NATIVE or another.
 * \param layer where packets start: SP_LAYER_IP for a TUN device.
 * \param read what was read. Must not change during the call.
 * \param length how many bytes.
 * \param buffers, count, offset, lengths, plan as for sp_segment_each.
 * \return as sp_segment_each, and SP_ERROR_VIRTIO if the header contradicts the packet. On an
 * error nothing has been written.
 * \note One thread at a time for each sp_segmenter.
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
 * As sp_split_each, into one buffer, as sp_segment_linear.
 *
 * \param segmenter the segmenter.
 * \param virtio_length, virtio_order, layer, read, length as for sp_split_each.
 * \param buffer, size, plan as for sp_segment_linear.
 * \return as sp_split_each.
 * \note One thread at a time for each sp_segmenter.
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
 * Returns what a status says, in English: "the space is too small".
 *
 * \param status any number; one that is no status gives "unknown status".
 * \return a string of the library's own, valid for ever. Never NULL.
 * \note Any thread may call it at any time.
 */
const char *sp_strerror(int status);

/**
 * Returns the name of a status: "SP_ERROR_SPACE".
 *
 * \param status any number; one that is no status gives "SP_UNKNOWN".
 * \return a string of the library's own, valid for ever. Never NULL.
 * \note Any thread may call it at any time.
 */
const char *sp_errname(int status);

/**
 * Writes what is known of the last call that failed on this thread: which argument, which length,
 * what was expected.
 *
 * As snprintf(3): the text is cut to fit, and ends with a zero byte unless `size` is 0.
 *
 * \param text where to write; may be NULL if `size` is 0.
 * \param size how many bytes there are.
 * \return the length of the whole text, without the zero byte.
 * \note Any thread may call it at any time, for its own calls.
 */
size_t sp_message(char *text, size_t size);

/**
 * Computes the tables of a key.
 *
 * \param key SP_TOEPLITZ_KEY bytes, in the order in which ethtool -x shows them; read during the
 * call. NULL: the key that Microsoft published, with which many devices start.
 * \param length how many bytes: SP_TOEPLITZ_KEY, or 0 if key is NULL.
 * \param flags 0 or SP_TOEPLITZ_SYMMETRIC.
 * \param out where the new object goes. Give it to sp_toeplitz_free.
 * \return SP_OK; SP_ERROR_LENGTH for another length; SP_ERROR_NULL, SP_ERROR_ARGUMENT.
 * \note Any thread may call it at any time. Ends the process if memory cannot be had.
 */
sp_status sp_toeplitz_new(const void *key, size_t length, uint32_t flags, struct sp_toeplitz **out);

/**
 * Frees the tables of a key.
 *
 * \param toeplitz NULL does nothing. No call may be under way in another thread.
 */
void sp_toeplitz_free(struct sp_toeplitz *toeplitz);

/**
 * Hashes bytes: addresses and ports as the specification puts them together. Bytes behind the 36th
 * add nothing.
 *
 * \param toeplitz the tables.
 * \param bytes the bytes; NULL if length is 0.
 * \param length how many.
 * \param hash where the hash goes.
 * \return SP_OK; SP_ERROR_NULL, SP_ERROR_LENGTH, SP_ERROR_ARGUMENT.
 * \note Any number of threads at a time.
 */
sp_status sp_toeplitz_bytes(const struct sp_toeplitz *toeplitz,
                            const void *bytes,
                            size_t length,
                            uint32_t *hash);

/**
 * Hashes the innermost addresses and ports of a packet, as devices do; fragments, and protocols
 * other than TCP, UDP and DCCP, by their addresses alone.
 *
 * \param toeplitz the tables.
 * \param packet the packet, of which the headers are read.
 * \param layer where it starts.
 * \param hash where the hash goes.
 * \return SP_OK; SP_NONE if it is not IP, and nothing is written; SP_ERROR_NULL, SP_ERROR_LENGTH,
 * SP_ERROR_ARGUMENT.
 * \note Any number of threads at a time.
 */
sp_status sp_toeplitz_packet(const struct sp_toeplitz *toeplitz,
                             const struct sp_packet *packet,
                             uint32_t layer,
                             uint32_t *hash);

/**
 * Reads the virtio_net_hdr before a packet, checks it against the packet, and makes a packet for
 * sp_segment and others of both.
 *
 * Nothing in the header is believed that the packet's own headers contradict.
 *
 * \param virtio_length the length of the header: 10, 12, 20 or 24.
 * \param virtio_order its byte order: SP_ORDER_NATIVE or another.
 * \param layer where the packet starts: SP_LAYER_IP for a TUN device.
 * \param read what read(2) gave: the header, and the packet behind it. Must not change during the
 * call.
 * \param length how many bytes.
 * \param packet where the packet goes: its data points into what was read, so it is good for as
 * long as that is. Its token is NULL.
 * \return SP_OK; SP_ERROR_VIRTIO, and sp_message tells which field is wrong; SP_ERROR_NULL,
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
 * \param virtio_length the length of the header: 10, 12, 20 or 24.
 * \param virtio_order its byte order: SP_ORDER_NATIVE or another.
 * \param layer where the packet starts: SP_LAYER_IP for a TUN device.
 * \param packet the packet, of which the headers are read. Must not change during the call.
 * \param header where the header goes.
 * \param size how many bytes there are: at least virtio_length.
 * \return SP_OK; SP_ERROR_VIRTIO if no header of this length says what the packet's offload does:
 * a super-packet with a whole checksum, DCCP, a tunnel; SP_ERROR_SPACE; SP_ERROR_NULL,
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

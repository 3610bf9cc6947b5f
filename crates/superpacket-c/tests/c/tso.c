/*
 * What mbuf_aggregate() asks of a port, judged by DPDK's own code: rte_validate_tx_offload(), rte_net_intel_cksum_prepare(),
 * rte_eth_tx_prepare() of a virtio port and that port itself, and rte_gso_segment(). For each link header, tunnel, IP version and protocol: what merges is cut into the
 * frames that were merged, and what no mbuf can describe is passed on as it came. Without a
 * folder for the socket between them there are no ports. Usage: tso EAL-ARGUMENTS [-- FOLDER]
 */
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_gso.h>
#include <rte_net.h>

#include "frames.h"
#include "mbuf.h"

enum { PACKETS = 20, PAYLOAD = 1000, LAST = 300, MOST = 1500 };
enum link { PLAIN, VLAN, TWO_VLANS, OLD_VLAN, PPPOE, MPLS, LINKS };
enum tunnel { NONE, VXLAN, VXLAN_SUM, GENEVE, GENEVE_SUM, GENEVE_LONG, GRE, GRE_KEY, GRE_SUM, GRE_BRIDGED, IP, NESTED, TUNNELS };

/* How frames are made. */
struct kind {
    enum link link;
    enum tunnel tunnel;
    int outer_ipv6, ipv6, udp, extension, fixed_id, fixed_outer_id, cwr;
};

/* The lengths that an mbuf says of them. */
struct lengths {
    unsigned outer_l2, outer_l3, l2, l3, l4;
};

static struct kind kind;
static struct lengths lengths;
static struct mbuf_space memory;
static uint8_t frames[PACKETS][MOST];
static size_t frame_lengths[PACKETS];
static struct rte_mempool *pool, *direct, *indirect, *receiving;
static uint64_t capabilities[RTE_MAX_ETHPORTS];
static uint16_t vhost, virtio;
static sp_batch *batch;
static sp_segmenter *segmenter;
static unsigned merged_kinds, cut_by_gso, sent_by_virtio, refused_kinds;

#define CHECK(condition)                                                                                                                       \
    do {                                                                                                                                       \
        if (!(condition))                                                                                                                      \
            rte_exit(EXIT_FAILURE, "%s:%d: link %d, tunnel %d, outer IPv6 %d, IPv6 %d, UDP %d, %d %d %d %d: %s\n", __FILE__, __LINE__, kind.link, \
                     kind.tunnel, kind.outer_ipv6, kind.ipv6, kind.udp, kind.extension, kind.fixed_id, kind.fixed_outer_id, kind.cwr, #condition); \
    } while (0)

static uint8_t *put_bytes(uint8_t *at, const char *bytes, size_t length) {
    memcpy(at, bytes, length);
    return at + length;
}

static uint8_t *put_ethernet(uint8_t *at, unsigned type) {
    at = put_bytes(at, "\2\0\0\0\0\2\2\0\0\0\0\1", 12);
    put16(at, type);
    return at + 2;
}

/* An IP header with so many bytes behind it, and for `extension` IPv6 destination options. */
static uint8_t *put_ip(uint8_t *at, int ipv6, unsigned protocol, size_t behind, unsigned id, int extension) {
    if (ipv6) {
        memset(at, 0, 48);
        at[0] = 0x60;
        put16(at + 4, (unsigned)behind + (extension ? 8 : 0));
        at[6] = (uint8_t)(extension ? 60 : protocol);
        at[7] = 64;
        memset(at + 8, 0x20, 15);
        memset(at + 24, 0x30, 16);
        if (!extension)
            return at + 40;
        memcpy(at + 40, "\0\0\1\4\0\0\0\0", 8);
        at[40] = (uint8_t)protocol;
        return at + 48;
    }
    memset(at, 0, 20);
    at[0] = 0x45;
    put16(at + 2, (unsigned)(20 + behind));
    put16(at + 4, id & 0xffff);
    put16(at + 6, 0x4000);
    at[8] = 64;
    at[9] = (uint8_t)protocol;
    memcpy(at + 12, "\12\0\0\1\12\0\0\2", 8);
    put16(at + 10, checksum_of(sum_of(at, 20, 0)));
    return at + 20;
}

/* The sum of the pseudo-header. */
static uint32_t pseudo_of(const uint8_t *ip, unsigned protocol, size_t length) {
    return ip[0] >> 4 == 6 ? sum_of(ip + 8, 32, protocol + (uint32_t)length) : sum_of(ip + 12, 8, protocol + (uint32_t)length);
}

/* Fills in the checksum of what lies at `transport`, as long as is said. */
static void put_checksum(const uint8_t *ip, uint8_t *transport, unsigned protocol, size_t length) {
    uint8_t *field = transport + (protocol == 17 ? 6 : 16);
    unsigned checksum;
    put16(field, 0);
    checksum = checksum_of(sum_of(transport, length, pseudo_of(ip, protocol, length)));
    put16(field, protocol == 17 && !checksum ? 0xffff : checksum);
}

static uint8_t *put_udp(uint8_t *at, unsigned port, size_t behind) {
    put16(at, 50000);
    put16(at + 2, port);
    put16(at + 4, (unsigned)(8 + behind));
    put16(at + 6, 0);
    return at + 8;
}

/* Bytes between the outermost IP header and the inner one. */
static size_t tunnel_length(void) {
    static const size_t length[TUNNELS] = {[VXLAN] = 30, [VXLAN_SUM] = 30, [GENEVE] = 30, [GENEVE_SUM] = 30, [GENEVE_LONG] = 30 + 100,
                                           [GRE] = 4, [GRE_KEY] = 8, [GRE_SUM] = 8, [GRE_BRIDGED] = 18, [IP] = 0, [NESTED] = 30 + 20 + 30};
    return length[kind.tunnel];
}

/* The headers of a tunnel, with so many bytes in it, from the outermost IP header to the inner one. */
static uint8_t *put_tunnel(uint8_t *at, size_t inside, unsigned index) {
    unsigned type = kind.ipv6 ? 0x86dd : 0x0800, id = kind.fixed_outer_id ? 7 : 100 + index;
    size_t behind = tunnel_length() + inside;
    uint8_t *outer = at;
    if (kind.tunnel == NONE)
        return at;
    at = put_ip(at, kind.outer_ipv6, kind.tunnel == IP ? (kind.ipv6 ? 41 : 4) : kind.tunnel >= GRE && kind.tunnel <= GRE_BRIDGED ? 47 : 17, behind, id, 0);
    lengths.outer_l3 = (unsigned)(at - outer);
    switch (kind.tunnel) {
    case VXLAN:
    case VXLAN_SUM:
        at = put_udp(at, 4789, behind - 8);
        return put_ethernet(put_bytes(at, "\10\0\0\0\0\0\5\0", 8), type);
    case GENEVE:
    case GENEVE_SUM:
        at = put_udp(at, 6081, behind - 8);
        return put_ethernet(put_bytes(at, "\0\0\x65\x58\0\0\5\0", 8), type);
    case GENEVE_LONG:
        at = put_udp(at, 6081, behind - 8);
        at = put_bytes(at, "\x19\0\x65\x58\0\0\5\0\1\2\3\x18", 12); /* an option of 100 bytes */
        memset(at, 0x77, 96);
        return put_ethernet(at + 96, type);
    case GRE:
        put16(at, 0);
        put16(at + 2, type);
        return at + 4;
    case GRE_KEY:
        put16(at, 0x2000);
        put16(at + 2, type);
        return put_bytes(at + 4, "\1\2\3\4", 4);
    case GRE_SUM:
        put16(at, 0x8000);
        put16(at + 2, type);
        return put_bytes(at + 4, "\0\0\0\0", 4);
    case GRE_BRIDGED:
        at = put_bytes(at, "\0\0\x65\x58", 4);
        return put_ethernet(at, type);
    case NESTED:
        at = put_udp(at, 4789, behind - 8);
        at = put_ethernet(put_bytes(at, "\10\0\0\0\0\0\5\0", 8), 0x0800);
        at = put_ip(at, 0, 17, behind - 50, 200 + index, 0);
        at = put_udp(at, 6081, behind - 58);
        return put_ethernet(put_bytes(at, "\0\0\x65\x58\0\0\5\0", 8), type);
    default:
        return at;
    }
}

/* A frame of this kind, the segment or datagram of its flow with this number. */
static size_t build(uint8_t *frame, unsigned index, size_t payload) {
    unsigned network = kind.tunnel == NONE ? kind.ipv6 : kind.outer_ipv6, type = network ? 0x86dd : 0x0800, protocol = kind.udp ? 17 : 6;
    size_t transport = kind.udp ? 8 : 32, ip = kind.ipv6 ? 40 + (kind.extension ? 8 : 0) : 20, inside = ip + transport + payload;
    size_t whole = inside + (kind.tunnel == NONE ? 0 : tunnel_length() + (network ? 40 : 20));
    uint8_t *at = frame, *outer, *inner;
    switch (kind.link) {
    case PLAIN: at = put_ethernet(at, type); break;
    case VLAN: at = put_bytes(put_ethernet(at, 0x8100), "\0\5", 2); put16(at, type); at += 2; break;
    case TWO_VLANS: at = put_bytes(put_ethernet(at, 0x88a8), "\0\5\x81\0\0\6", 6); put16(at, type); at += 2; break;
    case OLD_VLAN: at = put_bytes(put_ethernet(at, 0x9100), "\0\5", 2); put16(at, type); at += 2; break;
    case PPPOE:
        at = put_bytes(put_ethernet(at, 0x8864), "\x11\0\0\1", 4);
        put16(at, (unsigned)whole + 2);
        put16(at + 2, network ? 0x0057 : 0x0021);
        at += 4;
        break;
    default: at = put_bytes(put_ethernet(at, 0x8847), "\0\0\x11\x40", 4); break;
    }
    outer = at;
    inner = at = put_tunnel(at, inside, index);
    at = put_ip(at, kind.ipv6, protocol, transport + payload, kind.fixed_id ? 9 : index, kind.extension);
    lengths.l2 = (unsigned)(kind.tunnel == NONE ? outer - frame : inner - outer - lengths.outer_l3);
    lengths.outer_l2 = kind.tunnel == NONE ? 0 : (unsigned)(outer - frame);
    if (kind.tunnel == NONE)
        lengths.outer_l3 = 0;
    lengths.l3 = (unsigned)ip;
    lengths.l4 = (unsigned)transport;
    if (kind.udp) {
        put_udp(at, 443, payload);
    } else {
        memset(at, 0, 32);
        put32(at, 0x2710 << 16 | 443);
        put32(at + 4, 1000 + index * PAYLOAD);
        put32(at + 8, 1);
        at[12] = 0x80;
        at[13] = kind.cwr ? 0x90 : 0x10;
        put16(at + 14, 500);
        memcpy(at + 20, "\1\1\10\12\0\0\3\350\0\0\7\320", 12);
    }
    for (size_t offset = 0; offset < payload; offset++)
        at[transport + offset] = (uint8_t)(offset * 7 + index * 13);
    put_checksum(inner, at, protocol, transport + payload);
    if (kind.tunnel == GRE_SUM)
        put16(outer + lengths.outer_l3 + 4, checksum_of(sum_of(outer + lengths.outer_l3, 8 + inside, 0)));
    if (kind.tunnel == VXLAN_SUM || kind.tunnel == GENEVE_SUM)
        put_checksum(outer, outer + lengths.outer_l3, 17, tunnel_length() + inside);
    return (size_t)(outer - frame) + whole;
}

/* Bytes in one mbuf, or in several of which the first has so many. */
static struct rte_mbuf *mbuf_of(const uint8_t *bytes, size_t length, size_t first) {
    struct rte_mbuf *mbuf = rte_pktmbuf_alloc(pool), *rest;
    CHECK(mbuf && rte_pktmbuf_append(mbuf, (uint16_t)RTE_MIN(first, length)));
    memcpy(rte_pktmbuf_mtod(mbuf, void *), bytes, mbuf->data_len);
    if (first < length) {
        rest = mbuf_of(bytes + first, length - first, length);
        CHECK(rte_pktmbuf_chain(mbuf, rest) == 0);
    }
    return mbuf;
}

/* The frames of this kind, in mbufs. */
static void receive(struct rte_mbuf **mbufs, size_t first) {
    for (unsigned index = 0; index < PACKETS; index++) {
        frame_lengths[index] = build(frames[index], index, index + 1 < PACKETS ? PAYLOAD : LAST);
        mbufs[index] = mbuf_of(frames[index], frame_lengths[index], first);
    }
}

/* Tells whether an mbuf has the bytes of a frame. */
static int is_frame(const struct rte_mbuf *mbuf, unsigned index) {
    static uint8_t gathered[MOST];
    return mbuf->pkt_len == frame_lengths[index] && !memcmp(rte_pktmbuf_read(mbuf, 0, mbuf->pkt_len, gathered), frames[index], mbuf->pkt_len);
}

/* What a port does to a packet by its flags: it computes checksums. Returns the packet in one mbuf. */
static struct rte_mbuf *through_a_port(struct rte_mbuf *sent) {
    struct rte_mbuf *mbuf = rte_pktmbuf_copy(sent, pool, 0, UINT32_MAX);
    uint64_t flags = sent->ol_flags, outer = flags & (RTE_MBUF_F_TX_OUTER_IPV4 | RTE_MBUF_F_TX_OUTER_IPV6);
    uint8_t *bytes, *ip, *transport;
    CHECK(mbuf && rte_pktmbuf_linearize(mbuf) == 0 && !(flags & (RTE_MBUF_F_TX_TCP_SEG | RTE_MBUF_F_TX_UDP_SEG)));
    bytes = rte_pktmbuf_mtod(mbuf, uint8_t *);
    ip = bytes + (outer ? sent->outer_l2_len + sent->outer_l3_len : 0) + sent->l2_len;
    transport = ip + sent->l3_len;
    if (flags & RTE_MBUF_F_TX_L4_MASK)
        put_checksum(ip, transport, (flags & RTE_MBUF_F_TX_L4_MASK) == RTE_MBUF_F_TX_UDP_CKSUM ? 17 : 6, mbuf->pkt_len - (size_t)(transport - bytes));
    if (flags & RTE_MBUF_F_TX_IP_CKSUM) {
        put16(ip + 10, 0);
        put16(ip + 10, checksum_of(sum_of(ip, sent->l3_len, 0)));
    }
    ip = bytes + sent->outer_l2_len;
    transport = ip + sent->outer_l3_len;
    if (flags & RTE_MBUF_F_TX_OUTER_UDP_CKSUM)
        put_checksum(ip, transport, 17, mbuf->pkt_len - (size_t)(transport - bytes));
    if (flags & RTE_MBUF_F_TX_OUTER_IP_CKSUM) {
        put16(ip + 10, 0);
        put16(ip + 10, checksum_of(sum_of(ip, sent->outer_l3_len, 0)));
    }
    return mbuf;
}

/* Checks that segments are the frames once a port has sent them, and frees them. */
static void check_segments(struct rte_mbuf **segments, int count) {
    CHECK(count == PACKETS);
    for (unsigned index = 0; index < PACKETS; index++) {
        const char *reason;
        struct rte_mbuf *arrived = through_a_port(segments[index]);
        CHECK(rte_mbuf_check(segments[index], 1, &reason) == 0);
        CHECK(is_frame(arrived, index));
        rte_pktmbuf_free(arrived);
        rte_pktmbuf_free(segments[index]);
    }
}

/* Checks that an mbuf asks for what its headers are. */
static void check_request(const struct rte_mbuf *mbuf) {
    static const uint64_t tunnels[TUNNELS] = {[VXLAN] = RTE_MBUF_F_TX_TUNNEL_VXLAN, [VXLAN_SUM] = RTE_MBUF_F_TX_TUNNEL_VXLAN,
                                              [GENEVE] = RTE_MBUF_F_TX_TUNNEL_GENEVE, [GENEVE_SUM] = RTE_MBUF_F_TX_TUNNEL_GENEVE,
                                              [GRE] = RTE_MBUF_F_TX_TUNNEL_GRE, [GRE_KEY] = RTE_MBUF_F_TX_TUNNEL_GRE,
                                              [GRE_BRIDGED] = RTE_MBUF_F_TX_TUNNEL_GRE, [IP] = RTE_MBUF_F_TX_TUNNEL_IPIP};
    static const uint64_t offloads[TUNNELS] = {[VXLAN] = RTE_ETH_TX_OFFLOAD_VXLAN_TNL_TSO, [VXLAN_SUM] = RTE_ETH_TX_OFFLOAD_VXLAN_TNL_TSO,
                                               [GENEVE] = RTE_ETH_TX_OFFLOAD_GENEVE_TNL_TSO, [GENEVE_SUM] = RTE_ETH_TX_OFFLOAD_GENEVE_TNL_TSO,
                                               [GRE] = RTE_ETH_TX_OFFLOAD_GRE_TNL_TSO, [GRE_KEY] = RTE_ETH_TX_OFFLOAD_GRE_TNL_TSO,
                                               [GRE_BRIDGED] = RTE_ETH_TX_OFFLOAD_GRE_TNL_TSO, [IP] = RTE_ETH_TX_OFFLOAD_IPIP_TNL_TSO};
    uint64_t flags = kind.udp ? RTE_MBUF_F_TX_UDP_SEG | RTE_MBUF_F_TX_UDP_CKSUM : RTE_MBUF_F_TX_TCP_SEG | RTE_MBUF_F_TX_TCP_CKSUM;
    uint64_t needed = RTE_ETH_TX_OFFLOAD_MULTI_SEGS | RTE_ETH_TX_OFFLOAD_TCP_CKSUM;
    const char *reason;
    flags |= kind.ipv6 ? RTE_MBUF_F_TX_IPV6 : RTE_MBUF_F_TX_IPV4 | RTE_MBUF_F_TX_IP_CKSUM;
    if (kind.tunnel == NONE) {
        needed |= RTE_ETH_TX_OFFLOAD_TCP_TSO;
    } else {
        flags |= tunnels[kind.tunnel] | (kind.outer_ipv6 ? RTE_MBUF_F_TX_OUTER_IPV6 : RTE_MBUF_F_TX_OUTER_IPV4 | RTE_MBUF_F_TX_OUTER_IP_CKSUM);
        needed |= offloads[kind.tunnel] | (kind.outer_ipv6 ? 0 : RTE_ETH_TX_OFFLOAD_OUTER_IPV4_CKSUM);
    }
    if (kind.tunnel == VXLAN_SUM || kind.tunnel == GENEVE_SUM) {
        flags |= RTE_MBUF_F_TX_OUTER_UDP_CKSUM;
        needed |= RTE_ETH_TX_OFFLOAD_OUTER_UDP_CKSUM;
    }
    CHECK(mbuf->ol_flags == flags && mbuf->tso_segsz == PAYLOAD);
    CHECK(mbuf->l2_len == lengths.l2 && mbuf->l3_len == lengths.l3 && mbuf->l4_len == lengths.l4);
    CHECK(mbuf->outer_l2_len == lengths.outer_l2 && mbuf->outer_l3_len == lengths.outer_l3);
    CHECK(mbuf_offloads(mbuf) == (kind.udp ? UINT64_MAX : needed));
    CHECK(rte_mbuf_check(mbuf, 1, &reason) == 0 && rte_validate_tx_offload(mbuf) == 0);
}

/* Lets DPDK prepare a packet for a port, and checks that it writes checksums alone, where they lie. */
static void check_prepared(const struct rte_mbuf *mbuf) {
    static uint8_t before[MOST], after[MOST];
    size_t headers = lengths.outer_l2 + lengths.outer_l3 + lengths.l2 + lengths.l3 + lengths.l4;
    size_t ip = headers - lengths.l4 - lengths.l3, transport = headers - lengths.l4, outer = lengths.outer_l2, outer_transport = outer + lengths.outer_l3;
    struct rte_mbuf *copy = rte_pktmbuf_copy(mbuf, pool, 0, UINT32_MAX);
    CHECK(copy);
    copy->tx_offload = mbuf->tx_offload;
    copy->ol_flags = mbuf->ol_flags;
    memcpy(before, rte_pktmbuf_mtod(copy, void *), headers);
    CHECK(rte_net_intel_cksum_prepare(copy) == 0);
    memcpy(after, rte_pktmbuf_mtod(copy, void *), headers);
    if (!kind.ipv6) {
        CHECK(!after[ip + 10] && !after[ip + 11]);
        memcpy(after + ip + 10, before + ip + 10, 2);
    }
    if (kind.tunnel != NONE && !kind.outer_ipv6) {
        CHECK(!after[outer + 10] && !after[outer + 11]);
        memcpy(after + outer + 10, before + outer + 10, 2);
    }
    if (kind.tunnel == VXLAN_SUM || kind.tunnel == GENEVE_SUM)
        memcpy(after + outer_transport + 6, before + outer_transport + 6, 2);
    if (kind.udp) { /* The sum of the pseudo-header with the length of the datagram that merged. */
        CHECK(!memcmp(after + transport + 6, before + transport + 6, 2));
    } else { /* The same without a length, as ports want it for TSO. */
        unsigned sum = ~checksum_of(pseudo_of(after + ip, 6, 0)) & 0xffff;
        CHECK(after[transport + 16] == sum >> 8 && after[transport + 17] == (sum & 0xff));
        memcpy(after + transport + 16, before + transport + 16, 2);
    }
    CHECK(!memcmp(before, after, headers));
    rte_pktmbuf_free(copy);
}

/* Sends a packet through the virtio port, if that has what the packet needs, and checks that it arrives as a super-packet. */
static void check_sent(const struct rte_mbuf *mbuf) {
    static uint8_t sent[70000], arrived[70000];
    uint32_t headers = lengths.l2 + lengths.l3 + lengths.l4, length = mbuf->pkt_len;
    struct rte_mbuf *copy, *received;
    const char *reason;
    if (mbuf_offloads(mbuf) & ~capabilities[virtio])
        return;
    CHECK(kind.tunnel == NONE && !kind.udp);
    copy = rte_pktmbuf_copy(mbuf, receiving, 0, UINT32_MAX);
    CHECK(copy);
    copy->tx_offload = mbuf->tx_offload;
    copy->ol_flags = mbuf->ol_flags;
    CHECK(rte_eth_tx_prepare(virtio, 0, &copy, 1) == 1 && rte_eth_tx_burst(virtio, 0, &copy, 1) == 1);
    for (unsigned wait = 0; rte_eth_rx_burst(vhost, 0, &received, 1) != 1; wait++) {
        CHECK(wait < 5000);
        rte_delay_us_sleep(1000);
    }
    CHECK(received->pkt_len == length && received->ol_flags & RTE_MBUF_F_RX_LRO && received->tso_segsz == PAYLOAD);
    CHECK(rte_mbuf_check(received, 1, &reason) == 0);
    /* Both are chains: the bytes are copied. */
    CHECK(rte_pktmbuf_read(mbuf, 0, length, sent) == sent && rte_pktmbuf_read(received, 0, length, arrived) == arrived);
    CHECK(!memcmp(sent + headers, arrived + headers, length - headers) && !memcmp(sent, arrived, lengths.l2));
    rte_pktmbuf_free(received);
    sent_by_virtio++;
}

/* Why mbufs cannot describe what merges of this kind. */
static enum mbuf_refusal expected(void) {
    if (kind.link == OLD_VLAN || kind.link == PPPOE || kind.link == MPLS)
        return MBUF_LINK_HEADER;
    if (kind.extension)
        return MBUF_IP_HEADER;
    if (kind.fixed_id && !kind.ipv6)
        return MBUF_IDENTIFICATION;
    if (kind.cwr)
        return MBUF_CWR;
    if (kind.tunnel == GENEVE_LONG || kind.tunnel == GRE_SUM || kind.tunnel == NESTED)
        return MBUF_TUNNEL;
    return kind.fixed_outer_id && kind.tunnel != NONE && !kind.outer_ipv6 ? MBUF_IDENTIFICATION : MBUF_MERGED;
}

/* Checks that a burst has passed as it came, for this reason. */
static void check_passed(struct rte_mbuf **before, struct rte_mbuf **mbufs, uint16_t count, enum mbuf_refusal refusal, uint64_t refused_before) {
    /* Longer headers than these the library does not merge at all. */
    int is_merged = frame_lengths[0] - PAYLOAD <= 256;
    CHECK(count == PACKETS && memory.refused[refusal] == refused_before + (is_merged ? PACKETS : 0));
    for (unsigned index = 0; index < PACKETS; index++)
        CHECK(mbufs[index] == before[index] && is_frame(mbufs[index], index) && !(mbufs[index]->ol_flags & RTE_MBUF_F_TX_OFFLOAD_MASK));
    rte_pktmbuf_free_bulk(mbufs, PACKETS);
}

/* Joins the frames of a kind, and has them cut in each way. */
static void one_kind(void) {
    struct rte_mbuf *mbufs[PACKETS], *before[PACKETS], *segments[MBUF_SEGMENTS];
    enum mbuf_refusal refusal = expected();
    uint64_t refused = memory.refused[refusal];
    for (unsigned way = 0; way < 3; way++) {
        uint16_t count;
        receive(mbufs, MOST);
        memcpy(before, mbufs, sizeof before);
        for (unsigned index = 0; way == 1 && index < PACKETS; index++) /* what an earlier use of the mbufs left */
            mbufs[index]->ol_flags |= RTE_MBUF_F_TX_TUNNEL_IP | RTE_MBUF_F_TX_OUTER_IPV6 | RTE_MBUF_F_TX_UDP_CKSUM | RTE_MBUF_F_TX_IPV4;
        count = mbuf_aggregate(batch, &memory, mbufs, PACKETS);
        if (refusal) {
            check_passed(before, mbufs, count, refusal, refused);
            refused_kinds++;
            break;
        }
        CHECK(count == 1);
        check_request(mbufs[0]);
        check_prepared(mbufs[0]);
        check_sent(mbufs[0]);
        if (way < 2) {
            uint32_t checksum = way ? SP_OUTPUT_PARTIAL : SP_OUTPUT_FULL;
            uint16_t made = mbuf_segment(segmenter, &memory, mbufs[0], checksum, direct, indirect, segments, MBUF_SEGMENTS);
            CHECK(made > 1 && !(segments[0]->ol_flags & RTE_MBUF_F_TX_OFFLOAD_MASK) == (way == 0));
            CHECK(way == 0 || !(mbuf_offloads(segments[0]) & ~(RTE_ETH_TX_OFFLOAD_MULTI_SEGS | RTE_ETH_TX_OFFLOAD_TCP_CKSUM | RTE_ETH_TX_OFFLOAD_UDP_CKSUM)));
            check_segments(segments, made);
        } else if (!kind.udp && !kind.ipv6 && !kind.outer_ipv6 && kind.tunnel != GENEVE && kind.tunnel != GENEVE_SUM && kind.tunnel != IP) {
            struct rte_gso_ctx context = {.direct_pool = direct, .indirect_pool = indirect,
                                          .gso_types = RTE_ETH_TX_OFFLOAD_TCP_TSO | RTE_ETH_TX_OFFLOAD_VXLAN_TNL_TSO | RTE_ETH_TX_OFFLOAD_GRE_TNL_TSO};
            int made;
            context.gso_size = (uint16_t)(frame_lengths[0]);
            made = rte_gso_segment(mbufs[0], &context, segments, MBUF_SEGMENTS);
            rte_pktmbuf_free(mbufs[0]); /* The segments hold references. */
            check_segments(segments, made);
            cut_by_gso++;
        } else {
            rte_pktmbuf_free(mbufs[0]);
        }
        merged_kinds += way == 0;
    }
    CHECK(!rte_mempool_in_use_count(pool) && !rte_mempool_in_use_count(direct) && !rte_mempool_in_use_count(indirect));
}

static void all_kinds(void) {
    for (unsigned cell = 0; cell < LINKS * TUNNELS * 8; cell++) {
        kind = (struct kind){.link = cell / 8 % LINKS, .tunnel = cell / 8 / LINKS, .outer_ipv6 = cell & 1, .ipv6 = cell >> 1 & 1, .udp = cell >> 2 & 1};
        if (kind.tunnel != NONE || !kind.outer_ipv6)
            one_kind();
    }
    /* The same for what differs in an IP or TCP header. */
    for (unsigned tunnel = NONE; tunnel <= VXLAN; tunnel++) {
        for (unsigned cell = 0; cell < 4; cell++) {
            struct kind usual = {.tunnel = tunnel, .ipv6 = cell & 1, .udp = cell >> 1};
            kind = usual;
            kind.fixed_id = 1;
            one_kind();
            kind = usual;
            kind.fixed_outer_id = 1;
            one_kind();
            kind = usual;
            kind.cwr = !kind.udp;
            one_kind();
            kind = usual;
            kind.extension = kind.ipv6;
            one_kind();
        }
    }
    kind = (struct kind){0};
}

/* Headers that do not all lie in the first mbuf, and mbufs that others refer to. */
static void other_mbufs(void) {
    struct rte_mbuf *mbufs[PACKETS], *before[PACKETS], *segments[MBUF_SEGMENTS];
    static const size_t firsts[] = {13, 30, 65};
    uint16_t count;
    for (unsigned index = 0; index < RTE_DIM(firsts); index++) {
        uint64_t refused = memory.refused[MBUF_SPLIT_HEADERS];
        receive(mbufs, firsts[index]);
        memcpy(before, mbufs, sizeof before);
        count = mbuf_aggregate(batch, &memory, mbufs, PACKETS);
        check_passed(before, mbufs, count, MBUF_SPLIT_HEADERS, refused);
    }
    receive(mbufs, 66); /* all headers, and the payload elsewhere */
    CHECK(mbuf_aggregate(batch, &memory, mbufs, PACKETS) == 1);
    check_request(mbufs[0]);
    check_segments(segments, mbuf_segment(segmenter, &memory, mbufs[0], SP_OUTPUT_FULL, direct, indirect, segments, MBUF_SEGMENTS));
    /* What the port has joined, what others refer to, and an mbuf that shares the data of another. */
    for (unsigned way = 0; way < 4; way++) {
        uint64_t refused = memory.refused[MBUF_RECEIVED];
        struct rte_mbuf *shared;
        receive(mbufs, way == 3 ? 66 : MOST);
        shared = way == 3 ? mbufs[7]->next : mbufs[7];
        if (way == 0)
            shared->ol_flags |= RTE_MBUF_F_RX_LRO;
        else if (way == 1) {
            mbufs[7] = rte_pktmbuf_clone(shared, indirect);
            CHECK(mbufs[7]);
        } else
            rte_mbuf_refcnt_update(shared, 1);
        memcpy(before, mbufs, sizeof before);
        count = mbuf_aggregate(batch, &memory, mbufs, PACKETS);
        CHECK(count == 3 && mbufs[0] == before[0] && mbufs[1] == before[7] && mbufs[2] == before[8]);
        CHECK(is_frame(mbufs[1], 7) && memory.refused[MBUF_RECEIVED] == refused + 1 && mbufs[0]->pkt_len == 66 + 7 * PAYLOAD);
        if (way >= 2)
            rte_mbuf_refcnt_update(shared, -1);
        if (way == 1)
            rte_pktmbuf_free(shared);
        rte_pktmbuf_free_bulk(mbufs, count);
    }
    CHECK(!rte_mempool_in_use_count(pool) && !rte_mempool_in_use_count(indirect));
}

/* A burst of many flows that is longer than what is looked at together: every packet goes on once, in the order of its flow. */
static void long_burst(void) {
    enum { BURST = 500, FLOWS = 3 };
    static struct rte_mbuf *mbufs[BURST], *segments[MBUF_SEGMENTS];
    uint8_t frame[MOST], gathered[MOST];
    unsigned next[FLOWS] = {0}, passed = 0;
    uint16_t count;
    for (unsigned index = 0; index < BURST; index++)
        mbufs[index] = mbuf_of(frame, tcp_frame(frame, 0, index % FLOWS, index / FLOWS, PAYLOAD, 0x10), MOST);
    mbufs[99]->ol_flags |= RTE_MBUF_F_RX_QINQ_STRIPPED;
    count = mbuf_aggregate(batch, &memory, mbufs, BURST);
    CHECK(count <= FLOWS * (BURST / MBUF_BURST + 2) + 1);
    for (unsigned index = 0; index < count; index++) {
        uint16_t made = 1;
        segments[0] = mbufs[index];
        if (mbufs[index]->ol_flags & RTE_MBUF_F_TX_TCP_SEG)
            made = mbuf_segment(segmenter, &memory, mbufs[index], SP_OUTPUT_FULL, direct, indirect, segments, MBUF_SEGMENTS);
        CHECK(made > 0);
        for (unsigned segment = 0; segment < made; segment++, passed++) {
            const uint8_t *bytes = rte_pktmbuf_read(segments[segment], 0, segments[segment]->pkt_len, gathered);
            unsigned flow = bytes[35] - (10000 & 0xff);
            CHECK(flow < FLOWS && tcp_frame(frame, 0, flow, next[flow]++, PAYLOAD, 0x10) == segments[segment]->pkt_len);
            CHECK(!memcmp(frame, bytes, segments[segment]->pkt_len));
            rte_pktmbuf_free(segments[segment]);
        }
    }
    CHECK(passed == BURST && !rte_mempool_in_use_count(pool));
}

/* A damaged packet stays damaged, whatever a port that does not know its headers says of its checksum. */
static void damaged(void) {
    static const uint32_t types[] = {0, RTE_PTYPE_L4_UDP, RTE_PTYPE_TUNNEL_VXLAN | RTE_PTYPE_INNER_L4_TCP, RTE_PTYPE_TUNNEL_GRE | RTE_PTYPE_INNER_L4_TCP};
    for (unsigned index = 0; index < RTE_DIM(types) * 3; index++) {
        struct rte_mbuf *mbufs[PACKETS], *victim;
        uint16_t count, whole = 0;
        kind = (struct kind){.tunnel = index / RTE_DIM(types) == 0 ? NONE : index / RTE_DIM(types) == 1 ? VXLAN : VXLAN_SUM};
        receive(mbufs, MOST);
        for (unsigned number = 0; number < PACKETS; number++) {
            mbufs[number]->ol_flags |= RTE_MBUF_F_RX_L4_CKSUM_GOOD;
            mbufs[number]->packet_type = types[index % RTE_DIM(types)];
        }
        victim = mbufs[7];
        rte_pktmbuf_mtod(victim, uint8_t *)[victim->data_len - 1] ^= 1;
        count = mbuf_aggregate(batch, &memory, mbufs, PACKETS);
        for (unsigned number = 0; number < count; number++)
            whole = (uint16_t)(whole + (mbufs[number] == victim));
        CHECK(count == 3 && whole == 1 && victim->nb_segs == 1 && victim->pkt_len == frame_lengths[7]);
        rte_pktmbuf_free_bulk(mbufs, count);
    }
    /* What a port that knows them has verified is not read again. */
    for (unsigned tunnel = NONE; tunnel <= VXLAN_SUM; tunnel++) {
        struct rte_mbuf *mbufs[PACKETS];
        kind = (struct kind){.tunnel = tunnel};
        receive(mbufs, MOST);
        for (unsigned number = 0; number < PACKETS; number++) {
            mbufs[number]->ol_flags |= RTE_MBUF_F_RX_L4_CKSUM_GOOD | (tunnel ? RTE_MBUF_F_RX_OUTER_L4_CKSUM_GOOD : 0);
            mbufs[number]->packet_type = tunnel ? RTE_PTYPE_TUNNEL_VXLAN | RTE_PTYPE_INNER_L4_TCP : RTE_PTYPE_L4_TCP;
        }
        rte_pktmbuf_mtod(mbufs[7], uint8_t *)[mbufs[7]->data_len - 1] ^= 1;
        CHECK(mbuf_aggregate(batch, &memory, mbufs, PACKETS) == 1);
        rte_pktmbuf_free(mbufs[0]);
    }
    kind = (struct kind){0};
}

/* Policies whose packets mbufs cannot describe, and an error of the library. */
static void policies(void) {
    struct rte_mbuf *mbufs[PACKETS], *before[PACKETS];
    sp_batch *made;
    uint16_t count;
    CHECK(mbuf_batch_new((sp_policy){.mode = SP_MODE_LRO}, &made) == SP_ERROR_ARGUMENT);
    CHECK(mbuf_batch_new((sp_policy){.layer = SP_LAYER_IP}, &made) == SP_ERROR_ARGUMENT);
    CHECK(mbuf_batch_new((sp_policy){.virtio_length = 10}, &made) == SP_ERROR_ARGUMENT);
    CHECK(mbuf_batch_new((sp_policy){.max_fragments = MBUF_IOV}, &made) == SP_OK && memory.status == SP_OK);
    receive(mbufs, MOST);
    memcpy(before, mbufs, sizeof before);
    count = mbuf_aggregate(made, &memory, mbufs, PACKETS);
    check_passed(before, mbufs, count, MBUF_LIBRARY, 0);
    CHECK(memory.status == SP_ERROR_SPACE);
    memory.status = SP_OK;
    sp_batch_free(made);
    /* BIG TCP. */
    CHECK(mbuf_batch_new((sp_policy){.max_bytes = 500000}, &made) == SP_OK);
    {
        static struct rte_mbuf *many[MBUF_BURST];
        uint64_t refused = memory.refused[MBUF_TOO_LONG];
        kind = (struct kind){0};
        for (unsigned index = 0; index < MBUF_BURST; index++) {
            static uint8_t frame[MOST];
            many[index] = mbuf_of(frame, tcp_frame(frame, 0, 0, index, 1400, 0x10), MOST);
        }
        CHECK(mbuf_aggregate(made, &memory, many, MBUF_BURST) == MBUF_BURST && memory.refused[MBUF_TOO_LONG] == refused + MBUF_BURST);
        rte_pktmbuf_free_bulk(many, MBUF_BURST);
    }
    sp_batch_free(made);
    for (int refusal = 0; refusal < MBUF_REFUSALS; refusal++)
        CHECK(strcmp(mbuf_refusal_name(refusal), "unknown"));
    CHECK(!strcmp(mbuf_refusal_name(MBUF_REFUSALS), "unknown"));
}

/* Opens a port with all that it can do. */
static void open_port(uint16_t port) {
    struct rte_eth_dev_info info;
    struct rte_eth_conf conf;
    memset(&conf, 0, sizeof conf);
    CHECK(rte_eth_dev_info_get(port, &info) == 0);
    conf.txmode.offloads = capabilities[port] = info.tx_offload_capa;
    CHECK(rte_eth_dev_configure(port, 1, 1, &conf) == 0 && rte_eth_rx_queue_setup(port, 0, 256, SOCKET_ID_ANY, NULL, receiving) == 0);
    CHECK(rte_eth_tx_queue_setup(port, 0, 256, SOCKET_ID_ANY, NULL) == 0 && rte_eth_dev_start(port) == 0);
}

/* A virtio port with TSO, and the vhost port that receives what it sends. */
static void open_virtio(const char *folder) {
    char arguments[200];
    snprintf(arguments, sizeof arguments, "iface=%s/socket,tso=1", folder);
    CHECK(rte_eal_hotplug_add("vdev", "net_vhost0", arguments) == 0 && rte_eth_dev_get_port_by_name("net_vhost0", &vhost) == 0);
    open_port(vhost);
    snprintf(arguments, sizeof arguments, "path=%s/socket", folder);
    CHECK(rte_eal_hotplug_add("vdev", "net_virtio_user0", arguments) == 0 && rte_eth_dev_get_port_by_name("net_virtio_user0", &virtio) == 0);
    open_port(virtio);
    CHECK(capabilities[virtio] & RTE_ETH_TX_OFFLOAD_TCP_TSO);
}

int main(int argc, char **argv) {
    int parsed = rte_eal_init(argc, argv), ports = parsed + 2 == argc;
    if (parsed < 0 || (!ports && parsed + 1 != argc))
        rte_exit(EXIT_FAILURE, "usage: tso EAL-ARGUMENTS [-- FOLDER]\n");
    pool = rte_pktmbuf_pool_create("packets", 1023, 0, 0, RTE_PKTMBUF_HEADROOM + 4096, SOCKET_ID_ANY);
    direct = rte_pktmbuf_pool_create("headers", 255, 0, 0, RTE_PKTMBUF_HEADROOM + SP_MAX_HEADER, SOCKET_ID_ANY);
    indirect = rte_pktmbuf_pool_create("indirect", 1023, 0, 0, 0, SOCKET_ID_ANY);
    receiving = rte_pktmbuf_pool_create("receiving", 1023, 0, 0, RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
    CHECK(receiving && pool && direct && indirect && sp_segmenter_new(&segmenter) == SP_OK);
    CHECK(mbuf_batch_new((sp_policy){.mode = SP_MODE_GRO_UDP}, &batch) == SP_OK);
    if (ports)
        open_virtio(argv[parsed + 1]);
    all_kinds();
    other_mbufs();
    long_burst();
    damaged();
    policies();
    printf("%u kinds merged, of which rte_gso_segment cut %u; %u passed; virtio sent %u\n", merged_kinds, cut_by_gso, refused_kinds, sent_by_virtio);
    CHECK(merged_kinds > 200 && cut_by_gso > 20 && refused_kinds > 300 && (!ports || sent_by_virtio > 15));
    sp_batch_free(batch);
    sp_segmenter_free(segmenter);
    if (ports) {
        CHECK(rte_eth_dev_stop(virtio) == 0 && rte_eal_hotplug_remove("vdev", "net_virtio_user0") == 0); /* before the port that it talks to */
        CHECK(rte_eth_dev_stop(vhost) == 0 && rte_eal_hotplug_remove("vdev", "net_vhost0") == 0);
    }
    rte_eal_cleanup();
    return EXIT_SUCCESS;
}

/*
 * superpacket_dpdk.h beside rte_gro and rte_gso: the same bytes but for checksums, which are right here; the same answers to wrong arguments
 * and empty pools; and every mbuf returned. Usage: rte EAL-ARGUMENTS
 */
#include <rte_eal.h>
#include <superpacket_dpdk.h>

#include "frames.h"

enum { MOST = 20000, ROOM = 65536, ROUNDS = 300, BURST = 128, PAYLOAD = 500 };

static unsigned round_number;

#define CHECK(condition)                                                                                    \
    do {                                                                                                    \
        if (!(condition))                                                                                   \
            rte_exit(EXIT_FAILURE, "%s:%d: round %u: %s\n", __FILE__, __LINE__, round_number, #condition); \
    } while (0)

static struct rte_mempool *pool, *direct, *indirect;
static struct rte_mbuf *out[2][SP_GSO_SEGMENTS], *burst[2][2 * BURST];
static uint8_t frame[ROOM];

static unsigned between(unsigned least, unsigned most) {
    return least + (unsigned)random() % (most - least + 1);
}

static void all_returned(void) {
    CHECK(!rte_mempool_in_use_count(pool) && !rte_mempool_in_use_count(direct) && !rte_mempool_in_use_count(indirect));
}

/* The bytes of a chain, which DPDK finds sound. */
static const uint8_t *bytes_of(const struct rte_mbuf *mbuf, uint8_t *room) {
    const char *reason;
    CHECK(rte_mbuf_check(mbuf, 1, &reason) == 0);
    return (const uint8_t *)rte_pktmbuf_read(mbuf, 0, mbuf->pkt_len, room);
}

static int is_valid(const struct rte_mbuf *mbuf) {
    static uint8_t room[ROOM];
    sp_packet packet = {.data = bytes_of(mbuf, room), .length = mbuf->pkt_len};
    return sp_checksum_verify(&packet, SP_LAYER_ETHERNET) == SP_OK;
}

/* A frame in mbufs of any lengths: of so many bytes with `shape`, behind the headers in the first. */
static struct rte_mbuf *chain_of(size_t length, unsigned headers, unsigned shape) {
    struct rte_mbuf *first = NULL;
    for (size_t at = 0, part; at < length; at += part) {
        struct rte_mbuf *mbuf = rte_pktmbuf_alloc(pool);
        CHECK(mbuf);
        part = shape ? shape : between(1, 3000);
        part = RTE_MIN(first ? part : part + headers, length - at);
        memcpy(rte_pktmbuf_append(mbuf, (uint16_t)part), frame + at, part);
        if (first)
            CHECK(rte_pktmbuf_chain(first, mbuf) == 0);
        else
            first = mbuf;
    }
    return first;
}

/* What encloses a frame: a tunnel over IPv4. */
enum tunnel { NONE, VXLAN, GRE };

/* A TCP segment, also in a tunnel. Returns its length, and that of its headers. */
static size_t segment_in(enum tunnel tunnel, int ipv6, size_t payload, unsigned index, unsigned *headers) {
    static const uint8_t outer[] = "\2\0\0\0\0\4\2\0\0\0\0\3\10\0\105\0\0\0\0\7\100\0\100\0\0\0\12\1\0\1\12\1\0\2";
    unsigned start = tunnel == VXLAN ? 50 : tunnel == GRE ? 38 : 0;
    size_t length = tcp_frame(frame + start, ipv6, 0, index, payload, 0x18) + start;
    *headers = start + (ipv6 ? TCP6_HEADERS : TCP4_HEADERS);
    if (tunnel == NONE)
        return length;
    memcpy(frame, outer, sizeof outer - 1);
    frame[23] = tunnel == VXLAN ? 17 : 47;
    put16(frame + 16, (unsigned)length - 14);
    put16(frame + 24, checksum_of(sum_of(frame + 14, 20, 0)));
    if (tunnel == VXLAN) {
        put16(frame + 34, 50000);
        put16(frame + 36, 4789);
        put16(frame + 38, (unsigned)length - 34);
        put16(frame + 40, 0);
        memcpy(frame + 42, "\10\0\0\0\0\0\5\0", 8);
    } else {
        memcpy(frame + 34, "\0\0\x65\x58", 4); /* an Ethernet frame */
    }
    return length;
}

static void lengths_of(struct rte_mbuf *mbuf, enum tunnel tunnel, int ipv6, unsigned l4) {
    mbuf->l2_len = tunnel == VXLAN ? 8 + 8 + 14 : tunnel == GRE ? 4 + 14 : 14;
    mbuf->l3_len = ipv6 ? 40 : 20;
    mbuf->l4_len = l4 & 0xff;
    mbuf->outer_l2_len = tunnel ? 14 : 0;
    mbuf->outer_l3_len = tunnel ? 20 : 0;
}

/* The same but for checksums of IPv4 and TCP, those of what encloses them included. */
static int same(const struct rte_mbuf *left, const struct rte_mbuf *right, unsigned transport, enum tunnel tunnel) {
    static uint8_t rooms[2][ROOM], copies[2][ROOM];
    const struct rte_mbuf *mbufs[] = {left, right};
    if (left->pkt_len != right->pkt_len)
        return 0;
    for (int side = 0; side < 2; side++) {
        memcpy(copies[side], bytes_of(mbufs[side], rooms[side]), left->pkt_len);
        put16(copies[side] + transport + 16, 0);
        put16(copies[side] + transport - 10, 0);
        if (tunnel)
            put16(copies[side] + 24, 0);
    }
    return !memcmp(copies[0], copies[1], left->pkt_len);
}

static struct rte_gso_ctx gso_context(unsigned size) {
    return (struct rte_gso_ctx){.direct_pool = direct,
                                .indirect_pool = indirect,
                                .gso_size = (uint16_t)size,
                                .gso_types = RTE_ETH_TX_OFFLOAD_TCP_TSO | RTE_ETH_TX_OFFLOAD_UDP_TSO | RTE_ETH_TX_OFFLOAD_VXLAN_TNL_TSO |
                                             RTE_ETH_TX_OFFLOAD_GRE_TNL_TSO};
}

/* A packet cut by both. */
static void cut_one(void) {
    enum tunnel tunnel = (enum tunnel)between(NONE, GRE);
    int ipv6 = tunnel == NONE && between(0, 3) == 0, asked = random() % 2;
    unsigned headers, size = between(300, 1514), shape = between(0, 2) ? 0 : 1024;
    size_t length = segment_in(tunnel, ipv6, between(1514, MOST), 7, &headers); /* always longer than a segment */
    struct rte_gso_ctx context = gso_context(size);
    struct rte_mbuf *packets[2], *held = NULL;
    int made[2];
    uint64_t seed = (uint64_t)random();
    if (shape && between(0, 1))
        shape = size - headers; /* each mbuf is a segment's: they move */
    context.flag = random() % 2 ? RTE_GSO_FLAG_IPID_FIXED : 0;
    for (int ours = 0; ours < 2; ours++) {
        srandom((unsigned)seed);
        packets[ours] = chain_of(length, headers, shape);
        lengths_of(packets[ours], tunnel, ipv6, 32);
        packets[ours]->port = 7;
        packets[ours]->ol_flags = RTE_MBUF_F_TX_TCP_SEG | (ipv6 ? RTE_MBUF_F_TX_IPV6 : RTE_MBUF_F_TX_IPV4) | (asked ? RTE_MBUF_F_TX_TCP_CKSUM : 0) |
                                  (tunnel ? RTE_MBUF_F_TX_OUTER_IPV4 : 0) |
                                  (tunnel == VXLAN ? RTE_MBUF_F_TX_TUNNEL_VXLAN : tunnel == GRE ? RTE_MBUF_F_TX_TUNNEL_GRE : 0);
    }
    if (packets[1]->nb_segs > 1 && between(0, 2) == 0) { /* Of an mbuf that somebody holds the segments get no more than references. */
        held = packets[1]->next;
        rte_mbuf_refcnt_update(held, 1);
    }
    made[0] = rte_gso_segment(packets[0], &context, out[0], SP_GSO_SEGMENTS);
    made[1] = sp_gso_segment(packets[1], &context, out[1], SP_GSO_SEGMENTS);
    CHECK(made[1] == (int)((length - headers + size - headers - 1) / (size - headers)));
    CHECK(made[0] == (ipv6 ? 0 : made[1])); /* rte_gso does not cut IPv6 */
    CHECK(!(packets[1]->ol_flags & RTE_MBUF_F_TX_TCP_SEG) && packets[1]->nb_segs >= 1);
    if (shape == size - headers && !held)
        CHECK(packets[1]->nb_segs == 1 && packets[1]->pkt_len == size);
    rte_pktmbuf_free(packets[0]);
    rte_pktmbuf_free(packets[1]);
    for (int index = 0; index < made[1]; index++) {
        struct rte_mbuf *segment = out[1][index];
        if (ipv6)
            bytes_of(segment, frame);
        else
            CHECK(same(out[0][index], segment, headers - 32, tunnel) && segment->ol_flags == out[0][index]->ol_flags);
        CHECK(segment->port == 7 && segment->l4_len == 32 && (asked || is_valid(segment)));
    }
    rte_pktmbuf_free_bulk(out[0], (unsigned)made[0]);
    rte_pktmbuf_free_bulk(out[1], (unsigned)made[1]);
    if (held)
        rte_pktmbuf_free_seg(held);
    all_returned();
}

/* A datagram cut into fragments by both. */
static void cut_datagram(void) {
    struct rte_gso_ctx context = gso_context(between(300, 1514));
    struct rte_mbuf *packets[2];
    int made[2];
    size_t length;
    memcpy(frame, "\2\0\0\0\0\2\2\0\0\0\0\1\10\0", 14);
    length = 14 + udp_packet(frame + 14, round_number, between(2000, MOST));
    for (int ours = 0; ours < 2; ours++) {
        packets[ours] = chain_of(length, 0, 700);
        lengths_of(packets[ours], NONE, 0, 8);
        packets[ours]->ol_flags = RTE_MBUF_F_TX_UDP_SEG | RTE_MBUF_F_TX_IPV4;
        made[ours] = ours ? sp_gso_segment(packets[1], &context, out[1], BURST) : rte_gso_segment(packets[0], &context, out[0], BURST);
        rte_pktmbuf_free(packets[ours]);
    }
    CHECK(made[0] > 1 && made[0] == made[1]);
    for (int index = 0; index < made[0]; index++) {
        static uint8_t rooms[2][ROOM];
        struct rte_mbuf *theirs = out[0][index], *ours = out[1][index];
        put16(rte_pktmbuf_mtod(theirs, uint8_t *) + 24, 0);
        put16(rte_pktmbuf_mtod(theirs, uint8_t *) + 24, checksum_of(sum_of(rte_pktmbuf_mtod(theirs, uint8_t *) + 14, 20, 0)));
        CHECK(ours->pkt_len == theirs->pkt_len && !memcmp(bytes_of(theirs, rooms[0]), bytes_of(ours, rooms[1]), ours->pkt_len));
    }
    rte_pktmbuf_free_bulk(out[0], (unsigned)made[0]);
    rte_pktmbuf_free_bulk(out[1], (unsigned)made[1]);
    all_returned();
}

/* Both answer the same, and the packet stays as it was. */
static void cut_gives(struct rte_mbuf *packet, const struct rte_gso_ctx *context, uint16_t room, int answer) {
    uint64_t flags = packet->ol_flags, after;
    CHECK(rte_gso_segment(packet, context, out[0], room) == answer);
    after = packet->ol_flags;
    packet->ol_flags = flags;
    CHECK(sp_gso_segment(packet, context, out[1], room) == answer);
    CHECK(packet->ol_flags == after || answer == 0);
    packet->ol_flags = flags;
}

static void cut_nothing(void) {
    unsigned headers;
    size_t length = segment_in(NONE, 0, 10000, 0, &headers);
    struct rte_gso_ctx context = gso_context(1514), other;
    struct rte_mbuf *packet = chain_of(length, headers, 2000), *taken[512];
    unsigned count;
    lengths_of(packet, NONE, 0, 32);
    packet->ol_flags = RTE_MBUF_F_TX_TCP_SEG | RTE_MBUF_F_TX_IPV4 | RTE_MBUF_F_TX_TCP_CKSUM;
    CHECK(sp_gso_segment(NULL, &context, out[1], 64) == -EINVAL);
    CHECK(sp_gso_segment(packet, NULL, out[1], 64) == -EINVAL);
    CHECK(sp_gso_segment(packet, &context, NULL, 64) == -EINVAL);
    cut_gives(packet, &context, 0, -EINVAL);
    cut_gives(packet, &context, 3, -EINVAL); /* too little room */
    other = context;
    other.gso_types = 0;
    cut_gives(packet, &other, 64, -EINVAL);
    other = context;
    other.gso_size = RTE_GSO_UDP_SEG_SIZE_MIN - 1;
    cut_gives(packet, &other, 64, -EINVAL);
    other = context;
    other.gso_types = RTE_ETH_TX_OFFLOAD_VXLAN_TNL_TSO;
    cut_gives(packet, &other, 64, 0);
    other = context;
    other.gso_size = (uint16_t)length;
    cut_gives(packet, &other, 64, 0);
    CHECK(sp_gso_segment(packet, &other, out[1], 64) == 0 && !(packet->ol_flags & RTE_MBUF_F_TX_TCP_SEG));
    packet->ol_flags |= RTE_MBUF_F_TX_TCP_SEG;
    frame[20] = 0x20; /* a fragment */
    memcpy(rte_pktmbuf_mtod_offset(packet, uint8_t *, 20), frame + 20, 1);
    cut_gives(packet, &context, 64, 0);
    memcpy(rte_pktmbuf_mtod_offset(packet, uint8_t *, 20), "\100", 1);
    packet->l4_len = 20; /* not so long: the bytes tell */
    CHECK(sp_gso_segment(packet, &context, out[1], 64) == -EINVAL);
    packet->l4_len = 32;
    for (int which = 0; which < 2; which++) {
        struct rte_mempool *emptied = which ? indirect : direct;
        count = rte_mempool_avail_count(emptied);
        CHECK(rte_mempool_get_bulk(emptied, (void **)taken, count) == 0);
        cut_gives(packet, &context, 64, -ENOMEM);
        rte_mempool_put_bulk(emptied, (void **)taken, count);
    }
    CHECK(packet->pkt_len == length && packet->nb_segs == 5 && is_valid(packet));
    CHECK(sp_gso_segment(packet, &context, out[1], 64) == 7);
    rte_pktmbuf_free_bulk(out[1], 7);
    rte_pktmbuf_free(packet);
    all_returned();
}

/* Padding behind the IP packet is in no segment, and mbufs taken for it go back. */
static void cut_padded(unsigned padding) {
    unsigned headers;
    size_t length = segment_in(NONE, 0, 7 * 1448 - 48, 0, &headers);
    struct rte_gso_ctx context = gso_context(1514);
    struct rte_mbuf *packet = chain_of(length, headers, 1448);
    lengths_of(packet, NONE, 0, 32);
    packet->ol_flags = RTE_MBUF_F_TX_TCP_SEG | RTE_MBUF_F_TX_IPV4;
    CHECK(packet->nb_segs == 7);
    memset(rte_pktmbuf_append(packet, (uint16_t)padding), 0, padding);
    CHECK(sp_gso_segment(packet, &context, out[1], 64) == 7);
    rte_pktmbuf_free(packet);
    for (unsigned index = 0; index < 7; index++)
        CHECK(out[1][index]->pkt_len == (index < 6 ? 1514U : 1514U - 48) && is_valid(out[1][index]));
    rte_pktmbuf_free_bulk(out[1], 7);
    all_returned();
}

/* A received frame. */
static struct rte_mbuf *received(enum tunnel tunnel, int ipv6, unsigned flow, unsigned index, unsigned flags, size_t payload) {
    unsigned headers, start = tunnel == VXLAN ? 50 : 0;
    size_t length = segment_in(tunnel, ipv6, payload, index, &headers);
    struct rte_mbuf *mbuf;
    tcp_frame(frame + start, ipv6, flow, index, payload, flags);
    mbuf = chain_of(length, headers, between(0, 9) ? MOST : 100);
    lengths_of(mbuf, tunnel, ipv6, 32);
    mbuf->packet_type = tunnel ? RTE_PTYPE_L2_ETHER | RTE_PTYPE_L3_IPV4 | RTE_PTYPE_L4_UDP | RTE_PTYPE_TUNNEL_VXLAN | RTE_PTYPE_INNER_L2_ETHER |
                                     RTE_PTYPE_INNER_L3_IPV4 | RTE_PTYPE_INNER_L4_TCP
                               : RTE_PTYPE_L2_ETHER | (ipv6 ? RTE_PTYPE_L3_IPV6 : RTE_PTYPE_L3_IPV4) | RTE_PTYPE_L4_TCP;
    return mbuf;
}

static struct rte_gro_param gro_param(unsigned flows, unsigned items) {
    return (struct rte_gro_param){.gro_types = RTE_GRO_TCP_IPV4 | RTE_GRO_IPV4_VXLAN_TCP_IPV4,
                                  .max_flow_num = (uint16_t)flows,
                                  .max_item_per_flow = (uint16_t)items,
                                  .socket_id = (uint16_t)rte_socket_id()};
}

/* Of each packet of a burst is told what the port says of it: its tag, and whether its checksum is right. */
static void tell_of_each(void) {
    struct rte_gro_param param = gro_param(64, 64);
    uint16_t left;
    for (unsigned index = 0; index < 6; index++) {
        struct rte_mbuf *mbuf = burst[1][index] = received(NONE, 0, 0, index, RTE_TCP_ACK_FLAG, PAYLOAD);
        mbuf->ol_flags = index == 1 ? 0 : RTE_MBUF_F_RX_L4_CKSUM_GOOD;
        if (index == 1) /* a wrong checksum */
            rte_pktmbuf_mtod_offset(mbuf, uint8_t *, 14 + 20 + 16)[0] ^= 1;
        if (index >= 2) {
            mbuf->ol_flags |= RTE_MBUF_F_RX_VLAN | RTE_MBUF_F_RX_VLAN_STRIPPED;
            mbuf->vlan_tci = (uint16_t)(index / 2);
        }
    }
    left = sp_gro_reassemble_burst(burst[1], 6, &param);
    CHECK(left == 4);
    for (unsigned index = 0; index < left; index++) {
        uint32_t tag = index < 2 ? 0 : index - 1;
        CHECK(burst[1][index]->pkt_len == (uint32_t)(TCP4_HEADERS + (tag ? 2 : 1) * PAYLOAD));
        CHECK(!(burst[1][index]->ol_flags & RTE_MBUF_F_RX_VLAN_STRIPPED) == !tag && burst[1][index]->vlan_tci == tag);
        rte_pktmbuf_free(burst[1][index]);
    }
}

/* Flows joined by both, in bursts; then what came out cut again is what went in. */
static void join_burst(void) {
    enum tunnel tunnel = random() % 2 ? VXLAN : NONE;
    struct rte_gro_param param = gro_param(64, 64);
    unsigned flows = between(1, 8), headers = TCP4_HEADERS + (tunnel ? 50 : 0), good = (unsigned)random() % 3;
    uint16_t left[2];
    for (int ours = 0; ours < 2; ours++) {
        for (unsigned index = 0; index < BURST; index++) {
            burst[ours][index] = received(tunnel, 0, index % flows, index / flows, RTE_TCP_ACK_FLAG, PAYLOAD);
            if (good == 1)
                burst[ours][index]->ol_flags = RTE_MBUF_F_RX_L4_CKSUM_GOOD | RTE_MBUF_F_RX_OUTER_L4_CKSUM_GOOD;
            if (good == 2 && !tunnel)
                burst[ours][index]->ol_flags = RTE_MBUF_F_TX_IPV4 | RTE_MBUF_F_TX_TCP_CKSUM;
        }
        left[ours] = ours ? sp_gro_reassemble_burst(burst[1], BURST, &param) : rte_gro_reassemble_burst(burst[0], BURST, &param);
    }
    CHECK(left[0] == left[1] && left[1] >= flows && left[1] < BURST / 2);
    for (unsigned index = 0; index < left[1]; index++) {
        struct rte_gso_ctx context = gso_context(headers + PAYLOAD);
        struct rte_mbuf *mbuf = burst[1][index];
        int made, expected = (int)((mbuf->pkt_len - headers + PAYLOAD - 1) / PAYLOAD);
        CHECK(same(burst[0][index], mbuf, headers - 32, tunnel));
        CHECK(mbuf->ol_flags == burst[0][index]->ol_flags && (good == 2 || is_valid(mbuf)));
        CHECK(mbuf->tso_segsz == PAYLOAD);
        mbuf->ol_flags = RTE_MBUF_F_TX_TCP_SEG | RTE_MBUF_F_TX_IPV4 | (tunnel ? RTE_MBUF_F_TX_OUTER_IPV4 | RTE_MBUF_F_TX_TUNNEL_VXLAN : 0);
        made = sp_gso_segment(mbuf, &context, out[1], BURST);
        CHECK(made == expected && made > 1);
        rte_pktmbuf_free(mbuf);
        for (int segment = 0; segment < made; segment++)
            CHECK(out[1][segment]->pkt_len == headers + PAYLOAD && is_valid(out[1][segment]));
        rte_pktmbuf_free_bulk(out[1], (unsigned)made);
    }
    rte_pktmbuf_free_bulk(burst[0], left[0]);
    all_returned();
}

/* What does not merge: other types, damaged packets, what others refer to; and the limits. */
static void join_nothing(void) {
    struct rte_gro_param param = gro_param(64, 64), none = gro_param(0, 64), other = gro_param(64, 64);
    struct rte_mbuf **mbufs = burst[1], *clone;
    unsigned index;
    other.gro_types = RTE_GRO_UDP_IPV4;
    for (index = 0; index < 4; index++)
        mbufs[index] = received(NONE, 0, 0, index, RTE_TCP_ACK_FLAG, PAYLOAD);
    CHECK(sp_gro_reassemble_burst(mbufs, 4, &none) == 4 && sp_gro_reassemble_burst(mbufs, 4, &other) == 4);
    CHECK(sp_gro_reassemble_burst(mbufs, 0, &param) == 0);
    clone = rte_pktmbuf_clone(mbufs[1], pool);
    CHECK(clone && sp_gro_reassemble_burst(mbufs + 1, 1, &param) == 1);
    CHECK(sp_gro_reassemble_burst(mbufs, 2, &param) == 2); /* somebody refers to the second */
    rte_pktmbuf_free(clone);
    rte_pktmbuf_mtod(mbufs[2], uint8_t *)[TCP4_HEADERS + 9] ^= 1;
    CHECK(sp_gro_reassemble_burst(mbufs, 4, &param) == 3); /* damaged: 0 and 1, 2, 3 */
    CHECK(mbufs[0]->nb_segs >= 2 && is_valid(mbufs[0]) && !is_valid(mbufs[1]) && is_valid(mbufs[2]));
    rte_pktmbuf_free_bulk(mbufs, 3);

    /* A flow at a time: the last packet of each finds the other's place taken. */
    param = gro_param(1, 1);
    for (index = 0; index < 4; index++)
        mbufs[index] = received(NONE, 0, index % 2, index / 2, RTE_TCP_ACK_FLAG, PAYLOAD);
    CHECK(sp_gro_reassemble_burst(mbufs, 4, &param) == 4);
    rte_pktmbuf_free_bulk(mbufs, 4);

    /* A burst longer than what is joined at a time. */
    param = gro_param(64, 64);
    {
        static struct rte_mbuf *many[SP_GRO_JOIN + 8];
        for (index = 0; index < RTE_DIM(many); index++)
            many[index] = received(NONE, 0, 0, index, RTE_TCP_ACK_FLAG, 100);
        CHECK(sp_gro_reassemble_burst(many, RTE_DIM(many), &param) == 2);
        CHECK(many[0]->pkt_len == TCP4_HEADERS + SP_GRO_JOIN * 100 && many[1]->pkt_len == TCP4_HEADERS + 8 * 100);
        rte_pktmbuf_free_bulk(many, 2);
    }
    all_returned();
}

/* A context holds packets until it is flushed, in their order. */
static void hold(void) {
    struct rte_gro_param param = gro_param(4, 2), none = gro_param(4, 0);
    struct rte_mbuf **mbufs = burst[1];
    uint16_t left, total = 0;
    uint32_t sequence = 1000;
    void *ctx = sp_gro_ctx_create(&param);
    CHECK(ctx && !sp_gro_ctx_create(&none) && sp_gro_get_pkt_count(ctx) == 0);
    CHECK(sp_gro_timeout_flush(ctx, 0, RTE_GRO_TCP_IPV4, out[1], 64) == 0);
    for (unsigned index = 0; index < 3; index++)
        mbufs[index] = received(NONE, 0, 0, index, RTE_TCP_ACK_FLAG, PAYLOAD);
    mbufs[3] = received(NONE, 1, 0, 0, RTE_TCP_ACK_FLAG, PAYLOAD);
    mbufs[3]->packet_type = RTE_PTYPE_L2_ETHER;
    left = sp_gro_reassemble(mbufs, 4, ctx);
    CHECK(left == 1 && mbufs[0]->packet_type == RTE_PTYPE_L2_ETHER && sp_gro_get_pkt_count(ctx) == 3);
    rte_pktmbuf_free(mbufs[0]);
    mbufs[0] = received(NONE, 0, 0, 3, RTE_TCP_ACK_FLAG | RTE_TCP_FIN_FLAG, PAYLOAD);
    CHECK(sp_gro_reassemble(mbufs, 1, ctx) == 0);
    CHECK(sp_gro_timeout_flush(ctx, UINT64_MAX / 2, RTE_GRO_TCP_IPV4, out[1], 64) == 0);
    CHECK(sp_gro_timeout_flush(ctx, 0, RTE_GRO_IPV4_VXLAN_TCP_IPV4, out[1], 64) == 0);
    CHECK(sp_gro_timeout_flush(ctx, 0, RTE_GRO_TCP_IPV4, out[1], 0) == 0 && sp_gro_get_pkt_count(ctx) == 1);
    CHECK(sp_gro_timeout_flush(ctx, 0, UINT64_MAX, out[1], 64) == 1 && sp_gro_get_pkt_count(ctx) == 0);
    CHECK(out[1][0]->pkt_len == TCP4_HEADERS + 4 * PAYLOAD && is_valid(out[1][0]));
    rte_pktmbuf_free(out[1][0]);

    /* Packets that do not merge: 8 are held, and for each of the others the oldest comes back. */
    for (unsigned round = 0; round < 20; round++) {
        for (unsigned index = 0; index < 5; index++)
            mbufs[index] = received(NONE, 0, 0, 2 * (5 * round + index), RTE_TCP_ACK_FLAG, PAYLOAD);
        left = sp_gro_reassemble(mbufs, 5, ctx);
        CHECK(left <= 5 && sp_gro_get_pkt_count(ctx) <= 8);
        if (round == 19)
            left = (uint16_t)(left + sp_gro_timeout_flush(ctx, 0, RTE_GRO_TCP_IPV4, mbufs + left, 64));
        for (unsigned index = 0; index < left; index++, total++, sequence += 2 * PAYLOAD) {
            uint32_t found;
            memcpy(&found, rte_pktmbuf_mtod_offset(mbufs[index], void *, 38), 4);
            CHECK(rte_be_to_cpu_32(found) == sequence);
        }
        rte_pktmbuf_free_bulk(mbufs, left);
    }
    CHECK(total == 100 && sp_gro_get_pkt_count(ctx) == 0);
    sp_gro_ctx_destroy(ctx);
    all_returned();
}

int main(int argc, char **argv) {
    if (rte_eal_init(argc, argv) < 0)
        rte_exit(EXIT_FAILURE, "EAL does not start\n");
    pool = rte_pktmbuf_pool_create("packets", 2047, 0, 0, RTE_PKTMBUF_HEADROOM + 20200, SOCKET_ID_ANY);
    direct = rte_pktmbuf_pool_create("headers", 511, 0, 0, RTE_PKTMBUF_HEADROOM + SP_MAX_HEADER, SOCKET_ID_ANY);
    indirect = rte_pktmbuf_pool_create("indirect", 511, 0, 0, 0, SOCKET_ID_ANY);
    CHECK(pool && direct && indirect);
    srandom(1);
    cut_nothing();
    cut_padded(5);
    cut_padded(3000);
    join_nothing();
    hold();
    for (round_number = 0; round_number < ROUNDS; round_number++) {
        cut_one();
        cut_datagram();
        join_burst();
    }
    tell_of_each();
    sp_dpdk_thread_free();
    sp_dpdk_thread_free();
    rte_eal_cleanup();
    printf("rte: %u rounds\n", round_number);
    return EXIT_SUCCESS;
}

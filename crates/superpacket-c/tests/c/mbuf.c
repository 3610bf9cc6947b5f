/*
 * mbuf_segment() on chains of any shape: it gives the bytes that sp_segment_linear() gives, in chains that DPDK finds sound, and returns
 * every mbuf. Usage: mbuf EAL-ARGUMENTS
 */
#include <rte_eal.h>

#include "frames.h"
#include "mbuf.h"

enum { ROUNDS = 400, MOST = 30000, CHAIN = 40 };

#define CHECK(condition)                                                                                    \
    do {                                                                                                    \
        if (!(condition))                                                                                   \
            rte_exit(EXIT_FAILURE, "%s:%d: round %u: %s\n", __FILE__, __LINE__, round_number, #condition); \
    } while (0)

static unsigned round_number;
static struct mbuf_space memory;
static uint8_t frame[TCP6_HEADERS + MOST], expected[4 * MOST], gathered[MOST + 100];
static struct rte_mempool *pool, *direct, *indirect;

static unsigned between(unsigned least, unsigned most) {
    return least + (unsigned)random() % (most - least + 1);
}

/* The frame in mbufs of any lengths, some of none; of some another holds a reference, which goes to `held`. */
static struct rte_mbuf *chain_of(size_t length, unsigned shape, struct rte_mbuf **held, unsigned *holders) {
    struct rte_mbuf *first = NULL, *last = NULL;
    size_t at = 0;
    while (at < length) {
        struct rte_mbuf *mbuf = rte_pktmbuf_alloc(pool);
        size_t part = shape ? shape : between(0, 4) ? between(1, 1500) : 0;
        CHECK(mbuf);
        if (!first) /* The headers, or what holds them and more, or a part of them. */
            part = shape ? shape + between(0, 1) * 66 : between(1, 200);
        part = RTE_MIN(part, length - at);
        if (first && first->nb_segs == CHAIN)
            part = RTE_MIN(length - at, (size_t)rte_pktmbuf_tailroom(mbuf));
        memcpy(rte_pktmbuf_mtod(mbuf, void *), frame + at, part);
        mbuf->data_len = (uint16_t)part;
        at += part;
        if (first) {
            last->next = mbuf;
            first->nb_segs++;
        } else {
            first = mbuf;
        }
        last = mbuf;
        if (between(0, 9) == 0) {
            rte_mbuf_refcnt_update(mbuf, 1);
            held[(*holders)++] = mbuf;
        }
    }
    first->pkt_len = (uint32_t)length;
    return first;
}

static void one_round(sp_segmenter *segmenter) {
    static struct rte_mbuf *out[MBUF_SEGMENTS], *held[MBUF_IOV], *behind[MBUF_IOV], *taken[MBUF_IOV];
    int ipv6 = random() % 2;
    size_t length = tcp_frame(frame, ipv6, 1, 1, between(0, 3) ? between(1, MOST) : between(0, 3), 0x18);
    uint16_t mss = (uint16_t)between(200, 3000);
    unsigned holders = 0, free_before = rte_mempool_avail_count(indirect), shape = between(0, 1) ? mss : 0;
    struct rte_mbuf *mbuf = chain_of(length, shape, held, &holders);
    uint32_t checksum = random() % 2 ? SP_OUTPUT_FULL : SP_OUTPUT_PARTIAL;
    sp_segment_options options = {.size = sizeof options, .checksum = checksum};
    sp_packet whole = {.data = frame, .length = length, .offload = {.gso_type = ipv6 ? SP_GSO_TCP6 : SP_GSO_TCP4, .gso_size = mss}};
    const uint8_t *wanted = expected;
    sp_plan plan;
    uint16_t made;
    mbuf->tso_segsz = mss;
    mbuf->port = 7;
    mbuf->vlan_tci = 5;
    mbuf->ol_flags = RTE_MBUF_F_TX_TCP_SEG | (ipv6 ? RTE_MBUF_F_TX_IPV6 : RTE_MBUF_F_TX_IPV4 | RTE_MBUF_F_TX_IP_CKSUM);
    CHECK(sp_segment_linear(segmenter, &whole, &options, expected, sizeof expected, &plan) == SP_OK);

    /* No mbufs, or too little room: the chain stays the caller's. */
    if (rte_mempool_get_bulk(indirect, (void **)taken, free_before) == 0) {
        CHECK(mbuf_segment(segmenter, &memory, mbuf, checksum, direct, indirect, out, MBUF_SEGMENTS) == 0);
        rte_mempool_put_bulk(indirect, (void **)taken, free_before);
    }
    CHECK(plan.segments == 1 || mbuf_segment(segmenter, &memory, mbuf, checksum, direct, indirect, out, (uint16_t)(plan.segments - 1)) == 0);
    CHECK(mbuf->pkt_len == length && rte_pktmbuf_read(mbuf, 0, (uint32_t)length, gathered) && rte_mempool_in_use_count(direct) == 0);
    CHECK(!memcmp(rte_pktmbuf_read(mbuf, 0, (uint32_t)length, gathered), frame, length) && rte_mempool_avail_count(indirect) == free_before);

    for (unsigned index = 0; index < holders; index++)
        behind[index] = held[index]->next;
    made = mbuf_segment(segmenter, &memory, mbuf, checksum, direct, indirect, out, MBUF_SEGMENTS);
    CHECK(made == plan.segments);
    for (unsigned index = 0; index < holders; index++)
        CHECK(held[index]->next == behind[index]);
    for (uint16_t index = 0; index < made; index++) {
        uint32_t here = (uint32_t)(index + 1 < made ? plan.segment_length : plan.last_length);
        const char *reason;
        CHECK(rte_mbuf_check(out[index], 1, &reason) == 0);
        CHECK(out[index]->pkt_len == here && out[index]->port == 7 && out[index]->vlan_tci == 5);
        CHECK(!(out[index]->ol_flags & (RTE_MBUF_F_TX_TCP_SEG | RTE_MBUF_F_TX_IP_CKSUM)));
        CHECK(!(out[index]->ol_flags & RTE_MBUF_F_TX_TCP_CKSUM) == (checksum == SP_OUTPUT_FULL));
        CHECK(!memcmp(rte_pktmbuf_read(out[index], 0, here, gathered), wanted, here));
        wanted += plan.segment_length;
        for (struct rte_mbuf *part = out[index]; part; part = part->next)
            CHECK(part->data_len > 0);
    }
    rte_pktmbuf_free_bulk(out, made);
    CHECK(rte_mempool_in_use_count(pool) == holders);
    while (holders > 0)
        rte_pktmbuf_free_seg(held[--holders]);
    CHECK(!rte_mempool_in_use_count(pool) && !rte_mempool_in_use_count(direct) && rte_mempool_avail_count(indirect) == free_before);
}

int main(int argc, char **argv) {
    sp_segmenter *segmenter;
    if (rte_eal_init(argc, argv) < 0)
        rte_exit(EXIT_FAILURE, "EAL does not start\n");
    pool = rte_pktmbuf_pool_create("packets", 255, 0, 0, RTE_PKTMBUF_HEADROOM + 16384, SOCKET_ID_ANY);
    direct = rte_pktmbuf_pool_create("headers", 255, 0, 0, RTE_PKTMBUF_HEADROOM + SP_MAX_HEADER, SOCKET_ID_ANY);
    indirect = rte_pktmbuf_pool_create("indirect", 255, 0, 0, 0, SOCKET_ID_ANY);
    CHECK(pool && direct && indirect && sp_segmenter_new(&segmenter) == SP_OK);
    srandom(1);
    for (round_number = 0; round_number < ROUNDS; round_number++)
        one_round(segmenter);
    sp_segmenter_free(segmenter);
    rte_eal_cleanup();
    return EXIT_SUCCESS;
}

/*
 * libsuperpacket beside rte_gro and rte_gso, on the same mbufs. Usage: dpdk EAL-ARGUMENTS [-- check]
 *
 * W1: a batch of 64 TCP segments of one flow with 1448 bytes of payload and timestamps, PSH on the last of each 45. Both do the same work
 * of checksums: none on receive (the port has verified them; rte_gro never looks), and on transmit those of IP headers at most (the port
 * computes TCP's: rte_gro and rte_gso leave the field as it was, libsuperpacket writes the pseudo-header's sum).
 *
 * Hot: the same mbufs again. Stream: as a port leaves them, what it has written of the mbufs in the cache and the frames not, from a pool
 * larger than the cache, in no order.
 *
 * Rounds of both in turn, of each the median call; the ratio of each pair of rounds; medians. With `check` it fails where one of them is below
 * 1.5, but for joining what is hot.
 */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_gro.h>
#include <rte_gso.h>

#include "frames.h"
#include "mbuf.h"
#include "port.h"

enum { ROUNDS = 31, CALLS = 600, TRAIN = 45, BURSTS = 512 };

static struct mbuf_space memory;
static struct rte_mbuf *all[BURSTS * MBUF_BURST];
static uint8_t frames[MBUF_BURST][TCP4_HEADERS + TCP_PAYLOAD], joined[TCP4_HEADERS];
static struct rte_mempool *pool, *direct, *indirect, *large;
static sp_batch *batch;
static sp_segmenter *segmenter;
static unsigned outputs[2];

/* The burst as the port wrote its mbufs. */
static void receive(struct rte_mbuf **burst) {
    for (unsigned index = 0; index < MBUF_BURST; index++)
        port_received(burst[index], TCP4_HEADERS + TCP_PAYLOAD);
}

/* Cycles of joining a burst. */
static uint64_t join(int ours, struct rte_mbuf **burst) {
    struct rte_gro_param param = {.gro_types = RTE_GRO_TCP_IPV4, .max_flow_num = 64, .max_item_per_flow = 64};
    struct rte_mbuf *mbufs[MBUF_BURST];
    uint64_t start, cycles;
    receive(burst);
    memcpy(mbufs, burst, sizeof mbufs);
    start = rte_rdtsc_precise();
    if (ours)
        outputs[1] = mbuf_aggregate(batch, &memory, mbufs, MBUF_BURST);
    else
        outputs[0] = rte_gro_reassemble_burst(mbufs, MBUF_BURST, &param);
    cycles = rte_rdtsc_precise() - start;
    for (unsigned index = 0; index < outputs[ours]; index++) /* their headers were rewritten */
        for (unsigned number = 0; number < MBUF_BURST; number++)
            if (burst[number] == mbufs[index])
                memcpy(rte_pktmbuf_mtod(mbufs[index], void *), frames[number], TCP4_HEADERS);
    return cycles;
}

/* A super-packet of TRAIN segments in so many mbufs, each with as much payload, that nobody else refers to. */
static struct rte_mbuf *super_packet(unsigned count) {
    struct rte_mbuf *mbufs[TRAIN];
    uint16_t share = (uint16_t)(TRAIN * TCP_PAYLOAD / count);
    if (rte_pktmbuf_alloc_bulk(count == 1 ? large : pool, mbufs, count))
        rte_exit(EXIT_FAILURE, "no mbufs\n");
    for (unsigned index = 0; index < count; index++) {
        mbufs[index]->data_off = RTE_PKTMBUF_HEADROOM + (index ? TCP4_HEADERS : 0); /* where joining leaves it */
        mbufs[index]->data_len = (uint16_t)(share + (index ? 0 : TCP4_HEADERS));
        mbufs[index]->next = index + 1 < count ? mbufs[index + 1] : NULL;
    }
    memcpy(rte_pktmbuf_mtod(mbufs[0], void *), joined, sizeof joined);
    mbufs[0]->nb_segs = (uint16_t)count;
    mbufs[0]->pkt_len = TCP4_HEADERS + TRAIN * TCP_PAYLOAD;
    return mbufs[0];
}

/* Cycles of cutting a super-packet in so many mbufs, which is then gone. */
static uint64_t cut(int ours, unsigned count) {
    struct rte_gso_ctx context = {.direct_pool = direct, .indirect_pool = indirect, .gso_types = RTE_ETH_TX_OFFLOAD_TCP_TSO,
                                  .gso_size = TCP4_HEADERS + TCP_PAYLOAD};
    struct rte_mbuf *out[MBUF_SEGMENTS], *packet = super_packet(count);
    uint64_t start, cycles;
    int made;
    port_to_cut(packet, TCP_PAYLOAD);
    start = rte_rdtsc_precise();
    if (ours) {
        made = mbuf_segment(segmenter, &memory, packet, SP_OUTPUT_PARTIAL, direct, indirect, out, MBUF_SEGMENTS);
    } else {
        made = rte_gso_segment(packet, &context, out, MBUF_SEGMENTS);
        rte_pktmbuf_free(packet);
    }
    cycles = rte_rdtsc_precise() - start;
    if (made != TRAIN)
        rte_exit(EXIT_FAILURE, "cut into %d\n", made);
    outputs[ours] = (unsigned)made;
    rte_pktmbuf_free_bulk(out, (unsigned)made);
    return cycles;
}

static int compare(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *values, unsigned count) {
    qsort(values, count, sizeof *values, compare);
    return values[count / 2];
}

/* Times both in turn, prints medians, and returns the median of the ratios. To cut: what lies in so many mbufs; else to join. */
static double both(const char *name, const char *theirs, unsigned to_cut, unsigned spread, unsigned units) {
    double times[2][ROUNDS], ratios[ROUNDS], calls[CALLS], tick = 1e9 / (double)rte_get_tsc_hz();
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned turn = 0; turn < 2; turn++) {
            int ours = (round + turn) % 2;
            for (unsigned call = 0; call < CALLS; call++)
                calls[call] = (double)(to_cut ? cut(ours, to_cut) : join(ours, all + call % spread * MBUF_BURST));
            times[ours][round] = median(calls, CALLS) * tick / units;
        }
        ratios[round] = times[0][round] / times[1][round];
    }
    median(ratios, ROUNDS);
    printf("%-38s %s %5.1f ns (%u out), libsuperpacket %5.1f ns (%u out): %.2fx (middle half %.2f-%.2f)\n", name, theirs, median(times[0], ROUNDS), outputs[0],
           median(times[1], ROUNDS), outputs[1], ratios[ROUNDS / 2], ratios[ROUNDS / 4], ratios[ROUNDS * 3 / 4]);
    return ratios[ROUNDS / 2];
}

int main(int argc, char **argv) {
    sp_policy policy = {.size = sizeof policy, .mode = SP_MODE_GRO, .flags = SP_POLICY_PARTIAL_CHECKSUMS};
    struct rte_mbuf *chain[MBUF_BURST];
    double stream, chained, whole;
    int parsed = rte_eal_init(argc, argv), check;
    if (parsed < 0)
        rte_exit(EXIT_FAILURE, "EAL does not start\n");
    check = parsed + 1 < argc && !strcmp(argv[parsed + 1], "check");
    pool = rte_pktmbuf_pool_create("packets", BURSTS * MBUF_BURST + 1023, 256, 0, RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
    large = rte_pktmbuf_pool_create("large", 3, 0, 0, 65535, SOCKET_ID_ANY);
    direct = rte_pktmbuf_pool_create("direct", 1023, 256, 0, RTE_PKTMBUF_HEADROOM + SP_MAX_HEADER, SOCKET_ID_ANY);
    indirect = rte_pktmbuf_pool_create("indirect", 1023, 256, 0, 0, SOCKET_ID_ANY);
    if (!pool || !large || !direct || !indirect || sp_batch_new(&policy, &batch) != SP_OK || sp_segmenter_new(&segmenter) != SP_OK)
        rte_exit(EXIT_FAILURE, "no memory\n");
    if (rte_pktmbuf_alloc_bulk(pool, all, BURSTS * MBUF_BURST))
        rte_exit(EXIT_FAILURE, "no mbufs\n");
    port_shuffle(all, BURSTS * MBUF_BURST);
    for (unsigned number = 0; number < BURSTS; number++) {
        for (unsigned index = 0; index < MBUF_BURST; index++) {
            if (number == 0)
                tcp_frame(frames[index], 0, 0, index, TCP_PAYLOAD, index % TRAIN == TRAIN - 1 ? 0x18 : 0x10);
            memcpy(rte_pktmbuf_mtod(all[number * MBUF_BURST + index], void *), frames[index], sizeof frames[index]);
        }
    }
    stream = both("W1, join a burst of 64, stream", "rte_gro", 0, BURSTS, MBUF_BURST);
    both("W1, join a burst of 64, hot", "rte_gro", 0, 1, MBUF_BURST);

    /* The header of the first 45, joined: their payload lies in 45 mbufs; and the same in one. */
    receive(all);
    memcpy(chain, all, sizeof chain);
    mbuf_aggregate(batch, &memory, chain, MBUF_BURST);
    if (chain[0]->nb_segs != TRAIN)
        rte_exit(EXIT_FAILURE, "%u mbufs were joined\n", chain[0]->nb_segs);
    memcpy(joined, rte_pktmbuf_mtod(chain[0], void *), sizeof joined);
    chained = both("W1, cut the chain of 45 mbufs, hot", "rte_gso", TRAIN, 1, TRAIN);
    whole = both("W4, cut 65,160 bytes in one mbuf, hot", "rte_gso", 1, 1, TRAIN);
    return check && RTE_MIN(stream, RTE_MIN(chained, whole)) < 1.5 ? EXIT_FAILURE : EXIT_SUCCESS;
}

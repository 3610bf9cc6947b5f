/*
 * Offloads for a DPDK port that has none: a burst is received, joined, cut again, sent and received.
 *
 * The port is a ring in memory, which can neither segment nor compute checksums. So it takes neither a network card nor privileges:
 *
 *     cc -std=gnu11 dpdk.c -o dpdk $(pkg-config --cflags --libs libdpdk superpacket)
 *     ./dpdk --no-huge --no-pci -m 256 --vdev=net_ring0 --no-telemetry --log-level=error
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_ip.h>
#include <rte_tcp.h>

#include "mbuf.h"

enum { PORT = 0, PAYLOAD = 1448, HEADERS = sizeof(struct rte_ether_hdr) + sizeof(struct rte_ipv4_hdr) + sizeof(struct rte_tcp_hdr) };

static struct mbuf_space memory;

/* A segment of one TCP flow, this many segments after its first. */
static struct rte_mbuf *tcp_segment(struct rte_mempool *pool, uint32_t index, uint8_t flags) {
    struct rte_mbuf *mbuf = rte_pktmbuf_alloc(pool);
    char *frame = mbuf ? rte_pktmbuf_append(mbuf, HEADERS + PAYLOAD) : NULL;
    struct rte_ether_hdr *ethernet = (struct rte_ether_hdr *)frame;
    struct rte_ipv4_hdr *ip = (struct rte_ipv4_hdr *)(ethernet + 1);
    struct rte_tcp_hdr *tcp = (struct rte_tcp_hdr *)(ip + 1);
    if (!frame)
        rte_exit(EXIT_FAILURE, "no mbufs\n");
    memset(frame, 0, HEADERS);
    memset(frame + HEADERS, (int)index, PAYLOAD);
    ethernet->ether_type = rte_cpu_to_be_16(RTE_ETHER_TYPE_IPV4);
    ip->version_ihl = 0x45;
    ip->total_length = rte_cpu_to_be_16(sizeof *ip + sizeof *tcp + PAYLOAD);
    ip->packet_id = rte_cpu_to_be_16((uint16_t)index);
    ip->fragment_offset = rte_cpu_to_be_16(RTE_IPV4_HDR_DF_FLAG);
    ip->time_to_live = 64;
    ip->next_proto_id = IPPROTO_TCP;
    ip->src_addr = rte_cpu_to_be_32(RTE_IPV4(10, 0, 0, 1));
    ip->dst_addr = rte_cpu_to_be_32(RTE_IPV4(10, 0, 0, 2));
    ip->hdr_checksum = rte_ipv4_cksum(ip);
    tcp->src_port = rte_cpu_to_be_16(443);
    tcp->dst_port = rte_cpu_to_be_16(40000);
    tcp->sent_seq = rte_cpu_to_be_32(1000 + index * PAYLOAD);
    tcp->recv_ack = rte_cpu_to_be_32(1);
    tcp->data_off = sizeof *tcp / 4 << 4;
    tcp->tcp_flags = flags;
    tcp->rx_win = rte_cpu_to_be_16(500);
    tcp->cksum = rte_ipv4_udptcp_cksum(ip, tcp);
    return mbuf;
}

/* Sends all of a burst, and receives as many packets. */
static void through_the_port(struct rte_mbuf **mbufs, uint16_t count) {
    if (rte_eth_tx_burst(PORT, 0, mbufs, count) != count || rte_eth_rx_burst(PORT, 0, mbufs, count) != count)
        rte_exit(EXIT_FAILURE, "the port lost packets\n");
}

int main(int argc, char **argv) {
    struct rte_eth_conf conf;
    struct rte_mempool *pool, *direct, *indirect;
    struct rte_mbuf *sent[MBUF_BURST], *received[MBUF_BURST], *cut[MBUF_SEGMENTS];
    struct rte_eth_dev_info info;
    sp_batch *batch;
    sp_segmenter *segmenter;
    uint16_t index, joined, segments = 0, same = 0;

    if (rte_eal_init(argc, argv) < 0)
        rte_exit(EXIT_FAILURE, "EAL: %s\n", rte_strerror(rte_errno));
    pool = rte_pktmbuf_pool_create("packets", 1023, 128, 0, RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
    direct = rte_pktmbuf_pool_create("headers", 511, 128, 0, RTE_PKTMBUF_HEADROOM + SP_MAX_HEADER, SOCKET_ID_ANY);
    indirect = rte_pktmbuf_pool_create("indirect", 511, 128, 0, 0, SOCKET_ID_ANY);
    memset(&conf, 0, sizeof conf);
    memset(&info, 0, sizeof info);
    if (rte_eth_dev_info_get(PORT, &info) == 0)
        conf.txmode.offloads = info.tx_offload_capa;
    if (!pool || !direct || !indirect || rte_eth_dev_configure(PORT, 1, 1, &conf) || rte_eth_rx_queue_setup(PORT, 0, 256, SOCKET_ID_ANY, NULL, pool) ||
        rte_eth_tx_queue_setup(PORT, 0, 256, SOCKET_ID_ANY, NULL) || rte_eth_dev_start(PORT))
        rte_exit(EXIT_FAILURE, "no port: --vdev=net_ring0 makes one\n");
    if (mbuf_batch_new((sp_policy){.mode = SP_MODE_GRO}, &batch) != SP_OK || sp_segmenter_new(&segmenter) != SP_OK)
        rte_exit(EXIT_FAILURE, "superpacket: out of luck\n");

    for (index = 0; index < MBUF_BURST; index++) {
        sent[index] = tcp_segment(pool, index, index % 40 == 39 ? RTE_TCP_ACK_FLAG | RTE_TCP_PSH_FLAG : RTE_TCP_ACK_FLAG);
        received[index] = rte_pktmbuf_copy(sent[index], pool, 0, UINT32_MAX);
        if (!received[index])
            rte_exit(EXIT_FAILURE, "no mbufs\n");
    }
    through_the_port(received, MBUF_BURST);
    joined = mbuf_aggregate(batch, &memory, received, MBUF_BURST);
    printf("%u packets were joined in %u\n", MBUF_BURST, joined);
    for (index = 0; index < joined; index++) {
        uint16_t made = 1;
        cut[0] = received[index];
        if (mbuf_offloads(received[index]) & ~conf.txmode.offloads) /* The port cannot cut it. */
            made = mbuf_segment(segmenter, &memory, received[index], SP_OUTPUT_FULL, direct, indirect, cut, MBUF_SEGMENTS);
        if (!made || rte_eth_tx_prepare(PORT, 0, cut, made) != made)
            rte_exit(EXIT_FAILURE, "no mbufs, or a port that lies about its offloads\n");
        through_the_port(cut, made);
        for (uint16_t segment = 0; segment < made; segment++, segments++) {
            char bytes[HEADERS + PAYLOAD];
            const void *read = rte_pktmbuf_read(cut[segment], 0, sizeof bytes, bytes);
            same += cut[segment]->pkt_len == sizeof bytes && segments < MBUF_BURST && read && !memcmp(read, rte_pktmbuf_mtod(sent[segments], void *), sizeof bytes);
            rte_pktmbuf_free(cut[segment]);
        }
    }
    printf("cut again they are %u, of which %u are the very same\n", segments, same);

    rte_pktmbuf_free_bulk(sent, MBUF_BURST);
    sp_segmenter_free(segmenter);
    sp_batch_free(batch);
    printf("mbufs in use: %u\n", rte_mempool_in_use_count(pool) + rte_mempool_in_use_count(direct) + rte_mempool_in_use_count(indirect));
    joined = segments == MBUF_BURST && same == MBUF_BURST && !rte_mempool_in_use_count(pool);
    rte_eth_dev_stop(PORT);
    rte_eal_cleanup();
    return joined ? EXIT_SUCCESS : EXIT_FAILURE;
}

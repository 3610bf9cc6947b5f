/*
 * Mbufs as a port hands them over and as it is asked to send them, for benches: what happens outside of the time.
 */
#ifndef PORT_H
#define PORT_H

#include <stdlib.h>

#include <rte_ethdev.h>
#include <rte_mbuf.h>

/* A TCP/IPv4 frame with timestamps whose checksums the port has verified, as the port writes its mbuf. */
static inline void port_received(struct rte_mbuf *mbuf, uint16_t length) {
    mbuf->data_off = RTE_PKTMBUF_HEADROOM;
    mbuf->data_len = length;
    mbuf->pkt_len = length;
    mbuf->next = NULL;
    mbuf->nb_segs = 1;
    mbuf->tso_segsz = 0;
    mbuf->ol_flags = RTE_MBUF_F_RX_L4_CKSUM_GOOD | RTE_MBUF_F_RX_IP_CKSUM_GOOD;
    mbuf->packet_type = RTE_PTYPE_L2_ETHER | RTE_PTYPE_L3_IPV4 | RTE_PTYPE_L4_TCP;
    mbuf->l2_len = 14;
    mbuf->l3_len = 20;
    mbuf->l4_len = 32;
}

/* A TCP/IPv4 super-packet with timestamps that is to be cut, as a stack gives it to a port. */
static inline void port_to_cut(struct rte_mbuf *packet, uint16_t payload) {
    packet->ol_flags = RTE_MBUF_F_TX_TCP_SEG | RTE_MBUF_F_TX_IPV4 | RTE_MBUF_F_TX_IP_CKSUM;
    packet->tso_segsz = payload;
    packet->l2_len = 14;
    packet->l3_len = 20;
    packet->l4_len = 32;
}

/* In no order, as the mbufs of a pool are that has been in use for a while. */
static inline void port_shuffle(struct rte_mbuf **mbufs, unsigned count) {
    for (unsigned index = count - 1; index > 0; index--) {
        unsigned other = (unsigned)(random() % (index + 1));
        struct rte_mbuf *mbuf = mbufs[index];
        mbufs[index] = mbufs[other];
        mbufs[other] = mbuf;
    }
}

#endif

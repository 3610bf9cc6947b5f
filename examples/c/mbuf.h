/*
 * Offloads for chains of DPDK mbufs: the part to copy.
 *
 * mbuf_aggregate() joins a received burst: fewer mbufs, each a chain whose payload has not been copied. It asks the port for TSO and TCP's
 * checksum: a policy with SP_POLICY_PARTIAL_CHECKSUMS saves computing that twice.
 * mbuf_segment() cuts a chain for a port without TSO: a new mbuf for each header; for payload those of the chain, or indirect ones.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef MBUF_H
#define MBUF_H

#include <rte_mbuf.h>
#include <superpacket.h>

enum { MBUF_BURST = 64, MBUF_SEGMENTS = 256, MBUF_IOV = 1024 };

/* Memory for a burst, and for the segments of a packet: one for each lcore. */
struct mbuf_space {
    sp_packet packets[MBUF_BURST];
    sp_output outputs[MBUF_SEGMENTS];
    sp_iovec iov[MBUF_IOV], rest[MBUF_IOV];
    void *tokens[MBUF_IOV];
    uint8_t headers[MBUF_SEGMENTS * SP_MAX_HEADER];
    void *places[MBUF_SEGMENTS];
    struct rte_mbuf *indirect[MBUF_IOV];
};

/* Makes a packet of a chain; the ranges behind its first mbuf go to `rest`. Returns how many these are. */
static inline uint32_t mbuf_describe(struct rte_mbuf *mbuf, sp_packet *packet, sp_iovec *rest) {
    *packet = (sp_packet){.data = rte_pktmbuf_mtod(mbuf, void *), .length = mbuf->data_len, .token = mbuf};
    if ((mbuf->ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK) == RTE_MBUF_F_RX_L4_CKSUM_GOOD)
        packet->offload.checksum = SP_CHECKSUM_VERIFIED;
    if (mbuf->ol_flags & RTE_MBUF_F_RX_VLAN_STRIPPED) {
        packet->offload.vlan_protocol = 0x8100;
        packet->offload.vlan_control = mbuf->vlan_tci;
    }
    if (likely(mbuf->nb_segs == 1))
        return 0;
    packet->rest = rest;
    for (struct rte_mbuf *next = mbuf->next; next; next = next->next)
        rest[packet->rest_count++] = (sp_iovec){rte_pktmbuf_mtod(next, void *), next->data_len};
    return packet->rest_count;
}

/* The chain of what merged: the first packet with the new header, and the others behind it without theirs. */
static inline struct rte_mbuf *mbuf_chain(const sp_output *output, void *const *tokens) {
    struct rte_mbuf *first = (struct rte_mbuf *)output->token, *last = first, *mbuf;
    uint32_t index, header = output->header_length;
    uint16_t segments = first->nb_segs;
    if (!header)
        return first; /* It left as it came. */
    memcpy(rte_pktmbuf_mtod(first, void *), output->iov[0].iov_base, header);
    for (index = 1; index < output->iov_count;) {
        uint32_t payload = (uint32_t)output->iov[index].iov_len, cut = header;
        mbuf = (struct rte_mbuf *)tokens[index++];
        if (mbuf == first) {
            cut = 0;
            payload += header;
        } else {
            last->next = mbuf;
            segments += mbuf->nb_segs;
        }
        if (likely(mbuf->nb_segs == 1)) {
            mbuf->data_off = (uint16_t)(mbuf->data_off + cut);
            mbuf->data_len = (uint16_t)payload;
            mbuf->pkt_len = payload;
            last = mbuf;
        } else {
            while (index < output->iov_count && tokens[index] == mbuf)
                payload += (uint32_t)output->iov[index++].iov_len;
            rte_pktmbuf_adj(mbuf, (uint16_t)cut);
            if (mbuf->pkt_len > payload) /* padding of a short frame */
                rte_pktmbuf_trim(mbuf, (uint16_t)(mbuf->pkt_len - payload));
            last = rte_pktmbuf_lastseg(mbuf);
        }
    }
    first->nb_segs = segments;
    first->pkt_len = (uint32_t)output->length;
    first->tso_segsz = output->offload.gso_size;
    first->ol_flags |= output->offload.gso_type == SP_GSO_TCP6 ? RTE_MBUF_F_TX_TCP_SEG | RTE_MBUF_F_TX_IPV6
                                                               : RTE_MBUF_F_TX_TCP_SEG | RTE_MBUF_F_TX_IPV4 | RTE_MBUF_F_TX_IP_CKSUM;
    return first;
}

/* The memory as the library has it. */
static inline sp_space mbuf_space_of(struct mbuf_space *memory) {
    sp_space space = {.size = sizeof space};
    space.outputs = memory->outputs;
    space.outputs_max = MBUF_SEGMENTS;
    space.iov = memory->iov;
    space.tokens = memory->tokens;
    space.iov_max = MBUF_IOV;
    space.headers = memory->headers;
    space.headers_max = sizeof memory->headers;
    return space;
}

/*
 * Joins the packets of a burst of at most MBUF_BURST, in place, and returns how many there are then. A packet that merges with no other
 * stays as it is.
 */
static inline uint16_t mbuf_aggregate(sp_batch *batch, struct mbuf_space *memory, struct rte_mbuf **mbufs, uint16_t count) {
    sp_space space = mbuf_space_of(memory);
    sp_iovec *rest = memory->rest;
    uint16_t index, left = 0;
    sp_status status;
    if (count > MBUF_BURST)
        return count;
    for (index = 0; index < count; index++) {
        if (mbufs[index]->nb_segs > SP_MAX_BUFFERS)
            return count;
        rte_prefetch0(rte_pktmbuf_mtod(mbufs[index], void *));
        rest += mbuf_describe(mbufs[index], &memory->packets[index], rest);
    }
    status = sp_batch_aggregate(batch, memory->packets, count, &space);
    if (status < 0)
        return count; /* Nothing has happened: the burst goes on as it came. */
    for (;; status = sp_batch_continue(batch, memory->packets, count, &space)) {
        void *const *tokens = memory->tokens;
        for (size_t output = 0; output < space.outputs_used; output++) {
            mbufs[left++] = mbuf_chain(&memory->outputs[output], tokens);
            tokens += memory->outputs[output].iov_count;
        }
        if (status != SP_FULL)
            return left;
    }
}

/* Makes `to`, as it lies in its pool, refer to a range of `from`: a reference that the caller counts. */
static inline void mbuf_refer(struct rte_mbuf *to, const struct rte_mbuf *from, uint32_t offset, uint32_t length) {
    to->priv_size = from->priv_size;
    to->ol_flags = RTE_MBUF_F_INDIRECT;
    to->buf_addr = from->buf_addr;
    to->buf_len = from->buf_len;
    rte_mbuf_iova_set(to, rte_mbuf_iova_get(from));
    to->data_off = (uint16_t)(from->data_off + offset);
    to->data_len = (uint16_t)length;
    to->pkt_len = length;
}

/* Ends the use of an mbuf of a chain that is freed, whose reference this many others take over. Returns the next of the chain. */
static inline struct rte_mbuf *mbuf_hand_over(struct rte_mbuf *mbuf, int16_t references) {
    struct rte_mbuf *next = mbuf->next;
    if (references > 1)
        rte_mbuf_refcnt_update(mbuf, (int16_t)(references - 1));
    else if (references == 0)
        rte_pktmbuf_free_seg(mbuf);
    return next;
}

/*
 * Cuts a chain of direct mbufs into segments with as many bytes of payload as its tso_segsz says, and frees it. An mbuf of the chain whose
 * bytes all go into one segment goes with them, if nobody else refers to it. Returns how many chains are in `out`, or 0: then the chain is
 * as it was, and the caller's. `checksum` is SP_OUTPUT_FULL, or SP_OUTPUT_PARTIAL for a port that computes TCP's. `direct` has mbufs with
 * room for SP_MAX_HEADER bytes, `indirect` mbufs without any.
 */
static inline uint16_t mbuf_segment(sp_segmenter *segmenter, struct mbuf_space *memory, struct rte_mbuf *mbuf, uint32_t checksum,
                                    struct rte_mempool *direct, struct rte_mempool *indirect, struct rte_mbuf **out, uint16_t max) {
    sp_segment_options options = {.size = sizeof options, .checksum = checksum};
    struct rte_mbuf **unused = memory->indirect, *from = mbuf;
    uint64_t flags = mbuf->ol_flags & ~(RTE_MBUF_F_TX_TCP_SEG | RTE_MBUF_F_TX_L4_MASK | RTE_MBUF_F_TX_IP_CKSUM), offload = mbuf->tx_offload;
    uint32_t most = mbuf->tso_segsz ? mbuf->pkt_len / mbuf->tso_segsz + 1 : 0, made, index, at;
    uint32_t ranges = most + mbuf->nb_segs - 1; /* at most: one ends where a segment does, or an mbuf */
    uint16_t port = mbuf->port, vlan_tci = mbuf->vlan_tci;
    int16_t references = 0;
    sp_packet packet;
    sp_headers cut;
    if (!most || most > max || most > MBUF_SEGMENTS || ranges > MBUF_IOV || rte_pktmbuf_alloc_bulk(direct, out, most))
        return 0;
    for (index = 0; index < most; index++)
        memory->places[index] = rte_pktmbuf_mtod(out[index], void *);
    mbuf_describe(mbuf, &packet, memory->rest);
    packet.offload = (sp_offload){.gso_type = mbuf->ol_flags & RTE_MBUF_F_TX_IPV6 ? SP_GSO_TCP6 : SP_GSO_TCP4, .gso_size = mbuf->tso_segsz};
    if (sp_segment_headers(segmenter, &packet, &options, memory->places, most, &cut) != SP_OK ||
        rte_mempool_get_bulk(indirect, (void **)memory->indirect, ranges)) {
        rte_pktmbuf_free_bulk(out, most);
        return 0;
    }
    made = (uint32_t)cut.plan.segments;
    if (made < most)
        rte_pktmbuf_free_bulk(out + made, most - made);
    if (checksum == SP_OUTPUT_PARTIAL)
        flags |= RTE_MBUF_F_TX_TCP_CKSUM;
    for (at = (uint32_t)cut.payload_start; from && at >= from->data_len; from = mbuf_hand_over(from, 0))
        at -= from->data_len;
    for (index = 0; index < made; index++) {
        struct rte_mbuf *segment = out[index], *last = segment;
        uint32_t length = (uint32_t)(index + 1 < made ? cut.plan.segment_length : cut.plan.last_length), here;
        segment->data_len = (uint16_t)cut.header_length;
        segment->pkt_len = length;
        segment->port = port;
        segment->vlan_tci = vlan_tci;
        segment->tx_offload = offload;
        segment->ol_flags = flags;
        for (uint32_t left = length - segment->data_len; left; left -= here, last = last->next) {
            while (at == from->data_len) {
                from = mbuf_hand_over(from, references);
                at = references = 0;
            }
            here = RTE_MIN(left, from->data_len - at);
            if (here == from->data_len && rte_mbuf_refcnt_read(from) == 1) {
                last->next = from;
                from = from->next;
            } else {
                mbuf_refer(*unused, from, at, here);
                last->next = *unused++;
                at += here;
                references++;
            }
            segment->nb_segs++;
        }
        last->next = NULL;
    }
    for (; from; references = 0)
        from = mbuf_hand_over(from, references);
    if (unused < memory->indirect + ranges)
        rte_mempool_put_bulk(indirect, (void **)unused, (unsigned)(memory->indirect + ranges - unused));
    return (uint16_t)made;
}

#endif

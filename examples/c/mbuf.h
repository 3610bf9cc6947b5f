/*
 * Offloads for chains of DPDK mbufs: the part to copy.
 *
 * mbuf_aggregate() joins a received burst into fewer mbufs. Each of these is a chain whose payload has not been copied. It asks the port
 * to segment and to compute checksums: the flags RTE_MBUF_F_TX_..., tso_segsz and the lengths of all headers are set. Call
 * rte_eth_tx_prepare() before rte_eth_tx_burst(), as for every packet with offloads in DPDK.
 * mbuf_offloads() tells which offloads a port must have to send such a chain.
 * mbuf_segment() cuts a chain for a port that lacks one: a new mbuf for each header; for payload those of the chain, or indirect ones.
 *
 * What merges here can be cut into the same frames again. What no mbuf can describe is not merged: struct mbuf_space counts why.
 *
 * With SP_MODE_GRO_UDP, RTE_MBUF_F_TX_UDP_SEG means datagrams of tso_segsz bytes. DPDK defines it as IP fragmentation, and so does
 * rte_gso_segment(); some ports cut datagrams. Use mbuf_segment() unless you know your port.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef MBUF_H
#define MBUF_H

#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <superpacket_dpdk.h>

enum { MBUF_BURST = 64, MBUF_SEGMENTS = 256, MBUF_IOV = 1024 };

/* Why mbuf_aggregate() did not merge packets that the library can merge. */
enum mbuf_refusal {
    MBUF_MERGED,         /* They were merged. */
    MBUF_RECEIVED,       /* The mbuf is shared, has more than SP_MAX_BUFFERS parts, was joined by the port, or has lost two VLAN tags. */
    MBUF_SPLIT_HEADERS,  /* The headers do not all lie in the first mbuf of a chain. */
    MBUF_PROTOCOL,       /* The protocol is neither TCP nor UDP, or the batch is not of mbuf_batch_new(). */
    MBUF_LINK_HEADER,    /* Something else than VLAN tags (0x8100, 0x88a8) follows the Ethernet header: PPPoE, MPLS. */
    MBUF_TUNNEL,         /* A tunnel in a tunnel, a GRE checksum, or tunnel headers of more than 127 bytes. */
    MBUF_IP_HEADER,      /* IPv6 extension headers: rte_eth_tx_prepare() takes their number for that of the transport protocol. */
    MBUF_TOO_LONG,       /* More than 65,535 bytes from the outermost IP header on (BIG TCP). */
    MBUF_IDENTIFICATION, /* All packets have the same IPv4 identification, but ports count it up. */
    MBUF_CWR,            /* TCP's CWR flag: some ports set it on the first segment, others on all. */
    MBUF_LIBRARY,        /* The library returned an error, which is in the field status. */
    MBUF_REFUSALS        /* How many reasons there are. */
};

/* The name of a reason, for a log. */
static inline const char *mbuf_refusal_name(enum mbuf_refusal refusal) {
    static const char *const names[MBUF_REFUSALS] = {"merged",     "received mbuf", "split headers", "protocol", "link header", "tunnel",
                                                     "IPv6 extension headers", "too long", "fixed IPv4 identification", "CWR", "library"};
    return refusal < MBUF_REFUSALS ? names[refusal] : "unknown";
}

/* Memory for a burst, and for the segments of a packet: one for each lcore, all zero at first. */
struct mbuf_space {
    sp_packet packets[MBUF_BURST];
    sp_output outputs[MBUF_SEGMENTS];
    sp_layout layouts[MBUF_SEGMENTS];
    sp_iovec iov[MBUF_IOV], rest[MBUF_IOV];
    void *tokens[MBUF_IOV];
    uint8_t headers[MBUF_SEGMENTS * SP_MAX_HEADER];
    void *places[MBUF_SEGMENTS];
    struct rte_mbuf *indirect[MBUF_IOV];
    uint64_t refused[MBUF_REFUSALS]; /* How many packets mbuf_aggregate() passed on as they came, by the reason. */
    sp_status status;                /* The last error of the library in mbuf_aggregate(); SP_OK: there was none. */
};

/*
 * Makes the batch for mbuf_aggregate(), with checksums that the port completes. Set to 0 what the policy is not to change. SP_ERROR_ARGUMENT
 * for what mbufs cannot describe: another mode than SP_MODE_GRO and SP_MODE_GRO_UDP, SP_LAYER_IP, a virtio_length.
 */
static inline sp_status mbuf_batch_new(sp_policy policy, sp_batch **batch) {
    if (policy.mode > SP_MODE_GRO_UDP || policy.layer != SP_LAYER_ETHERNET || policy.virtio_length)
        return SP_ERROR_ARGUMENT;
    policy.size = sizeof policy;
    policy.flags |= SP_POLICY_PARTIAL_CHECKSUMS;
    return sp_batch_new(&policy, batch);
}

/* What describes headers to a port, and what asks it to compute checksums and to segment. */
#define MBUF_HEADERS (RTE_MBUF_F_TX_IPV4 | RTE_MBUF_F_TX_IPV6 | RTE_MBUF_F_TX_OUTER_IPV4 | RTE_MBUF_F_TX_OUTER_IPV6 | RTE_MBUF_F_TX_TUNNEL_MASK)
#define MBUF_REQUESTS (RTE_MBUF_F_TX_TCP_SEG | RTE_MBUF_F_TX_UDP_SEG | RTE_MBUF_F_TX_L4_MASK | RTE_MBUF_F_TX_IP_CKSUM | \
                       RTE_MBUF_F_TX_OUTER_IP_CKSUM | RTE_MBUF_F_TX_OUTER_UDP_CKSUM)

/* What a port is asked for: ol_flags, and the lengths of tx_offload. */
struct mbuf_request {
    uint64_t flags, lengths;
};

/* Tells whether a link header is that of Ethernet, followed by VLAN tags at most. */
static inline int mbuf_is_ethernet(const uint8_t *header, uint32_t length) {
    uint32_t type = 12;
    while (unlikely(type + 2 < length) && (!memcmp(header + type, "\x81\x00", 2) || !memcmp(header + type, "\x88\xa8", 2)))
        type += 4;
    return type + 2 == length;
}

/* Adds the headers around a tunnelled packet to a request. */
static inline enum mbuf_refusal mbuf_request_tunnel(const sp_output *output, const sp_layout *at, struct mbuf_request *request) {
    static const uint64_t tunnels[] = {[SP_TUNNEL_VXLAN] = RTE_MBUF_F_TX_TUNNEL_VXLAN,
                                       [SP_TUNNEL_GENEVE] = RTE_MBUF_F_TX_TUNNEL_GENEVE,
                                       [SP_TUNNEL_GRE] = RTE_MBUF_F_TX_TUNNEL_GRE,
                                       [SP_TUNNEL_IP] = RTE_MBUF_F_TX_TUNNEL_IPIP};
    const uint8_t *header = (const uint8_t *)output->iov[0].iov_base, *outer = header + at->outer_transport;
    int over_udp = at->tunnel == SP_TUNNEL_VXLAN || at->tunnel == SP_TUNNEL_GENEVE;
    /* UDP, the tunnel's own header, and the inner Ethernet header. */
    uint32_t between = at->network - at->outer_transport, ip = at->outer_transport - at->outer_network;
    if (at->nested_tunnel || at->tunnel >= RTE_DIM(tunnels) || between > 127 || (at->tunnel == SP_TUNNEL_GRE && outer[0] & 0x80))
        return MBUF_TUNNEL;
    if (ip != (at->outer_ip_version == 4 ? 20 : 40))
        return MBUF_IP_HEADER;
    if (at->outer_ip_version == 4 && output->offload.flags & SP_OFFLOAD_FIXED_OUTER_ID)
        return MBUF_IDENTIFICATION;
    request->flags |= tunnels[at->tunnel];
    request->flags |= at->outer_ip_version == 4 ? RTE_MBUF_F_TX_OUTER_IPV4 | RTE_MBUF_F_TX_OUTER_IP_CKSUM : RTE_MBUF_F_TX_OUTER_IPV6;
    if (over_udp && (outer[6] | outer[7]))
        request->flags |= RTE_MBUF_F_TX_OUTER_UDP_CKSUM;
    request->lengths = rte_mbuf_tx_offload(between, 0, 0, 0, ip, at->outer_network, 0);
    return MBUF_MERGED;
}

/* Finds out how a port is asked to cut a merged packet; or why it cannot be asked. */
static inline enum mbuf_refusal mbuf_request(const sp_output *output, const sp_layout *at, struct mbuf_request *request) {
    const uint8_t *header = (const uint8_t *)output->iov[0].iov_base;
    uint32_t link = at->tunnel ? at->outer_network : at->network, ip = at->transport - at->network;
    int tcp = at->protocol == 6;
    *request = (struct mbuf_request){.lengths = rte_mbuf_tx_offload(link, 0, 0, 0, 0, 0, 0)};
    if ((!tcp && at->protocol != 17) || output->offload.gso_type == SP_GSO_NONE || output->header_length != at->payload)
        return MBUF_PROTOCOL;
    if (link > 127 || !mbuf_is_ethernet(header, link))
        return MBUF_LINK_HEADER;
    if (ip != (at->ip_version == 4 ? 20 : 40))
        return MBUF_IP_HEADER;
    if (output->length - link > 65535)
        return MBUF_TOO_LONG;
    if (at->ip_version == 4 && output->offload.flags & SP_OFFLOAD_FIXED_ID)
        return MBUF_IDENTIFICATION;
    if (tcp && header[at->transport + 13] & 0x80)
        return MBUF_CWR;
    if (unlikely(at->tunnel)) {
        enum mbuf_refusal refusal = mbuf_request_tunnel(output, at, request);
        if (refusal)
            return refusal;
    }
    request->lengths |= rte_mbuf_tx_offload(0, ip, at->payload - at->transport, output->offload.gso_size, 0, 0, 0);
    request->flags |= at->ip_version == 4 ? RTE_MBUF_F_TX_IPV4 | RTE_MBUF_F_TX_IP_CKSUM : RTE_MBUF_F_TX_IPV6;
    request->flags |= tcp ? RTE_MBUF_F_TX_TCP_SEG | RTE_MBUF_F_TX_TCP_CKSUM : RTE_MBUF_F_TX_UDP_SEG | RTE_MBUF_F_TX_UDP_CKSUM;
    return MBUF_MERGED;
}

/* The chain of what merged, which asks the port to cut it. */
static inline struct rte_mbuf *mbuf_chain(const sp_output *output, const struct mbuf_request *request) {
    struct rte_mbuf *first = sp_mbuf_chain(output);
    first->tx_offload = request->lengths;
    /* A port in memory leaves flags on its mbufs that another use of them needed. */
    first->ol_flags = (first->ol_flags & ~(MBUF_HEADERS | MBUF_REQUESTS)) | request->flags;
    return first;
}

/* Puts what merged, or passed, into `out`. Returns how many mbufs these are: one, unless no mbuf can describe it. */
static inline uint16_t mbuf_put(struct mbuf_space *memory, const sp_output *output, const sp_layout *layout, int chains, struct rte_mbuf **out) {
    struct mbuf_request request;
    enum mbuf_refusal refusal;
    uint16_t count;
    if (!output->header_length) {
        *out = (struct rte_mbuf *)output->token;
        return 1;
    }
    refusal = mbuf_request(output, layout, &request);
    if (!refusal && unlikely(chains) && sp_mbuf_splits_headers(output))
        refusal = MBUF_SPLIT_HEADERS;
    if (likely(!refusal)) {
        *out = mbuf_chain(output, &request);
        return 1;
    }
    count = (uint16_t)sp_mbuf_list(output, out);
    memory->refused[refusal] += count;
    return count;
}

/* The memory as the library has it. */
static inline sp_space mbuf_space_of(struct mbuf_space *memory) {
    sp_space space = {.size = sizeof space};
    space.outputs = memory->outputs;
    space.outputs_max = MBUF_SEGMENTS;
    space.layouts = memory->layouts;
    space.iov = memory->iov;
    space.tokens = memory->tokens;
    space.iov_max = MBUF_IOV;
    space.headers = memory->headers;
    space.headers_max = sizeof memory->headers;
    return space;
}

/* Joins packets that memory->packets describes and `mbufs` lists. `chains`: some have several mbufs. Returns how many mbufs are in `out`. */
static inline uint16_t mbuf_join(sp_batch *batch, struct mbuf_space *memory, int chains, struct rte_mbuf *const *mbufs, uint16_t count,
                                 struct rte_mbuf **out) {
    sp_space space = mbuf_space_of(memory);
    sp_status status = sp_batch_aggregate(batch, memory->packets, count, &space);
    uint16_t made = 0;
    if (unlikely(status < 0)) { /* Nothing has happened: the packets go on as they came. */
        memory->status = status;
        memory->refused[MBUF_LIBRARY] += count;
        memmove(out, mbufs, count * sizeof *out);
        return count;
    }
    for (;; status = sp_batch_continue(batch, memory->packets, count, &space)) {
        for (size_t index = 0; index < space.outputs_used; index++)
            made = (uint16_t)(made + mbuf_put(memory, &memory->outputs[index], &memory->layouts[index], chains, out + made));
        if (status != SP_FULL) {
            memory->status = status < 0 ? status : memory->status;
            return made;
        }
    }
}

/*
 * Joins the packets of a burst of any length, in place, and returns how many there are then. `batch` is from mbuf_batch_new(). A packet that
 * merges with no other stays as it is. Packets merge with others of the same MBUF_BURST; an mbuf that is not joinable ends these early.
 */
static inline uint16_t mbuf_aggregate(sp_batch *batch, struct mbuf_space *memory, struct rte_mbuf **mbufs, uint16_t count) {
    uint16_t next = 0, left = 0;
    while (next < count) {
        uint16_t most = RTE_MIN(MBUF_BURST, count - next), part;
        struct rte_mbuf **mbuf = mbufs + next;
        sp_iovec *rest = memory->rest;
        for (part = 0; part < most; part++) {
            rte_prefetch0(rte_pktmbuf_mtod(mbuf[part], void *));
            if (unlikely(!sp_mbuf_is_plain(mbuf[part]) && !sp_mbuf_is_joinable(mbuf[part])))
                break;
            rest += sp_mbuf_describe(mbuf[part], &memory->packets[part], rest);
        }
        /* No more comes out than went in, so nothing that has not been read is overwritten. */
        if (likely(part))
            left = (uint16_t)(left + mbuf_join(batch, memory, rest != memory->rest, mbuf, part, mbufs + left));
        next = (uint16_t)(next + part);
        if (unlikely(part < most)) {
            memory->refused[MBUF_RECEIVED]++;
            mbufs[left++] = mbufs[next++];
        }
    }
    return left;
}

/*
 * The offloads that a port needs to send a packet, as RTE_ETH_TX_OFFLOAD_... . For a port that lacks one, mbuf_segment() cuts what merged:
 * its segments need RTE_ETH_TX_OFFLOAD_MULTI_SEGS, and with SP_OUTPUT_PARTIAL that of a transport checksum. For merged UDP all bits are set,
 * since no offload of DPDK says that a port cuts datagrams rather than fragments.
 */
static inline uint64_t mbuf_offloads(const struct rte_mbuf *mbuf) {
    uint64_t flags = mbuf->ol_flags, needed = mbuf->nb_segs > 1 ? RTE_ETH_TX_OFFLOAD_MULTI_SEGS : 0;
    if (flags & RTE_MBUF_F_TX_UDP_SEG)
        return UINT64_MAX;
    if (flags & RTE_MBUF_F_TX_IP_CKSUM && !(flags & RTE_MBUF_F_TX_TCP_SEG)) /* Segmentation includes it. */
        needed |= RTE_ETH_TX_OFFLOAD_IPV4_CKSUM;
    if (flags & RTE_MBUF_F_TX_OUTER_IP_CKSUM)
        needed |= RTE_ETH_TX_OFFLOAD_OUTER_IPV4_CKSUM;
    if (flags & RTE_MBUF_F_TX_OUTER_UDP_CKSUM)
        needed |= RTE_ETH_TX_OFFLOAD_OUTER_UDP_CKSUM;
    if ((flags & RTE_MBUF_F_TX_L4_MASK) == RTE_MBUF_F_TX_TCP_CKSUM)
        needed |= RTE_ETH_TX_OFFLOAD_TCP_CKSUM;
    if ((flags & RTE_MBUF_F_TX_L4_MASK) == RTE_MBUF_F_TX_UDP_CKSUM)
        needed |= RTE_ETH_TX_OFFLOAD_UDP_CKSUM;
    if (flags & RTE_MBUF_F_TX_TCP_SEG) {
        switch (flags & RTE_MBUF_F_TX_TUNNEL_MASK) {
        case 0: return needed | RTE_ETH_TX_OFFLOAD_TCP_TSO;
        case RTE_MBUF_F_TX_TUNNEL_VXLAN: return needed | RTE_ETH_TX_OFFLOAD_VXLAN_TNL_TSO;
        case RTE_MBUF_F_TX_TUNNEL_GENEVE: return needed | RTE_ETH_TX_OFFLOAD_GENEVE_TNL_TSO;
        case RTE_MBUF_F_TX_TUNNEL_GRE: return needed | RTE_ETH_TX_OFFLOAD_GRE_TNL_TSO;
        case RTE_MBUF_F_TX_TUNNEL_IPIP: return needed | RTE_ETH_TX_OFFLOAD_IPIP_TNL_TSO;
        }
    }
    return needed;
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
 * as it was, and the caller's. `checksum` is SP_OUTPUT_FULL, or SP_OUTPUT_PARTIAL for a port that computes that of TCP or UDP: of IP and
 * outer headers they are always complete. `direct` has mbufs with room for SP_MAX_HEADER bytes, `indirect` mbufs without any.
 */
static inline uint16_t mbuf_segment(sp_segmenter *segmenter, struct mbuf_space *memory, struct rte_mbuf *mbuf, uint32_t checksum,
                                    struct rte_mempool *direct, struct rte_mempool *indirect, struct rte_mbuf **out, uint16_t max) {
    sp_segment_options options = {.size = sizeof options, .checksum = checksum};
    struct rte_mbuf **unused = memory->indirect, *from = mbuf;
    int udp = !!(mbuf->ol_flags & RTE_MBUF_F_TX_UDP_SEG);
    uint64_t flags = mbuf->ol_flags & ~MBUF_REQUESTS;
    uint64_t lengths = rte_mbuf_tx_offload(mbuf->l2_len, mbuf->l3_len, mbuf->l4_len, 0, mbuf->outer_l3_len, mbuf->outer_l2_len, 0);
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
    sp_mbuf_describe(mbuf, &packet, memory->rest);
    packet.offload = (sp_offload){.gso_type = udp ? SP_GSO_UDP : mbuf->ol_flags & RTE_MBUF_F_TX_IPV6 ? SP_GSO_TCP6 : SP_GSO_TCP4,
                                  .gso_size = mbuf->tso_segsz};
    if (sp_segment_headers(segmenter, &packet, &options, memory->places, most, &cut) != SP_OK ||
        rte_mempool_get_bulk(indirect, (void **)memory->indirect, ranges)) {
        rte_pktmbuf_free_bulk(out, most);
        return 0;
    }
    made = (uint32_t)cut.plan.segments;
    if (made < most)
        rte_pktmbuf_free_bulk(out + made, most - made);
    if (checksum == SP_OUTPUT_FULL)
        flags &= ~MBUF_HEADERS;
    else
        flags |= udp ? RTE_MBUF_F_TX_UDP_CKSUM : RTE_MBUF_F_TX_TCP_CKSUM;
    for (at = (uint32_t)cut.payload_start; from && at >= from->data_len; from = mbuf_hand_over(from, 0))
        at -= from->data_len;
    for (index = 0; index < made; index++) {
        struct rte_mbuf *segment = out[index], *last = segment;
        uint32_t length = (uint32_t)(index + 1 < made ? cut.plan.segment_length : cut.plan.last_length), here;
        segment->data_len = (uint16_t)cut.header_length;
        segment->pkt_len = length;
        segment->port = port;
        segment->vlan_tci = vlan_tci;
        segment->tx_offload = lengths;
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
                sp_mbuf_refer(*unused, from, at, here);
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

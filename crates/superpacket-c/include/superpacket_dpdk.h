/*
 * superpacket_dpdk.h: rte_gro and rte_gso over libsuperpacket, with DPDK's own signatures.
 *
 * sp_gro_reassemble_burst(), sp_gro_ctx_create(), sp_gro_reassemble() and the others take, return and free what rte_gro's functions of the
 * same names do; sp_gso_segment() what rte_gso_segment() does. To try a program over them, change the header that it includes:
 *
 *     #define SP_REPLACE_RTE         // rte_gro_... and rte_gso_... now mean the functions of this header
 *     #include <superpacket_dpdk.h>  // instead of <rte_gro.h> and <rte_gso.h>
 *
 * As with DPDK, packet_type, l2_len, l3_len and l4_len of packets to merge are set (and outer_l2_len, outer_l3_len of those in a tunnel), and
 * of packets to cut also ol_flags. What differs:
 *
 * - Packets of a flow stay in their order, also around those that do not merge: pure ACKs, PSH, FIN. A context holds these too.
 * - A packet with a wrong checksum does not merge, and those of merged packets are right. No payload is read for a packet that the port has
 *   verified (RTE_MBUF_F_RX_L4_CKSUM_GOOD), nor for one whose TCP checksum a port is to compute (RTE_MBUF_F_TX_TCP_CKSUM, _TCP_SEG): the
 *   latter gets the sum of the pseudo-header, as rte_eth_tx_prepare() would write it.
 * - tso_segsz of a merged packet is the payload of each packet in it: a port can cut it into the same packets.
 * - Joined are RTE_GRO_TCP_IPV4, _IPV4_VXLAN_TCP_IPV4 and, from DPDK 24.03, _TCP_IPV6; fragments of UDP never.
 * - Mbufs that others refer to, and chains whose headers do not all lie in the first mbuf, do not merge.
 * - Cut are TCP over IPv4 and IPv6, both also in VXLAN, GRE, Geneve and IP in IP, and UDP over IPv4 into fragments; UDP in VXLAN is not.
 * - The mbufs behind the first of a packet that is cut may move to its segments: free the packet, as DPDK demands, and do not send it too.
 * - direct_pool has mbufs with room for SP_MAX_HEADER bytes. A packet is cut into SP_GSO_SEGMENTS packets at most, and has SP_MAX_RANGES
 *   mbufs at most.
 *
 * Each thread that calls these functions has memory of its own, made in its first call: sp_dpdk_thread_free() frees it. A context is used by
 * one thread at a time. Needs DPDK 22.11 or newer, C99 or C++11, and the extensions of gcc and clang that DPDK's own headers need.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef SUPERPACKET_DPDK_H
#define SUPERPACKET_DPDK_H

#include <errno.h>
#include <string.h>

#include <rte_cycles.h>
#include <rte_ethdev.h>
#include <rte_gro.h>
#include <rte_gso.h>
#include <rte_malloc.h>
#include <rte_mbuf.h>
#include <superpacket.h>

enum {
    SP_GRO_JOIN = 512,     /* So many packets are joined at a time: those of a longer burst in several parts. */
    SP_GSO_SEGMENTS = 4096 /* Maximum number of segments of a packet. */
};

/* ---- Mbufs as the library's packets ---- */

/* What a port says of an mbuf that the library cannot be told. */
#define SP_MBUF_NOT_TOLD (RTE_MBUF_F_RX_LRO | RTE_MBUF_F_RX_QINQ_STRIPPED)

/* Tells whether an mbuf is what most are: a whole packet in memory of its own, which is joinable. */
static inline int sp_mbuf_is_plain(const struct rte_mbuf *mbuf) {
    return mbuf->nb_segs == 1 && rte_mbuf_refcnt_read(mbuf) == 1 && !(mbuf->ol_flags & (SP_MBUF_NOT_TOLD | RTE_MBUF_F_INDIRECT | RTE_MBUF_F_EXTERNAL));
}

/* Tells whether a chain and its data may be changed, and whether the library can be told all that the port says of it. */
static inline int sp_mbuf_is_joinable(const struct rte_mbuf *mbuf) {
    if (mbuf->ol_flags & SP_MBUF_NOT_TOLD || mbuf->nb_segs > SP_MAX_BUFFERS)
        return 0;
    for (; mbuf; mbuf = mbuf->next)
        if (rte_mbuf_refcnt_read(mbuf) != 1 || RTE_MBUF_CLONED(mbuf) || (RTE_MBUF_HAS_EXTBUF(mbuf) && rte_mbuf_ext_refcnt_read(mbuf->shinfo) != 1))
            return 0;
    return 1;
}

/*
 * Tells the library which checksums the port has verified. RTE_MBUF_F_RX_L4_CKSUM_GOOD speaks of the innermost header that the port knows,
 * and some ports set it on all that they do not know: packet_type tells. For UDP it does not: a datagram may be a tunnel without a checksum.
 */
static inline void sp_mbuf_describe_checksum(const struct rte_mbuf *mbuf, sp_offload *offload) {
    uint32_t type = mbuf->packet_type, tunnel = type & RTE_PTYPE_TUNNEL_MASK;
    if ((mbuf->ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK) != RTE_MBUF_F_RX_L4_CKSUM_GOOD)
        return;
    if (likely(!tunnel && (type & RTE_PTYPE_L4_MASK) == RTE_PTYPE_L4_TCP)) {
        offload->checksum = SP_CHECKSUM_VERIFIED;
    } else if ((tunnel == RTE_PTYPE_TUNNEL_VXLAN || tunnel == RTE_PTYPE_TUNNEL_GENEVE) && (type & RTE_PTYPE_INNER_L4_MASK) == RTE_PTYPE_INNER_L4_TCP &&
               (mbuf->ol_flags & RTE_MBUF_F_RX_OUTER_L4_CKSUM_MASK) == RTE_MBUF_F_RX_OUTER_L4_CKSUM_GOOD) {
        offload->checksum = SP_CHECKSUM_VERIFIED;
        offload->checksum_level = 1;
    }
}

/* Makes a packet without bytes, of which a port says what it says of an mbuf. */
static inline void sp_mbuf_describe_metadata(const struct rte_mbuf *mbuf, sp_packet *packet) {
    memset(packet, 0, sizeof *packet);
    sp_mbuf_describe_checksum(mbuf, &packet->offload);
    if (mbuf->ol_flags & RTE_MBUF_F_RX_VLAN_STRIPPED) {
        packet->offload.vlan_protocol = 0x8100;
        packet->offload.vlan_control = mbuf->vlan_tci;
    }
}

/* Gives a packet the bytes of a chain; the ranges behind its first mbuf go to `rest`. Returns how many these are. */
static inline uint32_t sp_mbuf_describe_bytes(struct rte_mbuf *mbuf, sp_packet *packet, sp_iovec *rest) {
    struct rte_mbuf *next;
    packet->data = rte_pktmbuf_mtod(mbuf, void *);
    packet->length = mbuf->data_len;
    packet->token = mbuf;
    if (likely(mbuf->nb_segs == 1))
        return 0;
    packet->rest = rest;
    for (next = mbuf->next; next; next = next->next) {
        rest->iov_base = rte_pktmbuf_mtod(next, void *);
        rest++->iov_len = next->data_len;
        packet->rest_count++;
    }
    return packet->rest_count;
}

/* Makes a packet of a chain; the ranges behind its first mbuf go to `rest`. Returns how many these are. */
static inline uint32_t sp_mbuf_describe(struct rte_mbuf *mbuf, sp_packet *packet, sp_iovec *rest) {
    sp_mbuf_describe_metadata(mbuf, packet);
    return sp_mbuf_describe_bytes(mbuf, packet, rest);
}

/* Tells whether the headers of a packet that merged go beyond the first mbuf of its chain. */
static inline int sp_mbuf_splits_headers(const sp_output *output) {
    uint32_t index;
    for (index = 1; index < output->iov_count; index++)
        if (((struct rte_mbuf *)output->tokens[index])->data_len < output->header_length)
            return 1;
    return 0;
}

/* Lists the packets that merged, none of which has been changed. Returns how many these are. */
static inline uint32_t sp_mbuf_list(const sp_output *output, struct rte_mbuf **out) {
    uint32_t index, count = 0;
    for (index = 1; index < output->iov_count; index++) /* Each has one range, or several in a row. */
        if (!count || out[count - 1] != (struct rte_mbuf *)output->tokens[index])
            out[count++] = (struct rte_mbuf *)output->tokens[index];
    return count;
}

/* The chain of what merged: the first packet with the new header, and the others behind it without theirs. */
static inline struct rte_mbuf *sp_mbuf_chain(const sp_output *output) {
    struct rte_mbuf *first = (struct rte_mbuf *)output->token, *last = first, *mbuf;
    uint32_t index, header = output->header_length;
    void *const *tokens = output->tokens;
    uint16_t segments = first->nb_segs;
    memcpy(rte_pktmbuf_mtod(first, void *), output->iov[0].iov_base, header);
    for (index = 1; index < output->iov_count;) {
        uint32_t payload = (uint32_t)output->iov[index].iov_len, cut = header;
        mbuf = (struct rte_mbuf *)tokens[index++];
        if (mbuf == first) {
            cut = 0;
            payload += header;
        } else {
            last->next = mbuf;
            segments = (uint16_t)(segments + mbuf->nb_segs);
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
    return first;
}

/* Makes `to`, as it lies in its pool, refer to a range of `from`: a reference that the caller counts. */
static inline void sp_mbuf_refer(struct rte_mbuf *to, const struct rte_mbuf *from, uint32_t offset, uint32_t length) {
    to->priv_size = from->priv_size;
    to->ol_flags = RTE_MBUF_F_INDIRECT;
    to->buf_addr = from->buf_addr;
    to->buf_len = from->buf_len;
    rte_mbuf_iova_set(to, rte_mbuf_iova_get(from));
    to->data_off = (uint16_t)(from->data_off + offset);
    to->data_len = (uint16_t)length;
    to->pkt_len = length;
}

/* ---- Memory of a thread ---- */

/* Two batches: merged packets leave with the checksum of TCP for a port to complete, or complete. */
struct sp_gro_batches {
    sp_batch *asked, *complete;
    uint32_t flows;
};

struct sp_dpdk_memory {
    struct sp_gro_batches batches; /* of sp_gro_reassemble_burst() */
    sp_segmenter *segmenter;
    sp_packet packets[SP_GRO_JOIN];
    struct rte_mbuf *others[SP_GRO_JOIN];
    sp_output outputs[128];
    sp_iovec iov[SP_MAX_RANGES], rest[SP_MAX_RANGES];
    void *tokens[SP_MAX_RANGES];
    uint8_t headers[128 * SP_MAX_HEADER];
    void *places[SP_GSO_SEGMENTS];
    struct rte_mbuf *indirect[SP_GSO_SEGMENTS + SP_MAX_RANGES];
};

static __thread struct sp_dpdk_memory *sp_dpdk_memory_of_thread;

static inline void sp_gro_batches_free(struct sp_gro_batches *batches) {
    sp_batch_free(batches->asked);
    sp_batch_free(batches->complete);
    memset(batches, 0, sizeof *batches);
}

/* Makes batches that join so many flows at a time, unless they are there. Returns whether they are. */
static inline int sp_gro_batches_make(struct sp_gro_batches *batches, uint32_t flows) {
    sp_policy policy;
    if (likely(batches->flows == flows))
        return 1;
    sp_gro_batches_free(batches);
    memset(&policy, 0, sizeof policy);
    policy.size = sizeof policy;
    policy.mode = SP_MODE_GRO;
    policy.max_flows = flows;
    if (sp_batch_new(&policy, &batches->complete) != SP_OK)
        return 0;
    policy.flags = SP_POLICY_PARTIAL_CHECKSUMS;
    if (sp_batch_new(&policy, &batches->asked) != SP_OK) {
        sp_gro_batches_free(batches);
        return 0;
    }
    batches->flows = flows;
    return 1;
}

/* Frees what this file's functions have allocated for the calling thread. They allocate it again where they need it. */
static inline void sp_dpdk_thread_free(void) {
    struct sp_dpdk_memory *memory = sp_dpdk_memory_of_thread;
    if (!memory)
        return;
    sp_gro_batches_free(&memory->batches);
    sp_segmenter_free(memory->segmenter);
    rte_free(memory);
    sp_dpdk_memory_of_thread = NULL;
}

/* The calling thread's memory; NULL if there is none. */
static inline struct sp_dpdk_memory *sp_dpdk_thread_memory(void) {
    struct sp_dpdk_memory *memory = sp_dpdk_memory_of_thread;
    if (likely(memory != NULL))
        return memory;
    memory = (struct sp_dpdk_memory *)rte_zmalloc("superpacket", sizeof *memory, RTE_CACHE_LINE_SIZE);
    if (memory && sp_segmenter_new(&memory->segmenter) != SP_OK) {
        rte_free(memory);
        memory = NULL;
    }
    sp_dpdk_memory_of_thread = memory;
    return memory;
}

/* ---- GRO ---- */

/* Kinds of packets that are joined: the tables of a context. */
enum { SP_GRO_TCP4, SP_GRO_VXLAN_TCP4, SP_GRO_TCP6, SP_GRO_TABLES };

/* The bit of a table in gro_types. */
static inline uint64_t sp_gro_type(int table) {
    switch (table) {
    case SP_GRO_TCP4: return RTE_GRO_TCP_IPV4;
    case SP_GRO_VXLAN_TCP4: return RTE_GRO_IPV4_VXLAN_TCP_IPV4;
#ifdef RTE_GRO_TCP_IPV6
    case SP_GRO_TCP6: return RTE_GRO_TCP_IPV6;
#endif
    default: return 0;
    }
}

/* The table that takes packets with a packet_type, if it is one of these types; else SP_GRO_TABLES. */
static inline int sp_gro_table_of_type(uint32_t type, uint64_t types) {
    uint32_t l4 = type & RTE_PTYPE_L4_MASK, inner = type & RTE_PTYPE_INNER_L3_MASK;
    int table = SP_GRO_TABLES;
    if (!RTE_ETH_IS_TUNNEL_PKT(type)) {
        if (l4 == RTE_PTYPE_L4_TCP)
            table = RTE_ETH_IS_IPV4_HDR(type) ? SP_GRO_TCP4 : RTE_ETH_IS_IPV6_HDR(type) ? SP_GRO_TCP6 : SP_GRO_TABLES;
    } else if ((type & RTE_PTYPE_TUNNEL_MASK) == RTE_PTYPE_TUNNEL_VXLAN && RTE_ETH_IS_IPV4_HDR(type) && l4 == RTE_PTYPE_L4_UDP &&
               (type & RTE_PTYPE_INNER_L4_MASK) == RTE_PTYPE_INNER_L4_TCP &&
               (inner == RTE_PTYPE_INNER_L3_IPV4 || inner == RTE_PTYPE_INNER_L3_IPV4_EXT || inner == RTE_PTYPE_INNER_L3_IPV4_EXT_UNKNOWN)) {
        table = SP_GRO_VXLAN_TCP4;
    }
    return types & sp_gro_type(table) ? table : SP_GRO_TABLES;
}

/* Tells whether a packet of a table's kind can be joined. */
static inline int sp_gro_is_joinable(const struct rte_mbuf *mbuf, int table) {
    uint32_t headers;
    if (likely(sp_mbuf_is_plain(mbuf)))
        return 1;
    headers = (uint32_t)(mbuf->l2_len + mbuf->l3_len + mbuf->l4_len);
    headers += table == SP_GRO_VXLAN_TCP4 ? (uint32_t)(mbuf->outer_l2_len + mbuf->outer_l3_len) : 0;
    return mbuf->l4_len >= 20 && mbuf->data_len >= headers && sp_mbuf_is_joinable(mbuf);
}

/* Tells whether a port is asked to compute the checksum of a packet that is in no tunnel. */
static inline int sp_gro_is_asked(const struct rte_mbuf *mbuf) {
    return ((mbuf->ol_flags & RTE_MBUF_F_TX_L4_MASK) == RTE_MBUF_F_TX_TCP_CKSUM || mbuf->ol_flags & RTE_MBUF_F_TX_TCP_SEG) &&
           !RTE_ETH_IS_TUNNEL_PKT(mbuf->packet_type);
}

/*
 * Joins packets that memory->packets describes and `mbufs` lists, into `out`, which may be `mbufs`. `chains`: some have several mbufs.
 * Returns how many are there then.
 */
static inline uint32_t sp_gro_join_described(sp_batch *batch, struct sp_dpdk_memory *memory, int chains, struct rte_mbuf **mbufs, uint32_t count,
                                             struct rte_mbuf **out) {
    uint32_t made = 0;
    sp_space space;
    sp_status status;
    size_t index;
    memset(&space, 0, sizeof space);
    space.size = sizeof space;
    space.outputs = memory->outputs;
    space.outputs_max = RTE_DIM(memory->outputs);
    space.iov = memory->iov;
    space.tokens = memory->tokens;
    space.iov_max = SP_MAX_RANGES;
    space.headers = memory->headers;
    space.headers_max = sizeof memory->headers;
    status = sp_batch_aggregate(batch, memory->packets, count, &space);
    if (unlikely(status < 0)) { /* Nothing has happened: the packets go on as they came. */
        memmove(out, mbufs, count * sizeof *out);
        return count;
    }
    for (;; status = sp_batch_continue(batch, memory->packets, count, &space)) {
        for (index = 0; index < space.outputs_used; index++) {
            const sp_output *output = &memory->outputs[index];
            struct rte_mbuf *mbuf = (struct rte_mbuf *)output->token;
            if (unlikely(chains && output->header_length && sp_mbuf_splits_headers(output))) {
                made += sp_mbuf_list(output, out + made);
                continue;
            }
            if (output->header_length) {
                mbuf = sp_mbuf_chain(output);
                mbuf->tso_segsz = output->offload.gso_size;
            }
            out[made++] = mbuf;
        }
        if (status != SP_FULL)
            return made;
    }
}

/* Flags on which depends how a packet is described and joined. */
#define SP_GRO_FLAGS                                                                                                                                 \
    (RTE_MBUF_F_RX_L4_CKSUM_MASK | RTE_MBUF_F_RX_OUTER_L4_CKSUM_MASK | RTE_MBUF_F_RX_VLAN_STRIPPED | RTE_MBUF_F_TX_L4_MASK | RTE_MBUF_F_TX_TCP_SEG)

/* Joins packets of any number, in place. Returns how many are left. */
static inline uint32_t sp_gro_join(struct sp_gro_batches *batches, struct sp_dpdk_memory *memory, struct rte_mbuf **mbufs, uint32_t count) {
    uint32_t next = 0, left = 0;
    while (next < count) {
        uint32_t most = RTE_MIN(count - next, (uint32_t)SP_GRO_JOIN), type = mbufs[next]->packet_type, part;
        /* Most packets are like the first: of these only the bytes are described. One with a VLAN tag has that of its own. */
        uint64_t flags = mbufs[next]->ol_flags & SP_GRO_FLAGS & ~(uint64_t)RTE_MBUF_F_RX_VLAN_STRIPPED;
        int asked = sp_gro_is_asked(mbufs[next]);
        sp_iovec *rest = memory->rest;
        sp_packet first;
        sp_mbuf_describe_metadata(mbufs[next], &first);
        if (asked)
            first.offload.checksum = SP_CHECKSUM_VERIFIED;
        for (part = 0; part < most; part++) {
            struct rte_mbuf *mbuf = mbufs[next + part];
            sp_packet *packet = &memory->packets[part];
            if (unlikely(mbuf->nb_segs > 1 && rest + mbuf->nb_segs > memory->rest + SP_MAX_RANGES))
                break;
            if (likely(mbuf->packet_type == type && (mbuf->ol_flags & SP_GRO_FLAGS) == flags)) {
                *packet = first;
            } else {
                if (sp_gro_is_asked(mbuf) != asked)
                    break;
                sp_mbuf_describe_metadata(mbuf, packet);
                if (asked)
                    packet->offload.checksum = SP_CHECKSUM_VERIFIED;
            }
            rest += sp_mbuf_describe_bytes(mbuf, packet, rest);
        }
        left += sp_gro_join_described(asked ? batches->asked : batches->complete, memory, rest != memory->rest, mbufs + next, part, mbufs + left);
        next += part;
    }
    return left;
}

/* How many packets tables of these limits have room for. */
static inline uint32_t sp_gro_items(const struct rte_gro_param *param) {
    return RTE_MIN((uint32_t)param->max_flow_num * param->max_item_per_flow, 1U << 20);
}

/*
 * Joins the packets of a burst, in place, and returns how many there are then: merged ones, and behind them what is of no type of `param`
 * or cannot be joined. No more than max_flow_num * max_item_per_flow flows, and RTE_GRO_MAX_BURST_ITEM_NUM, are joined at a time.
 */
static inline uint16_t sp_gro_reassemble_burst(struct rte_mbuf **pkts, uint16_t nb_pkts, const struct rte_gro_param *param) {
    uint32_t flows = RTE_MIN(sp_gro_items(param), (uint32_t)RTE_GRO_MAX_BURST_ITEM_NUM), next = 0, left = 0;
    uint32_t type = RTE_PTYPE_UNKNOWN;
    int table = SP_GRO_TABLES;
    struct sp_dpdk_memory *memory = sp_dpdk_thread_memory();
    if (!flows || !memory || !sp_gro_batches_make(&memory->batches, flows))
        return nb_pkts;
    while (next < nb_pkts) {
        uint32_t end = RTE_MIN(next + SP_GRO_JOIN, (uint32_t)nb_pkts), others = 0, first = left;
        for (; next < end; next++) {
            struct rte_mbuf *mbuf = pkts[next];
            if (unlikely(mbuf->packet_type != type)) {
                type = mbuf->packet_type;
                table = sp_gro_table_of_type(type, param->gro_types);
            }
            if (likely(table != SP_GRO_TABLES && sp_gro_is_joinable(mbuf, table)))
                pkts[left++] = mbuf;
            else
                memory->others[others++] = mbuf;
        }
        left = first + sp_gro_join(&memory->batches, memory, pkts + first, left - first);
        memcpy(pkts + left, memory->others, others * sizeof *pkts);
        left += others;
    }
    return (uint16_t)left;
}

/* Packets that are held, in their order: `joined` that are as they leave, and then others as they came. */
struct sp_gro_table {
    struct rte_mbuf **mbufs; /* room for twice `max` */
    uint32_t max, first, count, joined;
    uint64_t since; /* cycles: when the oldest of the others came */
};

struct sp_gro_ctx {
    uint64_t types;
    struct sp_gro_batches batches;
    struct sp_gro_table tables[SP_GRO_TABLES];
};

/* Frees a context of sp_gro_ctx_create(), but not packets that it holds: flush these before. */
static inline void sp_gro_ctx_destroy(void *ctx) {
    struct sp_gro_ctx *context = (struct sp_gro_ctx *)ctx;
    int table;
    if (!context)
        return;
    for (table = 0; table < SP_GRO_TABLES; table++)
        rte_free(context->tables[table].mbufs);
    sp_gro_batches_free(&context->batches);
    rte_free(context);
}

/*
 * Makes a context that holds packets for sp_gro_reassemble(): max_flow_num * max_item_per_flow of each type. Returns NULL if this is 0 or
 * there is no memory.
 */
static inline void *sp_gro_ctx_create(const struct rte_gro_param *param) {
    struct sp_gro_ctx *context = (struct sp_gro_ctx *)rte_zmalloc_socket("superpacket", sizeof *context, RTE_CACHE_LINE_SIZE, param->socket_id);
    uint32_t items = sp_gro_items(param);
    int table;
    if (!context)
        return NULL;
    context->types = param->gro_types;
    for (table = 0; table < SP_GRO_TABLES; table++) {
        struct sp_gro_table *made = &context->tables[table];
        if (!(param->gro_types & sp_gro_type(table)))
            continue;
        made->max = items;
        if (items)
            made->mbufs = (struct rte_mbuf **)rte_malloc_socket("superpacket", 2 * (size_t)items * sizeof *made->mbufs, 0, param->socket_id);
        if (!made->mbufs || !sp_gro_batches_make(&context->batches, RTE_MIN(items, (uint32_t)SP_GRO_JOIN))) {
            sp_gro_ctx_destroy(context);
            return NULL;
        }
    }
    return context;
}

/* Joins what a table holds as it came. */
static inline void sp_gro_settle(struct sp_gro_ctx *context, struct sp_gro_table *table, struct sp_dpdk_memory *memory) {
    table->count = table->joined += sp_gro_join(&context->batches, memory, table->mbufs + table->first + table->joined, table->count - table->joined);
}

/* Takes the oldest packets out of a table, up to `max` that are as they leave. Returns how many these are. */
static inline uint32_t sp_gro_take(struct sp_gro_table *table, struct rte_mbuf **out, uint32_t max) {
    uint32_t taken = RTE_MIN(table->joined, max);
    memcpy(out, table->mbufs + table->first, taken * sizeof *out);
    table->first += taken;
    table->joined -= taken;
    table->count -= taken;
    if (!table->count)
        table->first = 0;
    return taken;
}

/*
 * Takes packets into a context, and returns how many are in `pkts` then: those of no type of the context, those that cannot be joined, and
 * where the context is full, merged packets that it has held longest. They are the caller's again.
 */
static inline uint16_t sp_gro_reassemble(struct rte_mbuf **pkts, uint16_t nb_pkts, void *ctx) {
    struct sp_gro_ctx *context = (struct sp_gro_ctx *)ctx;
    struct sp_dpdk_memory *memory = sp_dpdk_thread_memory();
    uint64_t now = rte_rdtsc();
    uint16_t next, left = 0;
    if (!memory)
        return nb_pkts;
    for (next = 0; next < nb_pkts; next++) {
        struct rte_mbuf *mbuf = pkts[next];
        int type = sp_gro_table_of_type(mbuf->packet_type, context->types);
        struct sp_gro_table *table = &context->tables[type];
        if (unlikely(type == SP_GRO_TABLES || !sp_gro_is_joinable(mbuf, type))) {
            pkts[left++] = mbuf;
            continue;
        }
        if (unlikely(table->count == table->max || table->count - table->joined == SP_GRO_JOIN)) {
            sp_gro_settle(context, table, memory);
            if (table->count == table->max) /* One goes for one that comes. */
                left = (uint16_t)(left + sp_gro_take(table, pkts + left, 1));
        }
        if (unlikely(table->first + table->count == 2 * table->max)) {
            memmove(table->mbufs, table->mbufs + table->first, table->count * sizeof mbuf);
            table->first = 0;
        }
        if (table->count == table->joined)
            table->since = now;
        table->mbufs[table->first + table->count++] = mbuf;
    }
    return left;
}

/*
 * Puts out packets of a context, in their order, `max_nb_out` at most, and returns how many. All that it holds of a type leave once the
 * oldest has been there for `timeout_cycles` (of rte_rdtsc()).
 */
static inline uint16_t sp_gro_timeout_flush(void *ctx, uint64_t timeout_cycles, uint64_t gro_types, struct rte_mbuf **out, uint16_t max_nb_out) {
    struct sp_gro_ctx *context = (struct sp_gro_ctx *)ctx;
    struct sp_dpdk_memory *memory = sp_dpdk_thread_memory();
    uint64_t now = rte_rdtsc();
    uint32_t made = 0;
    int type;
    for (type = 0; memory && type < SP_GRO_TABLES; type++) {
        struct sp_gro_table *table = &context->tables[type];
        if (!(gro_types & sp_gro_type(type)) || !table->count)
            continue;
        if (table->count > table->joined && now - table->since >= timeout_cycles)
            sp_gro_settle(context, table, memory);
        made += sp_gro_take(table, out + made, max_nb_out - made);
    }
    return (uint16_t)made;
}

/* How many packets a context holds: no more leave it. */
static inline uint64_t sp_gro_get_pkt_count(void *ctx) {
    struct sp_gro_ctx *context = (struct sp_gro_ctx *)ctx;
    uint64_t count = 0;
    int table;
    for (table = 0; table < SP_GRO_TABLES; table++)
        count += context->tables[table].count;
    return count;
}

/* ---- GSO ---- */

/* How a packet is cut: SP_GSO_TCP4, or another SP_GSO constant; SP_GSO_NONE if this was not asked for, or cannot be done. */
static inline uint8_t sp_gso_kind(uint64_t flags, uint32_t types) {
    uint64_t tunnel = flags & RTE_MBUF_F_TX_TUNNEL_MASK, needed;
    if (flags & RTE_MBUF_F_TX_UDP_SEG)
        return !tunnel && flags & RTE_MBUF_F_TX_IPV4 && types & RTE_ETH_TX_OFFLOAD_UDP_TSO ? SP_GSO_UDP_FRAGMENTS : SP_GSO_NONE;
    needed = !tunnel                                 ? RTE_ETH_TX_OFFLOAD_TCP_TSO
             : tunnel == RTE_MBUF_F_TX_TUNNEL_VXLAN  ? RTE_ETH_TX_OFFLOAD_VXLAN_TNL_TSO
             : tunnel == RTE_MBUF_F_TX_TUNNEL_GRE    ? RTE_ETH_TX_OFFLOAD_GRE_TNL_TSO
             : tunnel == RTE_MBUF_F_TX_TUNNEL_GENEVE ? RTE_ETH_TX_OFFLOAD_GENEVE_TNL_TSO
             : tunnel == RTE_MBUF_F_TX_TUNNEL_IPIP   ? RTE_ETH_TX_OFFLOAD_IPIP_TNL_TSO
                                                     : 0;
    if (!(flags & RTE_MBUF_F_TX_TCP_SEG) || !(types & needed))
        return SP_GSO_NONE;
    return flags & RTE_MBUF_F_TX_IPV4 ? SP_GSO_TCP4 : flags & RTE_MBUF_F_TX_IPV6 ? SP_GSO_TCP6 : SP_GSO_NONE;
}

/* Has the library write the headers of the segments, and tells how they are cut. */
static inline sp_status sp_gso_headers(struct sp_dpdk_memory *memory, const sp_packet *packet, uint32_t checksum, uint32_t count, sp_headers *cut) {
    sp_segment_options options;
    sp_space space;
    sp_status status;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.checksum = checksum;
    if (packet->offload.gso_type != SP_GSO_UDP_FRAGMENTS)
        return sp_segment_headers(memory->segmenter, packet, &options, memory->places, count, cut);
    if (count > RTE_DIM(memory->outputs))
        return SP_ERROR_SPACE;
    memset(&space, 0, sizeof space);
    space.size = sizeof space;
    space.outputs = memory->outputs;
    space.outputs_max = count;
    space.iov = memory->iov;
    space.iov_max = SP_MAX_RANGES;
    space.header_places = memory->places;
    status = sp_segment(memory->segmenter, packet, &options, &space);
    if (status != SP_OK)
        return status;
    cut->plan.segments = space.outputs_used;
    cut->plan.segment_length = memory->outputs[0].length;
    cut->plan.last_length = memory->outputs[space.outputs_used - 1].length;
    cut->payload_start = memory->outputs[0].header_length; /* with that of UDP */
    cut->header_length = memory->outputs[space.outputs_used - 1].header_length;
    return SP_OK;
}

/* How many mbufs the payload of segments needs that refer to the mbufs of a chain; the others move. */
static inline uint32_t sp_gso_references(const struct rte_mbuf *first, const sp_headers *cut) {
    uint32_t at = (uint32_t)cut->payload_start, here, left, references = 0;
    const struct rte_mbuf *from = first;
    size_t index;
    for (; from && at >= from->data_len; from = from->next)
        at -= from->data_len;
    for (index = 0; index < cut->plan.segments; index++) {
        left = (uint32_t)((index + 1 < cut->plan.segments ? cut->plan.segment_length : cut->plan.last_length) -
                          (index ? cut->header_length : cut->payload_start));
        for (; left; left -= here, at += here) {
            while (at == from->data_len) {
                from = from->next;
                at = 0;
            }
            here = RTE_MIN(left, from->data_len - at);
            references += here != from->data_len || from == first || rte_mbuf_refcnt_read(from) != 1;
        }
    }
    return references;
}

/* Gives back mbufs for headers, and for references. */
static inline void sp_gso_put_back(struct sp_dpdk_memory *memory, const struct rte_gso_ctx *context, struct rte_mbuf **direct, uint32_t count,
                                   uint32_t references) {
    if (count)
        rte_mempool_put_bulk(context->direct_pool, (void **)direct, count);
    if (references)
        rte_mempool_put_bulk(context->indirect_pool, (void **)memory->indirect, references);
}

/*
 * Takes mbufs for so many headers, and for so many references, as they lie in their pools: they are made segments later. What will be
 * written is fetched into the cache all at once. Returns 0, or -ENOMEM with none taken.
 */
static inline int sp_gso_take(struct sp_dpdk_memory *memory, const struct rte_gso_ctx *context, struct rte_mbuf **direct, uint32_t count,
                              uint32_t references) {
    uint32_t index, header;
    if (count && rte_mempool_get_bulk(context->direct_pool, (void **)direct, count))
        return -ENOMEM;
    if (references && rte_mempool_get_bulk(context->indirect_pool, (void **)memory->indirect, references)) {
        sp_gso_put_back(memory, context, direct, count, 0);
        return -ENOMEM;
    }
    header = count ? (uint32_t)sizeof **direct + rte_pktmbuf_priv_size(context->direct_pool) + RTE_PKTMBUF_HEADROOM : 0;
    for (index = 0; index < count; index++) {
        rte_prefetch0(direct[index]);
        rte_prefetch0(RTE_PTR_ADD(direct[index], RTE_CACHE_LINE_SIZE));
        rte_prefetch0(RTE_PTR_ADD(direct[index], header));
    }
    for (index = 0; index < references; index++) {
        rte_prefetch0(memory->indirect[index]);
        rte_prefetch0(RTE_PTR_ADD(memory->indirect[index], RTE_CACHE_LINE_SIZE));
    }
    for (index = 0; index < count; index++) {
        rte_pktmbuf_reset_headroom(direct[index]);
        memory->places[index] = rte_pktmbuf_mtod(direct[index], void *);
    }
    return 0;
}

/* Puts the payload of a packet behind the headers of its segments. Mbufs whose bytes all go into one of them move there. */
static inline void sp_gso_payload(struct rte_mbuf *first, const sp_headers *cut, struct rte_mbuf **out, struct rte_mbuf **indirect) {
    struct rte_mbuf *from = first, *kept = first;
    uint32_t at = (uint32_t)cut->payload_start, here, left, moved = 0, moved_bytes = 0;
    int16_t references = 0;
    size_t index;
    for (; at >= from->data_len; kept = from, from = from->next)
        at -= from->data_len;
    for (index = 0; index < cut->plan.segments; index++) {
        struct rte_mbuf *segment = out[index], *last = segment;
        left = segment->pkt_len - segment->data_len;
        for (; left; left -= here, last = last->next) {
            while (at == from->data_len) {
                if (references)
                    rte_mbuf_refcnt_update(from, references);
                kept = from;
                from = from->next;
                at = 0;
                references = 0;
            }
            here = RTE_MIN(left, from->data_len - at);
            if (here == from->data_len && from != first && rte_mbuf_refcnt_read(from) == 1) {
                last->next = from;
                kept->next = from = from->next;
                moved++;
                moved_bytes += here;
            } else {
                if (likely(!(from->ol_flags & (RTE_MBUF_F_INDIRECT | RTE_MBUF_F_EXTERNAL)))) {
                    sp_mbuf_refer(*indirect, from, at, here);
                    references++;
                } else {
                    rte_pktmbuf_attach(*indirect, from);
                    (*indirect)->data_off = (uint16_t)(from->data_off + at);
                    (*indirect)->data_len = (uint16_t)here;
                    (*indirect)->pkt_len = here;
                }
                last->next = *indirect++;
                at += here;
            }
            segment->nb_segs++;
        }
        last->next = NULL;
    }
    if (references)
        rte_mbuf_refcnt_update(from, references);
    first->nb_segs = (uint16_t)(first->nb_segs - moved);
    first->pkt_len -= moved_bytes;
}

/*
 * Cuts a packet into segments of up to gso_size bytes each, with headers in mbufs of direct_pool. Returns how many are in `pkts_out`: free
 * the packet then. 0: it needs no cutting, or is of no type of the context. -EINVAL: a wrong argument, too little room, or a packet that
 * contradicts its mbuf. -ENOMEM: a pool is empty. In these cases the packet is unchanged. Checksums of segments are complete, but for a port
 * to compute where ol_flags has RTE_MBUF_F_TX_TCP_CKSUM.
 */
static inline int sp_gso_segment(struct rte_mbuf *pkt, const struct rte_gso_ctx *gso_ctx, struct rte_mbuf **pkts_out, uint16_t nb_pkts_out) {
    const uint32_t tcp = RTE_ETH_TX_OFFLOAD_TCP_TSO | RTE_ETH_TX_OFFLOAD_VXLAN_TNL_TSO | RTE_ETH_TX_OFFLOAD_GRE_TNL_TSO |
                         RTE_ETH_TX_OFFLOAD_GENEVE_TNL_TSO | RTE_ETH_TX_OFFLOAD_IPIP_TNL_TSO;
    const uint64_t requests = RTE_MBUF_F_TX_TCP_SEG | RTE_MBUF_F_TX_UDP_SEG;
    struct sp_dpdk_memory *memory;
    uint32_t headers, unit, most, made, index, references, checksum;
    uint64_t flags;
    uint8_t kind;
    sp_packet packet;
    sp_headers cut;
    sp_plan expected;
    sp_status status;
    if (!pkt || !gso_ctx || !pkts_out || !nb_pkts_out ||
        ((!(gso_ctx->gso_types & RTE_ETH_TX_OFFLOAD_UDP_TSO) || gso_ctx->gso_size < RTE_GSO_UDP_SEG_SIZE_MIN) &&
         (!(gso_ctx->gso_types & tcp) || gso_ctx->gso_size < RTE_GSO_SEG_SIZE_MIN)))
        return -EINVAL;
    if (gso_ctx->gso_size >= pkt->pkt_len) {
        pkt->ol_flags &= ~requests;
        return 0;
    }
    kind = sp_gso_kind(pkt->ol_flags, gso_ctx->gso_types);
    if (kind == SP_GSO_NONE)
        return 0;
    headers = (uint32_t)(pkt->l2_len + pkt->l3_len);
    headers += kind == SP_GSO_UDP_FRAGMENTS ? 0 : (uint32_t)pkt->l4_len;
    headers += pkt->ol_flags & RTE_MBUF_F_TX_TUNNEL_MASK ? (uint32_t)(pkt->outer_l2_len + pkt->outer_l3_len) : 0;
    if (headers >= pkt->pkt_len) /* no payload */
        return 0;
    if (headers >= gso_ctx->gso_size)
        return -EINVAL;
    unit = gso_ctx->gso_size - headers;
    if (kind == SP_GSO_UDP_FRAGMENTS)
        unit &= ~7U;
    most = unit ? (pkt->pkt_len - headers + unit - 1) / unit : 0;
    if (!most || most > nb_pkts_out || most > SP_GSO_SEGMENTS || pkt->nb_segs > SP_MAX_RANGES ||
        rte_pktmbuf_data_room_size(gso_ctx->direct_pool) < RTE_PKTMBUF_HEADROOM + SP_MAX_HEADER)
        return -EINVAL;
    memory = sp_dpdk_thread_memory();
    memset(&cut, 0, sizeof cut);
    cut.plan.segments = most;
    cut.plan.segment_length = headers + unit;
    cut.plan.last_length = pkt->pkt_len - (most - 1) * unit;
    cut.header_length = headers;
    cut.payload_start = headers + (kind == SP_GSO_UDP_FRAGMENTS ? (uint32_t)sizeof(struct rte_udp_hdr) : 0);
    references = sp_gso_references(pkt, &cut);
    if (!memory || sp_gso_take(memory, gso_ctx, pkts_out, most, references))
        return -ENOMEM;
    sp_mbuf_describe(pkt, &packet, memory->rest);
    memset(&packet.offload, 0, sizeof packet.offload);
    packet.offload.gso_type = kind;
    packet.offload.gso_size = (uint16_t)unit;
    packet.offload.flags = gso_ctx->flag == RTE_GSO_FLAG_IPID_FIXED ? SP_OFFLOAD_FIXED_ID : 0;
    checksum = (pkt->ol_flags & RTE_MBUF_F_TX_L4_MASK) == RTE_MBUF_F_TX_TCP_CKSUM ? SP_OUTPUT_PARTIAL : SP_OUTPUT_FULL;
    expected = cut.plan;
    status = sp_gso_headers(memory, &packet, checksum, most, &cut);
    if (unlikely(status != SP_OK || cut.header_length != headers)) {
        sp_gso_put_back(memory, gso_ctx, pkts_out, most, references);
        return status == SP_ERROR_HEADERS || (status == SP_OK && !cut.header_length) ? 0 : -EINVAL;
    }
    made = (uint32_t)cut.plan.segments;
    if (unlikely(made != expected.segments || cut.plan.last_length != expected.last_length)) { /* The packet has padding. */
        sp_gso_put_back(memory, gso_ctx, pkts_out + made, most - made, references);
        references = sp_gso_references(pkt, &cut);
        if (sp_gso_take(memory, gso_ctx, NULL, 0, references)) {
            sp_gso_put_back(memory, gso_ctx, pkts_out, made, 0);
            return -ENOMEM;
        }
    }
    flags = pkt->ol_flags &= ~requests;
    for (index = 0; index < made; index++) {
        struct rte_mbuf *segment = pkts_out[index];
        segment->data_len = (uint16_t)(index ? cut.header_length : cut.payload_start);
        segment->pkt_len = (uint32_t)(index + 1 < made ? cut.plan.segment_length : cut.plan.last_length);
        segment->port = pkt->port;
        segment->ol_flags = (segment->ol_flags & RTE_MBUF_F_EXTERNAL) | (flags & ~(RTE_MBUF_F_EXTERNAL | RTE_MBUF_F_INDIRECT));
        segment->packet_type = pkt->packet_type;
        segment->vlan_tci = pkt->vlan_tci;
        segment->tx_offload = pkt->tx_offload;
    }
    sp_gso_payload(pkt, &cut, pkts_out, memory->indirect);
    return (int)made;
}

#ifdef SP_REPLACE_RTE
#define rte_gro_ctx_create sp_gro_ctx_create
#define rte_gro_ctx_destroy sp_gro_ctx_destroy
#define rte_gro_get_pkt_count sp_gro_get_pkt_count
#define rte_gro_reassemble sp_gro_reassemble
#define rte_gro_reassemble_burst sp_gro_reassemble_burst
#define rte_gro_timeout_flush sp_gro_timeout_flush
#define rte_gso_segment sp_gso_segment
#endif

#endif

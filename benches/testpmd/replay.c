/*
 * A port for testpmd, as a plug-in of EAL (-d): like a network card, it receives the packets of TCP flows without end, and takes what is sent
 * and frees it later, without copying a payload. After so many packets it prints what CPU time the forwarding thread has used, and ends the
 * program. --vdev=net_replay0,packets=N,flows=N,train=N,burst=N,segment=N,parts=N
 *
 *   packets   how many are received in the time that is measured
 *   flows     of which each has `train` packets in a row
 *   segment   bytes of payload of a packet
 *   parts     bytes of an mbuf of a packet behind its first, which has the headers too; 0: all in one mbuf
 *
 * Mbufs wait in a ring with the headers that the card has written to them, and again in one after they were sent, as those of a card do.
 */
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <bus_vdev_driver.h>
#include <ethdev_driver.h>
#include <ethdev_vdev.h>
#include <rte_ip.h>
#include <rte_kvargs.h>
#include <rte_malloc.h>
#include <rte_tcp.h>

enum { MOST = 4096, HEADERS = 14 + 20 + 32 };

struct flow {
    uint32_t sequence;
    uint16_t identification;
};

struct replay {
    struct rte_eth_dev_data *data;
    struct rte_mempool *pool;
    uint64_t packets, flows, train, segment, parts;
    uint64_t given, received, sent, sent_bytes, next;
    struct rte_mbuf *ready[MOST], *waiting[MOST];
    uint16_t ready_count, waiting_count, ready_at, waiting_at;
    struct flow *flow;
    double began;
    int over;
};

static double used(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/* What a card writes: the headers of the next packet, and where it lies. NULL without mbufs. */
static struct rte_mbuf *receive(struct replay *port) {
    uint64_t number = port->next++ / port->train % port->flows;
    uint32_t length = HEADERS + (uint32_t)port->segment, left = length, part = port->parts ? HEADERS + (uint32_t)port->parts : length;
    struct flow *flow = &port->flow[number];
    struct rte_mbuf *first = rte_mbuf_raw_alloc(port->pool), *last = first;
    struct rte_ether_hdr *ethernet;
    struct rte_ipv4_hdr *ip;
    struct rte_tcp_hdr *tcp;
    if (!first)
        return NULL;
    first->data_off = RTE_PKTMBUF_HEADROOM;
    first->pkt_len = length;
    first->nb_segs = 1;
    first->port = port->data->port_id;
    first->tx_offload = 0;
    first->vlan_tci = 0;
    first->ol_flags = RTE_MBUF_F_RX_IP_CKSUM_GOOD | RTE_MBUF_F_RX_L4_CKSUM_GOOD;
    first->packet_type = RTE_PTYPE_L2_ETHER | RTE_PTYPE_L3_IPV4 | RTE_PTYPE_L4_TCP;
    for (;; part = (uint32_t)port->parts) {
        last->data_len = (uint16_t)RTE_MIN(part, left);
        left -= last->data_len;
        if (!left)
            break;
        last->next = rte_mbuf_raw_alloc(port->pool);
        if (!last->next) {
            rte_pktmbuf_free(first);
            return NULL;
        }
        last = last->next;
        last->data_off = RTE_PKTMBUF_HEADROOM;
        last->ol_flags = 0;
        first->nb_segs++;
    }
    ethernet = rte_pktmbuf_mtod(first, struct rte_ether_hdr *);
    memcpy(ethernet, "\2\0\0\0\0\2\2\0\0\0\0\1\10\0", 14);
    ip = (struct rte_ipv4_hdr *)(ethernet + 1);
    *ip = (struct rte_ipv4_hdr){.version_ihl = 0x45,
                                .total_length = rte_cpu_to_be_16((uint16_t)(length - 14)),
                                .packet_id = rte_cpu_to_be_16(flow->identification++),
                                .fragment_offset = rte_cpu_to_be_16(RTE_IPV4_HDR_DF_FLAG),
                                .time_to_live = 64,
                                .next_proto_id = 6,
                                .src_addr = rte_cpu_to_be_32(0x0a000001 + (uint32_t)number),
                                .dst_addr = rte_cpu_to_be_32(0x0a010001)};
    ip->hdr_checksum = rte_ipv4_cksum(ip);
    tcp = (struct rte_tcp_hdr *)(ip + 1);
    *tcp = (struct rte_tcp_hdr){.src_port = rte_cpu_to_be_16((uint16_t)(10000 + number)),
                                .dst_port = rte_cpu_to_be_16(443),
                                .sent_seq = rte_cpu_to_be_32(flow->sequence),
                                .recv_ack = rte_cpu_to_be_32(1),
                                .data_off = 0x80,
                                .tcp_flags = RTE_TCP_ACK_FLAG,
                                .rx_win = rte_cpu_to_be_16(500)};
    memcpy(tcp + 1, "\1\1\10\12\0\0\3\350\0\0\7\320", 12);
    flow->sequence += (uint32_t)port->segment;
    return first;
}

static uint16_t rx_burst(void *queue, struct rte_mbuf **mbufs, uint16_t count) {
    struct replay *port = queue;
    uint16_t made;
    if (port->over || rte_lcore_id() == rte_get_main_lcore()) /* testpmd empties its ports before it forwards. */
        return 0;
    if (port->received >= port->packets / 4 && port->began == 0) {
        port->began = used();
        port->given = port->received;
    }
    if (port->began != 0 && port->received - port->given >= port->packets) {
        double time = used() - port->began;
        printf("replay: %.2f ns a packet; out: %.3f packets, %.0f bytes for each\n", time / (double)(port->received - port->given),
               (double)port->sent / (double)port->received, (double)port->sent_bytes / (double)port->received);
        fflush(stdout);
        port->over = 1;
        kill(getpid(), SIGTERM);
        return 0;
    }
    for (made = 0; made < count; made++) {
        struct rte_mbuf *next = receive(port);
        if (!next)
            break;
        mbufs[made] = port->ready[port->ready_at];
        port->ready[port->ready_at] = next;
        port->ready_at = (uint16_t)((port->ready_at + 1) % port->ready_count);
    }
    port->received += made;
    return made;
}

static uint16_t tx_burst(void *queue, struct rte_mbuf **mbufs, uint16_t count) {
    struct replay *port = queue;
    for (uint16_t index = 0; index < count; index++) {
        struct rte_mbuf **place = &port->waiting[port->waiting_at];
        rte_pktmbuf_free(*place);
        *place = mbufs[index];
        port->sent_bytes += mbufs[index]->pkt_len;
        port->waiting_at = (uint16_t)((port->waiting_at + 1) % port->waiting_count);
    }
    port->sent += count;
    return count;
}

static int configure(struct rte_eth_dev *dev) {
    (void)dev;
    return 0;
}

static int start(struct rte_eth_dev *dev) {
    dev->data->dev_link.link_status = RTE_ETH_LINK_UP;
    return 0;
}

static int stop(struct rte_eth_dev *dev) {
    dev->data->dev_link.link_status = RTE_ETH_LINK_DOWN;
    return 0;
}

static int info(struct rte_eth_dev *dev, struct rte_eth_dev_info *info) {
    (void)dev;
    info->max_mac_addrs = 1;
    info->max_rx_pktlen = UINT32_MAX;
    info->max_rx_queues = info->max_tx_queues = 1;
    info->rx_offload_capa = RTE_ETH_RX_OFFLOAD_CHECKSUM | RTE_ETH_RX_OFFLOAD_SCATTER;
    info->tx_offload_capa = RTE_ETH_TX_OFFLOAD_MULTI_SEGS | RTE_ETH_TX_OFFLOAD_IPV4_CKSUM | RTE_ETH_TX_OFFLOAD_TCP_CKSUM | RTE_ETH_TX_OFFLOAD_UDP_CKSUM;
    return 0;
}

static int rx_setup(struct rte_eth_dev *dev, uint16_t queue, uint16_t count, unsigned int socket, const struct rte_eth_rxconf *conf, struct rte_mempool *pool) {
    struct replay *port = dev->data->dev_private;
    (void)socket;
    (void)conf;
    port->pool = pool;
    while (port->ready_count < RTE_MIN(count, MOST) && (port->ready[port->ready_count] = receive(port)))
        port->ready_count++;
    dev->data->rx_queues[queue] = port;
    return port->ready_count ? 0 : -ENOMEM;
}

static int tx_setup(struct rte_eth_dev *dev, uint16_t queue, uint16_t count, unsigned int socket, const struct rte_eth_txconf *conf) {
    struct replay *port = dev->data->dev_private;
    (void)socket;
    (void)conf;
    port->waiting_count = RTE_MIN(count, MOST);
    dev->data->tx_queues[queue] = port;
    return 0;
}

static int link_update(struct rte_eth_dev *dev, int wait) {
    (void)dev;
    (void)wait;
    return 0;
}

static int stats(struct rte_eth_dev *dev, struct rte_eth_stats *stats) {
    struct replay *port = dev->data->dev_private;
    stats->ipackets = port->received;
    stats->opackets = port->sent;
    return 0;
}

static int close_port(struct rte_eth_dev *dev) {
    dev->data->mac_addrs = NULL; /* which was not allocated */
    return 0;
}

static const struct eth_dev_ops operations = {.dev_configure = configure,
                                              .dev_start = start,
                                              .dev_stop = stop,
                                              .dev_close = close_port,
                                              .dev_infos_get = info,
                                              .rx_queue_setup = rx_setup,
                                              .tx_queue_setup = tx_setup,
                                              .link_update = link_update,
                                              .stats_get = stats};

static int number(const char *key, const char *text, void *value) {
    (void)key;
    *(uint64_t *)value = strtoull(text, NULL, 10);
    return 0;
}

static int probe(struct rte_vdev_device *device) {
    static struct rte_ether_addr address = {.addr_bytes = {2, 0, 0, 0, 0, 9}};
    struct rte_eth_dev *dev = rte_eth_vdev_allocate(device, sizeof(struct replay));
    struct rte_kvargs *arguments = rte_kvargs_parse(rte_vdev_device_args(device), NULL);
    struct replay *port;
    if (!dev || !arguments)
        return -ENOMEM;
    port = dev->data->dev_private;
    port->packets = 1000000;
    port->flows = port->train = 1;
    port->segment = 1448;
    rte_kvargs_process(arguments, "packets", number, &port->packets);
    rte_kvargs_process(arguments, "flows", number, &port->flows);
    rte_kvargs_process(arguments, "train", number, &port->train);
    rte_kvargs_process(arguments, "segment", number, &port->segment);
    rte_kvargs_process(arguments, "parts", number, &port->parts);
    rte_kvargs_free(arguments);
    port->flow = rte_zmalloc("replay", sizeof *port->flow * port->flows, 0);
    port->data = dev->data;
    dev->data->mac_addrs = &address;
    dev->dev_ops = &operations;
    dev->rx_pkt_burst = rx_burst;
    dev->tx_pkt_burst = tx_burst;
    rte_eth_dev_probing_finish(dev);
    return 0;
}

static int remove_port(struct rte_vdev_device *device) {
    (void)device;
    return 0;
}

static struct rte_vdev_driver driver = {.probe = probe, .remove = remove_port};

RTE_PMD_REGISTER_VDEV(net_replay, driver);

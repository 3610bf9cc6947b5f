/*
 * A tunnel between a TUN device and a UDP socket, which joins and cuts super-packets, and encrypts nothing.
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 *     cc -std=c11 tun.c -o tun $(pkg-config --cflags --libs superpacket)
 *     tun NAME LOCAL-ADDRESS REMOTE-ADDRESS       then: ip addr add ... dev NAME; ip link set NAME mtu 1400 up
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <string.h>
#include <superpacket.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { PORT = 4789, BURST = 128, MTU = 1500, HEADER = 10 /* a struct virtio_net_hdr */, RANGES = 1024 };
enum { TSO = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6, USO = 0x60 /* TUN_F_USO4 | TUN_F_USO6, of Linux 6.2 */ };

/* Packets of one system call. The header before each stays zero: it asks the kernel for nothing. */
struct burst {
    uint8_t memory[BURST][HEADER + MTU];
    struct iovec iov[BURST];
    struct mmsghdr messages[BURST];
};

static void prepare(struct burst *burst) {
    for (int i = 0; i < BURST; i++) {
        burst->iov[i] = (struct iovec){burst->memory[i] + HEADER, MTU};
        burst->messages[i].msg_hdr = (struct msghdr){.msg_iov = &burst->iov[i], .msg_iovlen = 1};
    }
}

/* Reads one packet of the device, cuts it, and sends the segments. Tells whether there was one. */
static int to_tunnel(sp_segmenter *segmenter, int device, int tunnel) {
    static struct burst burst;
    static uint8_t packet[HEADER + 65536];
    size_t lengths[BURST];
    sp_plan plan = {0}; /* stays so if this is no packet, which sp_segmenter_counters tells */
    ssize_t length = read(device, packet, sizeof packet);
    prepare(&burst);
    if (length > 0)
        sp_split_each(segmenter, HEADER, SP_ORDER_NATIVE, SP_LAYER_IP, packet, length, burst.iov, BURST, 0, lengths, &plan);
    for (size_t i = 0; i < plan.segments; i++)
        burst.iov[i].iov_len = lengths[i]; /* a VPN seals the segment here */
    sendmmsg(tunnel, burst.messages, plan.segments, 0); /* a socket that is full drops, as any queue does */
    return length > 0;
}

/* Receives a burst, joins it, and writes what came of it. Tells whether there was one. */
static int from_tunnel(sp_batch *batch, int device, int tunnel) {
    static struct burst burst;
    static struct iovec ranges[RANGES];
    static void *tokens[RANGES];
    static uint8_t headers[BURST * SP_MAX_HEADER];
    sp_output outputs[BURST];
    sp_packet packets[BURST];
    sp_space space = {.size = sizeof space, .outputs = outputs, .outputs_max = BURST, .iov = ranges, .iov_max = RANGES,
                      .tokens = tokens, .headers = headers, .headers_max = sizeof headers};
    prepare(&burst);
    int count = recvmmsg(tunnel, burst.messages, BURST, 0, NULL);
    for (int i = 0; i < count; i++) {
        size_t length = burst.messages[i].msg_len; /* a VPN opens the packet here */
        packets[i] = (sp_packet){.data = burst.iov[i].iov_base, .length = length, .token = &burst.iov[i]};
        burst.iov[i] = (struct iovec){burst.memory[i], HEADER + length};
    }
    sp_batch_aggregate(batch, packets, count > 0 ? count : 0, &space); /* never SP_FULL: a whole burst fits */
    for (sp_output *output = outputs; output < outputs + space.outputs_used; output++)
        if (writev(device, output->iov, output->iov_count) < 0 && output->packets > 1)
            /* This kernel refuses such a super-packet: it gets the originals, which lie behind the header. */
            for (uint32_t i = 1; i < output->iov_count; i++)
                if (writev(device, output->tokens[i], 1) < 0)
                    warn("a packet was dropped");
    return count > 0;
}

int main(int argc, char **argv) {
    /* Checksums are verified before packets merge: the peer may have sent on a packet that reached it damaged. */
    sp_policy policy = {.size = sizeof policy, .mode = SP_MODE_GRO_UDP, .layer = SP_LAYER_IP, .virtio_length = HEADER};
    struct sockaddr_in local = {.sin_family = AF_INET, .sin_port = htons(PORT)}, remote = local;
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR};
    int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK), tunnel = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    sp_segmenter *segmenter;
    sp_batch *batch;
    if (argc != 4 || !inet_aton(argv[2], &local.sin_addr) || !inet_aton(argv[3], &remote.sin_addr))
        errx(2, "usage: tun NAME LOCAL-ADDRESS REMOTE-ADDRESS");
    strncpy(request.ifr_name, argv[1], IFNAMSIZ - 1);
    if (ioctl(device, TUNSETIFF, &request) || (ioctl(device, TUNSETOFFLOAD, TSO | USO) && ioctl(device, TUNSETOFFLOAD, TSO)))
        err(1, "%s", argv[1]);
    if (bind(tunnel, (struct sockaddr *)&local, sizeof local) || connect(tunnel, (struct sockaddr *)&remote, sizeof remote))
        err(1, "%s to %s", argv[2], argv[3]);
    if (sp_batch_new(&policy, &batch) != SP_OK || sp_segmenter_new(&segmenter) != SP_OK)
        errx(1, "libsuperpacket %s", sp_version());
    for (;;)
        if (to_tunnel(segmenter, device, tunnel) + from_tunnel(batch, device, tunnel) == 0)
            poll((struct pollfd[]){{device, POLLIN, 0}, {tunnel, POLLIN, 0}}, 2, -1);
}

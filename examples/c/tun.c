/*
 * A tunnel between a TUN device and a UDP socket, which joins and cuts super-packets. It does not encrypt: a VPN would, where it says so.
 *
 *     cc -std=c11 tun.c -o tun $(pkg-config --cflags --libs superpacket)
 *     tun NAME LOCAL-ADDRESS REMOTE-ADDRESS      then: ip addr add ... dev NAME; ip link set NAME mtu 1400 up
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <superpacket.h>

enum { PORT = 4789, BURST = 64, SEGMENTS = 128, MTU = 1500, HEADER = 10, IOV = 1024 };

static volatile sig_atomic_t ended;

static void end(int signal) {
    ended = signal;
}

static void fail(const char *what) {
    perror(what);
    exit(EXIT_FAILURE);
}

/* A TUN device that reads and writes packets of 64 KB, as far as this kernel has that. */
static int open_tun(const char *name) {
    static const unsigned ladder[] = {TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN | 0x60 /* TUN_F_USO4, TUN_F_USO6 */,
                                      TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6, TUN_F_CSUM, 0};
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR};
    int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC), size = HEADER;
    size_t step = 0;
    strncpy(request.ifr_name, name, IFNAMSIZ - 1);
    if (device < 0 || ioctl(device, TUNSETIFF, &request) || ioctl(device, TUNSETVNETHDRSZ, &size))
        fail("/dev/net/tun");
    while (ioctl(device, TUNSETOFFLOAD, ladder[step]) && ladder[step])
        step++;
    return device;
}

static int open_socket(const char *local, const char *remote) {
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_port = htons(PORT)}, to = from;
    int socket_ = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), size = 4 << 20;
    setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    setsockopt(socket_, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    if (inet_pton(AF_INET, local, &from.sin_addr) != 1 || inet_pton(AF_INET, remote, &to.sin_addr) != 1 ||
        bind(socket_, (struct sockaddr *)&from, sizeof from) || connect(socket_, (struct sockaddr *)&to, sizeof to))
        fail("socket");
    return socket_;
}

/* Reads one packet of the device, cuts it, and sends the segments. Returns 0 if there was none. */
static int to_tunnel(sp_segmenter *segmenter, int device, int tunnel) {
    static uint8_t read_[HEADER + 65536], segments[SEGMENTS][MTU];
    sp_iovec buffers[SEGMENTS];
    struct mmsghdr messages[SEGMENTS];
    size_t lengths[SEGMENTS];
    sp_plan plan;
    ssize_t length = read(device, read_, sizeof read_);
    if (length <= 0)
        return 0;
    for (int index = 0; index < SEGMENTS; index++)
        buffers[index] = (sp_iovec){segments[index], MTU};
    if (sp_split_each(segmenter, HEADER, SP_ORDER_NATIVE, SP_LAYER_IP, read_, (size_t)length, buffers, SEGMENTS, 0, lengths, &plan) != SP_OK)
        return 1; /* not a packet: sp_segmenter_counters tells how many */
    memset(messages, 0, sizeof messages);
    for (size_t index = 0; index < plan.segments; index++) {
        buffers[index].iov_len = lengths[index]; /* a VPN seals the segment here */
        messages[index].msg_hdr.msg_iov = &buffers[index];
        messages[index].msg_hdr.msg_iovlen = 1;
    }
    for (int sent = 0, step; sent < (int)plan.segments; sent += step)
        if ((step = sendmmsg(tunnel, messages + sent, (unsigned)plan.segments - (unsigned)sent, 0)) <= 0)
            break; /* the socket is full, as a queue is */
    return 1;
}

/* Receives a burst, joins it, and writes what came of it to the device. Returns 0 if there was none. */
static int from_tunnel(sp_batch *batch, int device, int tunnel) {
    static uint8_t received[BURST][MTU], headers[BURST * SP_MAX_HEADER];
    static sp_output outputs[BURST];
    static sp_iovec iov[IOV];
    struct mmsghdr messages[BURST];
    sp_iovec buffers[BURST];
    sp_packet packets[BURST];
    sp_space space = {.size = sizeof space,     .outputs = outputs, .outputs_max = BURST, .iov = iov, .iov_max = IOV,
                      .headers = headers,       .headers_max = sizeof headers};
    int count;
    memset(messages, 0, sizeof messages);
    for (int index = 0; index < BURST; index++) {
        buffers[index] = (sp_iovec){received[index], MTU};
        messages[index].msg_hdr.msg_iov = &buffers[index];
        messages[index].msg_hdr.msg_iovlen = 1;
    }
    if ((count = recvmmsg(tunnel, messages, BURST, 0, NULL)) <= 0)
        return 0;
    for (int index = 0; index < count; index++) /* a VPN opens the packet here */
        packets[index] = (sp_packet){.data = received[index], .length = messages[index].msg_len};
    sp_status status = sp_batch_aggregate(batch, packets, (size_t)count, &space);
    for (;; status = sp_batch_continue(batch, packets, (size_t)count, &space)) {
        for (size_t index = 0; index < space.outputs_used; index++)
            if (writev(device, outputs[index].iov, (int)outputs[index].iov_count) < 0 && errno != EAGAIN)
                perror("write"); /* EINVAL: this kernel takes no such super-packet */
        if (status != SP_FULL)
            return 1;
    }
}

int main(int argc, char **argv) {
    /* What a VPN delivers, its cipher has verified: with SP_POLICY_TRUSTED_INPUT no payload is read. Here nobody has. */
    sp_policy policy = {.size = sizeof policy, .mode = SP_MODE_GRO_UDP, .layer = SP_LAYER_IP, .virtio_length = HEADER};
    sp_segmenter *segmenter;
    sp_batch *batch;
    if (argc != 4) {
        fprintf(stderr, "usage: tun NAME LOCAL-ADDRESS REMOTE-ADDRESS\n");
        return EXIT_FAILURE;
    }
    int device = open_tun(argv[1]), tunnel = open_socket(argv[2], argv[3]);
    if (sp_batch_new(&policy, &batch) != SP_OK || sp_segmenter_new(&segmenter) != SP_OK)
        return EXIT_FAILURE;
    signal(SIGTERM, end);
    signal(SIGINT, end);
    while (!ended) {
        struct pollfd waits[2] = {{device, POLLIN, 0}, {tunnel, POLLIN, 0}};
        poll(waits, 2, 1000);
        for (int turns = 0; turns < 64 && to_tunnel(segmenter, device, tunnel) + from_tunnel(batch, device, tunnel); turns++)
            ;
    }
    uint64_t joined[3], cut[5];
    sp_batch_counters(batch, joined, 3);
    sp_segmenter_counters(segmenter, cut, 5);
    printf("%llu packets were joined in %llu, %llu were cut into %llu\n", (unsigned long long)joined[0], (unsigned long long)joined[1],
           (unsigned long long)cut[0], (unsigned long long)cut[4]);
    sp_segmenter_free(segmenter);
    sp_batch_free(batch);
    return EXIT_SUCCESS;
}

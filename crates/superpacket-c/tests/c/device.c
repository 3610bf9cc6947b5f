/*
 * A device under test, linked with -Wl,--wrap=writev,--wrap=recvmmsg,--wrap=poll: counts what a
 * program receives and writes. With REFUSE in the environment it refuses all super-packets, as a
 * kernel does that has no such offload. SIGTERM ends the program, which then tells what was counted.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/uio.h>

ssize_t __real_writev(int file, const struct iovec *iov, int count);
ssize_t __wrap_writev(int file, const struct iovec *iov, int count);
int __real_recvmmsg(int file, struct mmsghdr *messages, unsigned count, int flags, struct timespec *timeout);
int __wrap_recvmmsg(int file, struct mmsghdr *messages, unsigned count, int flags, struct timespec *timeout);
int __real_poll(struct pollfd *files, nfds_t count, int timeout);
int __wrap_poll(struct pollfd *files, nfds_t count, int timeout);

static unsigned long received, super_packets, refused, packets;
static volatile sig_atomic_t ended;

static void end(int signal) {
    ended = signal;
}

__attribute__((constructor)) static void begin(void) {
    signal(SIGTERM, end);
}

__attribute__((destructor)) static void tell(void) {
    printf("received %lu written %lu joined %lu refused %lu\n", received, packets, super_packets, refused);
}

ssize_t __wrap_writev(int file, const struct iovec *iov, int count) {
    /* gso_type, the second byte of a virtio_net_hdr. */
    int is_super_packet = iov->iov_len > 1 && ((const uint8_t *)iov->iov_base)[1] != 0;
    if (is_super_packet && getenv("REFUSE")) {
        refused++;
        errno = EINVAL;
        return -1;
    }
    *(is_super_packet ? &super_packets : &packets) += 1;
    return __real_writev(file, iov, count);
}

int __wrap_recvmmsg(int file, struct mmsghdr *messages, unsigned count, int flags, struct timespec *timeout) {
    int got = __real_recvmmsg(file, messages, count, flags, timeout);
    received += got > 0 ? (unsigned)got : 0;
    return got;
}

int __wrap_poll(struct pollfd *files, nfds_t count, int timeout) {
    if (ended)
        exit(EXIT_SUCCESS);
    return __real_poll(files, count, timeout < 0 ? 200 : timeout);
}

/*
 * rte_gro and rte_gso on frames of a file, told what to do by lines on standard input; each is answered by a line that begins with "answer". Usage: peer EAL-ARGUMENTS
 *
 *   version                          which DPDK it is
 *   join FILE BATCH FLOWS COPIES     takes the frames of a file: a cycle, which lies in memory COPIES times
 *   cut FILE PAYLOAD COPIES          takes a super-packet, to be cut into segments of so many bytes of payload
 *   outputs FILE                     writes what leaves for one cycle
 *   hot SAMPLES NANOSECONDS          nanoseconds a frame or segment of the first cycle, the best of so many samples, or of those in that time
 *   memory BYTES                     those of all cycles, after so many bytes of other memory were written
 *
 * A file has frames, each behind its length: a 32-bit number, little-endian. Up to 128 frames a batch are joined by rte_gro_reassemble_burst;
 * more, or a cycle of several batches, by a context that holds them until the end of the cycle.
 */
#define _DEFAULT_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <rte_eal.h>
#include <rte_gro.h>
#include <rte_gso.h>
#include <rte_version.h>

#include "port.h"

enum { CYCLE = 4096, MBUFS = 8192, SUPER_PACKETS = 64, SEGMENTS = 256, HEADERS = 66, LINE = 64 };

static struct rte_mempool *pool, *large, *direct, *indirect;
static struct rte_mbuf *mbufs[MBUFS], *out[CYCLE];
static uint8_t *frames[CYCLE];
static uint32_t lengths[CYCLE];
static unsigned count, batch, copies, left;
static uint16_t payload; /* of a segment; 0 to join */
static void *context;
static struct rte_gro_param param;
static double reading;

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(EXIT_FAILURE);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int compare(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

/* What reading the clock takes: the median of many. */
static void read_clock(void) {
    static double times[10001];
    for (unsigned index = 0; index < RTE_DIM(times); index++) {
        double start = now();
        times[index] = now() - start;
    }
    qsort(times, RTE_DIM(times), sizeof *times, compare);
    reading = times[RTE_DIM(times) / 2];
}

static void read_frames(const char *path) {
    uint8_t prefix[4];
    FILE *file = fopen(path, "rb");
    if (!file)
        fail("%s: cannot be read", path);
    for (unsigned index = 0; index < count; index++)
        free(frames[index]);
    for (count = 0; fread(prefix, 1, sizeof prefix, file) == sizeof prefix; count++) {
        uint32_t length = prefix[0] | (uint32_t)prefix[1] << 8 | (uint32_t)prefix[2] << 16 | (uint32_t)prefix[3] << 24;
        if (count == CYCLE || length < HEADERS - 12 || length > UINT16_MAX - RTE_PKTMBUF_HEADROOM)
            fail("%s: frame %u of %u bytes: at most %u frames of %u to %u bytes", path, count, length, CYCLE, HEADERS - 12, UINT16_MAX - RTE_PKTMBUF_HEADROOM);
        frames[count] = malloc(length);
        lengths[count] = length;
        if (!frames[count] || fread(frames[count], 1, length, file) != length)
            fail("%s: frame %u is not whole", path, count);
    }
    fclose(file);
    if (!count)
        fail("%s: no frames", path);
}

/* Each cycle in mbufs of its own. */
static void fill(struct rte_mempool *from, unsigned most) {
    if (!copies || copies * count > most || rte_pktmbuf_alloc_bulk(from, mbufs, copies * count))
        fail("no room for %u times %u frames", copies, count);
    port_shuffle(mbufs, copies * count);
    for (unsigned index = 0; index < copies * count; index++) {
        char *data = rte_pktmbuf_append(mbufs[index], (uint16_t)lengths[index % count]);
        if (!data)
            fail("frame %u: %u bytes fit no mbuf", index % count, lengths[index % count]);
        memcpy(data, frames[index % count], lengths[index % count]);
    }
}

/* As the port wrote the mbufs of a batch. */
static void receive(unsigned first, unsigned frame, unsigned frames_here) {
    for (unsigned index = 0; index < frames_here; index++)
        port_received(mbufs[first + index], (uint16_t)lengths[frame + index]);
}

/* The headers that joining has rewritten. */
static void restore(unsigned copy) {
    receive(copy * count, 0, count);
    for (unsigned index = 0; index < count; index++)
        memcpy(rte_pktmbuf_mtod(mbufs[copy * count + index], void *), frames[index], RTE_MIN(lengths[index], (uint32_t)HEADERS));
}

static void forget(void) {
    if (count && !payload)
        for (unsigned copy = 0; copy < copies; copy++)
            restore(copy);
    if (count)
        rte_pktmbuf_free_bulk(mbufs, copies * count);
    if (context)
        rte_gro_ctx_destroy(context);
    context = NULL;
}

/* Joins a cycle; what leaves is in `out`. Returns the nanoseconds. */
static double join(unsigned copy) {
    double total = 0;
    left = 0;
    for (unsigned frame = 0; frame < count; frame += batch) {
        unsigned here = RTE_MIN(batch, count - frame);
        struct rte_mbuf **burst = out + left;
        double start;
        receive(copy * count + frame, frame, here);
        memcpy(burst, mbufs + copy * count + frame, here * sizeof *burst);
        start = now();
        if (context) {
            left += rte_gro_reassemble(burst, (uint16_t)here, context);
            if (frame + here == count)
                left += rte_gro_timeout_flush(context, 0, RTE_GRO_TCP_IPV4, out + left, (uint16_t)(CYCLE - left));
        } else {
            left += rte_gro_reassemble_burst(burst, (uint16_t)here, &param);
        }
        total += now() - start - reading;
    }
    return total;
}

/* Cuts a super-packet; the segments are in `out`. Returns the nanoseconds. */
static double cut(unsigned copy) {
    struct rte_gso_ctx gso = {.direct_pool = direct, .indirect_pool = indirect, .gso_types = RTE_ETH_TX_OFFLOAD_TCP_TSO,
                              .gso_size = (uint16_t)(HEADERS + payload)};
    double start, total;
    int made;
    port_to_cut(mbufs[copy], payload);
    rte_mbuf_refcnt_update(mbufs[copy], 1); /* It is freed once, and cut again. */
    start = now();
    made = rte_gso_segment(mbufs[copy], &gso, out, SEGMENTS);
    rte_pktmbuf_free(mbufs[copy]);
    total = now() - start - reading;
    if (made <= 1)
        fail("nothing was cut: %d", made);
    left = (unsigned)made;
    return total;
}

/* A cycle, all of what the port does before and after it included. */
static double cycle(unsigned copy, int hot) {
    double time;
    if (payload) {
        time = cut(copy);
        rte_pktmbuf_free_bulk(out, left);
    } else {
        if (hot)
            restore(copy);
        time = join(copy);
    }
    return time;
}

static void write_outputs(const char *path) {
    FILE *file = fopen(path, "wb");
    if (!file)
        fail("%s: cannot be written", path);
    if (payload) {
        cut(0);
    } else {
        restore(0);
        join(0);
    }
    for (unsigned index = 0; index < left; index++) {
        uint32_t length = out[index]->pkt_len;
        uint8_t prefix[4] = {(uint8_t)length, (uint8_t)(length >> 8), (uint8_t)(length >> 16), (uint8_t)(length >> 24)};
        fwrite(prefix, 1, sizeof prefix, file);
        for (struct rte_mbuf *mbuf = out[index]; mbuf; mbuf = mbuf->next)
            fwrite(rte_pktmbuf_mtod(mbuf, void *), 1, mbuf->data_len, file);
    }
    if (fclose(file))
        fail("%s: cannot be written", path);
    if (payload)
        rte_pktmbuf_free_bulk(out, left);
}

static double hot(unsigned samples, double nanoseconds) {
    double best = 0, start;
    cycle(0, 1);
    start = now();
    for (unsigned sample = 0; sample < samples && (sample == 0 || now() - start < nanoseconds); sample++) {
        double time = cycle(0, 1);
        if (sample == 0 || time < best)
            best = time;
    }
    return best / (payload ? left : count);
}

static double memory(size_t bytes) {
    static uint8_t *caches;
    double total = 0;
    unsigned units = 0;
    if (!caches && !(caches = calloc(bytes, 1)))
        fail("no memory");
    for (unsigned copy = 0; !payload && copy < copies; copy++)
        restore(copy);
    for (size_t at = 0; at < bytes; at += LINE)
        ((volatile uint8_t *)caches)[at]++;
    for (unsigned copy = 0; copy < copies; copy++) {
        total += cycle(copy, 0);
        units += payload ? left : count;
    }
    return total / units;
}

int main(int argc, char **argv) {
    char line[4200], path[4096];
    unsigned flows, samples, size, times;
    size_t bytes;
    double nanoseconds;
    if (rte_eal_init(argc, argv) < 0)
        fail("DPDK's environment does not start");
    pool = rte_pktmbuf_pool_create("packets", MBUFS + 255, 256, 0, RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
    large = rte_pktmbuf_pool_create("large", SUPER_PACKETS, 0, 0, 65535, SOCKET_ID_ANY);
    direct = rte_pktmbuf_pool_create("direct", 1023, 256, 0, RTE_PKTMBUF_HEADROOM + 128, SOCKET_ID_ANY);
    indirect = rte_pktmbuf_pool_create("indirect", 1023, 256, 0, 0, SOCKET_ID_ANY);
    if (!pool || !large || !direct || !indirect)
        fail("no memory for mbufs");
    read_clock();
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "version\n")) {
            printf("answer %s\n", rte_version());
        } else if (sscanf(line, "join %4095s %u %u %u", path, &size, &flows, &times) == 4) {
            if (!size || !flows)
                fail("batches of %u frames of %u flows", size, flows);
            forget();
            payload = 0;
            batch = size;
            copies = times;
            read_frames(path);
            fill(pool, MBUFS);
            param = (struct rte_gro_param){.gro_types = RTE_GRO_TCP_IPV4, .max_flow_num = (uint16_t)flows,
                                           .max_item_per_flow = (uint16_t)((count + flows - 1) / flows)};
            if ((batch < count || count > RTE_GRO_MAX_BURST_ITEM_NUM) && !(context = rte_gro_ctx_create(&param)))
                fail("no memory for %u flows", flows);
            puts("answer ok");
        } else if (sscanf(line, "cut %4095s %u %u", path, &size, &times) == 3) {
            forget();
            payload = (uint16_t)size;
            copies = times;
            read_frames(path);
            if (count != 1)
                fail("%s: %u super-packets, one is wanted", path, count);
            fill(large, SUPER_PACKETS);
            puts("answer ok");
        } else if (sscanf(line, "outputs %4095s", path) == 1 && count) {
            write_outputs(path);
            puts("answer ok");
        } else if (sscanf(line, "hot %u %lf", &samples, &nanoseconds) == 2 && count) {
            printf("answer %.3f\n", hot(samples, nanoseconds));
        } else if (sscanf(line, "memory %zu", &bytes) == 1 && count) {
            printf("answer %.3f\n", memory(bytes));
        } else {
            fail("no such order here: %s", line);
        }
        fflush(stdout);
    }
    return EXIT_SUCCESS;
}

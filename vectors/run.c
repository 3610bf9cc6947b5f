/* Runs the plain rows of each file: Ethernet, IPv4 or IPv6, TCP or UDP. Without a JSON library: a case is a line, and a
 * field is found in it by its name.
 *
 *     cc -o run vectors/run.c && ./run vectors
 *
 * Put your own code in place of what is between the lines. What decides whether packets merge, and what finds a header
 * wrong, is left to it: such rows, tunnels, VLAN tags, extension headers and fragments are counted, and not run. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TCP = 6, UDP = 17, FIN_PSH = 0x09, CWR = 0x80, LONGEST = 4096 };

struct bytes {
    size_t length;
    uint8_t at[LONGEST];
};

/* ------------------------------------------------------------------------------------------------------------------ */

static unsigned get(const uint8_t *at) { return (unsigned)at[0] << 8 | at[1]; }
static void put(uint8_t *at, unsigned value) { at[0] = (uint8_t)(value >> 8), at[1] = (uint8_t)value; }
static unsigned get_little(const uint8_t *at) { return at[0] | (unsigned)at[1] << 8; }
static void put_little(uint8_t *at, size_t value) { at[0] = (uint8_t)value, at[1] = (uint8_t)(value >> 8); }

/* Adds up 16-bit words, and folds (RFC 1071). */
static unsigned total(uint32_t sum, const uint8_t *at, size_t length) {
    for (; length > 1; at += 2, length -= 2) sum += get(at);
    if (length) sum += (uint32_t)at[0] << 8;
    while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
    return sum;
}

static uint32_t toeplitz(const uint8_t *key, size_t key_length, const uint8_t *input, size_t length) {
    uint32_t hash = 0, window = (uint32_t)get(key) << 16 | get(key + 2);
    for (size_t bit = 0; bit < 8 * length; bit++) {
        size_t next = bit + 32;
        if (input[bit / 8] & 0x80 >> bit % 8) hash ^= window;
        window = window << 1 | (next / 8 < key_length && key[next / 8] & 0x80 >> next % 8);
    }
    return hash;
}

/* Where the headers of a plain packet lie. */
struct headers {
    size_t transport, payload, checksum;
    uint8_t protocol;
    bool ipv4;
};

static bool locate(const struct bytes *packet, struct headers *at) {
    unsigned type = get(packet->at + 12);
    if (!(type == 0x0800 && packet->at[14] == 0x45) && type != 0x86dd) return false;
    at->ipv4 = type == 0x0800;
    at->transport = at->ipv4 ? 34 : 54;
    at->protocol = packet->at[at->ipv4 ? 23 : 20];
    at->checksum = at->transport + (at->protocol == UDP ? 6 : 16);
    at->payload = at->transport + (at->protocol == UDP ? 8 : packet->at[at->transport + 12] / 16 * 4u);
    return at->protocol == TCP || at->protocol == UDP;
}

/* Puts the checksum where the pseudo-header's sum is. UDP sends 0xFFFF for 0. */
static void complete(struct bytes *packet, size_t start, size_t field) {
    unsigned sum = total(0, packet->at + start, packet->length - start) ^ 0xffff;
    put(packet->at + field, sum == 0 && field == start + 6 ? 0xffff : sum);
}

/* Writes lengths, the IPv4 header's checksum, and the pseudo-header's sum. */
static void finish(struct bytes *packet, const struct headers *at) {
    uint8_t *ip = packet->at + 14;
    unsigned length = (unsigned)(packet->length - at->transport);
    if (at->ipv4) {
        put(ip + 2, length + 20);
        put(ip + 10, 0);
        put(ip + 10, total(0, ip, 20) ^ 0xffff);
    } else {
        put(ip + 4, length);
    }
    if (at->protocol == UDP) put(packet->at + at->transport + 4, length);
    put(packet->at + at->checksum, total(at->protocol + length, ip + (at->ipv4 ? 12 : 8), at->ipv4 ? 8 : 32));
}

/* Makes the segment that begins at this byte of the packet. */
static void split(const struct bytes *packet, const struct headers *at, size_t begin, size_t size, struct bytes *segment) {
    size_t end = begin + size < packet->length ? begin + size : packet->length, before = begin - at->payload;
    uint8_t *transport = segment->at + at->transport;
    memcpy(segment->at, packet->at, at->payload);
    memcpy(segment->at + at->payload, packet->at + begin, end - begin);
    segment->length = at->payload + end - begin;
    if (at->ipv4) put(segment->at + 18, get(packet->at + 18) + (unsigned)(before / size));
    if (at->protocol == TCP) {
        uint32_t sequence = ((uint32_t)get(transport + 4) << 16 | get(transport + 6)) + (uint32_t)before;
        put(transport + 4, sequence >> 16);
        put(transport + 6, sequence & 0xffff);
        if (before > 0) transport[13] &= (uint8_t)~CWR;
        if (end < packet->length) transport[13] &= (uint8_t)~FIN_PSH;
    }
    finish(segment, at);
    complete(segment, at->transport, at->checksum);
}

/* Appends a frame to those before it. */
static void merge(struct bytes *merged, const struct headers *at, const struct bytes *frame) {
    memcpy(merged->at + merged->length, frame->at + at->payload, frame->length - at->payload);
    merged->length += frame->length - at->payload;
    if (at->protocol == TCP) merged->at[at->transport + 13] |= frame->at[at->transport + 13] & FIN_PSH;
}

/* Writes the virtio_net_hdr of a packet into which frames have merged, the first with so much payload. */
static void header_of(const struct bytes *merged, const struct headers *at, size_t size, uint8_t header[10]) {
    header[0] = 1;
    header[1] = at->protocol == UDP ? 5 : at->ipv4 ? 1 : 4;
    if (at->protocol == TCP) header[1] |= merged->at[at->transport + 13] & CWR;
    put_little(header + 2, at->payload);
    put_little(header + 4, size);
    put_little(header + 6, at->transport);
    put_little(header + 8, at->checksum - at->transport);
}

/* ------------------------------------------------------------------------------------------------------------------ */

/* Finds the value of a field, from here on. */
static const char *find(const char *text, const char *name) {
    char key[40];
    snprintf(key, sizeof key, "\"%s\":", name);
    text = text ? strstr(text, key) : NULL;
    return text ? text + strlen(key) : NULL;
}

/* Reads a string of hexadecimal digits; the character behind it. */
static const char *hex(const char *text, struct bytes *bytes) {
    unsigned byte;
    bytes->length = 0;
    for (text++; text[0] != '"' && sscanf(text, "%2x", &byte) == 1 && bytes->length < LONGEST; text += 2)
        bytes->at[bytes->length++] = (uint8_t)byte;
    if (text[0] != '"') exit((fprintf(stderr, "no hexadecimal digits: %.40s\n", text), 2));
    return text + 1;
}

static struct bytes read_bytes(const char *line, const char *name) {
    struct bytes bytes;
    const char *text = find(line, name);
    if (!text) exit((fprintf(stderr, "no %s: %.100s\n", name, line), 2));
    hex(text, &bytes);
    return bytes;
}

static unsigned long number(const char *line, const char *name) {
    const char *text = find(line, name);
    return text ? strtoul(text, NULL, 10) : 0; /* null is 0 too. */
}

static bool same(const struct bytes *one, const struct bytes *other) {
    return one->length == other->length && memcmp(one->at, other->at, one->length) == 0;
}

enum outcome { PASSED, FAILED, NOT_RUN };

static enum outcome outcome(bool passed) { return passed ? PASSED : FAILED; }

static enum outcome run_checksum(const char *line) {
    struct headers at;
    if (find(line, "bytes")) {
        struct bytes bytes = read_bytes(line, "bytes");
        return outcome(total(0, bytes.at, bytes.length) == number(line, "sum"));
    }
    struct bytes packet = read_bytes(line, "packet"), expected = read_bytes(line, "complete");
    size_t start = number(line, "csum_start"), field = start + number(line, "csum_offset");
    if (!locate(&packet, &at)) return FAILED;
    finish(&packet, &at);
    bool partial = get(packet.at + field) == number(line, "pseudo_header");
    complete(&packet, start, field);
    return outcome(partial && same(&packet, &expected));
}

static enum outcome run_toeplitz(const char *line) {
    struct bytes key = read_bytes(line, "key"), input = read_bytes(line, "input");
    return outcome(toeplitz(key.at, key.length, input.at, input.length) == number(line, "hash"));
}

static enum outcome run_virtio(const char *line) {
    struct bytes header = read_bytes(line, "virtio_net_hdr"), packet = read_bytes(line, "packet");
    struct headers at;
    if (header.length != 12 || find(line, "error") || !locate(&packet, &at)) return NOT_RUN;
    unsigned size = get_little(header.at + 4);
    if (header.at[1] == 0 || packet.length - at.payload <= size) size = 0;
    const char *checksum = header.at[0] & 1 ? "\"partial\"" : header.at[0] & 2 ? "\"verified\"" : "\"unknown\"";
    const char *meaning = find(line, "meaning");
    return outcome(size == number(meaning, "segment_size") && strncmp(find(meaning, "checksum"), checksum, strlen(checksum)) == 0);
}

static enum outcome run_segmentation(const char *line) {
    struct bytes header = read_bytes(line, "virtio_net_hdr"), packet = read_bytes(line, "packet"), segment, expected;
    struct headers at;
    if (header.length != 12 || header.at[1] == 3 || !locate(&packet, &at)) return NOT_RUN;
    const char *text = find(line, "segments");
    size_t size = get_little(header.at + 4);
    for (size_t begin = at.payload; begin < packet.length; begin += size) {
        if (*text++ == ']') return FAILED; /* Fewer are expected. */
        split(&packet, &at, begin, size, &segment);
        text = hex(text, &expected);
        if (!same(&segment, &expected)) return FAILED;
    }
    return outcome(*text == ']');
}

/* A row is run if all frames of each poll merge into one packet. */
static enum outcome run_aggregation(const char *line) {
    struct bytes merged, frame, expected, header;
    struct headers at;
    unsigned polls = 0, left = 0;
    const char *text = find(line, "polls"), *packet = find(line, "left"), *end = text;
    for (; end[0] != ']' || end[1] != ']'; end++) polls += end[0] == '[' && end[1] == '"';
    for (const char *each = packet; (each = find(each, "packets")); each++) left++;
    hex(text + 2, &frame);
    if (polls != left || !locate(&frame, &at)) return NOT_RUN;
    const char *header_text = packet;
    while (polls--) {
        uint8_t made[10] = {0};
        unsigned frames = 1;
        text = hex(strchr(text, '"'), &merged);
        size_t size = merged.length - at.payload;
        for (; *text == ','; frames++) {
            text = hex(text + 1, &frame);
            if (merged.length + frame.length > LONGEST) exit((fprintf(stderr, "a packet is longer than its buffer\n"), 2));
            merge(&merged, &at, &frame);
        }
        if (frames > 1) {
            finish(&merged, &at);
            header_of(&merged, &at, size, made);
        }
        packet = find(packet, "packet");
        header_text = find(header_text, "virtio_net_hdr");
        hex(packet, &expected);
        hex(header_text, &header);
        if (!same(&merged, &expected) || header.length != 10 || memcmp(header.at, made, 10) != 0) return FAILED;
    }
    return PASSED;
}

static bool run(const char *folder, const char *file, enum outcome (*row)(const char *)) {
    static char line[1 << 17];
    unsigned counts[3] = {0};
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *cases = fopen(path, "r");
    if (!cases) exit((perror(path), 2));
    while (fgets(line, sizeof line, cases)) {
        if (!strchr(line, '\n')) exit((fprintf(stderr, "%s: a line is longer than the buffer\n", path), 2));
        if (find(line, "version") && number(line, "version") != 1) exit((fprintf(stderr, "%s: another version\n", path), 2));
        const char *name = find(line, "name");
        if (!name) continue;
        enum outcome outcome = row(line);
        counts[outcome]++;
        if (outcome == FAILED) printf("%s: failed: %.60s\n", file, name);
    }
    fclose(cases);
    unsigned ran = counts[PASSED] + counts[FAILED];
    printf("%s: %u of %u cases run, %u failed\n", file, ran, ran + counts[NOT_RUN], counts[FAILED]);
    return counts[FAILED] == 0 && ran > 0;
}

int main(int count, char **arguments) {
    const char *folder = count > 1 ? arguments[1] : "vectors";
    bool passed = run(folder, "checksum.json", run_checksum);
    passed &= run(folder, "toeplitz.json", run_toeplitz);
    passed &= run(folder, "virtio.json", run_virtio);
    passed &= run(folder, "segmentation.json", run_segmentation);
    passed &= run(folder, "aggregation.json", run_aggregation);
    return passed ? 0 : 1;
}

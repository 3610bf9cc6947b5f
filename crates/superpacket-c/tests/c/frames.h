/* Frames for the tests and benches: built field by field, with right checksums. */
#ifndef FRAMES_H
#define FRAMES_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TCP_PAYLOAD = 1448, TCP4_HEADERS = 14 + 20 + 32, TCP6_HEADERS = 14 + 40 + 32 };

static inline void put16(uint8_t *at, unsigned value) {
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static inline void put32(uint8_t *at, uint32_t value) {
    put16(at, value >> 16);
    put16(at + 2, value & 0xffff);
}

static inline uint32_t sum_of(const uint8_t *bytes, size_t length, uint32_t sum) {
    for (size_t index = 0; index < length; index++)
        sum += index % 2 ? bytes[index] : (uint32_t)bytes[index] << 8;
    return sum;
}

static inline unsigned checksum_of(uint32_t sum) {
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return ~sum & 0xffff;
}

/* A TCP segment of a flow, in an Ethernet frame. Returns its length. */
static inline size_t tcp_frame(uint8_t *frame, int ipv6, unsigned flow, unsigned index, size_t payload, unsigned flags) {
    size_t network = 14, transport = network + (ipv6 ? 40 : 20), start = transport + 32, total = start + payload;
    memset(frame, 0, start);
    memcpy(frame, "\2\0\0\0\0\2\2\0\0\0\0\1", 12);
    put16(frame + 12, ipv6 ? 0x86dd : 0x0800);
    uint8_t *ip = frame + network, *tcp = frame + transport;
    uint32_t pseudo;
    if (ipv6) {
        ip[0] = 0x60;
        put16(ip + 4, (unsigned)(32 + payload));
        ip[6] = 6;
        ip[7] = 64;
        memset(ip + 8, 0x20, 15);
        memset(ip + 24, 0x30, 16);
        pseudo = sum_of(ip + 8, 32, 6 + 32 + (uint32_t)payload);
    } else {
        ip[0] = 0x45;
        put16(ip + 2, (unsigned)(52 + payload));
        put16(ip + 4, index & 0xffff);
        put16(ip + 6, 0x4000);
        ip[8] = 64;
        ip[9] = 6;
        memcpy(ip + 12, "\12\0\0\1\12\0\0\2", 8);
        put16(ip + 10, checksum_of(sum_of(ip, 20, 0)));
        pseudo = sum_of(ip + 12, 8, 6 + 32 + (uint32_t)payload);
    }
    put16(tcp, 10000 + flow);
    put16(tcp + 2, 443);
    put32(tcp + 4, (uint32_t)(1000 + index * payload));
    put32(tcp + 8, 1);
    tcp[12] = 0x80;
    tcp[13] = (uint8_t)flags;
    put16(tcp + 14, 500);
    memcpy(tcp + 20, "\1\1\10\12\0\0\3\350\0\0\7\320", 12);
    for (size_t at = 0; at < payload; at++)
        frame[start + at] = (uint8_t)(at * 7 + index * 13 + flow);
    put16(tcp + 16, checksum_of(sum_of(tcp, 32 + payload, pseudo)));
    return total;
}

/* A UDP datagram in an IP packet without a link header. Returns its length. */
static inline size_t udp_packet(uint8_t *ip, unsigned index, size_t payload) {
    memset(ip, 0, 28);
    ip[0] = 0x45;
    put16(ip + 2, (unsigned)(28 + payload));
    put16(ip + 4, index & 0xffff);
    ip[8] = 64;
    ip[9] = 17;
    memcpy(ip + 12, "\12\0\0\1\12\0\0\2", 8);
    put16(ip + 10, checksum_of(sum_of(ip, 20, 0)));
    put16(ip + 20, 4000);
    put16(ip + 22, 4001);
    put16(ip + 24, (unsigned)(8 + payload));
    for (size_t at = 0; at < payload; at++)
        ip[28 + at] = (uint8_t)(at * 3 + index);
    unsigned checksum = checksum_of(sum_of(ip + 20, 8 + payload, sum_of(ip + 12, 8, 17 + 8 + (uint32_t)payload)));
    put16(ip + 26, checksum ? checksum : 0xffff);
    return 28 + payload;
}

#endif

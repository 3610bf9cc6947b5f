/* Bytes over TCP, compared: `stream serve PORT BYTES`, `stream send ADDRESS PORT BYTES`. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static uint8_t byte_at(unsigned long long at) {
    return (uint8_t)(at * 31 + (at >> 13));
}

int main(int argc, char **argv) {
    static uint8_t buffer[1 << 16];
    int serve = argc == 4 && !strcmp(argv[1], "serve"), socket_ = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET};
    unsigned long long all, at = 0;
    struct timeval limit = {30, 0};
    if (!serve && (argc != 5 || inet_pton(AF_INET, argv[2], &address.sin_addr) != 1))
        return 2;
    address.sin_port = htons((uint16_t)atoi(argv[argc - 2]));
    all = strtoull(argv[argc - 1], NULL, 10);
    setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (serve) {
        if (bind(socket_, (struct sockaddr *)&address, sizeof address) || listen(socket_, 1) || (socket_ = accept(socket_, NULL, NULL)) < 0)
            return perror("serve"), 1;
        setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    } else if (connect(socket_, (struct sockaddr *)&address, sizeof address)) {
        return perror("connect"), 1;
    }
    while (at < all) {
        size_t most = all - at < sizeof buffer ? (size_t)(all - at) : sizeof buffer;
        ssize_t length;
        if (serve) {
            length = read(socket_, buffer, most);
            for (ssize_t index = 0; index < length; index++)
                if (buffer[index] != byte_at(at + (unsigned long long)index))
                    return fprintf(stderr, "byte %llu is wrong\n", at + (unsigned long long)index), 1;
        } else {
            for (size_t index = 0; index < most; index++)
                buffer[index] = byte_at(at + index);
            length = write(socket_, buffer, most);
        }
        if (length <= 0)
            return fprintf(stderr, "ended after %llu bytes\n", at), 1;
        at += (unsigned long long)length;
    }
    if (serve && write(socket_, "!", 1) != 1)
        return 1;
    if (!serve && read(socket_, buffer, 1) != 1)
        return fprintf(stderr, "no answer\n"), 1;
    if (serve)
        printf("%llu bytes, all right\n", at);
    return 0;
}

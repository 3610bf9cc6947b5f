/* Each function of libsuperpacket: what it does, and what it refuses. Usage: test [FILE]
 * FILE has packets for the round trip: of each its length in 4 bytes, little-endian, and its bytes. */
#include <superpacket.h>

#include "frames.h"

static unsigned checks;

#define CHECK(condition)                                                                               \
    do {                                                                                               \
        checks++;                                                                                      \
        if (!(condition)) {                                                                            \
            char said[200];                                                                            \
            sp_message(said, sizeof said);                                                             \
            fprintf(stderr, "%s:%d: not so: %s (last message: %s)\n", __FILE__, __LINE__, #condition, said); \
            exit(1);                                                                                   \
        }                                                                                              \
    } while (0)

enum { BATCH = 64, MOST = 4096, IOV = 1024 + 17 * 4 };

static uint8_t bytes[BATCH][2048];
static sp_packet packets[BATCH];
static sp_output outputs[MOST];
static sp_iovec iov[3 * MOST];
static void *tokens[3 * MOST];
static uint8_t headers[MOST * SP_MAX_HEADER];

static sp_space space_of(size_t outputs_max, size_t iov_max, size_t headers_max) {
    sp_space space = {.size = sizeof space, .outputs = outputs, .outputs_max = outputs_max, .iov = iov, .iov_max = iov_max,
                      .tokens = tokens, .headers = headers, .headers_max = headers_max};
    return space;
}

static sp_space all_space(void) {
    return space_of(MOST, 3 * MOST, sizeof headers);
}

/* Packets of some flows in turn. */
static void fill(int ipv6, unsigned flows, unsigned flags_of_last) {
    memset(packets, 0, sizeof packets);
    for (unsigned index = 0; index < BATCH; index++) {
        unsigned flags = index + flows >= BATCH ? flags_of_last : 0x10;
        packets[index].data = bytes[index];
        packets[index].length = tcp_frame(bytes[index], ipv6, index % flows, index / flows, 1000, flags);
        packets[index].token = bytes[index];
    }
}

static sp_batch *batch_of(uint32_t mode, uint32_t flags, uint32_t layer, uint32_t virtio_length) {
    sp_policy policy = {.size = sizeof policy, .mode = mode, .flags = flags, .layer = layer, .virtio_length = virtio_length};
    sp_batch *batch = NULL;
    CHECK(sp_batch_new(&policy, &batch) == SP_OK);
    return batch;
}

static void copy_out(const sp_output *output, uint8_t *to) {
    for (uint32_t index = 0; index < output->iov_count; index++) {
        if (output->iov[index].iov_len)
            memcpy(to, output->iov[index].iov_base, output->iov[index].iov_len);
        to += output->iov[index].iov_len;
    }
}

static uint64_t value_of(const char *name, const char *(*names)(size_t), const uint64_t *values) {
    for (size_t index = 0; names(index); index++)
        if (!strcmp(names(index), name))
            return values[index];
    CHECK(!"a counter of this name");
    return 0;
}

static void check_counters(const sp_batch *batch) {
    uint64_t values[64], reasons[256], sum = 0;
    CHECK(sp_batch_counters(batch, values, 64) == SP_OK && sp_batch_reasons(batch, reasons, 256) == SP_OK);
    CHECK(value_of("packets_in", sp_counter_name, values) ==
          value_of("packets_out", sp_counter_name, values) + value_of("merged", sp_counter_name, values) + value_of("held", sp_counter_name, values));
    for (size_t index = 0; index < 256; index++) {
        CHECK(sp_reason_name(index) || reasons[index] == 0);
        sum += reasons[index];
    }
    CHECK(sum == value_of("packets_out", sp_counter_name, values));
}

/* What is in the space, cut again, is what was in these packets, each once. Tokens are the packets' bytes. */
static size_t compare(const sp_space *space, const sp_packet *given, size_t count, uint32_t layer, sp_segmenter *segmenter, uint8_t *seen) {
    static uint8_t whole[600000], cut[900000];
    static void *owners[3 * MOST];
    size_t compared = 0, next = 0;
    memcpy(owners, space->tokens, space->iov_used * sizeof *owners);
    for (size_t index = 0; index < space->outputs_used; index++) {
        const sp_output *output = &space->outputs[index];
        CHECK(output->iov == &space->iov[next] && output->length < sizeof whole);
        copy_out(output, whole);
        sp_packet packet = {.data = whole, .length = output->length, .offload = output->offload};
        sp_segment_options options = {.size = sizeof options, .layer = layer, .checksum = SP_OUTPUT_AS_MERGED};
        sp_plan plan;
        CHECK(sp_segment_linear(segmenter, &packet, &options, cut, sizeof cut, &plan) == SP_OK);
        CHECK(plan.segments == output->packets);
        size_t segment = 0;
        void *before = NULL;
        for (uint32_t range = 0; range < output->iov_count; range++, next++) {
            if (owners[next] == before || !owners[next])
                continue;
            before = owners[next];
            size_t number = 0;
            while (number < count && given[number].token != before)
                number++;
            CHECK(number < count && !seen[number]);
            seen[number] = 1;
            const uint8_t *at = cut + segment * plan.segment_length;
            size_t length = segment + 1 == plan.segments ? plan.last_length : plan.segment_length, offset = 0;
            sp_iovec first = {.iov_base = (void *)(uintptr_t)given[number].data, .iov_len = given[number].length};
            for (uint32_t buffer = 0; buffer <= given[number].rest_count; buffer++) {
                sp_iovec part = buffer ? given[number].rest[buffer - 1] : first;
                CHECK(offset + part.iov_len <= length && !memcmp(at + offset, part.iov_base, part.iov_len));
                offset += part.iov_len;
            }
            CHECK(offset == length);
            segment++, compared++;
        }
        CHECK(segment == plan.segments);
    }
    return compared;
}

static void names(void) {
    CHECK(!strcmp(sp_version(), "0.1.0"));
    CHECK(!strcmp(sp_errname(SP_ERROR_SPACE), "SP_ERROR_SPACE") && !strcmp(sp_errname(99), "SP_UNKNOWN"));
    CHECK(!strcmp(sp_strerror(SP_OK), "done") && !strcmp(sp_strerror(-9999), "unknown status"));
    CHECK(!strcmp(sp_counter_name(0), "packets_in") && !sp_counter_name(SIZE_MAX));
    CHECK(!strcmp(sp_reason_name(0), "not_ip") && !sp_reason_name(256));
    CHECK(!strcmp(sp_segment_counter_name(0), "packets") && !sp_segment_counter_name(1000));
}

static void merge_and_cut(int ipv6, unsigned flows, uint32_t flags) {
    fill(ipv6, flows, 0x18);
    sp_batch *batch = batch_of(SP_MODE_GRO, flags, SP_LAYER_ETHERNET, 0);
    sp_segmenter *segmenter;
    CHECK(sp_segmenter_new(&segmenter) == SP_OK);
    for (int round = 0; round < 3; round++) {
        sp_space space = all_space();
        uint8_t seen[BATCH] = {0};
        CHECK(sp_batch_aggregate(batch, packets, BATCH, &space) == SP_OK);
        CHECK(space.outputs_used == flows * (flows == 1 ? 1 : 1));
        CHECK(space.outputs[0].packets == BATCH / flows && space.outputs[0].token == bytes[0]);
        CHECK(space.outputs[0].offload.gso_size == 1000 && space.outputs[0].header_length == (ipv6 ? 86 : 66));
        CHECK(space.outputs[0].offload.gso_type == (ipv6 ? SP_GSO_TCP6 : SP_GSO_TCP4));
        /* The same cut from where it lies: gathered, with the very same bytes. */
        static uint8_t merged[70000], gathered[2048];
        copy_out(&space.outputs[0], merged);
        CHECK(compare(&space, packets, BATCH, SP_LAYER_ETHERNET, segmenter, seen) == BATCH);
        sp_packet packet = {.data = merged, .length = 500, .token = merged, .offload = space.outputs[0].offload};
        size_t rest = space.outputs[0].length - 500;
        sp_iovec parts[2] = {{merged + 500, rest / 3}, {merged + 500 + rest / 3, rest - rest / 3}};
        packet.rest = parts;
        packet.rest_count = 2;
        sp_space cut = all_space();
        sp_plan plan;
        CHECK(sp_segment_plan(segmenter, &packet, NULL, &plan) == SP_OK && plan.segments == BATCH / flows);
        CHECK(sp_segment(segmenter, &packet, NULL, &cut) == SP_OK && cut.outputs_used == plan.segments);
        for (size_t index = 0; index < cut.outputs_used; index++) {
            CHECK(cut.outputs[index].length == packets[index * flows].length && cut.outputs[index].token == merged);
            copy_out(&cut.outputs[index], gathered);
            if (!(flags & SP_POLICY_PARTIAL_CHECKSUMS))
                CHECK(!memcmp(gathered, packets[index * flows].data, cut.outputs[index].length));
        }
        /* Into buffers. */
        static uint8_t each[BATCH][1200];
        sp_iovec buffers[BATCH];
        size_t lengths[BATCH];
        for (int index = 0; index < BATCH; index++)
            buffers[index] = (sp_iovec){each[index], sizeof each[index]};
        CHECK(sp_segment_each(segmenter, &packet, NULL, buffers, BATCH, 16, lengths, NULL) == SP_OK);
        CHECK(lengths[0] == packets[0].length && !memcmp(each[0] + 16, packets[0].data, lengths[0]));
        CHECK(sp_segment_each(segmenter, &packet, NULL, buffers, plan.segments - 1, 16, lengths, &plan) == SP_ERROR_TOO_MANY_SEGMENTS);
        CHECK(sp_segment_each(segmenter, &packet, NULL, buffers, BATCH, 1000, lengths, &plan) == SP_ERROR_SPACE);
        CHECK(sp_segment_each(segmenter, &packet, NULL, buffers, BATCH, SIZE_MAX, lengths, &plan) == SP_ERROR_SPACE);
        CHECK(sp_segment_linear(segmenter, &packet, NULL, headers, 100, &plan) == SP_ERROR_SPACE);
        cut = space_of(plan.segments - 1, 3 * MOST, sizeof headers);
        CHECK(sp_segment(segmenter, &packet, NULL, &cut) == SP_ERROR_SPACE && cut.outputs_used == 0);
        /* Headers in places of their own. */
        static uint8_t places[BATCH][SP_MAX_HEADER];
        void *header_places[BATCH];
        for (int index = 0; index < BATCH; index++)
            header_places[index] = places[index];
        cut = space_of(plan.segments, 3 * MOST, 0);
        cut.headers = NULL;
        cut.header_places = header_places;
        CHECK(sp_segment(segmenter, &packet, NULL, &cut) == SP_OK && cut.outputs_used == plan.segments);
        for (size_t index = 0; index < cut.outputs_used; index++) {
            CHECK(cut.outputs[index].iov[0].iov_base == places[index] && cut.outputs[index].length == packets[index * flows].length);
            copy_out(&cut.outputs[index], gathered);
            CHECK((flags & SP_POLICY_PARTIAL_CHECKSUMS) || !memcmp(gathered, packets[index * flows].data, cut.outputs[index].length));
        }
        /* Headers alone. */
        sp_headers alone;
        memset(places, 0, sizeof places);
        CHECK(sp_segment_headers(segmenter, &packet, NULL, header_places, plan.segments, &alone) == SP_OK);
        CHECK(alone.plan.segments == plan.segments && alone.plan.segment_length == plan.segment_length && alone.plan.last_length == plan.last_length);
        CHECK(alone.header_length == (ipv6 ? 86 : 66) && alone.payload_start == alone.header_length);
        for (size_t index = 0; index < plan.segments; index++)
            CHECK((flags & SP_POLICY_PARTIAL_CHECKSUMS) || !memcmp(places[index], packets[index * flows].data, alone.header_length));
        memset(places, 0, sizeof places);
        CHECK(sp_segment_headers(segmenter, &packet, NULL, header_places, plan.segments - 1, &alone) == SP_ERROR_SPACE && !places[0][12]);
        cut = space_of(BATCH, 3 * MOST, 0);
        cut.headers = NULL;
        cut.header_places = header_places;
        CHECK(sp_batch_aggregate(batch, packets, BATCH, &cut) == SP_OK && cut.outputs_used == flows);
        CHECK(cut.outputs[flows - 1].iov[0].iov_base == places[flows - 1] && !memcmp(places[flows - 1], packets[flows - 1].data, 14));
        header_places[1] = NULL;
        CHECK(sp_batch_aggregate(batch, packets, BATCH, &cut) == SP_ERROR_NULL && cut.outputs_used == 0);
        cut = space_of(plan.segments, 2 * plan.segments + 3, plan.segments * SP_MAX_HEADER);
        CHECK(sp_segment(segmenter, &packet, NULL, &cut) == SP_OK && cut.outputs_used == plan.segments);
    }
    check_counters(batch);
    uint64_t values[64];
    CHECK(sp_segmenter_counters(segmenter, values, 64) == SP_OK);
    CHECK(value_of("packets", sp_segment_counter_name, values) ==
          value_of("cut", sp_segment_counter_name, values) + value_of("passed", sp_segment_counter_name, values) + value_of("refused", sp_segment_counter_name, values));
    CHECK(value_of("payload_in", sp_segment_counter_name, values) == value_of("payload_out", sp_segment_counter_name, values));
    CHECK(value_of("refused_output_too_small", sp_segment_counter_name, values) == 15);
    sp_segmenter_free(segmenter);
    sp_batch_free(batch);
}

/* A space that is too small for all takes them in turns, and nothing is lost. */
static void in_turns(void) {
    fill(0, 16, 0x18);
    sp_batch *batch = batch_of(SP_MODE_GRO, 0, SP_LAYER_ETHERNET, 0);
    sp_segmenter *segmenter;
    CHECK(sp_segmenter_new(&segmenter) == SP_OK);
    uint8_t seen[BATCH] = {0};
    size_t compared = 0;
    sp_space space = space_of(5, 1024, SP_MAX_HEADER);
    sp_status status = sp_batch_aggregate(batch, packets, BATCH, &space);
    CHECK(status == SP_FULL);
    CHECK(sp_batch_aggregate(batch, packets, BATCH, &space) == SP_ERROR_UNFINISHED && space.outputs_used == 0);
    CHECK(sp_batch_continue(batch, packets, BATCH - 1, &space) == SP_ERROR_OTHER_PACKETS);
    CHECK(sp_batch_abandon(batch) > 0 && sp_batch_abandon(batch) == 0);
    CHECK(sp_batch_continue(batch, packets, BATCH, &space) == SP_ERROR_OTHER_PACKETS);
    int rounds = 0;
    for (status = sp_batch_aggregate(batch, packets, BATCH, &space);; status = sp_batch_continue(batch, packets, BATCH, &space)) {
        CHECK(space.outputs_used > 0 && space.outputs_used <= 5);
        compared += compare(&space, packets, BATCH, SP_LAYER_ETHERNET, segmenter, seen);
        rounds++;
        if (status != SP_FULL)
            break;
    }
    CHECK(status == SP_OK && compared == BATCH && rounds >= 4);
    check_counters(batch);
    space = space_of(5, 1023, SP_MAX_HEADER);
    CHECK(sp_batch_aggregate(batch, packets, BATCH, &space) == SP_ERROR_SPACE);
    space = space_of(5, 1024, SP_MAX_HEADER - 1);
    CHECK(sp_batch_aggregate(batch, packets, BATCH, &space) == SP_ERROR_SPACE);
    space = space_of(0, 1024, SP_MAX_HEADER);
    CHECK(sp_batch_aggregate(batch, packets, BATCH, &space) == SP_ERROR_SPACE);
    space = all_space();
    CHECK(sp_batch_aggregate(batch, packets, 0, &space) == SP_OK && space.outputs_used == 0);
    CHECK(sp_batch_aggregate(batch, NULL, 0, &space) == SP_OK);
    sp_segmenter_free(segmenter);
    sp_batch_free(batch);
}

static void refused(void) {
    sp_policy policy = {.size = sizeof policy};
    sp_batch *batch;
    CHECK(sp_batch_new(NULL, &batch) == SP_ERROR_NULL && !batch);
    CHECK(sp_batch_new(&policy, NULL) == SP_ERROR_NULL);
    policy.size = 4;
    CHECK(sp_batch_new(&policy, &batch) == SP_ERROR_STRUCTURE);
    policy = (sp_policy){.size = sizeof policy, .mode = 77};
    CHECK(sp_batch_new(&policy, &batch) == SP_ERROR_ARGUMENT);
    char text[100];
    CHECK(sp_message(text, sizeof text) == strlen("policy.mode: 77 is not allowed") && !strcmp(text, "policy.mode: 77 is not allowed"));
    policy = (sp_policy){.size = sizeof policy, .flags = 1u << 31};
    CHECK(sp_batch_new(&policy, &batch) == SP_ERROR_ARGUMENT);
    policy = (sp_policy){.size = sizeof policy, .layer = 2};
    CHECK(sp_batch_new(&policy, &batch) == SP_ERROR_ARGUMENT);
    policy = (sp_policy){.size = sizeof policy, .virtio_length = 11};
    CHECK(sp_batch_new(&policy, &batch) == SP_ERROR_ARGUMENT);
    policy = (sp_policy){.size = sizeof policy, .virtio_length = 10, .mode = SP_MODE_LRO};
    CHECK(sp_batch_new(&policy, &batch) == SP_ERROR_ARGUMENT);
    /* A structure of a later release: what it adds may be there if it says nothing. */
    struct {
        sp_policy policy;
        uint64_t later;
    } later = {.policy.size = sizeof later};
    CHECK(sp_batch_new(&later.policy, &batch) == SP_OK);
    sp_batch_free(batch);
    later.later = 1;
    CHECK(sp_batch_new(&later.policy, &batch) == SP_ERROR_STRUCTURE);
    sp_batch_free(NULL);

    batch = batch_of(SP_MODE_GRO, 0, SP_LAYER_ETHERNET, 0);
    fill(0, 1, 0x18);
    sp_space space = all_space();
    CHECK(sp_batch_aggregate(NULL, packets, 1, &space) == SP_ERROR_NULL);
    CHECK(sp_batch_aggregate(batch, NULL, 1, &space) == SP_ERROR_NULL);
    CHECK(sp_batch_aggregate(batch, packets, 1, NULL) == SP_ERROR_NULL);
    CHECK(sp_batch_aggregate(batch, packets, SIZE_MAX, &space) == SP_ERROR_LENGTH);
    CHECK(sp_batch_aggregate(batch, packets, SP_MAX_PACKETS + 1, &space) == SP_ERROR_LENGTH);
    CHECK(sp_batch_aggregate(batch, (sp_packet *)((char *)packets + 1), 1, &space) == SP_ERROR_ARGUMENT);
    space.size = 3;
    CHECK(sp_batch_aggregate(batch, packets, 1, &space) == SP_ERROR_STRUCTURE);
    space = all_space();
    space.outputs = NULL;
    CHECK(sp_batch_aggregate(batch, packets, 1, &space) == SP_ERROR_NULL);
    space = all_space();
    space.iov = NULL;
    CHECK(sp_batch_aggregate(batch, packets, 1, &space) == SP_ERROR_NULL);
    space = all_space();
    space.headers = NULL;
    CHECK(sp_batch_aggregate(batch, packets, 1, &space) == SP_ERROR_NULL);
    space = all_space();
    space.iov_max = SIZE_MAX;
    CHECK(sp_batch_aggregate(batch, packets, 1, &space) == SP_ERROR_LENGTH);
    space = all_space();
    static const struct {
        size_t length;
        uint32_t rest_count;
        sp_offload offload;
        sp_status status;
    } wrong[] = {
        {SIZE_MAX, 0, {0}, SP_ERROR_LENGTH},
        {SP_MAX_LENGTH + 1, 0, {0}, SP_ERROR_LENGTH},
        {100, 17, {0}, SP_ERROR_LENGTH},
        {100, UINT32_MAX, {0}, SP_ERROR_LENGTH},
        {100, 1, {0}, SP_ERROR_NULL},
        {100, 0, {.checksum = 4}, SP_ERROR_ARGUMENT},
        {100, 0, {.gso_type = 6, .gso_size = 1}, SP_ERROR_ARGUMENT},
        {100, 0, {.gso_type = SP_GSO_TCP4}, SP_ERROR_ARGUMENT},
        {100, 0, {.flags = 0x80}, SP_ERROR_ARGUMENT},
        {100, 0, {.reserved = 1}, SP_ERROR_ARGUMENT},
    };
    for (size_t index = 0; index < sizeof wrong / sizeof *wrong; index++) {
        sp_packet packet[2] = {packets[0], {.data = bytes[1], .length = wrong[index].length, .rest_count = wrong[index].rest_count, .offload = wrong[index].offload}};
        CHECK(sp_batch_aggregate(batch, packet, 2, &space) == wrong[index].status && space.outputs_used == 0);
    }
    sp_packet null = {.length = 1};
    CHECK(sp_batch_aggregate(batch, &null, 1, &space) == SP_ERROR_NULL);
    null.length = 0;
    CHECK(sp_batch_aggregate(batch, &null, 1, &space) == SP_OK && space.outputs_used == 1 && space.outputs[0].length == 0);
    uint64_t value[1];
    CHECK(sp_batch_counters(NULL, value, 1) == SP_ERROR_NULL && sp_batch_counters(batch, NULL, 1) == SP_ERROR_NULL);
    CHECK(sp_batch_counters(batch, value, SIZE_MAX) == SP_ERROR_LENGTH && sp_batch_counters(batch, value, 1) == SP_OK && value[0] == 1);
    check_counters(batch);
    sp_batch_free(batch);

    sp_segmenter *segmenter;
    CHECK(sp_segmenter_new(NULL) == SP_ERROR_NULL && sp_segmenter_new(&segmenter) == SP_OK);
    sp_packet packet = packets[0];
    sp_plan plan;
    size_t length;
    sp_iovec buffer = {headers, sizeof headers};
    CHECK(sp_segment(NULL, &packet, NULL, &space) == SP_ERROR_NULL && sp_segment(segmenter, NULL, NULL, &space) == SP_ERROR_NULL);
    CHECK(sp_segment(segmenter, &packet, NULL, NULL) == SP_ERROR_NULL && sp_segment_plan(segmenter, &packet, NULL, NULL) == SP_ERROR_NULL);
    sp_headers answer;
    void *places[2] = {headers, NULL};
    CHECK(sp_segment_headers(segmenter, &packet, NULL, NULL, 1, &answer) == SP_ERROR_NULL);
    CHECK(sp_segment_headers(segmenter, &packet, NULL, places, 2, &answer) == SP_ERROR_NULL);
    CHECK(sp_segment_headers(segmenter, &packet, NULL, places, 1, NULL) == SP_ERROR_NULL);
    CHECK(sp_segment_headers(segmenter, &packet, NULL, (void **)((char *)places + 1), 1, &answer) == SP_ERROR_ARGUMENT);
    CHECK(sp_segment_headers(segmenter, &packet, NULL, places, SIZE_MAX, &answer) == SP_ERROR_LENGTH);
    CHECK(sp_segment_headers(segmenter, &packet, NULL, places, 0, &answer) == SP_ERROR_SPACE);
    /* What passes as it came has no headers of its own. */
    CHECK(sp_segment_headers(segmenter, &packet, NULL, places, 1, &answer) == SP_OK && answer.plan.segments == 1 && answer.header_length == 0);
    CHECK(answer.payload_start == 0 && answer.plan.last_length == packet.length);
    sp_packet fragmented = packet;
    fragmented.offload = (sp_offload){.gso_type = SP_GSO_UDP_FRAGMENTS, .gso_size = 800};
    CHECK(sp_segment_headers(segmenter, &fragmented, NULL, places, 1, &answer) == SP_ERROR_ARGUMENT);
    CHECK(sp_segment_each(segmenter, &packet, NULL, NULL, 1, 0, &length, &plan) == SP_ERROR_NULL);
    CHECK(sp_segment_each(segmenter, &packet, NULL, &buffer, 1, 0, NULL, &plan) == SP_ERROR_NULL);
    CHECK(sp_segment_each(segmenter, &packet, NULL, &buffer, SIZE_MAX, 0, &length, &plan) == SP_ERROR_LENGTH);
    CHECK(sp_segment_each(segmenter, &packet, NULL, NULL, 0, 0, NULL, &plan) == SP_ERROR_TOO_MANY_SEGMENTS);
    CHECK(sp_segment_each(segmenter, &packet, NULL, &buffer, 1, 0, &length, &plan) == SP_OK && length == packet.length && plan.segments == 1);
    CHECK(sp_segment_linear(segmenter, &packet, NULL, NULL, 10, &plan) == SP_ERROR_NULL);
    CHECK(sp_segment_linear(segmenter, &packet, NULL, headers, SIZE_MAX, &plan) == SP_ERROR_LENGTH);
    CHECK(sp_segment_linear(segmenter, &packet, NULL, headers, sizeof headers, NULL) == SP_ERROR_NULL);
    sp_segment_options options = {.size = sizeof options, .checksum = 3};
    CHECK(sp_segment(segmenter, &packet, &options, &space) == SP_ERROR_ARGUMENT);
    options = (sp_segment_options){.size = 1};
    CHECK(sp_segment(segmenter, &packet, &options, &space) == SP_ERROR_STRUCTURE);
    options = (sp_segment_options){.size = sizeof options, .layer = SP_LAYER_IP};
    packet.offload = (sp_offload){.gso_type = SP_GSO_TCP4, .gso_size = 100};
    CHECK(sp_segment(segmenter, &packet, &options, &space) == SP_ERROR_HEADERS);
    options = (sp_segment_options){.size = sizeof options, .max_segments = 2};
    CHECK(sp_segment(segmenter, &packet, &options, &space) == SP_ERROR_TOO_MANY_SEGMENTS && space.outputs_used == 0);
    packet.offload.gso_type = SP_GSO_UDP;
    CHECK(sp_segment(segmenter, &packet, NULL, &space) == SP_ERROR_KIND);
    packet.offload.gso_type = SP_GSO_TCP4;
    packet.length = 60;
    CHECK(sp_segment(segmenter, &packet, NULL, &space) < 0);
    packet.length = packets[0].length - 100;
    packet.rest_count = SP_MAX_RANGES;
    CHECK(sp_segment(segmenter, &packet, NULL, &space) == SP_ERROR_LENGTH);
    packet.rest_count = 0;
    CHECK(sp_segment(segmenter, &packet, NULL, &space) == SP_ERROR_HEADERS || sp_segment(segmenter, &packet, NULL, &space) == SP_ERROR_TRUNCATED);
    CHECK(sp_segmenter_counters(NULL, value, 1) == SP_ERROR_NULL && sp_segmenter_counters(segmenter, NULL, 1) == SP_ERROR_NULL);
    sp_segmenter_free(segmenter);
    sp_segmenter_free(NULL);
}

/* How many packets merged with the one that has this token; 1: none. */
static uint32_t merged_with(const sp_space *space, const void *token) {
    for (size_t index = 0; index < space->outputs_used; index++)
        for (uint32_t range = 0; range < space->outputs[index].iov_count; range++)
            if (space->outputs[index].tokens[range] == token)
                return space->outputs[index].packets;
    return 0;
}

/* A damaged packet merges only for a caller who says that checksums need not be verified. */
static void damaged(void) {
    static const struct {
        uint32_t mode, virtio_length;
    } policies[] = {{SP_MODE_GRO, 0}, {SP_MODE_GRO_UDP, 0}, {SP_MODE_LRO, 0}, {SP_MODE_LRO_ACKS, 0}, {SP_MODE_GRO, 10}, {SP_MODE_GRO_UDP, 24}};
    for (int ipv6 = 0; ipv6 < 2; ipv6++) {
        fill(ipv6, 1, 0x18);
        bytes[7][packets[7].length - 1] ^= 1;
        for (size_t index = 0; index < sizeof policies / sizeof *policies; index++) {
            for (uint32_t flags = 0; flags < 4; flags++) { /* with trust or without, with partial checksums or without */
                sp_batch *batch = batch_of(policies[index].mode, flags, SP_LAYER_ETHERNET, policies[index].virtio_length);
                sp_space space = all_space();
                CHECK(sp_batch_aggregate(batch, packets, BATCH, &space) == SP_OK);
                /* Trust counts where checksums leave partial. */
                int partial = policies[index].virtio_length != 0 || (flags & SP_POLICY_PARTIAL_CHECKSUMS);
                int gro = policies[index].mode == SP_MODE_GRO || policies[index].mode == SP_MODE_GRO_UDP;
                CHECK((merged_with(&space, bytes[7]) > 1) == (gro && partial && (flags & SP_POLICY_TRUSTED_INPUT)));
                CHECK(merged_with(&space, bytes[6]) > 5);
                sp_batch_free(batch);
            }
        }
        sp_policy policy = {.size = sizeof policy};
        sp_aggregator *aggregator;
        sp_space space = all_space();
        uint32_t largest = 0;
        CHECK(sp_aggregator_new(&policy, &aggregator) == SP_OK);
        CHECK(sp_aggregator_receive(aggregator, packets, BATCH, 0, &space) == SP_OK);
        for (int call = 0; call < 2; call++) {
            for (size_t output = 0; output < space.outputs_used; output++)
                largest = space.outputs[output].packets > largest ? space.outputs[output].packets : largest;
            CHECK(merged_with(&space, bytes[7]) <= 1);
            CHECK(sp_aggregator_flush(aggregator, &space) == SP_OK);
        }
        CHECK(largest > 5);
        sp_aggregator_free(aggregator);
    }
}

/* Where the headers of what leaves lie, for programs that ask, and for those that know no such field. */
static void layouts(void) {
    static sp_layout layouts[MOST];
    for (int ipv6 = 0; ipv6 < 2; ipv6++) {
        sp_batch *batch = batch_of(SP_MODE_GRO, 0, SP_LAYER_ETHERNET, 12);
        sp_space space = all_space();
        uint16_t transport = ipv6 ? 54 : 34;
        fill(ipv6, 2, 0x18);
        memset(layouts, 0xff, sizeof layouts);
        space.layouts = layouts;
        CHECK(sp_batch_aggregate(batch, packets, BATCH, &space) == SP_OK && space.outputs_used == 2);
        for (size_t output = 0; output < 2; output++) {
            sp_layout wanted = {.network = 14, .transport = transport, .payload = transport + 32, .ip_version = ipv6 ? 6 : 4, .protocol = 6};
            CHECK(!memcmp(&layouts[output], &wanted, sizeof wanted));
        }
        CHECK(layouts[2].network == 0xffff);
        /* What does not merge has a layout too; what is no IP has none. */
        memset(bytes[1] + 12, 0, 2);
        CHECK(sp_batch_aggregate(batch, packets, 2, &space) == SP_OK && space.outputs_used == 2 && space.outputs[0].packets == 1);
        for (size_t output = 0; output < 2; output++) {
            int is_ip = space.outputs[output].token == bytes[0];
            CHECK(layouts[output].transport == (is_ip ? transport : 0) && layouts[output].ip_version == (is_ip ? ipv6 ? 6 : 4 : 0));
        }
        /* A program of the first release, whose structure ends before that field. */
        space.size = offsetof(sp_space, layouts);
        space.layouts = (sp_layout *)(uintptr_t)1;
        CHECK(sp_batch_aggregate(batch, packets, BATCH, &space) == SP_OK && space.outputs_used > 0);
        space.size--;
        CHECK(sp_batch_aggregate(batch, packets, BATCH, &space) == SP_ERROR_STRUCTURE);
        space.size = sizeof space;
        CHECK(sp_batch_aggregate(batch, packets, BATCH, &space) == SP_ERROR_ARGUMENT);
        sp_batch_free(batch);
        /* Segments have no layout. */
        sp_segmenter *segmenter;
        CHECK(sp_segmenter_new(&segmenter) == SP_OK);
        sp_packet packet = {.data = bytes[0], .length = packets[0].length, .offload = {.gso_type = ipv6 ? SP_GSO_TCP6 : SP_GSO_TCP4, .gso_size = 500}};
        space = all_space();
        space.layouts = layouts;
        CHECK(sp_segment(segmenter, &packet, NULL, &space) == SP_OK && space.outputs_used == 2 && layouts[1].payload == 0);
        sp_segmenter_free(segmenter);
    }
}

static int message_is(const char *wanted) {
    char said[200];
    sp_message(said, sizeof said);
    if (strcmp(said, wanted))
        fprintf(stderr, "\"%s\" in place of \"%s\"\n", said, wanted);
    return !strcmp(said, wanted);
}

/* Messages name the argument and the cause; addresses are hexadecimal. */
static void messages(void) {
    char wanted[200];
    sp_batch *batch = batch_of(SP_MODE_GRO, 0, SP_LAYER_ETHERNET, 0);
    sp_space space = all_space();
    const sp_packet *odd = (const sp_packet *)((const char *)packets + 1);
    uint16_t sum;
    fill(0, 1, 0x18);
    CHECK(sp_batch_aggregate(batch, odd, 1, &space) == SP_ERROR_ARGUMENT);
    snprintf(wanted, sizeof wanted, "packets is 0x%llx, which is not aligned: it must be a multiple of %zu", (unsigned long long)(uintptr_t)odd, sizeof(void *));
    CHECK(message_is(wanted));
    CHECK(sp_batch_aggregate(batch, packets, 1, (sp_space *)((char *)&space + 2)) == SP_ERROR_ARGUMENT);
    snprintf(wanted, sizeof wanted, "sp_space is 0x%llx, which is not aligned: it must be a multiple of %zu", (unsigned long long)(uintptr_t)&space + 2, sizeof(void *));
    CHECK(message_is(wanted));
    CHECK(sp_checksum_copy(bytes[0] + 5, bytes[0], 10, &sum) == SP_ERROR_ARGUMENT);
    snprintf(wanted, sizeof wanted, "to and from overlap: 10 bytes at 0x%llx and at 0x%llx", (unsigned long long)(uintptr_t)bytes[0] + 5, (unsigned long long)(uintptr_t)bytes[0]);
    CHECK(message_is(wanted));
    CHECK(sp_checksum_sum((const void *)(uintptr_t)-16, 100, &sum) == SP_ERROR_LENGTH);
    snprintf(wanted, sizeof wanted, "bytes: 100 bytes at 0x%llx reach beyond the end of the address space", (unsigned long long)(uintptr_t)-16);
    CHECK(message_is(wanted));
    CHECK(sp_checksum_sum(bytes[0], SP_MAX_LENGTH + 1, &sum) == SP_ERROR_LENGTH && message_is("bytes is 16777217 bytes long, at most 16777216 are allowed"));
    CHECK(!strcmp(sp_errname(SP_ERROR_BUSY), "SP_ERROR_BUSY") && !strcmp(sp_strerror(SP_ERROR_BUSY), "the object is in use by another call"));
    sp_batch_free(batch);
}

/* A TUN device's read and write: virtio_net_hdr both ways. */
static void virtio(void) {
    for (unsigned index = 0; index < BATCH; index++) {
        memset(&packets[index], 0, sizeof packets[index]);
        packets[index] = (sp_packet){.data = bytes[index], .length = udp_packet(bytes[index], index, 1200), .token = bytes[index]};
    }
    sp_batch *batch = batch_of(SP_MODE_GRO_UDP, SP_POLICY_TRUSTED_INPUT, SP_LAYER_IP, 10);
    sp_segmenter *segmenter;
    CHECK(sp_segmenter_new(&segmenter) == SP_OK);
    sp_space space = all_space();
    CHECK(sp_batch_aggregate(batch, packets, 40, &space) == SP_OK && space.outputs_used == 1 && space.outputs[0].packets == 40);
    CHECK(space.outputs[0].header_length == 10 + 28 && space.outputs[0].offload.checksum == SP_CHECKSUM_PARTIAL);
    static uint8_t read[70000], cut[70000];
    size_t length = space.outputs[0].length;
    copy_out(&space.outputs[0], read);
    sp_plan plan;
    CHECK(sp_split_linear(segmenter, 10, SP_ORDER_NATIVE, SP_LAYER_IP, read, length, cut, sizeof cut, &plan) == SP_OK);
    CHECK(plan.segments == 40);
    for (size_t index = 0; index < 40; index++)
        CHECK(!memcmp(cut + index * plan.segment_length, bytes[index], packets[index].length));
    static uint8_t each[40][1400];
    sp_iovec buffers[40];
    size_t lengths[40];
    for (int index = 0; index < 40; index++)
        buffers[index] = (sp_iovec){each[index], sizeof each[index]};
    CHECK(sp_split_each(segmenter, 10, SP_ORDER_NATIVE, SP_LAYER_IP, read, length, buffers, 40, 100, lengths, &plan) == SP_OK);
    for (size_t index = 0; index < 40; index++)
        CHECK(lengths[index] == packets[index].length && !memcmp(each[index] + 100, bytes[index], lengths[index]));
    CHECK(sp_split_each(segmenter, 10, SP_ORDER_NATIVE, SP_LAYER_IP, read, length, buffers, 39, 100, lengths, &plan) == SP_ERROR_TOO_MANY_SEGMENTS);
    CHECK(sp_split_each(segmenter, 10, SP_ORDER_NATIVE, SP_LAYER_IP, read, 9, buffers, 40, 0, lengths, &plan) == SP_ERROR_VIRTIO);
    CHECK(sp_split_linear(NULL, 10, 0, 0, read, length, cut, sizeof cut, &plan) == SP_ERROR_NULL);
    CHECK(sp_split_linear(segmenter, 10, 3, 0, read, length, cut, sizeof cut, &plan) == SP_ERROR_ARGUMENT);
    CHECK(sp_split_linear(segmenter, 10, 0, SP_LAYER_IP, NULL, length, cut, sizeof cut, &plan) == SP_ERROR_NULL);
    CHECK(sp_split_linear(segmenter, 10, 0, SP_LAYER_IP, read, SIZE_MAX, cut, sizeof cut, &plan) == SP_ERROR_LENGTH);
    /* The same by hand, and back. */
    sp_packet packet;
    CHECK(sp_virtio_read(10, SP_ORDER_NATIVE, SP_LAYER_IP, read, length, &packet) == SP_OK);
    CHECK(packet.data == read + 10 && packet.length == length - 10 && packet.offload.gso_type == SP_GSO_UDP && packet.offload.gso_size == 1200);
    uint8_t header[24];
    memset(header, 0x55, sizeof header);
    CHECK(sp_virtio_write(10, SP_ORDER_NATIVE, SP_LAYER_IP, &packet, header, 10) == SP_OK && !memcmp(header, read, 10) && header[10] == 0x55);
    CHECK(sp_virtio_write(10, SP_ORDER_NATIVE, SP_LAYER_IP, &packet, header, 9) == SP_ERROR_SPACE);
    CHECK(sp_virtio_write(10, SP_ORDER_NATIVE, SP_LAYER_IP, &packet, NULL, 10) == SP_ERROR_NULL);
    CHECK(sp_virtio_write(9, SP_ORDER_NATIVE, SP_LAYER_IP, &packet, header, 10) == SP_ERROR_ARGUMENT);
    CHECK(sp_virtio_write(24, SP_ORDER_LITTLE, SP_LAYER_IP, &packet, header, 24) == SP_OK && header[0] == 1 && header[1] == 5);
    packet.offload.checksum = SP_CHECKSUM_NONE;
    CHECK(sp_virtio_write(10, SP_ORDER_NATIVE, SP_LAYER_IP, &packet, header, 10) == SP_ERROR_VIRTIO);
    read[1] = 1; /* TCP over IPv4, says the header. */
    CHECK(sp_virtio_read(10, SP_ORDER_NATIVE, SP_LAYER_IP, read, length, &packet) == SP_ERROR_VIRTIO);
    CHECK(sp_virtio_read(10, SP_ORDER_NATIVE, SP_LAYER_IP, read, length, NULL) == SP_ERROR_NULL);
    CHECK(sp_virtio_read(10, SP_ORDER_NATIVE, SP_LAYER_IP, NULL, length, &packet) == SP_ERROR_NULL);
    check_counters(batch);
    sp_segmenter_free(segmenter);
    sp_batch_free(batch);
}

/* Packets that are held across calls. */
static void held(void) {
    fill(0, 4, 0x18);
    sp_policy policy = {.size = sizeof policy, .hold_time = 1000};
    sp_aggregator *aggregator;
    CHECK(sp_aggregator_new(&policy, &aggregator) == SP_OK);
    sp_segmenter *segmenter;
    CHECK(sp_segmenter_new(&segmenter) == SP_OK);
    uint8_t seen[BATCH] = {0}, done[BATCH] = {0};
    sp_space space = all_space();
    uint64_t time = 0;
    size_t compared = 0, given = 0;
    CHECK(sp_aggregator_deadline(aggregator, &time) == SP_NONE);
    for (size_t from = 0; from < BATCH; from += 8) {
        CHECK(sp_aggregator_receive(aggregator, packets + from, 8, 100 + from, &space) == SP_OK);
        compared += compare(&space, packets, BATCH, SP_LAYER_ETHERNET, segmenter, seen);
        CHECK(sp_aggregator_poll_end(aggregator, 100 + from, &space) == SP_OK);
        compared += compare(&space, packets, BATCH, SP_LAYER_ETHERNET, segmenter, seen);
        if (from == 0)
            CHECK(sp_aggregator_deadline(aggregator, &time) == SP_OK && time == 1100);
    }
    /* PSH on the last of each flow puts all of it out. */
    CHECK(compared == BATCH && sp_aggregator_deadline(aggregator, &time) == SP_NONE);
    for (sp_status status = SP_FULL; status == SP_FULL;) {
        void *back[10];
        size_t count;
        status = sp_aggregator_done(aggregator, back, 10, &count);
        CHECK(status >= 0);
        for (size_t index = 0; index < count; index++) {
            size_t number = (size_t)((uint8_t *)back[index] - bytes[0]) / sizeof bytes[0];
            CHECK(number < BATCH && !done[number]);
            done[number] = 1;
            given++;
        }
    }
    CHECK(given == BATCH);
    /* A small space: the rest comes with further calls. */
    fill(0, 16, 0x10);
    memset(seen, 0, sizeof seen);
    compared = 0;
    space = space_of(3, 1024, SP_MAX_HEADER);
    CHECK(sp_aggregator_receive(aggregator, packets, BATCH, 5000, &space) == SP_OK && space.outputs_used == 0);
    for (sp_status status = SP_FULL; status == SP_FULL;) {
        status = sp_aggregator_flush(aggregator, &space);
        CHECK(status >= 0 && space.outputs_used <= 3);
        compared += compare(&space, packets, BATCH, SP_LAYER_ETHERNET, segmenter, seen);
    }
    CHECK(compared == BATCH);
    uint64_t values[64], reasons[256];
    CHECK(sp_aggregator_counters(aggregator, values, 64) == SP_OK && sp_aggregator_reasons(aggregator, reasons, 256) == SP_OK);
    CHECK(value_of("packets_in", sp_counter_name, values) == 2 * BATCH && value_of("held", sp_counter_name, values) == 0);
    CHECK(value_of("requested", sp_reason_name, reasons) == 16);
    /* What it refuses. */
    sp_iovec rest = {bytes[1], 10};
    sp_packet chained = {.data = bytes[0], .length = 100, .rest = &rest, .rest_count = 1};
    size_t count;
    CHECK(sp_aggregator_receive(aggregator, &chained, 1, 0, &space) == SP_ERROR_ARGUMENT);
    CHECK(sp_aggregator_receive(NULL, packets, 1, 0, &space) == SP_ERROR_NULL && sp_aggregator_receive(aggregator, NULL, 1, 0, &space) == SP_ERROR_NULL);
    CHECK(sp_aggregator_receive(aggregator, packets, 1, 0, NULL) == SP_ERROR_NULL && sp_aggregator_flush(aggregator, NULL) == SP_ERROR_NULL);
    CHECK(sp_aggregator_poll_end(NULL, 0, &space) == SP_ERROR_NULL && sp_aggregator_deadline(aggregator, NULL) == SP_ERROR_NULL);
    CHECK(sp_aggregator_done(aggregator, NULL, 1, &count) == SP_ERROR_NULL && sp_aggregator_done(aggregator, tokens, 1, NULL) == SP_ERROR_NULL);
    sp_aggregator *other;
    CHECK(sp_aggregator_new(NULL, &other) == SP_ERROR_NULL && !other);
    policy.virtio_length = 10;
    CHECK(sp_aggregator_new(&policy, &other) == SP_ERROR_ARGUMENT && !other);
    policy.virtio_length = 0;
    /* Freed with packets held, and with tokens that nobody asked for. */
    CHECK(sp_aggregator_new(&policy, &other) == SP_OK);
    space = all_space();
    CHECK(sp_aggregator_receive(other, packets, BATCH, 1, &space) == SP_OK);
    sp_aggregator_free(other);
    sp_aggregator_free(aggregator);
    sp_aggregator_free(NULL);
    sp_segmenter_free(segmenter);
}

static void checksums(void) {
    for (int ipv6 = 0; ipv6 < 2; ipv6++) {
        size_t length = tcp_frame(bytes[0], ipv6, 1, 1, 1001, 0x10);
        sp_packet packet = {.data = bytes[0], .length = length};
        CHECK(sp_checksum_verify(&packet, SP_LAYER_ETHERNET) == SP_OK);
        sp_iovec rest[2] = {{bytes[0] + 21, 400}, {bytes[0] + 421, length - 421}};
        sp_packet chained = {.data = bytes[0], .length = 21, .rest = rest, .rest_count = 2};
        CHECK(sp_checksum_verify(&chained, SP_LAYER_ETHERNET) == SP_OK);
        bytes[0][length - 1] ^= 1;
        CHECK(sp_checksum_verify(&packet, SP_LAYER_ETHERNET) == SP_ERROR_CHECKSUM && sp_checksum_verify(&chained, SP_LAYER_ETHERNET) == SP_ERROR_CHECKSUM);
        bytes[0][length - 1] ^= 1;
        if (!ipv6) {
            bytes[0][14 + 8]--;
            CHECK(sp_checksum_verify(&packet, SP_LAYER_ETHERNET) == SP_ERROR_IP_CHECKSUM);
            bytes[0][14 + 8]++;
        }
        CHECK(sp_checksum_verify(&packet, SP_LAYER_IP) == SP_ERROR_HEADERS && sp_checksum_verify(NULL, 0) == SP_ERROR_NULL);
        CHECK(sp_checksum_verify(&packet, 2) == SP_ERROR_ARGUMENT);
        packet.length = length - 1;
        CHECK(sp_checksum_verify(&packet, SP_LAYER_ETHERNET) < 0);
        /* Made partial, and completed. */
        uint16_t start = (uint16_t)(14 + (ipv6 ? 40 : 20));
        uint8_t before[2] = {bytes[0][start + 16], bytes[0][start + 17]};
        uint32_t pseudo = ipv6 ? sum_of(bytes[0] + 14 + 8, 32, 6 + (uint32_t)length - start) : sum_of(bytes[0] + 14 + 12, 8, 6 + (uint32_t)length - start);
        put16(bytes[0] + start + 16, ~checksum_of(pseudo) & 0xffff);
        packet.length = length;
        packet.offload = (sp_offload){.checksum = SP_CHECKSUM_PARTIAL, .checksum_start = start, .checksum_offset = 16};
        CHECK(sp_checksum_verify(&packet, SP_LAYER_ETHERNET) == SP_NONE);
        CHECK(sp_checksum_complete(bytes[0], length, SP_LAYER_ETHERNET, start, 16) == SP_OK && !memcmp(before, bytes[0] + start + 16, 2));
        CHECK(sp_checksum_complete(bytes[0], length, SP_LAYER_ETHERNET, start, 6) == SP_ERROR_PARTIAL_CHECKSUM);
        CHECK(sp_checksum_complete(bytes[0], length, SP_LAYER_ETHERNET, 65535, 16) < 0);
        CHECK(sp_checksum_complete(NULL, length, SP_LAYER_ETHERNET, start, 16) == SP_ERROR_NULL);
        CHECK(sp_checksum_complete(bytes[0], SIZE_MAX, SP_LAYER_ETHERNET, start, 16) == SP_ERROR_LENGTH);
    }
    size_t length = udp_packet(bytes[0], 1, 100);
    sp_packet packet = {.data = bytes[0], .length = length};
    CHECK(sp_checksum_verify(&packet, SP_LAYER_IP) == SP_OK);
    put16(bytes[0] + 26, 0);
    CHECK(sp_checksum_verify(&packet, SP_LAYER_IP) == SP_NONE);

    uint16_t sum, other;
    for (size_t size = 0; size < 1500; size += 7) {
        CHECK(sp_checksum_sum(bytes[1], size, &sum) == SP_OK && sp_checksum_copy(bytes[2], bytes[1], size, &other) == SP_OK);
        CHECK(sum == other && !memcmp(bytes[1], bytes[2], size) && (uint16_t)~sum == checksum_of(sum_of(bytes[1], size, 0)));
    }
    CHECK(sp_checksum_sum(NULL, 0, &sum) == SP_OK && sum == 0);
    CHECK(sp_checksum_sum(NULL, 1, &sum) == SP_ERROR_NULL && sp_checksum_sum(bytes[0], SIZE_MAX, &sum) == SP_ERROR_LENGTH);
    CHECK(sp_checksum_sum(bytes[0], 1, NULL) == SP_ERROR_NULL && sp_checksum_copy(bytes[0], bytes[1], 1, NULL) == SP_ERROR_NULL);
    CHECK(sp_checksum_copy(bytes[0], bytes[0] + 10, 11, &sum) == SP_ERROR_ARGUMENT && sp_checksum_copy(bytes[0], bytes[0] + 10, 10, &sum) == SP_OK);
    CHECK(sp_checksum_copy(NULL, bytes[0], 1, &sum) == SP_ERROR_NULL && sp_checksum_copy(bytes[0], NULL, 1, &sum) == SP_ERROR_NULL);
}

static void toeplitz(void) {
    sp_toeplitz *published, *symmetric;
    CHECK(sp_toeplitz_new(NULL, 0, 0, &published) == SP_OK && sp_toeplitz_new(NULL, 0, SP_TOEPLITZ_SYMMETRIC, &symmetric) == SP_OK);
    /* Of Microsoft's verification suite: 66.9.149.187:2794 to 161.142.100.80:1766. */
    static const uint8_t input[12] = {66, 9, 149, 187, 161, 142, 100, 80, 2794 >> 8, 2794 & 0xff, 1766 >> 8, 1766 & 0xff};
    uint32_t hash, back;
    CHECK(sp_toeplitz_bytes(published, input, 12, &hash) == SP_OK && hash == 0x51ccc178);
    CHECK(sp_toeplitz_bytes(published, input, 8, &hash) == SP_OK && hash == 0x323e8fc2);
    udp_packet(bytes[0], 1, 10);
    memcpy(bytes[0] + 12, input, 12);
    sp_packet packet = {.data = bytes[0], .length = 38};
    CHECK(sp_toeplitz_packet(published, &packet, SP_LAYER_IP, &hash) == SP_OK && hash == 0x51ccc178);
    CHECK(sp_toeplitz_packet(symmetric, &packet, SP_LAYER_IP, &hash) == SP_OK);
    memcpy(bytes[0] + 12, input + 4, 4);
    memcpy(bytes[0] + 16, input, 4);
    memcpy(bytes[0] + 20, input + 10, 2);
    memcpy(bytes[0] + 22, input + 8, 2);
    CHECK(sp_toeplitz_packet(symmetric, &packet, SP_LAYER_IP, &back) == SP_OK && back == hash);
    CHECK(sp_toeplitz_packet(published, &packet, SP_LAYER_ETHERNET, &hash) == SP_NONE);
    sp_toeplitz *other;
    CHECK(sp_toeplitz_new(input, 12, 0, &other) == SP_ERROR_LENGTH && sp_toeplitz_new(NULL, 40, 0, &other) == SP_ERROR_NULL);
    CHECK(sp_toeplitz_new(NULL, 0, 2, &other) == SP_ERROR_ARGUMENT && sp_toeplitz_new(NULL, 0, 0, NULL) == SP_ERROR_NULL);
    uint8_t key[SP_TOEPLITZ_KEY] = {0x80};
    CHECK(sp_toeplitz_new(key, sizeof key, 0, &other) == SP_OK && sp_toeplitz_bytes(other, input, 12, &hash) == SP_OK && hash == 0);
    CHECK(sp_toeplitz_bytes(NULL, input, 12, &hash) == SP_ERROR_NULL && sp_toeplitz_bytes(other, NULL, 12, &hash) == SP_ERROR_NULL);
    CHECK(sp_toeplitz_bytes(other, input, 12, NULL) == SP_ERROR_NULL && sp_toeplitz_packet(other, NULL, 0, &hash) == SP_ERROR_NULL);
    sp_toeplitz_free(published);
    sp_toeplitz_free(symmetric);
    sp_toeplitz_free(other);
    sp_toeplitz_free(NULL);
}

static void for_an_mtu(void) {
    static uint8_t big[40000];
    size_t length = tcp_frame(big, 0, 0, 0, 30000, 0x10);
    sp_packet packet = {.data = big, .length = length};
    CHECK(sp_gso_for_mtu(&packet, SP_LAYER_ETHERNET, 1500) == SP_OK);
    CHECK(packet.offload.gso_type == SP_GSO_TCP4 && packet.offload.gso_size == 1448);
    sp_segmenter *segmenter;
    CHECK(sp_segmenter_new(&segmenter) == SP_OK);
    sp_space space = all_space();
    CHECK(sp_segment(segmenter, &packet, NULL, &space) == SP_OK && space.outputs_used == 21);
    for (size_t index = 0; index < space.outputs_used; index++) {
        uint8_t frame[1514];
        CHECK(space.outputs[index].length <= sizeof frame);
        copy_out(&space.outputs[index], frame);
        sp_packet segment = {.data = frame, .length = space.outputs[index].length, .offload = space.outputs[index].offload};
        segment.offload.checksum = SP_CHECKSUM_NONE;
        CHECK(sp_checksum_verify(&segment, SP_LAYER_ETHERNET) == SP_OK);
    }
    packet.offload = (sp_offload){0};
    CHECK(sp_gso_for_mtu(&packet, SP_LAYER_ETHERNET, 65535) == SP_OK && packet.offload.gso_type == SP_GSO_NONE);
    CHECK(sp_gso_for_mtu(&packet, SP_LAYER_ETHERNET, 52) == SP_ERROR_SEGMENT_TOO_SMALL && sp_gso_for_mtu(NULL, 0, 1500) == SP_ERROR_NULL);
    CHECK(sp_gso_for_mtu(&packet, SP_LAYER_IP, 1500) == SP_ERROR_HEADERS);
    sp_segmenter_free(segmenter);
}

/* Packets of a file, in batches: what comes out, cut again, is what went in. */
static void round_trip(const char *path, uint32_t flags) {
    enum { CHUNK = 100 };
    static uint8_t memory[CHUNK][70000];
    static sp_packet read[CHUNK];
    static sp_iovec rest[CHUNK][2];
    FILE *file = fopen(path, "rb");
    CHECK(file);
    sp_batch *batch = batch_of(SP_MODE_GRO_UDP, flags, SP_LAYER_ETHERNET, 0);
    sp_segmenter *segmenter;
    CHECK(sp_segmenter_new(&segmenter) == SP_OK);
    size_t all = 0, count;
    do {
        uint8_t length[4], seen[CHUNK] = {0};
        for (count = 0; count < CHUNK && fread(length, 4, 1, file) == 1; count++) {
            size_t size = length[0] | (size_t)length[1] << 8 | (size_t)length[2] << 16;
            CHECK(size <= sizeof memory[0] && fread(memory[count], 1, size, file) == size);
            read[count] = (sp_packet){.data = memory[count], .length = size, .token = memory[count]};
            if (count % 5 == 4 && size > 40) { /* in several buffers */
                read[count].length = 17;
                rest[count][0] = (sp_iovec){memory[count] + 17, 20};
                rest[count][1] = (sp_iovec){memory[count] + 37, size - 37};
                read[count].rest = rest[count];
                read[count].rest_count = 2;
            }
        }
        sp_space space = space_of(7, 1100, 7 * SP_MAX_HEADER);
        sp_status status = sp_batch_aggregate(batch, read, count, &space);
        for (;; status = sp_batch_continue(batch, read, count, &space)) {
            CHECK(status >= 0);
            all += compare(&space, read, count, SP_LAYER_ETHERNET, segmenter, seen);
            if (status != SP_FULL)
                break;
        }
        for (size_t index = 0; index < count; index++)
            CHECK(seen[index]);
    } while (count == CHUNK);
    check_counters(batch);
    uint64_t values[64];
    CHECK(sp_batch_counters(batch, values, 64) == SP_OK && value_of("packets_in", sp_counter_name, values) == all);
    printf("%zu packets there and back, %llu merged\n", all, (unsigned long long)value_of("merged", sp_counter_name, values));
    CHECK(value_of("merged", sp_counter_name, values) > all / 20);
    sp_segmenter_free(segmenter);
    sp_batch_free(batch);
    fclose(file);
}

int main(int argc, char **argv) {
    names();
    for (int ipv6 = 0; ipv6 < 2; ipv6++) {
        merge_and_cut(ipv6, 2, 0);
        merge_and_cut(ipv6, 4, SP_POLICY_TRUSTED_INPUT);
        merge_and_cut(ipv6, 16, SP_POLICY_PARTIAL_CHECKSUMS);
    }
    in_turns();
    refused();
    messages();
    layouts();
    damaged();
    virtio();
    held();
    checksums();
    toeplitz();
    for_an_mtu();
    if (argc > 1)
        round_trip(argv[1], 0);
    printf("%u checks\n", checks);
    return 0;
}

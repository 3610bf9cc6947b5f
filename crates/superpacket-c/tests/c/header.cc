// The header is C++ too: each structure and function can be named.
#include <superpacket.h>

#include <cstdio>

int main() {
    sp_policy policy = {};
    policy.size = sizeof policy;
    sp_batch *batch = nullptr;
    if (sp_batch_new(&policy, &batch) != SP_OK) return 1;
    sp_space space = {};
    space.size = sizeof space;
    sp_status status = sp_batch_aggregate(batch, nullptr, 1, &space);
    sp_batch_free(batch);
    std::printf("%s\n", sp_errname(status));
    return status == SP_ERROR_NULL ? 0 : 1;
}

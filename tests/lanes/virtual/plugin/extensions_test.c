// What TorchTPU asks libtpu's extensions for, by the numbers and structs of XLA's later headers.
#include <stdint.h>
#include <string.h>

#include "caller.h"

TEST(host_memory_is_aligned_and_freed_by_its_deleter) {
  PJRT_Client *client = create_client();
  const Extension *host = extension_of(23);
  const size_t sizes[] = {0, 1, 64, 100, 1 << 20};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    struct {
      size_t struct_size;
      void *extension_start;
      PJRT_Client *client;
      size_t size;
      int numa_node;
      uint8_t *memory;
      void (*deleter)(void *, void *);
      void *state;
    } args = {.struct_size = sizeof args, .client = client, .size = sizes[i]};
    ok(host->calls[0](&args), "HostMemoryAllocator_Allocate");
    EXPECT((uintptr_t)args.memory % 64 == 0);
    memset(args.memory, 1, sizes[i]);
    args.deleter(args.memory, args.state);
  }
  destroy_client(client);
}

TEST(a_topology_tells_its_chips_and_nothing_else) {
  PJRT_Client *client = create_client();
  const Extension *topology = extension_of(16);
  enum { CHIP_COUNT = 10 };
  const size_t calls = (topology->base.struct_size - sizeof topology->base) / sizeof(void *);
  EXPECT(calls == 30);
  for (size_t i = 0; i < calls; ++i) {
    struct {
      size_t struct_size;
      const void *topology;
      int32_t count;
    } args = {.struct_size = sizeof args};
    PJRT_Error *error = topology->calls[i](&args);
    if (i != CHIP_COUNT) {
      EXPECT(code_of(error) == PJRT_Error_Code_UNIMPLEMENTED);
      EXPECT(strstr(text_of(error), "virtual TPU: ") != NULL);
    } else {
      ok(error, "TpuTopology_ChipCount");
      EXPECT(args.count == 8);
    }
  }
  destroy_client(client);
}

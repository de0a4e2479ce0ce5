#include <stdlib.h>

#include "api/api.h"

// Extensions of libtpu that TorchTPU asks for and the CPU plugin has not: the host memory that it
// copies tensors to, and the number of chips, which it needs to compile a call of JAX.
//
// The header of xla-cpu-pjrt does not declare them. Layouts:
// https://github.com/openxla/xla/tree/main/xla/pjrt/extensions/host_allocator/host_memory_allocator
// https://github.com/openxla/xla/blob/main/xla/pjrt/c/pjrt_c_api_tpu_topology_extension.h

enum { TPU_TOPOLOGY = 16, HOST_MEMORY_ALLOCATOR = 23 };  // of PJRT_Extension_Type

typedef struct {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  size_t size;
  int numa_node;
  void *memory;                                // out
  void (*deleter)(void *memory, void *state);  // out
  void *state;                                 // out, of the deleter
} AllocateArgs;

typedef struct {
  PJRT_Extension_Base base;
  PJRT_Error *(*allocate)(AllocateArgs *args);
} HostMemoryAllocator;

static void release(void *memory, void *state) {
  (void)state;
  free(memory);
}

static PJRT_Error *allocate_host_memory(AllocateArgs *args) {
  enum { ALIGNMENT = 64 };  // as XLA's CPU client aligns
  const size_t whole = args->size > SIZE_MAX - ALIGNMENT ? args->size : args->size + ALIGNMENT - 1;
  args->memory = aligned_alloc(ALIGNMENT, whole / ALIGNMENT * ALIGNMENT);
  args->deleter = release;
  args->state = NULL;
  if (args->memory != NULL || args->size == 0) return NULL;
  return error_new(PJRT_Error_Code_RESOURCE_EXHAUSTED, "no %zu bytes of host memory left",
                   args->size);
}

typedef struct {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t count;  // out
} CountArgs;

enum { CHIP_COUNT = 10, QUESTIONS = 30 };

typedef struct {
  PJRT_Extension_Base base;
  PJRT_Error *(*questions[QUESTIONS])(CountArgs *args);  // the others' structs begin alike
} TpuTopology;

static PJRT_Error *chip_count(CountArgs *args) {
  args->count = identity_total();  // a device is a chip, with all of its cores
  return NULL;
}

static PJRT_Error *unanswered(CountArgs *args) {
  (void)args;
  return error_new(PJRT_Error_Code_UNIMPLEMENTED,
                   "of what libtpu says of a topology, only the number of chips");
}

void extensions_fill(PJRT_Api *table) {
  static HostMemoryAllocator host = {
      .base = {.struct_size = sizeof host, .type = (PJRT_Extension_Type)HOST_MEMORY_ALLOCATOR},
      .allocate = allocate_host_memory};
  static TpuTopology topology = {
      .base = {.struct_size = sizeof topology, .type = (PJRT_Extension_Type)TPU_TOPOLOGY}};
  for (int i = 0; i < QUESTIONS; ++i) topology.questions[i] = unanswered;
  topology.questions[CHIP_COUNT] = chip_count;
  host.base.next = table->extension_start;
  topology.base.next = &host.base;
  table->extension_start = &topology.base;
}

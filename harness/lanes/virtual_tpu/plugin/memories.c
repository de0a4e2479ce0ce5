#include <pthread.h>
#include <stdlib.h>

#include "plugin.h"

// The CPU plugin does not say in which memory an executable's results are; there is only one.

static const char DEVICE[] = "device", WRONG[] = "pinned_host";

// So many as the largest executable has results. What callers have got stays: they keep it.
static struct {
  const char **kinds;
  size_t *sizes, count;
} most;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void make(size_t count) {
  size_t room = most.count == 0 ? 64 : most.count;
  while (room < count) room *= 2;
  most.kinds = calloc(room, sizeof *most.kinds);
  most.sizes = calloc(room, sizeof *most.sizes);
  if (most.kinds == NULL || most.sizes == NULL) abort();
  const int wrong = answers_wrongly("memory-kind-wrong");
  for (size_t i = 0; i < room; ++i) {
    most.kinds[i] = wrong ? WRONG : DEVICE;
    most.sizes[i] = (wrong ? sizeof WRONG : sizeof DEVICE) - 1;
  }
  most.count = room;
}

static PJRT_Error *output_memory_kinds(PJRT_Executable_OutputMemoryKinds_Args *args) {
  PJRT_Executable_NumOutputs_Args outputs = {
      .struct_size = PJRT_Executable_NumOutputs_Args_STRUCT_SIZE, .executable = args->executable};
  TRY(PJRT_Executable_NumOutputs, outputs);
  pthread_mutex_lock(&lock);
  if (outputs.num_outputs > most.count || most.count == 0) make(outputs.num_outputs);
  args->memory_kinds = most.kinds;
  args->memory_kind_sizes = most.sizes;
  pthread_mutex_unlock(&lock);
  args->num_outputs = outputs.num_outputs;
  return NULL;
}

void memories_fill(PJRT_Api *api) { api->PJRT_Executable_OutputMemoryKinds = output_memory_kinds; }

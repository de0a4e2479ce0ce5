#include "plugin.h"

#include <pthread.h>
#include <stdlib.h>

// A framework of a newer release looks for entries behind those that we have: it must find none.
static struct {
  PJRT_Api api;
  const void *none[64];
} table;

VIRTUAL_TPU_EXPORT const char *virtual_tpu_version(void) { return VIRTUAL_TPU_VERSION; }

// Forward to another library. A plugin that forwards emulates nothing, not even when that is
// missing.
static const PJRT_Api *forwarding(const char *path) {
  python_find();
  char wrong[1024] = "";
  const PJRT_Api *api = forward_api(path, wrong, sizeof wrong);
  if (api == NULL) backend_withhold(wrong);
  return api;
}

static void fill_own(PJRT_Api *api) {
  identity_fill(api);
  devices_fill(api);
  clients_fill(api);
  programs_fill(api);
  shared_fill(api);
  optimized_fill(api);
  compilations_fill(api);
  memories_fill(api);
  layouts_fill(api);
  executions_fill(api);
  tickets_fill(api);
  unseen_fill(api);
  profiler_fill(api);
  transfers_fill(api);
  extensions_fill(api);
  raw_buffers_fill(api);
  host_transfers_fill(api);
  usage_fill(api);
}

static void fill(PJRT_Api *api) {
  *api = (PJRT_Api){SIZED(PJRT_Api),
                    .pjrt_api_version = {SIZED(PJRT_Api_Version), .major_version = PJRT_API_MAJOR,
                                         .minor_version = PJRT_API_MINOR}};
  if (backend != NULL) api->extension_start = backend->extension_start;
  bridge_fill(api);
  if (backend != NULL) fill_own(api);
  bridge_front(api);
  fewer_fill(api);
}

VIRTUAL_TPU_EXPORT const PJRT_Api *GetPjrtApi(void) {
  const char *forward = getenv(FORWARD_VARIABLE);
  // In front of itself, as where a case is about this plugin, it only has to count.
  const int forwards = forward != NULL && *forward != '\0' && !is_own_library(forward);
  const PJRT_Api *other = forwards ? forwarding(forward) : NULL;
  if (other != NULL) return other;
  if (!forwards) backend_load();
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  if (table.api.struct_size == 0) fill(&table.api);
  pthread_mutex_unlock(&lock);
  if (!forwards) python_start();
  return &table.api;
}

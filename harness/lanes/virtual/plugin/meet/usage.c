#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "meet/meet.h"

// The memory of each device that buffers take, which the CPU's client does not count. A buffer
// counts from when the caller is given it until it is deleted, donated or destroyed. What programs
// need while they run does not count, nor do their constants and code.

enum { MOST_DEVICES = 4096, FEWEST_SLOTS = 64 };

// A buffer in a device's own memory, in a table of buffers by their addresses.
typedef struct Used {
  struct Used *next;
  const PJRT_Buffer *buffer;
  const PJRT_Device *device;
  int id;  // of the device
  int64_t size;
} Used;

// What the buffers of a device take, those of all clients of this process.
typedef struct {
  int64_t now, peak, largest, made;
} Usage;

static PJRT_Api next;  // the calls that these add to
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Used **slots;
static size_t slots_count, used_count;
static Usage usages[MOST_DEVICES];

static Used **slot_of(const PJRT_Buffer *buffer) {
  const uint64_t hash = (uint64_t)(uintptr_t)buffer * 0x9E3779B97F4A7C15u;
  return &slots[(hash >> 32) & (slots_count - 1)];
}

static void grow(void) {
  Used **old = slots;
  const size_t old_count = slots_count;
  slots_count = old_count == 0 ? FEWEST_SLOTS : 2 * old_count;
  slots = allocate(slots_count, sizeof *slots, "a table of buffers");
  for (size_t i = 0; i < old_count; ++i) {
    for (Used *entry = old[i], *later; entry != NULL; entry = later) {
      later = entry->next;
      Used **slot = slot_of(entry->buffer);
      entry->next = *slot;
      *slot = entry;
    }
  }
  free(old);
}

static Used **find(const PJRT_Buffer *buffer) {
  if (slots_count == 0) return NULL;
  Used **link = slot_of(buffer);
  while (*link != NULL && (*link)->buffer != buffer) link = &(*link)->next;
  return *link == NULL ? NULL : link;
}

static void end(Used **link) {
  Used *entry = *link;
  *link = entry->next;
  usages[entry->id].now -= entry->size;
  --used_count;
  free(entry);
}

// Stop counting a buffer, whose memory is free.
static void release(const PJRT_Buffer *buffer) {
  pthread_mutex_lock(&lock);
  Used **link = find(buffer);
  if (link != NULL) end(link);
  pthread_mutex_unlock(&lock);
}

static void count(Used *entry) {
  pthread_mutex_lock(&lock);
  Used **old = find(entry->buffer);  // nobody has said that this one has ended
  if (old != NULL) end(old);
  if (used_count == slots_count) grow();
  Used **slot = slot_of(entry->buffer);
  entry->next = *slot;
  *slot = entry;
  ++used_count;
  Usage *usage = &usages[entry->id];
  usage->now += entry->size;
  usage->made += 1;
  if (usage->now > usage->peak) usage->peak = usage->now;
  if (entry->size > usage->largest) usage->largest = entry->size;
  pthread_mutex_unlock(&lock);
}

// Learn where a new buffer is and how large; `is_counted` is 0 of one in the host's memory.
static PJRT_Error *measure(PJRT_Buffer *buffer, Used *used, int *is_counted) {
  PJRT_Buffer_Device_Args of = {SIZED(PJRT_Buffer_Device_Args), .buffer = buffer};
  TRY(PJRT_Buffer_Device, of);
  PJRT_Device_DefaultMemory_Args own = {SIZED(PJRT_Device_DefaultMemory_Args), .device = of.device};
  TRY(PJRT_Device_DefaultMemory, own);
  PJRT_Buffer_Memory_Args in = {SIZED(PJRT_Buffer_Memory_Args), .buffer = buffer};
  TRY(PJRT_Buffer_Memory, in);
  PJRT_Buffer_OnDeviceSizeInBytes_Args size = {SIZED(PJRT_Buffer_OnDeviceSizeInBytes_Args),
                                               .buffer = buffer};
  *is_counted = in.memory == own.memory;
  if (*is_counted) TRY(PJRT_Buffer_OnDeviceSizeInBytes, size);
  *used = (Used){.buffer = buffer,
                 .device = of.device,
                 .id = device_id(of.device),
                 .size = (int64_t)size.on_device_size_in_bytes};
  return NULL;
}

void usage_add(PJRT_Buffer *buffer) {
  Used used;
  int is_counted;
  PJRT_Error *error = measure(buffer, &used, &is_counted);
  error_drop(error);
  if (error != NULL || !is_counted) return;
  Used *entry = allocate(1, sizeof *entry, "a buffer's size");
  *entry = used;
  count(entry);
}

static int is_known(const PJRT_Buffer *buffer) {
  pthread_mutex_lock(&lock);
  const int known = find(buffer) != NULL;
  pthread_mutex_unlock(&lock);
  return known;
}

// Stop counting an argument that was donated: what a result takes of it counts only once.
static void release_donated(PJRT_Buffer *buffer) {
  if (!is_known(buffer)) return;
  PJRT_Buffer_IsDeleted_Args args = {SIZED(PJRT_Buffer_IsDeleted_Args), .buffer = buffer};
  PJRT_Error *error = backend->PJRT_Buffer_IsDeleted(&args);
  if (error == NULL && args.is_deleted) release(buffer);
  error_drop(error);
}

void usage_executed(const PJRT_LoadedExecutable_Execute_Args *args, int has_results) {
  for (size_t i = 0; i < args->num_devices; ++i) {
    for (size_t k = 0; k < args->num_args; ++k) release_donated(args->argument_lists[i][k]);
  }
  const size_t results = has_results ? parameters_results(args->executable) : 0;
  for (size_t i = 0; i < args->num_devices; ++i) {
    for (size_t k = 0; k < results; ++k) usage_add(args->output_lists[i][k]);
  }
}

void usage_forget(const PJRT_Client *client) {
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < slots_count; ++i) {
    for (Used **link = &slots[i]; *link != NULL;) {
      if (devices_client_of((*link)->device) == client) {
        end(link);
      } else {
        link = &(*link)->next;
      }
    }
  }
  pthread_mutex_unlock(&lock);
}

// Return what JAX's memory_stats and torch_xla's get_memory_info ask for. What is not counted is
// not set.
static PJRT_Error *memory_stats(PJRT_Device_MemoryStats_Args *args) {
  const int id = device_id(args->device);
  if (!identity_is_own(id)) {
    return error_new(PJRT_Error_Code_INVALID_ARGUMENT,
                     "the memory of device %d is asked for in process %d, and the "
                     "device is process %d's",
                     id, identity.process, identity_process_of(id));
  }
  PJRT_Device_MemoryStats_Args stats = {SIZED(PJRT_Device_MemoryStats_Args),
                                        .extension_start = args->extension_start,
                                        .device = args->device};
  const size_t given = args->struct_size;
  pthread_mutex_lock(&lock);
  const Usage usage = usages[id];
  pthread_mutex_unlock(&lock);
  stats.bytes_in_use = usage.now;
  stats.peak_bytes_in_use = usage.peak;
  stats.num_allocs = usage.made;
  stats.largest_alloc_size = usage.largest;
  stats.bytes_limit = identity.memory;
  stats.peak_bytes_in_use_is_set = stats.num_allocs_is_set = stats.largest_alloc_size_is_set =
      stats.bytes_limit_is_set = true;
  stats.bytes_reserved_is_set = stats.peak_bytes_reserved_is_set = true;  // nothing ever is
  memcpy(args, &stats, given < stats.struct_size ? given : stats.struct_size);
  args->struct_size = given;
  return NULL;
}

// --- Where buffers come from and end

#define ADDING(function, call, buffer)             \
  static PJRT_Error *function(call##_Args *args) { \
    PJRT_Error *error = next.call(args);           \
    if (error == NULL) usage_add(args->buffer);    \
    return error;                                  \
  }
ADDING(count_from_host, PJRT_Client_BufferFromHostBuffer, buffer)
ADDING(uninitialized, PJRT_Client_CreateUninitializedBuffer, buffer)
ADDING(promised, PJRT_Client_CreateAliasBuffer, alias_buffer)
ADDING(transferred, PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer, buffer_out)
ADDING(to_device, PJRT_Buffer_CopyToDevice, dst_buffer)
ADDING(to_memory, PJRT_Buffer_CopyToMemory, dst_buffer)

// Copy, as a TPU must. The CPU's client would read from the caller's array for as long as the
// buffer lives, if that array is aligned, and see what is written to it later.
static PJRT_Error *from_host(PJRT_Client_BufferFromHostBuffer_Args *args) {
  const PJRT_HostBufferSemantics semantics = args->host_buffer_semantics;
  if (semantics != PJRT_HostBufferSemantics_kImmutableOnlyDuringCall) {
    args->host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes;
  }
  PJRT_Error *error = count_from_host(args);
  args->host_buffer_semantics = semantics;
  return error;
}

static PJRT_Error *delete(PJRT_Buffer_Delete_Args *args) {
  PJRT_Error *error = next.PJRT_Buffer_Delete(args);
  if (error == NULL) release(args->buffer);
  return error;
}

// Stop counting a buffer before it ends: then another one may get its address.
static PJRT_Error *destroy(PJRT_Buffer_Destroy_Args *args) {
  release(args->buffer);
  return next.PJRT_Buffer_Destroy(args);
}

// Count in all calls that make or end buffers but those of views, whose memory is their caller's.
void usage_fill(PJRT_Api *api) {
  next = *api;
  api->PJRT_Device_MemoryStats = memory_stats;
  api->PJRT_Client_BufferFromHostBuffer = from_host;
  api->PJRT_Client_CreateUninitializedBuffer = uninitialized;
  api->PJRT_Client_CreateAliasBuffer = promised;
  api->PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer = transferred;
  api->PJRT_Buffer_CopyToDevice = to_device;
  api->PJRT_Buffer_CopyToMemory = to_memory;
  api->PJRT_Buffer_Delete = delete;
  api->PJRT_Buffer_Destroy = destroy;
}

#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "compile/compile.h"

// In which memory an executable's results are. The CPU plugin keeps all in that of the device, and
// does not say so. Where a program has others, the Python half has noted it in the program, with a
// letter for each result; then they are copied there after each execution.

static const char NOTE[] = "xla_harness_results:";  // harness/lanes/virtual/host_memory.py
enum { DEVICE, PINNED_HOST, UNPINNED_HOST };
static const char LETTERS[] = "dpu";
static const char *const KINDS[] = {"device", "pinned_host", "unpinned_host"};

// What is told of an executable.
typedef struct {
  const char **kinds;
  size_t *sizes, count;
} Told;

// An executable of which some results are elsewhere.
typedef struct Known {
  struct Known *next;
  const void *executable;
  Told told;
  size_t count;
  unsigned char kinds[];
} Known;

static Known *known;
// As many as the largest executable has results. What callers have got stays: they keep it.
static Told of_device;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static Known *find(const void *executable) {
  Known *one = known;
  while (one != NULL && one->executable != executable) one = one->next;
  return one;
}

static Known *add(const void *executable, size_t count) {
  Known *one = allocate(1, sizeof *one + count, "the memories of an executable's results");
  *one = (Known){.next = known, .executable = executable, .count = count};
  return known = one;
}

void memories_forget(const void *executable) {
  pthread_mutex_lock(&lock);
  Known **link = &known;
  while (*link != NULL && (*link)->executable != executable) link = &(*link)->next;
  Known *one = *link;
  if (one != NULL) *link = one->next;
  pthread_mutex_unlock(&lock);
  if (one == NULL) return;
  free(one->told.kinds);
  free(one->told.sizes);
  free(one);
}

void memories_learn(const PJRT_LoadedExecutable *loaded, const char *bytes, size_t size) {
  memories_forget(loaded);  // that of another client, which had its address
  const char *note = memmem(bytes, size, NOTE, sizeof NOTE - 1);
  if (note == NULL) return;
  note += sizeof NOTE - 1;
  const char *end = memchr(note, ';', (size_t)(bytes + size - note));
  if (end == NULL) return;
  pthread_mutex_lock(&lock);
  Known *one = add(loaded, (size_t)(end - note));
  for (size_t i = 0; i < one->count; ++i) {
    const char *letter = strchr(LETTERS, note[i]);
    one->kinds[i] = letter == NULL ? DEVICE : (unsigned char)(letter - LETTERS);
  }
  pthread_mutex_unlock(&lock);
}

static Told tell(size_t count) {
  return (Told){allocate(count, sizeof(char *), "the memories of an executable's results"),
                allocate(count, sizeof(size_t), "the memories of an executable's results"), count};
}

static void set(const Told *told, size_t index, int kind) {
  told->kinds[index] = KINDS[kind];
  told->sizes[index] = strlen(KINDS[kind]);
}

void memories_name(const PJRT_LoadedExecutable *loaded, const PJRT_Executable *executable) {
  memories_forget(executable);
  pthread_mutex_lock(&lock);
  const Known *one = find(loaded);
  if (one != NULL) {
    Known *copy = add(executable, one->count);
    memcpy(copy->kinds, one->kinds, one->count);
    copy->told = tell(one->count);
    for (size_t i = 0; i < one->count; ++i) set(&copy->told, i, one->kinds[i]);
  }
  pthread_mutex_unlock(&lock);
}

static void make_of_device(size_t count) {
  size_t room = of_device.count == 0 ? 64 : of_device.count;
  while (room < count) room *= 2;
  of_device = tell(room);
  const int wrong = answers_wrongly("memory-kind-wrong");
  for (size_t i = 0; i < room; ++i) set(&of_device, i, wrong ? PINNED_HOST : DEVICE);
}

static PJRT_Error *output_memory_kinds(PJRT_Executable_OutputMemoryKinds_Args *args) {
  PJRT_Executable_NumOutputs_Args outputs = {
      .struct_size = PJRT_Executable_NumOutputs_Args_STRUCT_SIZE, .executable = args->executable};
  TRY(PJRT_Executable_NumOutputs, outputs);
  pthread_mutex_lock(&lock);
  const Known *one = find(args->executable);
  if (one == NULL && (outputs.num_outputs > of_device.count || of_device.count == 0)) {
    make_of_device(outputs.num_outputs);
  }
  const Told told = one == NULL ? of_device : one->told;
  pthread_mutex_unlock(&lock);
  args->memory_kinds = told.kinds;
  args->memory_kind_sizes = told.sizes;
  args->num_outputs = outputs.num_outputs;
  return NULL;
}

// A device's memory of that kind.
static PJRT_Error *memory_of(PJRT_Device *device, int kind, PJRT_Memory **memory) {
  PJRT_Device_AddressableMemories_Args all = {
      .struct_size = PJRT_Device_AddressableMemories_Args_STRUCT_SIZE, .device = device};
  TRY(PJRT_Device_AddressableMemories, all);
  for (size_t i = 0; i < all.num_memories; ++i) {
    PJRT_Memory_Kind_Args found = {.struct_size = PJRT_Memory_Kind_Args_STRUCT_SIZE,
                                   .memory = all.memories[i]};
    TRY(PJRT_Memory_Kind, found);
    if (found.kind_size == strlen(KINDS[kind]) &&
        memcmp(found.kind, KINDS[kind], found.kind_size) == 0) {
      *memory = all.memories[i];
      return NULL;
    }
  }
  return error_new(PJRT_Error_Code_UNIMPLEMENTED, "virtual TPU: a device has no memory %s",
                   KINDS[kind]);
}

static PJRT_Error *move(PJRT_Buffer **buffer, int kind) {
  PJRT_Buffer_Device_Args of = {.struct_size = PJRT_Buffer_Device_Args_STRUCT_SIZE,
                                .buffer = *buffer};
  TRY(PJRT_Buffer_Device, of);
  PJRT_Buffer_CopyToMemory_Args copy = {.struct_size = PJRT_Buffer_CopyToMemory_Args_STRUCT_SIZE,
                                        .buffer = *buffer};
  PJRT_Error *error = memory_of(of.device, kind, &copy.dst_memory);
  if (error != NULL) return error;
  TRY(PJRT_Buffer_CopyToMemory, copy);
  buffer_drop(*buffer);
  *buffer = copy.dst_buffer;
  return NULL;
}

PJRT_Error *memories_place(const PJRT_LoadedExecutable_Execute_Args *args) {
  PJRT_Error *error = NULL;
  pthread_mutex_lock(&lock);
  const Known *one = find(args->executable);
  for (size_t i = 0; one != NULL && i < args->num_devices; ++i) {
    for (size_t k = 0; k < one->count && error == NULL; ++k) {
      if (one->kinds[k] != DEVICE) error = move(&args->output_lists[i][k], one->kinds[k]);
    }
  }
  pthread_mutex_unlock(&lock);
  return error;
}

void memories_fill(PJRT_Api *api) { api->PJRT_Executable_OutputMemoryKinds = output_memory_kinds; }

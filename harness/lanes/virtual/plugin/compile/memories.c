#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "compile/compile.h"

// In which memory an executable's results are. The CPU plugin keeps all in that of the device, and
// does not say so. Where a program has others, the Python half has noted it in the program, with a
// letter for each result; then they are copied there after each execution.

enum { DEVICE, PINNED_HOST, UNPINNED_HOST };
static const char LETTERS[] = "dpu";
static const char *const KINDS[] = {"device", "pinned_host", "unpinned_host"};

// The memories of an executable's results, as PJRT names them.
typedef struct {
  const char **kinds;
  size_t *sizes, count;
} Names;

// An executable of which some results are elsewhere.
typedef struct {
  Known known;
  Names names;
  size_t count;
  unsigned char kinds[];
} Results;

static Known *executables;
// As many as the largest executable has results. Callers keep these names, so they stay.
static Names of_device;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static Results *add(const void *executable, size_t count) {
  Results *results =
      allocate(1, sizeof *results + count, "the memories of an executable's results");
  results->count = count;
  return known_add(&executables, executable, results);
}

void memories_forget(const void *executable) {
  pthread_mutex_lock(&lock);
  Results *results = known_take(&executables, executable);
  pthread_mutex_unlock(&lock);
  if (results == NULL) return;
  free(results->names.kinds);
  free(results->names.sizes);
  free(results);
}

void memories_learn(PJRT_LoadedExecutable *loaded, const char *bytes, size_t size) {
  memories_forget(loaded);  // that of another client, which had its address
  size_t count;             // see harness/lanes/virtual/host_memory.py
  const char *note = find_note(bytes, size, "xla_harness_results:", &count);
  if (note == NULL || count != parameters_results(loaded)) return;
  pthread_mutex_lock(&lock);
  Results *results = add(loaded, count);
  for (size_t i = 0; i < count; ++i) {
    const char *letter = memchr(LETTERS, note[i], sizeof LETTERS - 1);
    results->kinds[i] = letter == NULL ? DEVICE : (unsigned char)(letter - LETTERS);
  }
  pthread_mutex_unlock(&lock);
}

static Names make_names(size_t count) {
  return (Names){allocate(count, sizeof(char *), "the memories of an executable's results"),
                 allocate(count, sizeof(size_t), "the memories of an executable's results"), count};
}

static void set(const Names *names, size_t index, int kind) {
  names->kinds[index] = KINDS[kind];
  names->sizes[index] = strlen(KINDS[kind]);
}

void memories_name(const PJRT_LoadedExecutable *loaded, const PJRT_Executable *executable) {
  memories_forget(executable);
  pthread_mutex_lock(&lock);
  const Results *results = known_find(executables, loaded);
  if (results != NULL) {
    Results *copy = add(executable, results->count);
    memcpy(copy->kinds, results->kinds, results->count);
    copy->names = make_names(results->count);
    for (size_t i = 0; i < results->count; ++i) set(&copy->names, i, results->kinds[i]);
  }
  pthread_mutex_unlock(&lock);
}

static void make_of_device(size_t count) {
  size_t room = of_device.count == 0 ? 64 : of_device.count;
  while (room < count) room *= 2;
  of_device = make_names(room);
  const int wrong = answers_wrongly("memory-kind-wrong");
  for (size_t i = 0; i < room; ++i) set(&of_device, i, wrong ? PINNED_HOST : DEVICE);
}

static PJRT_Error *output_memory_kinds(PJRT_Executable_OutputMemoryKinds_Args *args) {
  PJRT_Executable_NumOutputs_Args outputs = {SIZED(PJRT_Executable_NumOutputs_Args),
                                             .executable = args->executable};
  TRY(PJRT_Executable_NumOutputs, outputs);
  pthread_mutex_lock(&lock);
  const Results *results = known_find(executables, args->executable);
  if (results == NULL && (outputs.num_outputs > of_device.count || of_device.count == 0)) {
    make_of_device(outputs.num_outputs);
  }
  const Names names = results == NULL ? of_device : results->names;
  pthread_mutex_unlock(&lock);
  args->memory_kinds = names.kinds;
  args->memory_kind_sizes = names.sizes;
  args->num_outputs = outputs.num_outputs;
  return NULL;
}

PJRT_Error *memory_is(PJRT_Memory *memory, const char *kind, int *is) {
  PJRT_Memory_Kind_Args name = {SIZED(PJRT_Memory_Kind_Args), .memory = memory};
  TRY(PJRT_Memory_Kind, name);
  *is = name.kind_size == strlen(kind) && memcmp(name.kind, kind, name.kind_size) == 0;
  return NULL;
}

// Find a device's memory of that kind.
static PJRT_Error *memory_of(PJRT_Device *device, int kind, PJRT_Memory **memory) {
  PJRT_Device_AddressableMemories_Args all = {SIZED(PJRT_Device_AddressableMemories_Args),
                                              .device = device};
  TRY(PJRT_Device_AddressableMemories, all);
  for (size_t i = 0; i < all.num_memories; ++i) {
    int is;
    *memory = all.memories[i];
    PJRT_Error *error = memory_is(*memory, KINDS[kind], &is);
    if (error != NULL || is) return error;
  }
  return error_new(PJRT_Error_Code_UNIMPLEMENTED, "a device has no memory %s", KINDS[kind]);
}

static PJRT_Error *move(PJRT_Buffer **buffer, int kind) {
  PJRT_Buffer_Device_Args of = {SIZED(PJRT_Buffer_Device_Args), .buffer = *buffer};
  TRY(PJRT_Buffer_Device, of);
  PJRT_Buffer_CopyToMemory_Args copy = {SIZED(PJRT_Buffer_CopyToMemory_Args), .buffer = *buffer};
  PJRT_Error *error = memory_of(of.device, kind, &copy.dst_memory);
  if (error != NULL) return error;
  if ((error = layouts_copy(&copy)) != NULL) return error;
  buffer_drop(*buffer);
  *buffer = copy.dst_buffer;
  return NULL;
}

PJRT_Error *memories_place(const PJRT_LoadedExecutable_Execute_Args *args) {
  PJRT_Error *error = NULL;
  pthread_mutex_lock(&lock);
  const Results *results = known_find(executables, args->executable);
  pthread_mutex_unlock(&lock);  // as long as the executable lives, they stay where they are
  for (size_t i = 0; results != NULL && i < args->num_devices; ++i) {
    for (size_t k = 0; k < results->count && error == NULL; ++k) {
      if (results->kinds[k] != DEVICE) error = move(&args->output_lists[i][k], results->kinds[k]);
    }
  }
  return error;
}

void memories_fill(PJRT_Api *api) { api->PJRT_Executable_OutputMemoryKinds = output_memory_kinds; }
